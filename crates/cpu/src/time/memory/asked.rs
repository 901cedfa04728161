//! Lines that instructions have asked for ahead (PREFETCHh, PREFETCHW).

use super::LINES;
use ledger::Ticks;
use ledger::caches::Caches;
use serde::{Deserialize, Serialize};

/// Number of lines that are remembered: more than are on their way at once.
const REMEMBERED: usize = 32;

/// The lines that were asked for last and not accessed yet, the oldest first, with the time at which each arrives. They are in the second
/// level, from where the first gets them when they are accessed, so that an access knows whether it came too early.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    lines: Vec<(u64, Ticks)>,
}

impl Asked {
    /// Returns true if a state at a time, which may come from a file, is possible.
    pub fn fits(&self, caches: &Caches, clock: Ticks) -> bool {
        let latest = clock + caches.memory_latency.max(caches.between_cores);
        self.lines.len() <= REMEMBERED && self.lines.iter().all(|(line, arrives)| *line < LINES && *arrives <= latest)
    }

    /// Adds a line that has not been asked for yet.
    pub fn add(&mut self, line: u64, arrives: Ticks) {
        if self.lines.len() == REMEMBERED {
            self.lines.remove(0);
        }
        self.lines.push((line, arrives));
    }

    /// Returns true if a line has been asked for.
    pub fn has(&self, line: u64) -> bool {
        self.lines.iter().any(|(asked, _)| *asked == line)
    }

    /// Removes a line. Returns the time at which it arrives, if it has been asked for.
    pub fn take(&mut self, line: u64) -> Option<Ticks> {
        let at = self.lines.iter().position(|(asked, _)| *asked == line)?;
        Some(self.lines.remove(at).1)
    }
}
