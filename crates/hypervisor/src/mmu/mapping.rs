//! Entries that map pages: what may be allowed, and how large the page may be.

use super::pool::{EntryRef, Keeping, PageId};
use super::rmap::block;
use super::spte::{self, WRITE, frames};
use super::{Mmu, Resolution};
use ledger::Operation;

/// A page to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The frame of the address.
    pub gfn: u64,
    /// What may be done with it.
    pub access: u8,
    /// The access at hand is a write.
    pub write: bool,
    /// There is an access at hand; otherwise the entry is made ahead of it.
    pub used: bool,
    /// Last-level tables may go out of synchronization for it.
    pub may_unsync: bool,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// It is new or allows more.
    Changed,
    /// It was so already.
    Unchanged,
    /// It does not allow the write at hand, which goes to a watched table.
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
    /// The level at which a frame may be mapped, at most `max`.
    pub(super) fn mapping_level(&self, gfn: u64, max: u8) -> u8 {
        let max = max.min(if self.host.gigabyte_pages { 3 } else { 2 });
        if !self.huge_pages {
            return 1;
        }
        let Some(slot) = self.slots.find(gfn).filter(|slot| !slot.config.log_dirty) else { return 1 };
        let fits = |level: &u8| slot.has_block(gfn, frames(*level)) && self.tracks.large_allowed(gfn, *level);
        (2..=max).rev().find(fits).unwrap_or(1)
    }

    /// Makes `at` map the page that holds the frame of `target`, at the level of its table. The frame must have a slot.
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
            // Something else is in its place.
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

    /// Whether an entry may allow writes as far as watched tables go.
    fn may_be_written(&mut self, level: u8, target: Target) -> bool {
        if self.tracks.is_empty() {
            return true;
        }
        if level > 1 {
            return self.tracks.large_allowed(target.gfn, level);
        }
        self.try_unsync(target.gfn, target.may_unsync, !target.used)
    }

    /// Makes `at` tell accesses to a frame without a slot, if the processor has a way.
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

    /// Enters a frame in the dirty log of its slot.
    pub fn mark_written(&mut self, gfn: u64) {
        if self.slots.find_mut(gfn).is_some_and(|slot| slot.mark_dirty(gfn)) {
            self.tolls.add(Operation::DirtyLog, 1);
        }
    }

    /// The table that an entry points to.
    pub(super) fn child(&self, at: EntryRef) -> Option<PageId> {
        let entry = self.pool.entry(at);
        let level = self.pool.page(at.page).role.level;
        self.format.is_table(entry, level).then(|| self.pool.id(spte::address(entry))).flatten()
    }
}
