//! Flags that the manual leaves undefined: they get the interpreter's values (those of Intel processors) on any host.

use super::asm::{M, R};
use super::emit::Emit;
use super::fit::by_cl;
use super::layout::{FIRST, SECOND, TEST};
use iced_x86::{Instruction, Mnemonic, Register};

/// Bits of AH after LAHF.
const ZF_AF_CF: u8 = 0x40 | 0x10 | 0x01;
const AF: u8 = 0x10;

/// Emits the instruction, already with host registers, and sets the interpreter's flags.
pub fn fix(emit: &mut Emit, rewritten: &Instruction) -> bool {
    if matches!(rewritten.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) {
        return scan(emit, rewritten);
    }
    if by_cl(rewritten) {
        return shift_by_cl(emit, rewritten);
    }
    // With one operand the product is in RDX and RAX.
    let target = if rewritten.op_count() == 1 { Register::RAX } else { rewritten.op0_register() };
    let wide = if rewritten.op_count() == 1 { emit.op().size == 8 } else { target.is_gpr64() };
    let at = R(target.full_register().number() as u8);
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
        let bits = 8 * emit.op().size;
        let sign = bits - 1;
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
        if bits < 32 {
            emit.asm.bytes(&[0x41, 0x83, 0xe3, 0x01]); // and r11d, 1
        }
        if !emit.native(rewritten) {
            return false;
        }
        !AF
    };
    debug_assert!(target != Register::None);
    correct(emit, mask, keep_carry);
    true
}

/// Sets OF to bit 0 of `SECOND`, and clears the flags that are not in `mask`. Without `keep_carry`, CF is set as OF is.
fn correct(emit: &mut Emit, mask: u8, keep_carry: bool) {
    const { assert!(SECOND.0 == 11) };
    emit.asm.flagless_copy(FIRST, R::RAX);
    emit.asm.bytes(&[0x9f, 0x80, 0xe4, mask]); // lahf; and ah, mask
    emit.asm.bytes(&[0x44, 0x88, 0xd8]); // mov al, r11b
    if !keep_carry {
        emit.asm.bytes(&[0x08, 0xc4]); // or ah, al
    }
    emit.asm.bytes(&[0x04, 0x7f, 0x9e]); // add al, 127; sahf
    emit.asm.flagless_copy(R::RAX, FIRST);
}

/// A shift by CL: AF is clear and OF is as if the count were 1, unless the count is 0, which leaves all flags. The count
/// is in `TEST`.
fn shift_by_cl(emit: &mut Emit, rewritten: &Instruction) -> bool {
    let wide = rewritten.op0_register().is_gpr64();
    let at = R(rewritten.op0_register().number() as u8);
    let bits = if wide { 64 } else { 32 };
    if wide {
        emit.asm.flagless_lea(SECOND, M::at(at, 0));
    } else {
        emit.asm.flagless_lea32(SECOND, M::at(at, 0));
    }
    match rewritten.mnemonic() {
        Mnemonic::Shr => {
            emit.asm.flagless_constant(FIRST, bits - 1);
            emit.asm.flagless_shift_right(SECOND, SECOND, FIRST);
        }
        Mnemonic::Sar => emit.asm.flagless_constant(SECOND, 0),
        _ => {
            // The highest two bits differ if bit 1 of their number plus 1 is set.
            emit.asm.flagless_constant(FIRST, bits - 2);
            emit.asm.flagless_shift_right(SECOND, SECOND, FIRST);
            emit.asm.flagless_lea(SECOND, M::at(SECOND, 1));
            emit.asm.flagless_constant(FIRST, 2);
            emit.asm.flagless_extract_by(SECOND, SECOND, FIRST);
        }
    }
    if !emit.native(rewritten) {
        return false;
    }
    emit.asm.flagless_constant(FIRST, bits - 1);
    emit.asm.flagless_extract_by(TEST, TEST, FIRST);
    let unchanged = emit.asm.flagless_if_zero();
    correct(emit, !AF, true);
    emit.asm.land(unchanged)
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
