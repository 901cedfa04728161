//! Compare-and-exchange, flag instructions, decimal arithmetic, hints, fences and random numbers.

use crate::access::Access;
use crate::exec::{get0, get1, set0, set1, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Flags, Lacking, Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*};
use ledger::Class;
use x86::{flags, reg, vector};

/// Instruction table rows of miscellaneous instructions.
pub static ROWS: &[Row] = &[
    Row::new(Xadd, Class::Alu, xadd).native(Flags::Listed).common(),
    Row::new(Cmpxchg, Class::Alu, cmpxchg).native(Flags::Listed).common(),
    Row::new(Cmpxchg8b, Class::ReadModifyWrite, |_, _| Some(cmpxchg8b)),
    Row::new(Cmpxchg16b, Class::ReadModifyWrite, |_, _| Some(cmpxchg16b)).treated(Treatment::CompareExchange16),
    Row::new(Lahf, Class::Alu, |_, _| Some(lahf)).common(),
    Row::new(Sahf, Class::Alu, |_, _| Some(sahf)).common(),
    Row::new(Clc, Class::Alu, |_, _| Some(|cpu, _| carry(cpu, false))).native(Flags::Listed).common(),
    Row::new(Stc, Class::Alu, |_, _| Some(|cpu, _| carry(cpu, true))).native(Flags::Listed).common(),
    Row::new(Cmc, Class::Alu, |_, _| {
        Some(|cpu, _| {
            let cf = !cpu.arch.lazy.cf();
            carry(cpu, cf)
        })
    })
    .native(Flags::Listed)
    .common(),
    Row::new(Cld, Class::Alu, |_, _| Some(cld)),
    Row::new(Std, Class::Alu, |_, _| Some(std_flag)),
    Row::new(Salc, Class::Alu, |_, _| Some(salc)),
    Row::new(Xlatb, Class::Load, |_, _| Some(xlat)),
    Row::new(Aaa, Class::Microcode, |_, _| Some(aaa::<false>)),
    Row::new(Aas, Class::Microcode, |_, _| Some(aaa::<true>)),
    Row::new(Aad, Class::Microcode, |_, _| Some(aad)),
    Row::new(Aam, Class::Microcode, |_, _| Some(aam)),
    Row::new(Daa, Class::Microcode, |_, _| Some(daa::<false>)),
    Row::new(Das, Class::Microcode, |_, _| Some(daa::<true>)),
    Row::new(Nop, Class::Nop, nop).treated(Treatment::Nothing).common(),
    Row::new(Endbr32, Class::Nop, nop).treated(Treatment::Nothing).common(),
    Row::new(Endbr64, Class::Nop, nop).treated(Treatment::Nothing).common(),
    Row::new(Reservednop, Class::Nop, nop).treated(Treatment::Nothing),
    // NOP without shadow stacks (SDM vol. 2, RDSSPD/RDSSPQ); programs such as libgcc's unwinder rely on it.
    Row::new(Rdsspd, Class::Nop, nop).treated(Treatment::Nothing).lacking(Lacking::Ignored),
    Row::new(Rdsspq, Class::Nop, nop).treated(Treatment::Nothing).lacking(Lacking::Ignored),
    // Hints in the range 0F 18 to 0F 1F, which has been reserved for NOPs since multi-byte NOPs exist.
    Row::new(Cldemote, Class::Nop, nop).treated(Treatment::Nothing),
    Row::new(Prefetchit0, Class::Nop, nop).treated(Treatment::Nothing),
    Row::new(Prefetchit1, Class::Nop, nop).treated(Treatment::Nothing),
    Row::new(Prefetch, Class::Nop, prefetch::<false>).treated(Treatment::Prefetch),
    Row::new(Prefetchw, Class::Nop, prefetch::<true>).treated(Treatment::Prefetch).lacking(Lacking::Ignored),
    Row::new(Prefetchwt1, Class::Nop, prefetch::<true>).treated(Treatment::Prefetch),
    Row::new(Prefetchnta, Class::Nop, prefetch::<false>).treated(Treatment::Prefetch),
    Row::new(Prefetcht0, Class::Nop, prefetch::<false>).treated(Treatment::Prefetch),
    Row::new(Prefetcht1, Class::Nop, prefetch::<false>).treated(Treatment::Prefetch),
    Row::new(Prefetcht2, Class::Nop, prefetch::<false>).treated(Treatment::Prefetch),
    Row::end(Pause, Class::Pause, |_, _| Some(pause)).treated(Treatment::Pause),
    Row::new(Lfence, Class::Fence, nop).treated(Treatment::Nothing),
    Row::new(Sfence, Class::Fence, nop).treated(Treatment::Nothing),
    Row::new(Mfence, Class::Fence, nop).treated(Treatment::Nothing),
    Row::new(Clflush, Class::CacheLine, cache_line::<false>),
    Row::new(Clflushopt, Class::CacheLine, cache_line::<false>),
    Row::new(Clwb, Class::CacheLine, cache_line::<true>),
    Row::new(Movnti, Class::Store, |_, op| sized!(op.size; movnti<>)),
    Row::new(Rdrand, Class::Random, |_, op| sized!(op.size; random<Number>)),
    Row::new(Rdseed, Class::Random, |_, op| sized!(op.size; random<Seed>)),
    Row::new(Ud0, Class::System, |_, _| None),
    Row::new(Ud1, Class::System, |_, _| None),
    Row::new(Ud2, Class::System, |_, _| None),
];

