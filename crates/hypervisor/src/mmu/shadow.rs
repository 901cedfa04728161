//! Shadow paging: the processor walks tables that combine the guest's tables with the memory slots.

use super::guest_walk::{Walk, wanted};
use super::mapping::{Mapped, Target};
use super::pool::{EntryRef, Keeping, PageId};
use super::rmap::block;
use super::role::Paging;
use super::spte::{EXEC, PIECES, USER, WRITE, index};
use super::vcpu::VcpuMmu;
use super::{Guest, Mmu, Resolution};
use crate::config::MmuMode;
use ledger::Operation;
use x86::page::code;

/// Number of entries that are created around a needed one, including it; a power of two.
const PREFETCH: u16 = 8;
/// Recycling did not help: every page is a root in use.
pub(super) const LIMIT: Resolution = Resolution::Limit("mmu-pages");

/// Returns true if a fault that needs no change may come from an implicit supervisor access with SMAP, which is
/// confirmed if it is repeated. The page is also present for the processor: otherwise the missing tables would have
/// been created.
fn may_be_implicit(guest: &Guest, paging: &Paging, access: u8, error: u32) -> bool {
    let explicit_allowed = guest.rflags & x86::flags::AC != 0 && guest.cpl < 3;
    let read_or_write = error & (code::USER | code::FETCH) == 0;
    error & code::PRESENT != 0 && read_or_write && access & USER != 0 && paging.smap && explicit_allowed
}

impl Mmu {
    /// Handles a page fault of a guest with shadow tables.
    pub(super) fn shadow_fault(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, linear: u64, error: u32) -> Resolution {
        let paging = Paging::of(guest);
        // Any other fault in between means that the guest has made progress.
        let before = vcpu.spurious.take();
        if !paging.enabled {
            return self.direct_fault(vcpu, linear & 0xffff_ffff, error & code::WRITE != 0, error & code::PRESENT != 0);
        }
        if error & code::RESERVED != 0 && self.shows_mmio(vcpu, linear) {
            return Resolution::Emulate { mmio: true };
        }
        let want = wanted(error);
        let walk = match self.walk_guest(guest, linear, want) {
            Ok(walk) => walk,
            Err(fault) => return Resolution::Inject(fault),
        };
        if walk.unbacked {
            // Tables outside of memory can't be watched.
            return Resolution::Emulate { mmio: false };
        }
        let write = want & code::WRITE != 0;
        if error & code::PRESENT != 0 && write && self.tracks.writes_seen(walk.gfn) {
            self.clear_writes(vcpu, linear);
            return Resolution::Emulate { mmio: false };
        }
        let Some(has_slot) = self.has_slot(walk.gfn, write) else { return Resolution::Emulate { mmio: true } };
        let mut access = if walk.dirty || write { walk.access } else { walk.access & !WRITE };
        let user = want & code::USER != 0;
        if write && access & WRITE == 0 && !user {
            // CR0.WP is clear for the guest and set for the processor. The page becomes a supervisor page until user
            // code accesses it.
            if paging.smap && access & USER != 0 {
                // SMAP would no longer protect it as a supervisor page.
                return Resolution::Emulate { mmio: false };
            }
            access = (access | WRITE) & !USER;
            if paging.smep {
                access &= !EXEC;
            }
        }
        if !self.make_room(vcpu) {
            return LIMIT;
        }
        let target = Target { gfn: walk.gfn, access, write, used: true, may_unsync: true };
        let Some(at) = self.reach(vcpu, linear, &walk, target) else { return LIMIT };
        if !has_slot {
            self.map_mmio(at, walk.gfn);
            return Resolution::Emulate { mmio: true };
        }
        let mapped = self.map_page(at, target);
        if mapped == Mapped::Unchanged && may_be_implicit(guest, &paging, walk.access, error) {
            if before == Some((linear, error)) {
                let code = guest.rules().error_code(want, code::PRESENT);
                return Resolution::Inject(super::PageFault { linear, code });
            }
            vcpu.spurious = Some((linear, error));
        }
        if self.unsync {
            self.prefetch(at);
        }
        mapped.into()
    }

    /// Returns true if a frame that the guest accesses has memory, or `None` if it is read-only and the access is a
    /// write.
    pub(super) fn has_slot(&mut self, gfn: u64, write: bool) -> Option<bool> {
        self.tolls.add(Operation::SlotLookup, 1);
        match self.slots.find(gfn) {
            Some(slot) if write && slot.config.read_only => None,
            slot => Some(slot.is_some()),
        }
    }

