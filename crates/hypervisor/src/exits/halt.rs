//! Exits of waiting instructions: HLT, MWAIT and MONITOR, PAUSE.

use crate::config::Irqchip;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::Exit;
use ledger::Operation;
use x86::vmx::interruptibility;

/// Handles HLT.
pub(super) fn hlt(context: &mut ExitContext) -> Result<Step, Failure> {
    context.skip();
    Ok(context.halt())
}

impl ExitContext<'_> {
    /// Suspends the virtual CPU until the board wakes it, unless an event that only the hypervisor knows is due.
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
            // The virtual CPU sleeps in the part that emulates the interrupt controllers.
            self.charge(Operation::DeviceUser, 1);
        }
        Step::Board(Exit::Halt)
    }
}

/// Handles MWAIT, which CPUID does not offer: it does nothing, as if woken at once.
pub(super) fn mwait(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}

/// Handles MONITOR, which CPUID does not offer either.
pub(super) fn monitor(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}

/// Handles PAUSE in a loop: other virtual CPUs may run, which the board arranges by their clocks.
pub(super) fn pause(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}
