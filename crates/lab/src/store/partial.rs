//! Directories of cells that are not finished.

use super::PARTIAL;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are tried for a new one.
const ATTEMPTS: usize = 10_000;

/// A directory that is removed unless it gets another name.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    lock: File,
}

impl Partial {
    /// A new one in `store`.
    pub(super) fn new(store: &Path) -> std::io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        for _ in 0..ATTEMPTS {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = store.join(format!("{PARTIAL}{}-{count}", std::process::id()));
            match std::fs::create_dir(&path) {
                // A process that had our number has left it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                other => other?,
            }
            if let Some(lock) = locked(&path)? {
                return Ok(Self { path, lock });
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "no name is free for a cell that runs"))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that holds the lock: a process that has it open keeps the directory from being swept away.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After it got its final name there is nothing left here.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The directory at `path`, locked; `None` if somebody swept it away before it was.
fn locked(path: &Path) -> std::io::Result<Option<File>> {
    let directory = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if let Err(TryLockError::WouldBlock) = directory.try_lock() {
        return Ok(None);
    }
    // Whoever was about to remove it may have had the lock, and be done.
    Ok(is_at(&directory, path).then_some(directory))
}

/// Returns true if an open directory still has its name.
fn is_at(directory: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, named) = (directory.metadata().map(identity), std::fs::symlink_metadata(path).map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Removes the directory at `path` if no live process works on it; whether it did.
pub(super) fn sweep(path: &Path) -> bool {
    // Opening something else might wait for ever.
    if !std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return false;
    }
    let Ok(directory) = File::open(path) else { return false };
    // Without locks nobody can tell whether it is in use.
    directory.try_lock().is_ok() && is_at(&directory, path) && std::fs::remove_dir_all(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_swept_away_and_made_anew_is_another_one() {
        let path = std::env::temp_dir().join(format!("tollgate-partial-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let first = File::open(&path).unwrap();
        assert!(is_at(&first, &path));
        std::fs::remove_dir(&path).unwrap();
        assert!(!is_at(&first, &path));
        std::fs::create_dir(&path).unwrap();
        assert!(!is_at(&first, &path));
        std::fs::remove_dir(&path).unwrap();
        assert!(locked(&path).unwrap().is_none(), "it is gone before it could be locked");
    }
}
