//! Guest-physical RAM as the processor sees it: host pointers, and which bytes have been decoded or are monitored.
//!
//! Writes to decoded bytes and to lines that a MONITOR has armed must be noticed, whichever processor or device makes them.
//! Both are marked in one map of 64-byte lines: the fast path for writes only ever holds pages without a marked line.
//!
//! This is one of the modules with `unsafe`: guest memory is shared with devices and is only ever touched through raw
//! pointers, never through Rust references. The processor and the devices run on one thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes per page.
pub const PAGE: u64 = 4096;

/// A contiguous range of RAM.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First guest-physical address; page aligned.
    pub start: u64,
    /// Bytes; a multiple of the page size.
    pub len: u64,
    /// Host address of the first byte.
    pub host: *mut u8,
    /// Writes are dropped.
    pub read_only: bool,
}

/// Which writes must be noticed.
struct Marks {
    /// For each page of each region, a bit for each 64-byte line that holds decoded bytes or is monitored.
    lines: RefCell<Vec<Vec<u64>>>,
    /// Counts pages that got their first marked line.
    epoch: Cell<u64>,
    /// The line that each processor's MONITOR has armed.
    monitors: RefCell<Vec<Option<u64>>>,
    /// A write has disarmed a monitor.
    triggered: Cell<bool>,
}

/// All RAM of a machine. Cheap to clone: clones share the memory and the marks.
#[derive(Clone)]
pub struct Ram {
    regions: Rc<[Region]>,
    marks: Rc<Marks>,
    _keep_alive: Rc<dyn Any>,
}

impl Ram {
    /// RAM made of `regions`, sorted and disjoint. `owner` is dropped with the last clone.
    ///
    /// # Safety
    /// Each region's `host` must be valid for reads and writes of `len` bytes as long as `owner` lives, and no Rust
    /// reference to those bytes may exist while the processor runs.
    pub unsafe fn new(regions: Vec<Region>, owner: Rc<dyn Any>) -> Self {
        let marks = Marks {
            lines: RefCell::new(regions.iter().map(|r| vec![0; (r.len / PAGE) as usize]).collect()),
            epoch: Cell::new(0),
            monitors: RefCell::default(),
            triggered: Cell::new(false),
        };
        Self { regions: regions.into(), marks: Rc::new(marks), _keep_alive: owner }
    }

    /// Zeroed RAM of `len` bytes from address 0, for tests.
    pub fn anonymous(len: u64) -> Self {
        let len = len.div_ceil(PAGE) * PAGE;
        let mut memory = vec![0u64; (len / 8) as usize].into_boxed_slice();
        let host = memory.as_mut_ptr().cast();
        // SAFETY: the box is the owner, is never touched through a reference again, and its heap block does not move.
        unsafe { Self::new(vec![Region { start: 0, len, host, read_only: false }], Rc::new(memory)) }
    }

