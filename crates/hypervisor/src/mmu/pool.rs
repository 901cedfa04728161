//! The pool of pages for the hypervisor's tables: a hidden part of host memory, with metadata for each page.

use super::error::RestoreError;
use super::role::Role;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use x86::page::PAGE;

/// Number of a page of the pool.
pub type PageId = u32;

/// An entry of a table in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryRef {
    /// Table.
    pub page: PageId,
    /// Index of the entry, of 512.
    pub index: u16,
}

/// Way in which a page of the pool is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeping {
    /// Unused.
    #[default]
    Free,
    /// Looked up by frame and role; has reverse maps and parents.
    Hashed,
    /// Part of a tree, and freed with it.
    Tree,
    /// PDPTEs of a virtual processor, or the root that maps nothing.
    Special,
}

/// Metadata of a page in the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Way in which it is kept.
    pub keeping: Keeping,
    /// Guest frame that it shadows, or the first frame that it maps.
    pub gfn: u64,
    /// Role.
    pub role: Role,
    /// Frame that each entry maps, if it does not follow from the role.
    pub gfns: Vec<u64>,
    /// Entries that point to it, in no particular order.
    #[serde(skip)]
    pub parents: Vec<EntryRef>,
    /// Number of roots, current or kept, that use it.
    #[serde(skip)]
    pub roots: u32,
    /// True if it is no longer found, and will be freed after its last use as a root.
    pub invalid: bool,
    /// True if the guest may have written to the shadowed table.
    pub unsync: bool,
    /// Entries below which there may be unsynchronized pages.
    pub unsync_below: [u64; 8],
    /// Number of writes to the table since its last use.
    pub writes: u32,
    /// Order of allocation, for recycling.
    pub order: u64,
}

impl Page {
    /// Returns the frame that an entry maps.
    pub fn frame(&self, index: usize) -> u64 {
        match self.gfns.get(index) {
            Some(gfn) => *gfn,
            None => self.gfn + ((index as u64) << super::spte::frames_shift(self.role.level)),
        }
    }
}

/// State of a pool that can't be derived from other state, without the contents of its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPool {
    /// Number of pages.
    size: u32,
    /// Pages in use.
    pages: Vec<(PageId, Page)>,
    /// Free pages; the next one to be allocated is the last.
    free: Vec<PageId>,
    /// Order of the next allocated page.
    pub next_order: u64,
}

/// The pool of pages.
pub struct Pool {
    ram: Ram,
    base: u64,
    pages: Vec<Page>,
    free: Vec<PageId>,
    /// Recyclable pages in use, oldest first.
    active: BTreeMap<u64, PageId>,
    next_order: u64,
    /// Number of pages of tables in use, without those of [`Keeping::Special`].
    used: u32,
    limit: u32,
}

impl Pool {
    /// Creates a pool of `pages` pages from host-physical address `base`, of which tables may use `limit`.
    pub fn new(ram: Ram, base: u64, pages: u32, limit: u32) -> Self {
        Self {
            ram,
            base,
            pages: vec![Page::default(); pages as usize],
            free: (0..pages).rev().collect(),
            active: BTreeMap::new(),
            next_order: 0,
            used: 0,
            limit: limit.min(pages),
        }
    }

    /// Returns the state to be saved.
    pub fn save(&self) -> SavedPool {
        let in_use = self.iter().filter(|(_, page)| page.keeping != Keeping::Free);
        let saved = |(id, page): (PageId, &Page)| (id, Page { parents: Vec::new(), roots: 0, ..page.clone() });
        SavedPool {
            size: self.pages.len() as u32,
            pages: in_use.map(saved).collect(),
            free: self.free.clone(),
            next_order: self.next_order,
        }
    }

