//! Exits of exceptions and NMIs.

use crate::events::{GuestEvent, vector};
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::arch::attention;
use ledger::Operation;
use x86::flags;
use x86::vmx::{interruptibility, interruption, pending_debug};

/// Handles the exit of an exception or an NMI.
pub(super) fn exception_or_nmi(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Vmread, 1);
    let exit = context.exit;
    let information = exit.interruption;
    if information & interruption::TYPE == interruption::NMI {
        context.vcpu.events.nmi = true;
        context.cpu.arch.attention &= !attention::NMI;
        return Ok(Step::Resume);
    }
    // IRET had unblocked NMIs before it faulted, and will be executed again.
    if information & interruption::NMI_UNBLOCKED != 0 && exit.vectoring & interruption::VALID == 0 {
        context.cpu.controls_mut().interruptibility |= interruptibility::NMI;
    }
    let code = (information & interruption::ERROR_CODE != 0).then_some(exit.interruption_error);
    if code.is_some() {
        context.charge(Operation::Vmread, 1);
    }
    match (information & interruption::VECTOR) as u8 {
        vector::PF => {
            let address = context.qualification();
            return context.shadow_fault(address, exit.interruption_error);
        }
        vector::DB => {
            let bits = context.qualification();
            if information & interruption::TYPE == interruption::PRIVILEGED_SOFTWARE_EXCEPTION {
                // INT1, which does not change DR6: it is injected as a privileged software exception.
                context.vcpu.events.next = GuestEvent::interrupted(information, 0, exit.instruction_length);
                return Ok(Step::Resume);
            } else if context.shadowed() && context.cpu.arch.flags & flags::TF != 0 {
                // The entry requires the pending single step that the exit has not saved.
                context.cpu.controls_mut().pending_debug |= pending_debug::BS;
            }
            context.raise_debug(bits);
        }
        vector::UD => {
            if let Some(step) = context.foreign_instruction()? {
                return Ok(step);
            }
            // The instruction might need emulation: it is decoded before the exception is injected.
            context.charge(Operation::Vmread, 3);
            context.charge(Operation::Emulate, 1);
            context.raise(vector::UD, None);
        }
        vector => context.raise(vector, code),
    }
    Ok(Step::Resume)
}
