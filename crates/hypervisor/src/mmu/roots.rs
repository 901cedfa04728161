//! Roots, to which the processor's CR3 or EPT pointer points: loading and unloading.

use super::guest_ept::Level;
use super::pool::{EntryRef, Keeping, PageId};
use super::role::{CR0_ROLE, CR4_ROLE, Paging, Role};
use super::spte::Format;
use super::vcpu::{Cr3Cache, KEPT, RootSet, VcpuMmu};
use super::{Flushes, Guest, Mmu, MmuError, Root};
use crate::config::{Cr0Wp, Cr0WpEffect, MmuMode};
use ledger::Operation;
use x86::control::*;
use x86::page::ADDRESS;

impl Mmu {
    /// Creates the MMU of another virtual processor.
    pub fn add_vcpu(&mut self) -> Result<VcpuMmu, MmuError> {
        let pdptes = self.pool.allocate(Keeping::Special, 0, Role::default()).ok_or(MmuError::Limit("mmu-pages"))?;
        Ok(VcpuMmu {
            paging: Paging::default(),
            level: Level::Guest,
            own: None,
            kept: Vec::new(),
            ept_own: None,
            ept_kept: Vec::new(),
            cache: Cr3Cache::default(),
            pdptes,
            sync: false,
            due: Flushes::RESET,
            flushes: self.flushes,
            spurious: None,
        })
    }

    /// Updates the guest's paging mode; the caller unloads roots that do not match.
    pub(super) fn update_role(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        self.tolls.add(Operation::RoleUpdate, 1);
        vcpu.paging = Paging::of(guest);
    }

    /// Unloads the roots and updates the role after a change of the guest's registers.
    pub fn reset_context(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        self.unload(vcpu);
        self.update_role(vcpu, guest);
    }

    /// Handles a change of the guest's CR0 from `old` to the value in `guest`.
    pub fn cr0_changed(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, old: u64) {
        let changed = old ^ guest.cr0;
        if changed == CR0_WP {
            let (tdp, paging) = (self.mode.is_tdp(), guest.cr0 & CR0_PG != 0);
            let direct = !matches!(vcpu.level, Level::Ept { .. }) && (tdp || !paging);
            match self.cr0_wp.effect(tdp, paging, direct) {
                Cr0WpEffect::Unload => {}
                Cr0WpEffect::Metadata => return self.update_role(vcpu, guest),
                Cr0WpEffect::Nothing => return,
            }
        }
        if changed & old & CR0_PG != 0 {
            self.flush_guest(vcpu);
        }
        if changed & CR0_ROLE != 0 {
            self.reset_context(vcpu, guest);
        }
    }

    /// Handles a change of the guest's CR4 from `old` to the value in `guest`.
    pub fn cr4_changed(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, old: u64) {
        let changed = old ^ guest.cr4;
        if changed & CR4_ROLE != 0 {
            self.reset_context(vcpu, guest);
        }
        if changed & guest.cr4 & CR4_PCIDE != 0 && !self.mode.is_tdp() {
            self.unload(vcpu);
        }
        if changed & CR4_PGE != 0 || changed & old & CR4_PCIDE != 0 {
            self.flush_guest(vcpu);
        } else if changed & CR4_PAE != 0 || changed & guest.cr4 & CR4_SMEP != 0 {
            vcpu.due.current = true;
        }
    }

    /// Handles a change of the guest's IA32_EFER from `old` to the value in `guest`.
    pub fn efer_changed(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, old: u64) {
        if (old ^ guest.efer) & (EFER_LME | EFER_LMA | EFER_NXE) != 0 {
            self.reset_context(vcpu, guest);
        }
    }

    /// Handles a load of CR3, and with PAE paging of the PDPTEs; `flush` is false if bit 63 requested no flush.
    pub fn new_cr3(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, flush: bool) {
        match self.mode {
            // The processor loads CR3 itself; only the guest's TLB is affected.
            MmuMode::LegacyTdp | MmuMode::Tdp => {}
            MmuMode::ShadowNocache => self.unload(vcpu),
            MmuMode::Shadow if vcpu.cache.entries() != 0 => self.leave_cached(vcpu, guest),
            MmuMode::Shadow => self.switch_root(vcpu, guest, flush),
        }
        if flush {
            vcpu.sync = true;
            self.flush_pcid(vcpu);
        }
    }

