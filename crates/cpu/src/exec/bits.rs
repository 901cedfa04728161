//! Bit tests and scans, conditional moves and sets, byte swaps, sign extension, BMI, ADX, CRC32.

use crate::exec::{get1, set0, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Flags, Lacking, Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind};
use ledger::Class;
use x86::reg;

/// Without BMI1, the mandatory prefix of TZCNT is a REP that BSF ignores.
const TRAILING: &[(Code, Code)] = &[
    (Code::Tzcnt_r16_rm16, Code::Bsf_r16_rm16),
    (Code::Tzcnt_r32_rm32, Code::Bsf_r32_rm32),
    (Code::Tzcnt_r64_rm64, Code::Bsf_r64_rm64),
];

/// Without LZCNT, its mandatory prefix is a REP that BSR ignores.
const LEADING: &[(Code, Code)] = &[
    (Code::Lzcnt_r16_rm16, Code::Bsr_r16_rm16),
    (Code::Lzcnt_r32_rm32, Code::Bsr_r32_rm32),
    (Code::Lzcnt_r64_rm64, Code::Bsr_r64_rm64),
];

/// Instruction table rows of bit manipulation.
pub static ROWS: &[Row] = &[
    Row::new(Bt, Class::Alu, bit::<0>).treated(Treatment::BitTest).common(),
    Row::new(Bts, Class::Alu, bit::<1>).treated(Treatment::BitTest).common(),
    Row::new(Btr, Class::Alu, bit::<2>).treated(Treatment::BitTest).common(),
    Row::new(Btc, Class::Alu, bit::<3>).treated(Treatment::BitTest).common(),
    Row::new(Bsf, Class::Alu, |_, op| sized!(op.size; scan<Forward>)).native(Flags::Differ).common(),
    Row::new(Bsr, Class::Alu, |_, op| sized!(op.size; scan<Reverse>)).native(Flags::Differ).common(),
    Row::new(Popcnt, Class::Alu, |_, op| sized!(op.size; popcnt<>)).native(Flags::Listed).common(),
    Row::new(Tzcnt, Class::Alu, |_, op| sized!(op.size; tzcnt<>))
        .native(Flags::Listed)
        .common()
        .lacking(Lacking::Older(TRAILING)),
    Row::new(Lzcnt, Class::Alu, |_, op| sized!(op.size; lzcnt<>))
        .native(Flags::Listed)
        .common()
        .lacking(Lacking::Older(LEADING)),
    Row::new(Seto, Class::Alu, set_if::<0>).native(Flags::Listed).common(),
    Row::new(Setno, Class::Alu, set_if::<1>).native(Flags::Listed),
    Row::new(Setb, Class::Alu, set_if::<2>).native(Flags::Listed).common(),
    Row::new(Setae, Class::Alu, set_if::<3>).native(Flags::Listed),
    Row::new(Sete, Class::Alu, set_if::<4>).native(Flags::Listed).common(),
    Row::new(Setne, Class::Alu, set_if::<5>).native(Flags::Listed),
    Row::new(Setbe, Class::Alu, set_if::<6>).native(Flags::Listed),
    Row::new(Seta, Class::Alu, set_if::<7>).native(Flags::Listed).common(),
    Row::new(Sets, Class::Alu, set_if::<8>).native(Flags::Listed).common(),
    Row::new(Setns, Class::Alu, set_if::<9>).native(Flags::Listed),
    Row::new(Setp, Class::Alu, set_if::<10>).native(Flags::Listed).common(),
    Row::new(Setnp, Class::Alu, set_if::<11>).native(Flags::Listed),
    Row::new(Setl, Class::Alu, set_if::<12>).native(Flags::Listed).common(),
    Row::new(Setge, Class::Alu, set_if::<13>).native(Flags::Listed),
    Row::new(Setle, Class::Alu, set_if::<14>).native(Flags::Listed),
    Row::new(Setg, Class::Alu, set_if::<15>).native(Flags::Listed),
    Row::new(Cmovo, Class::Alu, move_if::<0>).native(Flags::Listed).common(),
    Row::new(Cmovno, Class::Alu, move_if::<1>).native(Flags::Listed),
    Row::new(Cmovb, Class::Alu, move_if::<2>).native(Flags::Listed).common(),
    Row::new(Cmovae, Class::Alu, move_if::<3>).native(Flags::Listed),
    Row::new(Cmove, Class::Alu, move_if::<4>).native(Flags::Listed).common(),
    Row::new(Cmovne, Class::Alu, move_if::<5>).native(Flags::Listed),
    Row::new(Cmovbe, Class::Alu, move_if::<6>).native(Flags::Listed).common(),
    Row::new(Cmova, Class::Alu, move_if::<7>).native(Flags::Listed),
    Row::new(Cmovs, Class::Alu, move_if::<8>).native(Flags::Listed).common(),
    Row::new(Cmovns, Class::Alu, move_if::<9>).native(Flags::Listed),
    Row::new(Cmovp, Class::Alu, move_if::<10>).native(Flags::Listed).common(),
    Row::new(Cmovnp, Class::Alu, move_if::<11>).native(Flags::Listed),
    Row::new(Cmovl, Class::Alu, move_if::<12>).native(Flags::Listed),
    Row::new(Cmovge, Class::Alu, move_if::<13>).native(Flags::Listed),
    Row::new(Cmovle, Class::Alu, move_if::<14>).native(Flags::Listed),
    Row::new(Cmovg, Class::Alu, move_if::<15>).native(Flags::Listed).common(),
    Row::new(Bswap, Class::Alu, |_, op| sized!(op.size; bswap<>)).native(Flags::Listed).common(),
    Row::new(Movbe, Class::Alu, movbe).native(Flags::Listed).common(),
    Row::new(Cbw, Class::Alu, |_, _| Some(extend::<u8, u16>)).native(Flags::Listed).common(),
    Row::new(Cwde, Class::Alu, |_, _| Some(extend::<u16, u32>)).native(Flags::Listed).common(),
    Row::new(Cdqe, Class::Alu, |_, _| Some(extend::<u32, u64>)).native(Flags::Listed).common(),
    Row::new(Cwd, Class::Alu, |_, _| Some(spread::<u16>)).native(Flags::Listed).common(),
    Row::new(Cdq, Class::Alu, |_, _| Some(spread::<u32>)).native(Flags::Listed).common(),
    Row::new(Cqo, Class::Alu, |_, _| Some(spread::<u64>)).native(Flags::Listed).common(),
    Row::new(Andn, Class::Alu, |_, op| sized!(op.size; andn<>)).native(Flags::Listed).common(),
    Row::new(Bextr, Class::Alu, |_, op| sized!(op.size; bextr<>)).native(Flags::Listed).common(),
    Row::new(Blsi, Class::Alu, |i, op| lowest(i, op, blsi::<u32>, blsi::<u64>)).native(Flags::Listed).common(),
    Row::new(Blsmsk, Class::Alu, |i, op| lowest(i, op, blsmsk::<u32>, blsmsk::<u64>)).native(Flags::Listed).common(),
    Row::new(Blsr, Class::Alu, |i, op| lowest(i, op, blsr::<u32>, blsr::<u64>)).native(Flags::Listed).common(),
    Row::new(Bzhi, Class::Alu, |_, op| sized!(op.size; bzhi<>)).native(Flags::Listed).common(),
    Row::new(Mulx, Class::Mul, |_, op| sized!(op.size; mulx<>)).native(Flags::Listed).common(),
    Row::new(Pdep, Class::Mul, |_, op| sized!(op.size; pdep<>)).native(Flags::Listed).common(),
    Row::new(Pext, Class::Mul, |_, op| sized!(op.size; pext<>)).native(Flags::Listed).common(),
    Row::new(Rorx, Class::Alu, |_, op| sized!(op.size; rorx<>)).native(Flags::Listed).common(),
    Row::new(Sarx, Class::Alu, |_, op| sized!(op.size; sarx<>)).native(Flags::Listed).common(),
    Row::new(Shlx, Class::Alu, |_, op| sized!(op.size; shlx<>)).native(Flags::Listed).common(),
    Row::new(Shrx, Class::Alu, |_, op| sized!(op.size; shrx<>)).native(Flags::Listed).common(),
    Row::new(Adcx, Class::Alu, |_, op| sized!(op.size; adcx<>)).native(Flags::Listed).common(),
    Row::new(Adox, Class::Alu, |_, op| sized!(op.size; adox<>)).native(Flags::Listed).common(),
    Row::new(Crc32, Class::Mul, crc32).native(Flags::Listed).common(),
];

