//! File format of snapshots and input logs: 8 bytes of magic, the version (32 bits, little-endian), the SHA-256 of the
//! rest, and the rest.

use super::error::SnapshotError;
use super::together::both;
use crate::state::StateError;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Contents of a file.
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

    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "a snapshot",
            Self::Input => "recorded input",
        }
    }
}

/// Version of the format. The state of each device has a version of its own.
const VERSION: u32 = 32;
const HASH: usize = 32;
/// Maximum size of the state without memory, in bytes; the limits of charges and tasks are far below it.
pub const LARGEST_STATE: usize = 1 << 30;

/// Returns the SHA-256 of bytes, in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates a file with these contents.
pub fn seal(kind: Kind, content: &impl Serialize) -> Result<Vec<u8>, SnapshotError> {
    seal_with(kind, |file| Ok(postcard::to_extend(content, file).map_err(StateError::from)?))
}

/// Creates a file to which `add` adds the contents.
pub fn seal_with(
    kind: Kind,
    add: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, SnapshotError>,
) -> Result<Vec<u8>, SnapshotError> {
    let mut file = kind.magic().to_vec();
    file.extend_from_slice(&VERSION.to_le_bytes());
    let hash = file.len();
    file.extend_from_slice(&[0; HASH]);
    let mut file = add(file)?;
    let (before, content) = file.split_at_mut(hash + HASH);
    before[hash..].copy_from_slice(&Sha256::digest(content));
    Ok(file)
}

/// Passes the contents of a file to `read` and returns its result, while another thread computes their checksum. If that is wrong, what `read`
/// returned is not used.
pub fn read<T>(
    kind: Kind,
    file: &[u8],
    read: impl FnOnce(&[u8]) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let (hash, content) = parts(kind, file)?;
    match both(|| Sha256::digest(content).as_slice() == hash, || read(content)) {
        (true, result) => result,
        (false, _) => Err(SnapshotError::Damaged),
    }
}

/// Returns the contents of a file.
pub fn open(kind: Kind, file: &[u8]) -> Result<&[u8], SnapshotError> {
    let (hash, content) = parts(kind, file)?;
    if Sha256::digest(content).as_slice() != hash {
        return Err(SnapshotError::Damaged);
    }
    Ok(content)
}

/// Returns the checksum and the contents of a file.
fn parts(kind: Kind, file: &[u8]) -> Result<(&[u8; HASH], &[u8]), SnapshotError> {
    let rest = file.strip_prefix(kind.magic()).ok_or(SnapshotError::OtherFile(kind.name()))?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::Damaged)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(SnapshotError::Version { found, known: VERSION });
    }
    rest.split_first_chunk::<HASH>().ok_or(SnapshotError::Damaged)
}

/// Maximum number of bytes that one byte of LZ4 expands to.
const MOST_PER_BYTE: usize = 255;

/// Returns the decompressed size of data from `compress_prepend_size`, if it is plausible, and the compressed bytes.
pub fn decompressed_size(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (size, compressed) = lz4_flex::block::uncompressed_size(bytes).ok()?;
    (size <= compressed.len().saturating_mul(MOST_PER_BYTE)).then_some((size, compressed))
}

/// Decompresses data from `compress_prepend_size` to at most `largest` bytes. An implausible size allocates no memory.
pub fn decompress(bytes: &[u8], largest: usize) -> Option<Vec<u8>> {
    let (size, _) = decompressed_size(bytes)?;
    if size > largest {
        return None;
    }
    lz4_flex::block::decompress_size_prepended(bytes).ok()
}
