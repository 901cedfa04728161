//! Instructions that exit: when, and what they report. Handlers come here after the faults that have priority over an exit
//! (SDM vol. 3, 25.1.1): #UD, privilege, I/O permission.

use crate::exec;
use crate::fault::{Exec, Fault};
use crate::op::{NO_REG, Op, SEG_FLAT};
use crate::state::Cpu;
use ledger::TICKS_PER_CYCLE;
use x86::seg;
use x86::vmx::{primary, reason, secondary};

/// The PAUSE loop that privileged code of a guest is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pauses {
    /// Cycle of its first PAUSE.
    first: u64,
    /// Cycle of the last one.
    last: u64,
}

/// Address-size field of instruction information.
pub(super) fn address_size(asize: u8) -> u32 {
    asize.trailing_zeros().wrapping_sub(1) << 7
}

/// Segment field of instruction information. 64-bit code that overrides nothing names the default segment.
fn segment(op: &Op) -> u32 {
    let number = match op.seg {
        number if number < SEG_FLAT => number,
        number if number > SEG_FLAT => seg::SS,
        _ => seg::DS,
    };
    u32::from(number) << 15
}

/// How a memory operand is addressed: scaling, address size, segment, index and base.
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

/// Instruction information of an operand that is memory or a register.
fn operand_information(op: &Op) -> u32 {
    const REGISTER: u32 = 1 << 10;
    if op.has(Op::MEM) { addressing(op) } else { REGISTER }
}

impl Cpu {
    /// Exits whatever the controls, if in non-root mode.
    #[inline(always)]
    pub(crate) fn exit_always(&mut self, reason: u32) -> Exec {
        if self.arch.vmx.active { Err(self.exit_fault(reason, 0)) } else { Ok(()) }
    }

    /// Exits if in non-root mode with a primary control.
    #[inline(always)]
    pub(crate) fn exit_if(&mut self, control: u32, reason: u32) -> Exec {
        if self.arch.vmx.active && self.arch.vmx.controls.primary(control) {
            Err(self.exit_fault(reason, 0))
        } else {
            Ok(())
        }
    }

    /// Exits if in non-root mode with a secondary control.
    #[inline(always)]
    pub(crate) fn exit_if_secondary(&mut self, control: u32, reason: u32) -> Exec {
        if self.arch.vmx.active && self.arch.vmx.controls.secondary(control) {
            Err(self.exit_fault(reason, 0))
        } else {
            Ok(())
        }
    }

    /// #UD in non-root mode without the secondary control that enables an instruction.
    #[inline(always)]
    pub(crate) fn needs_control(&mut self, control: u32) -> Exec {
        if self.arch.vmx.active && !self.arch.vmx.controls.secondary(control) { Err(self.ud()) } else { Ok(()) }
    }

    /// An exit of an instruction with a memory operand, or a register in its place: the displacement is the qualification.
    #[cold]
    pub(crate) fn operand_exit(&mut self, reason: u32, op: &Op, information: u32) -> Fault {
        let fault = self.exit_fault(reason, if op.has(Op::MEM) { op.disp } else { 0 });
        self.arch.vm_exit.instruction_information = operand_information(op) | information;
        fault
    }

    /// LGDT and its kin, with the identity the instruction information has for them. `operand` is the register number in place
    /// of a memory operand.
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

    /// RDRAND, or RDSEED if `seed`: where the number would go.
    #[inline(always)]
    pub(crate) fn random_exit(&mut self, op: &Op, seed: bool) -> Exec {
        let (control, reason) =
            if seed { (secondary::RDSEED, reason::RDSEED) } else { (secondary::RDRAND, reason::RDRAND) };
        self.exit_if_secondary(control, reason).inspect_err(|_| {
            let size = op.size.trailing_zeros().wrapping_sub(1);
            self.arch.vm_exit.instruction_information = u32::from(op.r0) << 3 | size << 11;
        })
    }

    /// PAUSE: an exit each time, or once privileged code has spun in a loop for too long.
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

    /// XSAVES and XRSTORS, after their other faults: components that the guest may not have to itself.
    #[inline(always)]
    pub(crate) fn supervisor_state_exit(&mut self, reason: u32, op: &Op, requested: u64) -> Exec {
        if self.arch.vmx.active && requested & self.arch.msr.xss & self.arch.vmx.controls.xss_bitmap != 0 {
            return Err(self.operand_exit(reason, op, 0));
        }
        Ok(())
    }
}
