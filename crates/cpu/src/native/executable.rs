//! Executable memory: one anonymous file mapped twice, once writable and once executable, so that no mapping is both.

use crate::mapping::{LARGE, Mapping};
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Two mappings of the same memory.
pub struct Executable {
    writable: Mapping,
    executable: Mapping,
    /// End of the memory for which large pages have been requested. Translated code takes many pages, and misses of
    /// the host's TLBs for it are a considerable part of its time.
    large: usize,
}

impl Executable {
    /// Allocates `size` bytes; pages that are never written use no memory.
    pub fn new(name: &CStr, size: usize) -> io::Result<Self> {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's. The mappings keep the file alive after it is closed.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain system call on the descriptor.
        if unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let map = |protection| Mapping::of_file(file.as_raw_fd(), size, libc::PROT_READ | protection);
        Ok(Self { writable: map(libc::PROT_WRITE)?, executable: map(libc::PROT_EXEC)?, large: 0 })
    }

    /// Writes bytes at offset `at`; they must fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let size = self.writable.size();
        assert!(at <= size && bytes.len() <= size - at, "outside executable memory");
        // SAFETY: the range lies inside the writable mapping, to which there are no references.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.writable.start().add(at), bytes.len()) };
        // An empty page cannot be moved.
        while self.large < at + bytes.len() {
            self.executable.collapse(self.large);
            self.large += LARGE;
        }
    }

    /// Returns the bytes of a range, which must be inside the memory.
    pub fn read(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.executable.size(), "outside executable memory");
        // SAFETY: the range lies inside the mapping; what writes to it borrows the value mutably.
        unsafe { std::slice::from_raw_parts(self.executable.start().add(range.start), range.len()) }
    }

    /// Returns the address at which the byte at an offset is executed.
    pub fn address(&self, at: usize) -> *const u8 {
        self.executable.start().wrapping_add(at)
    }
}
