//! Names that a guest has looked for in a packed tree, and that are not there.

use super::Packed;
use crate::tree::ROOT;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The most names that are remembered, because a guest is not trusted.
const MOST: usize = 1 << 14;

/// A name, with the node of its directory.
type Name = (u64, Vec<u8>);

/// The names, in the order in which the guest has looked for them. Copies of a tree have them in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Missed(Arc<Mutex<Vec<Name>>>);

impl Missed {
    /// Remembers a name.
    pub fn add(&self, directory: u64, name: &[u8]) {
        let mut names = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if names.len() < MOST {
            names.push((directory, name.to_vec()));
        }
    }
}

impl Packed {
    /// Returns the paths that a guest has looked for and has not found, the latest first, each once. Copies of a tree have them in common.
    pub fn missed(&self) -> Vec<PathBuf> {
        let names = self.missed.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if names.is_empty() {
            return Vec::new();
        }
        let mut directories: HashMap<u64, Vec<u8>> =
            self.walk().into_iter().map(|walked| (walked.node, walked.path)).collect();
        directories.insert(ROOT, Vec::new());
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (directory, name) in names.iter().rev() {
            if seen.insert((directory, name))
                && let Some(path) = directories.get(directory)
            {
                paths.push(Path::new("/").join(OsStr::from_bytes(path)).join(OsStr::from_bytes(name)));
            }
        }
        paths
    }
}
