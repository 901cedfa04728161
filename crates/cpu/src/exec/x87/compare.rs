//! Comparisons and classification.

use crate::arch::F80;
use crate::exec::x87::stack::{bound, enter, note, report};
use crate::f80::{self, FpClass, status::*};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;
use std::cmp::Ordering;
use x86::flags;

/// Second operand of a comparison: a value, or `None` for an empty register.
type Operand = Option<F80>;

fn st(cpu: &Cpu, i: u8) -> Operand {
    cpu.arch.x87.full(i).then(|| cpu.arch.x87.st(i))
}

/// Compares and reports exceptions. The second value is true if the instruction may pop.
fn ordered(cpu: &mut Cpu, op: &Op, b: Operand, denormal: bool, quiet: bool) -> (Option<Ordering>, bool) {
    let (order, mut flags) = match (st(cpu, 0), b) {
        (Some(a), Some(b)) => f80::compare(a, b, quiet),
        _ => (None, IE | SF),
    };
    if denormal && order.is_some() {
        flags |= DE;
    }
    let goes_on = report(cpu, op, flags);
    (order, goes_on)
}

fn set_codes(cpu: &mut Cpu, order: Option<Ordering>) {
    let codes = match order {
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => C0,
        Some(Ordering::Equal) => C3,
        None => C0 | C2 | C3,
    };
    cpu.arch.x87.status = cpu.arch.x87.status & !(C0 | C2 | C3) | codes;
}

/// Compares ST(0), sets the condition codes (as processors do even with an unmasked exception) and pops.
fn codes(cpu: &mut Cpu, op: &Op, b: Operand, denormal: bool, quiet: bool, pops: u8) -> Exec<Flow> {
    let (order, goes_on) = ordered(cpu, op, b, denormal, quiet);
    set_codes(cpu, order);
    if goes_on {
        for _ in 0..pops {
            cpu.arch.x87.pop();
        }
    }
    Ok(Flow::Next)
}

pub fn fcom<const QUIET: bool, const POPS: u8>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if !op.has(Op::MEM) {
        // The decoder gives FUCOM with and without ST(0) as its first operand.
        if i.op_count() == 1 {
            op.r1 = op.r0;
        }
        return bound(i, op, |cpu, op| {
            enter(cpu)?;
            let b = st(cpu, op.r1);
            codes(cpu, op, b, false, QUIET, POPS)
        });
    }
    let handler: Handler = match op.size {
        4 => |cpu, op| {
            enter(cpu)?;
            let (b, denormal) = F80::from_single(cpu.load(op)?);
            codes(cpu, op, Some(b), denormal, QUIET, POPS)
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let (b, denormal) = F80::from_double(cpu.load(op)?);
            codes(cpu, op, Some(b), denormal, QUIET, POPS)
        },
    };
    bound(i, op, handler)
}

/// FCOMPP and FUCOMPP.
pub fn pair<const QUIET: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let b = st(cpu, 1);
    codes(cpu, op, b, false, QUIET, 2)
}

pub fn ficom<const POPS: u8>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match op.size {
        2 => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u16>(op)? as i16;
            codes(cpu, op, Some(F80::from_int(b.into())), false, false, POPS)
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u32>(op)? as i32;
            codes(cpu, op, Some(F80::from_int(b.into())), false, false, POPS)
        },
    };
    bound(i, op, handler)
}

pub fn ftst(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    codes(cpu, op, Some(F80::ZERO), false, false, 0)
}

/// FCOMI and similar: the result goes to ZF, PF and CF, even with an unmasked exception; OF, SF and AF are cleared. C1
/// changes only with a stack fault.
pub fn fcomi<const QUIET: bool, const POPS: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let b = st(cpu, op.r1);
    let c1 = if cpu.arch.x87.full(0) && b.is_some() { cpu.arch.x87.status & C1 } else { 0 };
    let (order, goes_on) = ordered(cpu, op, b, false, QUIET);
    cpu.arch.x87.status |= c1;
    cpu.arch.lazy.load(match order {
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => flags::CF,
        Some(Ordering::Equal) => flags::ZF,
        None => flags::ZF | flags::PF | flags::CF,
    });
    if goes_on {
        for _ in 0..POPS {
            cpu.arch.x87.pop();
        }
    }
    Ok(Flow::Next)
}

pub fn fxam(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let value = cpu.arch.x87.st(0);
    let class = match value.class() {
        _ if !cpu.arch.x87.full(0) => C3 | C0,
        FpClass::Unsupported => 0,
        FpClass::Nan => C0,
        FpClass::Normal => C2,
        FpClass::Infinity => C2 | C0,
        FpClass::Zero => C3,
        FpClass::Denormal => C3 | C2,
    };
    let sign = if value.negative() { C1 } else { 0 };
    cpu.arch.x87.status = cpu.arch.x87.status & !(C0 | C1 | C2 | C3) | class | sign;
    note(cpu, op);
    Ok(Flow::Next)
}
