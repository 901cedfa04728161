//! Vector instructions: native, on the host's registers with the same numbers.
//!
//! Compiled code may use these registers, so they contain the guest's values only from the first vector instruction of
//! a piece of translated code on ([`super::entry::load`]), until it leaves or calls a handler.
//! [`Running::missing`](super::layout::Running::missing) gives the instructions that may be executed: none before the
//! registers are loaded, and afterwards those that the guest's control registers allow. Arithmetic uses the guest's
//! MXCSR, as long as it masks all exceptions.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{Need, TEST, field};

impl Emit<'_> {
    /// Ensures that the vector registers, or the x87 unit, contain the guest's values and that the current instruction
    /// may be executed. Otherwise handlers execute it and the rest of the block.
    pub fn ready(&mut self, need: Need) {
        if self.loaded & need.bit() != 0 {
            return;
        }
        // Loading uses the scratch registers, but tells only users of their contents.
        self.let_go();
        let retry = self.asm.here();
        self.asm.flagless_load(TEST, need.word());
        self.or_load(retry, need);
        self.loaded |= need.bit();
    }

    /// Checks the alignment of a probed memory operand: all bits of `mask` must be 0. Returns the stub for a misaligned
    /// operand, whose handler returns if an opmask selects nothing.
    pub fn aligned(&mut self, mask: u8) -> usize {
        let bits = match mask {
            15 => field!(aligned_to_16),
            31 => field!(aligned_to_32),
            _ => field!(aligned_to_64),
        };
        self.asm.flagless_lea(TEST, self.operand);
        self.asm.flagless_extract(TEST, TEST, bits);
        self.or_otherwise()
    }
}
