//! Selection of the handler of an EVEX-encoded instruction, and of instructions that are executed like one.

use super::form::{Family, Level, form};
use super::{execute, substitute};
use crate::op::{Handler, Op};
use iced_x86::{EncodingKind, Instruction, Register};

/// Binds an instruction that does not use MXCSR.
pub fn integer(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if i.code().encoding() == EncodingKind::EVEX { bind(i, op, Level::Avx512, Family::Integer) } else { None }
}

/// Binds an instruction that can signal SIMD floating-point exceptions.
pub fn float(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if i.code().encoding() == EncodingKind::EVEX { bind(i, op, Level::Avx512, Family::Float) } else { None }
}

/// Binds an instruction whose results differ between hosts.
pub fn approximate(i: &Instruction, op: &mut Op) -> Option<Handler> {
    bind(i, op, Level::Avx512, Family::Approximate)
}

/// Binds an instruction in another encoding that the host's units lack, but that software can compute.
pub fn without_units(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let (same, level) = substitute::of(i)?;
    if level == Level::Sse {
        (op.r1, op.r2) = (op.r0, op.r1);
    }
    bind(&same, op, level, Family::Integer)
}

fn bind(i: &Instruction, op: &mut Op, level: Level, family: Family) -> Option<Handler> {
    let form = form(i, level, family)?;
    op.imm = std::ptr::from_ref(form) as u64;
    op.size = (i.op_mask() as u32).saturating_sub(Register::K0 as u32) as u8 & 7;
    Some(execute::run)
}
