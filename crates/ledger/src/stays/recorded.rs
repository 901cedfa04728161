//! The stays that a recorder has.

use super::{CLASSES, Durations, Entries, Entry, EntryStays, Gate, Stay, Stays};
use crate::charge::{Amount, Origin, OriginId};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest number of entries by origin. Further ones belong to the first origin.
pub(super) const MOST_ENTRIES: usize = 1 << 16;
/// Number of classes of durations of all entries together, beyond which new classes are as wide as the power of two below them.
pub(super) const MOST_CLASSES: usize = 1 << 20;
/// Number of places of recent entries.
const RECENT: usize = 64;

/// The stays of a recorder.
#[derive(Clone, Default)]
pub(crate) struct Recorded {
    index: FxHashMap<(OriginId, Entry), u32>,
    all: Vec<((OriginId, Entry), Stays)>,
    /// Positions in the list, found by a few bits of origin and entry.
    recent: Vec<u32>,
    classes: usize,
}

/// The saved stays of an entry: numbers of classes with their amounts, the sums of parts, the nested ones.
type SavedEntry = ((OriginId, Entry), Vec<(u16, Amount)>, Stay, Amount);

/// Saved stays, sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedStays(Vec<SavedEntry>);

impl SavedStays {
    /// Returns the origins.
    pub fn origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        self.0.iter().map(|entry| entry.0.0)
    }

    /// Gives the origins other numbers.
    pub fn renumber(&mut self, moved: impl Fn(&mut OriginId)) {
        self.0.iter_mut().for_each(|entry| moved(&mut entry.0.0));
        self.0.sort_unstable_by_key(|entry| entry.0);
    }

    /// Returns true if they can have been recorded, for `origins` origins, with sums below `bound`.
    pub fn fits(&self, origins: usize, bound: u64) -> bool {
        let is_sum = |amount: &Amount| amount.count < bound && amount.ticks < bound;
        let is_class = |(class, amount): &(u16, Amount)| *class < CLASSES && amount.count != 0 && is_sum(amount);
        let is_stay = |s: &Stay| [s.ticks, s.enter, s.mitigation, s.leave].iter().all(|ticks| *ticks < bound);
        // As many again have no origin of their own.
        self.0.len() <= 2 * MOST_ENTRIES
            && self.0.iter().all(|((origin, entry), classes, sum, nested)| {
                let known = (origin.0 as usize) < origins && *entry == Entry::new(entry.gate, entry.number);
                let sorted = classes.is_sorted_by(|a, b| a.0 < b.0);
                known && sorted && classes.iter().all(is_class) && is_stay(sum) && is_sum(nested)
            })
    }
}

impl Recorded {
    /// Returns the number of entries by origin.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the position of an entry, which is created if needed.
    fn at(&mut self, origin: OriginId, entry: Entry) -> usize {
        let slot = (origin.0 as usize ^ entry.number as usize ^ (entry.gate as usize) << 3) % RECENT;
        if let Some(at) = self.recent.get(slot).map(|at| *at as usize)
            && self.all.get(at).is_some_and(|known| known.0 == (origin, entry))
        {
            return at;
        }
        let mut key = (origin, entry);
        if self.all.len() >= MOST_ENTRIES && !self.index.contains_key(&key) {
            // The numbers of entries are bounded, so that the first origin has room for all.
            key.0 = OriginId(0);
        }
        let next = self.all.len() as u32;
        let at = *self.index.entry(key).or_insert(next);
        if at == next {
            self.all.push((key, Stays::default()));
        }
        self.recent.resize(RECENT, u32::MAX);
        self.recent[slot] = at;
        at as usize
    }

    /// Adds a stay.
    pub fn add(&mut self, origin: OriginId, entry: Entry, stay: Stay, nested: bool) {
        let at = self.at(origin, entry);
        let stays = &mut self.all[at].1;
        let before = stays.durations.classes.len();
        let mut class = super::class(stay.ticks);
        if self.classes >= MOST_CLASSES && stays.durations.find(class).is_err() {
            class &= !((1 << super::BITS) - 1);
        }
        let amount = Amount { count: 1, ticks: stay.ticks };
        stays.durations.put(class, amount);
        stays.sum.add(stay);
        if nested {
            stays.nested.add(amount);
        }
        self.classes += stays.durations.classes.len() - before;
    }

    fn merge(&mut self, origin: OriginId, entry: Entry, more: &Stays) {
        let at = self.at(origin, entry);
        let stays = &mut self.all[at].1;
        let before = stays.durations.classes.len();
        stays.merge(more);
        self.classes += stays.durations.classes.len() - before;
    }

    /// Removes all stays, and returns them sorted.
    pub fn take(&mut self) -> Vec<((OriginId, Entry), Stays)> {
        let mut all = std::mem::take(self).all;
        all.sort_unstable_by_key(|entry| entry.0);
        all
    }

    /// Adds stays that another recorder had, or that get other origins.
    pub fn put(&mut self, all: Vec<((OriginId, Entry), Stays)>, mut origin: impl FnMut(OriginId) -> OriginId) {
        for ((id, entry), stays) in all {
            self.merge(origin(id), entry, &stays);
        }
    }

    /// Returns the stays for saving, sorted.
    pub fn save(&self) -> SavedStays {
        let saved = |(key, stays): &((OriginId, Entry), Stays)| {
            (*key, stays.durations.classes.clone(), stays.sum, stays.nested)
        };
        let mut all: Vec<SavedEntry> = self.all.iter().map(saved).collect();
        all.sort_unstable_by_key(|entry| entry.0);
        SavedStays(all)
    }

    /// Restores saved stays that [fit](SavedStays::fits).
    pub fn restore(saved: SavedStays) -> Self {
        let mut restored = Self::default();
        for ((origin, entry), classes, sum, nested) in saved.0 {
            let durations = Durations { classes };
            restored.merge(origin, entry, &Stays { durations, sum, nested });
        }
        restored
    }

    /// Returns the entries for a ledger. `origin` maps a number to its origin, with the task's number in the ledger.
    pub fn finish(&self, origin: impl Fn(OriginId) -> Origin) -> Entries {
        let mut sums: BTreeMap<(Origin, Entry), Stays> = BTreeMap::new();
        for ((id, entry), stays) in &self.all {
            sums.entry((origin(*id), *entry)).or_default().merge(stays);
        }
        let mut origins: Vec<Origin> = sums.keys().map(|key| key.0).collect();
        origins.dedup();
        let at = |origin: &Origin| origins.binary_search(origin).unwrap_or_default() as u32;
        let all = sums.into_iter().map(|((from, entry), stays)| EntryStays { origin: at(&from), entry, stays });
        let all = all.collect();
        Entries { origins, all }
    }
}

/// The number of gates, for which a file has room.
pub(super) const GATES: u64 = <Gate as strum::EnumCount>::COUNT as u64;
