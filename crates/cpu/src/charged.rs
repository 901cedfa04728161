//! The origin to which the processor's activity is charged: level, ring and address space, which the processor knows;
//! task and region of interest, which the board sets; and the interrupt context, which follows from deliveries and
//! IRETs.

use ledger::{Context, RegionId, TaskId};
use serde::{Deserialize, Serialize};

/// Handlers that have begun and not returned, the innermost in the lowest bit: set for interrupts and NMIs, clear for
/// exceptions and software interrupts. Deeper nesting than there are bits is forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nesting(u64);

impl Nesting {
    /// Returns the nesting as a number.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Creates a nesting from a number.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Records the begin of a handler.
    pub(crate) fn enter(&mut self, interrupt: bool) {
        self.0 = self.0 << 1 | u64::from(interrupt);
    }

    /// Records the return of the innermost handler.
    pub(crate) fn leave(&mut self) {
        self.0 >>= 1;
    }

    /// Returns true if any of the handlers is an interrupt's.
    fn in_interrupt(self) -> bool {
        self.0 != 0
    }
}

/// The parts of the origin that do not follow from registers or tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    /// Current task of the guest on this processor.
    pub task: TaskId,
    /// Region of interest of the task.
    pub region: RegionId,
    /// True while the guest's kernel processes soft interrupts.
    pub soft_interrupt: bool,
    /// Handlers that have begun.
    pub nesting: Nesting,
}

impl Charged {
    /// Returns the charged context: the task itself, or an interrupt on top of it.
    pub(crate) fn context(&self) -> Context {
        match (self.nesting.in_interrupt(), self.soft_interrupt) {
            (true, _) => Context::Interrupt,
            (false, true) => Context::SoftInterrupt,
            (false, false) => Context::Task,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_within_an_interrupt_is_part_of_it() {
        let mut nesting = Nesting::default();
        nesting.enter(false);
        assert!(!nesting.in_interrupt());
        nesting.enter(true);
        nesting.enter(false);
        assert!(nesting.in_interrupt());
        nesting.leave();
        assert!(nesting.in_interrupt());
        nesting.leave();
        assert!(!nesting.in_interrupt());
        // A return without a matching handler.
        nesting.leave();
        nesting.leave();
        assert_eq!(nesting, Nesting::default());
    }
}
