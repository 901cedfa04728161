//! The dirty log: frames of a slot that were written since the log was last read, detected by write protection.

use super::Mmu;
use super::pool::{EntryRef, Keeping, PageId};
use super::rmap::{MAX_LEVEL, block};
use super::spte::{self, frames};
use crate::config::MmuMode;
use ledger::Operation;

impl Mmu {
    /// Starts or stops the log of the slot that begins at frame `gfn`. Returns false if there is no such slot.
    ///
    /// While a slot is logged, its memory is mapped by small pages. When logging stops, memory that could be mapped by
    /// large pages is mapped again.
    pub fn log_dirty(&mut self, gfn: u64, on: bool) -> bool {
        let Some(slot) = self.slots.find_mut(gfn).filter(|slot| slot.config.gfn == gfn) else { return false };
        if slot.config.log_dirty == on {
            return true;
        }
        slot.set_logging(on);
        let range = gfn..slot.end();
        for at in self.entries_of(range) {
            if on {
                if !self.split(at) {
                    self.write_protect_entry(at, true);
                }
            } else if self.could_be_large(at) {
                self.drop_entry(at);
            }
        }
        self.flush_all();
        true
    }

    /// Returns the log of the slot that begins at frame `gfn`, a bit per frame, and clears it: its frames are
    /// write-protected again.
    pub fn take_dirty_log(&mut self, gfn: u64) -> Option<Vec<u64>> {
        let slot = self.slots.find_mut(gfn).filter(|slot| slot.config.gfn == gfn && slot.config.log_dirty)?;
        let clear = vec![0; slot.dirty.len()];
        let log = std::mem::replace(&mut slot.dirty, clear);
        let dirty = |number: u64| log.get((number / 64) as usize).is_some_and(|word| word & 1 << (number % 64) != 0);
        let frames = (0..slot.config.pages).filter(|number| dirty(*number)).map(|number| gfn + number);
        let frames: Vec<u64> = frames.collect();
        self.tolls.add(Operation::DirtyLog, frames.len() as u64);
        let mut flush = false;
        if matches!(self.mode, MmuMode::Shadow | MmuMode::LegacyTdp) {
            for frame in frames {
                for level in 1..=MAX_LEVEL {
                    let entries = self.rmaps.get(block(frame, level), level).to_vec();
                    self.tolls.add(Operation::RmapWalk, entries.len() as u64);
                    for at in entries {
                        flush |= self.write_protect_entry(at, true);
                    }
                }
            }
        } else if let (Some(first), Some(last)) = (frames.first(), frames.last()) {
            for at in self.entries_of(*first..*last + 1) {
                let logged = |frame: u64| frame.checked_sub(gfn).is_some_and(dirty);
                if self.mapped_frames(at).any(logged) {
                    flush |= self.write_protect_entry(at, true);
                }
            }
        }
        if flush {
            self.flush_all();
        }
        Some(log)
    }

    /// Returns the first frames that a mapping entry may be for. The trees of `shadow-nocache` do not record the frame:
    /// there, it is that of the host address in any of the slots that have this memory.
    fn mapped_frames(&self, at: EntryRef) -> impl Iterator<Item = u64> {
        let page = self.pool.page(at.page);
        let is_recorded = page.keeping == Keeping::Hashed || self.mode == MmuMode::Tdp;
        let recorded = is_recorded.then(|| page.frame(usize::from(at.index)));
        let hpa = spte::address(self.pool.entry(at));
        let inside = move |slot: &super::Slot| {
            let number = hpa.wrapping_sub(slot.config.hpa) >> 12;
            (number < slot.config.pages).then_some(slot.config.gfn + number)
        };
        let others = self.slots.iter().filter(move |_| !is_recorded).filter_map(inside);
        recorded.into_iter().chain(others)
    }

    /// Returns all entries that map pages in a range of frames.
    fn entries_of(&mut self, range: std::ops::Range<u64>) -> Vec<EntryRef> {
        let in_use =
            |page: &super::pool::Page| matches!(page.keeping, Keeping::Hashed | Keeping::Tree) && !page.invalid;
        let pages: Vec<PageId> = self.pool.iter().filter(|(_, page)| in_use(page)).map(|(id, _)| id).collect();
        let mut found = Vec::new();
        for page in pages {
            let level = self.pool.page(page).role.level;
            for index in 0..512 {
                let at = EntryRef { page, index };
                if self.format.is_leaf(self.pool.entry(at), level) {
                    let overlaps = |first: u64| first < range.end && range.start < first + frames(level);
                    if self.mapped_frames(at).any(overlaps) {
                        found.push(at);
                    }
                }
            }
        }
        self.tolls.add(Operation::RmapWalk, found.len() as u64);
        found
    }

    /// Replaces a large page of a direct map by write-protected small pages. Returns false if it is not a large page,
    /// or there is no room.
    fn split(&mut self, at: EntryRef) -> bool {
        let page = self.pool.page(at.page);
        let role = page.role;
        let entry = self.pool.entry(at);
        if role.level == 1 || !role.direct || self.pool.available() < Self::MIN_FREE {
            return false;
        }
        let Some(gfn) = self.mapped_frames(at).next() else { return false };
        self.drop_entry(at);
        let Some(child) = self.get_page(gfn, role.child(0, true, role.access)) else { return true };
        self.stats.split += 1;
        for number in 0..512u16 {
            let below = EntryRef { page: child, index: number };
            if self.pool.entry(below) != 0 {
                self.drop_entry(below);
            }
            let piece = self.format.piece(entry, role.level, u64::from(number));
            self.tolls.add(Operation::TableWrite, 1);
            self.pool.set_entry(below, self.format.write_protected(piece, true));
            if self.pool.page(child).keeping == Keeping::Hashed {
                self.tolls.add(Operation::RmapAdd, 1);
                self.rmaps.add(gfn + u64::from(number) * frames(role.level - 1), role.level - 1, below);
            }
        }
        self.link(at, child);
        if role.level > 2 {
            for index in 0..512 {
                self.split(EntryRef { page: child, index });
            }
        }
        true
    }

    /// Returns true if an entry maps less than a possible large page.
    fn could_be_large(&self, at: EntryRef) -> bool {
        let role = self.pool.page(at.page).role;
        let larger = |gfn| self.mapping_level(gfn, MAX_LEVEL) > role.level;
        role.direct && self.mapped_frames(at).any(larger)
    }
}
