//! Shifts and rotates.
//!
//! Undefined flags (AF; OF for counts other than 1) have the values of Intel processors: AF clear, OF as if the count
//! were 1. OF is unchanged by ROL and ROR of registers by an immediate other than 1, and by RCL and RCR all the way
//! round.

use crate::exec::{get0, get1, set0, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Flags, Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind, Register};
use ledger::Class;
use x86::reg;

/// Instruction table rows of shifts and rotates.
pub static ROWS: &[Row] = &[
    Row::new(Shl, Class::Alu, shift::<Left>).native(Flags::ByCount).common(),
    Row::new(Sal, Class::Alu, shift::<Left>).native(Flags::ByCount).common(),
    Row::new(Shr, Class::Alu, shift::<Right>).native(Flags::ByCount).common(),
    Row::new(Sar, Class::Alu, shift::<Arithmetic>).native(Flags::ByCount).common(),
    Row::new(Rol, Class::Alu, shift::<RotateLeft>).native(Flags::ByCount).common(),
    Row::new(Ror, Class::Alu, shift::<RotateRight>).native(Flags::ByCount).common(),
    Row::new(Rcl, Class::Alu, shift::<CarryLeft>).common(),
    Row::new(Rcr, Class::Alu, shift::<CarryRight>).common(),
    Row::new(Shld, Class::Alu, double::<true>).treated(Treatment::DoubleShift).common(),
    Row::new(Shrd, Class::Alu, double::<false>).treated(Treatment::DoubleShift).common(),
];

/// A shift or rotate by `count`, which has been masked to 5 or 6 bits and is nonzero.
trait Shift {
    /// True if an immediate count other than 1 leaves OF unchanged, with a register operand.
    const IMMEDIATE_KEEPS_OF: bool = false;

    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T;

    /// As [`Shift::apply`], for a register and an immediate count.
    #[inline(always)]
    fn apply_immediate<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let of = cpu.arch.lazy.of();
        let r = Self::apply(cpu, value, count);
        if Self::IMMEDIATE_KEEPS_OF && count != 1 {
            cpu.arch.lazy.set_cf_of(cpu.arch.lazy.cf(), of);
        }
        r
    }
}

struct Left;
struct Right;
struct Arithmetic;
struct RotateLeft;
struct RotateRight;
struct CarryLeft;
struct CarryRight;

#[inline(always)]
fn top<T: Int>(value: u64) -> bool {
    value >> (T::BITS - 1) & 1 != 0
}

/// Returns true if a left shift by one changes the sign.
#[inline(always)]
fn top_two_differ<T: Int>(value: u64) -> bool {
    (value ^ value << 1) >> (T::BITS - 1) & 1 != 0
}

impl Shift for Left {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let v = u128::from(value.to_u64()) << count;
        let r = T::from_u64(v as u64);
        let cf = v >> T::BITS & 1 != 0;
        cpu.arch.lazy.set_result(r, cf, top_two_differ::<T>(value.to_u64()), false);
        r
    }
}

impl Shift for Right {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let v = value.to_u64();
        let before = v >> (count - 1);
        let r = T::from_u64(before >> 1);
        cpu.arch.lazy.set_result(r, before & 1 != 0, top::<T>(v), false);
        r
    }
}

impl Shift for Arithmetic {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let before = value.to_i64() >> (count - 1);
        let r = T::from_u64((before >> 1) as u64);
        cpu.arch.lazy.set_result(r, before & 1 != 0, false, false);
        r
    }
}

impl Shift for RotateLeft {
    const IMMEDIATE_KEEPS_OF: bool = true;

    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let n = count % T::BITS;
        let v = value.to_u64();
        let r = if n == 0 { v } else { (v << n | v >> (T::BITS - n)) & T::MASK };
        cpu.arch.lazy.set_cf_of(r & 1 != 0, top_two_differ::<T>(v));
        T::from_u64(r)
    }
}

impl Shift for RotateRight {
    const IMMEDIATE_KEEPS_OF: bool = true;

    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let n = count % T::BITS;
        let v = value.to_u64();
        let r = if n == 0 { v } else { (v >> n | v << (T::BITS - n)) & T::MASK };
        cpu.arch.lazy.set_cf_of(top::<T>(r), top::<T>(v) ^ (v & 1 != 0));
        T::from_u64(r)
    }
}

impl Shift for CarryLeft {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let n = count % (T::BITS + 1);
        let width = T::BITS + 1;
        if n == 0 {
            return value;
        }
        let v = u128::from(cpu.arch.lazy.cf()) << T::BITS | u128::from(value.to_u64());
        let r = v << n | v >> (width - n);
        cpu.arch.lazy.set_cf_of(r >> T::BITS & 1 != 0, top_two_differ::<T>(value.to_u64()));
        T::from_u64(r as u64)
    }
}

impl Shift for CarryRight {
    #[inline(always)]
    fn apply<T: Int>(cpu: &mut Cpu, value: T, count: u32) -> T {
        let n = count % (T::BITS + 1);
        let width = T::BITS + 1;
        if n == 0 {
            return value;
        }
        let v = u128::from(cpu.arch.lazy.cf()) << T::BITS | u128::from(value.to_u64());
        let r = v >> n | v << (width - n);
        let of = top::<T>(value.to_u64()) ^ cpu.arch.lazy.cf();
        cpu.arch.lazy.set_cf_of(r >> T::BITS & 1 != 0, of);
        T::from_u64(r as u64)
    }
}

