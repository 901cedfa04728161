//! EVEX instructions without AVX-512 units: AVX-512 in Rust, with results identical to the hardware's.
//!
//! [`find`] binds an instruction once, when it is decoded, and [`Function::run`] computes it from the values of its
//! operands: destination, opmask, general register, flags and MXCSR exceptions. This module does not access the
//! processor's state or memory, and raises no faults; the caller implements loads, stores, gathers and instructions
//! between opmasks. The VEX forms of AVX-VNNI are here as well.
//!
//! Floating-point arithmetic is integer code, generic over the format (`number.rs`, `arithmetic.rs`): half, single and
//! double precision share one implementation, and results do not depend on the host. As specified by the manual,
//! MXCSR's DAZ and FTZ have no effect on half precision.
//!
//! Results that differ between processors are those of Intel's: VRCP14 and VRSQRT14 in `approximate14.rs`, and VRCPPH
//! and VRSQRTPH, which are based on them, in `half.rs`. They must be computed here on every host.

mod approximate14;
mod arithmetic;
mod bits;
mod compare;
mod convert;
mod crypto;
mod float;
mod form;
mod half;
mod integer;
mod lanes;
mod moves;
mod number;
mod permute;
mod shift;
mod special;

use form::{Body, Form};
pub use form::{Bytes, Operands, Outcome};
pub(crate) use lanes::low_bits;
#[cfg(test)]
#[allow(unsafe_code, reason = "the host's own instructions are the reference")]
mod tests;

use iced_x86::{EncodingKind, Instruction, OpCodeOperandKind, OpKind, RoundingControl};

/// A bound instruction.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    body: Body,
    form: Form,
}

impl Function {
    /// Computes the instruction.
    pub fn run(&self, operands: &Operands) -> Outcome {
        if self.form.broadcast == 0 {
            return (self.body)(&self.form, operands);
        }
        let mut spread = *operands;
        let target = match self.form.memory {
            0 => &mut spread.a,
            1 => &mut spread.b,
            _ => &mut spread.c,
        };
        let size = self.form.broadcast;
        let (first, rest) = target.split_at_mut(size);
        for chunk in rest.chunks_exact_mut(size) {
            chunk.copy_from_slice(first);
        }
        (self.body)(&self.form, &spread)
    }
}

impl Function {
    /// Returns true if the instruction is executed as if all exceptions of MXCSR were masked, so that it only records
    /// them. This holds for the complex arithmetic of FP16.
    pub fn masks_exceptions(&self) -> bool {
        self.form.recording
    }
}

/// Returns the function that computes an instruction, if this module has it.
pub fn find(i: &Instruction) -> Option<Function> {
    let code = i.code().op_code();
    match code.encoding() {
        EncodingKind::EVEX => {}
        EncodingKind::VEX => return bits::bind_vnni(i).map(|body| Function { body, form: form(i) }),
        _ => return None,
    }
    let binders = [
        integer::bind,
        float::bind,
        convert::bind,
        special::bind,
        approximate14::bind,
        half::bind,
        shift::bind,
        bits::bind,
        crypto::bind,
        compare::bind,
        permute::bind,
        moves::bind,
    ];
    let body = binders.iter().find_map(|bind| bind(i))?;
    Some(Function { body, form: form(i) })
}

fn form(i: &Instruction) -> Form {
    let code = i.code().op_code();
    let kinds = code.op_kinds();
    let last = i.op_count().saturating_sub(1);
    let imm = if i.op_count() > 0 && i.op_kind(last) == OpKind::Immediate8 { i.immediate8() } else { 0 };
    let memory = (1..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory).unwrap_or(1) - 1;
    let rounding = match i.rounding_control() {
        RoundingControl::None => None,
        RoundingControl::RoundToNearest => Some(0),
        RoundingControl::RoundDown => Some(1),
        RoundingControl::RoundUp => Some(2),
        RoundingControl::RoundTowardZero => Some(3),
    };
    use OpCodeOperandKind::{r64_or_mem, r64_reg, r64_rm};
    Form {
        imm,
        length: 16 << code.l().min(2),
        zeroing: i.zeroing_masking(),
        rounding,
        quiet: rounding.is_some() || i.suppress_all_exceptions(),
        wide: kinds.iter().any(|kind| matches!(kind, r64_or_mem | r64_reg | r64_rm)),
        broadcast: if i.is_broadcast() { i.memory_size().size() } else { 0 },
        recording: half::is_complex(i.mnemonic()),
        memory: memory as u8,
    }
}
