//! Tests if results are exact with an unbounded exponent.
//!
//! With overflow or underflow unmasked, the precision exception refers to the result before its exponent is checked;
//! execution with all exceptions masked gives a different answer. Only instructions that fault reach this code.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// A finite nonzero number: (-1)^`negative` * `significand` * 2^`exponent`, with an odd significand.
#[derive(Clone, Copy)]
struct Number {
    negative: bool,
    significand: u128,
    exponent: i32,
}

impl Number {
    fn new(negative: bool, significand: u128, exponent: i32) -> Self {
        let zeros = significand.trailing_zeros();
        Self { negative, significand: significand >> zeros, exponent: exponent + zeros as i32 }
    }

    fn bits(self) -> i32 {
        128 - self.significand.leading_zeros() as i32
    }

    /// Returns the exponent of the lowest power of two above the number.
    fn top(self) -> i32 {
        self.exponent + self.bits()
    }
}

/// Exponent of the smallest normal single.
const SMALLEST_SINGLE: i32 = -126;

/// Value of an operand's element.
#[derive(Clone, Copy)]
enum Value {
    Zero,
    Number(Number),
    /// Infinity or NaN.
    Other,
}

fn value(element: &[u8], daz: bool) -> Value {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let raw = u64::from_le_bytes(bytes);
    let (fraction_bits, exponent_bits) = if element.len() == 4 { (23, 8) } else { (52, 11) };
    let fraction = raw & ((1 << fraction_bits) - 1);
    let biased = (raw >> fraction_bits) as i32 & ((1 << exponent_bits) - 1);
    let negative = raw >> (fraction_bits + exponent_bits) & 1 != 0;
    if biased == (1 << exponent_bits) - 1 {
        return Value::Other;
    }
    if biased == 0 && (fraction == 0 || daz) {
        return Value::Zero;
    }
    let implicit = if biased == 0 { 0 } else { 1 << fraction_bits };
    let unit = (1 << (exponent_bits - 1)) - 1 + fraction_bits;
    Value::Number(Number::new(negative, u128::from(fraction | implicit), biased.max(1) - unit))
}

/// Operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Conversion to a narrower format.
    Convert,
    /// Conversion of singles to halves.
    ConvertToHalf,
    /// Multiplication.
    Multiply,
    /// Division.
    Divide,
    /// Addition, or subtraction of the second operand in even or odd elements.
    Add {
        /// True if even elements are subtracted.
        even: bool,
        /// True if odd elements are subtracted.
        odd: bool,
    },
    /// Addition of adjacent elements.
    Horizontal {
        /// True for subtraction.
        subtract: bool,
    },
    /// Fused multiplication and addition.
    Fused {
        /// Indices of the two multiplied operands, and of the added one.
        order: [u8; 3],
        /// True if even elements are subtracted from the product.
        even: bool,
        /// True if odd elements are subtracted from the product.
        odd: bool,
    },
}

/// Returns the operation of a mnemonic, if a single step of it can overflow or underflow.
fn operation(mnemonic: Mnemonic) -> Option<Operation> {
    let name = format!("{mnemonic:?}").to_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    let fused = |even, odd| {
        let order = if name.contains("132") {
            [0, 2, 1]
        } else if name.contains("213") {
            [1, 0, 2]
        } else {
            [1, 2, 0]
        };
        Operation::Fused { order, even, odd }
    };
    Some(match name {
        "cvtpd2ps" | "cvtsd2ss" => Operation::Convert,
        "cvtps2ph" => Operation::ConvertToHalf,
        _ if name.starts_with("mul") => Operation::Multiply,
        _ if name.starts_with("div") => Operation::Divide,
        _ if name.starts_with("addsub") => Operation::Add { even: true, odd: false },
        _ if name.starts_with("add") => Operation::Add { even: false, odd: false },
        _ if name.starts_with("sub") => Operation::Add { even: true, odd: true },
        _ if name.starts_with("hadd") => Operation::Horizontal { subtract: false },
        _ if name.starts_with("hsub") => Operation::Horizontal { subtract: true },
        _ if name.starts_with("fmaddsub") => fused(true, false),
        _ if name.starts_with("fmsubadd") => fused(false, true),
        _ if name.starts_with("fmadd") || name.starts_with("fnmsub") => fused(false, false),
        _ if name.starts_with("fmsub") || name.starts_with("fnmadd") => fused(true, true),
        _ => return None,
    })
}

