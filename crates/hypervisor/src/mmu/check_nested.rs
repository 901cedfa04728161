//! Additional consistency checks of shadow EPT: each entry grants no more than the current entry of the guest's EPT,
//! unless the guest may have written to the shadowed table without an exit.

use super::Mmu;
use super::pool::{EntryRef, Keeping, Page, PageId};
use super::spte;
use crate::config::MmuMode;

impl Mmu {
    /// Checks the entries of a page, if it shadows a table of the guest's EPT and is synchronized.
    pub(super) fn check_shadow_ept(&self, id: PageId, page: &Page) -> Result<(), String> {
        let Some(format) = page.role.ept.filter(|_| !page.role.direct && !page.unsync && !page.invalid) else {
            return Ok(());
        };
        for index in 0..512 {
            let at = EntryRef { page: id, index };
            let entry = self.pool.entry(at);
            if entry == 0 {
                continue;
            }
            let (value, _) = self.read_guest((page.gfn << 12) + page.role.guest_offset(usize::from(index)), true);
            let says = self.ept_entry(page.role, format, value);
            if !self.agrees(at, entry, says) {
                return Err(format!("{at:?} is {entry:#x}, where the guest's EPT has {value:#x}: {says:x?}"));
            }
        }
        Ok(())
    }

    /// Checks a writable entry in a tree of the TDP MMU.
    pub(super) fn check_tree_leaf(&self, at: EntryRef) -> Result<(), String> {
        let page = self.pool.page(at.page);
        let gfn = page.frame(usize::from(at.index));
        if !self.tracks.large_allowed(gfn, page.role.level) {
            return Err(format!("{at:?} allows writes to all of a block with watched frames in it"));
        }
        match page.role.level {
            1 => self.check_writable(at, gfn),
            _ => Ok(()),
        }
    }

    /// Checks that a page directly below another one in a direct map continues it.
    pub(super) fn check_direct_child(&self, at: EntryRef, child: PageId) -> Result<(), String> {
        let (page, below) = (self.pool.page(at.page), self.pool.page(child));
        let first = page.gfn + (u64::from(at.index) << spte::frames_shift(page.role.level));
        // The trees of `shadow-nocache` do not record frames.
        let recorded = page.keeping == Keeping::Hashed || self.mode == MmuMode::Tdp;
        match !page.role.direct || !recorded || (below.role.direct && below.gfn == first) {
            true => Ok(()),
            false => Err(format!("{at:?} points to a page for frame {:#x}, not {first:#x}", below.gfn)),
        }
    }
}
