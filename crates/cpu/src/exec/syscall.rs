//! Fast system calls: SYSCALL, SYSRET, SYSENTER, SYSEXIT.

use crate::arch::{Segment, attention};
use crate::capability::Capability;
use crate::exec::descriptor::is_null;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*};
use ledger::{Class, Family, Kind};
use x86::control::EFER_SCE;
use x86::debug::DR6_BS;
use x86::{flags, reg, rights, seg};

/// Instruction table rows of fast system calls.
pub static ROWS: &[Row] = &[
    Row::end(Syscall, Class::System, |_, _| Some(syscall)).of_system(),
    Row::end(Sysret, Class::System, |_, op| sized(op, 4, sysret)).of_system(),
    Row::end(Sysretq, Class::System, |_, op| sized(op, 8, sysret)).of_system(),
    Row::end(Sysenter, Class::System, |_: &Instruction, _| Some(sysenter)).of_system(),
    Row::end(Sysexit, Class::System, |_, op| sized(op, 4, sysexit)).of_system(),
    Row::end(Sysexitq, Class::System, |_, op| sized(op, 8, sysexit)).of_system(),
];

fn sized(op: &mut Op, size: u8, handler: Handler) -> Option<Handler> {
    op.size = size;
    Some(handler)
}

const FLAT: u32 = rights::ACCESSED | rights::RW | rights::S | rights::P | rights::G;

/// Returns the flat code segment that these instructions load without reading a descriptor.
fn code(selector: u16, dpl: u8, long: bool) -> Segment {
    let width = if long { rights::L } else { rights::DB };
    let rights = FLAT | rights::CODE | width | u32::from(dpl) << rights::DPL_SHIFT;
    Segment { base: 0, limit: u32::MAX, rights, selector }
}

/// Returns a flat stack segment.
fn stack(selector: u16, dpl: u8) -> Segment {
    let rights = FLAT | rights::DB | u32::from(dpl) << rights::DPL_SHIFT;
    Segment { base: 0, limit: u32::MAX, rights, selector }
}

impl Cpu {
    fn go_flat(&mut self, cs: Segment, ss: Segment, cpl: u8, rip: u64) -> Flow {
        self.arch.seg[usize::from(seg::CS)] = cs;
        self.arch.seg[usize::from(seg::SS)] = ss;
        self.arch.cpl = cpl;
        self.arch.rip = rip;
        self.mode_changed();
        Flow::End
    }
}

fn syscall(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let exists = cpu.wiring.capabilities.has(Capability::Syscall) && cpu.arch.msr.efer & EFER_SCE != 0;
    // Outside long mode only AMD has the instruction; there it branches to 32-bit code at STAR[31:0].
    if !exists || !(cpu.engine.long64 || cpu.wiring.capabilities.amd) {
        return Err(cpu.ud());
    }
    let kind = Kind::new(Family::Syscall, 0);
    cpu.call_begins(cpu.engine.long64, kind);
    cpu.charge(kind, 1);
    cpu.shadow_system_call();
    // The RPL is cleared only in the selector of CS.
    let base = (cpu.arch.msr.star >> 32) as u16;
    let (selector, stack_selector) = (base & 0xfffc, base.wrapping_add(8));
    let image = cpu.rflags();
    cpu.arch.gpr[usize::from(reg::RCX)] = cpu.arch.rip;
    if !cpu.long_mode() {
        let target = cpu.arch.msr.star & 0xffff_ffff;
        cpu.set_rflags(image & !(flags::VM | flags::IF | flags::RF));
        return Ok(cpu.go_flat(code(selector, 0, false), stack(stack_selector, 0), 0, target));
    }
    cpu.arch.gpr[11] = image & !flags::RF;
    let target = if cpu.engine.long64 { cpu.arch.msr.lstar } else { cpu.arch.msr.cstar };
    cpu.set_rflags(image & !(cpu.arch.msr.fmask | flags::RF));
    // A trap after SYSCALL depends on the new value of the flag.
    cpu.arch.single_step &= cpu.arch.flags & flags::TF != 0;
    let flow = cpu.go_flat(code(selector, 0, true), stack(stack_selector, 0), 0, target);
    cpu.track_far();
    Ok(flow)
}

