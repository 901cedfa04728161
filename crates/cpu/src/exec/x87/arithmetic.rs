//! Basic arithmetic, and functions whose results are fully specified.

use crate::arch::F80;
use crate::exec::x87::stack::{bound, enter, overflow, report, underflow};
use crate::f80::host::{Arithmetic, Function, Outcome};
use crate::f80::{BIAS, FpClass, status::*};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;

pub fn real<A: Arithmetic>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match (op.has(Op::MEM), op.size) {
        (false, _) => registers::<A, false>,
        (true, 4) => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u32>(op)?;
            into_top(cpu, op, |control, a| A::single(control, a, b))
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u64>(op)?;
            into_top(cpu, op, |control, a| A::double(control, a, b))
        },
    };
    bound(i, op, handler)
}

pub fn integer<A: Arithmetic>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let handler: Handler = match op.size {
        2 => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u16>(op)?;
            into_top(cpu, op, |control, a| A::word(control, a, b))
        },
        _ => |cpu, op| {
            enter(cpu)?;
            let b = cpu.load::<u32>(op)?;
            into_top(cpu, op, |control, a| A::dword(control, a, b))
        },
    };
    bound(i, op, handler)
}

#[inline(always)]
fn into_top(cpu: &mut Cpu, op: &Op, compute: impl FnOnce(u16, F80) -> Outcome) -> Exec<Flow> {
    if !cpu.arch.x87.full(0) {
        if underflow(cpu, op) {
            cpu.arch.x87.set_st(0, F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    let outcome = compute(cpu.arch.x87.control, cpu.arch.x87.st(0));
    if report(cpu, op, outcome.status) {
        cpu.arch.x87.set_st(0, outcome.value);
    }
    Ok(Flow::Next)
}

pub fn registers<A: Arithmetic, const POP: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let (to, from) = (op.r0, op.r1);
    let (value, goes_on) = if cpu.arch.x87.full(to) && cpu.arch.x87.full(from) {
        let outcome = A::register(cpu.arch.x87.control, cpu.arch.x87.st(to), cpu.arch.x87.st(from));
        (outcome.value, report(cpu, op, outcome.status))
    } else {
        (F80::INDEFINITE, underflow(cpu, op))
    };
    if goes_on {
        cpu.arch.x87.set_st(to, value);
        if POP {
            cpu.arch.x87.pop();
        }
    }
    Ok(Flow::Next)
}

/// FABS, or FCHS if `INVERT`.
pub fn sign<const INVERT: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let (value, goes_on) = if cpu.arch.x87.full(0) {
        let value = cpu.arch.x87.st(0);
        (if INVERT { value.negated() } else { value.with_sign(false) }, report(cpu, op, 0))
    } else {
        (F80::INDEFINITE, underflow(cpu, op))
    };
    if goes_on {
        cpu.arch.x87.set_st(0, value);
    }
    Ok(Flow::Next)
}

/// Executes a function of ST(0), or of ST(0) and ST(1), with the result in ST(0).
#[inline(always)]
pub fn function(cpu: &mut Cpu, op: &Op, function: Function, operands: u8) -> Exec<Flow> {
    enter(cpu)?;
    if !cpu.arch.x87.full(0) || (operands == 2 && !cpu.arch.x87.full(1)) {
        if underflow(cpu, op) {
            cpu.arch.x87.set_st(0, F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    let outcome = function(cpu.arch.x87.control, cpu.arch.x87.st(0), cpu.arch.x87.st(1));
    if report(cpu, op, outcome.status) {
        cpu.arch.x87.set_st(0, outcome.value);
    }
    Ok(Flow::Next)
}

/// FPREM and FPREM1: the condition codes are the low bits of the quotient, if there is one; C2 is set if the reduction
/// is incomplete.
#[inline(always)]
pub fn remainder(cpu: &mut Cpu, op: &Op, function: Function) -> Exec<Flow> {
    enter(cpu)?;
    cpu.arch.x87.status &= !C2;
    if !cpu.arch.x87.full(0) || !cpu.arch.x87.full(1) {
        if underflow(cpu, op) {
            cpu.arch.x87.set_st(0, F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    let outcome = function(cpu.arch.x87.control, cpu.arch.x87.st(0), cpu.arch.x87.st(1));
    if report(cpu, op, outcome.status) {
        cpu.arch.x87.set_st(0, outcome.value);
        if outcome.value.class() != FpClass::Nan {
            cpu.arch.x87.status = cpu.arch.x87.status & !(C0 | C2 | C3) | outcome.status & (C0 | C2 | C3);
        }
    }
    Ok(Flow::Next)
}

/// Returns exponent and significand of a value, and the exceptions.
fn extract(value: F80) -> (F80, F80, u16) {
    match value.class() {
        FpClass::Unsupported => (F80::INDEFINITE, F80::INDEFINITE, IE),
        FpClass::Nan => (value.quieted(), value.quieted(), if value.is_signalling() { IE } else { 0 }),
        FpClass::Infinity => (F80::infinity(false), value, 0),
        FpClass::Zero => (F80::infinity(true), value, ZE),
        class => {
            let shift = value.significand.leading_zeros();
            let exponent = value.exponent().max(1) - BIAS - shift as i32;
            let significand = F80 { significand: value.significand << shift, ..F80::ONE }.with_sign(value.negative());
            (F80::from_int(exponent.into()), significand, if class == FpClass::Denormal { DE } else { 0 })
        }
    }
}

pub fn fxtract(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let (exponent, significand, goes_on) = if !cpu.arch.x87.full(0) {
        (F80::INDEFINITE, F80::INDEFINITE, underflow(cpu, op))
    } else if cpu.arch.x87.full(7) {
        (F80::INDEFINITE, F80::INDEFINITE, overflow(cpu, op))
    } else {
        let (exponent, significand, flags) = extract(cpu.arch.x87.st(0));
        (exponent, significand, report(cpu, op, flags))
    };
    if goes_on {
        cpu.arch.x87.set_st(0, exponent);
        cpu.arch.x87.push(significand);
    }
    Ok(Flow::Next)
}
