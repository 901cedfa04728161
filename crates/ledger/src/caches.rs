//! Sizes and latencies of the caches, and of the way to memory.

use crate::Ticks;

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
}

/// The caches of a core, and the way to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First level, data.
    pub l1d: Level,
    /// Second level, code and data.
    pub l2: Level,
    /// Third level, if there is one.
    pub l3: Option<Level>,
    /// Ticks from the address of a load to its result, for a line in memory.
    pub memory_latency: Ticks,
    /// Ticks for each of many lines from memory.
    pub memory_transfer: Ticks,
    /// Ticks of latency that the core hides behind the instructions that follow: the entries of its reorder buffer
    /// divided by the instructions that it dispatches in a cycle.
    pub window: Ticks,
    /// Misses of the first level that may wait for their lines at the same time.
    pub fill_buffers: u16,
}
