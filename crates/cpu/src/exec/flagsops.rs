//! System-related flag instructions: PUSHF, POPF, CLI, STI, CLAC, STAC.

use crate::arch::attention;
use crate::capability::Capability;
use crate::exec::stack_access::{peek, push, set_stack_pointer};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*};
use ledger::Class;
use x86::control::*;
use x86::{flags, reg};

/// Instruction table rows of flag instructions.
pub static ROWS: &[Row] = &[
    Row::new(Pushf, Class::Microcode, |_, op| sized(op, 2, pushf)),
    Row::new(Pushfd, Class::Microcode, |_, op| sized(op, 4, pushf)).common(),
    Row::new(Pushfq, Class::Microcode, |_, op| sized(op, 8, pushf)).treated(Treatment::PushFlags).common(),
    Row::end(Popf, Class::Microcode, |_, op| sized(op, 2, popf)),
    Row::end(Popfd, Class::Microcode, |_, op| sized(op, 4, popf)),
    Row::end(Popfq, Class::Microcode, |_, op| sized(op, 8, popf)),
    Row::new(Cli, Class::Microcode, |_: &Instruction, _| Some(cli)).treated(Treatment::MaskInterrupts),
    Row::end(Sti, Class::Microcode, |_, _| Some(sti)).treated(Treatment::EnableInterrupts),
    Row::new(Clac, Class::Microcode, |_, _| Some(access_control::<false>))
        .treated(Treatment::AccessControl { set: false }),
    Row::new(Stac, Class::Microcode, |_, _| Some(access_control::<true>))
        .treated(Treatment::AccessControl { set: true }),
];

fn sized(op: &mut Op, size: u8, handler: Handler) -> Option<Handler> {
    op.size = size;
    Some(handler)
}

fn pushf(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // RF and VM are always clear in a pushed image.
    let mut image = cpu.rflags() & !(flags::RF | flags::VM);
    if cpu.v8086() && cpu.iopl() < 3 {
        if cpu.arch.cr4 & CR4_VME == 0 || op.size != 2 {
            return Err(cpu.gp(0));
        }
        image = (image & !flags::IF) | flags::IOPL | if image & flags::VIF != 0 { flags::IF } else { 0 };
    }
    match op.size {
        2 => push::<u16>(cpu, image as u16)?,
        4 => push::<u32>(cpu, image as u32)?,
        _ => push::<u64>(cpu, image)?,
    }
    Ok(Flow::Next)
}

fn popf(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let image = match op.size {
        2 => u64::from(peek::<u16>(cpu, 0)?),
        4 => u64::from(peek::<u32>(cpu, 0)?),
        _ => peek::<u64>(cpu, 0)?,
    };
    let old = cpu.rflags();
    let mut mask = flags::ARITH | flags::TF | flags::DF | flags::NT;
    if op.size >= 4 {
        mask |= flags::AC | flags::ID;
    }
    let new = if cpu.v8086() && cpu.iopl() < 3 {
        if cpu.arch.cr4 & CR4_VME == 0 || op.size != 2 {
            return Err(cpu.gp(0));
        }
        if image & flags::TF != 0 || (image & flags::IF != 0 && old & flags::VIP != 0) {
            return Err(cpu.gp(0));
        }
        let vif = if image & flags::IF != 0 { flags::VIF } else { 0 };
        (old & !(mask | flags::VIF)) | (image & mask) | vif
    } else {
        if !cpu.protected() || cpu.arch.cpl <= cpu.iopl() {
            mask |= flags::IF;
        }
        if cpu.arch.cpl == 0 {
            mask |= flags::IOPL;
        }
        (old & !mask) | (image & mask)
    };
    // RF is always cleared.
    cpu.set_rflags(new & !flags::RF);
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(u64::from(op.size));
    set_stack_pointer(cpu, sp);
    Ok(Flow::End)
}

/// Flag on which CLI and STI operate.
enum Target {
    Real,
    Virtual,
}

/// Selects IF if the privilege allows it, VIF with VME or PVI, or raises #GP.
fn target(cpu: &mut Cpu) -> Exec<Target> {
    if !cpu.protected() || cpu.arch.cpl <= cpu.iopl() {
        return Ok(Target::Real);
    }
    let by = if cpu.v8086() { CR4_VME } else { CR4_PVI };
    if cpu.arch.cpl == 3 && cpu.arch.cr4 & by != 0 { Ok(Target::Virtual) } else { Err(cpu.gp(0)) }
}

fn cli(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    match target(cpu)? {
        Target::Real => cpu.arch.flags &= !flags::IF,
        Target::Virtual => cpu.arch.flags &= !flags::VIF,
    }
    Ok(Flow::Next)
}

fn sti(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    match target(cpu)? {
        Target::Real => {
            if cpu.arch.flags & flags::IF == 0 {
                cpu.arch.flags |= flags::IF;
                cpu.attend(attention::STI_SHADOW);
            }
        }
        Target::Virtual => {
            if cpu.arch.flags & flags::VIP != 0 {
                return Err(cpu.gp(0));
            }
            cpu.arch.flags |= flags::VIF;
        }
    }
    Ok(Flow::End)
}

fn access_control<const SET: bool>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if !cpu.wiring.capabilities.has(Capability::Smap) || cpu.arch.cpl != 0 || cpu.v8086() {
        return Err(cpu.ud());
    }
    cpu.arch.flags = (cpu.arch.flags & !flags::AC) | if SET { flags::AC } else { 0 };
    cpu.access_changed();
    Ok(Flow::Next)
}
