//! The guest as the MMUs see it: its registers, its faults, and what follows from a fault.

use super::guest_ept::{EptExit, EptFormat, Level, Nested};
use x86::ept::EPTP_ACCESSED_DIRTY;

/// Features of the host's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFeatures {
    /// Physical address width, also of the guest.
    pub physical_bits: u8,
    /// True if EPT has accessed and dirty flags.
    pub ept_flags: bool,
    /// True if there are 1 GiB pages, in page tables or in EPT, whichever is used.
    pub gigabyte_pages: bool,
}

/// Registers of the guest that affect translation, as seen by the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// CR0.
    pub cr0: u64,
    /// CR3, with the PCID if there is one.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// The PDPTEs of PAE paging, loaded with CR3.
    pub pdpte: [u64; 4],
    /// RFLAGS.
    pub rflags: u64,
    /// Current privilege level.
    pub cpl: u8,
    /// PKRU.
    pub pkru: u32,
    /// IA32_PKRS.
    pub pkrs: u32,
    /// Set if these registers belong to a nested guest (L2).
    pub nested: Option<Nested>,
}

/// Fault that stopped the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A page fault (shadow MMUs).
    Page {
        /// Address (exit qualification).
        linear: u64,
        /// The error code.
        code: u32,
    },
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
}

/// Action after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Repeat the instruction.
    Fixed,
    /// Inject a page fault.
    Inject(PageFault),
    /// Emulate the instruction.
    Emulate {
        /// True if it accesses an address without memory, or writes to read-only memory; otherwise it writes to a
        /// watched table.
        mmio: bool,
    },
    /// Exit to the guest: its nested guest has made an access that its EPT denies.
    Reflect(EptExit),
    /// A limit was exceeded although pages were recycled; the machine cannot continue.
    Limit(&'static str),
}

/// A root for CR3 or the EPT pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Host-physical address: of 32 bytes of PDPTEs or of a table.
    pub hpa: u64,
    /// Number of levels of the tables; 3 means PAE paging.
    pub levels: u8,
    /// True if the EPT pointer enables accessed and dirty flags.
    pub flags: bool,
}

impl Guest {
    /// Returns the owner of the roots that these registers select.
    pub(super) fn level(&self) -> Level {
        let Some(nested) = self.nested else { return Level::Guest };
        let Some(eptp) = nested.eptp else { return Level::Nested };
        let flags = nested.ept.flags && eptp & EPTP_ACCESSED_DIRTY != 0;
        Level::Ept { eptp, format: EptFormat { flags, ..nested.ept } }
    }
}

/// A page fault for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Value for CR2.
    pub linear: u64,
    /// The error code.
    pub code: u32,
}

/// Reason for which an access of a nested guest is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedFault {
    /// Its page tables deny it.
    Page(PageFault),
    /// The guest's EPT denies it.
    Exit(EptExit),
}
