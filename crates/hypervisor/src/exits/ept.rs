//! EPT violations and misconfigurations.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;
use x86::vmx::{interruptibility, interruption, qualification};

/// Exit for an EPT violation.
pub(super) fn violation(context: &mut ExitContext) -> Result<Step, Failure> {
    let qualification = context.qualification();
    // The guest-physical address.
    context.charge(Operation::Vmread, 1);
    // An IRET had unblocked NMIs and then violated.
    if qualification & qualification::ept::NMI_UNBLOCKED != 0 && context.exit.vectoring & interruption::VALID == 0 {
        context.cpu.controls_mut().interruptibility |= interruptibility::NMI;
    }
    context.ept_fault(context.exit.guest_physical, qualification)
}

/// Exit for an EPT misconfiguration: how entries for addresses without memory are marked.
pub(super) fn misconfiguration(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Vmread, 1);
    context.ept_misconfiguration(context.exit.guest_physical)
}