#[inline(always)]
fn count_mask<T: Int>() -> u32 {
    if T::SIZE == 8 { 63 } else { 31 }
}

fn shift<S: Shift>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let memory = i.op0_kind() == OpKind::Memory;
    let by_cl = i.op1_kind() == OpKind::Register && i.op1_register() == Register::CL;
    match (memory, by_cl) {
        (false, false) => sized!(op.size; register_by_immediate<S>),
        (false, true) => sized!(op.size; register_by_cl<S>),
        (true, false) => sized!(op.size; memory_by_immediate<S>),
        (true, true) => sized!(op.size; memory_by_cl<S>),
    }
}

#[inline(always)]
fn register<T: Int>(cpu: &mut Cpu, op: &Op, count: u32, apply: fn(&mut Cpu, T, u32) -> T) -> Exec<Flow> {
    let value = get0::<T>(cpu, op);
    // A 32-bit register is zero-extended even if the count is zero.
    let r = if count == 0 { value } else { apply(cpu, value, count) };
    set0(cpu, op, r);
    Ok(Flow::Next)
}

fn register_by_immediate<S: Shift, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    register(cpu, op, op.imm as u32 & count_mask::<T>(), S::apply_immediate::<T>)
}

fn register_by_cl<S: Shift, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let count = cpu.arch.gpr[usize::from(reg::RCX)] as u32 & count_mask::<T>();
    register(cpu, op, count, S::apply::<T>)
}

#[inline(always)]
fn memory<T: Int>(cpu: &mut Cpu, op: &Op, count: u32, apply: fn(&mut Cpu, T, u32) -> T) -> Exec<Flow> {
    cpu.modify::<T>(op, |cpu, value| if count == 0 { value } else { apply(cpu, value, count) })?;
    Ok(Flow::Next)
}

fn memory_by_immediate<S: Shift, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    memory(cpu, op, op.imm as u32 & count_mask::<T>(), S::apply::<T>)
}

fn memory_by_cl<S: Shift, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let count = cpu.arch.gpr[usize::from(reg::RCX)] as u32 & count_mask::<T>();
    memory(cpu, op, count, S::apply::<T>)
}

fn double<const LEFT: bool>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    fn pick<const LEFT: bool, const CL: bool, const MEMORY: bool>(size: u8) -> Option<Handler> {
        match size {
            2 => Some(double_sized::<LEFT, CL, MEMORY, u16>),
            4 => Some(double_sized::<LEFT, CL, MEMORY, u32>),
            8 => Some(double_sized::<LEFT, CL, MEMORY, u64>),
            _ => None,
        }
    }
    match (i.op2_kind() == OpKind::Register, i.op0_kind() == OpKind::Memory) {
        (true, true) => pick::<LEFT, true, true>(op.size),
        (true, false) => pick::<LEFT, true, false>(op.size),
        (false, true) => pick::<LEFT, false, true>(op.size),
        (false, false) => pick::<LEFT, false, false>(op.size),
    }
}

fn double_sized<const LEFT: bool, const CL: bool, const MEMORY: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let count = if CL { cpu.arch.gpr[usize::from(reg::RCX)] as u32 } else { op.imm as u32 } & count_mask::<T>();
    let fill = get1::<T>(cpu, op);
    if MEMORY {
        cpu.modify::<T>(op, |cpu, value| double_shift::<LEFT, T>(cpu, value, fill, count))?;
    } else {
        let r = double_shift::<LEFT, T>(cpu, get0(cpu, op), fill, count);
        cpu.set(op.r0, r);
    }
    Ok(Flow::Next)
}

#[inline(always)]
fn double_shift<const LEFT: bool, T: Int>(cpu: &mut Cpu, value: T, fill: T, count: u32) -> T {
    if count == 0 {
        return value;
    }
    let bits = T::BITS;
    let (v, f) = (u128::from(value.to_u64()), u128::from(fill.to_u64()));
    // Counts above the operand size (16-bit only; undefined) continue into a second copy of the destination, as on
    // Intel.
    let (r, cf) = if LEFT {
        let wide = (v << bits | f) << bits | v;
        let all = if bits == 64 { (v << 64 | f) << count } else { wide << count };
        if bits == 64 {
            ((all >> 64) as u64, v >> (64 - count) & 1 != 0)
        } else {
            ((all >> (2 * bits)) as u64 & T::MASK, all >> (3 * bits) & 1 != 0)
        }
    } else if bits == 64 {
        let all = f << 64 | v;
        ((all >> count) as u64, v >> (count - 1) & 1 != 0)
    } else {
        let wide = (v << bits | f) << bits | v;
        ((wide >> count) as u64 & T::MASK, wide >> (count - 1) & 1 != 0)
    };
    let result = T::from_u64(r);
    let of = if LEFT { top_two_differ::<T>(v as u64) } else { top::<T>(v as u64) ^ (f & 1 != 0) };
    cpu.arch.lazy.set_result(result, cf, of, false);
    result
}
