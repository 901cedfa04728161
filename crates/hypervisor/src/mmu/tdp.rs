//! `tdp`: a tree per root, shared by all virtual processors that need the same, and freed with its last user.

use super::Mmu;
use super::pool::{Keeping, PageId};
use super::role::Role;
use ledger::Operation;

impl Mmu {
    /// The root of two-dimensional paging with a role: one in use by someone, or a new one.
    pub(super) fn tdp_root(&mut self, role: Role) -> Option<PageId> {
        if let Some(root) = self.tdp_roots.iter().copied().find(|id| self.pool.page(*id).role == role) {
            return Some(root);
        }
        let root = self.get_page(0, role)?;
        self.tdp_roots.push(root);
        Some(root)
    }

    /// Frees a tree that has lost its last user. Nothing is flushed: who loads a root flushes what the processor knows of it
    /// (KVM since 5.18, see kvm_mmu_load).
    pub(super) fn free_root_tree(&mut self, root: PageId) {
        debug_assert!(self.pool.page(root).keeping == Keeping::Tree);
        self.tdp_roots.retain(|other| *other != root);
        self.tolls.add(Operation::TableRead, 1);
        self.free_tree(root);
    }
}