/// Reads operand 1, register or memory.
#[inline(always)]
fn source1<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<T> {
    if op.has(Op::MEM) { cpu.load::<T>(op) } else { Ok(get1(cpu, op)) }
}

/// Reads operand 2, register or memory.
#[inline(always)]
fn source2<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<T> {
    if op.has(Op::MEM) { cpu.load::<T>(op) } else { Ok(cpu.get::<T>(op.r2)) }
}

fn bit<const KIND: u8>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    fn pick<const KIND: u8, const MEMORY: bool, const INDEXED: bool>(size: u8) -> Option<Handler> {
        match size {
            2 => Some(bit_sized::<KIND, MEMORY, INDEXED, u16>),
            4 => Some(bit_sized::<KIND, MEMORY, INDEXED, u32>),
            8 => Some(bit_sized::<KIND, MEMORY, INDEXED, u64>),
            _ => None,
        }
    }
    match (i.op0_kind() == OpKind::Memory, i.op1_kind() == OpKind::Register) {
        (true, true) => pick::<KIND, true, true>(op.size),
        (true, false) => pick::<KIND, true, false>(op.size),
        (false, true) => pick::<KIND, false, true>(op.size),
        (false, false) => pick::<KIND, false, false>(op.size),
    }
}

#[inline(always)]
fn change_bit<const KIND: u8>(value: u64, mask: u64) -> u64 {
    match KIND {
        1 => value | mask,
        2 => value & !mask,
        _ => value ^ mask,
    }
}

