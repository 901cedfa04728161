//! Loads, constants, and moves within the stack.

use crate::arch::F80;
use crate::exec::x87::rounding;
use crate::exec::x87::stack::{bound, enter, load_bytes, note, overflow, report, underflow};
use crate::f80::{Rounding, status::*};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;

/// Pushes a loaded value.
fn push(cpu: &mut Cpu, op: &Op, value: F80, flags: u16) -> Exec<Flow> {
    if cpu.arch.x87.full(7) {
        if overflow(cpu, op) {
            cpu.arch.x87.push(F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    // A denormal is pushed even if DE is unmasked.
    if report(cpu, op, flags) || flags & IE == 0 {
        cpu.arch.x87.push(value);
    }
    Ok(Flow::Next)
}

/// Returns the value pushed by a conversion from a narrower format, and its exceptions.
fn converted((value, denormal): (F80, bool)) -> (F80, u16) {
    if value.is_signalling() {
        return (value.quieted(), IE);
    }
    (value, if denormal { DE } else { 0 })
}

pub fn fld(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match (op.has(Op::MEM), op.size) {
        (false, _) => fld_register,
        (true, 4) => |cpu, op| {
            enter(cpu)?;
            let (value, flags) = converted(F80::from_single(cpu.load(op)?));
            push(cpu, op, value, flags)
        },
        (true, 8) => |cpu, op| {
            enter(cpu)?;
            let (value, flags) = converted(F80::from_double(cpu.load(op)?));
            push(cpu, op, value, flags)
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let mut bytes = [0; 10];
            load_bytes(cpu, op, &mut bytes, 8)?;
            push(cpu, op, F80::from_bytes(bytes), 0)
        },
    };
    bound(i, op, handler)
}

fn fld_register(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    if !cpu.arch.x87.full(op.r0) {
        if underflow(cpu, op) {
            cpu.arch.x87.push(F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    let value = cpu.arch.x87.st(op.r0);
    push(cpu, op, value, 0)
}

pub fn fild(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match op.size {
        2 => |cpu, op| {
            enter(cpu)?;
            let value = cpu.load::<u16>(op)? as i16;
            push(cpu, op, F80::from_int(value.into()), 0)
        },
        4 => |cpu, op| {
            enter(cpu)?;
            let value = cpu.load::<u32>(op)? as i32;
            push(cpu, op, F80::from_int(value.into()), 0)
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let value = cpu.load::<u64>(op)? as i64;
            push(cpu, op, F80::from_int(value), 0)
        },
    };
    bound(i, op, handler)
}

pub fn fbld(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let mut bytes = [0; 10];
    load_bytes(cpu, op, &mut bytes, 8)?;
    // Eighteen digits of up to 15 (digits above 9 are invalid but harmless) stay below 2^64.
    let magnitude = bytes[..9].iter().rev().fold(0u64, |v, b| v * 100 + u64::from(b >> 4) * 10 + u64::from(b & 15));
    push(cpu, op, F80::from_magnitude(magnitude).with_sign(bytes[9] & 0x80 != 0), 0)
}

/// Indices of the constants.
pub const ONE: usize = 0;
/// log2(10).
pub const L2T: usize = 1;
/// log2(e).
pub const L2E: usize = 2;
/// Pi.
pub const PI: usize = 3;
/// log10(2).
pub const LG2: usize = 4;
/// ln(2).
pub const LN2: usize = 5;
/// Zero.
pub const ZERO: usize = 6;

/// For each constant: sign and exponent, significand rounded down, and the increments for rounding to nearest and up.
const CONSTANTS: [(u16, u64, u64, u64); 7] = [
    (0x3fff, 0x8000_0000_0000_0000, 0, 0),
    (0x4000, 0xd49a_784b_cd1b_8afe, 0, 1),
    (0x3fff, 0xb8aa_3b29_5c17_f0bb, 1, 1),
    (0x4000, 0xc90f_daa2_2168_c234, 1, 1),
    (0x3ffd, 0x9a20_9a84_fbcf_f798, 1, 1),
    (0x3ffe, 0xb172_17f7_d1cf_79ab, 1, 1),
    (0, 0, 0, 0),
];

pub fn constant<const WHICH: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let (sign_exponent, down, nearest, up) = CONSTANTS[WHICH];
    let add = match rounding(cpu) {
        Rounding::Nearest => nearest,
        Rounding::Up => up,
        Rounding::Down | Rounding::Zero => 0,
    };
    push(cpu, op, F80 { significand: down + add, sign_exponent }, 0)
}

pub fn fcmov<const CC: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    if !cpu.arch.x87.full(0) || !cpu.arch.x87.full(op.r1) {
        if underflow(cpu, op) {
            cpu.arch.x87.set_st(0, F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    // C1 changes only with a stack fault.
    note(cpu, op);
    if cpu.arch.lazy.condition(CC) {
        let value = cpu.arch.x87.st(op.r1);
        cpu.arch.x87.set_st(0, value);
    }
    Ok(Flow::Next)
}

pub fn fxch(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let i = op.r1;
    let both = cpu.arch.x87.full(0) && cpu.arch.x87.full(i);
    if if both { report(cpu, op, 0) } else { underflow(cpu, op) } {
        let x = &mut cpu.arch.x87;
        let value = |n| if x.full(n) { x.st(n) } else { F80::INDEFINITE };
        let (a, b) = (value(0), value(i));
        x.set_st(0, b);
        x.set_st(i, a);
    }
    Ok(Flow::Next)
}
