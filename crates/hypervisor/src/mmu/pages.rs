//! Life cycle of table pages: lookup, allocation, linking, zapping, freeing, recycling.

use super::Mmu;
use super::pool::{EntryRef, Keeping, Page, PageId};
use super::role::Role;
use super::spte;
use crate::config::MmuMode;
use ledger::Operation;

impl Mmu {
    /// Returns the way in which pages of a role are kept: by frame and role, or in trees.
    pub(super) fn keeping(&self, role: Role) -> Keeping {
        match self.mode {
            MmuMode::Tdp if role.ept.is_some() => Keeping::Hashed,
            MmuMode::ShadowNocache | MmuMode::Tdp => Keeping::Tree,
            MmuMode::Shadow | MmuMode::LegacyTdp => Keeping::Hashed,
        }
    }

    /// Returns a page for `gfn` in `role`: an existing or a new one. Returns `None` if the limit is reached.
    pub(super) fn get_page(&mut self, gfn: u64, role: Role) -> Option<PageId> {
        if self.keeping(role) == Keeping::Tree {
            return self.make_page(Keeping::Tree, gfn, role);
        }
        self.tolls.add(Operation::HashLookup, 1);
        let candidates = self.hash.get(&gfn).cloned().unwrap_or_default();
        for id in candidates {
            let page = self.pool.page(id);
            if page.keeping != Keeping::Hashed || page.gfn != gfn {
                continue;
            }
            if page.role != role {
                // A table that is now used at a higher level probably is no longer a last-level one.
                if role.level > 1 && !role.direct && page.unsync {
                    self.zap_page(id);
                }
                continue;
            }
            if page.unsync {
                // Synchronized for now, but the guest may continue to write to it without exits until it flushes.
                self.sync_page(id);
            }
            self.pool.page_mut(id).writes = 0;
            return Some(id);
        }
        let id = self.make_page(Keeping::Hashed, gfn, role)?;
        self.hash.entry(gfn).or_default().push(id);
        if !role.direct {
            self.account_shadowed(gfn, role.level, true);
        }
        Some(id)
    }

    fn make_page(&mut self, keeping: Keeping, gfn: u64, role: Role) -> Option<PageId> {
        let id = self.pool.allocate(keeping, gfn, role)?;
        self.tolls.add(Operation::PageAllocate, 1);
        self.tolls.add(Operation::PageZero, 1);
        self.stats.allocated += 1;
        self.stats.peak_pages = self.stats.peak_pages.max(u64::from(self.pool.used()));
        Some(id)
    }

    /// Accounts for a guest frame that gets a shadow page, or loses one.
    fn account_shadowed(&mut self, gfn: u64, level: u8, more: bool) {
        self.tracks.shadowed(gfn, level, more);
        if more && self.write_protect_frame(gfn) {
            self.flush_all();
        }
    }

    /// Removes write permission for a frame from all entries. Returns true if any had it.
    pub(super) fn write_protect_frame(&mut self, gfn: u64) -> bool {
        let mut any = false;
        for level in 1..=super::rmap::MAX_LEVEL {
            let entries = self.rmaps.get(super::rmap::block(gfn, level), level).to_vec();
            self.tolls.add(Operation::RmapWalk, entries.len() as u64);
            for at in entries {
                any |= self.write_protect_entry(at, false);
            }
        }
        for root in self.tdp_roots.clone() {
            any |= self.write_protect_in_tree(root, gfn);
        }
        any
    }

    /// Removes write permission from an entry, for the dirty log or permanently. Returns true if the entry had it.
    pub(super) fn write_protect_entry(&mut self, at: EntryRef, for_log: bool) -> bool {
        let old = self.pool.entry(at);
        let new = self.format.write_protected(old, for_log);
        if new == old {
            return false;
        }
        self.tolls.add(Operation::WriteProtect, 1);
        self.pool.set_entry(at, new);
        self.format.is_writable(old)
    }

    /// Writes an entry that points to a table; the old entry must be empty.
    pub(super) fn link(&mut self, at: EntryRef, child: PageId) {
        let mode_based = self.pool.page(child).role.ept.is_some_and(|format| format.mode_based);
        let entry = self.format.table(self.pool.hpa(child), mode_based);
        self.tolls.add(Operation::TableWrite, 1);
        self.pool.set_entry(at, entry);
        let page = self.pool.page_mut(child);
        if page.keeping == Keeping::Hashed {
            page.parents.push(at);
            if page.unsync || page.unsync_below != [0; 8] {
                self.mark_unsync_above(at);
            }
        }
    }

