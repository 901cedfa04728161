//! Stubs: one guest instruction on fixed host registers, with the code that loads its operands and stores its results.
//!
//! A stub receives pointers to its operands. Register operands are loaded from there into fixed registers (vector
//! operand i into register i+1, because register 0 is the implicit operand of some instructions); a memory operand is
//! accessed through its pointer. The result of operand 0 is stored through a separate pointer, so that it can be
//! discarded if a floating-point exception stops the instruction.

use super::pool;
use iced_x86::{
    Code, Encoder, IcedError, Instruction, InstructionInfoFactory, MemoryOperand, OpAccess, OpKind, Register,
};

/// A stub: its arguments are pointers to operands 0 to 3, to auxiliary data (MXCSR, or the general registers for
/// PCMPESTRx), and to the result. It returns RFLAGS if the instruction writes them, otherwise an undefined value.
pub type Stub = unsafe extern "sysv64" fn(*mut u8, *mut u8, *mut u8, *mut u8, *mut u8, *mut u8) -> u64;

/// Kind of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// None, or an immediate.
    None,
    /// XMM register: 16 bytes.
    Xmm,
    /// YMM register: 32 bytes.
    Ymm,
    /// MMX register: 8 bytes.
    Mmx,
    /// General register: 8 bytes.
    General,
    /// Memory.
    Memory,
}

/// Effects of an instruction beyond its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    None,
    /// Reads XMM0 (operand 3 of the stub).
    ReadsXmm0,
    /// Writes ECX, its result, and flags; with `lengths` it also reads RAX and RDX.
    Index {
        /// True if string lengths are explicit.
        lengths: bool,
    },
    /// Writes XMM0, its result, and flags; with `lengths` it also reads RAX and RDX.
    Mask {
        /// True if string lengths are explicit.
        lengths: bool,
    },
}

/// Plan for the stub of an instruction.
#[derive(Clone, Debug)]
pub struct StubPlan {
    /// The instruction on the stub's registers.
    instruction: Instruction,
    /// Kinds of the operands; operand 3 is XMM0 if that is implicit.
    pub kinds: [OperandKind; 4],
    /// True if operand 0 is written.
    pub writes: bool,
    /// True if arithmetic flags are written.
    pub flags: bool,
    /// True if the instruction uses and sets MXCSR.
    pub mxcsr: bool,
    /// True if VEX-encoded.
    pub vex: bool,
    /// See [`Extra`].
    pub extra: Extra,
    reads: [bool; 4],
}

const POINTERS: [Register; 4] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX];
const AUXILIARY: Register = Register::R8;
const OUT: Register = Register::R9;
const GENERAL: [Register; 4] = [Register::RAX, Register::R10, Register::R11, Register::None];

/// MXCSR of compiled code: all exceptions masked, round to nearest, no flags.
pub const HOST_MXCSR: u32 = 0x1f80;

/// Flags of MXCSR.
const FLAGS: u32 = 0x3f;

/// Loads the flags of a value into the host's MXCSR, whose other bits stay those of [`HOST_MXCSR`]. Loading a value that
/// differs from the current one is slow.
pub fn load_mxcsr(value: u32) {
    debug_assert_eq!(value & !FLAGS, HOST_MXCSR);
    let value = HOST_MXCSR | value & FLAGS;
    // SAFETY: all exceptions stay masked and rounding is to nearest; compiled code relies on nothing else, and ignores
    // the flags.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, readonly)) };
}

fn at(base: Register) -> MemoryOperand {
    MemoryOperand::with_base(base)
}

fn numbered(first: Register, number: usize) -> Register {
    first + number as u32
}

