//! `shadow-nocache`: one private tree per virtual processor, used as a large TLB. The guest's writes to its tables are
//! not watched; a TLB flush drops entries, or the whole tree.

use super::Mmu;
use super::pool::EntryRef;
use super::spte::{PIECES, index};
use super::vcpu::VcpuMmu;
use ledger::Operation;

impl Mmu {
    /// Drops the tree's translation of an address: an entry, or all pieces of the large guest page that contains it.
    pub(super) fn nocache_invlpg(&mut self, vcpu: &VcpuMmu, linear: u64) {
        let Some(mut page) = self.top(vcpu, linear) else { return };
        let mut flush = false;
        loop {
            let role = self.pool.page(page).role;
            let at = EntryRef { page, index: index(linear, role.level) as u16 };
            self.tolls.add(Operation::TableRead, 1);
            let pieces = self.pool.entry(at) & PIECES != 0;
            match self.child(at) {
                Some(child) if !pieces => page = child,
                _ => {
                    flush |= self.drop_entry(at) && (pieces || role.level > 1);
                    // Both halves of a possible 4 MiB page.
                    if role.four_byte && role.level > 1 {
                        let other = EntryRef { index: at.index ^ 1, ..at };
                        let whole = self.child(other).is_none() || self.pool.entry(other) & PIECES != 0;
                        flush |= whole && self.drop_entry(other);
                    }
                    break;
                }
            }
        }
        if flush {
            self.flush_all();
        }
    }

    /// Makes room in a mode whose pages are not recycled individually: everything is dropped if there is too little.
    pub(super) fn make_tree_room(&mut self) -> bool {
        if self.pool.available() >= Self::MIN_FREE {
            return true;
        }
        self.stats.limit_mmu_pages += 1;
        let before = self.pool.used();
        self.empty_trees();
        self.stats.recycled += u64::from(before - self.pool.used());
        self.flush_all();
        self.pool.available() >= Self::MIN_FREE
    }
}
