//! The store of finished cells: one directory each, named by the cell's fingerprint. The directory has the cell's ledger, the cell's
//! output, and a record of both (`record.rs`) by which damage is recognized.
//!
//! Of a cell that has failed, the output is kept beside these directories, until the cell is finished.
//!
//! The store also has the images of guests that a laboratory makes ([`Images`]).
//!
//! Several laboratories may use one store. A running one holds a shared lock on the store, and whoever prunes an exclusive
//! one, so nothing that a run has counted on goes away. A cell that is not finished is in a directory of its own
//! ([`Partial`]), which is locked until the last process that writes to it is gone: killing a laboratory leaves such
//! directories behind unlocked, and the next run removes them.

mod directory;
mod images;
mod partial;
mod prune;
mod record;

pub use images::Images;
pub use partial::Partial;
pub use prune::{Pruned, Pruning, Size};

use directory::{Directory, Lock};
use record::Record;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

/// A finished cell's ledger.
pub const LEDGER: &str = "ledger";
/// The file with the output of a cell.
pub const OUTPUT: &str = "output";
/// The suffix of the output of a cell that has failed, behind the cell's fingerprint.
const FAILED: &str = ".failed";
/// The prefix of directories of cells that are not finished.
const PARTIAL: &str = ".partial-";

/// A cell that ran as it should.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finished {
    /// Its ledger.
    pub ledger: PathBuf,
    /// The output of the cell.
    pub output: PathBuf,
}

impl Finished {
    /// The directory that has both.
    pub fn directory(&self) -> &Path {
        self.ledger.parent().unwrap_or(&self.ledger)
    }

    /// The fingerprint it is kept under, and the SHA-256 of its ledger.
    pub fn identity(&self) -> Option<(String, String)> {
        let directory = self.directory();
        let record = Record::read(directory).ok()?;
        Some((directory.file_name()?.to_str()?.to_owned(), record.ledger_hash().to_owned()))
    }
}

/// The state of a fingerprint's cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A finished cell.
    Finished(Finished),
    /// Something that can't be used, and why.
    Damaged(String),
}

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory can't be made or read.
    #[error("{path} can't be used for the results: {error}")]
    Directory {
        /// The directory.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody else is using it in a way that leaves no room for us.
    #[error("{path} is in use by {by}")]
    Busy {
        /// The directory.
        path: String,
        /// By whom.
        by: &'static str,
    },
}

/// A directory of finished cells.
#[derive(Debug)]
pub struct Store {
    directory: Directory,
}

impl Store {
    /// The store in the directory `path`, for a run: it is made if it is not there, and what laboratories that were killed
    /// have left is removed. Waits while somebody prunes it, unless `stop` is set.
    pub fn open(path: &Path, stop: &AtomicBool) -> Result<Self, StoreError> {
        let store = Self { directory: Directory::open(path, stop)? };
        store.sweep();
        Ok(store)
    }

    /// The store in the directory `path`, to remove cells from it; `None` if there is no such directory.
    pub fn existing(path: &Path) -> Result<Option<Self>, StoreError> {
        Ok(Directory::existing(path)?.map(|directory| Self { directory }))
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// Removes unfinished cells that no live process works on, and returns how many. Nothing depends on it: what can't be
    /// removed now (in a directory that is read-only, for example) stays for the next time.
    fn sweep(&self) -> usize {
        let unfinished = self.directory.names().into_iter().filter(|name| name.starts_with(PARTIAL));
        unfinished.filter(|name| partial::sweep(&self.path().join(name))).count()
    }

    fn finished(&self, fingerprint: &str) -> Finished {
        let directory = self.path().join(fingerprint);
        Finished { ledger: directory.join(LEDGER), output: directory.join(OUTPUT) }
    }

    /// The cell of a fingerprint. It counts as used now.
    pub fn find(&self, fingerprint: &str) -> Found {
        let directory = self.path().join(fingerprint);
        if std::fs::symlink_metadata(&directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Found::Nothing;
        }
        match Record::read(&directory).and_then(|record| record.holds(&directory)) {
            Ok(()) => {
                Record::touch(&directory, SystemTime::now());
                Found::Finished(self.finished(fingerprint))
            }
            Err(reason) => Found::Damaged(reason),
        }
    }

    /// A directory for a cell that is about to run.
    pub fn partial(&self) -> std::io::Result<Partial> {
        Partial::new(self.path())
    }

    /// Keeps the output of a cell that has failed, in place of that of an earlier run. Returns its file, if there is any output.
    pub fn keep_output(&self, partial: &Partial, fingerprint: &str) -> Option<PathBuf> {
        let output = partial.path().join(OUTPUT);
        let any = std::fs::metadata(&output).is_ok_and(|file| file.len() != 0);
        let kept = self.path().join(format!("{fingerprint}{FAILED}"));
        (any && std::fs::rename(output, &kept).is_ok()).then_some(kept)
    }

    /// Keeps a cell that has run, under its fingerprint. The reason if that can't be done is in words for the user.
    pub fn keep(&self, partial: &Partial, fingerprint: &str, command: &str) -> Result<Finished, String> {
        let record = Record::new(partial.path(), command)?;
        let place = self.path().join(fingerprint);
        // Another laboratory may have been faster. Its readers need not notice ours, which is the same.
        let same = || Record::read(&place).is_ok_and(|found| found == record && found.holds(&place).is_ok());
        let failed = |error: std::io::Error| format!("{} can't be made: {error}", place.display());
        if !same() {
            record.write(partial.path()).map_err(failed)?;
            self.remove(fingerprint).map_err(failed)?;
            match std::fs::rename(partial.path(), &place) {
                Err(error) if !same() => return Err(failed(error)),
                _ => {}
            }
        }
        // The output of an earlier run that failed says nothing about this one.
        let _ = std::fs::remove_file(self.path().join(format!("{fingerprint}{FAILED}")));
        Ok(self.finished(fingerprint))
    }

    /// Removes what is kept under a fingerprint, whatever it is. The name is free at once: a removal that is interrupted
    /// leaves an unfinished cell, not half of a finished one. No room on the disk is needed.
    fn remove(&self, fingerprint: &str) -> std::io::Result<()> {
        let place = self.path().join(fingerprint);
        match std::fs::symlink_metadata(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_dir() => return std::fs::remove_file(place),
            Ok(_) => {}
        }
        // One process alone can have moved this fingerprint away, so the name is free.
        let aside = self.path().join(format!("{PARTIAL}{fingerprint}-{}", std::process::id()));
        std::fs::rename(place, &aside)?;
        std::fs::remove_dir_all(aside)
    }

    /// Removes cells, and outputs of failed ones, as `pruning` says, but none of `spared`, and says what was removed. `None` if another laboratory
    /// is running: it may be using them.
    pub fn prune(&self, pruning: &Pruning, spared: &BTreeSet<PathBuf>) -> Option<Pruned> {
        if !self.directory.lock(Lock::Exclusive) {
            return None;
        }
        let spared = |name: &str| spared.contains(&self.path().join(name));
        let mut pruned = prune::prune(self, pruning, spared);
        if !pruning.dry_run {
            pruned.unfinished = self.sweep();
        }
        Some(pruned)
    }
}

#[cfg(test)]
mod tests;
