//! IEEE 754 arithmetic with the exceptions and NaNs of SSE.

use super::Form;
use super::number::{
    DENORMAL, DIVIDE_BY_ZERO, Environment, Format, INEXACT, INVALID, Kind, Number, OVERFLOW, Rounding, UNDERFLOW,
    infinity, round, rounded, shift_sticky, unpack, zero,
};
use std::cmp::Ordering;

/// Returns the result of an invalid operation.
#[inline(always)]
pub fn invalid<F: Format>(env: &mut Environment) -> u64 {
    env.raise(INVALID);
    F::DEFAULT_NAN
}

/// Returns the NaN that results from the operands, the first NaN among them.
#[inline(always)]
pub fn nan<F: Format, const N: usize>(env: &mut Environment, bits: [u64; N], numbers: [&Number; N]) -> Option<u64> {
    if numbers.iter().any(|number| number.kind == Kind::Signalling) {
        env.raise(INVALID);
    }
    let first = numbers.iter().position(|number| number.is_nan())?;
    Some(bits[first] | F::QUIET)
}

/// Raises the denormal exception if an operand is denormal.
#[inline(always)]
pub fn denormals<const N: usize>(env: &mut Environment, numbers: [&Number; N]) {
    if numbers.iter().any(|number| number.denormal) {
        env.raise(DENORMAL);
    }
}

/// A finite number or zero as `significand * 2^(exponent - 126)`, for sums.
#[derive(Clone, Copy)]
struct Term {
    negative: bool,
    exponent: i32,
    significand: u128,
}

impl Term {
    #[inline(always)]
    fn of(n: &Number) -> Self {
        // Zero gets the minimum exponent, so that it does not shift the other term.
        let exponent = if n.kind == Kind::Zero { i32::MIN / 4 } else { n.exponent };
        Term { negative: n.negative, exponent, significand: u128::from(n.significand) << 63 }
    }
}

/// Adds and rounds two terms.
#[inline(always)]
fn sum<F: Format>(env: &mut Environment, x: Term, y: Term) -> u64 {
    let (x, y) = if x.exponent >= y.exponent { (x, y) } else { (y, x) };
    let distance = (i64::from(x.exponent) - i64::from(y.exponent)).min(200) as u32;
    let lower = shift_sticky(y.significand, distance);
    let (negative, total) = match (x.negative == y.negative, x.significand >= lower) {
        (true, _) => (x.negative, x.significand + lower),
        (false, true) => (x.negative, x.significand - lower),
        (false, false) => (y.negative, lower - x.significand),
    };
    if total == 0 {
        let negative = if x.negative == y.negative { x.negative } else { env.rounding == Rounding::Down };
        return zero::<F>(negative);
    }
    round::<F>(env, negative, x.exponent + 1, total)
}

pub fn add<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    if let Some(result) = nan::<F, 2>(env, [a, b], [&x, &y]) {
        return result;
    }
    let infinite = [x, y].map(|number| number.kind == Kind::Infinite);
    if infinite == [true, true] && x.negative != y.negative {
        return invalid::<F>(env);
    }
    denormals(env, [&x, &y]);
    match infinite {
        [true, _] => a,
        [_, true] => b,
        _ => sum::<F>(env, Term::of(&x), Term::of(&y)),
    }
}

pub fn subtract<F: Format>(env: &mut Environment, form: &Form, a: u64, b: u64) -> u64 {
    // The sign of a NaN is kept.
    let is_nan = b & !F::SIGN > F::INFINITY;
    add::<F>(env, form, a, if is_nan { b } else { b ^ F::SIGN })
}

pub fn multiply<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    if let Some(result) = nan::<F, 2>(env, [a, b], [&x, &y]) {
        return result;
    }
    let negative = x.negative != y.negative;
    match (x.kind, y.kind) {
        (Kind::Infinite, Kind::Zero) | (Kind::Zero, Kind::Infinite) => return invalid::<F>(env),
        _ => denormals(env, [&x, &y]),
    }
    match (x.kind, y.kind) {
        (Kind::Infinite, _) | (_, Kind::Infinite) => infinity::<F>(negative),
        (Kind::Zero, _) | (_, Kind::Zero) => zero::<F>(negative),
        _ => {
            let product = u128::from(x.significand) * u128::from(y.significand);
            round::<F>(env, negative, x.exponent + y.exponent + 1, product)
        }
    }
}

