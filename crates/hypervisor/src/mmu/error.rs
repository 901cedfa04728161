//! Errors of the MMUs: of the host's side, and in the restoration of a saved state.

/// Errors on the side of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MmuError {
    /// A slot is empty, unaligned or outside of the address space.
    #[error("memory slot at guest frame {gfn:#x}: empty, unaligned, or beyond the physical address space")]
    SlotRange {
        /// First frame of the slot.
        gfn: u64,
    },
    /// A slot overlaps another one.
    #[error("memory slot at guest frame {gfn:#x} overlaps another")]
    SlotOverlap {
        /// First frame of the slot.
        gfn: u64,
    },
    /// The memory of a slot is not RAM for guests.
    #[error("memory slot at guest frame {gfn:#x} is not backed by RAM")]
    SlotNotRam {
        /// First frame of the slot.
        gfn: u64,
    },
    /// There is too little memory for the tables.
    #[error("the hypervisor's {pages} table pages are too few: at least {needed} are needed")]
    PoolTooSmall {
        /// Number of pages.
        pages: u32,
        /// Required number of pages.
        needed: u32,
    },
    /// A limit was exceeded even after recycling all pages.
    #[error("limit `{0}` reached: use a larger --mmu-pages")]
    Limit(&'static str),
}

/// Reason for which a saved state does not belong to this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The hidden memory has another size.
    #[error("the saved hypervisor has {saved} table pages, this one has {here}")]
    PoolSize {
        /// Number of pages in the saved state.
        saved: u32,
        /// Number of pages of this machine.
        here: u32,
    },
    /// This machine cannot have a saved memory slot.
    #[error("saved {0}")]
    Slot(#[from] MmuError),
    /// A dirty log does not have the length of its slot.
    #[error("the saved dirty log of the memory slot at guest frame {gfn:#x} does not fit it")]
    DirtyLog {
        /// First frame of the slot.
        gfn: u64,
    },
    /// The metadata of a table page is invalid.
    #[error("saved table page {page} {what}")]
    Page {
        /// Number of the page.
        page: u32,
        /// Description of the error.
        what: &'static str,
    },
    /// A counter is impossible, or contradicts another one.
    #[error("the saved counter of {0} is out of range")]
    Counter(&'static str),
    /// A reported range of writes is not in RAM.
    #[error("the saved state reports a write to {address:#x}, which is not RAM")]
    Written {
        /// Host-physical address.
        address: u64,
    },
    /// The state of a virtual CPU is invalid.
    #[error("virtual CPU {vcpu}: {what}")]
    Vcpu {
        /// Index of the virtual CPU.
        vcpu: usize,
        /// Description of the error.
        what: &'static str,
    },
    /// The tables in memory contradict the rest of the state.
    #[error("the hypervisor's saved tables are inconsistent: {0}")]
    Tables(String),
}