    /// Creates a pool with a saved state. This only checks that each page is either in use or free, and that the
    /// allocation orders are distinct.
    pub fn restored(&self, saved: SavedPool) -> Result<Self, RestoreError> {
        let here = self.pages.len() as u32;
        if saved.size != here {
            return Err(RestoreError::PoolSize { saved: saved.size, here });
        }
        let mut pages = vec![None; self.pages.len()];
        let free = saved.free.iter().map(|id| (*id, Page::default()));
        for (id, page) in free.chain(saved.pages) {
            match pages.get_mut(id as usize) {
                Some(place @ None) => *place = Some(page),
                _ => return Err(RestoreError::Page { page: id, what: "is there twice, or not at all" }),
            }
        }
        let pages: Vec<Page> = pages.into_iter().flatten().collect();
        let mut restored = Self {
            ram: self.ram.clone(),
            base: self.base,
            pages,
            free: saved.free,
            active: BTreeMap::new(),
            next_order: saved.next_order,
            used: 0,
            limit: self.limit,
        };
        let in_use = restored.pages.iter().filter(|page| page.keeping != Keeping::Free).count();
        if restored.pages.len() != self.pages.len() || in_use + restored.free.len() != restored.pages.len() {
            return Err(RestoreError::Counter("free table pages"));
        }
        let mut orders = BTreeMap::new();
        for (id, page) in restored.pages.iter().enumerate().filter(|(_, page)| page.keeping != Keeping::Free) {
            let id = id as PageId;
            if page.order >= restored.next_order || orders.insert(page.order, id).is_some() {
                return Err(RestoreError::Page { page: id, what: "was made at no time of its own" });
            }
            restored.used += u32::from(page.keeping != Keeping::Special);
        }
        orders.retain(|_, id| {
            let page = &restored.pages[*id as usize];
            page.keeping == Keeping::Hashed && !page.invalid
        });
        restored.active = orders;
        if restored.used > restored.limit {
            return Err(RestoreError::Counter("table pages in use"));
        }
        Ok(restored)
    }

    /// Returns the host-physical address of a page.
    pub fn hpa(&self, page: PageId) -> u64 {
        self.base + u64::from(page) * PAGE
    }

    /// Returns the page at a host-physical address in an entry, or `None` if it is not in the pool.
    pub fn id(&self, hpa: u64) -> Option<PageId> {
        let number = hpa.wrapping_sub(self.base) / PAGE;
        (number < self.pages.len() as u64).then_some(number as PageId)
    }

    /// Returns the metadata of a page.
    pub fn page(&self, id: PageId) -> &Page {
        &self.pages[id as usize]
    }

    /// Returns the metadata of a page for changes.
    pub fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id as usize]
    }

    /// Returns all pages.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (PageId, &Page)> {
        self.pages.iter().enumerate().map(|(id, page)| (id as PageId, page))
    }

    /// Reads an entry of a table.
    pub fn entry(&self, at: EntryRef) -> u64 {
        self.ram.read(self.address(at)).unwrap_or(0)
    }

    /// Writes an entry of a table.
    pub fn set_entry(&mut self, at: EntryRef, value: u64) {
        self.ram.write(self.address(at), value);
    }

    fn address(&self, at: EntryRef) -> u64 {
        self.hpa(at.page) + u64::from(at.index) * 8
    }

    /// Returns the number of pages that tables may still use.
    pub fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used).min(self.free.len() as u32)
    }

    /// Returns the number of pages that tables use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the maximum number of pages for tables.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the free pages.
    pub fn free_pages(&self) -> &[PageId] {
        &self.free
    }

    /// Allocates a zeroed page. Returns `None` if the limit is reached.
    pub fn allocate(&mut self, keeping: Keeping, gfn: u64, role: Role) -> Option<PageId> {
        let special = keeping == Keeping::Special;
        if !special && self.used >= self.limit {
            return None;
        }
        let id = self.free.pop()?;
        for index in 0..512 {
            self.set_entry(EntryRef { page: id, index }, 0);
        }
        let gfns = if keeping == Keeping::Hashed && !role.direct { vec![0; 512] } else { Vec::new() };
        let order = self.next_order;
        self.next_order += 1;
        self.pages[id as usize] = Page { keeping, gfn, role, gfns, order, ..Page::default() };
        if !special {
            self.used += 1;
            if keeping == Keeping::Hashed {
                self.active.insert(order, id);
            }
        }
        Some(id)
    }

    /// Excludes an invalid page from recycling.
    pub fn retire(&mut self, id: PageId) {
        self.active.remove(&self.pages[id as usize].order);
    }

    /// Frees a page.
    pub fn free(&mut self, id: PageId) {
        self.retire(id);
        let page = std::mem::take(&mut self.pages[id as usize]);
        debug_assert!(page.keeping != Keeping::Free);
        if page.keeping != Keeping::Special {
            self.used -= 1;
        }
        self.free.push(id);
    }

    /// Returns the oldest page that is not a root.
    pub fn oldest(&self) -> Option<PageId> {
        self.active.values().copied().find(|id| self.pages[*id as usize].roots == 0)
    }

    /// Returns the pages that are found by frame and role, oldest first.
    pub fn active(&self) -> Vec<PageId> {
        self.active.values().copied().collect()
    }
}
