//! Consistency checks of the tables.

use super::Mmu;
use super::pool::{EntryRef, Keeping, PageId};
use super::rmap::MAX_LEVEL;
use super::spte;
use super::vcpu::VcpuMmu;
use rustc_hash::FxHashMap;

/// A set of pool entries, by bit.
struct Marks(Vec<[u64; 8]>);

impl Marks {
    /// Adds an entry. Returns true if it was not in the set.
    fn insert(&mut self, at: EntryRef) -> bool {
        let fresh = !self.contains(at);
        self.0[at.page as usize][usize::from(at.index / 64)] |= 1 << (at.index % 64);
        fresh
    }

    fn contains(&self, at: EntryRef) -> bool {
        self.0[at.page as usize][usize::from(at.index / 64)] & 1 << (at.index % 64) != 0
    }
}

/// References from pages and frames back to entries.
struct Backwards {
    /// Entries in the parent list of some page.
    parents: Marks,
    /// Entries in the reverse map of their frame.
    mapped: Marks,
    /// Starts of slots in host memory, in order, each with the maximum end of the slots so far.
    backed: Vec<(u64, u64)>,
}

impl Backwards {
    /// Returns true if one slot backs all of a range of host memory.
    fn is_backed(&self, hpa: u64, pages: u64) -> bool {
        let up_to = self.backed.partition_point(|(start, _)| *start <= hpa);
        self.backed[..up_to].last().is_some_and(|(_, end)| hpa + (pages << 12) <= *end)
    }
}

impl Mmu {
    /// Checks the tables: every page of the pool is free or has a user, reverse maps and entries agree, all mapped
    /// memory is backed by slots, and watched tables are not writable. `vcpus` are all virtual processors. The error
    /// describes the first inconsistency.
    pub fn check(&self, vcpus: &[&VcpuMmu]) -> Result<(), String> {
        let mut roots: FxHashMap<PageId, u32> = FxHashMap::default();
        for set in vcpus.iter().flat_map(|vcpu| vcpu.sets()) {
            for id in set.pages.iter().flatten() {
                if !self.may_be_root(*id) {
                    return Err(format!("root {id} is not in use"));
                }
                *roots.entry(*id).or_default() += 1;
            }
        }
        let mut free = vec![false; self.pool.iter().count()];
        for id in self.pool.free_pages() {
            free[*id as usize] = true;
        }
        let backwards = self.backwards()?;
        let mut used = 0;
        let mut mapped = 0;
        for (id, page) in self.pool.iter() {
            if free[id as usize] != (page.keeping == Keeping::Free) {
                return Err(format!("page {id} is {:?}, its place in the free list says otherwise", page.keeping));
            }
            let count = roots.get(&id).copied().unwrap_or(0);
            match page.keeping {
                Keeping::Free | Keeping::Special => continue,
                Keeping::Hashed if page.invalid && count == 0 => {
                    return Err(format!("invalid page {id} was not freed"));
                }
                _ => {}
            }
            if page.roots != count {
                return Err(format!("page {id} counts {} roots of {count}", page.roots));
            }
            used += 1;
            mapped += self.check_page(id, &backwards)?;
        }
        if used != self.pool.used() {
            return Err(format!("{used} pages are in use, {} are counted", self.pool.used()));
        }
        if mapped != self.rmaps.len() {
            return Err(format!("{mapped} entries map pages, {} are in reverse maps", self.rmaps.len()));
        }
        self.check_trees()
    }

    /// Collects the references to entries, and checks that each is unique.
    fn backwards(&self) -> Result<Backwards, String> {
        let unmarked = || Marks(vec![[0; 8]; self.pool.iter().len()]);
        let (mut parents, mut mapped) = (unmarked(), unmarked());
        for (id, page) in self.pool.iter() {
            for parent in &page.parents {
                if self.child(*parent) != Some(id) || !parents.insert(*parent) {
                    return Err(format!("page {id} has a parent {parent:?} that does not point to it, or twice"));
                }
            }
        }
        for (at, block) in self.rmaps.iter() {
            let page = self.pool.page(at.page);
            let maps = page.keeping == Keeping::Hashed && self.format.is_leaf(self.pool.entry(at), page.role.level);
            if !maps || (page.frame(usize::from(at.index)), page.role.level) != block || !mapped.insert(at) {
                return Err(format!("frame {:#x} has a reverse map {at:?} that does not map it, or twice", block.0));
            }
        }
        let range = |slot: &super::Slot| (slot.config.hpa, slot.config.hpa + (slot.config.pages << 12));
        let mut backed: Vec<(u64, u64)> = self.slots.iter().map(range).collect();
        backed.sort_unstable();
        let mut farthest = 0;
        for (_, end) in &mut backed {
            farthest = farthest.max(*end);
            *end = farthest;
        }
        Ok(Backwards { parents, mapped, backed })
    }

