//! Instructions that the processor's maker lacks, for a guest that was started on the other maker's processor.
//!
//! They raise #UD, at which the hypervisor exits. It executes them as the maker that the guest's CPUID names has them, as KVM's emulator does.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;

/// Length of VMCALL and VMMCALL.
const HYPERCALL_LENGTH: usize = 3;

impl ExitContext<'_> {
    /// Executes the instruction that has raised #UD if another maker's processor has it. Returns `None` if none has.
    pub(crate) fn foreign_instruction(&mut self) -> Result<Option<Step>, Failure> {
        let capabilities = self.cpu.wiring.capabilities;
        if !capabilities.is_foreign() {
            return Ok(None);
        }
        let place = self.place();
        let bytes = &place.bytes[..place.length];
        if bytes.starts_with(&crate::paravirt::hypercall_code(capabilities.shows_amd)[..HYPERCALL_LENGTH]) {
            // KVM would write this processor's instruction in its place.
            self.charge(Operation::Vmread, 3);
            self.charge(Operation::Emulate, 1);
            self.exit.instruction_length = HYPERCALL_LENGTH as u32;
            self.hypercall()?;
            return Ok(Some(self.skip()));
        }
        let rex = bytes.first().is_some_and(|byte| self.cpu.engine.long64 && byte & 0xf0 == 0x40);
        match bytes[usize::from(rex)..] {
            // SYSCALL, SYSRET, SYSENTER, SYSEXIT.
            [0x0f, 0x05 | 0x07 | 0x34 | 0x35, ..] => self.emulate().map(Some),
            _ => Ok(None),
        }
    }
}
