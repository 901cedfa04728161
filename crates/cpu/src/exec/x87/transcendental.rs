//! Transcendental functions.

use crate::arch::F80;
use crate::exec::x87::stack::{enter, overflow, report, underflow};
use crate::f80::host::{Function, Outcome};
use crate::f80::{status::*, transcendental};
use crate::fault::{Exec, Flow};
use crate::op::Op;
use crate::state::Cpu;

/// FSIN and FCOS: C2 is set if the argument is out of range and left unchanged.
#[inline(always)]
pub fn circular(cpu: &mut Cpu, op: &Op, function: fn(u16, F80) -> Option<Outcome>) -> Exec<Flow> {
    enter(cpu)?;
    cpu.arch.x87.status &= !C2;
    if !cpu.arch.x87.full(0) {
        if underflow(cpu, op) {
            cpu.arch.x87.set_st(0, F80::INDEFINITE);
        }
        return Ok(Flow::Next);
    }
    match function(cpu.arch.x87.control, cpu.arch.x87.st(0)) {
        Some(outcome) => {
            if report(cpu, op, outcome.status) {
                cpu.arch.x87.set_st(0, outcome.value);
            }
        }
        None => {
            report(cpu, op, 0);
            cpu.arch.x87.status |= C2;
        }
    }
    Ok(Flow::Next)
}

/// FPTAN and FSINCOS: one result replaces ST(0), the other is pushed.
#[inline(always)]
pub fn two_results(cpu: &mut Cpu, op: &Op, function: fn(u16, F80) -> Option<(Outcome, Outcome)>) -> Exec<Flow> {
    enter(cpu)?;
    cpu.arch.x87.status &= !C2;
    let (first, second, goes_on) = if !cpu.arch.x87.full(0) {
        (F80::INDEFINITE, F80::INDEFINITE, underflow(cpu, op))
    } else if cpu.arch.x87.full(7) {
        (F80::INDEFINITE, F80::INDEFINITE, overflow(cpu, op))
    } else if let Some((first, second)) = function(cpu.arch.x87.control, cpu.arch.x87.st(0)) {
        (first.value, second.value, report(cpu, op, first.status | second.status))
    } else {
        report(cpu, op, 0);
        cpu.arch.x87.status |= C2;
        return Ok(Flow::Next);
    };
    if goes_on {
        cpu.arch.x87.set_st(0, first);
        cpu.arch.x87.push(second);
    }
    Ok(Flow::Next)
}

/// FPTAN.
pub fn fptan(control: u16, x: F80) -> Option<(Outcome, Outcome)> {
    let tangent = transcendental::tangent(control, x)?;
    let one = if tangent.value.class() == crate::f80::FpClass::Nan { tangent.value } else { F80::ONE };
    Some((tangent, Outcome { value: one, status: 0 }))
}

/// FSINCOS.
pub fn fsincos(control: u16, x: F80) -> Option<(Outcome, Outcome)> {
    Some((transcendental::sine(control, x)?, transcendental::cosine(control, x)?))
}

/// FPATAN, FYL2X and FYL2XP1: the result for ST(0) and ST(1) goes to ST(1), and ST(0) is popped.
#[inline(always)]
pub fn into_second(cpu: &mut Cpu, op: &Op, function: Function) -> Exec<Flow> {
    enter(cpu)?;
    let (value, goes_on) = if cpu.arch.x87.full(0) && cpu.arch.x87.full(1) {
        let outcome = function(cpu.arch.x87.control, cpu.arch.x87.st(0), cpu.arch.x87.st(1));
        (outcome.value, report(cpu, op, outcome.status))
    } else {
        (F80::INDEFINITE, underflow(cpu, op))
    };
    if goes_on {
        cpu.arch.x87.set_st(1, value);
        cpu.arch.x87.pop();
    }
    Ok(Flow::Next)
}
