//! An instruction of a form, with random operands.
//!
//! The form says which operands there are ([`Part`]); the one who wants the instruction says which registers, addresses and
//! numbers they may be ([`Operands`]).

use iced_x86::{Code, EncodingKind, Instruction, OpCodeOperandKind as Kind, OpKind, Register, RoundingControl};

/// Registers that an operand may be one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 8 bits: low or high.
    Byte,
    /// General, 16 bits.
    Word,
    /// General, 32 bits.
    Double,
    /// General, 64 bits.
    Quad,
    /// MMX.
    Mmx,
    /// 128 bits.
    Xmm,
    /// 256 bits.
    Ymm,
    /// 512 bits.
    Zmm,
    /// Opmask.
    Opmask,
    /// On the x87 stack.
    X87,
    /// Segment.
    Segment,
    /// Control.
    Control,
    /// Debug.
    Debug,
    /// Test, which only the oldest processors have.
    Test,
}

/// What a form says of an operand.
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
    /// Memory at the addresses that a vector of indices gives, with elements of so many bytes.
    Gathered {
        /// Bytes of an index.
        bytes: u8,
        /// The first register of the vector's class.
        first: Register,
    },
    /// Memory at an address within the instruction.
    Offset,
    /// Memory where rSI points: what a string instruction reads.
    Source,
    /// Memory where rDI points, in ES: what a string instruction writes.
    Destination,
    /// Memory where rDI points, in any segment: what a masked move writes.
    Masked,
    /// Memory at rBX + AL.
    Table,
    /// A number within the instruction.
    Immediate(OpKind),
    /// The number 1, which is not encoded.
    One,
    /// Where a near branch goes.
    Branch {
        /// Bits of the instruction pointer.
        bits: u32,
        /// Only 8 bits of distance are encoded.
        short: bool,
    },
}

impl Part {
    /// Of an operand that comes after another one. `None`: no instruction that is implemented has such operands.
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
            // ENTER and EXTRQ have two.
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

/// What the operands of an instruction may be.
pub trait Operands {
    /// Whether the next operand is in memory, if it may be a register, too.
    fn in_memory(&mut self) -> bool;
    /// Whether an operand like this may be had; if not, there is no instruction. The question comes before any other about
    /// the operand, and does not come for one that [`Operands::in_memory`] has put into memory.
    fn accepts(&mut self, part: Part) -> bool;
    /// A register.
    fn register(&mut self, class: Class) -> Register;
    /// Gives the instruction its memory operand: base, index, displacement and segment. Nothing is set but a scale of 1.
    fn memory(&mut self, i: &mut Instruction, part: Part);
    /// Gives the instruction the address that it contains ([`Part::Offset`]).
    fn offset(&mut self, i: &mut Instruction);
    /// Bits of an address that registers give by themselves (strings, XLAT).
    fn address_bits(&mut self) -> u32;
    /// A number, of which as much is taken as there is room for.
    fn immediate(&mut self, kind: OpKind) -> u64;
    /// Where a branch goes.
    fn branch(&mut self, short: bool) -> u64;
    /// Adds prefixes to the instruction.
    fn prefixes(&mut self, i: &mut Instruction);
}

/// What EVEX says beyond operands, as likely as `chance` answers to a percentage: an opmask, zeroing, broadcast, rounding. `below` gives
/// a number below another.
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

/// An instruction of this form. `None`: such an operand cannot be had.
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
