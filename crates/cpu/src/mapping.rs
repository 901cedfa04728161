//! Memory of the host between guard pages: an access beyond either end is a fault of this process and reaches no other
//! memory.

use std::io;
use std::os::fd::RawFd;

/// Size of a large page of the host.
pub(crate) const LARGE: usize = 2 << 20;
/// Minimum size of the inaccessible ranges before and after a mapping, in bytes.
pub const GUARD: usize = LARGE;
const PAGE: usize = 4096;

/// Size in bytes from which a vector is large for [`map_large_vectors`].
const LARGE_VECTOR: libc::c_int = 1 << 19;
/// Bytes that the allocator may keep at the end of its memory.
const KEPT: libc::c_int = 4 << 20;

/// Lets the allocator map each large vector by itself. Such a vector grows without a copy and leaves no hole where it was, and the host gets its
/// memory back at once. By itself glibc does so only for vectors that are larger than all that were ever freed, up to 32 MiB. A run of many seconds
/// takes some 45 MB less memory; a short one takes a few per cent longer, because the host clears the memory of each vector.
pub fn map_large_vectors() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these are settings of the allocator, which may be changed at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_VECTOR);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// A mapping of whole pages, which takes memory on first use. It begins at a large page of the host.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    size: usize,
    /// The mapping with its guards.
    whole: (*mut u8, usize),
}

// SAFETY: the fields are plain addresses of mappings that belong to the value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared value gives access to nothing but the mapping's address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves unmapped addresses with guards.
    fn reserve(size: usize) -> io::Result<Self> {
        let size = size.max(1).checked_next_multiple_of(PAGE);
        let whole = size.and_then(|size| Some((size, size.checked_add(2 * GUARD + LARGE)?)));
        let (size, whole) = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: this is a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = at.cast::<u8>();
        let start = at.wrapping_add(at.addr().next_multiple_of(LARGE) - at.addr() + GUARD);
        Ok(Self { start, size, whole: (at, whole) })
    }

    fn protect(&self, at: usize, len: usize, protection: i32) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE) && at <= self.size && len <= self.size - at, "outside the mapping");
        // SAFETY: the range belongs to the value, and callers hold no references to its memory.
        match unsafe { libc::mprotect(self.start.wrapping_add(at).cast(), len, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps zeroed memory without reserving swap for it.
    pub fn anonymous(size: usize) -> io::Result<Self> {
        let mapping = Self::reserve(size)?;
        mapping.protect(0, mapping.size, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(mapping)
    }

    /// Maps the first bytes of a file, shared with its other mappings.
    pub(crate) fn of_file(fd: RawFd, size: usize, protection: i32) -> io::Result<Self> {
        let mapping = Self::reserve(size)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the value has reserved the addresses, and nothing else is mapped there.
        let at = unsafe { libc::mmap(mapping.start.cast(), mapping.size, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }

    /// Moves the memory around an offset to a large page, if the host's kernel can do so: large pages of files are
    /// often disabled, except for this request of Linux 6.1 and later.
    pub(crate) fn collapse(&self, at: usize) {
        let at = at - at % LARGE;
        if at < self.size && LARGE <= self.size - at {
            // SAFETY: the range belongs to the mapping, whose contents stay the same.
            unsafe { libc::madvise(self.start.wrapping_add(at).cast(), LARGE, libc::MADV_COLLAPSE) };
        }
    }

    /// Turns some pages into another guard.
    pub(crate) fn guard(&self, at: usize, len: usize) -> io::Result<()> {
        self.protect(at, len, libc::PROT_NONE)
    }

    /// Returns the address of the first byte. [`Self::size`] bytes are valid while the value lives.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole range belongs to the value; every holder of an address of it has borrowed or keeps the
        // value.
        unsafe { libc::munmap(self.whole.0.cast(), self.whole.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernel's permissions for an address of this process: `r`, `w`, `x`, and `-` for a missing one.
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
        assert_eq!((mapping.size(), mapping.start().addr() % LARGE), (5 * PAGE, 0));
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
        // SAFETY: the byte is inside the mapping and not guarded.
        unsafe { mapping.start().add(5 * PAGE - 1).write(7) };
        assert!(Mapping::anonymous(usize::MAX).is_err() && Mapping::anonymous(usize::MAX - 2 * GUARD - LARGE).is_err());
    }
}
