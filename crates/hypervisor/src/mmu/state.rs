//! Save and restore of the MMU: saved state, derived state, and the checks of a saved state.
//!
//! The tables themselves are memory, and are saved as such. Parent lists, reverse maps, users of roots and watched
//! frames follow from the tables, the pages' roles and the virtual processors: they are not saved, so that they cannot
//! contradict them. A saved state may come from a forged file; a state that is accepted satisfies [`Mmu::check`].

use super::error::RestoreError;
use super::guest_ept::{EptFormat, Level};
use super::pool::{EntryRef, Keeping, Page, PageId, SavedPool};
use super::rmap::MAX_LEVEL;
use super::role::Role;
use super::slots::{GFN_END, Slot, Slots};
use super::spte::ALL;
use super::vcpu;
use super::vcpu::{KEPT, RootSet, VcpuMmu};
use super::{Mmu, Stats, Tolls};
use crate::config::MmuMode;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use x86::control::CR3_ADDRESS_PAE;

/// Limit of counters in a saved state, so that no machine can make them overflow.
pub(crate) const COUNTER_END: u64 = 1 << 62;
/// Limit of 32-bit counters.
const SHORT_COUNTER_END: u32 = 1 << 30;
/// Limit of the users of one page directory pointer table. The users of the 128 tables in a page are added up.
const USERS_END: u32 = 1 << 24;

/// State of an MMU that can't be derived from other state, without the tables' contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMmu {
    slots: Vec<Slot>,
    pool: SavedPool,
    tdp_roots: Vec<PageId>,
    empty_root: PageId,
    generation: u64,
    flushes: u64,
    last_write: (u64, u32),
    pdpts: BTreeMap<u64, vcpu::Pdpt>,
    written: Vec<(u64, u64)>,
    stats: Stats,
    tolls: Tolls,
}

impl SavedMmu {
    /// Checks that nothing in it can overflow.
    fn check_counters(&self) -> Result<(), RestoreError> {
        let long = [("generations", self.generation), ("flushes", self.flushes), ("table pages", self.pool.next_order)];
        let statistics = self.stats.all().map(|count| ("statistics", count));
        let versions = self.pdpts.values().map(|pdpt| ("page directory pointer tables", pdpt.version));
        let too_large = |(_, count): &(&'static str, u64)| *count >= COUNTER_END;
        if let Some((name, _)) = long.into_iter().chain(statistics).chain(versions).find(too_large) {
            return Err(RestoreError::Counter(name));
        }
        if self.last_write.1 >= SHORT_COUNTER_END {
            return Err(RestoreError::Counter("writes in a row"));
        }
        let fits =
            |(gpa, pdpt): (&u64, &vcpu::Pdpt)| gpa & !CR3_ADDRESS_PAE == 0 && (1..USERS_END).contains(&pdpt.users);
        if !self.pdpts.iter().all(fits) {
            return Err(RestoreError::Counter("users of page directory pointer tables"));
        }
        Ok(())
    }
}

impl Mmu {
    /// Returns the state to be saved. The pages of the pool are memory, which is saved separately.
    pub fn save(&self) -> SavedMmu {
        SavedMmu {
            slots: self.slots.iter().cloned().collect(),
            pool: self.pool.save(),
            tdp_roots: self.tdp_roots.clone(),
            empty_root: self.empty_root,
            generation: self.generation,
            flushes: self.flushes,
            last_write: self.last_write,
            pdpts: self.pdpts.clone(),
            written: self.written.clone(),
            stats: self.stats,
            tolls: self.tolls.clone(),
        }
    }

    /// Restores a saved state. The MMU must have been created with the same switches for the same memory. `vcpus` are
    /// all virtual processors of the saved state, each with the index for errors, and memory, including the pool, must
    /// have been restored. After an error, the MMU is unchanged.
    pub fn restore(&mut self, saved: SavedMmu, vcpus: &[(usize, &VcpuMmu)]) -> Result<(), RestoreError> {
        saved.check_counters()?;
        for (address, len) in &saved.written {
            if *len > 8 || self.ram.visible_page(*address).is_none() {
                return Err(RestoreError::Written { address: *address });
            }
        }
        let mut restored = Self {
            mode: self.mode,
            cr0_wp: self.cr0_wp,
            huge_pages: self.huge_pages,
            unsync: self.unsync,
            keep_nested_roots: self.keep_nested_roots,
            host: self.host,
            format: self.format,
            ram: self.ram.clone(),
            slots: Slots::restored(saved.slots, &self.ram)?,
            pool: self.pool.restored(saved.pool)?,
            hash: Default::default(),
            rmaps: Default::default(),
            tracks: Default::default(),
            tdp_roots: saved.tdp_roots,
            empty_root: saved.empty_root,
            generation: saved.generation,
            flushes: saved.flushes,
            last_write: saved.last_write,
            pdpts: saved.pdpts,
            cr3_caches: 0,
            written: saved.written,
            logged: 0,
            stats: saved.stats,
            tolls: saved.tolls,
        };
        restored.check_pages()?;
        restored.check_vcpus(vcpus)?;
        let vcpus: Vec<&VcpuMmu> = vcpus.iter().map(|(_, vcpu)| *vcpu).collect();
        restored.work_out(&vcpus);
        restored.check_roots(&vcpus)?;
        restored.check(&vcpus).map_err(RestoreError::Tables)?;
        *self = restored;
        Ok(())
    }

