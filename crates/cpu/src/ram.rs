//! Guest-physical RAM as the processor sees it: host pointers, and which bytes have been decoded.
//!
//! This is one of the modules with `unsafe`: guest memory is shared with devices and is only ever touched through raw
//! pointers, never through Rust references. The processor and the devices run on one thread.

use std::any::Any;
use std::cell::RefCell;
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

/// All RAM of a machine. Cheap to clone: clones share the memory and the code map.
#[derive(Clone)]
pub struct Ram {
    regions: Rc<[Region]>,
    /// For each page of each region, a bit for each 64-byte line that holds decoded bytes.
    code: Rc<RefCell<Vec<Vec<u64>>>>,
    _keep_alive: Rc<dyn Any>,
}

impl Ram {
    /// RAM made of `regions`, sorted and disjoint. `owner` is dropped with the last clone.
    ///
    /// # Safety
    /// Each region's `host` must be valid for reads and writes of `len` bytes as long as `owner` lives, and no Rust
    /// reference to those bytes may exist while the processor runs.
    pub unsafe fn new(regions: Vec<Region>, owner: Rc<dyn Any>) -> Self {
        let code = regions.iter().map(|r| vec![0; (r.len / PAGE) as usize]).collect();
        Self { regions: regions.into(), code: Rc::new(RefCell::new(code)), _keep_alive: owner }
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

    /// Writes a value that does not cross a page, without looking at the code map. `false`: not RAM.
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

    /// Copies into RAM, without looking at the code map; `false` if any byte is not RAM.
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

    /// Lines of the page at `address` that hold decoded bytes.
    pub fn code_lines(&self, address: u64) -> u64 {
        match self.region(address) {
            Some((index, region)) => self.code.borrow()[index][((address - region.start) / PAGE) as usize],
            None => 0,
        }
    }

    /// Marks lines as decoded. Returns whether the page had none before.
    pub fn mark_code(&self, address: u64, lines: u64) -> bool {
        let Some((index, region)) = self.region(address) else { return false };
        let slot = &mut self.code.borrow_mut()[index][((address - region.start) / PAGE) as usize];
        let first = *slot == 0;
        *slot |= lines;
        first
    }

    /// Forgets that lines of a page are decoded.
    pub fn clear_code(&self, address: u64, lines: u64) {
        if let Some((index, region)) = self.region(address) {
            self.code.borrow_mut()[index][((address - region.start) / PAGE) as usize] &= !lines;
        }
    }

    /// Forgets all decoded bytes.
    pub fn clear_all_code(&self) {
        for pages in self.code.borrow_mut().iter_mut() {
            pages.fill(0);
        }
    }
}

/// The lines (64-byte units) of a page that `len` bytes at `offset` touch.
pub fn lines(offset: u64, len: u64) -> u64 {
    let first = offset >> 6;
    let last = (offset + len - 1).min(PAGE - 1) >> 6;
    (u64::MAX >> (63 - (last - first))) << first
}
