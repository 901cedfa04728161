//! The images of guests that a laboratory makes for its cells: files in a directory of the store. A run makes each image that it needs again, so that an image which
//! no run is using is of use only to somebody who repeats a cell's command.

use super::StoreError;
use super::directory::{Directory, Lock};
use super::prune::{self, BLOCK, Entry, Pruned, Pruning};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Their directory in the store.
const DIRECTORY: &str = "images";
/// The end of an image's name.
const END: &str = ".cpio";
/// The end of the name of one that a script is writing, or was.
const UNFINISHED: &str = ".cpio.part";

/// The images of a store.
#[derive(Debug)]
pub struct Images {
    directory: Directory,
    /// Those of this run.
    used: BTreeSet<String>,
}

impl Images {
    /// The images of the store `store`, for a run. No other laboratory removes one of them as long as the value lives.
    pub fn open(store: &Path) -> Result<Self, StoreError> {
        let directory = Directory::open(&store.join(DIRECTORY), &AtomicBool::new(false))?;
        Ok(Self { directory, used: BTreeSet::new() })
    }

    /// The images of the store `store`, to remove some of them; `None` if it has none.
    pub fn existing(store: &Path) -> Result<Option<Self>, StoreError> {
        let directory = Directory::existing(&store.join(DIRECTORY))?;
        Ok(directory.map(|directory| Self { directory, used: BTreeSet::new() }))
    }

    /// Their directory.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// The file of an image that this run uses.
    pub fn file(&mut self, name: &str) -> PathBuf {
        let name = format!("{name}{END}");
        let path = self.path().join(&name);
        self.used.insert(name);
        path
    }

    fn entry(&self, name: String) -> Option<Entry> {
        let metadata = std::fs::symlink_metadata(self.path().join(&name)).ok()?;
        let image = metadata.is_file() && name.ends_with(END);
        Some(Entry { bytes: metadata.blocks() * BLOCK, used: metadata.modified().ok()?, name }).filter(|_| image)
    }

    /// Removes images as `pruning` says, but none of this run, and says what was removed. `None` if another laboratory is running: it may be using them.
    pub fn prune(&self, pruning: &Pruning) -> Option<Pruned> {
        if !self.directory.lock(Lock::Exclusive) {
            return None;
        }
        let entries = self.directory.names().into_iter().filter_map(|name| self.entry(name)).collect();
        let remove = |name: &str| std::fs::remove_file(self.path().join(name));
        let mut pruned = prune::least_recent(self.path(), entries, pruning, |name| self.used.contains(name), remove);
        if !pruning.dry_run {
            let unfinished = self.directory.names().into_iter().filter(|name| name.ends_with(UNFINISHED));
            pruned.unfinished = unfinished.filter(|name| remove(name).is_ok()).count();
        }
        Some(pruned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn names(images: &Images) -> Vec<String> {
        let mut names = images.directory.names();
        names.sort();
        names
    }

    /// Writes an image of 10,000 bytes that was made so many days ago.
    fn write(path: &Path, days: u32) {
        std::fs::write(path, [0; 10_000]).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - days * DAY).unwrap();
    }

    #[test]
    fn images_that_no_run_uses_are_removed_the_oldest_first() {
        let store = std::env::temp_dir().join(format!("tollgate-store-images-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&store);
        assert!(Images::existing(&store).unwrap().is_none());
        let mut run = Images::open(&store).unwrap();
        for (name, days) in [("a", 30), ("b", 20), ("c", 1)] {
            write(&run.file(name), days);
        }
        for foreign in ["notes", "d.cpio.part"] {
            std::fs::write(run.path().join(foreign), "").unwrap();
        }
        let nothing = Pruning { keep: Some(0), ..Pruning::default() };
        // Another laboratory, which has used one of them.
        let mut other = Images::open(&store).unwrap();
        write(&other.file("b"), 20);
        assert_eq!(other.prune(&nothing), None, "the first laboratory is running");
        drop(run);
        let dry = other.prune(&Pruning { dry_run: true, ..nothing.clone() }).unwrap();
        let each = dry.kept.bytes;
        assert_eq!((dry.removed.number, dry.kept.number, names(&other).len()), (2, 1, 5));
        let pruned = other.prune(&Pruning { keep: Some(2 * each), ..Pruning::default() }).unwrap();
        assert_eq!((pruned.removed.number, pruned.kept.bytes, pruned.unfinished), (1, 2 * each, 1));
        assert_eq!(names(&other), ["b.cpio", "c.cpio", "notes"]);
        assert!(Images::existing(&store).unwrap_err().to_string().contains("in use by a running"));
        drop(other);
        let pruner = Images::existing(&store).unwrap().unwrap();
        let old = Pruning { age: Some(10 * DAY), ..Pruning::default() };
        assert_eq!(pruner.prune(&old).unwrap().removed.number, 1);
        assert_eq!(names(&pruner), ["c.cpio", "notes"]);
        std::fs::remove_dir_all(&store).unwrap();
    }
}
