//! Memory in a snapshot: chunks with nonzero contents, each compressed.

use super::error::SnapshotError;
use super::file::decompressed_size;
use super::together::both;
use crate::memory::layout;
use cpu::Ram;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// The file in which the host's kernel says which pages of this process have contents, None if it can't be read.
static PAGES: OnceLock<Option<File>> = OnceLock::new();

/// Opens the file, for a process that confines itself before it saves memory.
pub fn prepare() {
    pages_of_process();
}

fn pages_of_process() -> &'static Option<File> {
    PAGES.get_or_init(|| File::open("/proc/self/pagemap").ok())
}

/// Returns true if a chunk was never written, so that the host has allocated nothing for it. Its bytes, which are zero, need not be read then:
/// to read them, the host would have to map each page. False if that is unknown.
fn is_untouched(host: *mut u8, len: usize) -> bool {
    const ENTRY: usize = 8;
    /// The page is in memory, or has been moved to swap space.
    const HAS_CONTENTS: u64 = 1 << 63 | 1 << 62;
    let Some(file) = pages_of_process() else { return false };
    let mut entries = [0; (CHUNK / PAGE) as usize * ENTRY];
    let page = PAGE as usize;
    let Some(entries) = entries.get_mut(..len.div_ceil(page) * ENTRY) else { return false };
    file.read_exact_at(entries, (host.addr() / page * ENTRY) as u64).is_ok()
        && entries.as_chunks::<ENTRY>().0.iter().all(|entry| u64::from_ne_bytes(*entry) & HAS_CONTENTS == 0)
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
    if is_untouched(host, len as usize) {
        return None;
    }
    map_zeros(host, len as usize);
    // SAFETY: the chunk is within a region, which is mapped as long as the caller's `Ram` lives; no processor and no device runs.
    let bytes = unsafe { std::slice::from_raw_parts(host.cast_const(), len as usize) };
    (!is_zero(bytes)).then(|| Chunk { start, compressed: lz4_flex::block::compress_prepend_size(bytes).into() })
}

/// Memory that is being restored, by several threads.
pub struct Restoring<'a> {
    places: Vec<Place<'a>>,
    next: AtomicUsize,
}

/// A chunk, and where it belongs.
struct Place<'a> {
    start: u64,
    len: usize,
    host: *mut u8,
    compressed: &'a [u8],
}

// SAFETY: the addresses are those of different chunks of memory to which nothing else refers while it is restored (see [`Restoring::all`]),
// and each chunk is taken by one thread.
unsafe impl Sync for Restoring<'_> {}

impl<'a> Restoring<'a> {
    /// Prepares to restore all memory. The chunks must be complete and in order.
    pub fn all(ram: &Ram, chunks: &'a [Chunk]) -> Result<Self, SnapshotError> {
        Self::new(places(ram), chunks.iter())
    }

    /// Prepares to restore the guest's memory, and leaves that of a hypervisor as it is.
    pub fn guest(ram: &Ram, chunks: &'a [Chunk]) -> Result<Self, SnapshotError> {
        let of_guest = |address: u64| !layout::HYPERVISOR.contains(&address);
        let places = places(ram).filter(|(start, ..)| of_guest(*start));
        Self::new(places, chunks.iter().filter(|chunk| of_guest(chunk.start)))
    }

    fn new(
        all: impl Iterator<Item = (u64, u64, *mut u8)>,
        chunks: impl Iterator<Item = &'a Chunk<'a>>,
    ) -> Result<Self, SnapshotError> {
        let mut chunks = chunks.peekable();
        // A range that must become zero and has not been cleared yet.
        let mut zeros: Option<(*mut u8, usize)> = None;
        let mut places = Vec::new();
        for (start, len, host) in all {
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
            places.push(Place { start, len, host, compressed });
        }
        clear(zeros);
        match chunks.next() {
            Some(chunk) => Err(SnapshotError::Memory(chunk.start)),
            None => Ok(Self { places, next: AtomicUsize::new(0) }),
        }
    }

    /// Restores chunks until none is left. Several threads may do so at a time.
    pub fn work(&self) -> Result<(), SnapshotError> {
        while let Some(place) = self.places.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let Place { start, len, host, compressed } = *place;
            populate(host, len);
            // SAFETY: as in `save`; only this thread has taken the chunk, and nothing else refers to its bytes in the meantime.
            let bytes = unsafe { std::slice::from_raw_parts_mut(host, len) };
            if lz4_flex::block::decompress_into(compressed, bytes).ok() != Some(len) {
                return Err(SnapshotError::Memory(start));
            }
        }
        Ok(())
    }
}

/// Allocates the pages of a range at once, instead of by one fault per page. This only saves time: on kernels that do
/// not support it (before 5.14) the pages are allocated one by one.
pub fn populate(host: *mut u8, len: usize) {
    let before = host.addr() % PAGE as usize;
    let (host, len) = (host.wrapping_sub(before), before + len);
    // SAFETY: the contents of the range do not change, and a range that is not mapped is refused.
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

#[cfg(test)]
mod tests {
    use super::*;
    use cpu::mapping::Mapping;

    #[test]
    fn memory_is_untouched_until_it_is_written_and_after_it_is_given_back() {
        let len = CHUNK as usize;
        let memory = Mapping::anonymous(len).unwrap();
        let untouched = || is_untouched(memory.start(), len);
        if !untouched() {
            // The host's kernel does not say so.
            assert!(pages_of_process().is_none());
            return;
        }
        for at in [0, len / 2, len - 1] {
            // SAFETY: the byte is in the mapping.
            unsafe { memory.start().wrapping_add(at).write(1) };
            assert!(!untouched());
            clear(Some((memory.start(), len)));
            assert!(untouched());
        }
        populate(memory.start(), len);
        assert!(!untouched(), "the host has allocated pages of zeros");
    }
}
