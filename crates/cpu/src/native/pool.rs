//! Memory for stubs, which is executable and never freed.

use super::executable::Executable;
use std::io;
use std::sync::{Mutex, OnceLock};

/// Size of the memory for stubs. A stub has less than 128 bytes, and there are fewer than 120 000 distinct ones: about
/// 4 000 vector forms with a register or memory operand, of which some 150 have an immediate byte.
const SIZE: usize = 64 << 20;

/// Memory that EVEX-encoded instructions leave for the others: those without a stub are computed in software.
const RESERVED: usize = 16 << 20;

/// Alignment of stubs.
const ALIGN: usize = 32;

struct Pool {
    memory: Executable,
    used: usize,
}

static POOL: OnceLock<Result<Mutex<Pool>, i32>> = OnceLock::new();

fn pool() -> io::Result<&'static Mutex<Pool>> {
    let create = || Executable::new(c"tollgate-stubs", SIZE).map(|memory| Mutex::new(Pool { memory, used: 0 }));
    let made = POOL.get_or_init(|| create().map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM)));
    made.as_ref().map_err(|&code| io::Error::from_raw_os_error(code))
}

/// Checks that executable memory is available.
pub fn ready() -> io::Result<()> {
    pool().map(|_| ())
}

/// Copies machine code to executable memory that is never freed. Returns `None` if there is no room, or no such memory.
pub fn publish(code: &[u8]) -> Option<*const u8> {
    publish_below(SIZE, code)
}

/// Copies machine code that has an alternative, within a smaller limit.
pub fn publish_spare(code: &[u8]) -> Option<*const u8> {
    publish_below(SIZE - RESERVED, code)
}

fn publish_below(limit: usize, code: &[u8]) -> Option<*const u8> {
    let mut pool = pool().ok()?.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let at = pool.used;
    let end = at.checked_add(code.len())?;
    if end > limit {
        return None;
    }
    pool.memory.write(at, code);
    pool.used = end.next_multiple_of(ALIGN);
    Some(pool.memory.address(at))
}
