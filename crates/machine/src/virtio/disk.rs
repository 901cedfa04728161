//! What a block device's sectors are in: a file, a block device of the host, or what a test makes up.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// What holds the sectors.
pub trait Backing: Send {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether writes are refused.
    fn read_only(&self) -> bool;
    /// Reads all of `buffer`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes writes durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// Why a disk image can't be used.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It can't be opened.
    #[error("cannot open the disk {path}: {cause}")]
    Open {
        /// Which file.
        path: PathBuf,
        /// What the host said.
        cause: io::Error,
    },
    /// A directory, a pipe, ...
    #[error("cannot use the disk {0}: neither a regular file nor a block device")]
    NotADisk(PathBuf),
    /// Less than one sector.
    #[error("the disk {0} is smaller than one sector of 512 bytes")]
    TooSmall(PathBuf),
}

/// A raw image in a file, or a block device of the host.
#[derive(Debug)]
pub struct Disk {
    file: File,
    len: u64,
    read_only: bool,
}

impl Disk {
    /// Opens an image. A trailing part of a sector is not accessible.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, DiskError> {
        use std::os::unix::fs::FileTypeExt;
        let failed = |cause| DiskError::Open { path: path.to_path_buf(), cause };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::NotADisk(path.to_path_buf()));
        }
        let mut file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(failed)?;
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if len < SECTOR {
            return Err(DiskError::TooSmall(path.to_path_buf()));
        }
        Ok(Self { file, len, read_only })
    }
}

impl Backing for Disk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