    /// Returns the topmost shadow page for an address.
    pub(super) fn top(&self, vcpu: &VcpuMmu, address: u64) -> Option<PageId> {
        let set = vcpu.current()?;
        let number = if set.is_pae { (address >> 30) as usize & 3 } else { 0 };
        set.pages[number].filter(|id| self.pool.page(*id).keeping != Keeping::Special)
    }

    /// Returns the processor's entry for an address, at the lowest existing level.
    pub(super) fn lowest(&mut self, vcpu: &VcpuMmu, address: u64) -> Option<EntryRef> {
        let page = self.top(vcpu, address)?;
        Some(self.lowest_below(page, address))
    }

    /// Returns the entry for an address below a page, at the lowest existing level.
    pub(super) fn lowest_below(&mut self, mut page: PageId, address: u64) -> EntryRef {
        loop {
            let at = EntryRef { page, index: index(address, self.pool.page(page).role.level) as u16 };
            self.tolls.add(Operation::TableRead, 1);
            match self.child(at) {
                Some(child) => page = child,
                None => return at,
            }
        }
    }

    fn shows_mmio(&mut self, vcpu: &VcpuMmu, linear: u64) -> bool {
        self.lowest(vcpu, linear).is_some_and(|at| self.format.is_mmio(self.pool.entry(at)))
    }

    /// Records that the tables for an address are in use: they are not flooded with writes.
    pub(super) fn clear_writes(&mut self, vcpu: &VcpuMmu, linear: u64) {
        let Some(mut page) = self.top(vcpu, linear) else { return };
        loop {
            self.pool.page_mut(page).writes = 0;
            let at = EntryRef { page, index: index(linear, self.pool.page(page).role.level) as u16 };
            match self.child(at) {
                Some(child) => page = child,
                None => return,
            }
        }
    }

    /// Creates the tables down to the level at which an address can be mapped, and returns its entry. Returns `None` if
    /// the limit of pages is reached.
    pub(super) fn reach(&mut self, vcpu: &VcpuMmu, linear: u64, walk: &Walk, target: Target) -> Option<EntryRef> {
        let mut page = self.top(vcpu, linear)?;
        let mut level = self.pool.page(page).role.level;
        while level > walk.level {
            let at = EntryRef { page, index: index(linear, level) as u16 };
            let step = walk.steps[usize::from(level) - 2];
            page = self.step_down(at, false, step.gfn, step.access)?;
            level -= 1;
        }
        // This comes last, because new shadow pages forbid large pages around their tables.
        let goal = self.mapping_level(target.gfn, walk.level);
        if walk.level > goal {
            self.stats.split += 1;
        }
        while level > goal {
            let at = EntryRef { page, index: index(linear, level) as u16 };
            page = self.step_down(at, true, block(target.gfn, level), target.access)?;
            if self.mode == MmuMode::ShadowNocache {
                let entry = self.pool.entry(at);
                self.pool.set_entry(at, entry | PIECES);
            }
            level -= 1;
        }
        Some(EntryRef { page, index: index(linear, level) as u16 })
    }

    /// Returns the table to which `at` points, and creates it if necessary: for `gfn`, with the permissions of the
    /// entries above.
    fn step_down(&mut self, at: EntryRef, direct: bool, gfn: u64, access: u8) -> Option<PageId> {
        self.tolls.add(Operation::TableRead, 1);
        if let Some(child) = self.child(at) {
            let page = self.pool.page(child);
            let fits = page.role.direct == direct && page.gfn == gfn && page.role.access == access;
            // Trees map whatever was requested for an address; their pages are not shared.
            if fits || page.keeping == Keeping::Tree {
                return Some(child);
            }
        }
        let role = self.pool.page(at.page).role.child(usize::from(at.index), direct, access);
        if self.drop_entry(at) {
            self.flush_all();
        }
        let child = self.get_page(gfn, role)?;
        // An absent entry needs no flush: the tables below it must be as recent as the guest's tables.
        if self.pool.page(child).unsync_below != [0; 8] {
            self.sync_below(child);
        }
        self.link(at, child);
        Some(child)
    }

    /// Creates the entries around a needed one, if the guest has used its own entries and nothing else has to change.
    pub(super) fn prefetch(&mut self, at: EntryRef) {
        let page = self.pool.page(at.page);
        let (role, table) = (page.role, page.gfn);
        if role.level != 1 {
            return;
        }
        let first = at.index & !(PREFETCH - 1);
        for number in first..first + PREFETCH {
            let near = EntryRef { page: at.page, index: number };
            if number == at.index || self.pool.entry(near) != 0 {
                continue;
            }
            let (gfn, access) = if role.direct {
                (table + u64::from(number), role.access)
            } else {
                let address = (table << 12) + role.guest_offset(usize::from(number));
                self.tolls.add(Operation::GuestWalk, 1);
                let (value, _) = self.read_guest(address, !role.four_byte);
                match self.used_entry(role, value) {
                    Some(found) => found,
                    None => continue,
                }
            };
            if self.slots.find(gfn).is_some_and(|slot| access & WRITE == 0 || !slot.config.log_dirty) {
                self.map_ahead(near, gfn, access);
                self.stats.prefetched += 1;
            }
        }
    }

