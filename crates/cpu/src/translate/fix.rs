//! Flags that the manual leaves undefined: they get the interpreter's values (those of Intel processors) on any host.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{FIRST, SECOND, TEST};
use crate::op::Op;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Bits of AH after LAHF.
const ZF_AF_CF: u8 = 0x40 | 0x10 | 0x01;
const AF: u8 = 0x10;

/// Returns true if [`fix`] supports the instruction: shifts and rotates of registers by an immediate, multiplications
/// of 32 or 64 bits, and bit scans of registers.
pub fn can_fix(i: &Instruction, op: &Op) -> bool {
    let wide_enough = i.op0_kind() == OpKind::Register && i.op0_register().size() >= 4;
    match i.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Rol | Mnemonic::Ror => {
            let mask = if op.size == 8 { 63 } else { 31 };
            let count = if i.op1_kind() == OpKind::Immediate8 { i.immediate8() & mask } else { 0 };
            wide_enough && count != 0
        }
        Mnemonic::Mul | Mnemonic::Imul if i.op_count() == 1 => op.size >= 4,
        Mnemonic::Imul => wide_enough,
        // If no bit is set, the destination is unchanged.
        Mnemonic::Bsf | Mnemonic::Bsr => {
            let target = i.op0_register().full_register().number() as u8;
            wide_enough && i.op1_kind() == OpKind::Register && super::layout::host(target).is_some()
        }
        _ => false,
    }
}

/// Emits the instruction, already with host registers, and sets the interpreter's flags.
pub fn fix(emit: &mut Emit, rewritten: &Instruction) -> bool {
    if matches!(rewritten.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) {
        return scan(emit, rewritten);
    }
    // With one operand the product is in RDX and RAX.
    let target = if rewritten.op_count() == 1 { Register::RAX } else { rewritten.op0_register() };
    let wide = if rewritten.op_count() == 1 { emit.op().size == 8 } else { target.is_gpr64() };
    let at = R(target.number() as u8);
    let mut keep_carry = true;
    let mask = if matches!(rewritten.mnemonic(), Mnemonic::Mul | Mnemonic::Imul) {
        if !emit.native(rewritten) {
            return false;
        }
        // SF and PF are the product's, ZF and AF are clear, CF and OF indicate overflow: setc r11b; test.
        emit.asm.bytes(&[0x41, 0x0f, 0x92, 0xc3]);
        emit.test(wide, at);
        keep_carry = false;
        !ZF_AF_CF
    } else if matches!(rewritten.mnemonic(), Mnemonic::Rol | Mnemonic::Ror) {
        if rewritten.immediate8() & if wide { 63 } else { 31 } == 1 {
            // OF is defined.
            return emit.native(rewritten);
        }
        // OF is unchanged: seto r11b.
        emit.asm.bytes(&[0x41, 0x0f, 0x90, 0xc3]);
        if !emit.native(rewritten) {
            return false;
        }
        !0
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

/// BSF or BSR of a register: if no bit is set, ZF and PF are set and the destination is unchanged; otherwise PF is that
/// of the bit number.
fn scan(emit: &mut Emit, rewritten: &Instruction) -> bool {
    let wide = rewritten.op0_register().is_gpr64();
    let (to, from) = (rewritten.op0_register().number() as u8, rewritten.op1_register().number() as u8);
    emit.test(wide, R(from));
    // jz
    emit.asm.bytes(&[0x74, 0]);
    let begin = emit.asm.here();
    if !emit.native(rewritten) {
        return false;
    }
    emit.asm.flagless_lea32(TEST, M::at(R(to), 0x100));
    emit.test(false, TEST);
    let distance = emit.asm.here() - begin;
    emit.asm.code[begin - 1] = distance as u8;
    true
}