fn sysret(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let exists = cpu.wiring.capabilities.has(Capability::Syscall) && cpu.arch.msr.efer & EFER_SCE != 0;
    if !exists || !(cpu.engine.long64 || cpu.wiring.capabilities.amd) {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    if !cpu.protected() {
        return Err(cpu.gp(0));
    }
    let base = (cpu.arch.msr.star >> 48) as u16;
    let rcx = cpu.arch.gpr[usize::from(reg::RCX)];
    let long = op.size == 8;
    // Checked before the privilege level changes; AMD processors fault at the target instead.
    if long && !cpu.canonical(rcx) && !cpu.wiring.capabilities.amd {
        return Err(cpu.gp(0));
    }
    let kind = Kind::new(Family::Sysret, 0);
    cpu.charge(kind, 1);
    cpu.stay_ends(true, kind);
    if cpu.long_mode() {
        let image = cpu.arch.gpr[11] & flags::ALL & !(flags::RF | flags::VM);
        cpu.set_rflags(image);
    } else {
        let value = cpu.rflags() | flags::IF;
        cpu.set_rflags(value);
    }
    // Unlike after IRET, a trap due to the loaded flag precedes the first instruction at the target.
    cpu.arch.single_step = false;
    if cpu.arch.flags & flags::TF != 0 {
        cpu.arch.pending_dr6 |= DR6_BS;
        cpu.attend(attention::DEBUG);
    }
    let selector = if long { base.wrapping_add(16) } else { base } | 3;
    let rip = if long { rcx } else { rcx & 0xffff_ffff };
    let mut ss = stack(base.wrapping_add(8) | 3, 3);
    if cpu.wiring.capabilities.amd {
        // Only the selector is loaded, with the RPL in STAR; base, limit and attributes are kept.
        ss = Segment { selector: base.wrapping_add(8), ..cpu.arch.seg[usize::from(seg::SS)] };
    }
    let flow = cpu.go_flat(code(selector, 3, long), ss, 3, rip);
    cpu.shadow_system_return();
    Ok(flow)
}

fn sysenter(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Sep) || (cpu.wiring.capabilities.amd && cpu.long_mode()) {
        return Err(cpu.ud());
    }
    let selector = cpu.arch.msr.sysenter_cs as u16;
    if !cpu.protected() || is_null(selector) {
        return Err(cpu.gp(0));
    }
    let kind = Kind::new(Family::Syscall, 1);
    cpu.call_begins(false, kind);
    cpu.charge(kind, 1);
    cpu.shadow_system_call();
    let value = cpu.rflags() & !(flags::VM | flags::IF | flags::RF);
    cpu.set_rflags(value);
    let long = cpu.long_mode();
    let mask = if long { u64::MAX } else { 0xffff_ffff };
    cpu.arch.gpr[usize::from(reg::RSP)] = cpu.arch.msr.sysenter_esp & mask;
    let selector = selector & 0xfffc;
    let target = cpu.arch.msr.sysenter_eip & mask;
    let flow = cpu.go_flat(code(selector, 0, long), stack(selector.wrapping_add(8), 0), 0, target);
    cpu.track_far();
    Ok(flow)
}

fn sysexit(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Sep) {
        return Err(cpu.ud());
    }
    if !cpu.protected() {
        return Err(cpu.gp(0));
    }
    // The privilege is checked before the mode: AMD processors raise #GP at CPL 3 of long mode.
    cpu.privileged()?;
    if cpu.wiring.capabilities.amd && cpu.long_mode() {
        return Err(cpu.ud());
    }
    let selector = cpu.arch.msr.sysenter_cs as u16;
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let long = op.size == 8;
    let (rcx, rdx) = (cpu.arch.gpr[usize::from(reg::RCX)], cpu.arch.gpr[usize::from(reg::RDX)]);
    if long && (!cpu.canonical(rcx) || !cpu.canonical(rdx)) {
        return Err(cpu.gp(0));
    }
    let kind = Kind::new(Family::Sysret, 1);
    cpu.charge(kind, 1);
    cpu.stay_ends(true, kind);
    let mask = if long { u64::MAX } else { 0xffff_ffff };
    cpu.arch.gpr[usize::from(reg::RSP)] = rcx & mask;
    let offset = if long { 32 } else { 16 };
    let cs = selector.wrapping_add(offset) | 3;
    let ss = selector.wrapping_add(offset + 8) | 3;
    let flow = cpu.go_flat(code(cs, 3, long), stack(ss, 3), 3, rdx & mask);
    cpu.shadow_system_return();
    Ok(flow)
}
