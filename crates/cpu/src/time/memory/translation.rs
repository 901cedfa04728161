//! Translations of addresses that the first level of the TLB does not have, and what they cost.
//!
//! A translation takes the look-up in the second level of the TLB and, if that has no entry either, the reads of a page walk one after the
//! other. These find their lines in the first level, or bring them to the second from where they are; what paging-structure caches
//! know is not read (`tlb/structures.rs`).
//!
//! The access behind it goes on when its address is known. A translation is therefore a part of the access's latency, and follows
//! the same rules: it overlaps with what does not depend on it up to the window, the translations along a chain of pointers
//! add up, and nobody waits for that of a store. Walks beyond the number of walkers wait for each other.
//!
//! Code is translated as its lines are fetched: ahead of the core, as far as the front end follows the right path.

use super::{Access, Memory, ReadLine};
use ledger::Ticks;
use ledger::caches::Caches;
use serde::{Deserialize, Serialize};

/// Translations of one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Translations {
    /// Line whose address was translated last.
    pub line: u64,
    /// Time at which that address was known.
    pub known: Ticks,
    /// Time at which the walkers have done the walks until now.
    free: Ticks,
}

impl Translations {
    /// Returns true if a state at a time, which may come from a file, is possible.
    pub fn fits(&self, caches: &Caches, clock: Ticks) -> bool {
        self.line < super::LINES
            && self.known <= clock + caches.window
            && self.free <= clock + caches.window.max(MOST_READINGS * caches.memory_latency)
    }
}

/// The most entries that a walk reads: five levels, each through four of EPT, and those of the page.
const MOST_READINGS: Ticks = 32;

impl Memory {
    /// Brings the line of a paging-structure entry to the walker at `now`. Returns the time that this takes.
    pub fn read_entry(&mut self, caches: &Caches, line: u64, now: Ticks) -> Ticks {
        match self.l1d.find(line) {
            Some(_) => caches.l1d.latency,
            None => self.fetch(caches, line, now).1,
        }
    }

    /// Translates the address of an access to data, which takes `latency`, by a walk if `walks`. Returns the time for which the core waits.
    pub fn translate(
        &mut self,
        caches: &Caches,
        access: &Access,
        latency: Ticks,
        walks: bool,
        read: ReadLine,
    ) -> Ticks {
        let now = access.now;
        let mut ticks = if walks { self.walk(caches, now, latency) } else { 0 };
        if !access.write {
            let known = self.issued(caches, access, read) + latency;
            let arrives = known + caches.l1d.latency;
            ticks = ticks.max(arrives.saturating_sub(now + caches.window));
            self.translations.line = access.line;
            self.translations.known = known.min(now + ticks + caches.window);
            self.remember(access, ticks, arrives);
        }
        self.wait(caches, now, ticks);
        ticks
    }

    /// Translates the address of code, which takes `latency`, by a walk if `walks`. Returns the time for which the core waits.
    pub fn translate_code(&mut self, caches: &Caches, now: Ticks, latency: Ticks, walks: bool) -> Ticks {
        let behind = if walks { self.walk(caches, now, latency) } else { 0 };
        let ticks = self.front.translation(caches, now, latency).max(behind);
        self.front.waits.add(now, ticks, caches.code.ahead);
        ticks
    }

    /// Occupies a walker. Returns the time for which the core waits, because more walks are under way than there are walkers, or
    /// more lines on their way to memory than the core goes on with.
    fn walk(&mut self, caches: &Caches, now: Ticks, latency: Ticks) -> Ticks {
        let free = &mut self.translations.free;
        *free = (*free).max(now) + latency / Ticks::from(caches.walks.walkers);
        let walkers = (*free - now).saturating_sub(latency.max(caches.window));
        walkers.max(self.behind(caches, now))
    }
}
