//! Shadow-stack instructions, and ENDBRANCH.

use super::code;
use crate::access::Privilege;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*};
use ledger::Class;
use x86::cet::{SHADOW_STACK, WRITE_SHADOW_STACK};
use x86::control::CR4_CET;
use x86::flags;

/// Instruction table rows of shadow stacks. ENDBRANCH and RDSSP are in the rows of NOPs, because they are NOPs without
/// CET.
pub static ROWS: &[Row] = &[
    Row::new(Incsspd, Class::Microcode, |_, _| Some(increment::<4>)),
    Row::new(Incsspq, Class::Microcode, |_, _| Some(increment::<8>)),
    Row::new(Saveprevssp, Class::Microcode, |_, _| Some(save_previous)),
    Row::new(Rstorssp, Class::Microcode, |_, _| Some(restore)),
    Row::new(Wrssd, Class::Microcode, |_, _| Some(write::<4>)),
    Row::new(Wrssq, Class::Microcode, |_, _| Some(write::<8>)),
    Row::new(Wrussd, Class::Microcode, |_, _| Some(write_users::<4>)),
    Row::new(Wrussq, Class::Microcode, |_, _| Some(write_users::<8>)),
    Row::new(Setssbsy, Class::Microcode, |_, _| Some(set_busy)),
    Row::new(Clrssbsy, Class::Microcode, |_, _| Some(clear_busy)),
];

/// Mode bit of a token: set for 64-bit mode.
const LONG: u64 = 1;
/// Marks a token that points to the previous shadow stack.
const PREVIOUS: u64 = 2;

/// Returns the handler of an instruction that is a NOP unless control flow is enforced.
pub(super) fn rebind(i: &Instruction) -> Option<Handler> {
    match i.code() {
        Code::Endbr64 => Some(|cpu, _| endbranch(cpu, true)),
        Code::Endbr32 => Some(|cpu, _| endbranch(cpu, false)),
        Code::Rdsspd_r32 => Some(|cpu, op| read(cpu, op, 4)),
        Code::Rdsspq_r64 => Some(|cpu, op| read(cpu, op, 8)),
        _ => None,
    }
}

fn endbranch(cpu: &mut Cpu, long: bool) -> Exec<Flow> {
    if long == cpu.engine.long64 && cpu.enforced(cpu.arch.cpl) & super::ENDBRANCH != 0 {
        cpu.set_tracker(0);
    }
    Ok(Flow::Next)
}

fn read(cpu: &mut Cpu, op: &Op, size: u8) -> Exec<Flow> {
    if cpu.has_shadow_stack(cpu.arch.cpl) {
        cpu.set_sized(op.r0, size, cpu.arch.ssp);
    }
    Ok(Flow::Next)
}

impl Cpu {
    /// Raises #UD without a shadow stack.
    fn needs_shadow_stack(&mut self) -> Exec {
        if self.has_shadow_stack(self.arch.cpl) { Ok(()) } else { Err(self.ud()) }
    }

    /// Returns the linear address of an operand on a shadow stack. Raises #GP(0) if it is not a multiple of the
    /// operand's size.
    fn shadow_operand(&mut self, op: &Op, size: u64, write: bool) -> Exec<u64> {
        let linear = self.operand_linear(op, size, write)?;
        if linear & (size - 1) != 0 { Err(self.gp(0)) } else { Ok(linear) }
    }
}

fn increment<const SIZE: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.needs_shadow_stack()?;
    let (count, size) = (cpu.reg(op.r0) & 0xff, u64::from(SIZE));
    let privilege = cpu.privilege();
    // The first and the last slot are read, so that no guard page is skipped.
    cpu.shadow_read(cpu.arch.ssp, SIZE, privilege)?;
    if count > 1 {
        cpu.shadow_read(cpu.arch.ssp.wrapping_add((count - 1) * size), SIZE, privilege)?;
    }
    cpu.arch.ssp = cpu.wrap(cpu.arch.ssp.wrapping_add(count * size));
    Ok(Flow::Next)
}

