//! `tdp`: a tree per root, shared by all virtual processors that need the same root, and freed with its last user.

use super::Mmu;
use super::pool::{EntryRef, Keeping, PageId};
use super::role::Role;
use super::spte::index;
use ledger::Operation;
use x86::page::SHIFT;

impl Mmu {
    /// Returns the root of two-dimensional paging with a role: an existing or a new one.
    pub(super) fn tdp_root(&mut self, role: Role) -> Option<PageId> {
        if let Some(root) = self.tdp_roots.iter().copied().find(|id| self.pool.page(*id).role == role) {
            return Some(root);
        }
        let root = self.get_page(0, role)?;
        self.tdp_roots.push(root);
        Some(root)
    }

    /// Removes write permission from the entry of a tree that maps a frame. Returns true if the entry had it.
    pub(super) fn write_protect_in_tree(&mut self, root: PageId, gfn: u64) -> bool {
        let mut page = root;
        loop {
            let level = self.pool.page(page).role.level;
            let at = EntryRef { page, index: index(gfn << SHIFT, level) as u16 };
            self.tolls.add(Operation::TableRead, 1);
            match self.child(at) {
                Some(child) => page = child,
                None if self.format.is_leaf(self.pool.entry(at), level) => return self.write_protect_entry(at, false),
                None => return false,
            }
        }
    }

    /// Frees a tree that has lost its last user. Nothing is flushed here: the load of a root flushes the processor's
    /// translations of it (KVM since 5.18, see kvm_mmu_load).
    pub(super) fn free_root_tree(&mut self, root: PageId) {
        debug_assert!(self.pool.page(root).keeping == Keeping::Tree);
        self.tdp_roots.retain(|other| *other != root);
        self.tolls.add(Operation::TableRead, 1);
        self.free_tree(root);
    }
}
