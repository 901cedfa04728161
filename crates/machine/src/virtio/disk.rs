//! Backings of block devices: an image file, a block device of the host, or the invention of a test.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Size of a sector in bytes.
pub const SECTOR: u64 = 512;

/// Storage for the sectors of a block device.
pub trait Backing: Send {
    /// Returns the length in bytes.
    fn len(&self) -> u64;
    /// Returns true if the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns true if writes are refused.
    fn read_only(&self) -> bool;
    /// Reads all of `buffer`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes writes durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// Reason for which a disk image can't be used.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The image can't be opened.
    #[error("cannot open the disk {path}: {cause}")]
    Open {
        /// Path of the image.
        path: PathBuf,
        /// Error of the host.
        cause: io::Error,
    },
    /// The path names a directory, a pipe, or another unsuitable file.
    #[error("cannot use the disk {0}: neither a regular file nor a block device")]
    NotADisk(PathBuf),
    /// The image is smaller than one sector.
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
    /// Opens an image. A partial sector at the end is not accessible.
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
