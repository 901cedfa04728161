//! Sine, cosine, tangent, arctangent, powers and logarithms.
//!
//! Processors differ in the last places of these functions. Here they are computed in software, the same on every host,
//! and almost always correctly rounded. Arguments of the trigonometric functions are reduced exactly by a 66-bit
//! approximation of pi, as the manuals specify.

use crate::arch::F80;
use crate::f80::host::{Add, Arithmetic, Outcome};
use crate::f80::wide::{Wide, multiply_high};
use crate::f80::{FpClass, status::*};
use std::cmp::Ordering;
use std::sync::OnceLock;

/// 1 with 127 fraction bits.
const ONE_127: u128 = 1 << 127;
/// 1 with 126 fraction bits.
const ONE_126: u128 = 1 << 126;

/// Returns the outcome if an operand is a NaN or unsupported, as for any operation.
fn not_a_number(control: u16, a: F80, b: F80) -> Option<Outcome> {
    let special = |v: F80| matches!(v.class(), FpClass::Nan | FpClass::Unsupported);
    (special(a) || special(b)).then(|| Add::register(control, a, b))
}

fn invalid() -> Outcome {
    Outcome { value: F80::INDEFINITE, status: IE }
}

fn exactly(value: F80) -> Outcome {
    Outcome { value, status: 0 }
}

impl Outcome {
    /// Reports denormal operands; if the exception is unmasked it is the only one, because nothing is computed then.
    fn of(mut self, control: u16, operands: &[F80]) -> Self {
        if operands.iter().any(|v| v.class() == FpClass::Denormal) {
            self.status = if control & DE == 0 { DE } else { self.status | DE };
        }
        self
    }
}

/// Sine and cosine of an angle, before rounding.
struct Angle {
    sine: Wide,
    cosine: Wide,
    /// True if the angle was not reduced and is so small that its tangent rounds as the angle does; only used for the
    /// tangent.
    tiny: bool,
}

/// The processor's pi / 2, times 2^65.
const HALF_PI: u128 = 0x3_243f_6a88_85a3_08d3;

/// Reduces the angle and computes sine and cosine. The value must be finite, nonzero, and below 2^63.
fn angle(value: F80) -> Angle {
    let x = Wide::from_f80(value).with_sign(false);
    // The last of the 64 bits has the weight 2^(exponent - 63).
    let last = x.exponent - 63;
    let (quadrant, rest) = if last < -65 {
        // Less than 1/4.
        (0, x)
    } else {
        let scaled = u128::from((x.significand >> 64) as u64) << (last + 65);
        let (quotient, rest) = (scaled / HALF_PI, scaled % HALF_PI);
        let at = |n| Wide::new(false, 127 - 65, n);
        if rest > HALF_PI / 2 { (quotient + 1, at(HALF_PI - rest).with_sign(true)) } else { (quotient, at(rest)) }
    };
    let square = rest.times(rest).fraction();
    // 1 - z/(2*3) (1 - z/(4*5) (1 - ...)), and 1 - z/(1*2) (1 - z/(3*4) (...)); less than 1, because the angle is
    // nonzero.
    let series = |first: u128| {
        let term = |sum, k: u128| ONE_127 - multiply_high(square, sum) / ((2 * k + first) * (2 * k + first + 1));
        (0..18).rev().fold(ONE_127, term).min(ONE_127 - 1)
    };
    let sine = rest.times(Wide::new(false, 0, series(2)));
    let cosine = Wide::new(false, 0, series(1));
    let (sine, cosine) = match quadrant & 3 {
        0 => (sine, cosine),
        1 => (cosine, sine.with_sign(!sine.negative)),
        2 => (sine.with_sign(!sine.negative), cosine.with_sign(true)),
        _ => (cosine.with_sign(true), sine),
    };
    let sine = sine.with_sign(sine.negative != value.negative());
    Angle { sine, cosine, tiny: quadrant == 0 && x.exponent < -62 }
}

/// Common part of the trigonometric functions. Returns `None` if the argument is out of range.
fn trigonometric(control: u16, x: F80, of_zero: F80, f: impl FnOnce(Angle) -> Wide) -> Option<Outcome> {
    if let Some(outcome) = not_a_number(control, x, x) {
        return Some(outcome);
    }
    match x.class() {
        FpClass::Infinity => Some(invalid()),
        FpClass::Zero => Some(exactly(of_zero)),
        _ if x.exponent() >= super::BIAS + 63 => None,
        _ => Some(f(angle(x)).round(control, false).of(control, &[x])),
    }
}

/// FSIN. Returns `None` if the argument is out of range.
pub fn sine(control: u16, x: F80) -> Option<Outcome> {
    trigonometric(control, x, x, |angle| angle.sine)
}

/// FCOS. Returns `None` if the argument is out of range.
pub fn cosine(control: u16, x: F80) -> Option<Outcome> {
    trigonometric(control, x, F80::ONE, |angle| angle.cosine)
}

