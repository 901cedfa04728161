//! Memory in a snapshot: chunks that are not all zeros, each compressed.

use super::error::SnapshotError;
use super::file::decompressed_size;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use x86::page::PAGE;

/// Bytes of memory that are compressed together.
const CHUNK: u64 = 64 * PAGE;

/// A piece of memory that is not all zeros.
#[derive(Serialize, Deserialize)]
pub struct Chunk<'a> {
    /// Its first guest-physical address.
    start: u64,
    #[serde(borrow, with = "serde_bytes")]
    compressed: Cow<'a, [u8]>,
}

/// Where chunks may be: start and length of each, in order, with what is there.
fn places(ram: &Ram) -> impl Iterator<Item = (u64, u64, *mut u8)> + '_ {
    ram.regions().iter().flat_map(|region| {
        (0..region.len).step_by(CHUNK as usize).map(move |offset| {
            let len = CHUNK.min(region.len - offset);
            (region.start + offset, len, region.host.wrapping_add(offset as usize))
        })
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(16).all(|part| part.iter().fold(0, |any, byte| any | byte) == 0)
}

/// All memory, the hypervisor's tables included.
pub fn save(ram: &Ram) -> Vec<Chunk<'static>> {
    let mut chunks = Vec::new();
    for (start, len, host) in places(ram) {
        // SAFETY: the chunk is within a region, which is mapped as long as `ram` lives; no processor and no device runs.
        let bytes = unsafe { std::slice::from_raw_parts(host.cast_const(), len as usize) };
        if !is_zero(bytes) {
            chunks.push(Chunk { start, compressed: lz4_flex::block::compress_prepend_size(bytes).into() });
        }
    }
    chunks
}

/// Makes memory what it was. Chunks must be in order, and be all that there is.
pub fn restore(ram: &Ram, chunks: &[Chunk]) -> Result<(), SnapshotError> {
    let mut chunks = chunks.iter().peekable();
    // Memory that is all zeros and has not been cleared yet.
    let mut zeros: Option<(*mut u8, usize)> = None;
    for (start, len, host) in places(ram) {
        let len = len as usize;
        let Some(chunk) = chunks.next_if(|chunk| chunk.start == start) else {
            zeros = match zeros {
                Some((first, before)) if first.wrapping_add(before) == host => Some((first, before + len)),
                other => {
                    clear(other);
                    Some((host, len))
                }
            };
            continue;
        };
        let (size, compressed) = decompressed_size(&chunk.compressed).ok_or(SnapshotError::Memory(start))?;
        if size != len {
            return Err(SnapshotError::Memory(start));
        }
        populate(host, len);
        // SAFETY: as in `save`; nothing else refers to the bytes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(host, len) };
        if lz4_flex::block::decompress_into(compressed, bytes).ok() != Some(len) {
            return Err(SnapshotError::Memory(start));
        }
    }
    clear(zeros);
    match chunks.next() {
        Some(chunk) => Err(SnapshotError::Memory(chunk.start)),
        None => Ok(()),
    }
}

/// Takes the pages of memory at once, in place of one fault for each. It only saves time: where the kernel does not know how (before 5.14) they come one by one.
fn populate(host: *mut u8, len: usize) {
    // SAFETY: the range is within a mapped region (see `places`), and what it holds does not change.
    let _ = unsafe { libc::madvise(host.cast(), len, libc::MADV_POPULATE_WRITE) };
}

/// Makes memory zeros. That of guests is anonymous and private, so giving its pages back does that, and pages that were never touched stay so.
fn clear(range: Option<(*mut u8, usize)>) {
    let Some((host, len)) = range else { return };
    // SAFETY: the range is within a mapped region (see `places`), which nothing refers to meanwhile.
    if unsafe { libc::madvise(host.cast(), len, libc::MADV_DONTNEED) } != 0 {
        // SAFETY: likewise.
        unsafe { std::slice::from_raw_parts_mut(host, len) }.fill(0);
    }
}
