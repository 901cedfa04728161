//! Guest memory: the layout of RAM, the memory map for the guest, and the log of ranges that devices wrote.
//!
//! RAM fills guest-physical addresses from 0 to 3 GiB and goes on at 4 GiB; between them lie the windows of [`layout`].
//! The host maps it without reserving swap, so that only pages which the guest touches use memory, and between guard pages.
//!
//! The processor caches decoded instructions of RAM pages. It sees its own stores but not those of devices, so every
//! write through [`GuestMap`] (loaders, virtio) is logged by address. After each device access the board drains the
//! log with [`GuestRam::take_written`] and drops the instructions decoded from those bytes. The log does not track
//! which pages hold code: a lookup in the processor's code map is cheap, and a second copy could become stale.

use cpu::mapping::Mapping;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use x86::page::PAGE;

use thiserror::Error;
use vm_memory::bitmap::{Bitmap, RefSlice, WithBitmapSlice};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

/// Fixed guest-physical addresses of the board.
pub mod layout {
    use std::ops::Range;

    /// End of RAM below 4 GiB, and start of the windows.
    pub const LOW_RAM_END: u64 = 0xc000_0000;
    /// Start of the RAM above 4 GiB.
    pub const HIGH_RAM_START: u64 = 1 << 32;
    /// First byte of the extended BIOS data area; conventional memory ends here.
    pub const CONVENTIONAL_END: u64 = 0x9_fc00;
    /// End of the legacy hole.
    pub const LEGACY_END: u64 = 0x10_0000;
    /// The legacy BIOS area, which holds the firmware's tables.
    pub const FIRMWARE: Range<u64> = 0xe_0000..0x10_0000;
    /// ACPI tables.
    pub const ACPI: Range<u64> = 0xe_0000..0xf_0000;
    /// SMBIOS entry points and tables. The interrupt handlers follow.
    pub const SMBIOS: Range<u64> = 0xf_0000..0xf_f000;
    /// PCI memory window, for base address registers.
    pub const PCI_WINDOW: Range<u64> = 0xc000_0000..0xe000_0000;
    /// Physical addresses at which the processor keeps a hypervisor's tables. A guest access here reaches the PCI window, never the tables.
    pub const HYPERVISOR: Range<u64> = 0xd000_0000..0xe000_0000;
    /// PCI enhanced configuration space of bus 0.
    pub const PCI_ECAM: Range<u64> = 0xe000_0000..0xe010_0000;
    /// I/O APIC registers.
    pub const IO_APIC: u64 = 0xfec0_0000;
    /// Local APIC registers after reset.
    pub const LOCAL_APIC: u64 = 0xfee0_0000;
}

/// Number of logged ranges at which the log is first compacted.
const LOG_RANGES: usize = 1024;

/// Smallest guest memory in bytes: the legacy 1 MiB.
pub const MIN_SIZE: u64 = 1 << 20;
/// Largest guest memory in bytes: 1 TiB.
pub const MAX_SIZE: u64 = 1 << 40;

/// The reason why guest memory can't be created.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The size is below [`MIN_SIZE`].
    #[error("{0} bytes of guest memory is less than the minimum of 1 MiB")]
    TooSmall(u64),
    /// The size is above [`MAX_SIZE`].
    #[error("{0} bytes of guest memory is more than the maximum of 1 TiB")]
    TooLarge(u64),
    /// The size is not a multiple of 4096.
    #[error("{0} bytes of guest memory is not a multiple of 4096")]
    NotPages(u64),
    /// The host refused the mapping.
    #[error("the host cannot map {size} bytes for guest memory")]
    Map {
        /// Requested size in bytes.
        size: u64,
        /// The host's error.
        #[source]
        cause: io::Error,
    },
}

/// Checks that guest memory can have a size.
///
/// # Errors
/// Returns an error if the size is too small, too large, or no multiple of a page's.
pub fn check_size(size: u64) -> Result<(), MemoryError> {
    match size {
        ..MIN_SIZE => Err(MemoryError::TooSmall(size)),
        _ if size > MAX_SIZE => Err(MemoryError::TooLarge(size)),
        _ if !size.is_multiple_of(PAGE) => Err(MemoryError::NotPages(size)),
        _ => Ok(()),
    }
}

