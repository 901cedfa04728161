//! Lines that non-temporal stores have begun to write.

use super::LINES;
use serde::{Deserialize, Serialize};

/// Number of lines that are combined at once: processors have 8 to 12 buffers, which are those of misses too.
const BUFFERS: usize = 8;

/// The lines in write-combining buffers, each as its number plus 1; 0 for none. The oldest goes to memory for a new one.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Combining {
    lines: [u64; BUFFERS],
    next: u8,
}

impl Combining {
    /// Returns true if a state, which may come from a file, is possible.
    pub fn fits(&self) -> bool {
        usize::from(self.next) < BUFFERS && self.lines.iter().all(|line| *line <= LINES)
    }

    /// Returns true if a line is being written.
    pub fn has(&self, line: u64) -> bool {
        self.lines.contains(&(line + 1))
    }

    /// Begins a line.
    pub fn add(&mut self, line: u64) {
        self.lines[usize::from(self.next)] = line + 1;
        self.next = (self.next + 1) % BUFFERS as u8;
    }

    /// Ends a line, which is read or brought to a cache.
    pub fn end(&mut self, line: u64) {
        self.lines.iter_mut().filter(|known| **known == line + 1).for_each(|known| *known = 0);
    }
}
