//! Decoder: iced-x86 decodes the bytes, and the instruction table binds operations.

use crate::exec;
use crate::mode;
pub use crate::op::MAX_LENGTH;
use crate::op::{Form, NO_REG, Op, SEG_FLAT};
use crate::state::Cpu;
use crate::table;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpAccess, OpKind, Register};
use ledger::Class;
use x86::seg;

/// Returns the number of a register within its class, and true for AH, CH, DH and BH.
fn number(register: Register) -> (u8, bool) {
    let high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    let number = register.number() as u8;
    // The decoder library numbers AH to BH from 4 to 7, and SPL to R15B from 8.
    (if register.is_gpr8() && number >= 4 { number - 4 } else { number }, high)
}

fn segment(register: Register, long64: bool) -> u8 {
    match register {
        Register::ES if !long64 => seg::ES,
        Register::CS if !long64 => seg::CS,
        Register::SS if !long64 => seg::SS,
        Register::DS if !long64 => seg::DS,
        Register::FS => seg::FS,
        Register::GS => seg::GS,
        _ => SEG_FLAT,
    }
}

fn general(register: Register) -> u8 {
    if register == Register::None || register.is_vector_register() { NO_REG } else { register.number() as u8 & 15 }
}

/// Flags of the first two operands for AH, CH, DH and BH.
const HIGH: [u8; 2] = [Op::HIGH0, Op::HIGH1];

