//! Exits of host interrupts and of interrupt windows.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::arch::attention;

/// Handles an external interrupt, which announces an event of the guest's devices; the event is handled before the
/// entry.
pub(super) fn external(context: &mut ExitContext) -> Result<Step, Failure> {
    if !std::mem::take(&mut context.vcpu.kicked) {
        context.vcpu.events.waiting = true;
    }
    context.cpu.arch.attention &= !attention::INTR;
    Ok(Step::Resume)
}

/// Handles an interrupt window: the guest can take interrupts now.
pub(super) fn window(_: &mut ExitContext) -> Result<Step, Failure> {
    Ok(Step::Resume)
}

/// Handles an NMI window: the guest can take NMIs now.
pub(super) fn nmi_window(_: &mut ExitContext) -> Result<Step, Failure> {
    Ok(Step::Resume)
}
