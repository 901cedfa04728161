//! FPREM and FPREM1.
//!
//! The results are exact, but the architecture does not specify how far one execution reduces a large quotient. The
//! computation is done here to be the same on every host.

use crate::arch::F80;
use crate::f80::host::{Add, Arithmetic, Outcome};
use crate::f80::wide::Wide;
use crate::f80::{FpClass, status::*};
use std::cmp::Ordering;

/// Returns the remainder of `a` by `b`, with the quotient truncated.
pub fn truncating(control: u16, a: F80, b: F80) -> Outcome {
    remainder(control, a, b, false)
}

/// Returns the remainder of `a` by `b`, with the quotient rounded to nearest.
pub fn nearest(control: u16, a: F80, b: F80) -> Outcome {
    remainder(control, a, b, true)
}

/// Returns the condition codes for the low three bits of a quotient.
fn quotient_codes(quotient: u128) -> u16 {
    let bit = |n: u32, code| if quotient >> n & 1 != 0 { code } else { 0 };
    bit(0, C1) | bit(1, C3) | bit(2, C0)
}

fn remainder(control: u16, a: F80, b: F80, nearest: bool) -> Outcome {
    match (a.class(), b.class()) {
        (FpClass::Nan | FpClass::Unsupported, _) | (_, FpClass::Nan | FpClass::Unsupported) => {
            return Add::register(control, a, b);
        }
        (FpClass::Infinity, _) | (_, FpClass::Zero) => return Outcome { value: F80::INDEFINITE, status: IE },
        _ => {}
    }
    let denormal = if a.class() == FpClass::Denormal || b.class() == FpClass::Denormal { DE } else { 0 };
    if denormal & !control != 0 {
        return Outcome { value: a, status: DE };
    }
    if a.class() == FpClass::Zero || b.class() == FpClass::Infinity {
        // A pseudo-denormal becomes normal; a denormal does not underflow.
        let pseudo = a.exponent() == 0 && a.significand >> 63 != 0;
        let value = F80 { sign_exponent: a.sign_exponent | u16::from(pseudo), ..a };
        return Outcome { value, status: denormal };
    }
    let (x, y) = (Wide::from_f80(a), Wide::from_f80(b));
    let (dividend, divisor) = (x.significand >> 64, y.significand >> 64);
    let distance = x.exponent - y.exponent;
    // In units of the last of 64 places of the divisor.
    let at = |negative: bool, rest: u128, exponent: i32| Wide::new(negative, exponent + 64, rest);
    if distance >= 64 {
        // A partial remainder: the highest bits of the quotient.
        let bits = distance & 31 | 32;
        let rest = (dividend << bits) % divisor;
        return exactly(control, at(x.negative, rest, y.exponent + distance - bits), denormal | C2);
    }
    if distance < 0 {
        // Less than half of the divisor, unless the exponents differ by only one.
        if !nearest || distance < -1 || dividend <= divisor {
            return exactly(control, x, denormal);
        }
        let rest = 2 * divisor - dividend;
        return exactly(control, at(!x.negative, rest, x.exponent), denormal | quotient_codes(1));
    }
    let scaled = dividend << distance;
    let (quotient, rest) = (scaled / divisor, scaled % divisor);
    let up = match (2 * rest).cmp(&divisor) {
        Ordering::Greater => nearest,
        Ordering::Equal => nearest && quotient & 1 != 0,
        Ordering::Less => false,
    };
    if up {
        let rest = at(!x.negative, divisor - rest, y.exponent);
        return exactly(control, rest, denormal | quotient_codes(quotient + 1));
    }
    let rest = at(x.negative, rest, y.exponent);
    exactly(control, rest, denormal | quotient_codes(quotient))
}

fn exactly(control: u16, value: Wide, status: u16) -> Outcome {
    let outcome = value.round(control, true);
    Outcome { value: outcome.value, status: outcome.status | status }
}
