//! Memory of the host between guard pages: an access that runs beyond either end is a fault of this process, and reaches no other memory.

use std::io;
use std::os::fd::RawFd;

/// Bytes that can't be accessed, before and after. As much as a large page of the host, so that large mappings stay aligned to those.
pub const GUARD: usize = 2 << 20;
const PAGE: usize = 4096;

/// A mapping of whole pages. It takes memory where it is used.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    size: usize,
}

// SAFETY: plain addresses of mappings that belong to the value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared value gives no access to what is mapped but its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Addresses that nothing is mapped at yet, with guards.
    fn reserve(size: usize) -> io::Result<Self> {
        let size = size.max(1).checked_next_multiple_of(PAGE);
        let whole = size.and_then(|size| Some((size, size.checked_add(2 * GUARD)?)));
        let (size, whole) = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: at.cast::<u8>().wrapping_add(GUARD), size })
    }

    fn protect(&self, at: usize, len: usize, protection: i32) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE) && at <= self.size && len <= self.size - at, "outside the mapping");
        // SAFETY: the range is the value's own, and who protects it has no references to what is there.
        match unsafe { libc::mprotect(self.start.wrapping_add(at).cast(), len, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Zeroed memory, without reserving swap for it.
    pub fn anonymous(size: usize) -> io::Result<Self> {
        let mapping = Self::reserve(size)?;
        mapping.protect(0, mapping.size, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(mapping)
    }

    /// The first bytes of a file, shared with its other mappings.
    pub(crate) fn of_file(fd: RawFd, size: usize, protection: i32) -> io::Result<Self> {
        let mapping = Self::reserve(size)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the addresses are reserved by the value, and nothing else is there.
        let at = unsafe { libc::mmap(mapping.start.cast(), mapping.size, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }

    /// Makes some pages another guard.
    pub(crate) fn guard(&self, at: usize, len: usize) -> io::Result<()> {
        self.protect(at, len, libc::PROT_NONE)
    }

    /// The first byte: valid for as many as [`Self::size`] says as long as the value lives.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: all of it is the value's own; whoever has an address of it has borrowed the value or keeps it.
        unsafe { libc::munmap(self.start.wrapping_sub(GUARD).cast(), self.size + 2 * GUARD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel lets be done at an address of this process: `r`, `w`, `x`, and `-` for what it does not.
    fn permissions(at: *const u8) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            (address(from)?..address(to)?).contains(&at.addr()).then(|| rest[..3].to_owned())
        };
        maps.lines().find_map(of_line)
    }

    #[test]
    fn guards_are_before_and_after_and_where_they_are_asked_for() {
        let mapping = Mapping::anonymous(5 * PAGE - 1).unwrap();
        assert_eq!(mapping.size(), 5 * PAGE);
        mapping.guard(2 * PAGE, PAGE).unwrap();
        let seen = |at: isize| permissions(mapping.start().wrapping_offset(at)).unwrap();
        let guard = GUARD as isize;
        let page = PAGE as isize;
        for (at, expected) in [
            (-guard, "---"),
            (-1, "---"),
            (0, "rw-"),
            (2 * page - 1, "rw-"),
            (2 * page, "---"),
            (3 * page, "rw-"),
            (5 * page - 1, "rw-"),
            (5 * page, "---"),
            (5 * page + guard - 1, "---"),
        ] {
            assert_eq!(seen(at), expected, "{at}");
        }
        // SAFETY: inside the mapping, and not guarded.
        unsafe { mapping.start().add(5 * PAGE - 1).write(7) };
        assert!(Mapping::anonymous(usize::MAX).is_err() && Mapping::anonymous(usize::MAX - 2 * GUARD).is_err());
    }
}