impl StubPlan {
    /// Creates the plan for a decoded instruction. Returns `None` if stubs do not support its operands.
    pub fn new(guest: &Instruction, mxcsr: bool) -> Option<Self> {
        use iced_x86::Mnemonic::*;
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(guest);
        let vex = guest.code().encoding() == iced_x86::EncodingKind::VEX;
        let mut i = *guest;
        i.set_segment_prefix(Register::None);
        i.set_has_lock_prefix(false);
        i.set_has_rep_prefix(false);
        i.set_has_repne_prefix(false);
        let mut plan = Self {
            instruction: i,
            kinds: [OperandKind::None; 4],
            writes: false,
            flags: guest.rflags_modified() != 0,
            mxcsr,
            vex,
            extra: Extra::None,
            reads: [false; 4],
        };
        for n in 0..guest.op_count().min(4) {
            let access = info.op_access(n);
            let written = matches!(access, OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite);
            let slot = n as usize;
            match guest.op_kind(n) {
                OpKind::Register => {
                    let register = guest.op_register(n);
                    let (kind, host) = if register.is_xmm() {
                        (OperandKind::Xmm, numbered(Register::XMM1, slot))
                    } else if register.is_ymm() {
                        (OperandKind::Ymm, numbered(Register::YMM1, slot))
                    } else if register.is_mm() {
                        (OperandKind::Mmx, numbered(Register::MM1, slot))
                    } else if register.is_gpr64() {
                        (OperandKind::General, GENERAL[slot])
                    } else if register.is_gpr32() {
                        (OperandKind::General, GENERAL[slot].full_register32())
                    } else {
                        return None;
                    };
                    plan.kinds[slot] = kind;
                    // A legacy instruction preserves part of its destination.
                    plan.reads[slot] = !vex || access != OpAccess::Write;
                    plan.instruction.set_op_register(n, host);
                }
                OpKind::Memory => {
                    plan.kinds[slot] = OperandKind::Memory;
                    let i = &mut plan.instruction;
                    i.set_memory_base(POINTERS[slot]);
                    i.set_memory_index(Register::None);
                    i.set_memory_index_scale(1);
                    i.set_memory_displacement64(0);
                    i.set_memory_displ_size(0);
                }
                OpKind::Immediate8 => {}
                _ => return None,
            }
            if n == 0 {
                plan.writes = written;
            } else if written {
                return None;
            }
        }
        plan.extra = match guest.mnemonic() {
            Blendvpd | Blendvps | Pblendvb | Sha256rnds2 => Extra::ReadsXmm0,
            Pcmpistri | Vpcmpistri => Extra::Index { lengths: false },
            Pcmpestri | Vpcmpestri | Pcmpestri64 | Vpcmpestri64 => Extra::Index { lengths: true },
            Pcmpistrm | Vpcmpistrm => Extra::Mask { lengths: false },
            Pcmpestrm | Vpcmpestrm | Pcmpestrm64 | Vpcmpestrm64 => Extra::Mask { lengths: true },
            _ => Extra::None,
        };
        if plan.extra == Extra::ReadsXmm0 {
            plan.kinds[3] = OperandKind::Xmm;
        }
        Some(plan)
    }

    /// Returns the identity of a stub: code, memory operand, immediate.
    pub fn key(&self) -> u64 {
        let memory = (0..4).fold(0, |set, n| set | u64::from(self.kinds[n] == OperandKind::Memory) << n);
        let has_immediate = (0..self.instruction.op_count()).any(|n| self.instruction.op_kind(n) == OpKind::Immediate8);
        let immediate = if has_immediate { u64::from(self.instruction.immediate8()) } else { 0 };
        (self.instruction.code() as u64) << 16 | memory << 8 | immediate
    }

