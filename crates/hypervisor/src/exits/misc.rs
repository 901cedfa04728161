//! Simple exits.

use crate::events::vector;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::Exit;
use ledger::Operation;

/// Handles a triple fault of the guest.
pub(super) fn triple_fault(_: &mut ExitContext) -> Result<Step, Failure> {
    Ok(Step::Board(Exit::Shutdown))
}

/// Handles instructions that the guest's processor lacks: SMX, and VMX unless the guest may be a hypervisor.
pub(super) fn undefined(context: &mut ExitContext) -> Result<Step, Failure> {
    context.raise(vector::UD, None);
    Ok(Step::Resume)
}

/// Handles RDPMC: there are no counters.
pub(super) fn rdpmc(context: &mut ExitContext) -> Result<Step, Failure> {
    context.raise(vector::GP, Some(0));
    Ok(Step::Resume)
}

/// Handles INVD and WBINVD: the guest's memory is coherent.
pub(super) fn cache_flush(context: &mut ExitContext) -> Result<Step, Failure> {
    Ok(context.skip())
}

/// Handles XSETBV.
pub(super) fn xsetbv(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::StateLoad, 1);
    context.charge(Operation::Vmread, 3);
    context.charge(Operation::Vmwrite, 1);
    let (step, _) = context.execute_for_guest()?;
    context.cpuid_may_have_changed();
    Ok(step)
}

/// Handles MOV DR: the guest gets its debug registers until the next exit, and repeats the instruction.
pub(super) fn debug_register(context: &mut ExitContext) -> Result<Step, Failure> {
    context.qualification();
    context.charge(Operation::StateLoad, 1);
    context.charge(Operation::Vmwrite, 1);
    context.vcpu.debug_registers = true;
    Ok(Step::Resume)
}

/// Handles INVLPG.
pub(super) fn invlpg(context: &mut ExitContext) -> Result<Step, Failure> {
    let address = context.qualification();
    context.invalidate_page(address)?;
    Ok(context.skip())
}

/// Handles INVPCID of a guest with shadow tables.
pub(super) fn invpcid(context: &mut ExitContext) -> Result<Step, Failure> {
    context.qualification();
    context.charge(Operation::Vmread, 4);
    context.charge(Operation::Vmwrite, 1);
    let (step, flushes) = context.execute_invalidation()?;
    context.follow_flushes(&flushes)?;
    Ok(step)
}

/// Handles VMCALL.
pub(super) fn vmcall(context: &mut ExitContext) -> Result<Step, Failure> {
    context.hypercall()?;
    Ok(context.skip())
}
