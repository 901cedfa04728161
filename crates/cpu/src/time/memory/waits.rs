//! What the core's last wait tells about the time at which it, or its front end, came to what it needs now.

use ledger::Ticks;
use serde::{Deserialize, Serialize};

/// The waits of the core that follow each other within the reach of what works ahead of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waits {
    /// Time after the last wait.
    pub until: Ticks,
    /// Time by which what is needed within a reach after `until` was asked for earlier.
    pub early: Ticks,
}

impl Waits {
    /// Returns true if a state at a time, which may come from a file, is possible.
    pub fn fits(&self, clock: Ticks) -> bool {
        self.until <= clock && self.early <= clock
    }

    /// Returns the time at which something that is needed at `now` would have been needed, had the core not waited less than
    /// `reach` ago.
    pub fn without(&self, now: Ticks, reach: Ticks) -> Ticks {
        if now < self.until + reach { now.saturating_sub(self.early) } else { now }
    }

    /// The core waits for `ticks` from `now` on.
    pub fn add(&mut self, now: Ticks, ticks: Ticks, reach: Ticks) {
        if ticks == 0 {
            return;
        }
        *self = match now < self.until + reach {
            true => Self { until: self.until + ticks, early: self.early + ticks },
            false => Self { until: now + ticks, early: ticks },
        };
    }
}
