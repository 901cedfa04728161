//! Flags that the manual leaves undefined, made those of the interpreter (those of Intel's processors) on whatever host.

use super::asm::R;
use super::emit::Emit;
use super::layout::{FIRST, SECOND};
use crate::op::Op;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Bits of AH after LAHF.
const ZF_AF_CF: u8 = 0x40 | 0x10 | 0x01;
const AF: u8 = 0x10;

/// Whether [`fix`] knows the instruction: shifts of registers by an immediate, and multiplications to a register.
pub fn can_fix(i: &Instruction, op: &Op) -> bool {
    let wide_enough = i.op0_kind() == OpKind::Register && i.op0_register().size() >= 4;
    match i.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => {
            let mask = if op.size == 8 { 63 } else { 31 };
            let count = if i.op1_kind() == OpKind::Immediate8 { i.immediate8() & mask } else { 0 };
            wide_enough && count != 0
        }
        Mnemonic::Imul => i.op_count() >= 2 && wide_enough,
        _ => false,
    }
}

/// Emits the instruction, already rewritten to host registers, with the interpreter's flags.
pub fn fix(emit: &mut Emit, rewritten: &Instruction) -> bool {
    let target = rewritten.op0_register();
    let wide = target.is_gpr64();
    let at = R(target.number() as u8);
    let mut keep_carry = true;
    let mask = if rewritten.mnemonic() == Mnemonic::Imul {
        if !emit.native(rewritten) {
            return false;
        }
        // SF and PF are the product's, ZF and AF clear, CF and OF say that it does not fit: setc r11b; test.
        emit.asm.bytes(&[0x41, 0x0f, 0x92, 0xc3]);
        emit.test(wide, at);
        keep_carry = false;
        !ZF_AF_CF
    } else {
        // OF is as if the count were 1; no flag is live before a shift by a constant.
        let sign = if wide { 63 } else { 31 };
        match rewritten.mnemonic() {
            Mnemonic::Shr => {
                emit.copy(wide, SECOND, at);
                emit.shift_right(wide, SECOND, sign);
            }
            Mnemonic::Sar => emit.asm.bytes(&[0x45, 0x31, 0xdb]), // xor r11d, r11d
            _ => {
                emit.copy(wide, SECOND, at);
                emit.add(wide, SECOND, SECOND);
                emit.xor(wide, SECOND, at);
                emit.shift_right(wide, SECOND, sign);
            }
        }
        if !emit.native(rewritten) {
            return false;
        }
        !AF
    };
    debug_assert!(target != Register::None && SECOND == R::R11);
    emit.asm.flagless_copy(FIRST, R::RAX);
    emit.asm.bytes(&[0x9f, 0x80, 0xe4, mask]); // lahf; and ah, mask
    emit.asm.bytes(&[0x44, 0x88, 0xd8]); // mov al, r11b
    if !keep_carry {
        emit.asm.bytes(&[0x08, 0xc4]); // or ah, al
    }
    emit.asm.bytes(&[0x04, 0x7f, 0x9e]); // add al, 127; sahf
    emit.asm.flagless_copy(R::RAX, FIRST);
    true
}
