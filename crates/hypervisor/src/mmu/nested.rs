//! The guest's own guest (L2): which roots it runs on, and what becomes of them at the transitions between it and the guest (L1).
//!
//! | EPT of the guest | tables of L2 | roots |
//! |---|---|---|
//! | used, under two-dimensional paging | shadow the guest's EPT (`shadow_ept.rs`) | apart: KVM's guest_mmu |
//! | not used, under two-dimensional paging | like the guest's own | beside the guest's, told apart by the role |
//! | not offered, under shadow paging | shadow the tables that L2's CR3 leads to | likewise |

use super::vcpu::{KEPT, RootSet, VcpuMmu};
use super::{Guest, Mmu};
use crate::config::MmuMode;
use ledger::Operation;
use serde::{Deserialize, Serialize};
use x86::ept::EPTP_ACCESSED_DIRTY;
use x86::page::ADDRESS;

/// What the tables of the guest's EPT may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EptFormat {
    /// Entries may allow fetches only.
    pub execute_only: bool,
    /// Accessed and dirty flags may be enabled.
    pub flags: bool,
    /// Pages of 2 MiB.
    pub pages_2m: bool,
    /// Pages of 1 GiB.
    pub pages_1g: bool,
    /// Mode-based execute control is on.
    pub mode_based: bool,
}

/// Page-modification logging for the guest's own guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pml {
    /// Guest-physical address of the log.
    pub address: u64,
    /// The entry that is written next.
    pub index: u16,
}

/// A guest of the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nested {
    /// The guest's EPT pointer, if it uses EPT.
    pub eptp: Option<u64>,
    /// What the tables of its EPT may use.
    pub ept: EptFormat,
    /// The log that the guest has enabled.
    pub pml: Option<Pml>,
}

/// Whose roots a virtual processor runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Level {
    /// The guest.
    #[default]
    Guest,
    /// Its own guest, without EPT of the guest.
    Nested,
    /// Its own guest, under an EPT pointer of the guest with tables of this format.
    Ept {
        /// The EPT pointer.
        eptp: u64,
        /// The format; its flags are on if the pointer enables them.
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

/// A VM exit that the guest must see: its EPT does not translate an address of its own guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EptExit {
    /// An EPT violation.
    Violation {
        /// The guest-physical address.
        gpa: u64,
        /// The guest-linear address, where the qualification says that it is valid.
        linear: u64,
        /// The exit qualification.
        qualification: u64,
    },
    /// An EPT misconfiguration.
    Misconfiguration {
        /// The guest-physical address.
        gpa: u64,
    },
    /// A page is to be logged, and the log is full.
    LogFull {
        /// The guest-physical address.
        gpa: u64,
        /// The guest-linear address.
        linear: u64,
        /// The exit qualification: only whether an IRET had unblocked NMIs.
        qualification: u64,
    },
}

/// What INVEPT of the guest invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedInvept {
    /// What was translated through the tables of an EPT pointer.
    Single(u64),
    /// What was translated through any.
    All,
}

/// How the translations of the guest and of its own guest are told apart at a transition between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionTags {
    /// It is the entry to the guest's own guest; otherwise the exit from it.
    pub entry: bool,
    /// The VPID that the guest has given its own guest, if it uses VPIDs.
    pub vpid12: Option<u16>,
    /// The hypervisor has a VPID of its own for the guest's own guest.
    pub vpid02: bool,
}

/// Whether two EPT pointers have the same tables: the processor tags what it caches with no more of them.
pub(super) fn same_tables(one: u64, other: u64) -> bool {
    (one ^ other) & ADDRESS == 0
}

impl Mmu {
    /// The virtual processor has gone from the guest to its own guest, or back, and `guest` are the registers there (KVM's
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
                // The role of the shadow EPT, beside that of the walk of the tables of the guest's own guest.
                self.tolls.add(Operation::RoleUpdate, 1);
                self.switch_ept(vcpu, eptp);
            }
            Level::Guest | Level::Nested => self.switch_root(vcpu, guest, false),
        }
    }

    /// Puts the shadow EPT for an EPT pointer in place, if it is kept.
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

    /// The flushes that a transition owes the guest, in the context that it leads to (KVM's nested_vmx_transition_tlb_flush).
    /// Returns the VPID that the guest's own guest used last.
    pub fn nested_transition_flush(&mut self, vcpu: &mut VcpuMmu, tags: TransitionTags, last_vpid: u16) -> u16 {
        match tags.vpid12 {
            // The guest expects that all linear and combined translations go.
            None => {
                self.flush_and_sync(vcpu);
                last_vpid
            }
            // Which VPIDs it has used is not followed: a new one may not find anything.
            Some(vpid) if tags.entry && vpid != last_vpid => {
                self.flush_and_sync(vcpu);
                vpid
            }
            Some(_) => {
                // Both run with the same tag, and with shadow tables nothing else tells their translations apart.
                vcpu.due.current |= !self.mode.is_tdp() && !tags.vpid02;
                last_vpid
            }
        }
    }

    /// A flush of the TLB for the guest: of no other virtual processor, and of no mappings that EPT has made (KVM's
    /// kvm_vcpu_flush_tlb_guest).
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

    /// The guest has executed INVEPT: the tables of its own guest's next entry are synchronized with its EPT.
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

    /// The guest has executed INVVPID of any type: shadow tables of its own guest are synchronized with that one's when they are
    /// next used. What the processor has cached by VPID is for the caller to invalidate.
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
