//! AVX-512: EVEX-encoded instructions, and instructions on opmasks.
//!
//! An instruction becomes a [`form::Form`], which is shared by all instructions that differ only in registers. Its
//! handler ([`execute`]) reads the operands, computes the outcome on the host's units (`native/wide.rs`) or without
//! them (`software`), and writes it back. `memory` determines the bytes of a memory operand that are accessed under a
//! mask. Gathers and scatters ([`gather`]) and instructions between opmasks ([`opmask`]) need no unit.

pub mod execute;
#[allow(unsafe_code, reason = "an operation holds a pointer to its form")]
pub mod form;
pub mod gather;
mod memory;
pub mod opmask;
pub mod rows;
pub mod select;
mod substitute;

pub(crate) use memory::alignment;
pub use select::{float, integer};

use crate::fault::{Exec, Fault};
use crate::state::Cpu;
use x86::control::*;
use x86::flags;

/// XCR0: SSE, AVX and the three components of AVX-512.
pub(crate) const STATE: u64 = XCR0_SSE | XCR0_AVX | XCR0_AVX512;

/// Raises an exception unless the operating system has enabled AVX-512 state.
#[inline(always)]
pub(crate) fn ready(cpu: &mut Cpu) -> Exec {
    let ok = cpu.arch.cr0 & (CR0_TS | CR0_PE) == CR0_PE
        && cpu.arch.cr4 & CR4_OSXSAVE != 0
        && cpu.arch.xcr0 & STATE == STATE
        && cpu.arch.flags & flags::VM == 0;
    if ok { Ok(()) } else { Err(not_ready(cpu)) }
}

#[cold]
fn not_ready(cpu: &mut Cpu) -> Fault {
    let enabled = cpu.arch.cr4 & CR4_OSXSAVE != 0 && cpu.arch.xcr0 & STATE == STATE;
    if enabled && cpu.protected() && !cpu.v8086() { cpu.nm() } else { cpu.ud() }
}
