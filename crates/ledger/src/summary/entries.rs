//! Stays in the kernel by entry.

use super::Selection;
use crate::charge::Origin;
use crate::ledger::Ledger;
use crate::stays::{Entry, Stays};
use crate::task::TaskKind;
use std::collections::BTreeMap;

impl Ledger {
    /// Returns true if the guest is a Linux kernel whose tasks were observed.
    fn is_of_linux(&self) -> bool {
        self.tasks.iter().any(|task| task.kind == TaskKind::Idle)
    }

    /// Returns the title of an entry in reports.
    pub fn describe_entry(&self, entry: Entry) -> String {
        let name = entry.kind().and_then(|kind| self.name_of(kind));
        entry.describe(self.is_of_linux(), name)
    }

    /// Returns the entry in a sentence that counts it.
    pub fn entry_in_plural(&self, entry: Entry) -> String {
        let name = entry.kind().and_then(|kind| self.name_of(kind));
        entry.plural(self.is_of_linux(), name)
    }
}

impl Selection<'_> {
    /// Returns stays in the kernel by entry.
    pub fn entries(self) -> BTreeMap<Entry, Stays> {
        self.stays(|entry, _| (!entry.is_exit()).then_some(entry))
    }

    /// Returns the stays in hypervisors, from a VM exit to the next entry into the guest that has exited: by the level of the hypervisor and the exit.
    pub fn exits(self) -> BTreeMap<(u8, Entry), Stays> {
        self.stays(|entry, origin| entry.is_exit().then_some((origin.level, entry)))
    }

    /// Returns stays by a key, without those that have none.
    fn stays<K: Ord>(self, key: impl Fn(Entry, &Origin) -> Option<K>) -> BTreeMap<K, Stays> {
        let mut all: BTreeMap<K, Stays> = BTreeMap::new();
        let entries = &self.ledger.entries;
        for one in &entries.all {
            let origin = &entries.origins[one.origin as usize];
            if let Some(key) = key(one.entry, origin)
                && self.includes(u32::from(origin.region.0), origin)
            {
                all.entry(key).or_default().merge(&one.stays);
            }
        }
        all
    }
}