/// Guest memory with a write log, for devices and loaders.
pub type GuestMap = GuestMemoryMmap<WriteWatch>;

/// Type of an [`E820Entry`], with the firmware interface's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum E820Kind {
    /// Free for the operating system.
    Usable = 1,
    /// Not available to the operating system.
    Reserved = 2,
}

/// An entry of the memory map that firmware hands to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct E820Entry {
    /// First guest-physical address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Type of the range.
    pub kind: E820Kind,
}

/// A range of guest RAM and its host address.
#[derive(Clone, Copy, Debug)]
pub struct HostRange {
    /// First guest-physical address.
    pub start: u64,
    /// Length in bytes, a multiple of 4096.
    pub len: u64,
    /// Host address of the first byte, valid while a clone of the [`GuestRam`] exists.
    pub host: *mut u8,
}

/// All RAM of a machine. Clones share the memory.
#[derive(Clone, Debug)]
pub struct GuestRam {
    map: GuestMap,
    log: Arc<WriteLog>,
    size: u64,
}

impl GuestRam {
    /// Allocates `size` bytes of zeroed memory; `size` is between [`MIN_SIZE`] and [`MAX_SIZE`].
    pub fn new(size: u64) -> Result<Self, MemoryError> {
        check_size(size)?;
        let log = Arc::new(WriteLog::default());
        let low = size.min(layout::LOW_RAM_END);
        let mut regions = vec![region(0, low, &log)?];
        if size > low {
            regions.push(region(layout::HIGH_RAM_START, size - low, &log)?);
        }
        let map = GuestMap::from_regions(regions)
            .map_err(|e| MemoryError::Map { size, cause: io::Error::other(e.to_string()) })?;
        Ok(Self { map, log, size })
    }

    /// Returns the size of RAM in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the memory for devices and loaders; writes through it are logged.
    pub fn map(&self) -> &GuestMap {
        &self.map
    }

    /// Returns the ranges of RAM, by address.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.map.iter().map(|r| r.start_addr().raw_value()..r.start_addr().raw_value() + r.len()).collect()
    }

    /// Returns the ranges of RAM with their host addresses, for the processor.
    pub fn host_ranges(&self) -> Vec<HostRange> {
        let host = |r: &GuestRegionMmap<WriteWatch>| HostRange {
            start: r.start_addr().raw_value(),
            len: r.len(),
            host: r.as_ptr(),
        };
        self.map.iter().map(host).collect()
    }

    /// Returns the end of the RAM below 4 GiB.
    pub fn low_end(&self) -> u64 {
        self.size.min(layout::LOW_RAM_END)
    }

    /// Returns true if the whole range is RAM.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        start.checked_add(len).is_some_and(|end| self.ranges().iter().any(|r| r.start <= start && end <= r.end))
    }

    /// Copies `bytes` into RAM. Returns false if any byte of the range is not RAM; part of the range may then be written.
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.map.write_slice(bytes, GuestAddress(address)).is_ok()
    }

    /// Copies from RAM. Returns false if any byte of the range is not RAM.
    #[must_use]
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.map.read_slice(bytes, GuestAddress(address)).is_ok()
    }

    /// Calls `look` with the RAM from `start` on, at most `len` bytes, without copying it. The slice ends where RAM does.
    pub fn with_ram<R>(&self, start: u64, len: u64, look: impl FnOnce(&[u8]) -> R) -> R {
        let of_range = |r: HostRange| Some((r, start.checked_sub(r.start).filter(|offset| *offset < r.len)?));
        let Some((range, offset)) = self.host_ranges().into_iter().find_map(of_range) else { return look(&[]) };
        let len = len.min(range.len - offset);
        // SAFETY: `offset` and `len` are inside the range, which is mapped as long as `self` lives. Everything that writes to
        // guest memory (processors, devices, loaders) runs on this thread, and none of it runs while `look` does.
        look(unsafe { std::slice::from_raw_parts(range.host.add(offset as usize), len as usize) })
    }

    /// Returns the memory map for the guest, by address.
    pub fn e820(&self) -> Vec<E820Entry> {
        use E820Kind::{Reserved, Usable};
        let entry = |range: Range<u64>, kind| E820Entry { start: range.start, len: range.end - range.start, kind };
        let mut map = vec![
            entry(0..layout::CONVENTIONAL_END, Usable),
            entry(layout::CONVENTIONAL_END..layout::LEGACY_END, Reserved),
        ];
        if self.low_end() > layout::LEGACY_END {
            map.push(entry(layout::LEGACY_END..self.low_end(), Usable));
        }
        map.push(entry(layout::PCI_ECAM, Reserved));
        if self.size > self.low_end() {
            let end = layout::HIGH_RAM_START + (self.size - self.low_end());
            map.push(entry(layout::HIGH_RAM_START..end, Usable));
        }
        map
    }

    /// Returns true if the log is not empty. Cheap.
    pub fn has_written(&self) -> bool {
        self.log.any.load(Ordering::Relaxed)
    }

    /// Takes the guest-physical ranges written through [`Self::map`] since the last call. They cover every written
    /// byte, may overlap, and are rounded out to whole pages after a large number of writes.
    pub fn take_written(&self) -> Vec<Range<u64>> {
        self.log.any.store(false, Ordering::Relaxed);
        let mut written = self.log.lock();
        written.limit = LOG_RANGES;
        std::mem::take(&mut written.ranges)
    }
}

