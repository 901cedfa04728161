//! Memory in a snapshot: chunks that are not all zeros, each compressed.

use super::error::SnapshotError;
use super::file::decompress;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use x86::page::PAGE;

/// Bytes of memory that are compressed together.
const CHUNK: u64 = 64 * PAGE;

/// A piece of memory that is not all zeros.
#[derive(Serialize, Deserialize)]
pub struct Chunk {
    /// Its first guest-physical address.
    start: u64,
    #[serde(with = "serde_bytes")]
    compressed: Vec<u8>,
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
pub fn save(ram: &Ram) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (start, len, host) in places(ram) {
        // SAFETY: the chunk is within a region, which is mapped as long as `ram` lives; no processor and no device runs.
        let bytes = unsafe { std::slice::from_raw_parts(host.cast_const(), len as usize) };
        if !is_zero(bytes) {
            chunks.push(Chunk { start, compressed: lz4_flex::block::compress_prepend_size(bytes) });
        }
    }
    chunks
}

/// Makes memory what it was. Chunks must be in order, and be all that there is.
pub fn restore(ram: &Ram, chunks: &[Chunk]) -> Result<(), SnapshotError> {
    let mut chunks = chunks.iter().peekable();
    for (start, len, host) in places(ram) {
        // SAFETY: as in `save`; nothing else refers to the bytes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(host, len as usize) };
        match chunks.next_if(|chunk| chunk.start == start) {
            Some(chunk) => {
                let saved = decompress(&chunk.compressed, len as usize).ok_or(SnapshotError::Memory(start))?;
                if saved.len() != bytes.len() {
                    return Err(SnapshotError::Memory(start));
                }
                bytes.copy_from_slice(&saved);
            }
            // Memory that was never touched takes none here either.
            None if is_zero(bytes) => {}
            None => bytes.fill(0),
        }
    }
    match chunks.next() {
        Some(chunk) => Err(SnapshotError::Memory(chunk.start)),
        None => Ok(()),
    }
}