/// FPTAN without the pushed 1. Returns `None` if the argument is out of range.
pub fn tangent(control: u16, x: F80) -> Option<Outcome> {
    trigonometric(control, x, x, |angle| {
        if angle.tiny {
            let x = Wide::from_f80(x);
            return Wide { significand: x.significand | 1, ..x };
        }
        angle.sine.over(angle.cosine)
    })
}

/// Returns the arctangent of |x| <= 1/16: x (1 - z/3 + z^2/5 - ...).
fn small_arctangent(x: Wide) -> Wide {
    let square = x.times(x).fraction();
    let term = |sum, k: u128| ONE_127 / (2 * k + 1) - multiply_high(square, sum);
    let series = (0..17).rev().fold(0, term).min(ONE_127 - 1);
    x.times(Wide::new(false, 0, series))
}

/// Returns the arctangents of 0/16 to 16/16.
fn arctangents() -> &'static [Wide; 17] {
    static TABLE: OnceLock<[Wide; 17]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = [Wide::ZERO; 17];
        for i in 1..17i64 {
            // The difference of the arctangents of b and a is the arctangent of (b - a) / (1 + a b).
            let step = Wide::from_int(16).over(Wide::from_int(256 + i * (i - 1)));
            table[i as usize] = table[i as usize - 1].plus(small_arctangent(step));
        }
        table
    })
}

/// Returns the arctangent of a number from 0 to 1.
fn arctangent(x: Wide) -> Wide {
    let nearest = (x.fraction_up_to_one() >> 122).div_ceil(2);
    if nearest == 0 {
        return small_arctangent(x);
    }
    let point = Wide::from_int(nearest as i64).scaled(-4);
    let rest = x.minus(point).over(Wide::ONE.plus(x.times(point)));
    let rest = if rest.significand == 0 { Wide::ZERO } else { small_arctangent(rest) };
    arctangents()[(nearest & 31).min(16) as usize].plus(rest)
}

impl Wide {
    /// Returns the number, which must be at most 1, with 127 fraction bits.
    fn fraction_up_to_one(self) -> u128 {
        self.significand.checked_shr(-self.exponent as u32).unwrap_or(0)
    }
}

/// FPATAN: returns the angle of the point (`st0`, `st1`).
pub fn arctangent_of_quotient(control: u16, st0: F80, st1: F80) -> Outcome {
    if let Some(outcome) = not_a_number(control, st1, st0) {
        return outcome;
    }
    let (x, y) = (st0, st1);
    let operands = &[x, y];
    // A multiple of pi / 4.
    let quarters = |n: i64| Wide::PI.times(Wide::from_int(n)).scaled(-2);
    let left = x.negative();
    let magnitude = match (y.class(), x.class()) {
        (FpClass::Infinity, FpClass::Infinity) => quarters(if left { 3 } else { 1 }),
        (FpClass::Infinity, _) => quarters(2),
        (FpClass::Zero, _) | (_, FpClass::Infinity) if left => quarters(4),
        (FpClass::Zero, _) | (_, FpClass::Infinity) => {
            return exactly(F80::ZERO.with_sign(y.negative())).of(control, operands);
        }
        (_, FpClass::Zero) => quarters(2),
        _ => {
            let (x, y) = (Wide::from_f80(x).with_sign(false), Wide::from_f80(y).with_sign(false));
            if y.compare_magnitude(x) != Ordering::Greater {
                let angle = arctangent(y.over(x));
                if left { quarters(4).minus(angle) } else { angle }
            } else {
                let angle = arctangent(x.over(y));
                if left { quarters(2).plus(angle) } else { quarters(2).minus(angle) }
            }
        }
    };
    magnitude.with_sign(y.negative()).round(control, false).of(control, operands)
}

/// F2XM1: returns 2^x - 1 for x from -1 to 1. Out of this range, where the result is undefined, returns x.
pub fn power_minus_one(control: u16, x: F80, _: F80) -> Outcome {
    if let Some(outcome) = not_a_number(control, x, x) {
        return outcome;
    }
    match x.class() {
        FpClass::Zero => return exactly(x),
        FpClass::Infinity if x.negative() => return exactly(F80::ONE.negated()),
        FpClass::Infinity => return exactly(x),
        _ => {}
    }
    let magnitude = Wide::from_f80(x).with_sign(false);
    match magnitude.compare_magnitude(Wide::ONE) {
        Ordering::Less => {}
        // Processors report these results as inexact.
        Ordering::Equal if x.negative() => {
            return Outcome { value: F80 { sign_exponent: 0xbffe, ..F80::ONE }, status: PE };
        }
        _ => return Outcome { value: x, status: PE },
    }
    let t = magnitude.times(Wide::LN2);
    let fraction = t.fraction();
    // (e^t - 1) / t = 1 + t/2 (1 + t/3 (1 + ...)).
    let term = |sum, k: u128| {
        let next = multiply_high(fraction, sum) / k;
        if x.negative() { ONE_126 - next } else { ONE_126 + next }
    };
    let series = (2..36).rev().fold(ONE_126, term);
    t.times(Wide::new(false, 1, series)).with_sign(x.negative()).round(control, false).of(control, &[x])
}

