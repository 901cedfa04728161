//! Roots for the processor's CR3-target values (2007): a guest that knows them loads CR3 without an exit.
//!
//! Up to four roots of a virtual processor stay pinned, and are replaced in turn. Their PDPTEs share the virtual
//! processor's page. An entry is removed when its root is dropped, when the guest writes to the page directory pointer
//! table, and when the guest announces that it frees the page directory.

use super::pool::Keeping;
use super::vcpu::{self, Adopted, RootSet, VcpuMmu};
use super::{Guest, Mmu, MmuError};
use x86::control::*;
use x86::page::ADDRESS;

impl VcpuMmu {
    /// Returns the guest's PDPTEs for a value of CR3 in the cache.
    pub fn cached_pdptes(&self, cr3: u64) -> Option<[u64; 4]> {
        self.cache.sets.iter().flatten().find(|set| set.cr3 == cr3).map(|set| set.pdpte)
    }

    /// Returns true if the entries have changed since the last call: the CR3-target values and the guest's view of them
    /// must be updated.
    pub fn take_cr3_cache_changed(&mut self) -> bool {
        std::mem::take(&mut self.cache.changed)
    }
}

impl Mmu {
    /// Maximum number of entries of a CR3 cache, which is the number of CR3-target values in processors.
    pub const CR3_CACHE: usize = vcpu::CR3_CACHE;

    /// Permits a virtual processor to pin up to `entries` roots, or (0) none. Only shadow tables that are kept support
    /// pinned roots; in the other modes this has no effect. Returns the number of entries.
    pub fn set_cr3_cache(&mut self, vcpu: &mut VcpuMmu, entries: usize) -> usize {
        if self.mode != crate::config::MmuMode::Shadow {
            return 0;
        }
        self.unload(vcpu);
        let was_on = !vcpu.cache.sets.is_empty();
        vcpu.cache.sets = vec![None; entries.min(Self::CR3_CACHE)];
        vcpu.cache.last = 0;
        vcpu.cache.changed = true;
        match (was_on, !vcpu.cache.sets.is_empty()) {
            (false, true) => {
                self.cr3_caches += 1;
                // A switch without an exit cannot synchronize tables.
                self.sync_everything();
            }
            (true, false) => self.cr3_caches -= 1,
            _ => {}
        }
        vcpu.cache.sets.len()
    }

    /// Returns the entries: the guest's CR3 and the value to be loaded instead.
    pub fn cr3_cache(&self, vcpu: &VcpuMmu) -> Vec<Option<(u64, u64)>> {
        let entry = |set: &RootSet| (set.cr3, self.root(vcpu, set).hpa);
        vcpu.cache.sets.iter().map(|set| set.as_ref().map(entry)).collect()
    }

    /// Handles the value `loaded` in the processor's CR3: if the guest has loaded a cached root without an exit, that
    /// root becomes the current one.
    pub fn adopt_cr3(&mut self, vcpu: &mut VcpuMmu, loaded: u64) -> Option<Adopted> {
        let found = |set: &Option<RootSet>| set.as_ref().is_some_and(|set| self.root(vcpu, set).hpa == loaded);
        let at = vcpu.cache.sets.iter().position(found)?;
        if vcpu.cache.active != Some(at) {
            vcpu.cache.active = Some(at);
            if let Some(own) = vcpu.own.take() {
                self.put_down(own);
            }
        }
        vcpu.cache.active().map(|set| Adopted { cr3: set.cr3, pdpte: set.pdpte })
    }

    /// Handles the release of the page directory at guest-physical address `gpa`: its roots are no longer pinned.
    pub fn page_directory_freed(&mut self, vcpu: &mut VcpuMmu, gpa: u64) {
        for at in 0..vcpu.cache.sets.len() {
            let of_page = |set: &RootSet| (set.cr3 & ADDRESS) >> 12 == gpa >> 12;
            if vcpu.cache.sets[at].as_ref().is_some_and(of_page) {
                self.drop_entry_of_cache(vcpu, at);
            }
        }
    }

    /// Handles a load of CR3 with an exit that leaves a cached root; the guest may return to another one.
    pub(super) fn leave_cached(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        if let Some(own) = vcpu.own.take() {
            self.put_down(own);
        }
        let pae = guest.cr4 & CR4_PAE != 0 && guest.efer & EFER_LMA == 0;
        let same = |set: &RootSet| set.cr3 == guest.cr3 && (!pae || set.pdpte == guest.pdpte);
        vcpu.cache.active = vcpu.cache.sets.iter().position(|set| set.as_ref().is_some_and(same));
        if vcpu.cache.active.is_some() {
            self.tolls.add(ledger::Operation::RootLoad, 1);
        }
    }

