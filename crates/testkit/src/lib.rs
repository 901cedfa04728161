//! Basics for the tests of several crates: a processor on an empty board ([`machine`]), random programs, and two tiers
//! of the processor side by side ([`tiers`]).
//!
//! All random code is made here. [`operands`] makes one instruction of a form, with operands that its user chooses;
//! [`program`] makes whole programs of them; [`bytes`] makes code of bytes that need not be instructions.
//!
//! The crate depends on `cpu`, and the tests inside `cpu` must see the types of their own crate. They compile
//! `machine.rs` as a module of their own (`cpu/src/testing.rs`), and take everything that names no type of `cpu` from
//! here.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod debugger;
pub mod machine;
pub mod operands;
pub mod program;
pub use silicon::random;
#[cfg(test)]
mod tests;
pub mod tiers;

pub use machine::*;
pub use random::Random;

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;

/// Assembles code that is loaded at `rip`.
pub fn assemble(bits: u32, rip: u64, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(bits).expect("16, 32 or 64 bits");
    write(&mut assembler).expect("encodable instructions");
    assembler.assemble(rip).expect("encodable instructions")
}

/// Returns true if the host's processor is AMD's. Tests that compare with the host then leave out the behaviour that
/// AMD's manual defines differently from Intel's, which the processor implements, each with the place in the manuals.
pub fn host_is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    (vendor.ebx, vendor.edx, vendor.ecx)
        == (u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"enti"), u32::from_le_bytes(*b"cAMD"))
}
