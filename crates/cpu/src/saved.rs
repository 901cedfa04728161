//! Decoded blocks in a saved state.

use crate::time::{Context, Place};
use serde::{Deserialize, Serialize};

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedBlock {
    pub physical: u64,
    pub rip: u64,
    pub second: u64,
    pub mode: u8,
    /// Context in which its operations are priced.
    pub context: Place,
    pub probe: bool,
    /// Number of operations.
    pub count: u32,
    /// Number of bytes that it covers.
    pub len: u16,
}

/// The blocks of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBlocks {
    /// Number of invalid blocks and of their operations, which occupy room until everything is dropped.
    pub(crate) dead: (u32, u32),
    pub(crate) blocks: Vec<SavedBlock>,
    /// Contexts in which operations are priced, by number.
    pub(crate) contexts: Vec<Context>,
    /// Lines that are marked as decoded or monitored, by page and in order.
    pub(crate) marks: Vec<(u64, u64)>,
}
