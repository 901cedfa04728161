//! Debug registers.

use crate::arch::attention;
use crate::exec::get1;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;
use ledger::{Class, Family, Kind};
use x86::control::CR4_DE;
use x86::debug::*;

/// Binds MOV to or from a debug register.
pub(crate) fn bind_mov(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::System;
    let to = i.op0_register().is_dr();
    let number = if to { op.r0 } else { op.r1 };
    if number > 7 {
        return None;
    }
    Some(if to { write } else { read })
}

/// Returns the register that is accessed (DR4 and DR5 are aliases), after all checks.
fn accessed(cpu: &mut Cpu, number: u8) -> Exec<usize> {
    let alias = matches!(number, 4 | 5);
    if alias && cpu.arch.cr4 & CR4_DE != 0 {
        return Err(cpu.ud());
    }
    cpu.privileged()?;
    if cpu.arch.dr[7] & DR7_GD != 0 {
        return Err(cpu.debug_trap(DR6_BD));
    }
    Ok(usize::from(if alias { number + 2 } else { number & 7 }))
}

fn read(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.debug_register_exit(op.r1, op.r0, true)?;
    let number = accessed(cpu, op.r1)?;
    cpu.charge(Kind::new(Family::DebugRegister, number as u32), 1);
    cpu.set_sized(op.r0, op.size, cpu.arch.dr[number]);
    Ok(Flow::End)
}

fn write(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.debug_register_exit(op.r0, op.r1, false)?;
    let number = accessed(cpu, op.r0)?;
    let value = if cpu.engine.long64 { get1::<u64>(cpu, op) } else { u64::from(get1::<u32>(cpu, op)) };
    if number >= 6 && value >> 32 != 0 {
        return Err(cpu.gp(0));
    }
    cpu.charge(Kind::new(Family::DebugRegister, number as u32), 1);
    cpu.arch.dr[number] = match number {
        6 => (value & DR6_CONDITIONS) | DR6_FIXED,
        7 => (value & DR7_WRITABLE) | DR7_FIXED,
        _ => value,
    };
    cpu.breakpoints_changed();
    Ok(Flow::End)
}

impl Cpu {
    /// Handles a change of DR0-3 or DR7.
    pub(crate) fn breakpoints_changed(&mut self) {
        self.access_changed();
        if self.breakpoints_enabled() {
            self.attend(attention::STEP);
        }
    }

    /// Records the I/O breakpoints that an access of `size` bytes at `port` matches (CR4.DE).
    pub(crate) fn io_breakpoint(&mut self, port: u16, size: u8) {
        if self.arch.cr4 & CR4_DE == 0 || self.arch.dr[7] & DR7_ENABLED == 0 {
            return;
        }
        self.note_breakpoints(u64::from(port), u64::from(size), |kind| kind == 2);
    }

    /// Records the enabled breakpoints that an access of `size` bytes at `address` matches; `concerns` selects by the
    /// R/W field of DR7. #DB follows the instruction.
    pub(crate) fn note_breakpoints(&mut self, address: u64, size: u64, concerns: impl Fn(u64) -> bool) {
        for i in 0..4 {
            let enabled = self.arch.dr[7] >> (2 * i) & 3 != 0;
            let kind = self.arch.dr[7] >> (16 + 4 * i) & 3;
            let len = match self.arch.dr[7] >> (18 + 4 * i) & 3 {
                0 => 1,
                1 => 2,
                2 => 8,
                _ => 4,
            };
            let start = self.arch.dr[i] & !(len - 1);
            let hits = address < start.wrapping_add(len) && start < address.wrapping_add(size);
            if enabled && hits && concerns(kind) {
                self.arch.pending_dr6 |= 1 << i;
                self.attend(attention::DEBUG);
            }
        }
    }
}
