//! Events for the guest: pending injections, and combinations of exceptions.

use serde::{Deserialize, Serialize};
use x86::vmx::interruption;

/// Vectors that the hypervisor raises or checks.
pub use x86::vector;

/// An event in the format of the VM-entry fields (SDM vol. 3, 24.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEvent {
    /// Vector, type, and error-code flag; the valid bit is set.
    pub information: u32,
    /// Error code.
    pub error: u32,
    /// Length of the instruction, for software events.
    pub length: u32,
    /// True if the hypervisor raises the event in place of the processor. Events that a guest hypervisor injects, and
    /// events whose delivery was interrupted, are injected unchanged.
    pub raised: bool,
}

impl GuestEvent {
    const WITHOUT_CODE: Self = Self { information: 0, error: 0, length: 0, raised: true };

    /// Creates an exception of the processor or an emulated instruction.
    pub fn exception(vector: u8, code: Option<u32>) -> Self {
        let flag = if code.is_some() { interruption::ERROR_CODE } else { 0 };
        let information = u32::from(vector) | interruption::HARDWARE_EXCEPTION | flag | interruption::VALID;
        Self { information, error: code.unwrap_or(0), length: 0, raised: true }
    }

    /// Creates an external interrupt.
    pub fn external(vector: u8) -> Self {
        Self { information: u32::from(vector) | interruption::EXTERNAL | interruption::VALID, ..Self::WITHOUT_CODE }
    }

    /// Creates an NMI.
    pub fn nmi() -> Self {
        Self { information: u32::from(vector::NMI) | interruption::NMI | interruption::VALID, ..Self::WITHOUT_CODE }
    }

    /// Returns the event whose delivery an exit interrupted, from the IDT-vectoring fields.
    pub fn interrupted(vectoring: u32, error: u32, length: u32) -> Option<Self> {
        let kept = interruption::VALID | interruption::TYPE | interruption::VECTOR | interruption::ERROR_CODE;
        (vectoring & interruption::VALID != 0).then_some(Self {
            information: vectoring & kept,
            error,
            length,
            raised: false,
        })
    }

    /// Returns the vector.
    pub fn vector(&self) -> u8 {
        (self.information & interruption::VECTOR) as u8
    }

    /// Returns the type, as in [`interruption`].
    pub fn kind(&self) -> u32 {
        self.information & interruption::TYPE
    }

    /// Returns the error code, if there is one.
    pub fn code(&self) -> Option<u32> {
        (self.information & interruption::ERROR_CODE != 0).then_some(self.error)
    }

    fn is_exception(&self) -> bool {
        self.kind() == interruption::HARDWARE_EXCEPTION
    }

    /// Returns true for a fault, which is neither a trap nor an abort; debug exceptions may be either.
    pub fn is_fault(&self) -> bool {
        let other = [vector::DB, vector::NMI, vector::BP, vector::OF, vector::DF, vector::MC];
        self.is_exception() && !other.contains(&self.vector())
    }

    /// Returns true if RF must be set in the flags that the handler returns to: the processor injects the flags
    /// unchanged.
    pub fn sets_resume_flag(&self) -> bool {
        self.raised && self.is_fault()
    }
}

/// Class of an exception for the combination with a second one (SDM vol. 3, table 6-5).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

fn class(vector: u8) -> Class {
    match vector {
        vector::DE | vector::TS | vector::NP | vector::SS | vector::GP => Class::Contributory,
        vector::PF => Class::PageFault,
        vector::DF => Class::DoubleFault,
        _ => Class::Benign,
    }
}

/// A guest entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// Injected event.
    pub event: Option<GuestEvent>,
    /// RIP.
    pub rip: u64,
    /// RF before the event, or at the instruction.
    pub before: bool,
    /// RF at the entry.
    pub given: bool,
}

/// RF at an instruction that has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// RIP.
    pub rip: u64,
    /// RF.
    pub set: bool,
    /// True if the guest was entered there. Otherwise RF is assumed to have been clear, which is true unless IRET has
    /// just set it.
    pub known: bool,
}

/// Events for the next entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// The event that is injected first: an exception, or an event whose delivery was interrupted.
    pub next: Option<GuestEvent>,
    /// The last entry, until its exit.
    pub entered: Option<Entered>,
    /// RF at the instruction of the last exit.
    pub before: Option<Before>,
    /// True if an NMI is pending; the hardware latches one.
    pub nmi: bool,
    /// True if the board has an interrupt that the guest currently blocks.
    pub waiting: bool,
    /// True after an exception during a double fault: the processor shuts down.
    pub shutdown: bool,
}

impl Events {
    /// Queues an exception. A queued exception combines with it to a double fault or a shutdown, or is replaced by it,
    /// as in the processor.
    pub fn raise(&mut self, vector: u8, code: Option<u32>) {
        let raised = GuestEvent::exception(vector, code);
        let first = self.next.filter(GuestEvent::is_exception).map_or(Class::Benign, |event| class(event.vector()));
        self.next = Some(match (first, class(vector)) {
            (Class::DoubleFault, Class::Contributory | Class::PageFault) => {
                self.shutdown = true;
                return;
            }
            (Class::Contributory, Class::Contributory) | (Class::PageFault, Class::Contributory | Class::PageFault) => {
                GuestEvent::exception(vector::DF, Some(0))
            }
            // The first one will be raised again when its instruction is repeated, or the board will repeat it.
            _ => raised,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_exceptions_are_one_as_the_manual_has_it() {
        // First, second, result; `None` is a shutdown.
        let table = [
            (vector::GP, vector::GP, Some(vector::DF)),
            (vector::PF, vector::PF, Some(vector::DF)),
            (vector::PF, vector::NP, Some(vector::DF)),
            (vector::GP, vector::PF, Some(vector::PF)),
            (vector::DF, vector::PF, None),
            (vector::DF, vector::GP, None),
            (vector::DB, vector::GP, Some(vector::GP)),
        ];
        for (first, second, outcome) in table {
            let mut events = Events::default();
            events.raise(first, Some(0));
            events.raise(second, Some(0));
            match outcome {
                Some(vector) => assert_eq!(events.next.unwrap().vector(), vector),
                None => assert!(events.shutdown),
            }
        }
    }

    #[test]
    fn a_fault_takes_the_place_of_an_interrupt() {
        let mut events = Events { next: Some(GuestEvent::external(0x30)), ..Events::default() };
        events.raise(vector::PF, Some(2));
        assert_eq!(events.next, Some(GuestEvent::exception(vector::PF, Some(2))));
    }
}
