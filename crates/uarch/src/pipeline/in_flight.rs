//! Several runs, one behind the other: when the condition of a branch is known that waits for what earlier runs have begun.
//!
//! Each run takes its price, as if no other were beside it. What its instructions compute may be ready later than that, because the
//! core goes on while they execute. As long as branches are predicted nothing waits for that, but a misprediction is found only when the
//! condition is known.

use super::state::{CYCLE, State, execute, step};
use super::step::Step;
use crate::core::CoreTable;

/// The greatest time of runs that are followed.
const LONGEST: u32 = 1 << 28;

/// How a branch leads to the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// It is taken.
    Taken,
    /// It is a direct call or a return.
    Called,
    /// It is a conditional branch, and not taken.
    Through,
}

/// Runs, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    /// The current run alone, of which the prices are.
    run: State,
    /// When the results of all runs are ready.
    all: State,
    /// The prices of all instructions.
    charged: u32,
}

impl InFlight {
    /// Adds an instruction to the current run, and returns its price.
    pub fn step(&mut self, core: &CoreTable, next: &Step) -> u32 {
        if self.charged > LONGEST || self.all.is_long() || next.flat > LONGEST {
            self.complete();
        }
        let ticks = step(core, &mut self.run, next).min(LONGEST);
        self.charged += ticks;
        execute(core, &mut self.all, next);
        ticks
    }

    /// Adds a branch to the current run. Returns the ticks for which its operands are not known yet, as [`State::late`] does: as many as the
    /// core holds instructions for, at most.
    pub fn branch(&mut self, core: &CoreTable, branch: &Step) -> u32 {
        let parameters = &core.parameters;
        let reach = parameters.window.reorder * CYCLE / parameters.front.issue;
        let (known, before) = (self.all.known_at(core, branch), self.charged);
        let ticks = self.step(core, branch);
        State::late(known, before, ticks).min(reach)
    }

    /// Begins the next run behind `branch`, the last instruction.
    pub fn begin(&mut self, core: &CoreTable, branch: &Step, lead: Lead) {
        match lead {
            Lead::Taken => self.run.reset(),
            Lead::Called => self.run.call_through(core),
            Lead::Through => self.run.fall_through(core, branch),
        }
        self.all.begin_at(self.charged);
    }

    /// The next instruction waits for all in front of it.
    pub fn complete(&mut self) {
        self.all.reset();
        self.charged = 0;
    }
}
