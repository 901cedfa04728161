//! Requests to the host for memory that is needed soon.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Asks the host for the line of its caches that a value begins in.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    // SAFETY: PREFETCHT0 accesses nothing, and every host has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
}
