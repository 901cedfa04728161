//! Nested guests (L2): their roots, and the handling of roots at transitions between them and the guest (L1).
//!
//! | EPT of the guest | tables of L2 | roots |
//! |---|---|---|
//! | used, with two-dimensional paging | shadow the guest's EPT (`shadow_ept.rs`) | separate: KVM's guest_mmu |
//! | not used, with two-dimensional paging | like the guest's own | with the guest's, distinguished by the role |
//! | not offered, with shadow paging | shadow the tables of L2's CR3 | with the guest's, distinguished by the role |

use super::vcpu::{KEPT, RootSet, VcpuMmu};
use super::{Guest, Mmu};
use crate::config::MmuMode;
use ledger::Operation;
use serde::{Deserialize, Serialize};
use x86::ept::EPTP_ACCESSED_DIRTY;
use x86::page::ADDRESS;

/// Features of the tables of the guest's EPT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EptFormat {
    /// Execute-only entries are permitted.
    pub execute_only: bool,
    /// Accessed and dirty flags may be enabled.
    pub flags: bool,
    /// 2 MiB pages are permitted.
    pub pages_2m: bool,
    /// 1 GiB pages are permitted.
    pub pages_1g: bool,
    /// Mode-based execute control is enabled.
    pub mode_based: bool,
}

/// Page-modification logging for a nested guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pml {
    /// Guest-physical address of the log.
    pub address: u64,
    /// Index of the next entry.
    pub index: u16,
}

/// A running nested guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// The guest's EPT pointer, if it uses EPT.
    pub eptp: Option<u64>,
    /// Features of the tables of its EPT.
    pub ept: EptFormat,
    /// The log that the guest has enabled.
    pub pml: Option<Pml>,
}

/// Owner of the roots of a virtual processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Level {
    /// The guest.
    #[default]
    Guest,
    /// A nested guest without EPT of the guest.
    Nested,
    /// A nested guest with an EPT pointer of the guest and tables of this format.
    Ept {
        /// The EPT pointer.
        eptp: u64,
        /// The format; `flags` is true if the pointer enables them.
        format: EptFormat,
    },
}

impl Level {
    pub fn of(guest: &Guest) -> Self {
        let Some(nested) = guest.nested else { return Self::Guest };
        let Some(eptp) = nested.eptp else { return Self::Nested };
        let flags = nested.ept.flags && eptp & EPTP_ACCESSED_DIRTY != 0;
        Self::Ept { eptp, format: EptFormat { flags, ..nested.ept } }
    }
}

/// A VM exit for the guest: its EPT does not translate an address of its nested guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EptExit {
    /// An EPT violation.
    Violation {
        /// Guest-physical address.
        gpa: u64,
        /// Guest-linear address, if the qualification declares it valid.
        linear: u64,
        /// The exit qualification.
        qualification: u64,
    },
    /// An EPT misconfiguration.
    Misconfiguration {
        /// Guest-physical address.
        gpa: u64,
    },
    /// A page must be logged, and the log is full.
    LogFull {
        /// Guest-physical address.
        gpa: u64,
        /// Guest-linear address.
        linear: u64,
        /// Exit qualification, which only reports that an IRET had unblocked NMIs.
        qualification: u64,
    },
}

/// Invalidation by the guest's INVEPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedInvept {
    /// Translations through the tables of an EPT pointer.
    Single(u64),
    /// Translations through any EPT pointer.
    All,
}

/// Tags of the translations of the guest and of a nested guest at a transition between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionTags {
    /// True for the entry of the nested guest, false for its exit.
    pub entry: bool,
    /// VPID that the guest has assigned to the nested guest, if it uses VPIDs.
    pub vpid12: Option<u16>,
    /// True if the hypervisor has a separate VPID for the nested guest.
    pub vpid02: bool,
}

/// Returns true if two EPT pointers have the same tables, which are the part of the pointer that tags translations.
pub(super) fn same_tables(one: u64, other: u64) -> bool {
    (one ^ other) & ADDRESS == 0
}

impl Mmu {
    /// Handles a transition from the guest to its nested guest, or back; `guest` has the registers afterwards (KVM's
    /// nested_vmx_load_cr3, and before it nested_ept_init_mmu_context).
    pub fn nested_transition(&mut self, vcpu: &mut VcpuMmu, guest: &Guest) {
        vcpu.level = Level::of(guest);
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
