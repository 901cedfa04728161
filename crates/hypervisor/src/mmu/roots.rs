//! Roots: what the processor's CR3 or EPT pointer points to, when it is loaded and when it is let go.

use super::nested::Level;
use super::pool::{EntryRef, Keeping, PageId};
use super::role::{CR0_ROLE, CR4_ROLE, Paging, Role};
use super::spte::Format;
use super::vcpu::{Cr3Cache, KEPT, RootSet, VcpuMmu};
use super::{Flushes, Guest, Mmu, MmuError, Root};
use crate::config::{Cr0Wp, MmuMode};
use ledger::Operation;
use x86::control::*;
use x86::page::ADDRESS;

impl Mmu {
    /// The MMU of a further virtual processor.
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

    /// Works out how the guest pages; roots that do not fit are for the caller to unload.
    pub(super) fn update_role(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        self.tolls.add(Operation::RoleUpdate, 1);
        vcpu.paging = Paging::of(guest);
    }

    /// Unloads the roots and works out the role anew: the guest's registers are not what they were.
    pub fn reset_context(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        self.unload(vcpu);
        self.update_role(vcpu, guest);
    }

    /// The guest has changed CR0 from `old` to what `guest` says.
    pub fn cr0_changed(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, old: u64) {
        let changed = old ^ guest.cr0;
        if changed == CR0_WP && !self.cr0_wp.unloads() {
            if guest.cr0 & CR0_PG == 0 {
                // There are no permissions; what is known is worked out when paging is turned on.
                return;
            }
            if self.mode.is_tdp() {
                self.update_role(vcpu, guest);
                return;
            }
        }
        if changed & old & CR0_PG != 0 {
            self.flush_guest(vcpu);
        }
        if changed & CR0_ROLE != 0 {
            self.reset_context(vcpu, guest);
        }
    }

    /// The guest has changed CR4 from `old` to what `guest` says.
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

    /// The guest has changed IA32_EFER from `old` to what `guest` says.
    pub fn efer_changed(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, old: u64) {
        if (old ^ guest.efer) & (EFER_LME | EFER_LMA | EFER_NXE) != 0 {
            self.reset_context(vcpu, guest);
        }
    }

    /// The guest has loaded CR3, and with PAE paging the PDPTEs; `flush` unless bit 63 said not to.
    pub fn new_cr3(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, flush: bool) {
        match self.mode {
            // The guest does this by itself; only its TLB is concerned.
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

    /// Flushes what the guest has in the TLB for the PCID that it uses. Under EPT its tables are not the hypervisor's, and KVM
    /// does not know what the processor keeps for which PCID: it flushes them all (kvm_invalidate_pcid).
    fn flush_pcid(&self, vcpu: &mut VcpuMmu) {
        let due = if self.mode.is_tdp() { &mut vcpu.due.guest } else { &mut vcpu.due.current };
        *due = true;
    }

    /// Puts the roots for the guest's CR3 and role in place, if they are kept.
    pub(super) fn switch_root(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, flush: bool) {
        let (role, cr3) = (self.root_role(vcpu), if self.mode.is_tdp() { 0 } else { guest.cr3 });
        let fits = |set: &RootSet| set.cr3 == cr3 && set.role == role;
        match vcpu.own.take() {
            // Only trees with a root of their own are worth keeping, and only since roots can be out of synchronization.
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

    /// The guest flushes its whole TLB, global entries included.
    pub fn flush_guest(&mut self, vcpu: &mut VcpuMmu) {
        match self.mode {
            // Loading the next root flushes.
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

    /// The guest flushes translations of one PCID that need not be the current one, or of all without the global ones.
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

    /// Lets go of kept roots of a PCID: they would have to be synchronized.
    fn drop_kept_of(&mut self, vcpu: &mut VcpuMmu, pcid: u16) {
        for set in std::mem::take(&mut vcpu.kept) {
            if (set.cr3 & CR3_PCID) as u16 == pcid {
                self.put_down(set);
            } else {
                vcpu.kept.push(set);
            }
        }
    }

    /// Lets go of all roots of a virtual processor.
    pub fn unload(&mut self, vcpu: &mut VcpuMmu) {
        if let Some(set) = vcpu.own_mut().take() {
            self.put_down(set);
        }
        self.drop_kept(vcpu);
        self.drop_cached(vcpu);
    }

    /// Lets go of roots that are not in use.
    pub(super) fn drop_kept(&mut self, vcpu: &mut VcpuMmu) {
        let kept = std::mem::take(&mut vcpu.kept);
        let shadow_ept = std::mem::take(&mut vcpu.ept_kept);
        for set in kept.into_iter().chain(vcpu.resting_mut().take()).chain(shadow_ept) {
            self.put_down(set);
        }
        self.drop_inactive_cached(vcpu);
    }

    /// Lets go of the roots of a set.
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

    /// Whether a set must not be used any more.
    pub(super) fn is_obsolete(&self, set: &RootSet) -> bool {
        set.generation != self.generation || set.pages.iter().flatten().any(|id| self.pool.page(*id).invalid)
    }

    /// Whether the guest's tables have another root than the one in use: PDPTEs are also loaded by changes of CR0 and CR4.
    fn is_elsewhere(&self, vcpu: &VcpuMmu, guest: &Guest) -> bool {
        let paging = vcpu.paging;
        let Some(set) = vcpu.current().filter(|_| paging.enabled && !self.mode.is_tdp()) else { return false };
        set.cr3 != guest.cr3 || (paging.pae && !paging.long && set.pdpte != guest.pdpte)
    }

    /// What the processor must have in CR3, or as EPT pointer, when it enters the guest now.
    pub fn prepare(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) -> Result<Root, MmuError> {
        if vcpu.level != Level::of(guest) {
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

    /// The root of a set.
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

    /// What the processor must flush of the guest's translations before it enters it.
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

    /// The role of the roots of who runs.
    pub(super) fn root_role(&self, vcpu: &VcpuMmu) -> Role {
        match vcpu.level {
            Level::Ept { format, .. } => Role::ept_root(format),
            Level::Guest | Level::Nested => self.guest_root_role(&vcpu.paging),
        }
    }

    /// The role of roots that shadow no EPT.
    pub(super) fn guest_root_role(&self, paging: &Paging) -> Role {
        match self.mode.is_tdp() {
            true => Role::tdp_root(self.cr0_wp != Cr0Wp::Role || paging.wp, paging.guest_mode),
            false => paging.shadow_role(),
        }
    }

    /// Finds or makes the tables at the top of the guest's address space.
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

    /// The page that shadows a top-level table. A table without memory maps nothing.
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