pub fn divide<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    if let Some(result) = nan::<F, 2>(env, [a, b], [&x, &y]) {
        return result;
    }
    let negative = x.negative != y.negative;
    match (x.kind, y.kind) {
        (Kind::Infinite, Kind::Infinite) | (Kind::Zero, Kind::Zero) => return invalid::<F>(env),
        (Kind::Finite, Kind::Zero) => {
            env.raise(DIVIDE_BY_ZERO);
            return infinity::<F>(negative);
        }
        _ => denormals(env, [&x, &y]),
    }
    match (x.kind, y.kind) {
        (Kind::Infinite, _) => infinity::<F>(negative),
        (Kind::Zero, _) | (_, Kind::Infinite) => zero::<F>(negative),
        _ => {
            let (dividend, divisor) = (u128::from(x.significand) << 63, u128::from(y.significand));
            let quotient = dividend / divisor;
            let sticky = u128::from(quotient * divisor != dividend);
            round::<F>(env, negative, x.exponent - y.exponent + 63, quotient << 1 | sticky)
        }
    }
}

pub fn square_root<F: Format>(env: &mut Environment, _: &Form, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    if let Some(result) = nan::<F, 1>(env, [a], [&x]) {
        return result;
    }
    match x.kind {
        Kind::Zero => return zero::<F>(x.negative),
        _ if x.negative => return invalid::<F>(env),
        Kind::Infinite => return a,
        _ => denormals(env, [&x]),
    }
    // The number equals `radicand * 2^even`.
    let odd = (x.exponent - 127) & 1;
    let even = x.exponent - 127 + odd;
    let radicand = u128::from(x.significand) << (64 - odd);
    let root = radicand.isqrt();
    let sticky = u128::from(root * root != radicand);
    round::<F>(env, false, even / 2 + 126, root << 1 | sticky)
}

/// Computes `x * y + z`, rounded once; the signs of product and addend are negated as given. NaNs are taken from the
/// operands in the order `x`, `y`, `z`.
pub fn fused<F: Format>(env: &mut Environment, bits: [u64; 3], negate_product: bool, negate_addend: bool) -> u64 {
    let [x, y, mut z] = bits.map(|bits| unpack::<F>(env, bits));
    if let Some(result) = nan::<F, 3>(env, bits, [&x, &y, &z]) {
        return result;
    }
    z.negative ^= negate_addend;
    let negative = x.negative ^ y.negative ^ negate_product;
    let infinite = x.kind == Kind::Infinite || y.kind == Kind::Infinite;
    let no_product = x.kind == Kind::Zero || y.kind == Kind::Zero;
    if infinite && (no_product || z.kind == Kind::Infinite && z.negative != negative) {
        return invalid::<F>(env);
    }
    denormals(env, [&x, &y, &z]);
    if infinite {
        return infinity::<F>(negative);
    }
    if z.kind == Kind::Infinite {
        return infinity::<F>(z.negative);
    }
    let product = if no_product {
        Term { negative, exponent: i32::MIN / 4, significand: 0 }
    } else {
        let product = u128::from(x.significand) * u128::from(y.significand);
        // The highest bit moves to bit 126; the lowest bits are zero.
        let high = (product >> 127) as u32;
        Term { negative, exponent: x.exponent + y.exponent + high as i32, significand: product >> high }
    };
    sum::<F>(env, product, Term::of(&z))
}