    /// Flushes the guest's translations for its current PCID. With EPT the tables are not the hypervisor's, and KVM
    /// does not know the processor's translations by PCID: it flushes them all (kvm_invalidate_pcid).
    fn flush_pcid(&self, vcpu: &mut VcpuMmu) {
        let due = if self.mode.is_tdp() { &mut vcpu.due.guest } else { &mut vcpu.due.current };
        *due = true;
    }

    /// Activates the roots for the guest's CR3 and role, if they are kept.
    pub(super) fn switch_root(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, flush: bool) {
        let (role, cr3) = (self.root_role(vcpu), if self.mode.is_tdp() { 0 } else { guest.cr3 });
        let fits = |set: &RootSet| set.cr3 == cr3 && set.role == role;
        match vcpu.own.take() {
            // Only trees with a root of their own are worth keeping, and only since roots can be unsynchronized.
            Some(set) if !set.is_pae && (self.unsync || self.mode.is_tdp()) => vcpu.kept.insert(0, set),
            Some(set) => self.put_down(set),
            None => {}
        }
        if let Some(at) = vcpu.kept.iter().position(fits) {
            vcpu.own = Some(vcpu.kept.remove(at));
        }
        if flush && guest.cr4 & CR4_PCIDE != 0 {
            self.drop_kept_of(vcpu, (guest.cr3 & CR3_PCID) as u16);
        }
        while vcpu.kept.len() > KEPT {
            if let Some(set) = vcpu.kept.pop() {
                self.put_down(set);
            }
        }
    }

    /// Handles a flush of the guest's whole TLB, including global entries.
    pub fn flush_guest(&mut self, vcpu: &mut VcpuMmu) {
        match self.mode {
            // The load of the next root flushes.
            MmuMode::ShadowNocache => self.unload(vcpu),
            MmuMode::Shadow => {
                vcpu.due.guest = true;
                vcpu.sync = true;
                for set in std::mem::take(&mut vcpu.kept) {
                    self.put_down(set);
                }
            }
            MmuMode::LegacyTdp | MmuMode::Tdp => vcpu.due.guest = true,
        }
    }

    /// Handles a flush of one PCID, which may differ from the current one, or of all without global entries.
    pub fn invpcid(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, pcid: Option<u16>) {
        let Some(pcid) = pcid else { return self.flush_guest(vcpu) };
        if (guest.cr3 & CR3_PCID) as u16 == pcid || self.mode.is_tdp() {
            self.flush_pcid(vcpu);
            vcpu.sync = true;
            if self.mode == MmuMode::ShadowNocache {
                self.unload(vcpu);
            }
        }
        self.drop_kept_of(vcpu, pcid);
    }

    /// Releases kept roots of a PCID, which would have to be synchronized.
    fn drop_kept_of(&mut self, vcpu: &mut VcpuMmu, pcid: u16) {
        for set in std::mem::take(&mut vcpu.kept) {
            if (set.cr3 & CR3_PCID) as u16 == pcid {
                self.put_down(set);
            } else {
                vcpu.kept.push(set);
            }
        }
    }

    /// Releases all roots of a virtual processor.
    pub fn unload(&mut self, vcpu: &mut VcpuMmu) {
        if let Some(set) = vcpu.own_mut().take() {
            self.put_down(set);
        }
        self.drop_kept(vcpu);
        self.drop_cached(vcpu);
    }

    /// Releases the inactive roots.
    pub(super) fn drop_kept(&mut self, vcpu: &mut VcpuMmu) {
        let kept = std::mem::take(&mut vcpu.kept);
        let shadow_ept = std::mem::take(&mut vcpu.ept_kept);
        for set in kept.into_iter().chain(vcpu.resting_mut().take()).chain(shadow_ept) {
            self.put_down(set);
        }
        self.drop_inactive_cached(vcpu);
    }

