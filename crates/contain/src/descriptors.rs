//! Descriptors that a process has from the program that started it.

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::Result;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Largest number of a standard stream.
const LAST_STREAM: RawFd = 2;

/// The descriptors above the standard streams that were open when the program started.
#[derive(Debug, Default)]
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Lists the descriptors. The program must call this before it opens any descriptor of its own.
    ///
    /// # Errors
    /// Returns an error if /proc can't be read. No name leads to an inherited descriptor then.
    pub fn list() -> Result<Self> {
        let directory =
            openat(CWD, "/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own = directory.as_raw_fd();
        let mut numbers = Vec::new();
        for entry in Dir::new(directory)? {
            // The entries `.` and `..` are no numbers.
            numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok()));
        }
        numbers.retain(|number| *number > LAST_STREAM && *number != own);
        Ok(Self(numbers))
    }

    /// Keeps the descriptors from the programs that this process starts, except those that hold a lock. The program must call this before it closes any
    /// descriptor.
    pub fn withhold(&self) {
        for number in self.0.iter().filter(|number| !holds_lock(**number)) {
            // SAFETY: the descriptor is open, and nothing closes it meanwhile.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            // The call fails only for descriptors that are not open.
            let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
        }
    }

    /// Closes the descriptors, except those that hold a lock: whoever started the program wants the lock to last as long as the program.
    pub fn close(&self) {
        for number in self.0.iter().filter(|number| !holds_lock(**number)) {
            // The descriptor may have been closed already, and there is nothing else to do about an error.
            let _ = nix::unistd::close(*number);
        }
    }
}

/// Returns true if a descriptor holds a lock (proc_pid_fdinfo(5)).
fn holds_lock(number: RawFd) -> bool {
    let information = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    information.lines().any(|line| line.starts_with("lock:"))
}
