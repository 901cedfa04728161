//! The items of a ledger's lists.

use crate::charge::AddressSpace;
use crate::{Kind, Ticks};

/// A function, or other named range of addresses, that something was charged to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedSymbol {
    /// The address space it belongs to, or all of a guest.
    pub space: AddressSpace,
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its name.
    pub name: String,
    /// The module or file it is in; empty for the kernel itself.
    pub module: String,
}

/// Executions of a block. Numbers are positions in the lists of [`Ledger`](crate::Ledger).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRuns {
    /// The region.
    pub region: u32,
    /// The origin.
    pub origin: u32,
    /// The block's address.
    pub rip: u64,
    /// Its shape.
    pub shape: u32,
    /// The number of its executions.
    pub runs: u64,
}

/// Events of one kind at one address. Numbers are positions in the lists of [`Ledger`](crate::Ledger).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventCharge {
    /// The region.
    pub region: u32,
    /// The origin.
    pub origin: u32,
    /// The address of the instruction.
    pub rip: u64,
    /// The kind.
    pub kind: Kind,
    /// The number of events.
    pub count: u64,
    /// Ticks charged in all.
    pub ticks: Ticks,
}
