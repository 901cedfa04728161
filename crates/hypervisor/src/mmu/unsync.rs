//! Unsynchronized pages: last-level guest tables that the guest writes without exits, until it flushes its TLB as the
//! architecture requires.

use super::Mmu;
use super::mapping::Target;
use super::pool::{EntryRef, Keeping, PageId};
use ledger::Operation;

impl Mmu {
    /// Returns true if tables may become unsynchronized, which is not the case if the guest loads CR3 without an exit.
    fn unsync_allowed(&self) -> bool {
        self.unsync && self.cr3_caches == 0
    }

    /// Returns true if entries for a frame may permit writes: either no table is there, or all tables there may become
    /// unsynchronized, and then they do. `ahead` of an access they do not.
    pub(super) fn try_unsync(&mut self, gfn: u64, allowed: bool, ahead: bool) -> bool {
        if self.tracks.writes_seen(gfn) {
            return false;
        }
        let Some(bucket) = self.hash.get(&gfn) else { return true };
        let tables: Vec<PageId> = bucket.iter().copied().filter(|id| !self.pool.page(*id).role.direct).collect();
        let synced: Vec<PageId> = tables.iter().copied().filter(|id| !self.pool.page(*id).unsync).collect();
        if tables.is_empty() {
            return true;
        }
        if !allowed || !self.unsync_allowed() || (ahead && !synced.is_empty()) {
            return false;
        }
        for id in synced {
            self.stats.unsynced += 1;
            self.pool.page_mut(id).unsync = true;
            self.mark_parents(id);
        }
        true
    }

    fn mark_parents(&mut self, id: PageId) {
        for parent in self.pool.page(id).parents.clone() {
            self.mark_unsync_above(parent);
        }
    }

    /// Records at an entry, and above it, that there may be unsynchronized pages below.
    pub(super) fn mark_unsync_above(&mut self, at: EntryRef) {
        let page = self.pool.page_mut(at.page);
        let word = &mut page.unsync_below[usize::from(at.index / 64)];
        let bit = 1 << (at.index % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.mark_parents(at.page);
        }
    }

    /// Collects the unsynchronized pages below a page, and clears the records of them.
    fn take_unsync_below(&mut self, id: PageId, found: &mut Vec<PageId>) {
        let bits = std::mem::take(&mut self.pool.page_mut(id).unsync_below);
        for (number, mut word) in bits.into_iter().enumerate() {
            while word != 0 {
                let index = (number * 64) as u16 + word.trailing_zeros() as u16;
                word &= word - 1;
                self.tolls.add(Operation::TableRead, 1);
                let Some(child) = self.child(EntryRef { page: id, index }) else { continue };
                let page = self.pool.page(child);
                if page.unsync {
                    if !found.contains(&child) {
                        found.push(child);
                    }
                } else {
                    self.take_unsync_below(child, found);
                }
            }
        }
    }

    /// Drops the unsynchronized pages below a page that is about to be dropped.
    pub(super) fn zap_unsync_below(&mut self, id: PageId) {
        let mut found = Vec::new();
        self.take_unsync_below(id, &mut found);
        for page in found {
            self.zap_page(page);
        }
    }

    /// Synchronizes all pages below a root, and watches their tables again.
    pub(super) fn sync_below(&mut self, root: PageId) {
        let mut found = Vec::new();
        if self.pool.page(root).keeping != Keeping::Hashed {
            return;
        }
        self.take_unsync_below(root, &mut found);
        self.sync_and_watch(&found);
    }

    fn sync_and_watch(&mut self, pages: &[PageId]) {
        let mut protected = false;
        for id in pages {
            let gfn = self.pool.page(*id).gfn;
            protected |= self.write_protect_frame(gfn);
        }
        if protected {
            self.flush_all();
        }
        for id in pages {
            self.pool.page_mut(*id).unsync = false;
            self.sync_page(*id);
        }
    }

    /// Synchronizes everything: from now on no table may be unsynchronized.
    pub(super) fn sync_everything(&mut self) {
        let pages: Vec<PageId> = self.pool.active().into_iter().filter(|id| self.pool.page(*id).unsync).collect();
        self.sync_and_watch(&pages);
    }

    /// Updates the entries of a last-level page from the guest's table.
    pub(super) fn sync_page(&mut self, id: PageId) {
        self.stats.synced += 1;
        for index in 0..512 {
            let at = EntryRef { page: id, index };
            if self.pool.entry(at) != 0 {
                self.tolls.add(Operation::SyncEntry, 1);
                self.sync_entry(at);
            }
        }
    }

    /// Updates an entry of a last-level page from the guest's table. Empty entries stay empty.
    pub(super) fn sync_entry(&mut self, at: EntryRef) {
        let old = self.pool.entry(at);
        if old == 0 {
            return;
        }
        let page = self.pool.page(at.page);
        let (role, frame) = (page.role, page.frame(usize::from(at.index)));
        let address = (page.gfn << 12) + role.guest_offset(usize::from(at.index));
        let (value, _) = self.read_guest(address, !role.four_byte);
        let says = self.used_entry(role, value);
        match says {
            Some((gfn, access)) if self.format.is_present(old) && gfn == frame && self.slots.find(gfn).is_some() => {
                let target = Target { gfn, access, write: false, used: true, may_unsync: false };
                self.map_page(at, target);
            }
            Some((gfn, _)) if self.format.mmio(gfn) == Some(old) && self.slots.find(gfn).is_none() => {}
            _ => {
                if self.drop_entry(at) {
                    self.flush_all();
                }
            }
        }
    }
}
