//! Code on its way to the core: the first level, the branches that the front end knows, and how far it is ahead.
//!
//! Both tables replace their lines in turn, so that a hit changes nothing, as in the first level of data.
//!
//! **What a missing line costs.** The front end follows the predicted path and asks for its lines ahead of the core, by the
//! *lookahead* of the profile. In detail, for a line that is needed at time `now`:
//!
//! - It was asked for a lookahead before. If the core has waited less than a lookahead ago, for code or for data, the front end was
//!   ahead by that wait too.
//! - It was not asked for before the front end was redirected: by a misprediction, a branch that it did not know, or an event that
//!   transfers control. What is behind such a redirection pays the latency of its level. A branch that the front end did not know is
//!   no redirection for the line that follows the last one: the front end had asked for that line.
//! - Lines come one after the other: each occupies the way for the time of a transfer from its level, and for its share of the latency, which
//!   is the latency divided by the lines that may be on their way together. For lines that follow one another, these are others than for
//!   scattered ones, and each takes the time of `fetch.transfer` at least.

use super::LINES;
use super::tags::InTurn;
use super::waits::Waits;
use ledger::Ticks;
use ledger::caches::{Branches, Caches, Code};
use serde::{Deserialize, Serialize};

/// Bits of the linear address of a line of code by which its branches are known. Bits beyond them repeat bit 47.
const KEY_BITS: u32 = 42;

/// Returns the key by which the branches of a line of code are known.
#[inline(always)]
pub fn branch_key(rip: u64) -> u64 {
    (rip >> super::LINE_SHIFT) & ((1 << KEY_BITS) - 1)
}

/// The key of a line's second entry differs in this bit.
const SECOND: u64 = 1 << KEY_BITS;

/// The entries that a branch's line needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// One.
    One,
    /// Two, because the branch is direct and goes far.
    Two,
}

impl Entries {
    /// Returns what a branch needs that goes `far`, or does not.
    pub fn of(far: bool, branches: &Branches) -> Self {
        if far && branches.far > 1 { Self::Two } else { Self::One }
    }
}

/// The state of the way of code.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Front {
    l1i: InTurn,
    branches: InTurn,
    /// Line of the last miss.
    last: u64,
    /// The waits of the core, for code or for data, of which the front end knows nothing within a lookahead after them.
    pub(super) waits: Waits,
    /// Time at which the front end began anew.
    pub(crate) redirected: Ticks,
    /// Time at which the front end turned to the target of a branch that it did not know.
    pub(crate) turned: Ticks,
    /// Time at which the last address of code was translated.
    translated: Ticks,
    /// Time at which the way of code is free.
    free: Ticks,
}

impl Front {
    /// Creates empty tables.
    pub fn new(code: &Code) -> Self {
        Self {
            l1i: InTurn::new(&code.l1i),
            branches: InTurn::new(&code.branches.table),
            last: 0,
            waits: Waits::default(),
            redirected: 0,
            turned: 0,
            translated: 0,
            free: 0,
        }
    }

    /// Returns true if a state at a time, which may come from a file, is possible for tables of these sizes.
    pub fn fits(&self, code: &Code, clock: Ticks) -> bool {
        self.l1i.fits(&code.l1i)
            && self.branches.fits(&code.branches.table)
            && self.last < LINES
            && self.waits.fits(clock)
            && [self.translated, self.free].iter().all(|time| *time <= clock)
    }

    /// Returns true if the first level has a line.
    pub fn has(&self, line: u64) -> bool {
        self.l1i.find(line).is_some()
    }

    /// Returns true if the front end knows the branches of a line that need so many entries.
    pub fn knows(&self, key: u64, entries: Entries) -> bool {
        self.branches.find(key).is_some() && (entries == Entries::One || self.branches.find(key | SECOND).is_some())
    }

    /// Adds a line to the first level. Returns the line that leaves.
    pub fn fill(&mut self, line: u64) -> Option<u64> {
        self.l1i.add(line, false).1.map(|old| old.line)
    }

    /// Adds what is missing of a line whose branches the front end knows from now on. Returns the lines of which it forgets an entry.
    /// Of a line's two entries, one may take the place of the other, which then gets another place.
    pub fn learn(&mut self, key: u64, entries: Entries) -> [Option<u64>; 3] {
        let mut add = |key| match self.branches.find(key) {
            Some(_) => None,
            None => self.branches.add(key, false).1.map(|old| old.line & !SECOND),
        };
        match entries {
            Entries::One => [add(key), None, None],
            Entries::Two => [add(key), add(key | SECOND), add(key)],
        }
    }

    /// Returns the time at which the front end, which works ahead of the core, comes to code that is needed at `now`. Until it knows
    /// of a branch, it asks for the lines that follow in a row.
    fn asked(&self, code: &Code, in_a_row: bool, now: Ticks) -> Ticks {
        let own = self.waits.without(now, code.ahead);
        let began = if in_a_row { self.redirected } else { self.redirected.max(self.turned) };
        own.saturating_sub(code.ahead).max(began).max(self.translated).min(now)
    }

    /// Returns how long the core waits at `now` for the translation of the address of code, which takes `latency`.
    pub fn translation(&mut self, caches: &Caches, now: Ticks, latency: Ticks) -> Ticks {
        let known = self.asked(&caches.code, false, now) + latency;
        let ticks = known.saturating_sub(now);
        self.translated = known.min(now + ticks);
        ticks
    }

    /// Returns how long the core waits at `now` for a line that the first level did not have.
    pub fn arrival(&mut self, caches: &Caches, line: u64, now: Ticks, latency: Ticks, transfer: Ticks) -> Ticks {
        let code = &caches.code;
        let in_a_row = line == self.last + 1;
        let asked = self.asked(code, in_a_row, now);
        let (together, least) = if in_a_row { (code.sequential, code.transfer) } else { (code.scattered, 0) };
        let share = (latency / Ticks::from(together)).max(transfer).max(least);
        self.last = line;
        let arrives = (asked + latency).max(self.free.max(asked) + share);
        let ticks = arrives.saturating_sub(now);
        self.free = (self.free.max(asked) + share).min(now + ticks);
        ticks
    }
}
