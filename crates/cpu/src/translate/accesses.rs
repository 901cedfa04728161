//! Accesses to data that translated code has probed for in vain, which are its most frequent calls where caches are modelled: what such
//! a call needs is side by side in the host's memory.

use super::waits::WaitCounter;
use crate::op::Op;
use ledger::{Kind, Ticks};

/// In [`Access::what`]: the access is a write.
pub const WRITES: u32 = 1 << 31;

/// The kind of event that the counters of an access count.
pub const COUNTED: Kind = Kind::cache_miss(false, 2, false);

/// An access of an instruction.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Access {
    /// Address behind the instruction.
    pub next: u64,
    /// Price of the instruction's block from the instruction on, in ticks.
    pub rest: u32,
    /// Price of the run up to the end of that block, in ticks.
    pub ahead: u32,
    /// Time from the begin of the trace's first block to the begin of its last, in ticks.
    pub span: u32,
    /// The counter of waits for the second level.
    pub waits: WaitCounter,
    /// The size, and [`WRITES`].
    what: u32,
    /// Length of the instruction; 0 before the first call.
    pub len: u8,
    /// True for a locked instruction.
    pub locked: bool,
    /// True for a non-temporal store.
    pub streams: bool,
}

impl Access {
    /// Creates an access of a size in bytes.
    pub fn new(size: u32, write: bool) -> Self {
        let what = size | if write { WRITES } else { 0 };
        let waits = WaitCounter::default();
        Self { next: 0, rest: 0, ahead: 0, span: 0, waits, what, len: 0, locked: false, streams: false }
    }

    /// Returns the size in bytes.
    #[inline(always)]
    pub fn size(&self) -> u64 {
        u64::from(self.what & !WRITES)
    }

    /// Returns true for a write.
    #[inline(always)]
    pub fn writes(&self) -> bool {
        self.what & WRITES != 0
    }

    /// Adds what the first call finds out of the instruction and its trace: prices as in the fields of these names. Returns `None` if one
    /// of them is out of the usual range.
    pub fn of(&mut self, op: &Op, [rest, ahead, span]: [Ticks; 3]) -> Option<()> {
        let [rest, ahead, span] = [rest, ahead, span].map(u32::try_from);
        (self.rest, self.ahead, self.span) = (rest.ok()?, ahead.ok()?, span.ok()?);
        (self.locked, self.streams) = op.accesses();
        (self.next, self.len) = (op.next, op.len);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_fits_half_a_line_of_the_host() {
        assert_eq!(size_of::<Access>(), 32);
        let [read, write] = [false, true].map(|write| Access::new(64, write));
        assert_eq!((read.size(), read.writes()), (64, false));
        assert_eq!((write.size(), write.writes()), (64, true));
    }
}