/// Creates the operation of a decoded instruction. Returns it with true if it ends its block.
pub fn operation(instruction: &Instruction, mode: u8) -> (Op, bool) {
    let long64 = mode & 3 == mode::BITS64;
    let mut op = Op {
        exec: exec::undefined,
        next: instruction.next_ip(),
        imm: 0,
        disp: 0,
        base: NO_REG,
        index: NO_REG,
        scale: 0,
        seg: SEG_FLAT,
        r0: 0,
        r1: 0,
        r2: 0,
        r3: 0,
        len: instruction.len() as u8,
        size: 0,
        asize: 8,
        flags: 0,
        class: Class::System,
        form: Form::of(instruction),
    };
    // 16-bit branches truncate EIP, but sequential execution of 16-bit code increments EIP as in 32-bit code.
    if mode & 3 != mode::BITS64 {
        op.next &= 0xffff_ffff;
    }
    if instruction.has_lock_prefix() {
        op.flags |= Op::LOCK;
    }
    if instruction.has_rep_prefix() {
        op.flags |= Op::REPE;
    }
    if instruction.has_repne_prefix() {
        op.flags |= Op::REPNE;
    }
    if is_non_temporal(instruction.mnemonic()) {
        op.flags |= Op::NON_TEMPORAL;
    }
    for i in 0..instruction.op_count().min(4) {
        match instruction.op_kind(i) {
            OpKind::Register => {
                let register = instruction.op_register(i);
                let (number, high) = number(register);
                match i {
                    0 => op.r0 = number,
                    1 => op.r1 = number,
                    2 => op.r2 = number,
                    _ => op.r3 = number,
                }
                if high && i < 2 {
                    op.flags |= HIGH[i as usize];
                }
                if i == 0 {
                    op.size = register.size() as u8;
                }
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                op.imm = instruction.near_branch_target();
                op.size = match instruction.op_kind(i) {
                    OpKind::NearBranch16 => 2,
                    OpKind::NearBranch32 => 4,
                    _ => 8,
                };
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => {
                op.imm = u64::from(instruction.far_branch_selector()) << 32
                    | if instruction.op_kind(i) == OpKind::FarBranch16 {
                        u64::from(instruction.far_branch16())
                    } else {
                        u64::from(instruction.far_branch32())
                    };
                op.size = if instruction.op_kind(i) == OpKind::FarBranch16 { 2 } else { 4 };
            }
            OpKind::Immediate8_2nd => op.disp = u64::from(instruction.immediate8_2nd()),
            OpKind::Memory => {
                memory(instruction, &mut op, long64);
                op.flags |= Op::MEM | if i == 0 { Op::MEM0 } else { 0 };
                if i == 0 {
                    op.size = instruction.memory_size().size() as u8;
                }
            }
            OpKind::MemorySegSI | OpKind::MemorySegDI => {
                op.seg = segment(instruction.memory_segment(), long64);
                op.asize = 2;
                op.flags |= Op::MEM;
            }
            OpKind::MemorySegESI | OpKind::MemorySegEDI => {
                op.seg = segment(instruction.memory_segment(), long64);
                op.asize = 4;
                op.flags |= Op::MEM;
            }
            OpKind::MemorySegRSI | OpKind::MemorySegRDI => {
                op.seg = segment(instruction.memory_segment(), long64);
                op.asize = 8;
                op.flags |= Op::MEM;
            }
            OpKind::MemoryESDI => op.asize = 2,
            OpKind::MemoryESEDI => op.asize = 4,
            OpKind::MemoryESRDI => op.asize = 8,
            _ => {
                if let Ok(value) = instruction.try_immediate(i) {
                    op.imm = value;
                }
            }
        }
    }
    if instruction.is_invalid() {
        return (op, true);
    }
    let Some(row) = table::row(instruction.mnemonic()) else { return (op, true) };
    op.class = row.class;
    match (row.bind)(instruction, &mut op) {
        Some(handler) => op.exec = handler,
        None => {
            op.class = Class::System;
            return (op, true);
        }
    }
    if mode & mode::ENFORCED != 0 {
        exec::cet::near::rebind(instruction, &mut op);
    }
    if op.class == Class::Alu && op.has(Op::MEM) {
        op.class = memory_class(instruction);
    }
    if op.has(Op::LOCK) {
        op.class = Class::Locked;
    }
    // MOV shares its row with the forms for control and debug registers.
    (op, row.ends || op.class == Class::System)
}

fn memory(instruction: &Instruction, op: &mut Op, long64: bool) {
    op.base = general(instruction.memory_base());
    op.index = general(instruction.memory_index());
    op.scale = instruction.memory_index_scale().trailing_zeros() as u8;
    op.disp = instruction.memory_displacement64();
    if instruction.is_ip_rel_memory_operand() {
        op.base = NO_REG;
        op.disp = instruction.ip_rel_memory_address();
    }
    op.seg = segment(instruction.memory_segment(), long64);
    // In 64-bit mode the base register alone decides between #SS and #GP: overrides other than FS and GS are ignored.
    let stack = matches!(instruction.memory_base().full_register(), Register::RSP | Register::RBP);
    if long64 && stack && op.seg == SEG_FLAT {
        op.seg = SEG_FLAT + 1;
    }
    op.asize = address_size(instruction, long64);
}

/// Returns the address size of a memory operand in bytes.
fn address_size(instruction: &Instruction, long64: bool) -> u8 {
    let register = match (instruction.memory_base(), instruction.memory_index()) {
        (Register::None, index) if index.is_vector_register() => Register::None,
        (Register::None, index) => index,
        (base, _) => base,
    };
    match register {
        Register::RIP => 8,
        Register::EIP => 4,
        Register::None => match instruction.memory_displ_size() {
            2 => 2,
            4 => 4,
            8 => 8,
            _ if long64 => 8,
            _ => 4,
        },
        _ => register.size() as u8,
    }
}

/// Classifies an instruction with a memory operand: read, write, or both.
fn memory_class(instruction: &Instruction) -> Class {
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let mut class = Class::Load;
    for memory in info.used_memory() {
        match memory.access() {
            OpAccess::Write | OpAccess::CondWrite => class = Class::Store,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => return Class::ReadModifyWrite,
            _ => {}
        }
    }
    class
}

impl Cpu {
    /// Decodes one instruction at `rip` from `bytes`. Returns an error if it extends beyond them.
    pub fn decode_one(bytes: &[u8], rip: u64, mode: u8) -> Result<Instruction, NeedMore> {
        let width = match mode & 3 {
            mode::BITS16 => 16,
            mode::BITS32 => 32,
            _ => 64,
        };
        let amd = mode & mode::AMD != 0;
        // In AMD mode 16-bit near branches exist in 64-bit mode, REX.W does not widen far pointers, and UD0 has no
        // operands (APM vol. 3).
        let options = if amd { DecoderOptions::AMD } else { DecoderOptions::NONE };
        let mut decoder = Decoder::with_ip(width, bytes, rip, options);
        let instruction = decoder.decode();
        if decoder.last_error() == iced_x86::DecoderError::NoMoreBytes && bytes.len() < MAX_LENGTH {
            return Err(NeedMore);
        }
        use Code::*;
        let own = &bytes[..instruction.len().min(bytes.len())];
        match instruction.code() {
            Pause if amd && extends_register(own) => {
                Ok(Decoder::with_ip(width, bytes, rip, options | DecoderOptions::NO_PAUSE).decode())
            }
            // PREFETCH of a register is a NOP (SDM vol. 2, table A-3), or undefined (APM vol. 3, PREFETCH).
            Reservednop_rm16_r16_0F0D | Reservednop_rm32_r32_0F0D | Reservednop_rm64_r64_0F0D if amd => {
                Ok(undefined(instruction))
            }
            // Without 64-bit registers, W makes these undefined, although it is ignored elsewhere (SDM vol. 2, PINSRB
            // and PEXTRB).
            VEX_Vpinsrd_xmm_xmm_rm32_imm8 | VEX_Vpextrd_rm32_xmm_imm8 if width != 64 && is_wide(own) => {
                Ok(undefined(instruction))
            }
            _ => Ok(instruction),
        }
    }
}

/// Returns true if a one-byte opcode has a REX prefix with B set. With that prefix F3 90 is PAUSE on Intel processors
/// (according to Intel's decoder library; the manual is silent), and an exchange with R8 on AMD's.
fn extends_register(bytes: &[u8]) -> bool {
    matches!(bytes, [.., rex, _] if rex & 0xf1 == 0x41)
}

/// Returns true if an instruction with a three-byte VEX prefix has W set.
fn is_wide(bytes: &[u8]) -> bool {
    bytes.iter().position(|byte| *byte == 0xc4).and_then(|at| bytes.get(at + 2)).is_some_and(|last| last & 0x80 != 0)
}

/// Converts an instruction that this processor lacks to an undefined one.
fn undefined(mut instruction: Instruction) -> Instruction {
    instruction.set_code(Code::INVALID);
    instruction
}

/// Error: the instruction extends beyond the given bytes.
#[derive(Clone, Copy, Debug)]
pub struct NeedMore;

/// Returns true for the stores with a non-temporal hint (SDM volume 1, 10.4.6.2).
fn is_non_temporal(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Movnti
            | Movntq
            | Movntps
            | Movntpd
            | Movntdq
            | Movntss
            | Movntsd
            | Maskmovq
            | Maskmovdqu
            | Vmovntps
            | Vmovntpd
            | Vmovntdq
            | Vmaskmovdqu
    )
}
