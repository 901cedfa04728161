//! Direct maps of guest-physical addresses: with EPT, or with shadow tables for guests without paging.

use super::mapping::{Mapped, Target};
use super::pool::EntryRef;
use super::rmap::block;
use super::shadow::LIMIT;
use super::spte::{ALL, index};
use super::vcpu::VcpuMmu;
use super::{Mmu, Resolution};
use crate::config::MmuMode;
use ledger::Operation;

impl Mmu {
    /// Handles an access to a guest-physical address that the tables denied.
    pub(super) fn direct_fault(&mut self, vcpu: &mut VcpuMmu, gpa: u64, write: bool, present: bool) -> Resolution {
        let gfn = gpa >> 12;
        if present && self.lift_log_protection(vcpu, gpa, write) {
            return Resolution::Fixed;
        }
        let Some(has_slot) = self.has_slot(gfn, write) else { return Resolution::Emulate { mmio: true } };
        if !has_slot && self.format.mmio(gfn).is_none() {
            return Resolution::Emulate { mmio: true };
        }
        if !self.make_room(vcpu) {
            return LIMIT;
        }
        // With paging disabled, the top-level entries of shadow tables map 2 MiB.
        let goal = if has_slot { self.mapping_level(gfn, 3) } else { 1 };
        let Some(at) = self.reach_direct(vcpu, gpa, goal) else { return LIMIT };
        if !has_slot {
            self.map_mmio(at, gfn);
            return Resolution::Emulate { mmio: true };
        }
        let target = Target { gfn, access: ALL, write, used: true, may_unsync: true };
        let mapped = self.map_page(at, target);
        if self.mode == MmuMode::LegacyTdp && mapped == Mapped::Changed {
            self.prefetch(at);
        }
        mapped.into()
    }

    /// Restores a write permission that the dirty log removed, without the rest of the fault handler. Returns true if
    /// that was sufficient.
    fn lift_log_protection(&mut self, vcpu: &VcpuMmu, gpa: u64, write: bool) -> bool {
        let Some(at) = self.lowest(vcpu, gpa) else { return false };
        let entry = self.pool.entry(at);
        let level = self.pool.page(at.page).role.level;
        if !self.format.is_leaf(entry, level) {
            return false;
        }
        if !write || self.format.is_writable(entry) {
            return true;
        }
        // Large pages are split first, so that small pages are logged.
        if !self.format.could_be_writable(entry) || level > 1 {
            return false;
        }
        self.tolls.add(Operation::TableWrite, 1);
        self.pool.set_entry(at, self.format.write_allowed(entry));
        self.mark_written(gpa >> 12);
        true
    }

    /// Creates the tables down to the level at which an address is mapped, and returns its entry.
    fn reach_direct(&mut self, vcpu: &VcpuMmu, gpa: u64, goal: u8) -> Option<EntryRef> {
        let mut page = self.top(vcpu, gpa)?;
        loop {
            let role = self.pool.page(page).role;
            let at = EntryRef { page, index: index(gpa, role.level) as u16 };
            if role.level <= goal {
                return Some(at);
            }
            self.tolls.add(Operation::TableRead, 1);
            page = match self.child(at) {
                Some(child) => child,
                None => {
                    if self.drop_entry(at) {
                        self.stats.split += 1;
                        self.flush_all();
                    }
                    let child = self.get_page(block(gpa >> 12, role.level), role.child(0, true, ALL))?;
                    self.link(at, child);
                    child
                }
            };
        }
    }
}
