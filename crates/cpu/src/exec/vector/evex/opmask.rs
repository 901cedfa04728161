//! Instructions between opmask registers, general registers and memory.

use super::ready;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic, Mnemonic::*, OpKind};
use x86::flags;

/// Operation on one or two masks.
#[derive(Clone, Copy)]
enum Operation {
    Add,
    And,
    AndNot,
    Or,
    Xor,
    Xnor,
    Not,
    Move,
    ShiftLeft,
    ShiftRight,
    Unpack,
    OrTest,
    Test,
}

/// Mnemonics of the same operation for 8, 16, 32 and 64 bits.
const OPERATIONS: &[([Mnemonic; 4], Operation)] = &[
    ([Kaddb, Kaddw, Kaddd, Kaddq], Operation::Add),
    ([Kandb, Kandw, Kandd, Kandq], Operation::And),
    ([Kandnb, Kandnw, Kandnd, Kandnq], Operation::AndNot),
    ([Korb, Korw, Kord, Korq], Operation::Or),
    ([Kxorb, Kxorw, Kxord, Kxorq], Operation::Xor),
    ([Kxnorb, Kxnorw, Kxnord, Kxnorq], Operation::Xnor),
    ([Knotb, Knotw, Knotd, Knotq], Operation::Not),
    ([Kmovb, Kmovw, Kmovd, Kmovq], Operation::Move),
    ([Kshiftlb, Kshiftlw, Kshiftld, Kshiftlq], Operation::ShiftLeft),
    ([Kshiftrb, Kshiftrw, Kshiftrd, Kshiftrq], Operation::ShiftRight),
    ([INVALID, Kunpckbw, Kunpckwd, Kunpckdq], Operation::Unpack),
    ([Kortestb, Kortestw, Kortestd, Kortestq], Operation::OrTest),
    ([Ktestb, Ktestw, Ktestd, Ktestq], Operation::Test),
];

/// Binds an instruction on opmasks.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let (operation, place) = OPERATIONS.iter().find_map(|(mnemonics, operation)| {
        Some((*operation, mnemonics.iter().position(|mnemonic| *mnemonic == i.mnemonic())?))
    })?;
    op.size = 8 << place;
    Some(match operation {
        Operation::Add => |cpu, op| binary(cpu, op, u64::wrapping_add),
        Operation::And => |cpu, op| binary(cpu, op, |a, b| a & b),
        Operation::AndNot => |cpu, op| binary(cpu, op, |a, b| !a & b),
        Operation::Or => |cpu, op| binary(cpu, op, |a, b| a | b),
        Operation::Xor => |cpu, op| binary(cpu, op, |a, b| a ^ b),
        Operation::Xnor => |cpu, op| binary(cpu, op, |a, b| !(a ^ b)),
        Operation::Not => |cpu, op| unary(cpu, op, |a, _| !a),
        Operation::ShiftLeft => |cpu, op| unary(cpu, op, |a, by| a.checked_shl(by).unwrap_or(0)),
        Operation::ShiftRight => |cpu, op| unary(cpu, op, |a, by| a.checked_shr(by).unwrap_or(0)),
        Operation::Unpack => unpack,
        Operation::OrTest => or_test,
        Operation::Test => test,
        Operation::Move => moving(i)?,
    })
}

fn moving(i: &Instruction) -> Option<Handler> {
    let general = |n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_gpr();
    Some(match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Memory, _) => store,
        (_, OpKind::Memory) => load,
        _ if general(0) => to_general,
        _ if general(1) => from_general,
        _ => |cpu, op| unary(cpu, op, |a, _| a),
    })
}

/// Returns the bits of an operand.
fn width(op: &Op) -> u64 {
    u64::MAX >> (64 - u32::from(op.size.clamp(8, 64)))
}

fn mask(cpu: &Cpu, register: u8) -> u64 {
    cpu.arch.vector.k[usize::from(register & 7)]
}

fn set(cpu: &mut Cpu, op: &Op, value: u64) -> Exec<Flow> {
    cpu.arch.vector.k[usize::from(op.r0 & 7)] = value & width(op);
    Ok(Flow::Next)
}

fn binary(cpu: &mut Cpu, op: &Op, operation: fn(u64, u64) -> u64) -> Exec<Flow> {
    ready(cpu)?;
    let value = operation(mask(cpu, op.r1), mask(cpu, op.r2));
    set(cpu, op, value)
}

fn unary(cpu: &mut Cpu, op: &Op, operation: fn(u64, u32) -> u64) -> Exec<Flow> {
    ready(cpu)?;
    let value = operation(mask(cpu, op.r1) & width(op), op.imm as u32 & 0xff);
    set(cpu, op, value)
}

fn unpack(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let half = u32::from(op.size.clamp(16, 64)) / 2;
    let low = mask(cpu, op.r2) & u64::MAX >> (64 - half);
    let value = mask(cpu, op.r1) << half | low;
    set(cpu, op, value)
}

fn or_test(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let value = (mask(cpu, op.r0) | mask(cpu, op.r1)) & width(op);
    let zero = if value == 0 { flags::ZF } else { 0 };
    let carry = if value == width(op) { flags::CF } else { 0 };
    cpu.arch.lazy.load(zero | carry);
    Ok(Flow::Next)
}

fn test(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let (a, b) = (mask(cpu, op.r0), mask(cpu, op.r1));
    let zero = if a & b & width(op) == 0 { flags::ZF } else { 0 };
    let carry = if !a & b & width(op) == 0 { flags::CF } else { 0 };
    cpu.arch.lazy.load(zero | carry);
    Ok(Flow::Next)
}

fn load(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let value = match op.size {
        8 => u64::from(cpu.load::<u8>(op)?),
        16 => u64::from(cpu.load::<u16>(op)?),
        32 => u64::from(cpu.load::<u32>(op)?),
        _ => cpu.load::<u64>(op)?,
    };
    set(cpu, op, value)
}

fn store(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let value = mask(cpu, op.r1);
    match op.size {
        8 => cpu.store(op, value as u8)?,
        16 => cpu.store(op, value as u16)?,
        32 => cpu.store(op, value as u32)?,
        _ => cpu.store(op, value)?,
    }
    Ok(Flow::Next)
}

fn to_general(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let value = mask(cpu, op.r1) & width(op);
    cpu.set::<u64>(op.r0, value);
    Ok(Flow::Next)
}

fn from_general(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let value = cpu.get::<u64>(op.r1);
    set(cpu, op, value)
}