fn bit_sized<const KIND: u8, const MEMORY: bool, const INDEXED: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let index = if INDEXED { cpu.get::<T>(op.r1).to_i64() } else { op.imm as i64 };
    let mask = 1u64 << (index as u32 & (T::BITS - 1));
    if !MEMORY {
        let value = cpu.get::<T>(op.r0).to_u64();
        if KIND != 0 {
            cpu.set(op.r0, T::from_u64(change_bit::<KIND>(value, mask)));
        }
        cpu.arch.lazy.set_cf(value & mask != 0);
        return Ok(Flow::Next);
    }
    // A bit index in a register may select a bit beyond the operand, in units of the operand size.
    let mut at = *op;
    if INDEXED {
        let units = index >> T::BITS.trailing_zeros();
        at.disp = at.disp.wrapping_add(units.wrapping_mul(i64::from(T::SIZE)) as u64);
    }
    let value = if KIND == 0 {
        cpu.load::<T>(&at)?.to_u64()
    } else {
        let mut old = 0;
        cpu.modify::<T>(&at, |_, value| {
            old = value.to_u64();
            T::from_u64(change_bit::<KIND>(old, mask))
        })?;
        old
    };
    cpu.arch.lazy.set_cf(value & mask != 0);
    Ok(Flow::Next)
}

trait Scan {
    fn index<T: Int>(value: u64) -> u32;
}
struct Forward;
struct Reverse;
impl Scan for Forward {
    fn index<T: Int>(value: u64) -> u32 {
        value.trailing_zeros()
    }
}
impl Scan for Reverse {
    fn index<T: Int>(value: u64) -> u32 {
        63 - value.leading_zeros()
    }
}

fn scan<S: Scan, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    // A zero source leaves the destination unchanged; the other flags, which are undefined, are cleared, except for PF,
    // which follows the result.
    if source == 0 {
        cpu.arch.lazy.load(x86::flags::ZF | x86::flags::PF);
        return Ok(Flow::Next);
    }
    let index = S::index::<T>(source);
    cpu.set(op.r0, T::from_u64(u64::from(index)));
    cpu.arch.lazy.set_product(index, false);
    Ok(Flow::Next)
}

fn popcnt<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    cpu.set(op.r0, T::from_u64(u64::from(source.count_ones())));
    cpu.arch.lazy.load(if source == 0 { x86::flags::ZF } else { 0 });
    Ok(Flow::Next)
}

fn count_flags(cpu: &mut Cpu, count: u32, bits: u32) {
    cpu.arch.lazy.load(if count == bits { x86::flags::CF } else { 0 } | if count == 0 { x86::flags::ZF } else { 0 });
}

fn tzcnt<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    let count = source.trailing_zeros().min(T::BITS);
    cpu.set(op.r0, T::from_u64(u64::from(count)));
    count_flags(cpu, count, T::BITS);
    Ok(Flow::Next)
}

fn lzcnt<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    let count = source.leading_zeros() - (64 - T::BITS);
    cpu.set(op.r0, T::from_u64(u64::from(count)));
    count_flags(cpu, count, T::BITS);
    Ok(Flow::Next)
}

