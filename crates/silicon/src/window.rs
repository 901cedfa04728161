//! The reorder buffer: what shows whether another thread executes on the core.
//!
//! A core divides its reorder buffer between its threads while both are awake, even if one of them only polls: each has half of the entries
//! then (Intel, Optimization Reference Manual, "Partitioned resources"; AMD, Software Optimization Guides, "Resource sharing"). A loop of chains that
//! wait for nothing but themselves, with so many NOPs between them that two chains fit into the whole buffer and not into half of it, takes
//! about twice as long then.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, registers::*};

/// Square roots of a chain.
const ROOTS: usize = 6;
/// NOPs behind it.
const NOPS: usize = 160;

/// Entries of the reorder buffer that a chain takes, with the NOPs behind it.
pub const ENTRIES: f64 = (1 + ROOTS + NOPS) as f64;

/// Chains in a round of the loop.
pub const CHAINS: usize = 4;
/// Rounds of the loop in a measurement.
pub const ROUNDS: u64 = 6;

/// How a chain begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// With the value of XMM1: the chain waits for nothing.
    Own,
    /// With the result of the chain before it.
    Previous,
}

/// Writes a chain and its NOPs. XMM0 and XMM1 have a number that has a square root.
pub fn emit(a: &mut CodeAssembler, begin: Chain) -> Result<(), IcedError> {
    match begin {
        Chain::Own => a.movaps(xmm0, xmm1)?,
        Chain::Previous => a.nop()?,
    }
    (0..ROOTS).try_for_each(|_| a.sqrtsd(xmm0, xmm0))?;
    (0..NOPS).try_for_each(|_| a.nop())
}
