//! Task switches.

use crate::failure::Failure;
use crate::vcpu::{Context, Step};

/// Exit for a task switch, which the hypervisor carries out.
pub(super) fn switch(context: &mut Context) -> Result<Step, Failure> {
    /// Sources of a switch, in bits 31:30: a task gate in the interrupt descriptor table.
    const GATE: u64 = 3;
    let source = context.qualification() >> 30 & 3;
    match context.vcpu.events.next.take() {
        Some(event) if source == GATE => context.emulate_event(event),
        _ => context.emulate(),
    }
}
