//! Who is charged for what the processor does: level, ring and address space, which it knows itself; the task and its region of
//! interest, as the board says; and whether it is in an interrupt, by the deliveries and IRETs that it has seen.

use crate::state::Cpu;
use ledger::{Context, Origin, OriginId, RegionId, TaskId};
use serde::{Deserialize, Serialize};
use x86::control::CR0_PG;

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
    fn enter(&mut self, interrupt: bool) {
        self.0 = self.0 << 1 | u64::from(interrupt);
    }

    /// The innermost handler returns.
    fn leave(&mut self) {
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
    fn context(&self) -> Context {
        match (self.nesting.in_interrupt(), self.soft_interrupt) {
            (true, _) => Context::Interrupt,
            (false, true) => Context::SoftInterrupt,
            (false, false) => Context::Task,
        }
    }
}

impl Cpu {
    /// Sets who is charged from now on.
    pub fn set_charged(&mut self, charged: Charged) {
        self.micro.charged = charged;
        self.origin_changed();
    }

    /// A handler of an event begins: whatever its delivery costs is charged to it.
    pub(crate) fn handler_begins(&mut self, interrupt: bool) {
        self.micro.probe_passed = false;
        self.micro.charged.nesting.enter(interrupt);
        if interrupt {
            self.origin_changed();
        }
    }

    /// A handler that was about to begin does not: the guest is left before.
    pub(crate) fn handler_abandoned(&mut self) {
        self.micro.charged.nesting.leave();
        self.origin_changed();
    }

    /// IRET has returned to the current privilege level: no handler has interrupted another that runs in user mode. Who is charged is
    /// found when the change of mode is followed.
    pub(crate) fn handler_ends(&mut self) {
        match self.arch.cpl {
            3 => self.micro.charged.nesting = Nesting::default(),
            _ => self.micro.charged.nesting.leave(),
        }
    }

    /// Follows a change of level, CPL, CR3 or of what the board says: who is charged from now on.
    pub fn origin_changed(&mut self) {
        if self.engine.emulation.is_some() {
            return;
        }
        if !self.wiring.model.recorded {
            return;
        }
        let own = if self.arch.cr0 & CR0_PG != 0 { self.arch.cr3 & x86::page::ADDRESS } else { 0 };
        let Charged { task, region, .. } = self.micro.charged;
        let host = Origin {
            region,
            level: 0,
            ring: self.arch.cpl,
            context: self.micro.charged.context(),
            task,
            space: self.micro.charged_space.unwrap_or(own),
        };
        let mut recorder = self.wiring.recorder.borrow_mut();
        self.engine.host_origin = recorder.origin(host);
        self.engine.origin = match self.micro.level {
            0 => self.engine.host_origin,
            level => recorder.origin(Origin { level, ..host }),
        };
    }

    /// Who is charged where no guest code runs yet.
    pub(crate) fn first_origin(recorder: &std::cell::RefCell<ledger::Recorder>) -> OriginId {
        recorder.borrow_mut().origin(Origin::default())
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
