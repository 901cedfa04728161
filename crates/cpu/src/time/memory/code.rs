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
//!   transfers control. What is behind such a redirection pays the latency of its level.
//! - Lines come one after the other: each occupies the way for the time of a transfer, and for its share of the latency, which is the
//!   latency divided by the lines that may be on their way together. These are more if each line follows the one before.

use super::LINES;
use super::tags::InTurn;
use super::waits::Waits;
use ledger::Ticks;
use ledger::caches::{Caches, Code};
use serde::{Deserialize, Serialize};

/// Bits of the linear address of a line of code by which its branches are known. Bits beyond them repeat bit 47.
const KEY_BITS: u32 = 42;

/// Returns the key by which the branches of a line of code are known.
#[inline(always)]
pub fn branch_key(rip: u64) -> u64 {
    (rip >> super::LINE_SHIFT) & ((1 << KEY_BITS) - 1)
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
            branches: InTurn::new(&code.branches),
            last: 0,
            waits: Waits::default(),
            redirected: 0,
            translated: 0,
            free: 0,
        }
    }

    /// Returns true if a state at a time, which may come from a file, is possible for tables of these sizes.
    pub fn fits(&self, code: &Code, clock: Ticks) -> bool {
        self.l1i.fits(&code.l1i)
            && self.branches.fits(&code.branches)
            && self.last < LINES
            && self.waits.fits(clock)
            && [self.translated, self.free].iter().all(|time| *time <= clock)
    }

    /// Returns true if the first level has a line.
    pub fn has(&self, line: u64) -> bool {
        self.l1i.find(line).is_some()
    }

    /// Returns true if the front end knows the branches of a line.
    pub fn knows(&self, key: u64) -> bool {
        self.branches.find(key).is_some()
    }

    /// Adds a line to the first level. Returns the line that leaves.
    pub fn fill(&mut self, line: u64) -> Option<u64> {
        self.l1i.add(line, false).1.map(|old| old.line)
    }

    /// Adds a line whose branches the front end knows from now on. Returns the one that it forgets.
    pub fn learn(&mut self, key: u64) -> Option<u64> {
        self.branches.add(key, false).1.map(|old| old.line)
    }

    /// Returns the time at which the front end, which works ahead of the core, comes to code that is needed at `now`.
    fn asked(&self, code: &Code, now: Ticks) -> Ticks {
        let own = self.waits.without(now, code.ahead);
        own.saturating_sub(code.ahead).max(self.redirected).max(self.translated).min(now)
    }

    /// Returns how long the core waits at `now` for the translation of the address of code, which takes `latency`.
    pub fn translation(&mut self, caches: &Caches, now: Ticks, latency: Ticks) -> Ticks {
        let known = self.asked(&caches.code, now) + latency;
        let ticks = known.saturating_sub(now);
        self.translated = known.min(now + ticks);
        ticks
    }

    /// Returns how long the core waits at `now` for a line that the first level did not have.
    pub fn arrival(&mut self, caches: &Caches, line: u64, now: Ticks, latency: Ticks, transfer: Ticks) -> Ticks {
        let code = &caches.code;
        let asked = self.asked(code, now);
        let together = if line == self.last + 1 { code.sequential } else { code.scattered };
        let share = (latency / Ticks::from(together)).max(transfer).max(code.transfer);
        self.last = line;
        let arrives = (asked + latency).max(self.free.max(asked) + share);
        let ticks = arrives.saturating_sub(now);
        self.free = (self.free.max(asked) + share).min(now + ticks);
        ticks
    }
}
