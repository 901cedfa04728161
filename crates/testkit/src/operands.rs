//! An instruction of a form, with random operands.
//!
//! The form determines the operands ([`Part`]); the caller determines their registers, addresses and numbers
//! ([`Operands`]).

use iced_x86::{Code, EncodingKind, Instruction, OpCodeOperandKind as Kind, OpKind, Register, RoundingControl};

/// Classes of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 8-bit registers, low or high.
    Byte,
    /// General 16-bit registers.
    Word,
    /// General 32-bit registers.
    Double,
    /// General 64-bit registers.
    Quad,
    /// MMX registers.
    Mmx,
    /// 128-bit registers.
    Xmm,
    /// 256-bit registers.
    Ymm,
    /// 512-bit registers.
    Zmm,
    /// Opmasks.
    Opmask,
    /// Registers of the x87 stack.
    X87,
    /// Segment registers.
    Segment,
    /// Control registers.
    Control,
    /// Debug registers.
    Debug,
    /// Test registers, which only the oldest processors have.
    Test,
}

/// The form's requirement for an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Any register of a class.
    Register(Class),
    /// A register of a class, or memory.
    Either(Class),
    /// This register.
    Fixed(Register),
    /// Memory.
    Memory,
    /// Memory at the addresses that a vector of indices gives.
    Gathered {
        /// Size of an index in bytes.
        bytes: u8,
        /// The first register of the vector's class.
        first: Register,
    },
    /// Memory at an address within the instruction.
    Offset,
    /// Memory at rSI, which a string instruction reads.
    Source,
    /// Memory at ES:rDI, which a string instruction writes.
    Destination,
    /// Memory at rDI in any segment, which a masked move writes.
    Masked,
    /// Memory at rBX + AL.
    Table,
    /// A number within the instruction.
    Immediate(OpKind),
    /// The number 1, which is not encoded.
    One,
    /// The target of a near branch.
    Branch {
        /// Width of the instruction pointer in bits.
        bits: u32,
        /// True if the distance is encoded in 8 bits.
        short: bool,
    },
}

