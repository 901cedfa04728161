//! Exits of port accesses.

use crate::devices::DeviceAddress;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;
use x86::vmx::qualification::io;

/// Handles the exit of IN, OUT, INS or OUTS (SDM vol. 3, table 27-5).
pub(super) fn access(context: &mut ExitContext) -> Result<Step, Failure> {
    let qualification = context.qualification();
    if qualification & io::STRING != 0 {
        return context.emulate();
    }
    // For IN and OUT the operands are known, so nothing must be decoded.
    context.charge(Operation::Vmread, 3);
    context.charge(Operation::Vmwrite, 1);
    let port = (qualification >> io::PORT_SHIFT) as u16;
    context.charge_device(DeviceAddress::Port(port));
    let (step, _) = context.execute_for_guest()?;
    Ok(step)
}
