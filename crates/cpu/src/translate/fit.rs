//! Forms of instructions that the host's processor executes as the interpreter does, or with corrected flags. Plans and the
//! emitter use this module.

use super::layout::{self, Need};
use crate::native::{executes, wide};
use crate::op::Op;
use crate::row::Treatment;
use crate::table;
use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind, Register};
use ledger::Class;

/// Returns the translator's treatment of an instruction.
pub fn treatment(i: &Instruction) -> Treatment {
    table::row(i.mnemonic()).map_or(Treatment::Handler, |row| row.treatment)
}

/// Returns true if an operand of an instruction is in memory.
pub fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory)
}

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

/// Returns true if undefined flags can be set to the interpreter's values: shifts and rotates of registers by an immediate, shifts of 32 or
/// 64 bits by CL, multiplications of 32 or 64 bits, and bit scans of registers.
pub fn can_fix(i: &Instruction, op: &Op) -> bool {
    use Mnemonic::*;
    let register = i.op0_kind() == OpKind::Register;
    let wide_enough = register && i.op0_register().size() >= 4;
    let high = matches!(i.op0_register(), Register::AH | Register::CH | Register::DH | Register::BH);
    let pinned = || layout::host(i.op0_register().full_register().number() as u8).is_some();
    match i.mnemonic() {
        Shl | Sal | Shr | Sar if by_cl(i) => wide_enough && pinned(),
        Shl | Sal | Shr | Sar | Rol | Ror if i.op1_kind() == OpKind::Immediate8 => {
            let count = i.immediate8() & if op.size == 8 { 63 } else { 31 };
            // For counts of the operand's size and more, results differ between processors.
            register && !high && count != 0 && (wide_enough || count < op.size * 8)
        }
        Mul | Imul if i.op_count() == 1 => op.size >= 4,
        Imul => wide_enough,
        // If no bit is set, the destination is unchanged.
        Bsf | Bsr => wide_enough && i.op1_kind() == OpKind::Register && pinned(),
        _ => false,
    }
}

/// Returns true for a shift or rotate by CL.
pub fn by_cl(i: &Instruction) -> bool {
    i.op_count() > 1 && i.op1_kind() == OpKind::Register && i.op1_register() == Register::CL
}