    /// The regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn region(&self, address: u64) -> Option<(usize, &Region)> {
        self.regions.iter().enumerate().find(|(_, r)| address.wrapping_sub(r.start) < r.len)
    }

    /// Host address of the page that holds `address`, and whether it is read-only. `None`: not RAM.
    pub fn page(&self, address: u64) -> Option<(*mut u8, bool)> {
        let (_, region) = self.region(address)?;
        // SAFETY: the offset lies inside the region.
        let host = unsafe { region.host.add(((address - region.start) & !(PAGE - 1)) as usize) };
        Some((host, region.read_only))
    }

    /// Reads a value that does not cross a page. `None`: not RAM.
    pub fn read<T: Copy>(&self, address: u64) -> Option<T> {
        debug_assert!((address & (PAGE - 1)) as usize + size_of::<T>() <= PAGE as usize);
        let (page, _) = self.page(address)?;
        // SAFETY: the page is mapped and the value lies inside it; T is plain data at every use in this crate.
        Some(unsafe { page.add((address & (PAGE - 1)) as usize).cast::<T>().read_unaligned() })
    }

    /// Writes a value that does not cross a page, without looking at the marks. `false`: not RAM.
    pub fn write<T: Copy>(&self, address: u64, value: T) -> bool {
        debug_assert!((address & (PAGE - 1)) as usize + size_of::<T>() <= PAGE as usize);
        match self.page(address) {
            Some((page, false)) => {
                // SAFETY: as in `read`.
                unsafe { page.add((address & (PAGE - 1)) as usize).cast::<T>().write_unaligned(value) };
                true
            }
            Some((_, true)) => true,
            None => false,
        }
    }

    /// Copies out of RAM; `false` if any byte is not RAM.
    pub fn read_bytes(&self, mut address: u64, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let Some((page, _)) = self.page(address) else { return false };
            let offset = (address & (PAGE - 1)) as usize;
            let n = out.len().min(PAGE as usize - offset);
            // SAFETY: `n` bytes from `offset` lie inside the page; `out` is not guest memory.
            unsafe { std::ptr::copy_nonoverlapping(page.add(offset), out.as_mut_ptr(), n) };
            out = &mut out[n..];
            address += n as u64;
        }
        true
    }

    /// Copies into RAM, without looking at the marks; `false` if any byte is not RAM.
    pub fn write_bytes(&self, mut address: u64, mut from: &[u8]) -> bool {
        while !from.is_empty() {
            let Some((page, read_only)) = self.page(address) else { return false };
            let offset = (address & (PAGE - 1)) as usize;
            let n = from.len().min(PAGE as usize - offset);
            if !read_only {
                // SAFETY: as in `read_bytes`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), page.add(offset), n) };
            }
            from = &from[n..];
            address += n as u64;
        }
        true
    }

    /// Lines of the page at `address` that hold decoded bytes or are monitored.
    pub fn marked(&self, address: u64) -> u64 {
        match self.region(address) {
            Some((index, region)) => self.marks.lines.borrow()[index][((address - region.start) / PAGE) as usize],
            None => 0,
        }
    }

    /// Counts the pages that had no marked line and then got one. When it changes, no page is known to have none.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        self.marks.epoch.get()
    }

    /// Marks lines of a page as decoded.
    pub fn mark_code(&self, address: u64, lines: u64) {
        let marked = self.marked(address);
        self.replace(address, marked | lines);
    }

    /// Makes these lines, and no others, the decoded ones of a page.
    pub fn set_code(&self, address: u64, lines: u64) {
        let page = address & !(PAGE - 1);
        let monitors = self.marks.monitors.borrow();
        let monitored = monitors.iter().flatten().filter(|line| **line & !(PAGE - 1) == page);
        let monitored = monitored.fold(0, |all, line| all | crate::ram::lines(line & (PAGE - 1), 1));
        self.replace(address, lines | monitored);
    }

    fn replace(&self, address: u64, lines: u64) {
        let Some((index, region)) = self.region(address) else { return };
        let slot = &mut self.marks.lines.borrow_mut()[index][((address - region.start) / PAGE) as usize];
        if *slot == 0 && lines != 0 {
            self.marks.epoch.set(self.marks.epoch.get() + 1);
        }
        *slot = lines;
    }

    /// Forgets all decoded bytes.
    pub fn clear_all_code(&self) {
        for pages in self.marks.lines.borrow_mut().iter_mut() {
            pages.fill(0);
        }
        let armed: Vec<u64> = self.marks.monitors.borrow().iter().flatten().copied().collect();
        for line in armed {
            self.mark_code(line, lines(line & (PAGE - 1), 1));
        }
    }

    /// Arms a processor's monitor for the line that holds `address`, or, where there is no RAM, leaves it disarmed.
    pub fn arm_monitor(&self, processor: usize, address: u64) {
        self.disarm_monitor(processor);
        if self.region(address).is_none() {
            return;
        }
        let mut monitors = self.marks.monitors.borrow_mut();
        if monitors.len() <= processor {
            monitors.resize(processor + 1, None);
        }
        monitors[processor] = Some(address & !63);
        drop(monitors);
        self.mark_code(address, lines(address & (PAGE - 1), 1));
    }

    /// Disarms a processor's monitor. The line stays marked until it is next written.
    pub fn disarm_monitor(&self, processor: usize) {
        if let Some(monitor) = self.marks.monitors.borrow_mut().get_mut(processor) {
            *monitor = None;
        }
    }

    /// The line that a processor's MONITOR has armed and nothing has written since.
    pub fn monitor(&self, processor: usize) -> Option<u64> {
        self.marks.monitors.borrow().get(processor).copied().flatten()
    }

    /// Disarms the monitors of lines of a page that are written. Whether there were any.
    pub fn trigger_monitors(&self, page: u64, written: u64) -> bool {
        let mut any = false;
        for monitor in self.marks.monitors.borrow_mut().iter_mut() {
            if monitor.is_some_and(|line| line & !(PAGE - 1) == page && lines(line & (PAGE - 1), 1) & written != 0) {
                *monitor = None;
                any = true;
            }
        }
        if any {
            self.marks.triggered.set(true);
        }
        any
    }

    /// Whether a write has disarmed a monitor since the last call.
    pub fn take_triggered(&self) -> bool {
        self.marks.triggered.take()
    }
}

/// The lines (64-byte units) of a page that `len` bytes at `offset` touch.
pub fn lines(offset: u64, len: u64) -> u64 {
    let first = offset >> 6;
    let last = (offset + len - 1).min(PAGE - 1) >> 6;
    (u64::MAX >> (63 - (last - first))) << first
}
