//! Events in non-root mode: injection, and what exits instead of being delivered.

use super::controls::interruption;
use crate::exec::interrupt::{Event, Source};
use crate::state::Cpu;

impl Cpu {
    /// Delivers the event that a VM entry injects.
    pub(super) fn inject(&mut self) {
        let controls = &self.vmx.controls;
        let info = controls.entry_interruption;
        if info & interruption::VALID == 0 {
            return;
        }
        let length = u64::from(controls.entry_instruction_length);
        let code = (info & interruption::ERROR_CODE != 0).then_some(controls.entry_error_code);
        let (source, length) = match info & interruption::TYPE {
            interruption::EXTERNAL => (Source::External, 0),
            interruption::NMI => (Source::Nmi, 0),
            interruption::SOFTWARE_INTERRUPT => (Source::Int, length),
            interruption::SOFTWARE_EXCEPTION => (Source::Trap, length),
            interruption::PRIVILEGED_SOFTWARE_EXCEPTION => (Source::Exception, length),
            _ => (Source::Exception, 0),
        };
        self.rip = self.rip.wrapping_add(length);
        self.deliver_injected(Event { vector: (info & interruption::VECTOR) as u8, code, source });
    }
}