    /// Releases the roots of a set.
    pub(super) fn put_down(&mut self, set: RootSet) {
        self.tolls.add(Operation::RootFree, 1);
        for id in set.pages.into_iter().flatten() {
            let page = self.pool.page_mut(id);
            if page.keeping == Keeping::Special {
                continue;
            }
            page.roots = page.roots.saturating_sub(1);
            if page.roots != 0 {
                continue;
            }
            match page.keeping {
                Keeping::Tree => self.free_root_tree(id),
                Keeping::Hashed if page.invalid => {
                    self.tolls.add(Operation::PageFree, 1);
                    self.pool.free(id);
                }
                _ => {}
            }
        }
    }

    /// Returns true if a set is obsolete.
    pub(super) fn is_obsolete(&self, set: &RootSet) -> bool {
        set.generation != self.generation || set.pages.iter().flatten().any(|id| self.pool.page(*id).invalid)
    }

    /// Returns true if the guest's tables have another root than the current one: changes of CR0 and CR4 also load
    /// PDPTEs.
    fn is_elsewhere(&self, vcpu: &VcpuMmu, guest: &Guest) -> bool {
        let paging = vcpu.paging;
        let Some(set) = vcpu.current().filter(|_| paging.enabled && !self.mode.is_tdp()) else { return false };
        set.cr3 != guest.cr3 || (paging.pae && !paging.long && set.pdpte != guest.pdpte)
    }

    /// Returns the value for CR3, or the EPT pointer, for an entry of the guest now.
    pub fn prepare(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) -> Result<Root, MmuError> {
        if vcpu.level != guest.level() {
            self.nested_transition(vcpu, guest);
        }
        if vcpu.paging != Paging::of(guest) && !self.mode.is_tdp() {
            self.reset_context(vcpu, guest);
        }
        if self.is_elsewhere(vcpu, guest) {
            self.new_cr3(vcpu, guest, true);
        }
        self.drop_obsolete_cached(vcpu);
        for set in std::mem::take(&mut vcpu.kept) {
            if self.is_obsolete(&set) { self.put_down(set) } else { vcpu.kept.push(set) }
        }
        for set in std::mem::take(&mut vcpu.ept_kept) {
            if self.is_obsolete(&set) { self.put_down(set) } else { vcpu.ept_kept.push(set) }
        }
        for own in [&mut vcpu.own, &mut vcpu.ept_own] {
            if let Some(set) = own.take_if(|set| self.is_obsolete(set)) {
                self.put_down(set);
            }
        }
        if vcpu.current().is_none() {
            self.load(vcpu, guest)?;
        }
        if std::mem::take(&mut vcpu.sync) && self.unsync {
            let roots = vcpu.current().map_or([None; 4], |set| set.pages);
            for root in roots.into_iter().flatten() {
                self.sync_below(root);
            }
        }
        match vcpu.current() {
            Some(set) => Ok(self.root(vcpu, set)),
            None => Err(MmuError::Limit("mmu-pages")),
        }
    }

    /// Returns the root of a set.
    pub(super) fn root(&self, vcpu: &VcpuMmu, set: &RootSet) -> Root {
        if set.is_pae {
            return Root { hpa: self.pool.hpa(vcpu.pdptes) + u64::from(set.place) * 32, levels: 3, flags: false };
        }
        let flags = match set.role.ept {
            Some(format) => format.flags,
            None => self.mode.is_tdp() && self.host.ept_flags,
        };
        Root { hpa: self.pool.hpa(set.pages[0].unwrap_or(self.empty_root)), levels: set.role.level, flags }
    }

    /// Takes the flushes of the guest's translations that must precede the entry.
    pub fn take_flushes(&mut self, vcpu: &mut VcpuMmu) -> Flushes {
        let behind = std::mem::replace(&mut vcpu.flushes, self.flushes) != self.flushes;
        let due = std::mem::take(&mut vcpu.due);
        Flushes { all: due.all || behind, ..due }
    }

