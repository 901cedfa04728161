//! Decoded blocks as a saved state has them.

use serde::{Deserialize, Serialize};

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedBlock {
    pub physical: u64,
    pub rip: u64,
    pub second: u64,
    pub mode: u8,
    pub probe: bool,
    /// Its operations.
    pub count: u32,
}

/// The blocks of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBlocks {
    /// Blocks that are no longer valid, and their operations: they take room until everything is dropped.
    pub(crate) dead: (u32, u32),
    pub(crate) blocks: Vec<SavedBlock>,
    /// By page, in order: the lines that are marked as decoded or monitored.
    pub(crate) marks: Vec<(u64, u64)>,
}
