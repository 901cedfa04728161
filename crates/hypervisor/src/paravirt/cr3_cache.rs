//! The CR3 cache: which of the guest's CR3 values have a root that the processor may load without an exit.
//!
//! Its entries are CR3-target values of the VM-execution controls, and what the guest finds in the state page. The page is
//! only ever written from here: what the guest makes of it does not matter.

use super::page::ENTRIES;

/// How many pairs that are no longer cached are remembered.
const RETIRED: usize = 8;

/// A guest's CR3 and the root that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The whole value that the guest would load.
    pub guest: u64,
    /// What it loads instead.
    pub host: u64,
}

/// The cache of one virtual CPU.
#[derive(Clone, Debug, Default)]
pub struct Cr3Cache {
    entries: [Option<Pair>; ENTRIES],
    /// The one that is replaced next.
    next: usize,
    /// Pairs that were dropped, the latest first: between looking up an entry and loading it the guest may have lost it.
    retired: [Option<Pair>; RETIRED],
}

impl Cr3Cache {
    /// The pair whose root the processor may have loaded.
    pub fn by_host(&self, host: u64) -> Option<Pair> {
        self.entries.iter().flatten().find(|pair| pair.host == host).copied()
    }

    /// The pair for a value of the guest.
    pub fn by_guest(&self, guest: u64) -> Option<Pair> {
        self.entries.iter().flatten().find(|pair| pair.guest == guest).copied()
    }

    /// The guest's value that belonged to a root which is no longer cached.
    pub fn retired(&self, host: u64) -> Option<u64> {
        self.retired.iter().flatten().find(|pair| pair.host == host).map(|pair| pair.guest)
    }

    /// Enters a pair, at the place of the one with the same guest value or else of the next in turn. Its index, and the
    /// pair that was there.
    pub fn insert(&mut self, pair: Pair, limit: usize) -> (usize, Option<Pair>) {
        let same = self.entries.iter().position(|entry| entry.is_some_and(|e| e.guest == pair.guest));
        let index = same.unwrap_or_else(|| {
            let limit = limit.clamp(1, ENTRIES);
            let index = self.next % limit;
            self.next = (index + 1) % limit;
            index
        });
        let old = self.entries[index].replace(pair).filter(|old| *old != pair);
        if let Some(old) = old {
            self.retire(old);
        }
        (index, old)
    }

    /// Drops the entries for which `unwanted` holds; their indices.
    pub fn drop_where(&mut self, unwanted: impl Fn(Pair) -> bool) -> Vec<usize> {
        let mut dropped = Vec::new();
        for index in 0..ENTRIES {
            if let Some(pair) = self.entries[index].take_if(|pair| unwanted(*pair)) {
                self.retire(pair);
                dropped.push(index);
            }
        }
        dropped
    }

    fn retire(&mut self, pair: Pair) {
        self.retired.rotate_right(1);
        self.retired[0] = Some(pair);
    }

    /// The pairs that are cached, in order.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.entries.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: u64) -> Pair {
        Pair { guest: n << 12, host: 0xd000_0000 + 32 * n }
    }

    #[test]
    fn entries_are_replaced_in_turn() {
        let mut cache = Cr3Cache::default();
        for n in 1..=5 {
            cache.insert(pair(n), 4);
        }
        assert_eq!(cache.pairs().collect::<Vec<_>>(), [pair(5), pair(2), pair(3), pair(4)]);
        assert_eq!(cache.retired(pair(1).host), Some(pair(1).guest));
        assert_eq!((cache.by_host(pair(1).host), cache.by_guest(pair(5).guest)), (None, Some(pair(5))));
    }

    #[test]
    fn a_guest_value_is_cached_once() {
        let mut cache = Cr3Cache::default();
        cache.insert(pair(1), 4);
        let moved = Pair { host: 0xd000_0400, ..pair(1) };
        assert_eq!(cache.insert(moved, 4), (0, Some(pair(1))));
        assert_eq!(cache.pairs().count(), 1);
    }

    #[test]
    fn dropped_entries_are_remembered_for_a_while() {
        let mut cache = Cr3Cache::default();
        for n in 1..=4 {
            cache.insert(pair(n), 4);
        }
        assert_eq!(cache.drop_where(|p| p.guest == pair(2).guest), [1]);
        assert_eq!(cache.retired(pair(2).host), Some(pair(2).guest));
        for n in 5..20 {
            cache.insert(pair(n), 4);
        }
        assert_eq!(cache.retired(pair(2).host), None);
    }
}
