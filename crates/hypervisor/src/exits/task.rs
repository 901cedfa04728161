//! Task switches.

use crate::failure::Failure;
use crate::vcpu::{Context, Step};

/// Exit for a task switch, which the hypervisor carries out.
pub(super) fn switch(context: &mut Context) -> Result<Step, Failure> {
    context.qualification();
    context.emulate()
}
