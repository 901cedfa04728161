//! The file around a snapshot or a log of input: 8 bytes that say what it is, its version (32 bits, little-endian), the SHA-256 of the rest, and the rest.

use super::error::SnapshotError;
use sha2::{Digest, Sha256};

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A snapshot.
    Snapshot,
    /// Input from outside.
    Input,
}

impl Kind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Snapshot => b"TGSNAP\r\n",
            Self::Input => b"TGINPT\r\n",
        }
    }
}

/// The version that is written and read. The state of a device has one of its own.
const VERSION: u32 = 6;
const HASH: usize = 32;
/// The largest state apart from memory, in bytes: what may be charged, and kept of tasks, has limits far below it.
pub const LARGEST_STATE: usize = 1 << 30;

/// The SHA-256 of bytes, in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file with this content.
pub fn seal(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(content.len() + kind.magic().len() + 4 + HASH);
    file.extend_from_slice(kind.magic());
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&Sha256::digest(content));
    file.extend_from_slice(content);
    file
}

/// The content of a file.
pub fn open(kind: Kind, file: &[u8]) -> Result<&[u8], SnapshotError> {
    let rest = file.strip_prefix(kind.magic()).ok_or(SnapshotError::OtherFile)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::Damaged)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(SnapshotError::Version { found, known: VERSION });
    }
    let (hash, content) = rest.split_first_chunk::<HASH>().ok_or(SnapshotError::Damaged)?;
    if Sha256::digest(content).as_slice() != hash {
        return Err(SnapshotError::Damaged);
    }
    Ok(content)
}

/// A byte of LZ4 stands for no more bytes than that.
const MOST_PER_BYTE: usize = 255;

/// How many bytes what `compress_prepend_size` has made stands for, if it can be so many, and what they are decompressed from.
pub fn decompressed_size(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (size, compressed) = lz4_flex::block::uncompressed_size(bytes).ok()?;
    (size <= compressed.len().saturating_mul(MOST_PER_BYTE)).then_some((size, compressed))
}

/// Decompresses what `compress_prepend_size` has made, at most `largest` bytes. No memory is taken for more than there can be.
pub fn decompress(bytes: &[u8], largest: usize) -> Option<Vec<u8>> {
    let (size, _) = decompressed_size(bytes)?;
    if size > largest {
        return None;
    }
    lz4_flex::block::decompress_size_prepended(bytes).ok()
}