fn nop(_: &Instruction, op: &mut Op) -> Option<Handler> {
    op.flags &= !(Op::MEM | Op::MEM0);
    Some(|_, _| Ok(Flow::Next))
}

fn pause(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.pause_exit()?;
    cpu.micro.spins = true;
    Ok(Flow::End)
}

fn xadd(_: &Instruction, op: &mut Op) -> Option<Handler> {
    if op.has(Op::MEM) { sized!(op.size; xadd_memory<>) } else { sized!(op.size; xadd_register<>) }
}

#[inline(always)]
fn add<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
    let r = T::from_u64(a.to_u64().wrapping_add(b.to_u64()));
    cpu.arch.lazy.set_add(a, b, r);
    r
}

fn xadd_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = get1::<T>(cpu, op);
    let mut old = b;
    cpu.modify::<T>(op, |cpu, a| {
        old = a;
        add(cpu, a, b)
    })?;
    set1(cpu, op, old);
    Ok(Flow::Next)
}

fn xadd_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (a, b) = (get0::<T>(cpu, op), get1::<T>(cpu, op));
    let sum = add(cpu, a, b);
    // If both operands are the same register, it receives the sum.
    set1(cpu, op, a);
    set0(cpu, op, sum);
    Ok(Flow::Next)
}

fn cmpxchg(_: &Instruction, op: &mut Op) -> Option<Handler> {
    if op.has(Op::MEM) { sized!(op.size; cmpxchg_memory<>) } else { sized!(op.size; cmpxchg_register<>) }
}

#[inline(always)]
fn compare<T: Int>(cpu: &mut Cpu, a: T, b: T) -> bool {
    cpu.arch.lazy.set_sub(a, b, T::from_u64(a.to_u64().wrapping_sub(b.to_u64())));
    a == b
}

fn cmpxchg_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (expected, new) = (cpu.get::<T>(reg::RAX), get1::<T>(cpu, op));
    let mut found = expected;
    // The destination is written in either case, with its old value if the comparison fails.
    cpu.modify::<T>(op, |cpu, value| {
        found = value;
        if compare(cpu, expected, value) { new } else { value }
    })?;
    if found != expected {
        cpu.set(reg::RAX, found);
    }
    Ok(Flow::Next)
}

fn cmpxchg_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let expected = cpu.get::<T>(reg::RAX);
    let value = get0::<T>(cpu, op);
    if compare(cpu, expected, value) {
        let new = get1::<T>(cpu, op);
        set0(cpu, op, new);
    } else {
        cpu.set(reg::RAX, value);
    }
    Ok(Flow::Next)
}

