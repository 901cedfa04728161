//! Waiting: HLT, MWAIT and MONITOR, PAUSE.

use crate::config::Irqchip;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::Exit;
use ledger::Operation;
use x86::vmx::interruptibility;

/// HLT.
pub(super) fn hlt(context: &mut ExitContext) -> Result<Step, Failure> {
    context.skip();
    Ok(context.halt())
}

impl ExitContext<'_> {
    /// The virtual CPU stands still until the board wakes it, unless something that only the hypervisor knows is due.
    pub fn halt(&mut self) -> Step {
        let blocked = self.cpu.controls().interruptibility & interruptibility::NMI != 0;
        let due = self.vcpu.events.next.is_some() || self.vcpu.events.nmi && !blocked;
        if due {
            return Step::Resume;
        }
        if self.in_inner() {
            return self.halt_inner();
        }
        if self.vm.config.irqchip == Irqchip::User {
            // The virtual CPU sleeps where its interrupts come from.
            self.charge(Operation::DeviceUser, 1);
        }
        Step::Board(Exit::Halt)
    }
}

/// MWAIT, which CPUID does not offer, does nothing, as on a processor that is woken at once.
pub(super) fn mwait(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}

/// MONITOR likewise.
pub(super) fn monitor(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}

/// PAUSE in a loop: others may run, which the board sees to by their clocks.
pub(super) fn pause(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}
