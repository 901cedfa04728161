//! Forms of decoded EVEX instructions.

use super::memory::Access;
use crate::bus::lock;
use crate::exec::vector::software::{self, Function};
use crate::native::{Kind, WidePlan, WideStub, host_has, wide};
use crate::op::Op;
use iced_x86::{Instruction, Register, RoundingControl};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// State that the operating system must have enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// SSE state; the instruction preserves the upper part of its destination.
    Sse,
    /// AVX state.
    Avx,
    /// AVX-512 state.
    Avx512,
}

/// Use of MXCSR and of the host's units by an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// The instruction does not use MXCSR.
    Integer,
    /// The instruction uses MXCSR, and raises exceptions.
    Float,
    /// The instruction uses MXCSR; its results differ between hosts.
    Approximate,
}

/// An instruction without its register numbers.
#[derive(Debug)]
pub struct Form {
    /// Stub that executes it on the host's units.
    pub native: Option<WideStub>,
    /// Function that computes it without them.
    pub software: Option<Function>,
    /// State that must be enabled.
    pub level: Level,
    /// Kinds of the operands.
    pub kinds: [Kind; 4],
    /// Index of the memory operand; 4 if there is none.
    pub memory: u8,
    /// Part of the memory operand that is accessed.
    pub access: Access,
    /// True if operand 0 is written.
    pub writes: bool,
    /// True if the arithmetic flags are written.
    pub flags: bool,
    /// True if an opmask selects elements; its number is the operation's `size`.
    pub masked: bool,
    /// True if the instruction uses MXCSR, and may raise exceptions.
    pub mxcsr: bool,
    /// True if exceptions are suppressed, by {sae} or embedded rounding.
    pub quiet: bool,
}

/// All forms so far, by level and plan. They live as long as the process, because decoded operations point to them.
static FORMS: Mutex<BTreeMap<(u8, u64), &'static Form>> = Mutex::new(BTreeMap::new());

impl Form {
    /// Returns the form of an operation whose handler is [`run`](super::execute::run).
    #[inline(always)]
    pub fn of(op: &Op) -> &'static Self {
        // SAFETY: `bind` stored the address of a leaked form there, for exactly the handlers that call this.
        unsafe { &*(op.imm as *const Self) }
    }
}

/// Returns the form of an instruction, or `None` if neither the host nor software can execute it.
pub(super) fn form(i: &Instruction, level: Level, family: Family) -> Option<&'static Form> {
    let mxcsr = family != Family::Integer;
    let plan = WidePlan::new(i, mxcsr)?;
    let key = (level as u8, plan.key());
    let mut forms = lock(&FORMS);
    if let Some(form) = forms.get(&key) {
        return Some(form);
    }
    let ours = level != Level::Avx512 || family == Family::Approximate;
    let units = !ours && wide() && i.code().cpuid_features().iter().all(|feature| host_has(*feature));
    let native = if units { plan.publish() } else { None };
    let software = software::find(i);
    if native.is_none() && software.is_none() {
        return None;
    }
    let memory = plan.kinds.iter().position(|kind| *kind == Kind::Memory);
    let access = Access::of(i);
    let form: &'static Form = Box::leak(Box::new(Form {
        native,
        software,
        level,
        kinds: plan.kinds,
        memory: memory.unwrap_or(4) as u8,
        access: if level == Level::Sse { access.aligned() } else { access },
        writes: plan.writes,
        flags: plan.flags,
        masked: i.op_mask() != Register::None,
        mxcsr,
        quiet: i.suppress_all_exceptions() || i.rounding_control() != RoundingControl::None,
    }));
    forms.insert(key, form);
    Some(form)
}