fn pair<T: Int>(cpu: &Cpu, high: u8, low: u8) -> (u64, u64) {
    (cpu.get::<T>(low).to_u64(), cpu.get::<T>(high).to_u64())
}

fn cmpxchg8b(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (low, high) = pair::<u32>(cpu, reg::RDX, reg::RAX);
    let (new_low, new_high) = pair::<u32>(cpu, reg::RCX, reg::RBX);
    let expected = high << 32 | low;
    let mut found = expected;
    cpu.modify::<u64>(op, |_, value| {
        found = value;
        if value == expected { new_high << 32 | new_low } else { value }
    })?;
    cpu.arch.lazy.set_zf(found == expected);
    if found != expected {
        cpu.set(reg::RAX, found as u32);
        cpu.set(reg::RDX, (found >> 32) as u32);
    }
    Ok(Flow::Next)
}

fn cmpxchg16b(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let linear = cpu.operand_linear(op, 16, true)?;
    if linear & 15 != 0 {
        return Err(cpu.gp(0));
    }
    let privilege = cpu.privilege();
    cpu.prepare_write(linear, 16, privilege, op.seg)?;
    let found = (cpu.read_linear::<u64>(linear, op.seg)?, cpu.read_linear::<u64>(linear + 8, op.seg)?);
    let expected = pair::<u64>(cpu, reg::RDX, reg::RAX);
    let equal = found == expected;
    let new = if equal { pair::<u64>(cpu, reg::RCX, reg::RBX) } else { found };
    cpu.write_linear(linear, op.seg, new.0)?;
    cpu.write_linear(linear + 8, op.seg, new.1)?;
    cpu.arch.lazy.set_zf(equal);
    if !equal {
        cpu.set(reg::RAX, found.0);
        cpu.set(reg::RDX, found.1);
    }
    Ok(Flow::Next)
}

fn lahf(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let image = (cpu.arch.lazy.image() & 0xff) | 2;
    let rax = cpu.arch.gpr[usize::from(reg::RAX)];
    cpu.arch.gpr[usize::from(reg::RAX)] = (rax & !0xff00) | image << 8;
    Ok(Flow::Next)
}

fn sahf(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let ah = cpu.arch.gpr[usize::from(reg::RAX)] >> 8 & 0xff;
    let of = cpu.arch.lazy.image() & flags::OF;
    cpu.arch.lazy.load(ah | of);
    Ok(Flow::Next)
}

fn carry(cpu: &mut Cpu, value: bool) -> Exec<Flow> {
    cpu.arch.lazy.set_cf(value);
    Ok(Flow::Next)
}

fn cld(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.arch.flags &= !flags::DF;
    Ok(Flow::Next)
}

fn std_flag(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.arch.flags |= flags::DF;
    Ok(Flow::Next)
}

fn salc(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let value = if cpu.arch.lazy.cf() { 0xffu8 } else { 0 };
    cpu.set(reg::RAX, value);
    Ok(Flow::Next)
}

fn xlat(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let mask = crate::op::address_mask(op.asize);
    let offset = cpu.arch.gpr[usize::from(reg::RBX)].wrapping_add(u64::from(cpu.get::<u8>(reg::RAX))) & mask;
    let value = cpu.read_seg::<u8>(op.seg, offset)?;
    cpu.set(reg::RAX, value);
    Ok(Flow::Next)
}

/// AAA and AAS. SF, ZF, PF and OF are undefined: they follow the resulting AL, with OF clear.
fn aaa<const SUBTRACT: bool>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let ax = cpu.get::<u16>(reg::RAX);
    let adjust = ax & 15 > 9 || cpu.arch.lazy.af();
    let ax = match (adjust, SUBTRACT) {
        (true, false) => ax.wrapping_add(0x106),
        (true, true) => ax.wrapping_sub(0x106),
        (false, _) => ax,
    } & 0xff0f;
    cpu.set(reg::RAX, ax);
    cpu.arch.lazy.set_result(ax as u8, adjust, false, adjust);
    Ok(Flow::Next)
}