fn region(start: u64, len: u64, log: &Arc<WriteLog>) -> Result<GuestRegionMmap<WriteWatch>, MemoryError> {
    let refused = |cause| MemoryError::Map { size: len, cause };
    let size = usize::try_from(len).map_err(|e| refused(io::Error::other(e)))?;
    let memory = Mapping::anonymous(size).map_err(refused)?;
    let at = memory.start();
    let watch = WriteWatch { start, log: Arc::clone(log), _memory: memory };
    let builder = MmapRegionBuilder::new_with_bitmap(size, watch)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    // SAFETY: the mapping has the given size and protection, and the region owns it.
    let region = unsafe { builder.with_raw_mmap_pointer(at) }.build();
    let region = region.map_err(|e| refused(io::Error::other(e.to_string())))?;
    GuestRegionMmap::new(region, GuestAddress(start))
        .ok_or_else(|| refused(io::Error::other("guest addresses wrap around")))
}

#[derive(Debug)]
struct Written {
    ranges: Vec<Range<u64>>,
    limit: usize,
}

#[derive(Debug)]
struct WriteLog {
    any: AtomicBool,
    written: Mutex<Written>,
}

impl Default for WriteLog {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), written: Mutex::new(Written { ranges: Vec::new(), limit: LOG_RANGES }) }
    }
}

impl WriteLog {
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, range: Range<u64>) {
        let mut written = self.lock();
        match written.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => written.ranges.push(range),
        }
        if written.ranges.len() >= written.limit {
            compact(&mut written.ranges);
            written.limit = LOG_RANGES.max(2 * written.ranges.len());
        }
        self.any.store(true, Ordering::Relaxed);
    }
}

/// Rounds the ranges to pages and merges them, which bounds the log at two ranges per page of RAM.
fn compact(ranges: &mut Vec<Range<u64>>) {
    for range in ranges.iter_mut() {
        *range = range.start & !(PAGE - 1)..range.end.next_multiple_of(PAGE);
    }
    ranges.sort_unstable_by_key(|r| r.start);
    ranges.dedup_by(|next, kept| {
        let joined = next.start <= kept.end;
        if joined {
            kept.end = kept.end.max(next.end);
        }
        joined
    });
}

/// Logs writes to one region of guest memory.
#[derive(Debug)]
pub struct WriteWatch {
    start: u64,
    log: Arc<WriteLog>,
    /// The region's memory, which vm-memory does not own.
    _memory: Mapping,
}

impl<'a> WithBitmapSlice<'a> for WriteWatch {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for WriteWatch {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len > 0 {
            let start = self.start.saturating_add(offset as u64);
            self.log.add(start..start.saturating_add(len as u64));
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let address = self.start.saturating_add(offset as u64);
        self.log.lock().ranges.iter().any(|r| r.contains(&address))
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_outside_the_limits_are_refused() {
        assert!(matches!(GuestRam::new(0), Err(MemoryError::TooSmall(0))));
        assert!(matches!(GuestRam::new(MIN_SIZE - 4096), Err(MemoryError::TooSmall(_))));
        assert!(matches!(GuestRam::new(MAX_SIZE + 4096), Err(MemoryError::TooLarge(_))));
        assert!(matches!(GuestRam::new(u64::MAX), Err(MemoryError::TooLarge(_))));
        assert!(matches!(GuestRam::new(MIN_SIZE + 1), Err(MemoryError::NotPages(_))));
    }

