//! Truncating floating-point arithmetic with 128 bits of significand, for the transcendental functions.
//!
//! The error of an operation is at most a few units in the last of 128 places. Results rounded to 64 places are
//! therefore correctly rounded, except for about one in 2^60.
//! one in some 2^60, the correctly rounded ones.

use crate::arch::F80;
use crate::f80::host::Outcome;
use crate::f80::{BIAS, Rounding, status::*};
use std::cmp::Ordering;

/// A number: `significand` (with its top bit set, unless zero) times 2^(`exponent` - 127).
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    /// Sign.
    pub negative: bool,
    /// Exponent of the top bit.
    pub exponent: i32,
    /// Significand.
    pub significand: u128,
}

/// Returns the upper half of a product.
pub fn multiply_high(a: u128, b: u128) -> u128 {
    let low = u128::from(u64::MAX);
    let (a1, a0, b1, b0) = (a >> 64, a & low, b >> 64, b & low);
    let (p10, p01) = (a1 * b0, a0 * b1);
    let middle = ((a0 * b0) >> 64) + (p10 & low) + (p01 & low);
    a1 * b1 + (p10 >> 64) + (p01 >> 64) + (middle >> 64)
}

impl Wide {
    /// Zero.
    pub const ZERO: Self = Self { negative: false, exponent: 0, significand: 0 };
    /// One.
    pub const ONE: Self = Self::constant(0, 1 << 127);
    /// Pi.
    pub const PI: Self = Self::constant(1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
    /// ln(2).
    pub const LN2: Self = Self::constant(-1, 0xb172_17f7_d1cf_79ab_c9e3_b398_03f2_f6af);
    /// 1 / ln(2).
    pub const LOG2_E: Self = Self::constant(0, 0xb8aa_3b29_5c17_f0bb_be87_fed0_691d_3e88);

    const fn constant(exponent: i32, significand: u128) -> Self {
        Self { negative: false, exponent, significand }
    }

    /// Creates a number from its parts, and normalizes it.
    pub fn new(negative: bool, exponent: i32, significand: u128) -> Self {
        if significand == 0 {
            return Self { negative, ..Self::ZERO };
        }
        let shift = significand.leading_zeros();
        Self { negative, exponent: exponent - shift as i32, significand: significand << shift }
    }

    /// Converts a finite value, exactly.
    pub fn from_f80(value: F80) -> Self {
        Self::new(value.negative(), value.exponent().max(1) - BIAS, u128::from(value.significand) << 64)
    }

    /// Converts an integer, exactly.
    pub fn from_int(value: i64) -> Self {
        Self::new(value < 0, 127, u128::from(value.unsigned_abs()))
    }

    /// Returns the same magnitude with a sign.
    pub fn with_sign(self, negative: bool) -> Self {
        Self { negative, ..self }
    }

    /// Multiplies by the power of two with exponent `by`.
    pub fn scaled(self, by: i32) -> Self {
        Self { exponent: self.exponent + by, ..self }
    }

    /// Returns the product.
    pub fn times(self, other: Self) -> Self {
        let negative = self.negative != other.negative;
        Self::new(negative, self.exponent + other.exponent + 1, multiply_high(self.significand, other.significand))
    }

    /// Returns the quotient; the divisor must be nonzero.
    pub fn over(self, divisor: Self) -> Self {
        let (mut rest, by) = (self.significand, divisor.significand);
        let mut exponent = self.exponent - divisor.exponent;
        let mut quotient = 0u128;
        let mut carry = false;
        if rest < by {
            exponent -= 1;
            carry = rest >> 127 != 0;
            rest <<= 1;
        }
        for _ in 0..128 {
            quotient <<= 1;
            if carry || rest >= by {
                rest = rest.wrapping_sub(by);
                quotient |= 1;
            }
            carry = rest >> 127 != 0;
            rest <<= 1;
        }
        Self::new(self.negative != divisor.negative, exponent, quotient)
    }

    /// Compares magnitudes.
    pub fn compare_magnitude(self, other: Self) -> Ordering {
        match (self.significand, other.significand) {
            (0, 0) => Ordering::Equal,
            (0, _) => Ordering::Less,
            (_, 0) => Ordering::Greater,
            _ => (self.exponent, self.significand).cmp(&(other.exponent, other.significand)),
        }
    }

    /// Returns the sum.
    pub fn plus(self, other: Self) -> Self {
        let (big, small) = match self.compare_magnitude(other) {
            Ordering::Less => (other, self),
            _ => (self, other),
        };
        if small.significand == 0 {
            return big;
        }
        let distance = (big.exponent - small.exponent) as u32;
        let aligned = small.significand.checked_shr(distance).unwrap_or(0);
        if big.negative != small.negative {
            return Self::new(big.negative, big.exponent, big.significand - aligned);
        }
        match big.significand.checked_add(aligned) {
            Some(sum) => Self { significand: sum, ..big },
            None => {
                let sum = big.significand.wrapping_add(aligned);
                Self { significand: sum >> 1 | 1 << 127, exponent: big.exponent + 1, ..big }
            }
        }
    }

    /// Returns the difference.
    pub fn minus(self, other: Self) -> Self {
        self.plus(other.with_sign(!other.negative))
    }

    /// Returns the number, which must be less than 1, as a fraction of 128 bits.
    pub fn fraction(self) -> u128 {
        self.significand.checked_shr((-1 - self.exponent).max(0) as u32).unwrap_or(0)
    }

    /// Rounds to 64 bits as specified by a control word, with overflow and underflow, masked or not. `exact` is true if
    /// this number is the exact value.
    pub fn round(self, control: u16, exact: bool) -> Outcome {
        if self.significand == 0 {
            return Outcome { value: F80::ZERO.with_sign(self.negative), status: 0 };
        }
        let rounding = Rounding::of(control);
        let (significand, exponent, mut status) = self.rounded(rounding, exact, 64);
        let biased = exponent + BIAS;
        let value = |significand: u64, exponent: i32| {
            F80 { significand, sign_exponent: exponent as u16 & 0x7fff }.with_sign(self.negative)
        };
        // Amount by which unmasked exceptions adjust exponents into the range.
        const ADJUST: i32 = 24576;
        if biased >= 0x7fff {
            status |= OE;
            if control & OE == 0 {
                return Outcome { value: value(significand, biased - ADJUST), status };
            }
            let infinite = match rounding {
                Rounding::Nearest => true,
                Rounding::Zero => false,
                Rounding::Up => !self.negative,
                Rounding::Down => self.negative,
            };
            let status = OE | PE | if infinite { C1 } else { 0 };
            let value = if infinite { F80::infinity(self.negative) } else { value(u64::MAX, 0x7ffe) };
            return Outcome { value, status };
        }
        if biased >= 1 {
            return Outcome { value: value(significand, biased), status };
        }
        if control & UE == 0 {
            return Outcome { value: value(significand, biased + ADJUST), status: status | UE };
        }
        // A denormal has fewer places: those of the minimum exponent.
        let places = 64 - (1 - BIAS - self.exponent);
        let (significand, status) = if places > 0 {
            let (significand, exponent, status) = self.rounded(rounding, exact, places as u32);
            (significand.checked_shr((1 - BIAS - exponent) as u32).unwrap_or(0), status)
        } else {
            let half = places == 0 && (self.significand > 1 << 127 || (self.significand == 1 << 127 && !exact));
            let up = match rounding {
                Rounding::Nearest => half,
                Rounding::Zero => false,
                Rounding::Up => !self.negative,
                Rounding::Down => self.negative,
            };
            (u64::from(up), PE | if up { C1 } else { 0 })
        };
        let tiny = if status & PE != 0 { UE } else { 0 };
        // Rounding may have produced the smallest normal number.
        Outcome { value: value(significand, (significand >> 63) as i32), status: status | tiny }
    }

    /// Rounds to `places` (1-64) bits. Returns the significand with its top bit set, the exponent, and the flags PE and
    /// C1.
    fn rounded(self, rounding: Rounding, exact: bool, places: u32) -> (u64, i32, u16) {
        let drop = 128 - places;
        let kept = self.significand >> drop;
        let rest = self.significand << places;
        if rest == 0 && exact {
            return ((kept << (64 - places)) as u64, self.exponent, 0);
        }
        let half = 1u128 << 127;
        let up = match rounding {
            Rounding::Nearest => rest > half || (rest == half && (!exact || kept & 1 != 0)),
            Rounding::Zero => false,
            Rounding::Up => !self.negative,
            Rounding::Down => self.negative,
        };
        let kept = kept + u128::from(up);
        let status = PE | if up { C1 } else { 0 };
        if kept >> places != 0 {
            return (1 << 63, self.exponent + 1, status);
        }
        ((kept << (64 - places)) as u64, self.exponent, status)
    }
}
