//! Stubs of EVEX instructions: one guest instruction on fixed host registers, which computes an outcome from the values
//! of its operands.
//!
//! Vector operand i is in register i+1, opmask operand i in K(i+2), the opmask that selects elements in K1. A memory
//! operand is in [`Operands`] if it is read and in [`Outcome`] if it is written: no stub accesses guest memory, so none
//! faults.

use super::pool;
use super::stub::HOST_MXCSR;
use crate::exec::vector::software::{Operands, Outcome};
use iced_x86::{
    Code, Encoder, IcedError, Instruction, InstructionInfoFactory, MemoryOperand, OpAccess, OpKind, Register,
    RoundingControl,
};
use std::mem::offset_of;

/// A stub.
pub type WideStub = unsafe extern "sysv64" fn(*const Operands, *mut Outcome);

/// Kind of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None, or an immediate.
    None,
    /// Vector register with this number of bytes.
    Vector(u8),
    /// Opmask register.
    Opmask,
    /// General register with this number of bytes.
    General(u8),
    /// Memory.
    Memory,
}

/// Plan for the stub of an instruction.
#[derive(Clone, Debug)]
pub struct WidePlan {
    instruction: Instruction,
    /// Kinds of the operands.
    pub kinds: [Kind; 4],
    /// True if operand 0 is written.
    pub writes: bool,
    /// True if arithmetic flags are written.
    pub flags: bool,
    /// True if the instruction uses and sets MXCSR.
    mxcsr: bool,
}

const OPERANDS: Register = Register::RDI;
const OUTCOME: Register = Register::RSI;
const GENERAL: [Register; 4] = [Register::RAX, Register::R10, Register::R11, Register::RCX];
/// Offsets of operands in [`Operands`].
const VALUES: [usize; 4] =
    [offset_of!(Operands, dest), offset_of!(Operands, a), offset_of!(Operands, b), offset_of!(Operands, c)];

fn value(number: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(OPERANDS, VALUES[number] as i64)
}

fn result(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(OUTCOME, offset as i64)
}

