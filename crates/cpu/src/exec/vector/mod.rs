//! MMX, SSE to SSE4.2, AES, PCLMULQDQ, SHA, AVX, AVX2, FMA, F16C and AVX-512.
//!
//! Vector arithmetic runs on the host's own units: [`form`] selects a stub of host code for a decoded instruction (see
//! [`crate::native`]), and [`execute`] calls it. Moves, and instructions whose results must not differ between hosts,
//! are implemented in Rust.

pub mod approximate;
pub mod bind;
#[allow(unsafe_code, reason = "stubs are machine code")]
pub mod evex;
pub mod exact;
#[allow(unsafe_code, reason = "stubs are machine code")]
pub mod execute;
#[allow(unsafe_code, reason = "an operation holds a pointer to its form")]
pub mod form;
pub mod gather;
mod index;
pub mod mask;
pub mod misc;
pub mod moves;
pub mod rows;
pub mod sha;
pub mod software;
#[cfg(test)]
#[allow(unsafe_code, reason = "the host's own instructions are the reference")]
mod tests;

use crate::op::{Handler, Op};
use iced_x86::{Instruction, Mnemonic};

/// Binds the vector instructions that share their mnemonic with string instructions: MOVSD and CMPSD.
pub fn shared(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.mnemonic() {
        Mnemonic::Movsd => {
            op.class = ledger::Class::Vector;
            moves::bind(i, op)
        }
        Mnemonic::Cmpsd => {
            op.class = ledger::Class::VectorFp;
            bind::float(i, op)
        }
        _ => None,
    }
}