    /// Clears an entry, with the tree below it unless that is kept elsewhere. Returns true if the entry was in use.
    pub(super) fn drop_entry(&mut self, at: EntryRef) -> bool {
        let old = self.pool.entry(at);
        if old == 0 {
            return false;
        }
        self.tolls.add(Operation::TableWrite, 1);
        self.pool.set_entry(at, 0);
        if !self.format.is_present(old) {
            return false;
        }
        let page = self.pool.page(at.page);
        let level = page.role.level;
        if self.format.is_leaf(old, level) {
            if page.keeping == Keeping::Hashed {
                let gfn = page.frame(usize::from(at.index));
                self.tolls.add(Operation::RmapRemove, 1);
                self.rmaps.remove(gfn, level, at);
            }
            return true;
        }
        let Some(child) = self.pool.id(spte::address(old)) else { return true };
        match self.pool.page(child).keeping {
            Keeping::Hashed => self.pool.page_mut(child).parents.retain(|parent| *parent != at),
            Keeping::Tree => self.free_tree(child),
            Keeping::Free | Keeping::Special => {}
        }
        true
    }

    /// Frees a tree of pages that has no other users.
    pub(super) fn free_tree(&mut self, id: PageId) {
        for index in 0..512 {
            self.drop_entry(EntryRef { page: id, index });
        }
        self.tolls.add(Operation::PageFree, 1);
        self.pool.free(id);
    }

    /// Drops a page that is kept by frame and role: it is no longer found, has no parents, and maps nothing. A root is
    /// freed when its last user releases it.
    pub(super) fn zap_page(&mut self, id: PageId) {
        if self.pool.page(id).keeping != Keeping::Hashed || self.pool.page(id).invalid {
            return;
        }
        self.stats.zapped += 1;
        self.zap_unsync_below(id);
        for index in 0..512 {
            self.drop_entry(EntryRef { page: id, index });
        }
        for parent in std::mem::take(&mut self.pool.page_mut(id).parents) {
            self.tolls.add(Operation::TableWrite, 1);
            self.pool.set_entry(parent, 0);
        }
        let page = self.pool.page_mut(id);
        let (gfn, role) = (page.gfn, page.role);
        page.unsync = false;
        page.unsync_below = [0; 8];
        if let Some(bucket) = self.hash.get_mut(&gfn) {
            bucket.retain(|other| *other != id);
            if bucket.is_empty() {
                self.hash.remove(&gfn);
            }
        }
        if !role.direct {
            self.account_shadowed(gfn, role.level, false);
        }
        let page = self.pool.page_mut(id);
        if page.roots == 0 {
            self.tolls.add(Operation::PageFree, 1);
            self.pool.free(id);
        } else {
            page.invalid = true;
            self.pool.retire(id);
        }
        self.flush_all();
    }

    /// Drops all tables. Virtual processors create new roots before they continue.
    pub(super) fn zap_all(&mut self) {
        self.generation += 1;
        for id in self.pool.active() {
            self.zap_page(id);
        }
        self.empty_trees();
        self.tdp_roots.clear();
        self.flush_all();
    }

    /// Frees all pages below the roots of trees.
    pub(super) fn empty_trees(&mut self) {
        let is_root = |page: &Page| page.keeping == Keeping::Tree && page.roots != 0;
        let roots: Vec<PageId> = self.pool.iter().filter(|(_, page)| is_root(page)).map(|(id, _)| id).collect();
        for root in roots {
            self.empty_tree(root);
        }
    }

    /// Frees all pages below the root of a tree.
    fn empty_tree(&mut self, root: PageId) {
        for index in 0..512 {
            self.drop_entry(EntryRef { page: root, index });
        }
    }

    /// Requests a TLB flush of all virtual processors before they continue.
    pub(super) fn flush_all(&mut self) {
        self.tolls.add(Operation::TlbFlush, 1);
        self.flushes += 1;
    }

    /// Ensures that a fault can be handled within the limit of pages. Returns false if recycling did not help.
    pub(super) fn make_pages_available(&mut self) -> bool {
        if self.pool.available() >= Self::MIN_FREE {
            return true;
        }
        self.stats.limit_mmu_pages += 1;
        while self.pool.available() < Self::REFILL {
            match self.pool.oldest() {
                Some(page) => {
                    self.zap_page(page);
                    self.stats.recycled += 1;
                }
                None => return self.pool.available() >= Self::MIN_FREE,
            }
        }
        true
    }
}