    /// Checks a page and its entries. Returns the number of entries that must be in reverse maps.
    fn check_page(&self, id: PageId, backwards: &Backwards) -> Result<usize, String> {
        let page = self.pool.page(id);
        let level = page.role.level;
        let hashed = page.keeping == Keeping::Hashed;
        let found = self.hash.get(&page.gfn).is_some_and(|bucket| bucket.contains(&id));
        if found != (hashed && !page.invalid) {
            return Err(format!("page {id} ({:?}) and the hash disagree", page.keeping));
        }
        if page.invalid && (page.unsync || page.unsync_below != [0; 8] || !page.parents.is_empty()) {
            return Err(format!("page {id} is invalid, and counts as a part of the tables"));
        }
        self.check_shadow_ept(id, page)?;
        let mut mapped = 0;
        for index in 0..512 {
            let at = EntryRef { page: id, index };
            let entry = self.pool.entry(at);
            if page.invalid && entry != 0 {
                return Err(format!("{at:?} of an invalid page is {entry:#x}"));
            }
            if self.format.is_leaf(entry, level) {
                self.check_leaf(at, entry, backwards)?;
                mapped += usize::from(hashed);
            } else if let Some(child) = self.child(at) {
                let below = self.pool.page(child);
                if below.role.level + 1 != level || below.keeping != page.keeping {
                    return Err(format!("{at:?} points to page {child} of level {}", below.role.level));
                }
                if hashed && !backwards.parents.contains(at) {
                    return Err(format!("{at:?} points to page {child}, which does not know"));
                }
                self.check_direct_child(at, child)?;
                let noted = page.unsync_below[usize::from(index / 64)] & 1 << (index % 64) != 0;
                if (below.unsync || below.unsync_below != [0; 8]) && !noted {
                    return Err(format!("{at:?} does not know of unsync pages below"));
                }
            } else if entry != 0 && !self.format.is_mmio(entry) {
                return Err(format!("{at:?} is {entry:#x}, which is nothing"));
            }
        }
        Ok(mapped)
    }

    fn check_leaf(&self, at: EntryRef, entry: u64, backwards: &Backwards) -> Result<(), String> {
        let page = self.pool.page(at.page);
        let level = page.role.level;
        if level > MAX_LEVEL {
            return Err(format!("{at:?} maps a page at level {level}"));
        }
        let hpa = spte::address(entry);
        if page.keeping != Keeping::Hashed {
            return match backwards.is_backed(hpa, spte::frames(level)) {
                true if self.format.is_writable(entry) && !self.tracks.is_empty() => self.check_tree_leaf(at),
                true => Ok(()),
                false => Err(format!("{at:?} maps {hpa:#x}, which is in no slot")),
            };
        }
        let gfn = page.frame(usize::from(at.index));
        if self.slots.find(gfn).is_none_or(|slot| slot.hpa(gfn) != hpa || gfn + spte::frames(level) > slot.end()) {
            return Err(format!("{at:?} maps {hpa:#x} for frame {gfn:#x}, which is elsewhere"));
        }
        if !backwards.mapped.contains(at) {
            return Err(format!("{at:?} maps frame {gfn:#x} without a reverse map"));
        }
        if self.format.is_writable(entry) {
            if !self.tracks.large_allowed(gfn, level) {
                return Err(format!("{at:?} allows writes to all of a block with watched frames in it"));
            }
            self.check_writable(at, gfn)?;
        }
        Ok(())
    }

    /// Checks a frame that may be written without an exit.
    pub(super) fn check_writable(&self, at: EntryRef, frame: u64) -> Result<(), String> {
        if self.tracks.writes_seen(frame) {
            return Err(format!("{at:?} allows writes to the watched frame {frame:#x}"));
        }
        let synced = |id: &PageId| !self.pool.page(*id).role.direct && !self.pool.page(*id).unsync;
        if self.hash.get(&frame).is_some_and(|bucket| bucket.iter().any(synced)) {
            return Err(format!("{at:?} allows writes to the table {frame:#x}, which counts as synchronized"));
        }
        Ok(())
    }

    /// Checks that each page of a tree has exactly one parent entry, or is a root.
    fn check_trees(&self) -> Result<(), String> {
        let mut above: FxHashMap<PageId, u32> = FxHashMap::default();
        let trees = || self.pool.iter().filter(|(_, page)| page.keeping == Keeping::Tree);
        for (id, _) in trees() {
            for child in (0..512).filter_map(|index| self.child(EntryRef { page: id, index })) {
                *above.entry(child).or_default() += 1;
            }
        }
        for (id, page) in trees() {
            let expected = u32::from(page.roots == 0);
            let found = above.get(&id).copied().unwrap_or(0);
            if found != expected {
                return Err(format!("page {id} of a tree is pointed to by {found} entries, not {expected}"));
            }
        }
        Ok(())
    }
}