    #[test]
    fn the_largest_memory_maps_and_splits_around_the_windows() {
        let ram = GuestRam::new(MAX_SIZE).unwrap();
        let high = layout::HIGH_RAM_START..layout::HIGH_RAM_START + MAX_SIZE - layout::LOW_RAM_END;
        assert_eq!(ram.ranges(), [0..layout::LOW_RAM_END, high.clone()]);
        assert!(ram.write(high.end - 1, &[7]));
        assert!(!ram.write(high.end, &[7]));
        assert!(!ram.write(layout::LOW_RAM_END, &[7]));
        assert!(ram.contains(layout::LOW_RAM_END - 1, 1));
        assert!(!ram.contains(layout::LOW_RAM_END - 1, 2));
        assert!(!ram.contains(u64::MAX, 2));
    }

    #[test]
    fn the_map_has_a_legacy_hole_backed_by_ram() {
        let ram = GuestRam::new(64 << 20).unwrap();
        let map = ram.e820();
        assert_eq!(map[0], E820Entry { start: 0, len: 0x9fc00, kind: E820Kind::Usable });
        assert_eq!(map[1], E820Entry { start: 0x9fc00, len: 0x60400, kind: E820Kind::Reserved });
        assert_eq!(map[2], E820Entry { start: 0x100000, len: 63 << 20, kind: E820Kind::Usable });
        assert!(map.iter().zip(&map[1..]).all(|(a, b)| a.start + a.len <= b.start));
        assert!(ram.write(0xa0000, &[1]));
        assert!(GuestRam::new(MIN_SIZE).unwrap().e820().iter().all(|e| e.len > 0));
    }

    #[test]
    fn writes_are_logged_with_their_guest_addresses() {
        let ram = GuestRam::new(5 << 30).unwrap();
        assert!(!ram.has_written());
        assert!(ram.write(0x1234, &[1, 2, 3]));
        ram.map().write_obj(5u64, GuestAddress(layout::HIGH_RAM_START + 8)).unwrap();
        ram.map().store(5u16, GuestAddress(0x2000), Ordering::Relaxed).unwrap();
        assert!(ram.has_written());
        let high = layout::HIGH_RAM_START + 8;
        assert_eq!(ram.take_written(), [0x1234..0x1237, high..high + 8, 0x2000..0x2002]);
        assert!(!ram.has_written());
        assert!(ram.take_written().is_empty());
        let mut back = [0; 3];
        assert!(ram.read(0x1234, &mut back));
        assert_eq!(back, [1, 2, 3]);
        assert!(!ram.has_written());
    }

    #[test]
    fn a_view_ends_with_its_range() {
        let ram = GuestRam::new(5 << 30).unwrap();
        let high = layout::HIGH_RAM_START;
        assert!(ram.write(high + 4096, &[1, 2, 3]));
        ram.with_ram(high + 4097, 2, |bytes| assert_eq!(bytes, [2, 3]));
        ram.with_ram(layout::LOW_RAM_END - 2, 4, |bytes| assert_eq!(bytes, [0, 0]));
        for nothing in [layout::LOW_RAM_END, high - 1, high + (2 << 30), u64::MAX] {
            ram.with_ram(nothing, u64::MAX, |bytes| assert!(bytes.is_empty()));
        }
    }

    #[test]
    fn the_log_stays_small_and_covers_everything() {
        let ram = GuestRam::new(16 << 20).unwrap();
        for i in 0..100_000u64 {
            let address = (i * 7919) % (16 << 20);
            assert!(ram.write(address, &[1]));
        }
        let written = ram.take_written();
        assert!(written.len() <= 8192, "{}", written.len());
        for i in 0..100_000u64 {
            let address = (i * 7919) % (16 << 20);
            if i % 997 == 0 {
                assert!(written.iter().any(|r| r.contains(&address)));
            }
        }
    }
}