impl Part {
    /// Returns the part for an operand that comes after another one, or `None` if no implemented instruction has such
    /// operands.
    fn of(kind: Kind, before: Option<Kind>) -> Option<Self> {
        Some(match kind {
            Kind::r8_or_mem => Self::Either(Class::Byte),
            Kind::r16_or_mem => Self::Either(Class::Word),
            Kind::r32_or_mem => Self::Either(Class::Double),
            Kind::r64_or_mem => Self::Either(Class::Quad),
            Kind::mm_or_mem => Self::Either(Class::Mmx),
            Kind::xmm_or_mem => Self::Either(Class::Xmm),
            Kind::ymm_or_mem => Self::Either(Class::Ymm),
            Kind::zmm_or_mem => Self::Either(Class::Zmm),
            Kind::k_or_mem => Self::Either(Class::Opmask),
            Kind::zmm_reg | Kind::zmm_rm | Kind::zmm_vvvv => Self::Register(Class::Zmm),
            Kind::k_reg | Kind::k_rm | Kind::k_vvvv => Self::Register(Class::Opmask),
            Kind::r8_reg | Kind::r8_opcode => Self::Register(Class::Byte),
            Kind::r16_reg | Kind::r16_reg_mem | Kind::r16_rm | Kind::r16_opcode => Self::Register(Class::Word),
            Kind::r32_reg | Kind::r32_reg_mem | Kind::r32_rm | Kind::r32_opcode | Kind::r32_vvvv => {
                Self::Register(Class::Double)
            }
            Kind::r64_reg | Kind::r64_reg_mem | Kind::r64_rm | Kind::r64_opcode | Kind::r64_vvvv => {
                Self::Register(Class::Quad)
            }
            Kind::mm_reg | Kind::mm_rm => Self::Register(Class::Mmx),
            Kind::xmm_reg | Kind::xmm_rm | Kind::xmm_vvvv | Kind::xmm_is4 | Kind::xmm_is5 => Self::Register(Class::Xmm),
            Kind::ymm_reg | Kind::ymm_rm | Kind::ymm_vvvv | Kind::ymm_is4 | Kind::ymm_is5 => Self::Register(Class::Ymm),
            Kind::sti_opcode => Self::Register(Class::X87),
            Kind::seg_reg => Self::Register(Class::Segment),
            Kind::cr_reg => Self::Register(Class::Control),
            Kind::dr_reg => Self::Register(Class::Debug),
            Kind::tr_reg => Self::Register(Class::Test),
            Kind::al => Self::Fixed(Register::AL),
            Kind::cl => Self::Fixed(Register::CL),
            Kind::ax => Self::Fixed(Register::AX),
            Kind::dx => Self::Fixed(Register::DX),
            Kind::eax => Self::Fixed(Register::EAX),
            Kind::rax => Self::Fixed(Register::RAX),
            Kind::st0 => Self::Fixed(Register::ST0),
            Kind::es => Self::Fixed(Register::ES),
            Kind::cs => Self::Fixed(Register::CS),
            Kind::ss => Self::Fixed(Register::SS),
            Kind::ds => Self::Fixed(Register::DS),
            Kind::fs => Self::Fixed(Register::FS),
            Kind::gs => Self::Fixed(Register::GS),
            Kind::mem => Self::Memory,
            Kind::mem_vsib32x => Self::Gathered { bytes: 4, first: Register::XMM0 },
            Kind::mem_vsib64x => Self::Gathered { bytes: 8, first: Register::XMM0 },
            Kind::mem_vsib32y => Self::Gathered { bytes: 4, first: Register::YMM0 },
            Kind::mem_vsib64y => Self::Gathered { bytes: 8, first: Register::YMM0 },
            Kind::mem_vsib32z => Self::Gathered { bytes: 4, first: Register::ZMM0 },
            Kind::mem_vsib64z => Self::Gathered { bytes: 8, first: Register::ZMM0 },
            Kind::mem_offs => Self::Offset,
            Kind::seg_rSI => Self::Source,
            Kind::es_rDI => Self::Destination,
            Kind::seg_rDI => Self::Masked,
            Kind::seg_rBX_al => Self::Table,
            // ENTER and EXTRQ have two immediates.
            Kind::imm8 if matches!(before, Some(Kind::imm16 | Kind::imm8)) => Self::Immediate(OpKind::Immediate8_2nd),
            Kind::imm8 => Self::Immediate(OpKind::Immediate8),
            Kind::imm8_const_1 => Self::One,
            Kind::imm8sex16 => Self::Immediate(OpKind::Immediate8to16),
            Kind::imm8sex32 => Self::Immediate(OpKind::Immediate8to32),
            Kind::imm8sex64 => Self::Immediate(OpKind::Immediate8to64),
            Kind::imm16 => Self::Immediate(OpKind::Immediate16),
            Kind::imm32 => Self::Immediate(OpKind::Immediate32),
            Kind::imm32sex64 => Self::Immediate(OpKind::Immediate32to64),
            Kind::imm64 => Self::Immediate(OpKind::Immediate64),
            Kind::br16_1 => Self::Branch { bits: 16, short: true },
            Kind::br16_2 => Self::Branch { bits: 16, short: false },
            Kind::br32_1 => Self::Branch { bits: 32, short: true },
            Kind::br32_4 => Self::Branch { bits: 32, short: false },
            Kind::br64_1 => Self::Branch { bits: 64, short: true },
            Kind::br64_4 => Self::Branch { bits: 64, short: false },
            _ => return None,
        })
    }
}

/// The choice of an instruction's operands.
pub trait Operands {
    /// Returns true to put the next operand into memory if it may also be a register.
    fn in_memory(&mut self) -> bool;
    /// Returns true if an operand like this is available; otherwise there is no instruction. This is called before any
    /// other method for the operand, and not for an operand that [`Operands::in_memory`] put into memory.
    fn accepts(&mut self, part: Part) -> bool;
    /// Returns a register.
    fn register(&mut self, class: Class) -> Register;
    /// Sets the memory operand of the instruction: base, index, displacement and segment. Only a scale of 1 is set
    /// before.
    fn memory(&mut self, i: &mut Instruction, part: Part);
    /// Sets the address that the instruction contains ([`Part::Offset`]).
    fn offset(&mut self, i: &mut Instruction);
    /// Returns the width of addresses that registers give alone (strings, XLAT).
    fn address_bits(&mut self) -> u32;
    /// Returns a number, which is cut to the available size.
    fn immediate(&mut self, kind: OpKind) -> u64;
    /// Returns the target of a branch.
    fn branch(&mut self, short: bool) -> u64;
    /// Adds prefixes to the instruction.
    fn prefixes(&mut self, i: &mut Instruction);
}

