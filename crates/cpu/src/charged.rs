//! Who is charged for what the processor does: level, ring and address space, which it knows itself; the task and its region of
//! interest, as the board says; and whether it is in an interrupt, by the deliveries and IRETs that it has seen.

use ledger::{Context, RegionId, TaskId};
use serde::{Deserialize, Serialize};

/// Handlers that have begun and not returned, the innermost in the lowest bit: set for interrupts and NMIs, clear for exceptions and
/// software interrupts. What is nested more deeply than there are bits is forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nesting(u64);

impl Nesting {
    /// As a number.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Of a number.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A handler begins.
    pub(crate) fn enter(&mut self, interrupt: bool) {
        self.0 = self.0 << 1 | u64::from(interrupt);
    }

    /// The innermost handler returns.
    pub(crate) fn leave(&mut self) {
        self.0 >>= 1;
    }

    /// Whether any of them is an interrupt's.
    fn in_interrupt(self) -> bool {
        self.0 != 0
    }
}

/// Who is charged, as far as neither registers nor tables say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    /// The guest's current task on this processor.
    pub task: TaskId,
    /// The region of interest that the task is in.
    pub region: RegionId,
    /// The guest's kernel works off soft interrupts.
    pub soft_interrupt: bool,
    /// Handlers that have begun.
    pub nesting: Nesting,
}

impl Charged {
    /// The context that is charged: the task itself, or an interrupt on top of it.
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
        // A return that nothing seen here belongs to.
        nesting.leave();
        nesting.leave();
        assert_eq!(nesting, Nesting::default());
    }
}