fn save_previous(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.needs_shadow_stack()?;
    if cpu.arch.ssp & 7 != 0 {
        return Err(cpu.gp(0));
    }
    let (privilege, long) = (cpu.privilege(), u64::from(cpu.engine.long64));
    let token = cpu.shadow_read(cpu.arch.ssp, 8, privilege)?;
    let mut ssp = cpu.arch.ssp.wrapping_add(8);
    // RSTORSSP has found a 4-byte hole, which 64-bit code cannot have left.
    if cpu.arch.lazy.cf() {
        if long != 0 || cpu.shadow_read(ssp, 4, privilege)? != 0 {
            return Err(cpu.gp(0));
        }
        ssp = ssp.wrapping_add(4);
    }
    if token & PREVIOUS == 0 || (long == 0 && token >> 32 != 0) {
        return Err(cpu.gp(0));
    }
    // A token with which RSTORSSP returns to the old stack, with zeros in the hole that it may need.
    let previous = token & !(LONG | PREVIOUS);
    cpu.shadow_write(previous.wrapping_sub(4), 4, 0, privilege)?;
    cpu.shadow_write((previous & !7).wrapping_sub(8), 8, previous | long, privilege)?;
    cpu.arch.ssp = ssp;
    Ok(Flow::Next)
}

fn restore(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.needs_shadow_stack()?;
    let linear = cpu.shadow_operand(op, 8, false)?;
    let (privilege, long) = (cpu.privilege(), u64::from(cpu.engine.long64));
    let token = cpu.shadow_read(linear, 8, privilege)?;
    let mode_fits = token & (LONG | PREVIOUS) == long && (long != 0 || token >> 32 == 0);
    let good = mode_fits && (token & !LONG).wrapping_sub(8) & !7 == linear;
    let new = if good { cpu.arch.ssp | long | PREVIOUS } else { token };
    cpu.shadow_write(linear, 8, new, privilege)?;
    if !good {
        return Err(cpu.control_protection(code::RSTORSSP));
    }
    cpu.arch.ssp = linear;
    cpu.arch.lazy.load(if token & 4 != 0 { flags::CF } else { 0 });
    Ok(Flow::Next)
}

fn write<const SIZE: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    const NEEDED: u64 = SHADOW_STACK | WRITE_SHADOW_STACK;
    if cpu.enforced(cpu.arch.cpl) & NEEDED != NEEDED {
        return Err(cpu.ud());
    }
    let linear = cpu.shadow_operand(op, u64::from(SIZE), true)?;
    let privilege = cpu.privilege();
    cpu.shadow_write(linear, SIZE, cpu.reg(op.r1), privilege)?;
    Ok(Flow::Next)
}

fn write_users<const SIZE: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if cpu.arch.cr4 & CR4_CET == 0 || !cpu.protected() || cpu.v8086() {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    let linear = cpu.shadow_operand(op, u64::from(SIZE), true)?;
    cpu.shadow_write(linear, SIZE, cpu.reg(op.r1), Privilege::User)?;
    Ok(Flow::Next)
}

fn set_busy(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if !cpu.has_shadow_stack(0) {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    let ssp = cpu.arch.msr.pl_ssp[0];
    if ssp & 7 != 0 {
        return Err(cpu.gp(0));
    }
    if !cpu.exchange_token(ssp, ssp, ssp | 1)? {
        return Err(cpu.control_protection(code::SETSSBSY));
    }
    cpu.arch.ssp = ssp;
    Ok(Flow::Next)
}

fn clear_busy(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.has_shadow_stack(0) {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    let linear = cpu.shadow_operand(op, 8, false)?;
    let cleared = cpu.exchange_token(linear, linear | 1, linear)?;
    cpu.arch.lazy.load(if cleared { 0 } else { flags::CF });
    cpu.arch.ssp = 0;
    Ok(Flow::Next)
}
