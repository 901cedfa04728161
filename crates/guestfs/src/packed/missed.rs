//! Names that a guest has looked for in a packed tree, and that are not there. A guest's kernel looks for each directory of a path in turn, so that a missing
//! directory need not be what a program wanted.

use super::Packed;
use crate::tree::ROOT;
use std::collections::{BTreeSet, HashMap};
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

/// Returns true for the bytes of which the names of most files consist.
fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._+-@~".contains(&byte)
}

/// Returns the absolute paths in a text or a program that are one of these directories, or below one.
pub fn paths_below(bytes: &[u8], directories: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut at = 0;
    while let Some(begin) = bytes[at..].iter().position(|byte| *byte == b'/').map(|found| at + found) {
        let length = bytes[begin..].iter().take_while(|byte| is_of_path(**byte)).count();
        let begins = begin == 0 || !is_of_path(bytes[begin - 1]);
        at = begin + length;
        let path = Path::new(OsStr::from_bytes(&bytes[begin..at]));
        if begins && directories.iter().any(|directory| path.starts_with(directory)) {
            // The components are without a slash at the end.
            paths.insert(path.components().collect());
        }
    }
    paths
}

impl Packed {
    /// Returns the paths in the packed files of the host that are one of these directories, or below one.
    pub fn paths_below(&mut self, directories: &[PathBuf]) -> BTreeSet<PathBuf> {
        let mut paths = BTreeSet::new();
        for node in self.walk().into_iter().map(|walked| walked.node) {
            // A file that can't be read names nothing.
            if self.is_of_host(node)
                && let Ok(bytes) = self.contents(node)
            {
                paths.append(&mut paths_below(&bytes, directories));
            }
        }
        paths
    }

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
