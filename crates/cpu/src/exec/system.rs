//! Other system instructions: HLT and MWAIT, TLB and cache invalidation, time, segment bases, software interrupts.

use crate::arch::attention;
use crate::capability::Capability;
use crate::exec::interrupt::Source;
use crate::exec::{get0, set0};
use crate::fault::{Cause, Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op, SEG_FLAT, address_mask};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use crate::vmx::Flush;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind};
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::debug::{DR6_BREAKPOINTS, DR7_GD};
use x86::msr::MISC_ENABLE_MONITOR;
use x86::vmx::{primary, reason, secondary};
use x86::{reg, seg, vector};

/// Instruction table rows of system instructions.
pub static ROWS: &[Row] = &[
    Row::end(Hlt, Class::System, |_, _| Some(hlt)).of_system(),
    Row::end(Monitor, Class::System, |i, op| Some(monitor_bind(i, op))).of_system(),
    Row::end(Mwait, Class::System, |_, _| Some(mwait)).of_system(),
    Row::end(Invlpg, Class::System, |_, _| Some(invlpg)),
    Row::end(Invpcid, Class::System, |_, _| Some(invpcid)),
    Row::end(Wbinvd, Class::System, |_, _| Some(cache_flush::<false>)),
    Row::end(Wbnoinvd, Class::System, |_, _| Some(cache_flush::<false>)),
    Row::end(Invd, Class::System, |_, _| Some(cache_flush::<true>)),
    Row::end(Swapgs, Class::System, |_, _| Some(swapgs)).treated(Treatment::SwapBases),
    Row::end(Rdtsc, Class::ReadTsc, |_, _| Some(rdtsc)).treated(Treatment::ReadTime),
    Row::end(Rdtscp, Class::ReadTsc, |_, _| Some(rdtscp)).treated(Treatment::ReadTime),
    Row::end(Rdpmc, Class::ReadTsc, |_, _| Some(rdpmc)),
    Row::new(Rdpid, Class::Microcode, |_, _| Some(rdpid)),
    Row::new(Rdfsbase, Class::Microcode, |_, op| {
        base(op, read_base::<{ seg::FS }, u32>, read_base::<{ seg::FS }, u64>)
    })
    .treated(Treatment::Base { segment: seg::FS, write: false }),
    Row::new(Rdgsbase, Class::Microcode, |_, op| {
        base(op, read_base::<{ seg::GS }, u32>, read_base::<{ seg::GS }, u64>)
    })
    .treated(Treatment::Base { segment: seg::GS, write: false }),
    Row::new(Wrfsbase, Class::Microcode, |_, op| {
        base(op, write_base::<{ seg::FS }, u32>, write_base::<{ seg::FS }, u64>)
    })
    .treated(Treatment::Base { segment: seg::FS, write: true }),
    Row::new(Wrgsbase, Class::Microcode, |_, op| {
        base(op, write_base::<{ seg::GS }, u32>, write_base::<{ seg::GS }, u64>)
    })
    .treated(Treatment::Base { segment: seg::GS, write: true }),
    Row::end(Int, Class::System, |_, _| Some(int)).of_system(),
    Row::end(Int1, Class::System, |_, _| Some(int1)).of_system(),
    Row::end(Int3, Class::System, |_, _| Some(|cpu, _| trap(cpu, vector::BP))).of_system(),
    Row::end(Into, Class::System, |_, _| Some(into)),
    Row::new(Bound, Class::Microcode, bound),
];

/// MWAIT extension: interrupts wake the processor even if they are masked.
const MWAIT_INTERRUPT_BREAK: u64 = 1;

fn base(op: &mut Op, narrow: Handler, wide: Handler) -> Option<Handler> {
    Some(if op.size == 8 { wide } else { narrow })
}

fn hlt(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    cpu.exit_if(primary::HLT, reason::HLT)?;
    cpu.wiring.ram.disarm_monitor(cpu.wiring.index);
    cpu.attend(attention::HALT);
    Ok(Flow::End)
}

fn monitor_bind(i: &Instruction, op: &mut Op) -> Handler {
    op.asize = match i.code() {
        Code::Monitorw => 2,
        Code::Monitord => 4,
        _ => 8,
    };
    monitor
}

/// Returns the extensions in ECX (RCX in 64-bit mode), if MONITOR and MWAIT exist.
fn monitor_hints(cpu: &mut Cpu) -> Exec<u64> {
    let enabled = cpu.arch.msr.misc_enable & MISC_ENABLE_MONITOR != 0;
    if !cpu.wiring.capabilities.has(Capability::Monitor) || !enabled || cpu.arch.cpl != 0 {
        return Err(cpu.ud());
    }
    Ok(if cpu.engine.long64 { cpu.reg(reg::RCX) } else { u64::from(cpu.get::<u32>(reg::RCX)) })
}

