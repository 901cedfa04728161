//! Delivery of exceptions and interrupts.

use crate::state::{Cpu, attention};

impl Cpu {
    /// Delivers an exception.
    pub fn deliver_exception(&mut self, _vector: u8, _code: Option<u32>) {
        self.attend(attention::SHUTDOWN);
    }

    /// Delivers an external interrupt.
    pub fn deliver_interrupt(&mut self, _vector: u8) {
        self.attend(attention::SHUTDOWN);
    }

    /// Delivers an NMI.
    pub fn deliver_nmi(&mut self) {
        self.attend(attention::SHUTDOWN);
    }
}
