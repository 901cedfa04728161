//! EPT violations and misconfigurations.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;
use x86::vmx::{interruptibility, interruption, qualification};

/// Handles the exit of an EPT violation.
pub(super) fn violation(context: &mut ExitContext) -> Result<Step, Failure> {
    let qualification = context.qualification();
    // The guest-physical address.
    context.charge(Operation::Vmread, 1);
    // An IRET had unblocked NMIs before it caused the violation.
    if qualification & qualification::ept::NMI_UNBLOCKED != 0 && context.exit.vectoring & interruption::VALID == 0 {
        context.cpu.controls_mut().interruptibility |= interruptibility::NMI;
    }
    context.ept_fault(context.exit.guest_physical, qualification)
}

/// Handles the exit of an EPT misconfiguration, which marks entries for addresses without memory.
pub(super) fn misconfiguration(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Vmread, 1);
    context.ept_misconfiguration(context.exit.guest_physical)
}