fn monitor(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let hints = monitor_hints(cpu)?;
    cpu.exit_if(primary::MONITOR, reason::MONITOR)?;
    if hints != 0 {
        return Err(cpu.gp(0));
    }
    let offset = cpu.reg(reg::RAX) & crate::op::address_mask(op.asize);
    let segment = if cpu.engine.long64 { SEG_FLAT } else { seg::DS };
    let linear = cpu.linear(segment, offset, 1, false)?;
    let privilege = cpu.privilege();
    cpu.prepare_read(linear, 1, privilege, segment)?;
    let (physical, _) = cpu.translate(linear, crate::walk::Access::Read, privilege)?;
    match cpu.backing(physical) {
        Some(host) => cpu.wiring.ram.arm_monitor(cpu.wiring.index, host),
        None => cpu.wiring.ram.disarm_monitor(cpu.wiring.index),
    }
    cpu.follow_marks();
    Ok(Flow::End)
}

fn mwait(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let extensions = monitor_hints(cpu)?;
    cpu.exit_if(primary::MWAIT, reason::MWAIT).inspect_err(|_| {
        cpu.arch.vm_exit.qualification = u64::from(cpu.wiring.ram.monitor(cpu.wiring.index).is_some());
    })?;
    if extensions & !MWAIT_INTERRUPT_BREAK != 0 {
        return Err(cpu.gp(0));
    }
    // MWAIT does not wait without an armed monitor, or if the line has been written.
    if cpu.wiring.ram.monitor(cpu.wiring.index).is_some() {
        let masked = extensions & MWAIT_INTERRUPT_BREAK != 0;
        cpu.attend(attention::MWAIT | if masked { attention::MWAIT_MASKED } else { 0 });
    }
    Ok(Flow::End)
}

fn invlpg(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let offset = op.ea(cpu);
    let linear = if op.seg >= SEG_FLAT {
        offset
    } else if cpu.engine.long64 {
        cpu.arch.seg[usize::from(op.seg)].base.wrapping_add(offset)
    } else {
        cpu.arch.seg[usize::from(op.seg)].base.wrapping_add(offset) & 0xffff_ffff
    };
    cpu.exit_if(primary::INVLPG, reason::INVLPG).inspect_err(|_| cpu.arch.vm_exit.qualification = linear)?;
    cpu.charge(Kind::new(Family::Invlpg, 0), 1);
    // A non-canonical address has no translation.
    if !cpu.engine.long64 || cpu.canonical(linear) {
        cpu.flush_tlb(Flush::Page(linear));
        cpu.mapping_changed();
    }
    Ok(Flow::End)
}

fn invpcid(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Invpcid) {
        return Err(cpu.ud());
    }
    cpu.needs_control(secondary::INVPCID)?;
    cpu.privileged()?;
    if cpu.arch.vmx.active && cpu.arch.vmx.controls.primary(primary::INVLPG) {
        return Err(cpu.operand_exit(reason::INVPCID, op, u32::from(op.r0) << 28));
    }
    let kind = if cpu.engine.long64 { get0::<u64>(cpu, op) } else { u64::from(get0::<u32>(cpu, op)) };
    if kind > 3 {
        return Err(cpu.gp(0));
    }
    let mut bytes = [0u8; 16];
    cpu.load_bytes(op, &mut bytes)?;
    let (low, high) = bytes.split_at(8);
    let pcid = u64::from_le_bytes(low.try_into().unwrap_or_default());
    let linear = u64::from_le_bytes(high.try_into().unwrap_or_default());
    let reserved = pcid >> 12 != 0;
    let untagged = kind < 2 && pcid != 0 && cpu.arch.cr4 & CR4_PCIDE == 0;
    if reserved || untagged || (kind == 0 && !cpu.canonical_base(linear)) {
        return Err(cpu.gp(0));
    }
    cpu.charge(Kind::new(Family::Invpcid, kind as u32), 1);
    match kind {
        0 => cpu.flush_tlb(Flush::PageOf { linear, pcid: pcid as u16 }),
        1 => {
            cpu.flush_tlb(Flush::Pcid(pcid as u16));
            cpu.space_changed(Some(pcid as u16));
            return Ok(Flow::End);
        }
        2 => cpu.flush_tlb(Flush::All),
        _ => cpu.flush_tlb(Flush::NonGlobal),
    }
    cpu.mapping_changed();
    Ok(Flow::End)
}

fn cache_flush<const INVD: bool>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    if INVD {
        cpu.exit_always(reason::INVD)?;
    }
    cpu.exit_if_secondary(secondary::WBINVD, reason::WBINVD)?;
    cpu.charge(Kind::new(Family::CacheFlush, 0), 1);
    Ok(Flow::End)
}

