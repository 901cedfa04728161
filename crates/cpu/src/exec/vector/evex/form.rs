//! Forms: what a decoded EVEX instruction becomes.

use super::execute;
use super::memory::Access;
use crate::native::{Kind, WidePlan, WideStub, host_has, wide};
use crate::op::{Handler, Op};
use iced_x86::{EncodingKind, Instruction, Register};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// An EVEX instruction without its register numbers.
#[derive(Debug)]
pub struct Form {
    /// Runs it on the host's units.
    pub native: Option<WideStub>,
    /// Kinds of the operands.
    pub kinds: [Kind; 4],
    /// Which operand is memory (4: none).
    pub memory: u8,
    /// What is touched of it.
    pub access: Access,
    /// Operand 0 is written.
    pub writes: bool,
    /// Writes the arithmetic flags.
    pub flags: bool,
    /// An opmask selects elements; its number is the operation's `size`.
    pub masked: bool,
    /// Obeys MXCSR, and may signal exceptions.
    pub mxcsr: bool,
    /// Exceptions are suppressed, by {sae} or embedded rounding.
    pub quiet: bool,
}

/// All forms met so far. They live as long as the process: decoded operations point to them.
static FORMS: Mutex<BTreeMap<u64, &'static Form>> = Mutex::new(BTreeMap::new());

impl Form {
    /// The form of an operation whose handler is [`execute::run`].
    #[inline(always)]
    pub fn of(op: &Op) -> &'static Self {
        // SAFETY: `bind` put the address of a leaked form there, for exactly the handlers that call this.
        unsafe { &*(op.imm as *const Self) }
    }
}

/// Binds an instruction that does not look at MXCSR.
pub fn integer(i: &Instruction, op: &mut Op) -> Option<Handler> {
    bind(i, op, false)
}

/// Binds an instruction that can signal SIMD floating-point exceptions.
pub fn float(i: &Instruction, op: &mut Op) -> Option<Handler> {
    bind(i, op, true)
}

fn bind(i: &Instruction, op: &mut Op, mxcsr: bool) -> Option<Handler> {
    if i.code().encoding() != EncodingKind::EVEX {
        return None;
    }
    let form = form(i, mxcsr)?;
    op.imm = std::ptr::from_ref(form) as u64;
    op.size = (i.op_mask() as u32).saturating_sub(Register::K0 as u32) as u8 & 7;
    Some(execute::run)
}

fn form(i: &Instruction, mxcsr: bool) -> Option<&'static Form> {
    let plan = WidePlan::new(i, mxcsr)?;
    let mut forms = FORMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(form) = forms.get(&plan.key()) {
        return Some(form);
    }
    let units = wide() && i.code().cpuid_features().iter().all(|feature| host_has(*feature));
    let memory = plan.kinds.iter().position(|kind| *kind == Kind::Memory);
    let form: &'static Form = Box::leak(Box::new(Form {
        native: if units { plan.publish() } else { None },
        kinds: plan.kinds,
        memory: memory.unwrap_or(4) as u8,
        access: Access::of(i),
        writes: plan.writes,
        flags: plan.flags,
        masked: i.op_mask() != Register::None,
        mxcsr,
        quiet: i.suppress_all_exceptions() || i.rounding_control() != iced_x86::RoundingControl::None,
    }));
    forms.insert(plan.key(), form);
    Some(form)
}
