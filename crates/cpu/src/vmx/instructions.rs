//! Instructions that exit: conditions and exit information. Handlers call these functions after the checks for faults
//! that have priority over an exit (SDM vol. 3, 25.1.1): #UD, privilege, I/O permission.

use super::state::Pauses;
use crate::exec;
use crate::fault::{Exec, Fault};
use crate::op::{NO_REG, Op, SEG_FLAT};
use crate::state::Cpu;
use ledger::TICKS_PER_CYCLE;
use x86::seg;
use x86::vmx::{primary, reason, secondary};

/// Returns the address-size field of instruction information.
pub(super) fn address_size(asize: u8) -> u32 {
    asize.trailing_zeros().wrapping_sub(1) << 7
}

/// Returns the segment field of instruction information. 64-bit code without an override reports the default segment.
fn segment(op: &Op) -> u32 {
    let number = match op.seg {
        number if number < SEG_FLAT => number,
        number if number > SEG_FLAT => seg::SS,
        _ => seg::DS,
    };
    u32::from(number) << 15
}

/// Returns the addressing of a memory operand: scaling, address size, segment, index and base.
fn addressing(op: &Op) -> u32 {
    const NO_INDEX: u32 = 1 << 22;
    const NO_BASE: u32 = 1 << 27;
    let index = match op.index {
        NO_REG => NO_INDEX,
        index => u32::from(index) << 18 | u32::from(op.scale & 3),
    };
    let base = if op.base == NO_REG { NO_BASE } else { u32::from(op.base) << 23 };
    address_size(op.asize) | segment(op) | index | base
}

/// Returns the instruction information of an operand that is memory or a register.
fn operand_information(op: &Op) -> u32 {
    const REGISTER: u32 = 1 << 10;
    if op.has(Op::MEM) { addressing(op) } else { REGISTER }
}

impl Cpu {
    /// Exits in non-root mode, independently of the controls.
    #[inline(always)]
    pub(crate) fn exit_always(&mut self, reason: u32) -> Exec {
        if self.arch.vmx.active { Err(self.exit_fault(reason, 0)) } else { Ok(()) }
    }

    /// Exits in non-root mode if a primary control is set.
    #[inline(always)]
    pub(crate) fn exit_if(&mut self, control: u32, reason: u32) -> Exec {
        if self.arch.vmx.active && self.arch.vmx.controls.primary(control) {
            Err(self.exit_fault(reason, 0))
        } else {
            Ok(())
        }
    }

    /// Exits in non-root mode if a secondary control is set.
    #[inline(always)]
    pub(crate) fn exit_if_secondary(&mut self, control: u32, reason: u32) -> Exec {
        if self.arch.vmx.active && self.arch.vmx.controls.secondary(control) {
            Err(self.exit_fault(reason, 0))
        } else {
            Ok(())
        }
    }

    /// Raises #UD in non-root mode without the secondary control that enables an instruction.
    #[inline(always)]
    pub(crate) fn needs_control(&mut self, control: u32) -> Exec {
        if self.arch.vmx.active && !self.arch.vmx.controls.secondary(control) { Err(self.ud()) } else { Ok(()) }
    }

    /// Exits for an instruction with a memory operand, or a register in its place: the displacement is the
    /// qualification.
    #[cold]
    pub(crate) fn operand_exit(&mut self, reason: u32, op: &Op, information: u32) -> Fault {
        let fault = self.exit_fault(reason, if op.has(Op::MEM) { op.disp } else { 0 });
        self.arch.vm_exit.instruction_information = operand_information(op) | information;
        fault
    }

    /// Exits for LGDT and similar instructions, with their identity in the instruction information. `operand` is the
    /// register number if it replaces a memory operand.
    pub(crate) fn table_exit(&mut self, reason: u32, op: &Op, identity: u32) -> Exec {
        if !self.arch.vmx.active || !self.arch.vmx.controls.secondary(secondary::DESCRIPTOR_TABLE) {
            return Ok(());
        }
        let detail = match (reason, op.has(Op::MEM)) {
            (reason::GDTR_IDTR, _) if !self.engine.long64 && !exec::tables::operand_16(op) => 1 << 11,
            (reason::LDTR_TR, false) => u32::from(op.r0) << 3,
            _ => 0,
        };
        Err(self.operand_exit(reason, op, identity << 28 | detail))
    }

    /// Exits for RDRAND, or RDSEED if `seed`, with the destination register.
    #[inline(always)]
    pub(crate) fn random_exit(&mut self, op: &Op, seed: bool) -> Exec {
        let (control, reason) =
            if seed { (secondary::RDSEED, reason::RDSEED) } else { (secondary::RDRAND, reason::RDRAND) };
        self.exit_if_secondary(control, reason).inspect_err(|_| {
            let size = op.size.trailing_zeros().wrapping_sub(1);
            self.arch.vm_exit.instruction_information = u32::from(op.r0) << 3 | size << 11;
        })
    }

    /// Exits for PAUSE: each time, or after privileged code has spun in a loop for too long.
    #[inline(always)]
    pub(crate) fn pause_exit(&mut self) -> Exec {
        if self.arch.vmx.active { self.guest_pause() } else { Ok(()) }
    }

    #[cold]
    fn guest_pause(&mut self) -> Exec {
        self.exit_if(primary::PAUSE, reason::PAUSE)?;
        if self.arch.cpl != 0 || !self.arch.vmx.controls.secondary(secondary::PAUSE_LOOP) {
            return Ok(());
        }
        let now = self.micro.clock / TICKS_PER_CYCLE;
        let (gap, window) = (self.arch.vmx.controls.ple_gap, self.arch.vmx.controls.ple_window);
        let pauses = &mut self.arch.vmx.pauses;
        if now.saturating_sub(pauses.last) > u64::from(gap) {
            pauses.first = now;
        }
        pauses.last = now;
        if now.saturating_sub(pauses.first) > u64::from(window) {
            *pauses = Pauses::default();
            return Err(self.exit_fault(reason::PAUSE, 0));
        }
        Ok(())
    }

    /// Exits for XSAVES and XRSTORS, after their other faults, because of components that the host intercepts.
    #[inline(always)]
    pub(crate) fn supervisor_state_exit(&mut self, reason: u32, op: &Op, requested: u64) -> Exec {
        if self.arch.vmx.active && requested & self.arch.msr.xss & self.arch.vmx.controls.xss_bitmap != 0 {
            return Err(self.operand_exit(reason, op, 0));
        }
        Ok(())
    }
}