/// Compares two numbers. Returns `None` if one is a NaN. A QNaN is invalid for a signalling comparison.
#[inline(always)]
pub fn compare<F: Format>(env: &mut Environment, signalling: bool, a: u64, b: u64) -> Option<Ordering> {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    if x.is_nan() || y.is_nan() {
        if signalling || x.kind == Kind::Signalling || y.kind == Kind::Signalling {
            env.raise(INVALID);
        }
        return None;
    }
    denormals(env, [&x, &y]);
    let key = |number: &Number, bits: u64| match (number.kind, number.negative) {
        (Kind::Zero, _) => 0,
        (_, false) => (bits & !F::SIGN) as i64,
        (_, true) => -((bits & !F::SIGN) as i64),
    };
    Some(key(&x, a).cmp(&key(&y, b)))
}

/// Returns the number, or zero for a denormal with DAZ.
#[inline(always)]
pub fn as_zero<F: Format>(env: &Environment, bits: u64) -> u64 {
    let denormal = bits & !F::SIGN < 1 << F::FRACTION;
    if denormal && F::CONTROLLED && env.denormals_are_zeros { bits & F::SIGN } else { bits }
}

/// Returns the minimum; the second operand for two zeros, or if one is a NaN.
pub fn minimum<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let first = compare::<F>(env, true, a, b) == Some(Ordering::Less);
    as_zero::<F>(env, if first { a } else { b })
}

/// Returns the maximum; the second operand for two zeros, or if one is a NaN.
pub fn maximum<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let first = compare::<F>(env, true, a, b) == Some(Ordering::Greater);
    as_zero::<F>(env, if first { a } else { b })
}

/// Converts a number from one format to another.
#[inline(always)]
pub fn convert<S: Format, D: Format>(env: &mut Environment, bits: u64, quiet_denormals: bool) -> u64 {
    let x = unpack::<S>(env, bits);
    if x.is_nan() {
        if x.kind == Kind::Signalling {
            env.raise(INVALID);
        }
        // The payload keeps its highest bits.
        let payload = (bits & (S::QUIET - 1)) << (63 - S::FRACTION) >> (63 - D::FRACTION);
        return infinity::<D>(x.negative) | D::QUIET | payload;
    }
    if x.denormal && !quiet_denormals {
        env.raise(DENORMAL);
    }
    if x.denormal && !D::CONTROLLED {
        // In half precision a denormal is tiny and inexact; according to the manual this holds for unmasked underflow
        // as well.
        env.raise(UNDERFLOW | INEXACT);
    }
    match x.kind {
        Kind::Infinite => infinity::<D>(x.negative),
        Kind::Zero => zero::<D>(x.negative),
        _ => round::<D>(env, x.negative, x.exponent, u128::from(x.significand) << 64),
    }
}

/// Converts an integer to a format.
#[inline(always)]
pub fn from_integer<D: Format>(env: &mut Environment, negative: bool, magnitude: u64) -> u64 {
    if magnitude == 0 {
        return 0;
    }
    let result = round::<D>(env, negative, 127, u128::from(magnitude));
    // An integer that half precision can't represent is inexact, even with overflow unmasked.
    if !D::CONTROLLED && env.flags & OVERFLOW != 0 {
        env.raise(INEXACT);
    }
    result
}

/// Converts a number to an integer of `width` bits. A number out of range is invalid, and gives the integer indefinite.
#[inline(always)]
pub fn to_integer<S: Format>(env: &mut Environment, bits: u64, width: u32, signed: bool, rounding: Rounding) -> u64 {
    let x = unpack::<S>(env, bits);
    let all = u64::MAX >> (64 - width);
    let indefinite = if signed { 1 << (width - 1) } else { all };
    let (whole, inexact) = match x.kind {
        Kind::Zero => return 0,
        Kind::Finite if x.exponent < 64 => {
            let drop = (127 - x.exponent).min(250) as u32;
            rounded(rounding, x.negative, u128::from(x.significand) << 64, drop)
        }
        _ => {
            env.raise(INVALID);
            return indefinite;
        }
    };
    let greatest = match (signed, x.negative) {
        (true, true) => indefinite,
        (true, false) => indefinite - 1,
        (false, true) => 0,
        (false, false) => all,
    };
    if whole > greatest {
        env.raise(INVALID);
        return indefinite;
    }
    if inexact {
        env.raise(INEXACT);
    }
    (if x.negative { whole.wrapping_neg() } else { whole }) & all
}