/// Sets the EVEX properties beyond operands, as likely as `chance` answers to a percentage: an opmask, zeroing,
/// broadcast, rounding. `below` returns a number below its argument.
pub fn decorate(i: &mut Instruction, mut chance: impl FnMut(u64) -> bool, mut below: impl FnMut(u64) -> u64) {
    let info = i.code().op_code();
    if info.encoding() != EncodingKind::EVEX {
        return;
    }
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if info.can_use_op_mask_register() && (info.require_op_mask_register() || chance(65)) {
        i.set_op_mask(Register::K1 + below(7) as u32);
        let zeroes = info.can_use_zeroing_masking() && i.op0_kind() != OpKind::Memory;
        i.set_zeroing_masking(zeroes && chance(50));
    }
    if memory {
        i.set_is_broadcast(info.can_broadcast() && chance(40));
    } else if info.can_use_rounding_control() && chance(30) {
        i.set_rounding_control(match below(4) {
            0 => RoundingControl::RoundToNearest,
            1 => RoundingControl::RoundDown,
            2 => RoundingControl::RoundUp,
            _ => RoundingControl::RoundTowardZero,
        });
    } else if info.can_suppress_all_exceptions() && !info.can_use_rounding_control() {
        i.set_suppress_all_exceptions(chance(30));
    }
}

fn set_immediate(i: &mut Instruction, n: u32, kind: OpKind, value: u64) {
    i.set_op_kind(n, kind);
    match kind {
        OpKind::Immediate8 => i.set_immediate8(value as u8),
        OpKind::Immediate8_2nd => i.set_immediate8_2nd(value as u8),
        OpKind::Immediate16 => i.set_immediate16(value as u16),
        OpKind::Immediate32 => i.set_immediate32(value as u32),
        OpKind::Immediate64 => i.set_immediate64(value),
        OpKind::Immediate8to16 => i.set_immediate8to16(i16::from(value as i8)),
        OpKind::Immediate8to32 => i.set_immediate8to32(i32::from(value as i8)),
        OpKind::Immediate8to64 => i.set_immediate8to64(i64::from(value as i8)),
        _ => i.set_immediate32to64(i64::from(value as i32)),
    }
}

/// Returns an instruction of this form, or `None` if an operand is not available.
pub fn instruction(code: Code, operands: &mut impl Operands) -> Option<Instruction> {
    let mut i = Instruction::default();
    i.set_code(code);
    let kinds = code.op_code().op_kinds();
    for (number, &kind) in kinds.iter().enumerate() {
        let n = number as u32;
        let part = Part::of(kind, number.checked_sub(1).map(|before| kinds[before]))?;
        let part = if matches!(part, Part::Either(_)) && operands.in_memory() {
            Part::Memory
        } else if operands.accepts(part) {
            part
        } else {
            return None;
        };
        match part {
            Part::Register(class) | Part::Either(class) => {
                i.set_op_kind(n, OpKind::Register);
                i.set_op_register(n, operands.register(class));
            }
            Part::Fixed(register) => {
                i.set_op_kind(n, OpKind::Register);
                i.set_op_register(n, register);
            }
            Part::Memory | Part::Gathered { .. } => {
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_index_scale(1);
                operands.memory(&mut i, part);
            }
            Part::Offset => {
                i.set_op_kind(n, OpKind::Memory);
                operands.offset(&mut i);
            }
            Part::Source | Part::Destination | Part::Masked => {
                let wide = operands.address_bits() == 64;
                i.set_op_kind(
                    n,
                    match part {
                        Part::Source if wide => OpKind::MemorySegRSI,
                        Part::Source => OpKind::MemorySegESI,
                        Part::Destination if wide => OpKind::MemoryESRDI,
                        Part::Destination => OpKind::MemoryESEDI,
                        _ if wide => OpKind::MemorySegRDI,
                        _ => OpKind::MemorySegEDI,
                    },
                );
            }
            Part::Table => {
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(if operands.address_bits() == 64 { Register::RBX } else { Register::EBX });
                i.set_memory_index(Register::AL);
                i.set_memory_index_scale(1);
            }
            Part::Immediate(kind) => set_immediate(&mut i, n, kind, operands.immediate(kind)),
            Part::One => set_immediate(&mut i, n, OpKind::Immediate8, 1),
            Part::Branch { bits: 64, short } => {
                i.set_op_kind(n, OpKind::NearBranch64);
                i.set_near_branch64(operands.branch(short));
            }
            Part::Branch { bits: 16, short } => {
                i.set_op_kind(n, OpKind::NearBranch16);
                i.set_near_branch16(operands.branch(short) as u16);
            }
            Part::Branch { short, .. } => {
                i.set_op_kind(n, OpKind::NearBranch32);
                i.set_near_branch32(operands.branch(short) as u32);
            }
        }
    }
    operands.prefixes(&mut i);
    Some(i)
}