    /// Loads the guest's root into the next entry.
    pub(super) fn load_cached(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) -> Result<(), MmuError> {
        let at = (vcpu.cache.last + 1) % vcpu.cache.sets.len();
        vcpu.cache.last = at;
        // Another entry with the same CR3 is stale.
        for other in 0..vcpu.cache.sets.len() {
            if other == at || vcpu.cache.sets[other].as_ref().is_some_and(|set| set.cr3 == guest.cr3) {
                self.drop_entry_of_cache(vcpu, other);
            }
        }
        let mut set = self.make_set(vcpu, guest, at as u8 + 1)?;
        if set.is_pae && guest.cr4 & CR4_PAE != 0 && guest.cr0 & CR0_PG != 0 {
            set.pdpt_version = self.watch_pdpt(guest.cr3 & CR3_ADDRESS_PAE);
        }
        vcpu.cache.sets[at] = Some(set);
        vcpu.cache.active = Some(at);
        vcpu.cache.changed = true;
        Ok(())
    }

    /// Watches the guest's page directory pointer table.
    fn watch_pdpt(&mut self, gpa: u64) -> u64 {
        let pdpt = self.pdpts.entry(gpa).or_default();
        pdpt.users += 1;
        let version = pdpt.version;
        self.tracks.see_writes(gpa >> 12, true);
        self.tracks.keep_small(gpa >> 12, true);
        if self.write_protect_frame(gpa >> 12) {
            self.flush_all();
        }
        version
    }

    fn pdpt_of(set: &RootSet) -> Option<u64> {
        let used = set.is_pae && set.pdpte != [0; 4];
        used.then_some(set.cr3 & CR3_ADDRESS_PAE)
    }

    fn unwatch_pdpt(&mut self, set: &RootSet) {
        let Some(gpa) = Self::pdpt_of(set) else { return };
        let Some(pdpt) = self.pdpts.get_mut(&gpa) else { return };
        pdpt.users -= 1;
        if pdpt.users == 0 {
            self.pdpts.remove(&gpa);
        }
        self.tracks.see_writes(gpa >> 12, false);
        self.tracks.keep_small(gpa >> 12, false);
    }

    /// Handles a write to a watched frame.
    pub(super) fn pdpt_written(&mut self, gfn: u64, offset: u64, len: u64) {
        let start = gfn << 12 | offset;
        for (gpa, pdpt) in self.pdpts.range_mut(start.saturating_sub(31)..start + len) {
            if *gpa + 32 > start {
                pdpt.version += 1;
            }
        }
    }

    fn is_stale(&self, set: &RootSet) -> bool {
        let current = Self::pdpt_of(set).and_then(|gpa| self.pdpts.get(&gpa));
        current.is_some_and(|pdpt| pdpt.version != set.pdpt_version)
    }

    fn drop_entry_of_cache(&mut self, vcpu: &mut VcpuMmu, at: usize) {
        let Some(set) = vcpu.cache.sets[at].take() else { return };
        vcpu.cache.changed = true;
        self.unwatch_pdpt(&set);
        if vcpu.cache.active == Some(at) {
            vcpu.cache.active = None;
        }
        self.put_down(set);
    }

    /// Drops the entries whose roots are obsolete, before the guest can load them again.
    pub(super) fn drop_obsolete_cached(&mut self, vcpu: &mut VcpuMmu) {
        for at in 0..vcpu.cache.sets.len() {
            let Some(set) = &vcpu.cache.sets[at] else { continue };
            if self.is_obsolete(set) {
                self.drop_entry_of_cache(vcpu, at);
            } else if self.is_stale(set) && vcpu.cache.active == Some(at) {
                // The loaded PDPTEs stay active until the next load of CR3, which must exit.
                let Some(mut set) = vcpu.cache.sets[at].take() else { continue };
                self.unwatch_pdpt(&set);
                set.pdpt_version = 0;
                vcpu.cache.active = None;
                vcpu.cache.changed = true;
                vcpu.own = Some(set);
            } else if self.is_stale(set) {
                self.drop_entry_of_cache(vcpu, at);
            }
        }
    }

    /// Drops all entries.
    pub(super) fn drop_cached(&mut self, vcpu: &mut VcpuMmu) {
        for at in 0..vcpu.cache.sets.len() {
            self.drop_entry_of_cache(vcpu, at);
        }
    }

    /// Drops the inactive entries.
    pub(super) fn drop_inactive_cached(&mut self, vcpu: &mut VcpuMmu) {
        for at in (0..vcpu.cache.sets.len()).filter(|at| vcpu.cache.active != Some(*at)).collect::<Vec<_>>() {
            self.drop_entry_of_cache(vcpu, at);
        }
    }

    /// Returns true if a page of the pool can be a root.
    pub(super) fn may_be_root(&self, page: super::pool::PageId) -> bool {
        matches!(self.pool.page(page).keeping, Keeping::Hashed | Keeping::Tree | Keeping::Special)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmu::vcpu::Cr3Cache;

    #[test]
    fn what_no_cache_can_be_like_is_refused() {
        let cache = |sets: usize, last, active| Cr3Cache { sets: vec![None; sets], last, active, changed: false };
        assert_eq!(cache(Mmu::CR3_CACHE, Mmu::CR3_CACHE, None).wrong(), None);
        for wrong in [cache(Mmu::CR3_CACHE + 1, 0, None), cache(2, 3, None), cache(2, 0, Some(1)), cache(2, 0, Some(9))]
        {
            assert!(wrong.wrong().is_some(), "{wrong:?}");
        }
    }
}
