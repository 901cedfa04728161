//! Selection of the handler of a vector instruction, by its form.

use crate::exec::vector::form::form;
use crate::exec::vector::{evex, execute};
use crate::native::{Extra, OperandKind, executes};
use crate::op::{Handler, Op};
use iced_x86::{EncodingKind, Instruction};

/// Binds an instruction that does not use MXCSR.
pub fn integer(i: &Instruction, op: &mut Op) -> Option<Handler> {
    bind(i, op, false)
}

/// Binds an instruction that can signal SIMD floating-point exceptions.
pub fn float(i: &Instruction, op: &mut Op) -> Option<Handler> {
    bind(i, op, true)
}

fn bind(i: &Instruction, op: &mut Op, mxcsr: bool) -> Option<Handler> {
    let encoding = i.code().encoding();
    if encoding == EncodingKind::EVEX {
        return if mxcsr { evex::float(i, op) } else { evex::integer(i, op) };
    }
    if encoding != EncodingKind::Legacy && encoding != EncodingKind::VEX {
        return None;
    }
    if !executes(i) {
        return evex::select::without_units(i, op);
    }
    let (form, vex) = form(i, mxcsr)?;
    op.imm = std::ptr::from_ref(form) as u64;
    if form.extra == Extra::ReadsXmm0 {
        op.r3 = 0;
    }
    let vectors = |kinds: &[OperandKind]| {
        kinds.iter().all(|k| matches!(k, OperandKind::None | OperandKind::Xmm | OperandKind::Ymm))
    };
    let plain = form.writes && !form.flags && matches!(form.extra, Extra::None | Extra::ReadsXmm0);
    if plain && vectors(&form.kinds) {
        return Some(match (vex, mxcsr) {
            (false, false) => execute::registers::<false, false>,
            (false, true) => execute::registers::<false, true>,
            (true, false) => execute::registers::<true, false>,
            (true, true) => execute::registers::<true, true>,
        });
    }
    if plain && form.memory == 1 && vectors(&[form.kinds[0], form.kinds[2], form.kinds[3]]) {
        return Some(match (vex, mxcsr) {
            (false, false) => execute::loading::<false, false, 1>,
            (false, true) => execute::loading::<false, true, 1>,
            (true, false) => execute::loading::<true, false, 1>,
            (true, true) => execute::loading::<true, true, 1>,
        });
    }
    if plain && form.memory == 2 && vectors(&[form.kinds[0], form.kinds[1], form.kinds[3]]) {
        return Some(match (vex, mxcsr) {
            (false, false) => execute::loading::<false, false, 2>,
            (false, true) => execute::loading::<false, true, 2>,
            (true, false) => execute::loading::<true, false, 2>,
            (true, true) => execute::loading::<true, true, 2>,
        });
    }
    Some(match (vex, mxcsr) {
        (false, false) => execute::general::<false, false>,
        (false, true) => execute::general::<false, true>,
        (true, false) => execute::general::<true, false>,
        (true, true) => execute::general::<true, true>,
    })
}
