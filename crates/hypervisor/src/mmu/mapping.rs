//! Entries that map pages: permissions and page sizes.

use super::pool::{EntryRef, Keeping, PageId};
use super::rmap::block;
use super::spte::{self, WRITE, frames};
use super::{Mmu, Resolution};
use ledger::Operation;

/// A page to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Frame of the address.
    pub gfn: u64,
    /// Permissions of the page.
    pub access: u8,
    /// True if the current access is a write.
    pub write: bool,
    /// True if there is a current access; otherwise the entry is created ahead of it.
    pub used: bool,
    /// True if last-level tables may become unsynchronized for it.
    pub may_unsync: bool,
}

/// Outcome of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The entry is new or grants more.
    Changed,
    /// The entry is unchanged.
    Unchanged,
    /// The entry denies the current write, because it is to a watched table.
    Watched,
}

impl From<Mapped> for Resolution {
    fn from(mapped: Mapped) -> Self {
        match mapped {
            Mapped::Changed | Mapped::Unchanged => Self::Fixed,
            Mapped::Watched => Self::Emulate { mmio: false },
        }
    }
}

impl Mmu {
    /// Returns the level at which a frame may be mapped, at most `max`.
    pub(super) fn mapping_level(&self, gfn: u64, max: u8) -> u8 {
        let max = max.min(if self.host.gigabyte_pages { 3 } else { 2 });
        if !self.huge_pages {
            return 1;
        }
        let Some(slot) = self.slots.find(gfn).filter(|slot| !slot.config.log_dirty) else { return 1 };
        let fits = |level: &u8| slot.has_block(gfn, frames(*level)) && self.tracks.large_allowed(gfn, *level);
        (2..=max).rev().find(fits).unwrap_or(1)
    }

    /// Maps the page that contains the frame of `target` in entry `at`, at the level of its table. The frame must have
    /// a slot.
    pub(super) fn map_page(&mut self, at: EntryRef, target: Target) -> Mapped {
        let page = self.pool.page(at.page);
        let (level, kept) = (page.role.level, page.keeping == Keeping::Hashed);
        let recorded = page.frame(usize::from(at.index));
        let first = block(target.gfn, level);
        let Some(slot) = self.slots.find(target.gfn) else { return Mapped::Unchanged };
        let (hpa, read_only) = (slot.hpa(target.gfn) & !((frames(level) << 12) - 1), slot.config.read_only);
        let old = self.pool.entry(at);
        let mut had = self.format.is_leaf(old, level);
        if self.format.is_table(old, level) || (had && (spte::address(old) != hpa || recorded != first && kept)) {
            // The entry has other contents.
            self.drop_entry(at);
            self.flush_all();
            had = false;
        }
        let mut access = if read_only { target.access & !WRITE } else { target.access };
        let mut watched = false;
        if access & WRITE != 0 && (!had || !self.format.is_writable(old)) && !self.may_be_written(level, target) {
            access &= !WRITE;
            watched = target.write;
        }
        let new = self.format.leaf(hpa, level, access, target.used);
        if access & WRITE != 0 {
            self.mark_written(target.gfn);
        }
        let old = if had { old } else { 0 };
        if old != new {
            self.tolls.add(Operation::TableWrite, 1);
            self.pool.set_entry(at, new);
            if self.format.needs_flush(old, new) {
                self.flush_all();
            }
        }
        if !had && kept {
            if let Some(gfn) = self.pool.page_mut(at.page).gfns.get_mut(usize::from(at.index)) {
                *gfn = first;
            }
            self.tolls.add(Operation::RmapAdd, 1);
            self.rmaps.add(first, level, at);
        }
        if !had && level > 1 {
            self.stats.large += 1;
        }
        match (watched, old == new) {
            (true, _) => Mapped::Watched,
            (false, false) => Mapped::Changed,
            (false, true) => Mapped::Unchanged,
        }
    }

    /// Returns true if an entry may permit writes with respect to watched tables.
    fn may_be_written(&mut self, level: u8, target: Target) -> bool {
        if self.tracks.is_empty() {
            return true;
        }
        if level > 1 {
            return self.tracks.large_allowed(target.gfn, level);
        }
        self.try_unsync(target.gfn, target.may_unsync, !target.used)
    }

    /// Marks `at` as a frame without a slot, if the processor supports that.
    pub(super) fn map_mmio(&mut self, at: EntryRef, gfn: u64) {
        let Some(entry) = self.format.mmio(gfn) else { return };
        if self.pool.entry(at) != entry {
            if self.drop_entry(at) {
                self.flush_all();
            }
            self.stats.mmio += 1;
            self.tolls.add(Operation::TableWrite, 1);
            self.pool.set_entry(at, entry);
        }
    }

    /// Records a frame in the dirty log of its slot.
    pub fn mark_written(&mut self, gfn: u64) {
        if self.slots.find_mut(gfn).is_some_and(|slot| slot.mark_dirty(gfn)) {
            self.tolls.add(Operation::DirtyLog, 1);
        }
    }

    /// Returns the table to which an entry points.
    pub(super) fn child(&self, at: EntryRef) -> Option<PageId> {
        let entry = self.pool.entry(at);
        let level = self.pool.page(at.page).role.level;
        self.format.is_table(entry, level).then(|| self.pool.id(spte::address(entry))).flatten()
    }
}
