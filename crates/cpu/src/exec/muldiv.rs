//! Multiplication and division.

use crate::exec::{get0, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Flags, Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind};
use ledger::Class;
use x86::{reg, vector};

/// Instruction table rows of multiplication and division.
pub static ROWS: &[Row] = &[
    Row::new(Mul, Class::Mul, |_, op| sized!(op.size; mul<>)).native(Flags::Listed).common(),
    Row::new(Imul, Class::Mul, imul).native(Flags::Listed).common(),
    Row::new(Div, Class::Div, |_, op| sized!(op.size; div<>)).treated(Treatment::Divide).common(),
    Row::new(Idiv, Class::Div, |_, op| sized!(op.size; idiv<>)).treated(Treatment::Divide).common(),
];

#[inline(always)]
fn operand<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<T> {
    if op.has(Op::MEM) { cpu.load::<T>(op) } else { Ok(get0(cpu, op)) }
}

/// Writes a double-width result: AX for bytes, else rDX:rAX.
#[inline(always)]
fn set_wide<T: Int>(cpu: &mut Cpu, low: u64, high: u64) {
    if T::SIZE == 1 {
        cpu.set(reg::RAX, (low & 0xff | high << 8) as u16);
    } else {
        cpu.set(reg::RAX, T::from_u64(low));
        cpu.set(reg::RDX, T::from_u64(high));
    }
}

fn mul<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = operand::<T>(cpu, op)?;
    let wide = u128::from(cpu.get::<T>(reg::RAX).to_u64()) * u128::from(b.to_u64());
    let (low, high) = (T::from_u64(wide as u64), (wide >> T::BITS) as u64);
    set_wide::<T>(cpu, low.to_u64(), high);
    cpu.arch.lazy.set_product(low, high != 0);
    Ok(Flow::Next)
}

fn imul(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.op_count() {
        1 => sized!(op.size; imul_one<>),
        2 => sized!(op.size; imul_two<>),
        _ if i.op1_kind() == OpKind::Memory => sized!(op.size; imul_three_m<>),
        _ => sized!(op.size; imul_three_r<>),
    }
}

#[inline(always)]
fn signed<T: Int>(cpu: &mut Cpu, a: T, b: T) -> (T, u64) {
    let wide = i128::from(a.to_i64()) * i128::from(b.to_i64());
    let low = T::from_u64(wide as u64);
    let overflow = i128::from(low.to_i64()) != wide;
    cpu.arch.lazy.set_product(low, overflow);
    (low, (wide >> T::BITS) as u64)
}

fn imul_one<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = operand::<T>(cpu, op)?;
    let (low, high) = signed(cpu, cpu.get::<T>(reg::RAX), b);
    set_wide::<T>(cpu, low.to_u64(), high);
    Ok(Flow::Next)
}

fn imul_two<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = if op.has(Op::MEM) { cpu.load::<T>(op)? } else { cpu.get::<T>(op.r1) };
    let (low, _) = signed(cpu, cpu.get::<T>(op.r0), b);
    cpu.set(op.r0, low);
    Ok(Flow::Next)
}

fn imul_three_m<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let a = cpu.load::<T>(op)?;
    let (low, _) = signed(cpu, a, T::from_u64(op.imm));
    cpu.set(op.r0, low);
    Ok(Flow::Next)
}

fn imul_three_r<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (low, _) = signed(cpu, cpu.get::<T>(op.r1), T::from_u64(op.imm));
    cpu.set(op.r0, low);
    Ok(Flow::Next)
}

/// Returns the dividend: AX for bytes, else rDX:rAX.
#[inline(always)]
fn dividend<T: Int>(cpu: &Cpu) -> u128 {
    if T::SIZE == 1 {
        u128::from(cpu.get::<u16>(reg::RAX))
    } else {
        u128::from(cpu.get::<T>(reg::RDX).to_u64()) << T::BITS | u128::from(cpu.get::<T>(reg::RAX).to_u64())
    }
}

fn div<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = operand::<T>(cpu, op)?.to_u64();
    if b == 0 {
        return Err(cpu.raise(vector::DE));
    }
    let a = dividend::<T>(cpu);
    let (quotient, remainder) = match u64::try_from(a) {
        Ok(a) => (u128::from(a / b), a % b),
        Err(_) => (a / u128::from(b), (a % u128::from(b)) as u64),
    };
    if quotient > u128::from(T::MASK) {
        return Err(cpu.raise(vector::DE));
    }
    set_wide::<T>(cpu, quotient as u64, remainder);
    Ok(Flow::Next)
}

fn idiv<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = i128::from(operand::<T>(cpu, op)?.to_i64());
    let width = if T::SIZE == 1 { 16 } else { 2 * T::BITS };
    let a = (dividend::<T>(cpu) as i128) << (128 - width) >> (128 - width);
    // `checked_div` also rejects the one quotient that i128 cannot represent.
    let Some(quotient) = a.checked_div(b) else { return Err(cpu.raise(vector::DE)) };
    let remainder = a.wrapping_rem(b);
    let low = T::from_u64(quotient as u64);
    if i128::from(low.to_i64()) != quotient {
        return Err(cpu.raise(vector::DE));
    }
    set_wide::<T>(cpu, low.to_u64(), T::from_u64(remainder as u64).to_u64());
    Ok(Flow::Next)
}
