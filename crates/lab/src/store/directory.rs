//! A directory that several laboratories use, and its lock: a running laboratory holds a shared one, and whoever removes something an exclusive one.

use super::StoreError;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time for which a run waits for another one to finish pruning.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts.
pub(super) const NAP: Duration = Duration::from_millis(50);

/// The directory, which is locked. A file system without locks is used without.
#[derive(Debug)]
pub(super) struct Directory {
    pub path: PathBuf,
    file: File,
}

/// The mode of [`Directory::lock`].
#[derive(Clone, Copy)]
pub(super) enum Lock {
    Shared,
    Exclusive,
}

impl Directory {
    fn error(path: &Path, error: std::io::Error) -> StoreError {
        StoreError::Directory { path: path.display().to_string(), error }
    }

    fn at(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| Self::error(path, error))?;
        let is_directory = file.metadata().is_ok_and(|metadata| metadata.is_dir());
        match is_directory {
            true => Ok(Self { path: path.to_path_buf(), file }),
            false => Err(Self::error(path, std::io::ErrorKind::NotADirectory.into())),
        }
    }

    /// `false` if somebody else's lock is in the way. A file system that has no locks is used without.
    pub fn lock(&self, lock: Lock) -> bool {
        let locked = match lock {
            Lock::Shared => self.file.try_lock_shared(),
            Lock::Exclusive => self.file.try_lock(),
        };
        !matches!(locked, Err(TryLockError::WouldBlock))
    }

    /// The directory for a run, which is made if it is not there. Waits while somebody removes something from it, unless `stop` is set.
    pub fn open(path: &Path, stop: &AtomicBool) -> Result<Self, StoreError> {
        std::fs::create_dir_all(path).map_err(|error| Self::error(path, error))?;
        let directory = Self::at(path)?;
        let begun = Instant::now();
        while !directory.lock(Lock::Shared) {
            if begun.elapsed() > PATIENCE || stop.load(Ordering::Relaxed) {
                let by = "another process that removes cells from it";
                return Err(StoreError::Busy { path: path.display().to_string(), by });
            }
            std::thread::sleep(NAP);
        }
        Ok(directory)
    }

    /// The directory, to remove something from it; `None` if there is no such directory.
    pub fn existing(path: &Path) -> Result<Option<Self>, StoreError> {
        match Self::at(path) {
            Err(StoreError::Directory { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(directory) if directory.lock(Lock::Exclusive) => Ok(Some(directory)),
            Ok(_) => Err(StoreError::Busy {
                path: path.display().to_string(),
                by: "a running `tollgate lab`; cells can be removed when it is done",
            }),
        }
    }

    /// The names in it. An entry that can't be read is as good as absent.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }
}