/// Returns twice the inverse hyperbolic tangent of |z| <= 0.172, divided by ln(2): 2/ln(2) z (1 + w/3 + w^2/5 + ...), w
/// = z^2.
fn logarithm_of_ratio(z: Wide) -> Wide {
    let square = z.times(z).fraction();
    let term = |sum, k: u128| ONE_126 / (2 * k + 1) + multiply_high(square, sum);
    let series = (0..27).rev().fold(0, term);
    z.times(Wide::new(false, 1, series)).times(Wide::LOG2_E).scaled(1)
}

/// Square root of 2, as a significand.
const SQRT2: u128 = 0xb504_f333_f9de_6484_597d_89b3_754a_be9f;

/// Returns the base-2 logarithm of a positive number, and true if it is exact.
fn logarithm(x: Wide) -> (Wide, bool) {
    let exponent = if x.significand >= SQRT2 { x.exponent + 1 } else { x.exponent };
    let whole = Wide::from_int(exponent.into());
    let m = x.scaled(-exponent);
    let above = m.minus(Wide::ONE);
    if above.significand == 0 {
        return (whole, true);
    }
    (whole.plus(logarithm_of_ratio(above.over(m.plus(Wide::ONE)))), false)
}

/// Returns y times a logarithm that is infinite or zero, as IEEE multiplication does.
fn product_of_limits(y: F80, negative: bool, infinite: bool) -> Outcome {
    let negative = negative != y.negative();
    match (y.class(), infinite) {
        (FpClass::Zero, true) | (FpClass::Infinity, false) => invalid(),
        (_, true) => exactly(F80::infinity(negative)),
        (_, false) => exactly(F80::ZERO.with_sign(negative)),
    }
}

/// Returns y times a logarithm that is neither infinite nor zero.
fn product(control: u16, y: F80, (logarithm, exact): (Wide, bool)) -> Outcome {
    let negative = logarithm.negative != y.negative();
    match y.class() {
        FpClass::Infinity => exactly(F80::infinity(negative)),
        FpClass::Zero => exactly(F80::ZERO.with_sign(negative)),
        _ => {
            // Processors report the exact results for powers of two as inexact, too.
            let outcome = Wide::from_f80(y).times(logarithm).round(control, exact);
            let tiny = if outcome.value.class() == FpClass::Denormal { UE } else { 0 };
            Outcome { status: outcome.status | PE | tiny, ..outcome }
        }
    }
}

/// FYL2X: returns y times the base-2 logarithm of x.
pub fn y_log2_x(control: u16, x: F80, y: F80) -> Outcome {
    if let Some(outcome) = not_a_number(control, y, x) {
        return outcome;
    }
    let operands = &[x, y];
    match x.class() {
        FpClass::Zero if matches!(y.class(), FpClass::Zero | FpClass::Infinity) => product_of_limits(y, true, true),
        FpClass::Zero => Outcome { status: ZE, ..product_of_limits(y, true, true) },
        _ if x.negative() => invalid(),
        FpClass::Infinity => product_of_limits(y, false, true).of(control, operands),
        _ => match logarithm(Wide::from_f80(x)) {
            (zero, _) if zero.significand == 0 => product_of_limits(y, false, false).of(control, operands),
            logarithm => product(control, y, logarithm).of(control, operands),
        },
    }
}

/// FYL2XP1: returns y times the base-2 logarithm of x + 1. For x below -1, where the result is undefined, returns x.
pub fn y_log2_x_plus_1(control: u16, x: F80, y: F80) -> Outcome {
    if let Some(outcome) = not_a_number(control, y, x) {
        return outcome;
    }
    let operands = &[x, y];
    match x.class() {
        FpClass::Zero => return product_of_limits(y, x.negative(), false).of(control, operands),
        FpClass::Infinity if x.negative() => return invalid(),
        FpClass::Infinity => return product_of_limits(y, false, true).of(control, operands),
        _ => {}
    }
    let value = x;
    let x = Wide::from_f80(x);
    let sum = x.plus(Wide::ONE);
    if sum.significand == 0 || sum.negative {
        return match y.class() {
            FpClass::Infinity | FpClass::Zero => product(control, y, (Wide::ONE.with_sign(true), true)),
            _ => Outcome { value, status: PE }.of(control, operands),
        };
    }
    let near = x.exponent < -2 || (sum.exponent == 0 && sum.significand < SQRT2);
    let logarithm = if near { (logarithm_of_ratio(x.over(x.plus(Wide::from_int(2)))), false) } else { logarithm(sum) };
    product(control, y, logarithm).of(control, operands)
}