impl WidePlan {
    /// Creates the plan for a decoded instruction. Returns `None` if stubs do not support its operands.
    pub fn new(guest: &Instruction, mxcsr: bool) -> Option<Self> {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(guest);
        let mut i = *guest;
        i.set_segment_prefix(Register::None);
        let mut plan =
            Self { instruction: i, kinds: [Kind::None; 4], writes: false, flags: guest.rflags_modified() != 0, mxcsr };
        if guest.op_mask() != Register::None {
            plan.instruction.set_op_mask(Register::K1);
        }
        for n in 0..guest.op_count() {
            let access = info.op_access(n);
            let written =
                !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess);
            if n == 0 {
                plan.writes = written;
            }
            let slot = n as usize;
            plan.kinds[slot] = match guest.op_kind(n) {
                OpKind::Register => {
                    let register = guest.op_register(n);
                    let (kind, host) = if register.is_vector_register() {
                        let first = match register.size() {
                            16 => Register::XMM1,
                            32 => Register::YMM1,
                            _ => Register::ZMM1,
                        };
                        (Kind::Vector(register.size() as u8), first + n)
                    } else if register.is_k() {
                        (Kind::Opmask, Register::K2 + n)
                    } else if register.is_gpr64() {
                        (Kind::General(8), GENERAL[slot])
                    } else if register.is_gpr32() {
                        (Kind::General(4), GENERAL[slot].full_register32())
                    } else {
                        return None;
                    };
                    plan.instruction.set_op_register(n, host);
                    kind
                }
                OpKind::Memory => {
                    let i = &mut plan.instruction;
                    let (base, at) =
                        if n == 0 { (OUTCOME, offset_of!(Outcome, dest)) } else { (OPERANDS, VALUES[slot]) };
                    i.set_memory_base(base);
                    i.set_memory_index(Register::None);
                    i.set_memory_index_scale(1);
                    i.set_memory_displacement64(at as u64);
                    i.set_memory_displ_size(1);
                    Kind::Memory
                }
                OpKind::Immediate8 => Kind::None,
                _ => return None,
            };
        }
        Some(plan)
    }

    /// Returns a key that is equal for instructions that differ only in registers.
    pub fn key(&self) -> u64 {
        let i = &self.instruction;
        let memory = (0..4).fold(0, |set, n| set | u64::from(self.kinds[n] == Kind::Memory) << n);
        let has_immediate = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Immediate8);
        let immediate = if has_immediate { u64::from(i.immediate8()) } else { 0 };
        let rounding = match i.rounding_control() {
            RoundingControl::None => 0,
            RoundingControl::RoundToNearest => 1,
            RoundingControl::RoundDown => 2,
            RoundingControl::RoundUp => 3,
            RoundingControl::RoundTowardZero => 4,
        };
        let flags = [i.op_mask() != Register::None, i.zeroing_masking(), i.is_broadcast(), i.suppress_all_exceptions()];
        let flags = flags.into_iter().fold(0, |set, flag| set << 1 | u64::from(flag));
        (i.code() as u64) << 24 | immediate << 16 | memory << 12 | rounding << 8 | flags
    }

    fn instructions(&self) -> Result<Vec<Instruction>, IcedError> {
        let mut out = Vec::with_capacity(16);
        for (n, general) in GENERAL.into_iter().enumerate() {
            let at = value(n);
            let number = n as u32;
            match self.kinds[n] {
                Kind::None | Kind::Memory => {}
                Kind::Vector(_) => {
                    out.push(Instruction::with2(Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512, Register::ZMM1 + number, at)?);
                }
                Kind::Opmask => out.push(Instruction::with2(Code::VEX_Kmovq_kr_km64, Register::K2 + number, at)?),
                Kind::General(_) => out.push(Instruction::with2(Code::Mov_r64_rm64, general, at)?),
            }
        }
        if self.instruction.op_mask() != Register::None {
            let mask = MemoryOperand::with_base_displ(OPERANDS, offset_of!(Operands, mask) as i64);
            out.push(Instruction::with2(Code::VEX_Kmovq_kr_km64, Register::K1, mask)?);
        }
        if self.mxcsr {
            let mxcsr = MemoryOperand::with_base_displ(OPERANDS, offset_of!(Operands, mxcsr) as i64);
            out.push(Instruction::with1(Code::Ldmxcsr_m32, mxcsr)?);
        }
        out.push(self.instruction);
        if self.flags {
            out.push(Instruction::with(Code::Pushfq));
            out.push(Instruction::with1(Code::Pop_rm64, result(offset_of!(Outcome, rflags)))?);
        }
        if self.mxcsr {
            out.push(Instruction::with1(Code::Stmxcsr_m32, result(offset_of!(Outcome, mxcsr_flags)))?);
            out.push(Instruction::with1(Code::Pushq_imm32, HOST_MXCSR as i32)?);
            out.push(Instruction::with1(Code::Ldmxcsr_m32, MemoryOperand::with_base(Register::RSP))?);
            out.push(Instruction::with1(Code::Pop_r64, Register::RDX)?);
        }
        if self.writes {
            match self.kinds[0] {
                Kind::None | Kind::Memory => {}
                Kind::Vector(_) => {
                    let to = result(offset_of!(Outcome, dest));
                    out.push(Instruction::with2(Code::EVEX_Vmovdqu64_zmmm512_k1z_zmm, to, Register::ZMM1)?);
                }
                Kind::Opmask => {
                    out.push(Instruction::with2(Code::VEX_Kmovq_m64_kr, result(offset_of!(Outcome, k)), Register::K2)?);
                }
                Kind::General(_) => {
                    let to = result(offset_of!(Outcome, general));
                    out.push(Instruction::with2(Code::Mov_rm64_r64, to, GENERAL[0])?);
                }
            }
        }
        out.push(Instruction::with(Code::VEX_Vzeroupper));
        out.push(Instruction::with(Code::Retnq));
        Ok(out)
    }

    /// Creates the stub. Returns `None` if it cannot be encoded, or no executable memory is left.
    pub fn publish(&self) -> Option<WideStub> {
        let mut encoder = Encoder::new(64);
        for instruction in self.instructions().ok()? {
            encoder.encode(&instruction, 0).ok()?;
        }
        let code = pool::publish_spare(&encoder.take_buffer())?;
        // SAFETY: the published code follows the calling convention of `WideStub`: it uses only caller-saved registers,
        // restores the stack pointer, reads its first argument, writes its second, and returns.
        Some(unsafe { std::mem::transmute::<*const u8, WideStub>(code) })
    }
}
