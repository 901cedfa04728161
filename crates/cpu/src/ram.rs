//! Guest-physical RAM as seen by the processor: host pointers, and marks of decoded and monitored bytes.
//!
//! Writes to decoded bytes and to lines armed by MONITOR must be noticed, whichever processor or device makes them.
//! Both are marked in one map of 64-byte lines: the fast path for writes only contains pages without a marked line.
//!
//! This is one of the modules with `unsafe`: guest memory is shared with devices and is only accessed through raw
//! pointers, never through Rust references. Processors and devices take turns: whoever holds a clone may be moved to another
//! thread, but only one of them accesses the memory at a time. The marks are atomic, so that this is all that is asked.

use crate::bus::lock;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use x86::page::PAGE;
use zerocopy::{FromBytes, IntoBytes};

/// Number of pages in an aligned group, see [`Ram::around`].
pub const GROUP: usize = 8;

/// A contiguous range of RAM.
#[derive(Clone, Copy, Debug)]
pub struct RamRegion {
    /// First guest-physical address; page aligned.
    pub start: u64,
    /// Size in bytes; a multiple of the page size.
    pub len: u64,
    /// Host address of the first byte.
    pub host: *mut u8,
    /// True if writes are ignored.
    pub read_only: bool,
    /// True for memory of a hypervisor's tables: page walks and the hypervisor itself access it by address, but code
    /// and data of the guest, and devices, cannot ([`Ram::visible_page`]).
    pub hidden: bool,
}

// SAFETY: a region is an address and a size, and nothing here depends on the thread. Who creates a `Ram` promises that the
// bytes are valid as long as it lives, on any thread.
unsafe impl Send for RamRegion {}
// SAFETY: a shared region can only be read; the bytes behind it are accessed by `Ram`, under the rule at the top.
unsafe impl Sync for RamRegion {}

/// A page of RAM.
pub struct Page<'a> {
    /// Host address.
    pub host: *mut u8,
    /// True if writes are ignored.
    pub read_only: bool,
    lines: &'a AtomicU64,
}

impl Page<'_> {
    /// Returns the lines that contain decoded bytes or are monitored.
    #[inline]
    pub fn marked(&self) -> u64 {
        self.lines.load(Relaxed)
    }
}

/// Marks of the writes that must be noticed.
struct Marks {
    /// For each page of each region, a bit for each 64-byte line that contains decoded bytes or is monitored.
    lines: Box<[Box<[AtomicU64]>]>,
    /// Number of pages that got their first marked line.
    epoch: AtomicU64,
    /// See [`Ram::code_version`].
    version: AtomicU64,
    /// Line that each processor's MONITOR has armed.
    monitors: Mutex<Vec<Option<u64>>>,
    /// True if a write has disarmed a monitor.
    triggered: AtomicBool,
}

impl Marks {
    fn monitors(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        lock(&self.monitors)
    }
}

/// All RAM of a machine. Clones are cheap and share the memory and the marks.
#[derive(Clone)]
pub struct Ram {
    regions: Arc<[RamRegion]>,
    marks: Arc<Marks>,
    _keep_alive: Arc<dyn Any + Send + Sync>,
}

/// Allocates zeroed memory, and returns it with the start of its first page: translated code assumes that an operand
/// has the same alignment on the host as in the guest.
fn zeroed(len: u64) -> (Box<[u64]>, *mut u8) {
    let mut memory = vec![0u64; ((len + PAGE) / 8) as usize].into_boxed_slice();
    let start = memory.as_mut_ptr().cast::<u8>();
    let host = start.wrapping_add(start.align_offset(PAGE as usize));
    (memory, host)
}

