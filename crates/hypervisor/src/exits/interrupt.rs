//! Interrupts of the host, and windows in which the guest takes its own.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::arch::attention;

/// An external interrupt. It tells the hypervisor that a device of the guest wants something: what, is seen before the entry.
pub(super) fn external(context: &mut ExitContext) -> Result<Step, Failure> {
    if !std::mem::take(&mut context.vcpu.kicked) {
        context.vcpu.events.waiting = true;
    }
    context.cpu.arch.attention &= !attention::INTR;
    Ok(Step::Resume)
}

/// The guest can take interrupts now.
pub(super) fn window(_: &mut ExitContext) -> Result<Step, Failure> {
    Ok(Step::Resume)
}

/// The guest can take NMIs now.
pub(super) fn nmi_window(_: &mut ExitContext) -> Result<Step, Failure> {
    Ok(Step::Resume)
}