fn aad(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let ax = cpu.get::<u16>(reg::RAX);
    let (low, tens) = (ax as u8, ((ax >> 8) as u8).wrapping_mul(op.imm as u8));
    let al = low.wrapping_add(tens);
    cpu.set(reg::RAX, u16::from(al));
    // CF, OF and AF, which are undefined, are those of the addition, as on Intel processors.
    cpu.arch.lazy.set_add(low, tens, al);
    Ok(Flow::Next)
}

fn aam(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let al = cpu.get::<u8>(reg::RAX);
    let Some(high) = al.checked_div(op.imm as u8) else { return Err(cpu.raise(vector::DE)) };
    let low = al % op.imm as u8;
    cpu.set(reg::RAX, u16::from(high) << 8 | u16::from(low));
    cpu.arch.lazy.set_logic(low);
    Ok(Flow::Next)
}

/// DAA and DAS (SDM vol. 2). OF is undefined: it is cleared.
fn daa<const SUBTRACT: bool>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let old = cpu.get::<u8>(reg::RAX);
    let old_cf = cpu.arch.lazy.cf();
    let change = |al: u8, by: u8| if SUBTRACT { al.wrapping_sub(by) } else { al.wrapping_add(by) };
    let mut al = old;
    let mut cf = false;
    let af = old & 15 > 9 || cpu.arch.lazy.af();
    if af {
        cf = old_cf || if SUBTRACT { old < 6 } else { old > 0xf9 };
        al = change(al, 6);
    }
    if old > 0x99 || old_cf {
        al = change(al, 0x60);
        cf = true;
    }
    cpu.set(reg::RAX, al);
    cpu.arch.lazy.set_result(al, cf, false, af);
    Ok(Flow::Next)
}

/// CLFLUSH, CLFLUSHOPT, and CLWB, which keeps the line.
fn cache_line<const KEEP: bool>(_: &Instruction, _: &mut Op) -> Option<Handler> {
    // The address is translated and checked as for a byte read.
    Some(|cpu, op| {
        let linear = cpu.operand_linear(op, 1, false)?;
        let privilege = cpu.privilege();
        if !cpu.has_lines() {
            cpu.prepare_read(linear, 1, privilege, op.seg)?;
            return Ok(Flow::Next);
        }
        cpu.check_canonical(linear, op.seg)?;
        let (physical, _) = cpu.translate(linear, Access::Read, privilege)?;
        cpu.flush_line(physical, KEEP);
        Ok(Flow::Next)
    })
}

/// PREFETCHh and PREFETCHW, which ask for a line if caches are modelled, and never fault.
fn prefetch<const WRITE: bool>(_: &Instruction, _: &mut Op) -> Option<Handler> {
    Some(|cpu, op| {
        if cpu.has_lines()
            && let Some(physical) = cpu.translate_hint(op)
        {
            cpu.ask_for_data(physical, WRITE);
        }
        Ok(Flow::Next)
    })
}

fn movnti<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.get::<T>(op.r1);
    cpu.store(op, value)?;
    Ok(Flow::Next)
}

/// Distinguishes RDRAND and RDSEED.
trait Entropy {
    const SEED: bool;
}

struct Number;
struct Seed;

impl Entropy for Number {
    const SEED: bool = false;
}

impl Entropy for Seed {
    const SEED: bool = true;
}

/// RDRAND and RDSEED: a seeded generator (splitmix64) that makes runs repeatable. It never fails.
fn random<E: Entropy, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.random_exit(op, E::SEED)?;
    cpu.micro.random = cpu.micro.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = cpu.micro.random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    cpu.set(op.r0, T::from_u64(z ^ (z >> 31)));
    cpu.arch.lazy.load(flags::CF);
    Ok(Flow::Next)
}