fn swapgs(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if !cpu.engine.long64 {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    cpu.charge(Kind::new(Family::Swapgs, 0), 1);
    std::mem::swap(&mut cpu.arch.seg[usize::from(seg::GS)].base, &mut cpu.arch.msr.kernel_gs_base);
    Ok(Flow::End)
}

fn read_time(cpu: &mut Cpu, reason: u32) -> Exec {
    if cpu.arch.cr4 & CR4_TSD != 0 && cpu.arch.cpl != 0 {
        return Err(cpu.gp(0));
    }
    cpu.exit_if(primary::RDTSC, reason)?;
    cpu.in_time_order(Class::ReadTsc)?;
    let tsc = cpu.tsc();
    cpu.set::<u32>(reg::RAX, tsc as u32);
    cpu.set::<u32>(reg::RDX, (tsc >> 32) as u32);
    Ok(())
}

fn rdtsc(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    read_time(cpu, reason::RDTSC)?;
    Ok(Flow::End)
}

fn rdtscp(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Rdtscp) {
        return Err(cpu.ud());
    }
    cpu.needs_control(secondary::RDTSCP)?;
    read_time(cpu, reason::RDTSCP)?;
    cpu.set::<u32>(reg::RCX, cpu.arch.msr.tsc_aux as u32);
    Ok(Flow::End)
}

fn rdpmc(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cpl == 0 || cpu.arch.cr4 & CR4_PCE != 0 {
        cpu.exit_if(primary::RDPMC, reason::RDPMC)?;
    }
    let allowed = cpu.arch.cpl == 0 || cpu.arch.cr4 & CR4_PCE != 0;
    // Without counters any index is out of range.
    let Some((number, fixed)) = cpu.counter_of(cpu.get::<u32>(reg::RCX)).filter(|_| allowed) else {
        return Err(cpu.gp(0));
    };
    cpu.settled()?;
    let value = cpu.arch.pmu.counter(number, fixed);
    cpu.set::<u32>(reg::RAX, value as u32);
    cpu.set::<u32>(reg::RDX, (value >> 32) as u32);
    Ok(Flow::End)
}

fn rdpid(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Rdpid) {
        return Err(cpu.ud());
    }
    cpu.needs_control(secondary::RDTSCP)?;
    let value = cpu.arch.msr.tsc_aux;
    if cpu.engine.long64 {
        cpu.set::<u64>(op.r0, value);
    } else {
        cpu.set::<u32>(op.r0, value as u32);
    }
    Ok(Flow::Next)
}

fn bases_allowed(cpu: &mut Cpu) -> Exec {
    if !cpu.engine.long64 || cpu.arch.cr4 & CR4_FSGSBASE == 0 { Err(cpu.ud()) } else { Ok(()) }
}

fn read_base<const WHICH: u8, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    bases_allowed(cpu)?;
    let value = cpu.arch.seg[usize::from(WHICH)].base;
    set0::<T>(cpu, op, T::from_u64(value));
    Ok(Flow::Next)
}

fn write_base<const WHICH: u8, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    bases_allowed(cpu)?;
    let value = get0::<T>(cpu, op).to_u64();
    // Unlike WRMSR, the check uses the current paging mode, as the host's processor does.
    if !cpu.canonical(value) {
        return Err(cpu.gp(0));
    }
    cpu.arch.seg[usize::from(WHICH)].base = value;
    Ok(Flow::Next)
}

fn int(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.software_interrupt(op.imm as u8, Source::Int)?;
    Ok(Flow::End)
}

fn trap(cpu: &mut Cpu, vector: u8) -> Exec<Flow> {
    cpu.software_interrupt(vector, Source::Trap)?;
    Ok(Flow::End)
}

fn into(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.lazy.of() { trap(cpu, vector::OF) } else { Ok(Flow::End) }
}

/// INT1 is delivered like a debug exception of the processor: no privilege check, and EXT in error codes.
fn int1(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    // A trap that MOV SS has deferred is delivered together with it.
    let pending = cpu.arch.pending_dr6;
    cpu.engine.fault_dr6 = pending;
    if let Err(fault) = cpu.software_interrupt(vector::DB, Source::Int1) {
        if let Cause::Exception(vector::TS..=vector::GP, Some(code)) = &mut cpu.engine.fault {
            *code |= 1;
        }
        return Err(fault);
    }
    cpu.arch.dr[7] &= !DR7_GD;
    if pending != 0 {
        cpu.arch.dr[6] = (cpu.arch.dr[6] & !DR6_BREAKPOINTS) | pending;
        cpu.arch.pending_dr6 = 0;
        cpu.arch.attention &= !attention::DEBUG;
    }
    Ok(Flow::End)
}

fn bound(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if i.op1_kind() != OpKind::Memory {
        return None;
    }
    Some(if op.size == 2 { in_bounds::<u16> } else { in_bounds::<u32> })
}

fn in_bounds<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let index = get0::<T>(cpu, op).to_i64();
    // Both bounds are read before the comparison: a page fault of the upper bound precedes #BR of the lower.
    let lower = cpu.load::<T>(op)?.to_i64();
    let offset = op.ea(cpu).wrapping_add(u64::from(T::SIZE)) & address_mask(op.asize);
    let upper = cpu.read_seg::<T>(op.seg, offset)?.to_i64();
    if index < lower || index > upper {
        return Err(cpu.raise(vector::BR));
    }
    Ok(Flow::Next)
}
