//! Executable memory: one anonymous file mapped twice, once writable and once executable, so that nothing is ever both.

use std::ffi::CStr;
use std::io;
use std::sync::{Mutex, OnceLock};

/// Room for stubs. A stub takes under 128 bytes, and there are fewer than 120 000 distinct ones: about 4 000 vector forms
/// with a register or memory operand, of which some 150 have an immediate byte.
const SIZE: usize = 32 << 20;

/// Stubs start at multiples of this.
const ALIGN: usize = 32;

struct Pool {
    writable: usize,
    executable: usize,
    used: usize,
}

static POOL: OnceLock<Result<Mutex<Pool>, i32>> = OnceLock::new();

const NAME: &CStr = c"tollgate-stubs";

fn map(fd: i32, protection: i32) -> io::Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice; it is never unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}

fn create() -> io::Result<Pool> {
    // SAFETY: plain system calls on a descriptor that is ours alone; the mappings keep the file alive after `close`.
    unsafe {
        let fd = libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let made = if libc::ftruncate(fd, SIZE as libc::off_t) == 0 {
            map(fd, libc::PROT_READ | libc::PROT_WRITE)
                .and_then(|writable| Ok((writable, map(fd, libc::PROT_READ | libc::PROT_EXEC)?)))
        } else {
            Err(io::Error::last_os_error())
        };
        libc::close(fd);
        let (writable, executable) = made?;
        Ok(Pool { writable, executable, used: 0 })
    }
}

fn pool() -> io::Result<&'static Mutex<Pool>> {
    let made = POOL.get_or_init(|| create().map(Mutex::new).map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM)));
    made.as_ref().map_err(|&code| io::Error::from_raw_os_error(code))
}

/// Makes sure that there is executable memory.
pub fn ready() -> io::Result<()> {
    pool().map(|_| ())
}

/// Puts machine code where it can be executed, for the rest of the process's life. `None`: no room, or no such memory.
pub fn publish(code: &[u8]) -> Option<*const u8> {
    let mut pool = pool().ok()?.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let at = pool.used;
    let end = at.checked_add(code.len())?;
    if end > SIZE {
        return None;
    }
    // SAFETY: `at..end` lies inside the writable mapping and has not been handed out; nothing executes there yet.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), (pool.writable + at) as *mut u8, code.len()) };
    pool.used = end.next_multiple_of(ALIGN);
    Some((pool.executable + at) as *const u8)
}
