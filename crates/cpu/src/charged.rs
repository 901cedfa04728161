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

/// The task of a guest of a hypervisor that runs on the machine: what the guest's own kernel runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Current task of the guest's kernel.
    pub task: TaskId,
    /// True while that kernel processes soft interrupts.
    pub soft_interrupt: bool,
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
    /// Handlers that have begun: those of a guest of a hypervisor on the machine while it runs.
    pub nesting: Nesting,
    /// Handlers that had begun when the hypervisor entered that guest.
    pub(crate) outside: Nesting,
    /// The task of that guest.
    pub inside: Inside,
}

impl Charged {
    /// Returns the charged task and context of the machine itself: the task, or an interrupt on top of it. `guest` is true while a guest of a hypervisor
    /// on the machine runs.
    pub(crate) fn own(&self, guest: bool) -> (TaskId, Context) {
        let nesting = if guest { self.outside } else { self.nesting };
        (self.task, context(nesting, self.soft_interrupt))
    }

    /// Returns those of a guest of a hypervisor on the machine, while it runs.
    pub(crate) fn inner(&self) -> (TaskId, Context) {
        (self.inside.task, context(self.nesting, self.inside.soft_interrupt))
    }

    /// Enters a guest of a hypervisor on the machine, which has these handlers.
    pub(crate) fn enter_guest(&mut self, nesting: Nesting) {
        self.outside = std::mem::replace(&mut self.nesting, nesting);
    }

    /// Leaves it.
    pub(crate) fn leave_guest(&mut self) {
        self.nesting = std::mem::take(&mut self.outside);
    }
}

fn context(nesting: Nesting, soft_interrupt: bool) -> Context {
    match (nesting.in_interrupt(), soft_interrupt) {
        (true, _) => Context::Interrupt,
        (false, true) => Context::SoftInterrupt,
        (false, false) => Context::Task,
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

    #[test]
    fn the_interrupts_of_a_guest_are_not_those_of_the_machine() {
        let mut charged = Charged { task: TaskId(1), soft_interrupt: true, ..Charged::default() };
        charged.inside.task = TaskId(2);
        charged.enter_guest(Nesting::default());
        assert_eq!(charged.inner(), (TaskId(2), Context::Task));
        charged.nesting.enter(true);
        assert_eq!(charged.inner(), (TaskId(2), Context::Interrupt));
        assert_eq!(charged.own(true), (TaskId(1), Context::SoftInterrupt));
        charged.leave_guest();
        charged.soft_interrupt = false;
        assert_eq!(charged.own(false), (TaskId(1), Context::Task));
    }
}
