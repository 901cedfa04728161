//! Sizes and latencies of the caches, and of the way to memory.

use crate::Ticks;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Bytes in a line.
pub const LINE: u64 = 64;

/// A level of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Lines in all.
    pub lines: u32,
    /// Lines per set.
    pub ways: u16,
    /// Ticks from the address of a load to its result.
    pub latency: Ticks,
    /// Ticks for each of many lines that are transferred one after the other to the level above.
    pub transfer: Ticks,
    /// Ticks for each of many lines that go from here to the same set of the first level of data.
    pub same_set: Ticks,
}

/// The way of code to the core: the first level, and what the front end does about a line that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// First level, code. Its latency and transfer are 0: the pipeline contains them.
    pub l1i: Level,
    /// Least ticks for each of many lines that the first level does not have, if each follows the one before.
    pub transfer: Ticks,
    /// Ticks by which lines are asked for before the core needs them, while the front end follows the right path.
    pub ahead: Ticks,
    /// Lines that may be on their way at the same time if branches lead from each to the next.
    pub scattered: u16,
    /// Lines that may be on their way at the same time if each follows the one before.
    pub sequential: u16,
    /// The branches that the front end knows.
    pub branches: Branches,
}

/// The branch target buffer, as a table of the lines of code whose branches the front end knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branches {
    /// Entries, as lines. The latency is the time that a taken branch costs that the front end does not know.
    pub table: Level,
    /// Entries of a line with a direct branch that goes further than [`NEAR`]: 1 or 2.
    pub far: u16,
}

/// The greatest distance in bytes from the end of a branch to its target for which one entry is enough.
pub const NEAR: u64 = 4096;

/// Page walks: the paging-structure caches (SDM vol. 3, 5.10.3), whose entries say where a table is, so that the entries above it
/// need not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walks {
    /// Entries of the PDE cache.
    pub pde: u16,
    /// Entries of the PDPTE cache.
    pub pdpte: u16,
    /// Entries of the PML4E cache, which has those of PML5 too.
    pub pml4e: u16,
    /// Translations of guest-physical pages that two-dimensional walks remember, in addition to the entries of their tables.
    pub nested: u16,
    /// Walks that may be under way at the same time.
    pub walkers: u16,
}

/// Where a line is that a device has written. No core has it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DeviceWrites {
    /// In the third level (Intel's Data Direct I/O).
    L3,
    /// In memory.
    Memory,
}

/// The caches of a core, and the way to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First level, data.
    pub l1d: Level,
    /// The way of code to the core.
    pub code: Code,
    /// Second level, code and data.
    pub l2: Level,
    /// Third level, if there is one.
    pub l3: Option<Level>,
    /// Ticks from the address of a load to its result, for a line in memory.
    pub memory_latency: Ticks,
    /// Ticks from the address of a load to its result, for a line that another processor has changed and still has.
    pub between_cores: Ticks,
    /// Ticks for each of many lines from memory.
    pub memory_transfer: Ticks,
    /// Ticks for each of many lines that non-temporal stores send to memory.
    pub memory_stream: Ticks,
    /// Ticks for each of many lines from memory to the same set of the first level of data.
    pub memory_same_set: Ticks,
    /// Loads that may wait for lines of one set of the first level of data at the same time, or 0: no two wait for the same line.
    pub set_loads: u16,
    /// Where lines are that devices have written.
    pub device_writes: DeviceWrites,
    /// Ticks that an access across lines of a page takes more, and one across pages.
    pub splits: [Ticks; 2],
    /// Ticks of latency that the core hides behind the instructions that follow: the entries of its reorder buffer
    /// divided by the instructions that it dispatches in a cycle.
    pub window: Ticks,
    /// Misses of the first level that may wait for their lines at the same time.
    pub fill_buffers: u16,
    /// Page walks.
    pub walks: Walks,
}