fn set_if<const CC: u8>(_: &Instruction, op: &mut Op) -> Option<Handler> {
    fn memory<const CC: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
        let value = u8::from(cpu.arch.lazy.condition(CC));
        cpu.store(op, value)?;
        Ok(Flow::Next)
    }
    fn register<const CC: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
        let value = u8::from(cpu.arch.lazy.condition(CC));
        set0(cpu, op, value);
        Ok(Flow::Next)
    }
    Some(if op.has(Op::MEM) { memory::<CC> } else { register::<CC> })
}

fn move_if<const CC: u8>(_: &Instruction, op: &mut Op) -> Option<Handler> {
    fn run<const CC: u8, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
        // Memory is read, and a 32-bit destination zero-extended, even if the condition is false.
        let source = source1::<T>(cpu, op)?;
        let value = if cpu.arch.lazy.condition(CC) { source } else { cpu.get(op.r0) };
        cpu.set(op.r0, value);
        Ok(Flow::Next)
    }
    match op.size {
        2 => Some(run::<CC, u16>),
        4 => Some(run::<CC, u32>),
        _ => Some(run::<CC, u64>),
    }
}

fn swapped<T: Int>(value: T) -> T {
    T::from_u64(value.to_u64().swap_bytes() >> (64 - T::BITS))
}

fn bswap<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // The result of a 16-bit operand is undefined; Intel processors clear it.
    let value = if T::SIZE == 2 { T::from_u64(0) } else { swapped(cpu.get::<T>(op.r0)) };
    cpu.set(op.r0, value);
    Ok(Flow::Next)
}

fn movbe(_: &Instruction, op: &mut Op) -> Option<Handler> {
    if op.has(Op::MEM0) { sized!(op.size; movbe_store<>) } else { sized!(op.size; movbe_load<>) }
}

fn movbe_store<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = swapped(cpu.get::<T>(op.r1));
    cpu.store(op, value)?;
    Ok(Flow::Next)
}

fn movbe_load<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = swapped(cpu.load::<T>(op)?);
    cpu.set(op.r0, value);
    Ok(Flow::Next)
}

fn extend<S: Int, T: Int>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let value = cpu.get::<S>(reg::RAX).to_i64() as u64;
    cpu.set(reg::RAX, T::from_u64(value));
    Ok(Flow::Next)
}

fn spread<T: Int>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let sign = cpu.get::<T>(reg::RAX).to_i64() >> 63;
    cpu.set(reg::RDX, T::from_u64(sign as u64));
    Ok(Flow::Next)
}

fn andn<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = source2::<T>(cpu, op)?.to_u64();
    let r = T::from_u64(!cpu.get::<T>(op.r1).to_u64() & b);
    cpu.arch.lazy.set_logic(r);
    cpu.arch.lazy.clear_pf();
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

fn bextr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    let control = cpu.get::<T>(op.r2).to_u64();
    let (start, len) = (control as u32 & 0xff, (control >> 8) as u32 & 0xff);
    let shifted = source.checked_shr(start).unwrap_or(0);
    let r = T::from_u64(if len >= 64 { shifted } else { shifted & ((1 << len) - 1) });
    cpu.arch.lazy.load(if r.to_u64() == 0 { x86::flags::ZF } else { 0 });
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

/// BLSI, BLSMSK and BLSR encode their destination in VEX.vvvv: it is operand 0, and the source is operand 1.
fn lowest(_: &Instruction, op: &mut Op, small: Handler, large: Handler) -> Option<Handler> {
    Some(if op.size == 8 { large } else { small })
}

fn blsi<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let s = source1::<T>(cpu, op)?.to_u64();
    let r = T::from_u64(s & s.wrapping_neg());
    cpu.arch.lazy.set_result(r, s != 0, false, false);
    cpu.arch.lazy.clear_pf();
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

fn blsmsk<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let s = source1::<T>(cpu, op)?.to_u64();
    let r = T::from_u64(s ^ s.wrapping_sub(1));
    cpu.arch.lazy.set_result(r, s == 0, false, false);
    cpu.arch.lazy.clear_pf();
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

fn blsr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let s = source1::<T>(cpu, op)?.to_u64();
    let r = T::from_u64(s & s.wrapping_sub(1));
    cpu.arch.lazy.set_result(r, s == 0, false, false);
    cpu.arch.lazy.clear_pf();
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

