//! Kinds of TLB invalidations: see [`super::invalidate`].

/// Invalidation of an instruction, in the current VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Everything, including global translations.
    All,
    /// All non-global translations.
    NonGlobal,
    /// Non-global translations of one PCID.
    Pcid(u16),
    /// The page of a linear address, for the current PCID and globally.
    Page(u64),
    /// The page of a linear address, for one PCID, without global translations.
    PageOf {
        /// The address.
        linear: u64,
        /// The PCID.
        pcid: u16,
    },
}

/// INVEPT (SDM vol. 3, 30.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invept {
    /// Type 1: translations through the tables of an EPT pointer.
    Single(u64),
    /// Type 2: translations through any EPT pointer.
    Global,
}

/// INVVPID (SDM vol. 3, 30.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invvpid {
    /// Type 0: one page of a VPID.
    Address {
        /// The VPID.
        vpid: u16,
        /// A linear address in the page.
        linear: u64,
    },
    /// Type 1: a VPID.
    Single(u16),
    /// Type 2: all VPIDs but 0.
    All,
    /// Type 3: a VPID, except for global translations.
    RetainGlobals(u16),
}

/// Invalidations by VMX instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// INVEPT.
    Ept(Invept),
    /// INVVPID.
    Vpid(Invvpid),
}
