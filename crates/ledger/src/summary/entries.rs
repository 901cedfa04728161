//! Stays in the kernel by entry.

use super::Selection;
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
        let mut all: BTreeMap<Entry, Stays> = BTreeMap::new();
        let entries = &self.ledger.entries;
        for one in &entries.all {
            let origin = &entries.origins[one.origin as usize];
            if self.includes(u32::from(origin.region.0), origin) {
                all.entry(one.entry).or_default().merge(&one.stays);
            }
        }
        all
    }
}