    /// Computes the derived state.
    fn work_out(&mut self, vcpus: &[&VcpuMmu]) {
        for vcpu in vcpus {
            self.cr3_caches += u32::from(vcpu.cache.entries() != 0);
            for set in vcpu.sets() {
                for id in set.pages.iter().flatten() {
                    self.pool.page_mut(*id).roots += 1;
                }
            }
        }
        // Tables of one frame are found in the order of their allocation.
        for id in self.pool.active() {
            let page = self.pool.page(id);
            self.hash.entry(page.gfn).or_default().push(id);
            if !page.role.direct {
                self.tracks.shadowed(page.gfn, page.role.level, true);
            }
        }
        for (gpa, pdpt) in &self.pdpts {
            self.tracks.add_users(gpa >> 12, pdpt.users);
        }
        let hashed = |(id, page): (PageId, &Page)| (page.keeping == Keeping::Hashed).then_some(id);
        let tables: Vec<PageId> = self.pool.iter().filter_map(hashed).collect();
        for page in tables {
            let level = self.pool.page(page).role.level;
            for index in 0..512 {
                let at = EntryRef { page, index };
                if let Some(child) = self.child(at) {
                    self.pool.page_mut(child).parents.push(at);
                } else if level <= MAX_LEVEL && self.format.is_leaf(self.pool.entry(at), level) {
                    let gfn = self.pool.page(page).frame(usize::from(index));
                    // The check rejects other frames, which must not use memory before.
                    if self.slots.find(gfn).is_some() {
                        self.rmaps.add(gfn, level, at);
                    }
                }
            }
        }
    }

    /// Checks the metadata of each page.
    fn check_pages(&self) -> Result<(), RestoreError> {
        for (page, said) in self.pool.iter() {
            if let Some(what) = self.wrong_with(said) {
                return Err(RestoreError::Page { page, what });
            }
        }
        Ok(())
    }

    fn wrong_with(&self, page: &Page) -> Option<&'static str> {
        let role = page.role;
        let in_mode = self.keeping(role);
        let levels = 1..=if self.mode.is_tdp() { Role::TDP_LEVELS } else { 5 };
        let most = role.ept.map_or(ALL, |format| Role::ept_root(format).access);
        let gfns = if page.keeping == Keeping::Hashed && !role.direct { 512 } else { 0 };
        let table = [
            (page.gfn >= GFN_END || page.gfns.iter().any(|gfn| *gfn >= GFN_END), "is for a frame that does not exist"),
            (page.gfns.len() != gfns, "has not one frame for each entry"),
            (page.writes >= SHORT_COUNTER_END, "was written to too often"),
            (page.invalid && page.keeping != Keeping::Hashed, "is invalid, but could never be found"),
            (page.unsync && (!self.unsync || role.direct || role.level != 1), "cannot be out of synchronization"),
        ];
        let wrong = match page.keeping {
            Keeping::Free => None,
            Keeping::Special => (role != Role::default() || page.unsync).then_some("has a role that it cannot have"),
            kept if kept != in_mode => Some("is kept in a way that this MMU mode does not have"),
            _ if !levels.contains(&role.level) => Some("has a level that no table has"),
            _ if role.access & !most != 0 || role.quadrant > 3 => Some("has a role that no table has"),
            _ if self.mode.is_tdp() && !role.direct && role.ept.is_none() => Some("shadows a guest table"),
            _ if role.ept.is_some() && !(self.mode.is_tdp() && role.guest_mode) => {
                Some("shadows EPT that there is not")
            }
            _ if role.ept.is_some_and(|format| self.is_beyond(role, format)) => {
                Some("shadows EPT of another processor")
            }
            _ => None,
        };
        wrong.or_else(|| table.into_iter().find_map(|(wrong, what)| wrong.then_some(what)))
    }

    /// Returns true if a page of `role` has a format that its EPT cannot have.
    fn is_beyond(&self, role: Role, format: EptFormat) -> bool {
        let paged = Role { level: role.level, direct: role.direct, access: role.access, ..Role::ept_root(format) };
        paged != role || format.flags && !self.host.ept_flags
    }