/// Returns true if a + b needs more than `precision` bits.
fn sum_inexact(a: Number, b: Number, precision: i32) -> bool {
    let (low, high) = if a.exponent <= b.exponent { (a, b) } else { (b, a) };
    let shift = high.exponent - low.exponent;
    // Without cancellation, the sum extends from the top of one number to the bottom of the other.
    if high.bits() + shift > 250 {
        return true;
    }
    let shifted = shift_left(high.significand, shift as u32);
    let other = (0, low.significand);
    let sum = if a.negative == b.negative {
        add(shifted, other)
    } else if shifted >= other {
        subtract(shifted, other)
    } else {
        subtract(other, shifted)
    };
    width(sum) > precision
}

/// A 256-bit number: high and low half.
type Wide = (u128, u128);

fn shift_left(value: u128, by: u32) -> Wide {
    match by {
        0 => (0, value),
        1..128 => (value >> (128 - by), value << by),
        _ => (value << (by & 127), 0),
    }
}

fn add(a: Wide, b: Wide) -> Wide {
    let (low, carry) = a.1.overflowing_add(b.1);
    (a.0.wrapping_add(b.0).wrapping_add(u128::from(carry)), low)
}

fn subtract(a: Wide, b: Wide) -> Wide {
    let (low, borrow) = a.1.overflowing_sub(b.1);
    (a.0.wrapping_sub(b.0).wrapping_sub(u128::from(borrow)), low)
}

/// Returns the number of bits from the highest to the lowest set bit.
fn width(value: Wide) -> i32 {
    if value == (0, 0) {
        return 0;
    }
    let top = if value.0 != 0 { 256 - value.0.leading_zeros() } else { 128 - value.1.leading_zeros() };
    let bottom = if value.1 != 0 { value.1.trailing_zeros() } else { 128 + value.0.trailing_zeros() };
    (top - bottom) as i32
}

fn product(a: Number, b: Number) -> Number {
    // Significands have at most 53 bits.
    Number::new(a.negative != b.negative, a.significand.wrapping_mul(b.significand), a.exponent + b.exponent)
}

fn add_inexact(a: Value, b: Value, precision: i32) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => sum_inexact(a, b, precision),
        // A product, which may be longer than the result.
        (Value::Number(n), Value::Zero) | (Value::Zero, Value::Number(n)) => n.bits() > precision,
        _ => false,
    }
}

fn negated(value: Value, negate: bool) -> Value {
    match value {
        Value::Number(n) => Value::Number(Number { negative: n.negative != negate, ..n }),
        other => other,
    }
}

/// Properties of an instruction for the test of exactness.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    /// The operation.
    pub operation: Operation,
    /// Size of a source element in bytes.
    pub size: u8,
    /// Number of bytes of each source that are used.
    pub width: u8,
    /// Number of bits in a result's significand.
    pub precision: u8,
    /// Index of the last source operand.
    pub last: u8,
}

impl Rounding {
    /// Returns the properties of an instruction, if a single step of it can overflow or underflow.
    pub fn of(i: &Instruction) -> Option<Self> {
        let operation = operation(i.mnemonic())?;
        let name = format!("{:?}", i.mnemonic()).to_lowercase();
        let (size, precision) = match &name[name.len() - 2..] {
            _ if name.ends_with("cvtpd2ps") || name.ends_with("cvtsd2ss") => (8, 24),
            "ss" | "ps" => (4, 24),
            "sd" | "pd" => (8, 53),
            _ => (4, 11),
        };
        let last = (1..i.op_count()).rev().find(|&n| i.op_kind(n) != OpKind::Immediate8)?;
        let scalar = name.ends_with("ss") || name.ends_with("sd");
        let width = match i.op_kind(last) {
            _ if scalar => usize::from(size),
            OpKind::Register => i.op_register(last).size(),
            _ => i.memory_size().size(),
        };
        Some(Self { operation, size, width: width as u8, precision, last: last as u8 })
    }

