//! Executable memory: one anonymous file mapped twice, once writable and once executable, so that no mapping is both.

use std::ffi::CStr;
use std::io;
use std::ops::Range;

/// Two mappings of the same memory.
pub struct Executable {
    writable: *mut u8,
    executable: *mut u8,
    size: usize,
}

// SAFETY: plain addresses of mappings that only this value owns.
unsafe impl Send for Executable {}

fn map(fd: i32, size: usize, protection: i32) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

impl Executable {
    /// Allocates `size` bytes; pages that are never written use no memory.
    pub fn new(name: &CStr, size: usize) -> io::Result<Self> {
        // SAFETY: plain system calls on a descriptor that nothing else uses; the mappings keep the file alive after
        // `close`.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let made = if libc::ftruncate(fd, size as libc::off_t) == 0 {
                map(fd, size, libc::PROT_READ | libc::PROT_WRITE).and_then(|writable| {
                    match map(fd, size, libc::PROT_READ | libc::PROT_EXEC) {
                        Ok(executable) => Ok(Self { writable, executable, size }),
                        Err(error) => {
                            libc::munmap(writable.cast(), size);
                            Err(error)
                        }
                    }
                })
            } else {
                Err(io::Error::last_os_error())
            };
            libc::close(fd);
            made
        }
    }

    /// Writes bytes at offset `at`; they must fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.size && bytes.len() <= self.size - at, "outside executable memory");
        // SAFETY: the range is inside the writable mapping, to which there are no references.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.writable.add(at), bytes.len()) };
    }

    /// Returns the bytes of a range, which must be inside the memory.
    pub fn read(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.size, "outside executable memory");
        // SAFETY: the range is inside the mapping; a writer borrows the value mutably.
        unsafe { std::slice::from_raw_parts(self.executable.add(range.start), range.len()) }
    }

    /// Returns the address at which the byte at an offset is executed.
    pub fn address(&self, at: usize) -> *const u8 {
        self.executable.wrapping_add(at)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: this value owns both mappings; code that executes here borrows the value.
        unsafe {
            libc::munmap(self.writable.cast(), self.size);
            libc::munmap(self.executable.cast(), self.size);
        }
    }
}