impl Ram {
    /// Creates RAM from `regions`, which must be sorted and disjoint. `owner` is dropped with the last clone.
    ///
    /// # Safety
    /// Each region's `host` must be the start of a page, valid for reads and writes of `len` bytes as long as `owner`
    /// lives, and no Rust reference to those bytes may exist while the processor runs. Those who hold a clone must take turns:
    /// only one of them accesses the memory at a time.
    pub unsafe fn new(regions: Vec<RamRegion>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        let marks = Marks {
            lines: regions.iter().map(|r| (0..r.len / PAGE).map(|_| AtomicU64::new(0)).collect()).collect(),
            epoch: AtomicU64::new(0),
            version: AtomicU64::new(0),
            monitors: Mutex::default(),
            triggered: AtomicBool::new(false),
        };
        Self { regions: regions.into(), marks: Arc::new(marks), _keep_alive: owner }
    }

    /// Creates zeroed RAM of `len` bytes from address 0, for tests.
    pub fn anonymous(len: u64) -> Self {
        let len = len.div_ceil(PAGE) * PAGE;
        let (memory, host) = zeroed(len);
        let region = RamRegion { start: 0, len, host, read_only: false, hidden: false };
        // SAFETY: the box is the owner, is never accessed through a reference again, and its heap block does not move.
        unsafe { Self::new(vec![region], Arc::new(memory)) }
    }

    /// Creates RAM as [`Self::anonymous`] does, with `hidden_len` hidden bytes at `hidden_start`, which is beyond
    /// `len`.
    pub fn with_hidden(len: u64, hidden_start: u64, hidden_len: u64) -> Self {
        assert!(hidden_start & (PAGE - 1) == 0 && hidden_start >= len.next_multiple_of(PAGE));
        let mut owners = Vec::new();
        let mut region = |start, len: u64, hidden| {
            let len = len.next_multiple_of(PAGE);
            let (memory, host) = zeroed(len);
            owners.push(memory);
            RamRegion { start, len, host, read_only: false, hidden }
        };
        let regions = vec![region(0, len, false), region(hidden_start, hidden_len, true)];
        // SAFETY: as in `anonymous`, for each of the boxes.
        unsafe { Self::new(regions, Arc::new(owners)) }
    }

    /// Returns the regions.
    pub fn regions(&self) -> &[RamRegion] {
        &self.regions
    }

    #[inline]
    fn region(&self, address: u64) -> Option<(usize, &RamRegion)> {
        self.regions.iter().enumerate().find(|(_, r)| address.wrapping_sub(r.start) < r.len)
    }

