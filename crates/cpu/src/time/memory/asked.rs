//! Lines that instructions have asked for ahead (PREFETCHh, PREFETCHW).

use super::LINES;
use ledger::Ticks;
use ledger::caches::Caches;
use serde::{Deserialize, Serialize};

/// Number of lines that are remembered: more than are on their way at once.
const REMEMBERED: usize = 32;

/// A line that was asked for, and the time at which it arrives.
type Line = Option<(u64, Ticks)>;

/// The lines that were asked for last and not accessed yet. They are in the second level, from where the first gets them when they
/// are accessed, so that an access knows whether it came too early.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    lines: [Line; REMEMBERED],
    next: u8,
}

impl Asked {
    /// Returns true if a state at a time, which may come from a file, is possible.
    pub fn fits(&self, caches: &Caches, clock: Ticks) -> bool {
        let latest = clock + caches.memory_latency.max(caches.between_cores);
        usize::from(self.next) < REMEMBERED
            && self.lines.iter().flatten().all(|(line, arrives)| *line < LINES && *arrives <= latest)
    }

    /// Adds a line that has not been asked for yet.
    pub fn add(&mut self, line: u64, arrives: Ticks) {
        self.lines[usize::from(self.next)] = Some((line, arrives));
        self.next = (self.next + 1) % REMEMBERED as u8;
    }

    /// Returns true if a line has been asked for.
    pub fn has(&self, line: u64) -> bool {
        self.lines.iter().flatten().any(|(asked, _)| *asked == line)
    }

    /// Removes a line. Returns the time at which it arrives, if it has been asked for.
    pub fn take(&mut self, line: u64) -> Option<Ticks> {
        let place = self.lines.iter_mut().find(|place| place.is_some_and(|(asked, _)| asked == line))?;
        place.take().map(|(_, arrives)| arrives)
    }
}