fn bzhi<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let source = source1::<T>(cpu, op)?.to_u64();
    let index = cpu.get::<T>(op.r2).to_u64() as u32 & 0xff;
    let r = if index >= T::BITS { source } else { source & ((1 << index) - 1) };
    let r = T::from_u64(r);
    cpu.arch.lazy.set_result(r, index >= T::BITS, false, false);
    cpu.arch.lazy.clear_pf();
    cpu.set(op.r0, r);
    Ok(Flow::Next)
}

fn mulx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = source2::<T>(cpu, op)?.to_u64();
    let wide = u128::from(cpu.get::<T>(reg::RDX).to_u64()) * u128::from(b);
    // If both halves have the same destination, the high half wins.
    cpu.set(op.r1, T::from_u64(wide as u64));
    cpu.set(op.r0, T::from_u64((wide >> T::BITS) as u64));
    Ok(Flow::Next)
}

fn pdep<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let mut mask = source2::<T>(cpu, op)?.to_u64();
    let mut source = cpu.get::<T>(op.r1).to_u64();
    let mut r = 0;
    while mask != 0 {
        let bit = mask & mask.wrapping_neg();
        if source & 1 != 0 {
            r |= bit;
        }
        source >>= 1;
        mask &= mask - 1;
    }
    cpu.set(op.r0, T::from_u64(r));
    Ok(Flow::Next)
}

fn pext<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let mut mask = source2::<T>(cpu, op)?.to_u64();
    let source = cpu.get::<T>(op.r1).to_u64();
    let (mut r, mut out) = (0u64, 0);
    while mask != 0 {
        let bit = mask & mask.wrapping_neg();
        r |= u64::from(source & bit != 0) << out;
        out += 1;
        mask &= mask - 1;
    }
    cpu.set(op.r0, T::from_u64(r));
    Ok(Flow::Next)
}

fn rorx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let v = source1::<T>(cpu, op)?.to_u64();
    let n = op.imm as u32 & (T::BITS - 1);
    let r = if n == 0 { v } else { v >> n | v << (T::BITS - n) };
    cpu.set(op.r0, T::from_u64(r));
    Ok(Flow::Next)
}

#[inline(always)]
fn shift_count<T: Int>(cpu: &Cpu, op: &Op) -> u32 {
    cpu.get::<T>(op.r2).to_u64() as u32 & (T::BITS - 1)
}

fn sarx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let v = source1::<T>(cpu, op)?.to_i64();
    let r = v >> shift_count::<T>(cpu, op);
    cpu.set(op.r0, T::from_u64(r as u64));
    Ok(Flow::Next)
}

fn shlx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let v = source1::<T>(cpu, op)?.to_u64();
    let r = v << shift_count::<T>(cpu, op);
    cpu.set(op.r0, T::from_u64(r));
    Ok(Flow::Next)
}

fn shrx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let v = source1::<T>(cpu, op)?.to_u64();
    let r = v >> shift_count::<T>(cpu, op);
    cpu.set(op.r0, T::from_u64(r));
    Ok(Flow::Next)
}

fn adcx<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = source1::<T>(cpu, op)?.to_u64();
    let wide = u128::from(cpu.get::<T>(op.r0).to_u64()) + u128::from(b) + u128::from(cpu.arch.lazy.cf());
    cpu.set(op.r0, T::from_u64(wide as u64));
    cpu.arch.lazy.set_cf(wide >> T::BITS != 0);
    Ok(Flow::Next)
}

fn adox<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = source1::<T>(cpu, op)?.to_u64();
    let wide = u128::from(cpu.get::<T>(op.r0).to_u64()) + u128::from(b) + u128::from(cpu.arch.lazy.of());
    cpu.set(op.r0, T::from_u64(wide as u64));
    let cf = cpu.arch.lazy.cf();
    cpu.arch.lazy.set_cf_of(cf, wide >> T::BITS != 0);
    Ok(Flow::Next)
}

fn crc32(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let size = if op.has(Op::MEM) { i.memory_size().size() as u8 } else { i.op1_register().size() as u8 };
    sized!(size; crc32_sized<>)
}

/// CRC32C, with the reflected polynomial 0x82F63B78 (SDM vol. 2, CRC32).
fn crc32_sized<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let data = source1::<T>(cpu, op)?.to_u64();
    let mut crc = cpu.get::<u32>(op.r0);
    for byte in &data.to_le_bytes()[..usize::from(T::SIZE)] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    cpu.set(op.r0, crc);
    Ok(Flow::Next)
}
