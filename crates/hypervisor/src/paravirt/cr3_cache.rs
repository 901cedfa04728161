//! The published CR3 cache: the guest's CR3 values that have a root that the processor may load without an exit.
//!
//! The MMU pins the roots. This module records what has been published to the guest, so that only changes are
//! published, and so that a root that the guest looked up just before its removal is still recognized.

use super::page::ENTRIES;
use serde::{Deserialize, Serialize};

/// Number of removed pairs that are remembered.
const RETIRED: usize = 8;

/// A guest's CR3 and its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Complete value that the guest would load.
    pub guest: u64,
    /// Value to be loaded instead.
    pub host: u64,
}

/// Cache as published to the guest of one virtual CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cr3Cache {
    entries: [Option<Pair>; ENTRIES],
    /// Removed pairs, the latest first.
    retired: [Option<Pair>; RETIRED],
}

impl Cr3Cache {
    /// Updates an entry. Returns true if it has changed.
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

    /// Returns true if a value may be loaded without an exit.
    pub fn has_host(&self, host: u64) -> bool {
        self.pairs().any(|pair| pair.host == host)
    }

    /// Returns the guest's value for a removed root: it may have been removed between the guest's lookup and load.
    pub fn retired(&self, host: u64) -> Option<u64> {
        self.retired.iter().flatten().find(|pair| pair.host == host).map(|pair| pair.guest)
    }

    /// Returns true if the guest has been told of a root.
    pub fn was_used(&self) -> bool {
        self.entries.iter().chain(&self.retired).any(Option::is_some)
    }

    /// Returns the pairs in order.
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