    /// Maps a page before it is accessed.
    pub(super) fn map_ahead(&mut self, at: EntryRef, gfn: u64, access: u8) {
        let target = Target { gfn, access, write: false, used: false, may_unsync: true };
        self.map_page(at, target);
    }

    /// Handles INVLPG of the guest, or another invalidation of one address.
    pub fn invlpg(&mut self, vcpu: &mut VcpuMmu, linear: u64) {
        match self.mode {
            MmuMode::ShadowNocache => self.nocache_invlpg(vcpu, linear),
            MmuMode::Shadow => self.shadow_invlpg(vcpu, linear),
            MmuMode::LegacyTdp | MmuMode::Tdp => {}
        }
    }

    fn shadow_invlpg(&mut self, vcpu: &VcpuMmu, linear: u64) {
        for page in self.tops(vcpu, linear) {
            self.sync_address(page, linear);
        }
    }

    /// Synchronizes the entries for an address below the top-level page.
    fn sync_address(&mut self, mut page: PageId, address: u64) {
        loop {
            let at = EntryRef { page, index: index(address, self.pool.page(page).role.level) as u16 };
            self.tolls.add(Operation::TableRead, 1);
            if self.pool.page(page).unsync {
                self.tolls.add(Operation::SyncEntry, 1);
                self.sync_entry(at);
                // A flushed address is usually accessed again, with a new translation.
                if self.pool.entry(at) == 0 {
                    self.reload_entry(at);
                }
            }
            match self.child(at) {
                Some(child) => page = child,
                None => return,
            }
        }
    }

    /// Returns the topmost pages for an address in all kept roots of a virtual processor.
    fn tops(&self, vcpu: &VcpuMmu, linear: u64) -> Vec<PageId> {
        let sets = vcpu.current().into_iter().chain(vcpu.kept.iter());
        sets.filter_map(|set| set.pages[if set.is_pae { (linear >> 30) as usize & 3 } else { 0 }])
            .filter(|id| self.pool.page(*id).keeping == Keeping::Hashed)
            .collect()
    }

    /// Makes room for the pages that one fault may need, if necessary by releasing kept roots.
    pub(super) fn make_room(&mut self, vcpu: &mut VcpuMmu) -> bool {
        match self.mode {
            MmuMode::ShadowNocache => self.make_tree_room(),
            MmuMode::Tdp if self.hash.is_empty() => self.make_tree_room(),
            _ => {
                if self.make_pages_available() {
                    return true;
                }
                self.drop_kept(vcpu);
                self.make_pages_available() || self.mode == MmuMode::Tdp && self.make_tree_room()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x86::control::CR4_SMAP;

    /// Implicit accesses are those of a supervisor to a page that SMAP protects, while RFLAGS.AC permits explicit ones.
    #[test]
    fn only_smap_with_ac_hides_implicit_accesses() {
        let fault = |ac: u64, cpl: u8, smap: bool, access: u8, error: u32| {
            let guest = Guest { rflags: 2 | ac, cpl, cr4: CR4_SMAP, ..Guest::default() };
            may_be_implicit(&guest, &Paging { smap, ..Paging::default() }, access, error)
        };
        let ac = x86::flags::AC;
        for write in [0, code::WRITE] {
            assert!(fault(ac, 0, true, USER, code::PRESENT | write) && fault(ac, 2, true, USER | WRITE, code::PRESENT));
            assert!(!fault(0, 0, true, USER, code::PRESENT | write), "AC is clear");
            assert!(!fault(ac, 3, true, USER, code::PRESENT | write), "AC means nothing at CPL 3");
            assert!(!fault(ac, 0, false, USER, code::PRESENT | write), "no SMAP");
            assert!(!fault(ac, 0, true, WRITE | EXEC, code::PRESENT | write), "a supervisor page");
            assert!(!fault(ac, 0, true, USER, write), "not present");
            assert!(!fault(ac, 0, true, USER, code::PRESENT | code::USER | write), "of user code");
        }
        assert!(!fault(ac, 0, true, USER, code::PRESENT | code::FETCH));
    }
}
