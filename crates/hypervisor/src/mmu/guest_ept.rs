//! The EPT of a guest that is a hypervisor itself: its format, and what its nested guest (L2) does to it.

use serde::{Deserialize, Serialize};
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

/// An access of L2 to a guest-physical address that its EPT denies, or that has not been tried yet.
#[derive(Clone, Copy, Debug)]
pub struct Violation {
    /// Guest-physical address.
    pub gpa: u64,
    /// Guest-linear address, if the qualification declares it valid.
    pub linear: u64,
    /// Exit qualification with the access; the permissions in it are ignored.
    pub qualification: u64,
}
