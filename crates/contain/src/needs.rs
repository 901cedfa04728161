//! The resources that a confined process still needs.

use crate::calls::Use;
use std::path::PathBuf;

/// The resources that a process still needs once it is confined.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files, and directories with all their contents, that the process reads.
    pub readable: Vec<PathBuf>,
    /// Files, and directories with all their contents, that the process reads and changes.
    pub writable: Vec<PathBuf>,
    /// Purposes of system calls beyond those that every machine needs.
    pub uses: Vec<Use>,
}

impl Needs {
    /// Returns true if `wanted` is among the uses.
    pub(crate) fn has(&self, wanted: Use) -> bool {
        match wanted {
            Use::Always => true,
            Use::Files => !self.readable.is_empty() || !self.writable.is_empty(),
            Use::Changes => !self.writable.is_empty(),
            other => self.uses.contains(&other),
        }
    }
}
