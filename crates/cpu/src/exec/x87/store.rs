//! Stores.

use crate::arch::F80;
use crate::exec::x87::rounding;
use crate::exec::x87::stack::{bound, enter, report, store_bytes, underflow};
use crate::f80::{Rounding, host, status::*};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;

pub fn fst<const POP: bool>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match (op.has(Op::MEM), op.size) {
        (false, _) => fst_register::<POP>,
        (true, 4) => |cpu, op| {
            enter(cpu)?;
            let st0 = operand(cpu);
            let (bits, flags) = host::to_single(cpu.arch.x87.control, st0);
            store::<POP, u32>(cpu, op, bits, flags)
        },
        (true, 8) => |cpu, op| {
            enter(cpu)?;
            let st0 = operand(cpu);
            let (bits, flags) = host::to_double(cpu.arch.x87.control, st0);
            store::<POP, u64>(cpu, op, bits, flags)
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let st0 = operand(cpu);
            store_long::<POP>(cpu, op, st0.to_bytes(), 0)
        },
    };
    bound(i, op, handler)
}

/// Returns ST(0), or the value of the masked response if it is empty.
fn operand(cpu: &Cpu) -> F80 {
    if cpu.arch.x87.full(0) { cpu.arch.x87.st(0) } else { F80::INDEFINITE }
}

/// Returns true if exceptions, some of them unmasked, allow a store to memory.
fn stores(cpu: &Cpu, flags: u16) -> bool {
    flags & !cpu.arch.x87.control & (BEFORE | OE | UE) == 0
}

/// Returns the flags of a store; those of a stack underflow if the register is empty.
fn checked(cpu: &Cpu, flags: u16) -> u16 {
    if cpu.arch.x87.full(0) { flags } else { IE | SF }
}

/// Stores a converted value, reports exceptions, and pops.
fn store<const POP: bool, T: Int>(cpu: &mut Cpu, op: &Op, value: T, flags: u16) -> Exec<Flow> {
    let flags = checked(cpu, flags);
    let stored = stores(cpu, flags);
    if stored {
        cpu.store(op, value)?;
    }
    report(cpu, op, flags);
    if POP && stored {
        cpu.arch.x87.pop();
    }
    Ok(Flow::Next)
}

fn store_long<const POP: bool>(cpu: &mut Cpu, op: &Op, bytes: [u8; 10], flags: u16) -> Exec<Flow> {
    let flags = checked(cpu, flags);
    let stored = stores(cpu, flags);
    if stored {
        store_bytes(cpu, op, &bytes, 8)?;
    }
    report(cpu, op, flags);
    if POP && stored {
        cpu.arch.x87.pop();
    }
    Ok(Flow::Next)
}

fn fst_register<const POP: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let value = operand(cpu);
    if if cpu.arch.x87.full(0) { report(cpu, op, 0) } else { underflow(cpu, op) } {
        cpu.arch.x87.set_st(op.r0, value);
        if POP {
            cpu.arch.x87.pop();
        }
    }
    Ok(Flow::Next)
}

/// The undocumented form of FSTP ST(i) that just pops an empty register.
pub fn fstpnce(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    report(cpu, op, 0);
    if cpu.arch.x87.full(0) {
        let value = cpu.arch.x87.st(0);
        cpu.arch.x87.set_st(op.r0, value);
    }
    cpu.arch.x87.pop();
    Ok(Flow::Next)
}

/// Converts ST(0) to an integer of `bits` bits, with flags; out of range, to the integer indefinite with IE.
fn integer(value: F80, rounding: Rounding, bits: u32) -> (u64, u16) {
    let limit = 1u64 << (bits - 1);
    match value.to_integer(rounding) {
        Some((magnitude, flags)) if magnitude < limit || (magnitude == limit && value.negative()) => {
            (if value.negative() { magnitude.wrapping_neg() } else { magnitude }, flags)
        }
        _ => (limit, IE),
    }
}

fn store_integer<const POP: bool, T: Int>(cpu: &mut Cpu, op: &Op, rounding: Rounding) -> Exec<Flow> {
    let (value, flags) = integer(operand(cpu), rounding, u32::from(T::SIZE) * 8);
    store::<POP, T>(cpu, op, T::from_u64(value), flags)
}

fn fist_sized<const POP: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let rounding = rounding(cpu);
    store_integer::<POP, T>(cpu, op, rounding)
}

fn fisttp_sized<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    store_integer::<true, T>(cpu, op, Rounding::Zero)
}

pub fn fist<const POP: bool>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match op.size {
        2 => fist_sized::<POP, u16>,
        4 => fist_sized::<POP, u32>,
        _ => fist_sized::<POP, u64>,
    };
    bound(i, op, handler)
}

pub fn fisttp(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match op.size {
        2 => fisttp_sized::<u16>,
        4 => fisttp_sized::<u32>,
        _ => fisttp_sized::<u64>,
    };
    bound(i, op, handler)
}

/// The packed BCD indefinite.
const BCD_INDEFINITE: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0xff];

pub fn fbstp(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let value = operand(cpu);
    let (bytes, flags) = match value.to_integer(rounding(cpu)) {
        Some((mut magnitude, flags)) if magnitude < 1_000_000_000_000_000_000 => {
            let mut bytes = [0; 10];
            for byte in &mut bytes[..9] {
                let pair = (magnitude % 100) as u8;
                *byte = pair / 10 * 16 + pair % 10;
                magnitude /= 100;
            }
            bytes[9] = u8::from(value.negative()) << 7;
            (bytes, flags)
        }
        _ => (BCD_INDEFINITE, IE),
    };
    store_long::<true>(cpu, op, bytes, flags)
}