    fn instructions(&self, loaded: bool) -> Result<Vec<Instruction>, IcedError> {
        let mut out = Vec::with_capacity(16);
        let load_xmm = if self.vex { Code::VEX_Vmovdqa_xmm_xmmm128 } else { Code::Movdqa_xmm_xmmm128 };
        for n in 0..4 {
            if !self.reads[n] {
                continue;
            }
            let (code, register) = match self.kinds[n] {
                OperandKind::None | OperandKind::Memory => continue,
                OperandKind::Xmm => (load_xmm, numbered(Register::XMM1, n)),
                OperandKind::Ymm => (Code::VEX_Vmovdqa_ymm_ymmm256, numbered(Register::YMM1, n)),
                OperandKind::Mmx => (Code::Movq_mm_mmm64, numbered(Register::MM1, n)),
                OperandKind::General => (Code::Mov_r64_rm64, GENERAL[n]),
            };
            out.push(Instruction::with2(code, register, at(POINTERS[n]))?);
        }
        if self.extra == Extra::ReadsXmm0 {
            out.push(Instruction::with2(load_xmm, Register::XMM0, at(POINTERS[3]))?);
        }
        if let Extra::Index { lengths: true } | Extra::Mask { lengths: true } = self.extra {
            // RAX and RDX are at their indices in the array of general registers.
            let rdx = MemoryOperand::with_base_displ(AUXILIARY, 16);
            out.push(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, at(AUXILIARY))?);
            out.push(Instruction::with2(Code::Mov_r64_rm64, Register::RDX, rdx)?);
        }
        if self.mxcsr && !loaded {
            out.push(Instruction::with1(Code::Ldmxcsr_m32, at(AUXILIARY))?);
        }
        out.push(self.instruction);
        if self.flags {
            out.push(Instruction::with(Code::Pushfq));
            out.push(Instruction::with1(Code::Pop_r64, Register::R11)?);
        }
        if self.mxcsr {
            out.push(Instruction::with1(Code::Stmxcsr_m32, at(AUXILIARY))?);
            if !loaded {
                out.push(Instruction::with1(Code::Pushq_imm32, HOST_MXCSR as i32)?);
                out.push(Instruction::with1(Code::Ldmxcsr_m32, at(Register::RSP))?);
                out.push(Instruction::with1(Code::Pop_r64, Register::R10)?);
            }
        }
        match self.extra {
            Extra::Index { .. } => out.push(Instruction::with2(Code::Mov_rm64_r64, at(OUT), Register::RCX)?),
            Extra::Mask { .. } if self.vex => {
                out.push(Instruction::with2(Code::VEX_Vmovdqa_ymmm256_ymm, at(OUT), Register::YMM0)?);
            }
            Extra::Mask { .. } => out.push(Instruction::with2(Code::Movdqa_xmmm128_xmm, at(OUT), Register::XMM0)?),
            _ => {}
        }
        if self.writes {
            let (code, register) = match self.kinds[0] {
                OperandKind::None | OperandKind::Memory => (Code::INVALID, Register::None),
                // A VEX-encoded instruction clears the rest of its destination.
                OperandKind::Xmm | OperandKind::Ymm if self.vex => (Code::VEX_Vmovdqa_ymmm256_ymm, Register::YMM1),
                OperandKind::Xmm | OperandKind::Ymm => (Code::Movdqa_xmmm128_xmm, Register::XMM1),
                OperandKind::Mmx => (Code::Movq_mmm64_mm, Register::MM1),
                OperandKind::General => (Code::Mov_rm64_r64, GENERAL[0]),
            };
            if code != Code::INVALID {
                out.push(Instruction::with2(code, at(OUT), register)?);
            }
        }
        if self.kinds.contains(&OperandKind::Ymm) {
            out.push(Instruction::with(Code::VEX_Vzeroupper));
        }
        if self.kinds.contains(&OperandKind::Mmx) {
            out.push(Instruction::with(Code::Emms));
        }
        if self.flags {
            out.push(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::R11)?);
        }
        out.push(Instruction::with(Code::Retnq));
        Ok(out)
    }

    /// Creates the stub. Returns `None` if it cannot be encoded, or no executable memory is left.
    pub fn publish(&self) -> Option<Stub> {
        self.publish_as(false)
    }

    /// Creates the stub of an instruction that uses MXCSR for the case that the host's MXCSR already has the guest's
    /// value: the stub only stores it afterwards.
    pub fn publish_loaded(&self) -> Option<Stub> {
        self.publish_as(true)
    }

    fn publish_as(&self, loaded: bool) -> Option<Stub> {
        let mut encoder = Encoder::new(64);
        for instruction in self.instructions(loaded).ok()? {
            encoder.encode(&instruction, 0).ok()?;
        }
        let code = pool::publish(&encoder.take_buffer())?;
        // SAFETY: the published code follows the calling convention of `Stub`: it uses only caller-saved registers,
        // restores the stack pointer, and returns.
        Some(unsafe { std::mem::transmute::<*const u8, Stub>(code) })
    }
}
