//! Nested guests (L2): their roots, and the handling of roots at transitions between them and the guest (L1).
//!
//! | EPT of the guest | tables of L2 | roots |
//! |---|---|---|
//! | used, with two-dimensional paging | shadow the guest's EPT (`shadow_ept.rs`) | separate: KVM's guest_mmu |
//! | not used, with two-dimensional paging | like the guest's own | with the guest's, distinguished by the role |
//! | not offered, with shadow paging | shadow the tables of L2's CR3 | with the guest's, distinguished by the role |

use super::guest_ept::{Level, NestedInvept, TransitionTags, same_tables};
use super::vcpu::{KEPT, RootSet, VcpuMmu};
use super::{Guest, Mmu};
use crate::config::MmuMode;
use ledger::Operation;

impl Mmu {
    /// Handles a transition from the guest to its nested guest, or back; `guest` has the registers afterwards (KVM's
    /// nested_vmx_load_cr3, and before it nested_ept_init_mmu_context).
    pub fn nested_transition(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        vcpu.level = guest.level();
        self.update_role(vcpu, guest);
        if !self.keep_nested_roots || self.mode == MmuMode::ShadowNocache {
            return self.unload(vcpu);
        }
        if vcpu.level != Level::Guest {
            self.drop_cached(vcpu);
        }
        match vcpu.level {
            Level::Ept { eptp, .. } => {
                // The role of the shadow EPT, in addition to that of the walk of the nested guest's tables.
                self.tolls.add(Operation::RoleUpdate, 1);
                self.switch_ept(vcpu, eptp);
            }
            Level::Guest | Level::Nested => self.switch_root(vcpu, guest, false),
        }
    }

    /// Activates the shadow EPT for an EPT pointer, if it is kept.
    fn switch_ept(&mut self, vcpu: &mut VcpuMmu, eptp: u64) {
        let role = self.root_role(vcpu);
        let mut sets = std::mem::take(&mut vcpu.ept_kept);
        if let Some(own) = vcpu.ept_own.take() {
            sets.insert(0, own);
        }
        if let Some(at) = sets.iter().position(|set| set.cr3 == eptp && set.role == role) {
            vcpu.ept_own = Some(sets.remove(at));
        }
        while sets.len() > KEPT {
            sets.pop().into_iter().for_each(|set| self.put_down(set));
        }
        vcpu.ept_kept = sets;
    }

    /// Requests the flushes that the guest expects of a transition, in the context after it (KVM's
    /// nested_vmx_transition_tlb_flush). Returns the VPID that the nested guest used last.
    pub fn nested_transition_flush(&mut self, vcpu: &mut VcpuMmu, tags: TransitionTags, last_vpid: u16) -> u16 {
        match tags.vpid12 {
            // The guest expects a flush of all linear and combined translations.
            None => {
                self.flush_and_sync(vcpu);
                last_vpid
            }
            // Used VPIDs are not tracked: a new one must not have any translations.
            Some(vpid) if tags.entry && vpid != last_vpid => {
                self.flush_and_sync(vcpu);
                vpid
            }
            Some(_) => {
                // Both run with the same tag, and with shadow tables nothing else distinguishes their translations.
                vcpu.due.current |= !self.mode.is_tdp() && !tags.vpid02;
                last_vpid
            }
        }
    }

    /// Flushes the guest's TLB: only this virtual processor's, and no EPT mappings (KVM's kvm_vcpu_flush_tlb_guest).
    fn flush_and_sync(&mut self, vcpu: &mut VcpuMmu) {
        vcpu.due.guest = true;
        if self.mode.is_tdp() {
            return;
        }
        vcpu.sync = true;
        let kept: Vec<_> = vcpu.kept.iter().flat_map(|set| set.pages).flatten().collect();
        for root in kept {
            self.sync_below(root);
        }
    }

    /// Handles INVEPT of the guest: the tables for the nested guest's next entry are synchronized with its EPT.
    pub fn nested_invept(&mut self, vcpu: &mut VcpuMmu, what: NestedInvept) {
        let gone = |set: &RootSet| match what {
            NestedInvept::Single(eptp) => same_tables(set.cr3, eptp),
            NestedInvept::All => true,
        };
        if let Some(set) = vcpu.ept_own.take_if(|set| gone(set)) {
            self.put_down(set);
        }
        for set in std::mem::take(&mut vcpu.ept_kept) {
            if gone(&set) { self.put_down(set) } else { vcpu.ept_kept.push(set) }
        }
    }

    /// Handles INVVPID of the guest, of any type: shadow tables of the nested guest are synchronized before their next
    /// use. The caller invalidates the processor's translations by VPID.
    pub fn nested_invvpid(&mut self, vcpu: &mut VcpuMmu) {
        if self.mode.is_tdp() {
            return;
        }
        for set in std::mem::take(&mut vcpu.kept) {
            if set.role.guest_mode { self.put_down(set) } else { vcpu.kept.push(set) }
        }
        if let Some(set) = vcpu.own.take_if(|set| set.role.guest_mode) {
            self.put_down(set);
        }
    }
}
