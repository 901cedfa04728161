//! The inputs that decide the outcome of a cell, as one hash: the program (built-in profiles with it), the contents of all files that the
//! cell reads, and its command line.

use crate::Cell;
use crate::format::hexadecimal;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Read};
use std::path::{Path, PathBuf};

/// Changes when the contents of a finished cell's directory do.
const FORMAT: &str = "tollgate lab cell 2";

/// Hashes of files, each read once.
pub struct Fingerprints {
    root: PathBuf,
    program: [u8; 32],
    files: BTreeMap<String, [u8; 32]>,
}

/// A file that a cell needs can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{path} can't be read: {error}")]
pub struct Unreadable {
    /// The file.
    pub path: String,
    /// Why.
    pub error: Error,
}

/// The hash of a file's contents.
pub(crate) fn hash(path: &Path) -> Result<[u8; 32], Unreadable> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let unreadable = |error| Unreadable { path: path.display().to_string(), error };
    let mut file = File::open(path).map_err(unreadable)?;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
}

impl Fingerprints {
    /// Fingerprints of cells that `program` runs in the directory `root`.
    pub fn new(root: &Path, program: &Path) -> Result<Self, Unreadable> {
        Ok(Self { root: root.to_path_buf(), program: hash(program)?, files: BTreeMap::new() })
    }

    /// The fingerprint of a cell, in hexadecimal digits. A cell that was begun from another one's boot has no other outcome than one that booted
    /// itself, and no other fingerprint.
    pub fn of(&mut self, cell: &Cell) -> Result<String, Unreadable> {
        self.digest(cell, &cell.arguments())
    }

    /// The fingerprint of a cell's boot: cells with the same one may begin from one snapshot. `None`: its guest does not ask for a workload.
    pub fn of_boot(&mut self, cell: &Cell) -> Result<Option<String>, Unreadable> {
        cell.settings.workload.as_ref().map(|_| self.digest(cell, &cell.boot_arguments())).transpose()
    }

    fn digest(&mut self, cell: &Cell, arguments: &[String]) -> Result<String, Unreadable> {
        let mut hasher = Sha256::new();
        let mut text = |text: &str| {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        text(FORMAT);
        arguments.iter().for_each(|argument| text(argument));
        hasher.update(self.program);
        for name in cell.files().into_iter().chain(cell.captures()) {
            let found = match self.files.get(name) {
                Some(found) => *found,
                None => *self.files.entry(name.to_owned()).or_insert(hash(&self.root.join(name))?),
            };
            hasher.update(found);
        }
        // Half of it identifies a cell, and makes a name that people can still look at.
        Ok(hexadecimal(&hasher.finalize()[..16]))
    }
}
