//! Exits of task switches.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use x86::vmx::qualification::task_switch;

/// Handles the exit of a task switch, which the hypervisor executes.
pub(super) fn switch(context: &mut ExitContext) -> Result<Step, Failure> {
    let source = context.qualification() >> task_switch::SOURCE_SHIFT & task_switch::SOURCE;
    match context.vcpu.events.next.take() {
        Some(event) if source == task_switch::GATE => context.emulate_event(event),
        _ => context.emulate(),
    }
}
