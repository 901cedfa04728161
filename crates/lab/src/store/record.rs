//! The record in a finished cell's directory: what its files have to be. A host that lost power, a full disk or a careless
//! hand can leave a file with its name and without its contents; the record tells.

use super::{LEDGER, OUTPUT};
use crate::fingerprint;
use crate::format::hexadecimal;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

/// Its name.
pub const RECORD: &str = "cell.json";
/// Changes when a finished cell's directory does.
const FORMAT: u32 = 1;
/// More than any record has, in bytes.
const LARGEST: u64 = 1 << 20;

/// A finished cell's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// The command that runs the cell, for whoever looks into the directory.
    command: String,
    ledger: Contents,
    output: Contents,
}

/// The size and the hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    bytes: u64,
    sha256: String,
}

impl Contents {
    /// The record of the file `name`, or the reason why the file cannot be used.
    fn of(directory: &Path, name: &str) -> Result<Self, String> {
        let path = directory.join(name);
        let unreadable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("it has no file '{name}'"),
            _ => format!("its file '{name}' can't be read: {error}"),
        };
        let metadata = std::fs::symlink_metadata(&path).map_err(unreadable)?;
        // Opening something else might wait for ever.
        if !metadata.is_file() {
            return Err(format!("'{name}' is not a file"));
        }
        let hash = fingerprint::hash(&path).map_err(|unread| unreadable(unread.error))?;
        Ok(Self { bytes: metadata.len(), sha256: hexadecimal(&hash) })
    }

    fn holds(&self, directory: &Path, name: &str) -> Result<(), String> {
        match Self::of(directory, name)? {
            found if found == *self => Ok(()),
            found if found.bytes == 0 => Err(format!("its file '{name}' is empty")),
            _ => Err(format!("its file '{name}' is not what was written")),
        }
    }
}

impl Record {
    /// Of the files in a directory.
    pub fn new(directory: &Path, command: &str) -> Result<Self, String> {
        let (ledger, output) = (Contents::of(directory, LEDGER)?, Contents::of(directory, OUTPUT)?);
        Ok(Self { format: FORMAT, command: command.to_owned(), ledger, output })
    }

    /// SHA-256 of the ledger.
    pub fn ledger_hash(&self) -> &str {
        &self.ledger.sha256
    }

    /// The record in a directory.
    pub fn read(directory: &Path) -> Result<Self, String> {
        let path = directory.join(RECORD);
        let usable = std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
        if !usable {
            return Err(format!("it has no file '{RECORD}'"));
        }
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
        read.map_err(|error| format!("its file '{RECORD}' can't be read: {error}"))?;
        match serde_json::from_slice::<Self>(&text) {
            Ok(record) if record.format == FORMAT => Ok(record),
            Ok(record) => Err(format!("its file '{RECORD}' is of format version {}", record.format)),
            Err(_) => Err(format!("its file '{RECORD}' is not a record")),
        }
    }

    /// Writes it into a directory.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        std::fs::write(directory.join(RECORD), format!("{}\n", serde_json::to_string(self)?))
    }

    /// Checks that the files in a directory match the record; the error is the reason.
    pub fn holds(&self, directory: &Path) -> Result<(), String> {
        self.ledger.holds(directory, LEDGER)?;
        self.output.holds(directory, OUTPUT)
    }

    /// Notes in a directory when the cell was used last.
    pub fn touch(directory: &Path, now: SystemTime) {
        // A store that can't be written to can still be read; nothing is removed from it either.
        let _ = File::open(directory.join(RECORD)).and_then(|file| file.set_modified(now));
    }

    /// When the cell in a directory was used last; one without a record when it was made.
    pub fn used(directory: &Path) -> Option<SystemTime> {
        let modified = |path: &Path| std::fs::symlink_metadata(path)?.modified();
        modified(&directory.join(RECORD)).or_else(|_| modified(directory)).ok()
    }
}