    /// Returns the indices of the source operands; the last two are the first and second operand of a binary operation.
    pub fn sources(&self) -> [usize; 3] {
        if self.last == 2 { [0, 1, 2] } else { [0, 0, 1] }
    }
}

/// Operands of an instruction: bytes of each source, element sizes, and MXCSR.DAZ.
pub struct Operands<'a> {
    /// Sources in the order of the instruction's operands; the one before the last is the first factor or addend.
    pub sources: [&'a [u8]; 3],
    /// Size of a source element in bytes.
    pub size: usize,
    /// Number of bits in a result's significand.
    pub precision: i32,
    /// True if denormals are zeros.
    pub daz: bool,
}

/// Returns true if the result of any element is inexact, with an unbounded exponent.
pub fn inexact(operation: Operation, operands: &Operands) -> bool {
    let element = |source: usize, n: usize| {
        let bytes = operands.sources[source].chunks_exact(operands.size).nth(n);
        bytes.map_or(Value::Other, |bytes| value(bytes, operands.daz))
    };
    let count = operands.sources[2].len() / operands.size;
    let precision = operands.precision;
    (0..count).any(|n| {
        let subtracted = |even: bool, odd: bool| if n % 2 == 0 { even } else { odd };
        match operation {
            Operation::Convert => match element(2, n) {
                Value::Number(x) => x.bits() > precision,
                _ => false,
            },
            // Denormals are far below the smallest half: current processors report all of them as inexact.
            Operation::ConvertToHalf => match element(2, n) {
                Value::Number(x) => x.bits() > precision || x.top() <= SMALLEST_SINGLE,
                _ => false,
            },
            Operation::Multiply => match (element(1, n), element(2, n)) {
                (Value::Number(a), Value::Number(b)) => product(a, b).bits() > precision,
                _ => false,
            },
            Operation::Divide => match (element(1, n), element(2, n)) {
                (Value::Number(a), Value::Number(b)) => a.significand % b.significand != 0,
                _ => false,
            },
            Operation::Add { even, odd } => {
                add_inexact(element(1, n), negated(element(2, n), subtracted(even, odd)), precision)
            }
            Operation::Horizontal { subtract } => {
                let source = 1 + n % 2;
                let first = n & !1;
                add_inexact(element(source, first), negated(element(source, first + 1), subtract), precision)
            }
            Operation::Fused { order, even, odd } => {
                let [a, b, c] = order.map(|source| element(usize::from(source), n));
                let factor = match (a, b) {
                    (Value::Other, _) | (_, Value::Other) => return false,
                    (Value::Number(a), Value::Number(b)) => Value::Number(product(a, b)),
                    _ => Value::Zero,
                };
                add_inexact(factor, negated(c, subtracted(even, odd)), precision)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(operation: Operation, a: f64, b: f64, c: f64) -> bool {
        let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
        inexact(operation, &Operands { sources: [&a, &b, &c], size: 8, precision: 53, daz: false })
    }

    #[test]
    fn exponents_do_not_matter() {
        assert!(!one(Operation::Multiply, 0.0, f64::MIN_POSITIVE, f64::MIN_POSITIVE));
        assert!(one(Operation::Multiply, 0.0, f64::MAX, f64::MAX));
        assert!(!one(Operation::Divide, 0.0, f64::MAX, f64::MIN_POSITIVE));
        assert!(one(Operation::Divide, 0.0, 1.0, 3.0));
        let add = Operation::Add { even: false, odd: false };
        assert!(!one(add, 0.0, f64::MAX, f64::MAX));
        assert!(one(add, 0.0, f64::MAX, f64::MIN_POSITIVE));
        let fused = Operation::Fused { order: [0, 1, 2], even: true, odd: true };
        assert!(!one(fused, f64::MAX, 1.0, f64::MAX));
        assert!(one(fused, f64::MAX, f64::MAX, 1.0));
    }
}