    fn load(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) -> Result<(), MmuError> {
        if !self.make_room(vcpu) {
            return Err(MmuError::Limit("mmu-pages"));
        }
        self.tolls.add(Operation::RootLoad, 1);
        self.stats.roots_loaded += 1;
        vcpu.sync = true;
        vcpu.due.loaded = true;
        if vcpu.cache.entries() != 0 && self.mode == MmuMode::Shadow && vcpu.level == Level::Guest {
            return self.load_cached(vcpu, guest);
        }
        let set = self.make_set(vcpu, guest, 0)?;
        *vcpu.own_mut() = Some(set);
        Ok(())
    }

    /// Returns the role of the current owner's roots.
    pub(super) fn root_role(&self, vcpu: &VcpuMmu) -> Role {
        match vcpu.level {
            Level::Ept { format, .. } => Role::ept_root(format),
            Level::Guest | Level::Nested => self.guest_root_role(&vcpu.paging),
        }
    }

    /// Returns the role of roots that do not shadow EPT.
    pub(super) fn guest_root_role(&self, paging: &Paging) -> Role {
        match self.mode.is_tdp() {
            true => Role::tdp_root(self.cr0_wp != Cr0Wp::Role || paging.wp, paging.guest_mode),
            false => paging.shadow_role(),
        }
    }

    /// Finds or creates the top-level tables of the guest's address space.
    pub(super) fn make_set(&mut self, vcpu: &VcpuMmu, guest: &Guest, place: u8) -> Result<RootSet, MmuError> {
        let paging = vcpu.paging;
        let role = self.root_role(vcpu);
        let mut set = RootSet {
            role,
            cr3: 0,
            pdpte: [0; 4],
            is_pae: false,
            pages: [None; 4],
            place,
            generation: self.generation,
            pdpt_version: 0,
        };
        if let Level::Ept { eptp, .. } = vcpu.level {
            let root = self.shadow_top((eptp & ADDRESS) >> 12, role);
            set.cr3 = eptp;
            set.pages[0] = self.count_root(root)?;
            return Ok(set);
        }
        if self.mode.is_tdp() {
            let root = match self.mode {
                MmuMode::Tdp => self.tdp_root(role),
                _ => self.get_page(0, role),
            };
            set.pages[0] = self.count_root(root)?;
            return Ok(set);
        }
        set.cr3 = guest.cr3;
        set.is_pae = !(paging.enabled && paging.long);
        if !set.is_pae {
            let root = self.shadow_top((guest.cr3 & ADDRESS) >> 12, role);
            set.pages[0] = self.count_root(root)?;
            return Ok(set);
        }
        set.pdpte = guest.pdpte;
        for number in 0..4u8 {
            let at = usize::from(number);
            let root = match (paging.enabled, paging.pae) {
                (false, _) => self.get_page(u64::from(number) << 18, role),
                (true, true) if guest.pdpte[at] & 1 == 0 => continue,
                (true, true) => self.shadow_top((guest.pdpte[at] & ADDRESS) >> 12, role),
                (true, false) => self.shadow_top((guest.cr3 & CR3_ADDRESS_32) >> 12, Role { quadrant: number, ..role }),
            };
            match self.count_root(root) {
                Ok(page) => set.pages[at] = page,
                Err(error) => {
                    self.put_down(set);
                    return Err(error);
                }
            }
        }
        for number in 0..4 {
            let entry = set.pages[number].map_or(0, |id| Format::pdpte(self.pool.hpa(id)));
            let at = EntryRef { page: vcpu.pdptes, index: u16::from(place) * 4 + number as u16 };
            self.tolls.add(Operation::TableWrite, 1);
            self.pool.set_entry(at, entry);
        }
        Ok(set)
    }

    /// Returns the page that shadows a top-level table. A table outside of memory maps nothing.
    fn shadow_top(&mut self, gfn: u64, role: Role) -> Option<PageId> {
        self.tolls.add(Operation::SlotLookup, 1);
        if self.slots.find(gfn).is_none() {
            return Some(self.empty_root);
        }
        self.get_page(gfn, role)
    }

    fn count_root(&mut self, root: Option<PageId>) -> Result<Option<PageId>, MmuError> {
        let id = root.ok_or(MmuError::Limit("mmu-pages"))?;
        self.pool.page_mut(id).roots += 1;
        Ok(Some(id))
    }
}
