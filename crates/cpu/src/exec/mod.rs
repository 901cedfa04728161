//! Instruction handlers: one file per family, each with its rows of the instruction table.

pub mod amx;
pub mod bits;
pub mod cet;
pub mod control;
pub mod control_register;
pub mod cpuid;
pub mod debug;
pub mod descriptor;
pub mod far;
pub mod flagsops;
pub mod integer;
pub mod interrupt;
pub mod io;
pub mod iret;
pub mod misc;
pub mod msr;
pub mod muldiv;
pub mod segment;
pub mod shift;
pub mod stack;
pub mod stack_access;
#[allow(unsafe_code, reason = "guest memory is reached through host pointers")]
pub mod string;
pub mod syscall;
pub mod system;
pub mod tables;
pub mod task;
pub mod vector;
pub mod x87;
pub mod xsave;

#[cfg(test)]
mod legacy_tests;
#[cfg(test)]
mod monitor_tests;
#[cfg(test)]
mod stays_tests;
#[cfg(test)]
mod system_tests;
#[cfg(test)]
mod vendor_tests;

use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::Op;
use crate::state::Cpu;
use ledger::{Family, Kind};

/// Raises #UD for an instruction that the processor lacks, and counts it by name.
pub fn undefined(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.charge(Kind::new(Family::Undefined, u32::from(op.form.code())), 1);
    Err(cpu.ud())
}

/// Reads register operand 0, including AH, CH, DH and BH.
#[inline(always)]
pub(crate) fn get0<T: Int>(cpu: &Cpu, op: &Op) -> T {
    let value = cpu.arch.gpr[usize::from(op.r0 & 15)];
    T::from_u64(if T::SIZE == 1 && op.has(Op::HIGH0) { value >> 8 } else { value })
}

/// Reads register operand 1, including AH, CH, DH and BH.
#[inline(always)]
pub(crate) fn get1<T: Int>(cpu: &Cpu, op: &Op) -> T {
    let value = cpu.arch.gpr[usize::from(op.r1 & 15)];
    T::from_u64(if T::SIZE == 1 && op.has(Op::HIGH1) { value >> 8 } else { value })
}

/// Writes register operand 0, including AH, CH, DH and BH.
#[inline(always)]
pub(crate) fn set0<T: Int>(cpu: &mut Cpu, op: &Op, value: T) {
    if T::SIZE == 1 && op.has(Op::HIGH0) {
        let slot = &mut cpu.arch.gpr[usize::from(op.r0 & 15)];
        *slot = (*slot & !0xff00) | value.to_u64() << 8;
    } else {
        cpu.set(op.r0, value);
    }
}

/// Writes register operand 1, including AH, CH, DH and BH.
#[inline(always)]
pub(crate) fn set1<T: Int>(cpu: &mut Cpu, op: &Op, value: T) {
    if T::SIZE == 1 && op.has(Op::HIGH1) {
        let slot = &mut cpu.arch.gpr[usize::from(op.r1 & 15)];
        *slot = (*slot & !0xff00) | value.to_u64() << 8;
    } else {
        cpu.set(op.r1, value);
    }
}

/// Selects the instance of a generic handler for an operand size: `sized!(size; handler::<Op, _>)`.
macro_rules! sized {
    ($size:expr; $($path:ident)::+ < $($p:ty),* $(,)? >) => {
        match $size {
            1 => Some($($path)::+::<$($p,)* u8> as $crate::op::Handler),
            2 => Some($($path)::+::<$($p,)* u16> as $crate::op::Handler),
            4 => Some($($path)::+::<$($p,)* u32> as $crate::op::Handler),
            8 => Some($($path)::+::<$($p,)* u64> as $crate::op::Handler),
            _ => None,
        }
    };
}
pub(crate) use sized;