    #[inline]
    fn page_of(&self, index: usize, region: &RamRegion, address: u64) -> Page<'_> {
        let number = ((address - region.start) / PAGE) as usize;
        // SAFETY: the page is inside the region.
        let host = unsafe { region.host.add(number * PAGE as usize) };
        Page { host, read_only: region.read_only, lines: &self.marks.lines[index][number] }
    }

    /// Returns the page that contains `address`, hidden or not, or `None` if it is not RAM.
    #[inline]
    pub fn page(&self, address: u64) -> Option<Page<'_>> {
        let (index, region) = self.region(address)?;
        Some(self.page_of(index, region, address))
    }

    /// Returns the page as [`Self::page`] does, for accesses of guests and devices, to which hidden memory is not RAM.
    #[inline]
    pub fn visible_page(&self, address: u64) -> Option<Page<'_>> {
        let (index, region) = self.region(address).filter(|(_, region)| !region.hidden)?;
        Some(self.page_of(index, region, address))
    }

    /// Returns the pages of the aligned group of [`GROUP`] around `address` that are in the same region, and therefore
    /// at the same distances on the host, and those of them without a marked line.
    pub fn around(&self, address: u64) -> (u8, u8) {
        let Some((index, region)) = self.region(address) else { return (0, 0) };
        let first = address & !(GROUP as u64 * PAGE - 1);
        (0..GROUP as u64).fold((0, 0), |(present, unmarked), number| {
            let offset = (first + number * PAGE).wrapping_sub(region.start);
            if offset >= region.len {
                return (present, unmarked);
            }
            let marked = self.marks.lines[index][(offset / PAGE) as usize].load(Relaxed) != 0;
            (present | 1 << number, unmarked | u8::from(!marked) << number)
        })
    }

    /// Returns true if `address` is in hidden memory.
    pub fn is_hidden(&self, address: u64) -> bool {
        self.region(address).is_some_and(|(_, region)| region.hidden)
    }

    /// Returns the host address of `size` bytes, and true if writes to them are ignored. Returns `None` if they are not in one page of RAM.
    #[inline]
    fn within_page(&self, address: u64, size: usize) -> Option<(*mut u8, bool)> {
        let offset = (address & (PAGE - 1)) as usize;
        if size > PAGE as usize - offset {
            return None;
        }
        let page = self.page(address)?;
        Some((page.host.wrapping_add(offset), page.read_only))
    }

    /// Reads a value. Returns `None` if it is not in RAM or crosses the end of a page.
    ///
    /// Only types of which any bytes are a value can be read. A `bool` is none of them:
    ///
    /// ```compile_fail,E0277
    /// let ram = cpu::ram::Ram::anonymous(4096);
    /// let truth: Option<bool> = ram.read(0);
    /// ```
    #[inline]
    pub fn read<T: FromBytes>(&self, address: u64) -> Option<T> {
        let (host, _) = self.within_page(address, size_of::<T>())?;
        // SAFETY: the value's bytes are inside a page of RAM, and any bytes are a value of a type that is `FromBytes`.
        Some(unsafe { host.cast::<T>().read_unaligned() })
    }

    /// Writes a value, regardless of marks. Returns false if it is not in RAM or crosses the end of a page.
    #[inline]
    pub fn write<T: IntoBytes>(&self, address: u64, value: T) -> bool {
        let Some((host, read_only)) = self.within_page(address, size_of::<T>()) else { return false };
        if !read_only {
            // SAFETY: the value's bytes are inside a page of RAM, and a type that is `IntoBytes` has no uninitialized bytes.
            unsafe { host.cast::<T>().write_unaligned(value) };
        }
        true
    }

    /// Copies from visible RAM. Returns false unless all bytes are in it.
    pub fn read_bytes(&self, mut address: u64, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let Some(page) = self.visible_page(address) else { return false };
            let offset = (address & (PAGE - 1)) as usize;
            let n = out.len().min(PAGE as usize - offset);
            // SAFETY: `n` bytes from `offset` are inside the page; `out` is not guest memory.
            unsafe { std::ptr::copy_nonoverlapping(page.host.add(offset), out.as_mut_ptr(), n) };
            out = &mut out[n..];
            address = address.wrapping_add(n as u64);
        }
        true
    }

    /// Returns true if these bytes are in visible RAM, all in one page.
    pub fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let offset = (address & (PAGE - 1)) as usize;
        self.visible_page(address).filter(|_| offset + bytes.len() <= PAGE as usize).is_some_and(|page| {
            // SAFETY: as in `read_bytes`; nothing writes to guest memory in the meantime.
            let here = unsafe { std::slice::from_raw_parts(page.host.add(offset), bytes.len()) };
            here == bytes
        })
    }

    /// Copies to visible RAM, regardless of marks. Returns false unless all bytes are in it.
    pub fn write_bytes(&self, mut address: u64, mut from: &[u8]) -> bool {
        while !from.is_empty() {
            let Some(page) = self.visible_page(address) else { return false };
            let offset = (address & (PAGE - 1)) as usize;
            let n = from.len().min(PAGE as usize - offset);
            if !page.read_only {
                // SAFETY: as in `read_bytes`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), page.host.add(offset), n) };
            }
            from = &from[n..];
            address = address.wrapping_add(n as u64);
        }
        true
    }

    /// Returns the lines of the page at `address` that contain decoded bytes or are monitored.
    pub fn marked(&self, address: u64) -> u64 {
        self.page(address).map_or(0, |page| page.marked())
    }

    /// Returns the number of pages that got their first marked line. If it changes, any page may have one.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        self.marks.epoch.load(Relaxed)
    }

    /// Returns a number that changes when bytes in lines that are marked as decoded may have been written.
    #[inline(always)]
    pub fn code_version(&self) -> u64 {
        self.marks.version.load(Relaxed)
    }

    /// Marks lines of a page as decoded.
    pub fn mark_code(&self, address: u64, lines: u64) {
        let marked = self.marked(address);
        self.replace(address, marked | lines);
    }

    /// Returns the pages with marked lines, in order, and these lines.
    pub fn marks(&self) -> Vec<(u64, u64)> {
        let mut marks = Vec::new();
        for (region, lines) in self.regions.iter().zip(&self.marks.lines) {
            let pages = (region.start..).step_by(PAGE as usize).zip(lines.iter().map(|page| page.load(Relaxed)));
            marks.extend(pages.filter(|(_, lines)| *lines != 0));
        }
        marks
    }

    /// Sets the lines of a page that are marked as decoded, of which some may have been written.
    pub fn set_code(&self, address: u64, lines: u64) {
        self.marks.version.fetch_add(1, Relaxed);
        let page = address & !(PAGE - 1);
        let monitors = self.marks.monitors();
        let monitored = monitors.iter().flatten().filter(|line| **line & !(PAGE - 1) == page);
        let monitored = monitored.fold(0, |all, line| all | crate::ram::lines(line & (PAGE - 1), 1));
        self.replace(address, lines | monitored);
    }

    fn replace(&self, address: u64, lines: u64) {
        let Some(page) = self.page(address) else { return };
        if page.marked() == 0 && lines != 0 {
            self.marks.epoch.fetch_add(1, Relaxed);
        }
        page.lines.store(lines, Relaxed);
    }

    /// Removes the marks of all decoded bytes.
    pub fn clear_all_code(&self) {
        self.marks.version.fetch_add(1, Relaxed);
        self.marks.lines.iter().flatten().for_each(|page| page.store(0, Relaxed));
        let armed: Vec<u64> = self.marks.monitors().iter().flatten().copied().collect();
        for line in armed {
            self.mark_code(line, lines(line & (PAGE - 1), 1));
        }
    }

    /// Arms a processor's monitor for the line that contains `address`; outside of RAM the monitor stays disarmed.
    pub fn arm_monitor(&self, processor: usize, address: u64) {
        self.disarm_monitor(processor);
        if self.visible_page(address).is_none() {
            return;
        }
        let mut monitors = self.marks.monitors();
        if monitors.len() <= processor {
            monitors.resize(processor + 1, None);
        }
        monitors[processor] = Some(address & !63);
        drop(monitors);
        self.mark_code(address, lines(address & (PAGE - 1), 1));
    }

    /// Disarms a processor's monitor. The line stays marked until the next write to it.
    pub fn disarm_monitor(&self, processor: usize) {
        if let Some(monitor) = self.marks.monitors().get_mut(processor) {
            *monitor = None;
        }
    }

    /// Returns the line that a processor's MONITOR has armed, if it has not been written since.
    pub fn monitor(&self, processor: usize) -> Option<u64> {
        self.marks.monitors().get(processor).copied().flatten()
    }

    /// Returns the line that each processor's MONITOR has armed, and true if a write has disarmed one and that has not
    /// been handled yet.
    pub fn monitors(&self) -> (Vec<Option<u64>>, bool) {
        (self.marks.monitors().clone(), self.marks.triggered.load(Relaxed))
    }

    /// Restores the state returned by [`Ram::monitors`], in RAM without armed monitors.
    pub fn restore_monitors(&self, lines: &[Option<u64>], triggered: bool) {
        for (processor, line) in lines.iter().enumerate() {
            if let Some(line) = line {
                self.arm_monitor(processor, *line);
            }
        }
        self.marks.triggered.store(triggered, Relaxed);
    }

    /// Disarms the monitors of written lines of a page. Returns true if there were any.
    pub fn trigger_monitors(&self, page: u64, written: u64) -> bool {
        let mut any = false;
        for monitor in self.marks.monitors().iter_mut() {
            if monitor.is_some_and(|line| line & !(PAGE - 1) == page && lines(line & (PAGE - 1), 1) & written != 0) {
                *monitor = None;
                any = true;
            }
        }
        if any {
            self.marks.triggered.store(true, Relaxed);
        }
        any
    }

    /// Returns true if a write has disarmed a monitor since the last call.
    pub fn take_triggered(&self) -> bool {
        self.marks.triggered.swap(false, Relaxed)
    }
}