    /// Checks the state of the virtual processors, and that each page other than tables has its owner.
    fn check_vcpus(&self, vcpus: &[(usize, &VcpuMmu)]) -> Result<(), RestoreError> {
        let pages = self.pool.iter().len();
        let special = |id: PageId| (id as usize) < pages && self.pool.page(id).keeping == Keeping::Special;
        if !special(self.empty_root) {
            return Err(RestoreError::Page { page: self.empty_root, what: "is not the root that maps nothing" });
        }
        let mut owned = FxHashSet::from_iter([self.empty_root]);
        for (number, vcpu) in vcpus {
            let wrong = |what| RestoreError::Vcpu { vcpu: *number, what };
            if !special(vcpu.pdptes) || !owned.insert(vcpu.pdptes) {
                return Err(wrong("it has no page of PDPTEs of its own"));
            }
            vcpu.cache.wrong().map_or(Ok(()), |what| Err(wrong(what)))?;
            if (self.mode != MmuMode::Shadow && vcpu.cache.entries() != 0)
                || vcpu.kept.len().max(vcpu.ept_kept.len()) > KEPT
            {
                return Err(wrong("it keeps more roots than this MMU mode has"));
            }
            if vcpu.paging.guest_mode != (vcpu.level != Level::Guest) {
                return Err(wrong("it does not know whether its guest runs, or its guest's own"));
            }
            let current = vcpu.current().is_none_or(|set| set.role == self.root_role(vcpu));
            let cached = vcpu.cache.active.is_none() || vcpu.level == Level::Guest;
            let apart = vcpu.guest_sets().all(|set| set.role.ept.is_none())
                && vcpu.ept_sets().all(|set| set.role.ept.is_some());
            if !(current && cached && apart) {
                return Err(wrong("its roots do not fit its paging"));
            }
            for set in vcpu.sets() {
                self.wrong_with_set(set).map_or(Ok(()), |what| Err(wrong(what)))?;
            }
        }
        let unowned = |(id, page): &(PageId, &Page)| page.keeping == Keeping::Special && !owned.contains(id);
        match self.pool.iter().find(unowned) {
            Some((page, _)) => Err(RestoreError::Page { page, what: "belongs to no virtual CPU" }),
            None => Ok(()),
        }
    }

    fn wrong_with_set(&self, set: &RootSet) -> Option<&'static str> {
        let (tdp, role) = (self.mode.is_tdp(), set.role);
        let possible = match (tdp, role.ept) {
            (true, Some(format)) => role == Role::ept_root(format),
            (true, None) => role == Role::tdp_root(role.cr0_wp, role.guest_mode),
            (false, ept) => ept.is_none() && matches!(role.level, 2 | 4 | 5),
        };
        let is_pae = !tdp && role.level == 2;
        if !possible || set.is_pae != is_pae || usize::from(set.place) > Self::CR3_CACHE {
            return Some("its roots do not fit its paging");
        }
        if !is_pae && (set.pages[0].is_none() || set.pages[1..].iter().any(Option::is_some)) {
            return Some("its root is not one table");
        }
        let fits = |(number, id): (usize, PageId)| {
            (id as usize) < self.pool.iter().len() && {
                let page = self.pool.page(id);
                match page.keeping {
                    Keeping::Free => false,
                    Keeping::Special => id == self.empty_root && (!tdp || role.ept.is_some()),
                    Keeping::Hashed | Keeping::Tree => {
                        let quadrant = if role.four_byte { number as u8 } else { role.quadrant };
                        // Each of four direct tables is for 1 GiB.
                        page.role == Role { quadrant, ..role } && (!role.direct || page.gfn == (number as u64) << 18)
                    }
                }
            }
        };
        let mut roots = set.pages.iter().enumerate().filter_map(|(number, id)| Some((number, (*id)?)));
        (!roots.all(fits)).then_some("one of its roots is no table at the top")
    }

    /// Checks the roots that virtual processors may share, and the one that maps nothing.
    fn check_roots(&self, vcpus: &[&VcpuMmu]) -> Result<(), RestoreError> {
        let mut seen = FxHashSet::default();
        for page in &self.tdp_roots {
            let fits = (*page as usize) < self.pool.iter().len() && self.mode == MmuMode::Tdp && seen.insert(*page);
            if !fits || self.pool.page(*page).keeping != Keeping::Tree || self.pool.page(*page).roots == 0 {
                return Err(RestoreError::Page { page: *page, what: "is not a root in use" });
            }
        }
        let maps = |page: PageId| (0..512).any(|index| self.pool.entry(EntryRef { page, index }) != 0);
        // Pages mapped below a root that is not in the list would not be write-protected. A root that has left the list
        // maps nothing, and the generation of a set that still names the root is an older one, so that the set gets another root.
        let is_lost = |page: PageId| {
            self.mode == MmuMode::Tdp && self.pool.page(page).keeping == Keeping::Tree && !seen.contains(&page)
        };
        for set in vcpus.iter().flat_map(|vcpu| vcpu.sets()) {
            for page in set.pages.iter().flatten().copied().filter(|page| is_lost(*page)) {
                if set.generation == self.generation || maps(page) {
                    return Err(RestoreError::Page { page, what: "is a root that nothing finds" });
                }
            }
        }
        match maps(self.empty_root) {
            true => Err(RestoreError::Page { page: self.empty_root, what: "is not the root that maps nothing" }),
            false => Ok(()),
        }
    }
}
