//! Exits that only a guest hypervisor causes.

use super::misc::undefined;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;

/// Handles a VMX instruction.
pub(super) fn instruction(context: &mut ExitContext) -> Result<Step, Failure> {
    if !context.vm.config.nested {
        return undefined(context);
    }
    if context.in_inner() {
        // VMREAD or VMWRITE of a shadow VMCS that L1 has given to L2.
        let (step, _) = context.execute_for_guest()?;
        return Ok(step);
    }
    context.vmx_instruction()
}

/// Handles VMFUNC of L2: the function that L1 has enabled, or an exit to L1.
pub(super) fn vmfunc(context: &mut ExitContext) -> Result<Step, Failure> {
    if !context.in_inner() {
        return undefined(context);
    }
    let (step, completed) = context.execute_for_guest()?;
    if completed {
        context.switched_ept()?;
    }
    Ok(step)
}

/// Handles an INIT signal, which stays pending while VMX operation blocks it.
pub(super) fn init(context: &mut ExitContext) -> Result<Step, Failure> {
    if context.vcpu.nested.vmx.operation.is_on() {
        context.vcpu.nested.init = true;
        return Ok(Step::Resume);
    }
    Ok(Step::Board(cpu::Exit::Init))
}
