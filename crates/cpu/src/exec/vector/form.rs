//! Forms of decoded vector instructions. A form is shared by all instructions that differ only in registers.

use crate::bus::lock;
use crate::exec::vector::exact::Rounding;
use crate::native::{Extra, OperandKind, Stub, StubPlan};
use crate::op::Op;
use iced_x86::{Code, Instruction, Mnemonic, Register};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Results that may underflow, for which exact denormal results must be found while underflow is unmasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiny {
    /// The result is never tiny.
    Never,
    /// Element size (2, 4 or 8 bytes), and the number of bytes that the elements occupy in the result.
    Elements(u8, u8),
}

/// DPPS and DPPD consist of several operations; each raises its exceptions before the next begins.
#[derive(Debug)]
pub struct Dot {
    /// 256-bit multiplication.
    pub multiply: &'static Form,
    /// 256-bit horizontal addition.
    pub add: &'static Form,
    /// Number of additions that follow.
    pub additions: u8,
    /// Products that are included: bits 7:4 of the immediate.
    pub selected: u8,
    /// Element size in bytes.
    pub size: u8,
    /// Operand size in bytes.
    pub width: u8,
    /// Index of the second factor's operand.
    pub last: u8,
}

impl Dot {
    fn of(i: &Instruction) -> Option<Self> {
        use Mnemonic::*;
        let (multiply, add, size) = match i.mnemonic() {
            Dpps | Vdpps => (Code::VEX_Vmulps_ymm_ymm_ymmm256, Code::VEX_Vhaddps_ymm_ymm_ymmm256, 4),
            Dppd | Vdppd => (Code::VEX_Vmulpd_ymm_ymm_ymmm256, Code::VEX_Vhaddpd_ymm_ymm_ymmm256, 8),
            _ => return None,
        };
        let stage = |code| {
            let stage = Instruction::with3(code, Register::YMM0, Register::YMM0, Register::YMM0).ok()?;
            form(&stage, true).map(|(form, _)| form)
        };
        Some(Self {
            multiply: stage(multiply)?,
            add: stage(add)?,
            additions: if size == 4 { 2 } else { 1 },
            selected: i.immediate8() >> 4,
            size,
            width: i.op0_register().size() as u8,
            last: if i.op_count() == 4 { 2 } else { 1 },
        })
    }
}

/// A vector instruction without its register numbers.
#[derive(Debug)]
pub struct Form {
    /// Stub that executes the instruction.
    pub stub: Stub,
    /// Stub for floating-point instructions while the host's MXCSR is already the guest's.
    pub loaded: Option<Stub>,
    /// Kinds of the operands.
    pub kinds: [OperandKind; 4],
    /// Implicit operands.
    pub extra: Extra,
    /// Index of the memory operand; 4 if there is none.
    pub memory: u8,
    /// Size of the memory operand in bytes.
    pub memory_len: u8,
    /// Address bits that must be 0 in the memory operand.
    pub align: u8,
    /// True if operand 0 is written.
    pub writes: bool,
    /// True if the arithmetic flags are written.
    pub flags: bool,
    /// True if there is an MMX register operand.
    pub mmx: bool,
    /// True if there are XMM or YMM operands.
    pub sse: bool,
    /// See [`Tiny`].
    pub tiny: Tiny,
    /// Rounding of results, if flags depend on it.
    pub rounding: Option<Rounding>,
    /// See [`Dot`].
    pub dot: Option<Dot>,
}

/// All forms so far. They live as long as the process, because decoded operations point to them.
static FORMS: Mutex<BTreeMap<u64, &'static Form>> = Mutex::new(BTreeMap::new());

impl Form {
    /// Returns the form of an operation whose handler is in [`execute`](crate::exec::vector::execute).
    #[inline(always)]
    pub fn of(op: &Op) -> &'static Self {
        // SAFETY: `bind` stored the address of a leaked form there, for exactly the handlers that call this.
        unsafe { &*(op.imm as *const Self) }
    }
}

/// Returns the alignment mask of a memory operand: 16-byte operands of legacy SSE, and aligned moves.
pub(crate) fn align(i: &Instruction, vex: bool) -> u8 {
    use Mnemonic::*;
    let len = i.memory_size().size() as u8;
    let aligned = match i.mnemonic() {
        Movups | Movupd | Movdqu | Lddqu | Pcmpistri | Pcmpistrm => false,
        Pcmpestri | Pcmpestrm | Pcmpestri64 | Pcmpestrm64 => false,
        Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa => true,
        _ => !vex && len == 16,
    };
    if aligned { len - 1 } else { 0 }
}

fn tiny(i: &Instruction) -> Tiny {
    let name = format!("{:?}", i.mnemonic()).to_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    let width = match i.op0_kind() {
        iced_x86::OpKind::Register => i.op0_register().size() as u8,
        _ => i.memory_size().size() as u8,
    };
    const MAY: &[&str] = &["add", "sub", "mul", "div", "hadd", "hsub", "dpp", "fm", "fnm"];
    if name == "cvtps2ph" {
        let width = if i.op1_register().is_ymm() { 16 } else { 8 };
        return Tiny::Elements(2, width);
    }
    if name == "cvtpd2ps" {
        let width = if i.op1_register().is_ymm() || i.memory_size().size() == 32 { 16 } else { 8 };
        return Tiny::Elements(4, width);
    }
    if name != "cvtsd2ss" && !MAY.iter().any(|prefix| name.starts_with(prefix)) {
        return Tiny::Never;
    }
    match &name[name.len() - 2..] {
        "ss" => Tiny::Elements(4, 4),
        "sd" => Tiny::Elements(8, 8),
        "ps" => Tiny::Elements(4, width),
        "pd" => Tiny::Elements(8, width),
        _ => Tiny::Never,
    }
}

/// Returns the form of an instruction, and true if its encoding is VEX. Returns `None` if the host's units can't
/// execute it.
pub(super) fn form(i: &Instruction, mxcsr: bool) -> Option<(&'static Form, bool)> {
    let plan = StubPlan::new(i, mxcsr)?;
    let vex = plan.vex;
    let dot = if mxcsr { Dot::of(i) } else { None };
    let mut forms = lock(&FORMS);
    if let Some(form) = forms.get(&plan.key()) {
        return Some((form, vex));
    }
    let memory = plan.kinds.iter().position(|kind| *kind == OperandKind::Memory);
    let tiny = if mxcsr { tiny(i) } else { Tiny::Never };
    let form: &'static Form = Box::leak(Box::new(Form {
        stub: plan.publish()?,
        loaded: if mxcsr { Some(plan.publish_loaded()?) } else { None },
        kinds: plan.kinds,
        extra: plan.extra,
        memory: memory.unwrap_or(4) as u8,
        memory_len: if memory.is_some() { i.memory_size().size() as u8 } else { 0 },
        align: if memory.is_some() { align(i, vex) } else { 0 },
        writes: plan.writes,
        flags: plan.flags,
        mmx: plan.kinds.contains(&OperandKind::Mmx),
        sse: plan.kinds.contains(&OperandKind::Xmm) || plan.kinds.contains(&OperandKind::Ymm),
        tiny,
        rounding: if mxcsr { Rounding::of(i) } else { None },
        dot,
    }));
    forms.insert(plan.key(), form);
    Some((form, vex))
}
