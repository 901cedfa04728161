//! The CR3 cache as it is published: which of the guest's CR3 values have a root that the processor may load without an exit.
//!
//! The roots are pinned by the MMU. What is kept here is what the guest has been told, so that it is told of changes only, and
//! so that a root it looked up just before it went away is still understood.

use super::page::ENTRIES;
use serde::{Deserialize, Serialize};

/// How many pairs that are no longer cached are remembered.
const RETIRED: usize = 8;

/// A guest's CR3 and the root that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The whole value that the guest would load.
    pub guest: u64,
    /// What it loads instead.
    pub host: u64,
}

/// What one virtual CPU's guest knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cr3Cache {
    entries: [Option<Pair>; ENTRIES],
    /// Pairs that are gone, the latest first.
    retired: [Option<Pair>; RETIRED],
}

impl Cr3Cache {
    /// Makes an entry what it is now. Whether that is news.
    pub fn update(&mut self, index: usize, pair: Option<Pair>) -> bool {
        let Some(entry) = self.entries.get_mut(index) else { return false };
        let old = std::mem::replace(entry, pair);
        if old == pair {
            return false;
        }
        if old.is_some() {
            self.retired.rotate_right(1);
            self.retired[0] = old;
        }
        true
    }

    /// Whether a value may be loaded without an exit.
    pub fn has_host(&self, host: u64) -> bool {
        self.pairs().any(|pair| pair.host == host)
    }

    /// The guest's value that belonged to a root which is gone: between looking it up and loading it the guest may have lost
    /// it.
    pub fn retired(&self, host: u64) -> Option<u64> {
        self.retired.iter().flatten().find(|pair| pair.host == host).map(|pair| pair.guest)
    }

    /// The pairs, in order.
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
    fn only_changes_are_news() {
        let mut cache = Cr3Cache::default();
        assert!(cache.update(1, Some(pair(1))) && !cache.update(1, Some(pair(1))));
        assert!(!cache.update(0, None) && !cache.update(ENTRIES, Some(pair(1))));
        assert!(cache.has_host(pair(1).host) && !cache.has_host(pair(2).host));
    }

    #[test]
    fn what_is_gone_is_remembered_for_a_while() {
        let mut cache = Cr3Cache::default();
        cache.update(0, Some(pair(1)));
        cache.update(0, Some(pair(2)));
        assert_eq!((cache.retired(pair(1).host), cache.retired(pair(2).host)), (Some(pair(1).guest), None));
        for n in 3..20 {
            cache.update(0, Some(pair(n)));
        }
        assert_eq!(cache.retired(pair(1).host), None);
    }
}
