//! Memory in a snapshot: chunks with nonzero contents, each compressed.

use super::error::SnapshotError;
use super::file::decompressed_size;
use super::together::both;
use crate::memory::layout;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use x86::page::PAGE;

/// Unit of compression in bytes.
const CHUNK: u64 = 64 * PAGE;

/// A piece of memory with nonzero contents.
#[derive(Serialize, Deserialize)]
pub struct Chunk<'a> {
    /// First guest-physical address.
    start: u64,
    #[serde(borrow, with = "serde_bytes")]
    compressed: Cow<'a, [u8]>,
}

/// Returns all possible chunks in order: start, length, and host address.
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

/// Saves all memory, including the hypervisor's tables.
pub fn save(ram: &Ram) -> Vec<Chunk<'static>> {
    let half = |number| places(ram).skip(number).step_by(2).filter_map(chunk).collect::<Vec<_>>();
    let (mut chunks, others) = both(|| half(0), || half(1));
    chunks.extend(others);
    chunks.sort_unstable_by_key(|chunk| chunk.start);
    chunks
}

/// Returns the chunk of a place, unless all of it is zero.
fn chunk((start, len, host): (u64, u64, *mut u8)) -> Option<Chunk<'static>> {
    map_zeros(host, len as usize);
    // SAFETY: the chunk is within a region, which is mapped as long as the caller's `Ram` lives; no processor and no device runs.
    let bytes = unsafe { std::slice::from_raw_parts(host.cast_const(), len as usize) };
    (!is_zero(bytes)).then(|| Chunk { start, compressed: lz4_flex::block::compress_prepend_size(bytes).into() })
}

/// Restores memory. The chunks must be complete and in order.
pub fn restore(ram: &Ram, chunks: &[Chunk]) -> Result<(), SnapshotError> {
    fill(places(ram), chunks.iter())
}

/// Restores the guest's memory, and leaves that of a hypervisor as it is.
pub fn restore_guest(ram: &Ram, chunks: &[Chunk]) -> Result<(), SnapshotError> {
    let of_guest = |address: u64| !layout::HYPERVISOR.contains(&address);
    let places = places(ram).filter(|(start, ..)| of_guest(*start));
    fill(places, chunks.iter().filter(|chunk| of_guest(chunk.start)))
}

fn fill<'a>(
    places: impl Iterator<Item = (u64, u64, *mut u8)>,
    chunks: impl Iterator<Item = &'a Chunk<'a>>,
) -> Result<(), SnapshotError> {
    let mut chunks = chunks.peekable();
    // A range that must become zero and has not been cleared yet.
    let mut zeros: Option<(*mut u8, usize)> = None;
    for (start, len, host) in places {
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
        // SAFETY: as in `save`; nothing else refers to the bytes in the meantime.
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

/// Allocates the pages of a range at once, instead of by one fault per page. This only saves time: on kernels that do
/// not support it (before 5.14) the pages are allocated one by one.
fn populate(host: *mut u8, len: usize) {
    // SAFETY: the range is within a mapped region (see `places`), and its contents do not change.
    let _ = unsafe { libc::madvise(host.cast(), len, libc::MADV_POPULATE_WRITE) };
}

/// Makes a range readable at once, where no page was touched yet, instead of by one fault per page; as [`populate`] it only saves time.
fn map_zeros(host: *mut u8, len: usize) {
    // SAFETY: the range is within a mapped region (see `places`), and its contents do not change.
    let _ = unsafe { libc::madvise(host.cast(), len, libc::MADV_POPULATE_READ) };
}

/// Clears a range. Guest memory is anonymous and private, so returning its pages to the kernel clears it, and pages
/// that were never touched stay unallocated.
fn clear(range: Option<(*mut u8, usize)>) {
    let Some((host, len)) = range else { return };
    // SAFETY: the range is within a mapped region (see `places`), to which nothing refers in the meantime.
    if unsafe { libc::madvise(host.cast(), len, libc::MADV_DONTNEED) } != 0 {
        // SAFETY: likewise.
        unsafe { std::slice::from_raw_parts_mut(host, len) }.fill(0);
    }
}
