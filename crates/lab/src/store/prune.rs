//! The removal of finished cells, of outputs of failed ones and of images: those not used for long, and the least recently used of those that together take too
//! much room.

use super::record::{RECORD, Record};
use super::{FAILED, LEDGER, OUTPUT, Store};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Digits of a fingerprint.
const DIGITS: usize = 32;
/// Bytes of the unit of a file's blocks.
pub(super) const BLOCK: u64 = 512;

/// The cells or images to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruning {
    /// The least recently used, until those that are left take at most so many bytes on the disk.
    pub keep: Option<u64>,
    /// Those that were not used for so long.
    pub age: Option<Duration>,
    /// Nothing: only says what would be removed.
    pub dry_run: bool,
}

/// Cells or images, and the bytes that they take on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Their number.
    pub number: usize,
    /// Bytes.
    pub bytes: u64,
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.number += 1;
        self.bytes += bytes;
    }
}

/// The result of the removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Entries that were removed.
    pub removed: Size,
    /// Entries that are left.
    pub kept: Size,
    /// Unfinished entries of laboratories that were killed, which were removed too.
    pub unfinished: usize,
    /// The first one that could not be removed, with the reason.
    pub failed: Option<String>,
}

/// A finished cell, or what is left of one; the output of a cell that has failed; or an image.
pub(super) struct Entry {
    pub name: String,
    pub bytes: u64,
    pub used: SystemTime,
}

/// The entry of that name, if it is certainly one of ours: nothing else is ever removed.
fn entry(store: &Path, name: String) -> Option<Entry> {
    let fingerprint = name.strip_suffix(FAILED).unwrap_or(&name);
    let is_ours =
        fingerprint.len() == DIGITS && fingerprint.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let path = store.join(&name);
    let metadata = std::fs::symlink_metadata(&path).ok()?;
    if is_ours && name.len() != DIGITS && metadata.is_file() {
        return Some(Entry { used: metadata.modified().ok()?, name, bytes: metadata.blocks() * BLOCK });
    }
    if !is_ours || !metadata.is_dir() {
        return None;
    }
    let mut bytes = 0;
    for file in std::fs::read_dir(&path).ok()? {
        let file = file.ok()?;
        let ours = [LEDGER, OUTPUT, RECORD].iter().any(|ours| file.file_name() == *ours);
        if !ours {
            return None;
        }
        bytes += std::fs::symlink_metadata(file.path()).ok()?.blocks() * BLOCK;
    }
    Some(Entry { used: Record::used(&path)?, name, bytes })
}

/// Removes what `pruning` says and `spared` does not exempt.
pub(super) fn prune(store: &Store, pruning: &Pruning, spared: impl Fn(&str) -> bool) -> Pruned {
    let names = store.directory.names().into_iter();
    let entries = names.filter_map(|name| entry(store.path(), name)).collect();
    least_recent(store.path(), entries, pruning, spared, |name| store.remove(name))
}

/// Removes entries of a directory as `pruning` says, by `remove`, but none that `spared` exempts.
pub(super) fn least_recent(
    directory: &Path,
    mut entries: Vec<Entry>,
    pruning: &Pruning,
    spared: impl Fn(&str) -> bool,
    remove: impl Fn(&str) -> std::io::Result<()>,
) -> Pruned {
    entries.sort_by(|a, b| (a.used, &a.name).cmp(&(b.used, &b.name)));
    let mut left: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let now = SystemTime::now();
    let mut pruned = Pruned::default();
    for entry in entries {
        // One from the future is as new as can be.
        let age = now.duration_since(entry.used).unwrap_or_default();
        let wanted = pruning.age.is_some_and(|limit| age >= limit) || pruning.keep.is_some_and(|keep| left > keep);
        let removed = match wanted && !spared(&entry.name) {
            true if pruning.dry_run => Ok(true),
            true => remove(&entry.name).map(|()| true),
            false => Ok(false),
        };
        let removed = removed.unwrap_or_else(|error| {
            pruned.failed.get_or_insert(format!("{}: {error}", directory.join(&entry.name).display()));
            false
        });
        if removed {
            left -= entry.bytes;
            pruned.removed.add(entry.bytes);
        } else {
            pruned.kept.add(entry.bytes);
        }
    }
    pruned
}