/// Returns the lines (64-byte units) of a page that `len` bytes at `offset` touch.
pub fn lines(offset: u64, len: u64) -> u64 {
    let first = offset >> 6;
    let last = (offset + len - 1).min(PAGE - 1) >> 6;
    (u64::MAX >> (63 - (last - first))) << first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, DATA, Machine};
    use iced_x86::code_asm::*;

    const POOL: u64 = 0xd000_0000;

    #[test]
    fn hidden_memory_is_reached_by_address_only() {
        let ram = Ram::with_hidden(2 * PAGE, POOL, PAGE);
        assert!(ram.write(POOL + 8, 42u64));
        assert_eq!(ram.read::<u64>(POOL + 8), Some(42));
        assert!(ram.page(POOL).is_some() && ram.visible_page(POOL).is_none() && ram.visible_page(PAGE).is_some());
        assert!(ram.is_hidden(POOL + PAGE - 1) && !ram.is_hidden(POOL + PAGE) && !ram.is_hidden(0));
        assert!(!ram.read_bytes(POOL, &mut [0]) && !ram.write_bytes(POOL, &[0]));
        ram.arm_monitor(0, POOL);
        assert_eq!((ram.monitor(0), ram.marked(POOL)), (None, 0));
    }

    #[test]
    fn values_that_cross_a_page_are_refused() {
        let ram = Ram::with_hidden(PAGE, POOL, PAGE);
        for (end, within) in [(PAGE, 0), (POOL + PAGE, POOL)] {
            assert!(ram.write(end - 8, u64::MAX) && ram.read(end - 8) == Some(u64::MAX));
            for address in [end - 7, end - 1] {
                assert_eq!((ram.read::<u64>(address), ram.write(address, 0u64)), (None, false), "{address:#x}");
            }
            assert_eq!((ram.read(end - 1), ram.read::<[u8; 4097]>(within)), (Some(0xffu8), None));
        }
    }

    #[test]
    fn groups_end_where_memory_does() {
        let ram = Ram::with_hidden(3 * PAGE, POOL + PAGE, 2 * PAGE);
        ram.mark_code(PAGE, 1);
        assert_eq!(ram.around(2 * PAGE), (0b111, 0b101));
        assert_eq!(ram.around(POOL + PAGE), (0b110, 0b110));
        assert_eq!(ram.around(POOL), (0, 0));
    }

    #[test]
    fn code_and_data_of_a_guest_do_not_see_hidden_memory() {
        let mut machine = Machine::protected32(0);
        machine.cpu = testing::cpu(Ram::with_hidden(testing::RAM, POOL, PAGE));
        machine.cpu.arch.cr0 = x86::control::CR0_PE;
        testing::set_flat_segments(&mut machine.cpu, 0, x86::rights::DB);
        machine.cpu.arch.rip = testing::CODE;
        machine.cpu.wiring.ram.write(POOL, 0x1234_5678u32);
        machine.cpu.arch.gpr[3] = POOL;
        machine
            .execute(|a| {
                a.mov(eax, dword_ptr(ebx))?;
                a.mov(dword_ptr(ebx), 0)?;
                a.mov(dword_ptr(DATA as u32), eax)
            })
            .unwrap();
        assert_eq!(machine.peek::<4>(DATA), [0xff; 4]);
        assert_eq!(machine.cpu.wiring.ram.read::<u32>(POOL), Some(0x1234_5678));
    }
}
