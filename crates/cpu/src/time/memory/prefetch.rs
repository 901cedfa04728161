//! Prefetchers: lines that are asked for before they are accessed.
//!
//! They see the accesses that miss the first level, whose lines they have not necessarily brought there: a line that was asked
//! for ahead costs the time of its transfer, and no latency. There are two, as in the processors of both vendors:
//!
//! - One follows *streams*: lines of a 4 KiB page one after the other, up or down. The third line in a row is on its
//!   way when it is accessed.
//! - One follows *strides*: an instruction whose accesses have a constant distance within a page.

use serde::{Deserialize, Serialize};

/// Pages in which streams are followed.
const STREAMS: usize = 32;
/// Instructions whose strides are followed.
const STRIDES: usize = 64;
/// Steps of the same kind after which the next line is asked for.
const SURE: u8 = 2;
/// Lines that a stream may skip, as when some of them hit.
const SKIP: u64 = 2;

/// Accesses to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stream {
    last: u64,
    up: bool,
    steps: u8,
}

/// Accesses by an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stride {
    rip: u64,
    last: u64,
    distance: i64,
    steps: u8,
}

/// State of the prefetchers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefetchers {
    /// For each stream, its page plus 1; 0 for none. They are apart because most of them are searched at each miss.
    pages: Vec<u64>,
    streams: Vec<Stream>,
    next: u8,
    strides: Vec<Stride>,
}

impl Default for Prefetchers {
    fn default() -> Self {
        Self {
            pages: vec![0; STREAMS],
            streams: vec![Stream::default(); STREAMS],
            next: 0,
            strides: vec![Stride::default(); STRIDES],
        }
    }
}

impl Prefetchers {
    /// Returns true if a state, which may come from a file, is possible.
    pub fn fits(&self) -> bool {
        [self.pages.len(), self.streams.len()] == [STREAMS; 2]
            && self.strides.len() == STRIDES
            && usize::from(self.next) < STREAMS
    }

    /// Notes an access to a line by the instruction at `rip`. Returns true if the line had been asked for.
    pub fn observe(&mut self, line: u64, linear: u64, rip: u64) -> bool {
        let stream = self.stream(line);
        self.stride(linear, rip) || stream
    }

    fn stream(&mut self, line: u64) -> bool {
        let page = (line >> 6) + 1;
        let Some(at) = self.pages.iter().position(|known| *known == page) else {
            self.pages[usize::from(self.next)] = page;
            self.streams[usize::from(self.next)] = Stream { last: line, up: true, steps: 0 };
            self.next = (self.next + 1) % STREAMS as u8;
            return false;
        };
        let stream = &mut self.streams[at];
        let step = line.wrapping_sub(stream.last) as i64;
        let follows = step != 0 && step.unsigned_abs() <= SKIP;
        stream.last = line;
        if !follows {
            stream.steps = 0;
            return false;
        }
        let up = step > 0;
        stream.steps = if up == stream.up { stream.steps.saturating_add(1) } else { 1 };
        stream.up = up;
        stream.steps >= SURE
    }

    fn stride(&mut self, linear: u64, rip: u64) -> bool {
        let at = (rip ^ rip >> 6) as usize % STRIDES;
        let stride = &mut self.strides[at];
        if stride.rip != rip {
            *stride = Stride { rip, last: linear, distance: 0, steps: 0 };
            return false;
        }
        let distance = linear.wrapping_sub(stride.last) as i64;
        let same_page = linear >> 12 == stride.last >> 12;
        stride.last = linear;
        if distance != stride.distance || distance == 0 {
            stride.distance = distance;
            stride.steps = 0;
            return false;
        }
        stride.steps = stride.steps.saturating_add(1);
        same_page && stride.steps >= SURE
    }
}
