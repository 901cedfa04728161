//! The pages that the hypervisor's tables are made of: a hidden part of host memory, and what is known about each page of it.

use super::refusal::RestoreError;
use super::role::Role;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use x86::page::PAGE;

/// Number of a page of the pool.
pub type PageId = u32;

/// One entry of a table of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryRef {
    /// The table.
    pub page: PageId,
    /// Which of its 512 entries.
    pub index: u16,
}

/// How a page of the pool is looked after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeping {
    /// Not in use.
    #[default]
    Free,
    /// Found by frame and role; has reverse maps and parents.
    Hashed,
    /// Part of one tree and freed with it.
    Tree,
    /// The PDPTEs of a virtual processor, or the root that maps nothing.
    Special,
}

/// What is known about a page of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// How it is looked after.
    pub keeping: Keeping,
    /// The guest frame that it shadows, or the first frame that it maps.
    pub gfn: u64,
    /// What it is good for.
    pub role: Role,
    /// The frame that each entry maps, where the role does not say.
    pub gfns: Vec<u64>,
    /// The entries that point to it, in no particular order.
    #[serde(skip)]
    pub parents: Vec<EntryRef>,
    /// Roots in use, current or kept.
    #[serde(skip)]
    pub roots: u32,
    /// It is no longer found, and goes when no root uses it any more.
    pub invalid: bool,
    /// The guest may have written to the table that it shadows.
    pub unsync: bool,
    /// Entries below which there may be unsync pages.
    pub unsync_below: [u64; 8],
    /// Writes to the table since it was last used.
    pub writes: u32,
    /// Order of making, for recycling.
    pub order: u64,
}

impl Page {
    /// The frame that an entry of it maps.
    pub fn frame(&self, index: usize) -> u64 {
        match self.gfns.get(index) {
            Some(gfn) => *gfn,
            None => self.gfn + ((index as u64) << super::spte::frames_shift(self.role.level)),
        }
    }
}

/// What of a pool cannot be worked out from anything else, the contents of its pages left aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPool {
    /// Number of its pages.
    size: u32,
    /// Those in use.
    pages: Vec<(PageId, Page)>,
    /// The others, the next one to be taken last.
    free: Vec<PageId>,
    /// Order of the next page to be made.
    pub next_order: u64,
}

/// The pool.
pub struct Pool {
    ram: Ram,
    base: u64,
    pages: Vec<Page>,
    free: Vec<PageId>,
    /// Pages in use that may be recycled, oldest first.
    active: BTreeMap<u64, PageId>,
    next_order: u64,
    /// Pages of tables in use; those of [`Keeping::Special`] do not count.
    used: u32,
    limit: u32,
}

impl Pool {
    /// A pool of `pages` pages from host-physical address `base`, of which tables may use `limit`.
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

    /// What is to be saved of it.
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

    /// The pool with what was saved of one like it. Of the pages it is certain only that each of them is either in use or free,
    /// and that their orders differ.
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

    /// Host-physical address of a page.
    pub fn hpa(&self, page: PageId) -> u64 {
        self.base + u64::from(page) * PAGE
    }

    /// The page at a host-physical address that an entry points to. `None`: it is no page of the pool.
    pub fn id(&self, hpa: u64) -> Option<PageId> {
        let number = hpa.wrapping_sub(self.base) / PAGE;
        (number < self.pages.len() as u64).then_some(number as PageId)
    }

    /// What is known about a page.
    pub fn page(&self, id: PageId) -> &Page {
        &self.pages[id as usize]
    }

    /// What is known about a page.
    pub fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id as usize]
    }

    /// All pages.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (PageId, &Page)> {
        self.pages.iter().enumerate().map(|(id, page)| (id as PageId, page))
    }

    /// An entry of a table.
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

    /// Pages that tables may still use.
    pub fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used).min(self.free.len() as u32)
    }

    /// Pages that tables use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Pages that tables may use.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Pages that are in no use at all.
    pub fn free_pages(&self) -> &[PageId] {
        &self.free
    }

    /// Takes a zeroed page. `None`: the limit is reached.
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

    /// A page is not to be recycled any more: it is invalid.
    pub fn retire(&mut self, id: PageId) {
        self.active.remove(&self.pages[id as usize].order);
    }

    /// Gives a page back.
    pub fn free(&mut self, id: PageId) {
        self.retire(id);
        let page = std::mem::take(&mut self.pages[id as usize]);
        debug_assert!(page.keeping != Keeping::Free);
        if page.keeping != Keeping::Special {
            self.used -= 1;
        }
        self.free.push(id);
    }

    /// The oldest page that no root is.
    pub fn oldest(&self) -> Option<PageId> {
        self.active.values().copied().find(|id| self.pages[*id as usize].roots == 0)
    }

    /// The pages that are found by frame and role, oldest first.
    pub fn active(&self) -> Vec<PageId> {
        self.active.values().copied().collect()
    }
}
