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
use super::plan::treatment;
use crate::native::{executes, wide};
use crate::op::Op;
use crate::row::Treatment;
use iced_x86::{EncodingKind, Instruction, OpKind, Register};
use ledger::Class;

/// Returns the requirement of an instruction that the vector units execute, if the host executes this form as the
/// interpreter does.
pub fn need(i: &Instruction, op: &Op) -> Option<Need> {
    let arithmetic = match op.class {
        Class::Vector | Class::Crypto => false,
        Class::VectorFp | Class::VectorDiv => true,
        _ => return None,
    };
    let vex = match i.code().encoding() {
        EncodingKind::Legacy => false,
        EncodingKind::VEX => true,
        EncodingKind::EVEX => return need_wide(i, arithmetic),
        _ => return None,
    };
    if treatment(i) == Treatment::Opmask {
        return need_wide(i, false);
    }
    let operands = (0..i.op_count()).all(|n| match i.op_kind(n) {
        OpKind::Register => {
            let register = i.op_register(n);
            register.is_xmm() || register.is_ymm() || (register.is_gpr() && register != Register::CH)
        }
        OpKind::Memory => matches!(i.memory_size().size(), 1 | 2 | 4 | 8 | 16 | 32),
        kind => kind == OpKind::Immediate8,
    });
    (operands && executes(i)).then_some(Need::new(vex, arithmetic))
}

/// Returns the requirement of an instruction on AVX-512 registers.
fn need_wide(i: &Instruction, arithmetic: bool) -> Option<Need> {
    let operands = (0..i.op_count()).all(|n| match i.op_kind(n) {
        OpKind::Register => {
            let register = i.op_register(n);
            register.is_vector_register() || register.is_k() || register.is_gpr()
        }
        OpKind::Memory => matches!(i.memory_size().size(), 1 | 2 | 4 | 8 | 16 | 32 | 64),
        kind => kind == OpKind::Immediate8,
    });
    (operands && wide() && executes(i)).then_some(Need::wide(arithmetic))
}

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
        let ready = self.asm.flagless_if_zero();
        self.load_and(retry, need);
        self.asm.land(ready);
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
