//! Events on their way into the guest: what waits to be injected, and what two of them make of each other.

use serde::{Deserialize, Serialize};
use x86::vmx::interruption;

/// Vectors that the hypervisor raises or looks for.
pub use x86::vector;

/// An event in the format of the VM-entry fields (SDM vol. 3, 24.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEvent {
    /// Vector, type, and whether there is an error code; the valid bit is set.
    pub information: u32,
    /// Error code.
    pub error: u32,
    /// Length of the instruction, for software events.
    pub length: u32,
    /// The hypervisor raises it in the place of the processor; what a guest's hypervisor injects, and what was being delivered already, is
    /// injected as it is.
    pub raised: bool,
}

impl GuestEvent {
    const WITHOUT_CODE: Self = Self { information: 0, error: 0, length: 0, raised: true };

    /// An exception that the processor or an emulated instruction raises.
    pub fn exception(vector: u8, code: Option<u32>) -> Self {
        let flag = if code.is_some() { interruption::ERROR_CODE } else { 0 };
        let information = u32::from(vector) | interruption::HARDWARE_EXCEPTION | flag | interruption::VALID;
        Self { information, error: code.unwrap_or(0), length: 0, raised: true }
    }

    /// An external interrupt.
    pub fn external(vector: u8) -> Self {
        Self { information: u32::from(vector) | interruption::EXTERNAL | interruption::VALID, ..Self::WITHOUT_CODE }
    }

    /// An NMI.
    pub fn nmi() -> Self {
        Self { information: u32::from(vector::NMI) | interruption::NMI | interruption::VALID, ..Self::WITHOUT_CODE }
    }

    /// The event whose delivery an exit interrupted, from the IDT-vectoring fields.
    pub fn interrupted(vectoring: u32, error: u32, length: u32) -> Option<Self> {
        let kept = interruption::VALID | interruption::TYPE | interruption::VECTOR | interruption::ERROR_CODE;
        (vectoring & interruption::VALID != 0).then_some(Self {
            information: vectoring & kept,
            error,
            length,
            raised: false,
        })
    }

    /// The vector.
    pub fn vector(&self) -> u8 {
        (self.information & interruption::VECTOR) as u8
    }

    /// The type, as in [`interruption`].
    pub fn kind(&self) -> u32 {
        self.information & interruption::TYPE
    }

    /// The error code, if there is one.
    pub fn code(&self) -> Option<u32> {
        (self.information & interruption::ERROR_CODE != 0).then_some(self.error)
    }

    fn is_exception(&self) -> bool {
        self.kind() == interruption::HARDWARE_EXCEPTION
    }

    /// A fault, that is neither a trap nor an abort; debug exceptions may be either.
    pub fn is_fault(&self) -> bool {
        let other = [vector::DB, vector::NMI, vector::BP, vector::OF, vector::DF, vector::MC];
        self.is_exception() && !other.contains(&self.vector())
    }

    /// Whether RF must be set for its handler, which finds it in the flags that it returns to: the processor injects the flags as they are.
    pub fn sets_resume_flag(&self) -> bool {
        self.raised && self.is_fault()
    }
}

/// What a second exception makes of the first (SDM vol. 3, table 6-5).
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

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// What it injects.
    pub event: Option<GuestEvent>,
    /// RIP.
    pub rip: u64,
    /// RF before the event, or at the instruction.
    pub before: bool,
    /// RF that is entered with.
    pub given: bool,
}

/// RF at an instruction that has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// RIP.
    pub rip: u64,
    /// RF.
    pub set: bool,
    /// The guest was entered there. Elsewhere it is taken to have been clear, which it is unless IRET has just set it.
    pub known: bool,
}

/// What is to be injected at the next entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// It goes first: an exception, or an event whose delivery was interrupted.
    pub next: Option<GuestEvent>,
    /// The last entry, until the exit.
    pub entered: Option<Entered>,
    /// RF at the instruction of the last exit.
    pub before: Option<Before>,
    /// NMIs that wait for the guest to take them; the hardware latches one.
    pub nmi: bool,
    /// The board has an interrupt for the guest, which has it shut out.
    pub waiting: bool,
    /// Exceptions on top of a double fault: the processor shuts down.
    pub shutdown: bool,
}

impl Events {
    /// Puts an exception in the queue. With one that is already there it is a double fault or a shutdown, or takes its
    /// place, as the processor would have it.
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
            // What the first one was will come again when its instruction is executed again, or is the board's to repeat.
            _ => raised,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_exceptions_are_one_as_the_manual_has_it() {
        // First, second, what comes of them; `None`: shutdown.
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
