//! Arithmetic on 80-bit floating-point values.
//!
//! Operations without rounding (classification, comparisons, widening from memory formats) and conversions to integers
//! are implemented here. Operations with rounding, from addition to scaling, are fully specified, so [`host`] executes
//! them on the host's x87 unit. [`transcendental`] functions, which differ between processors, are computed in software
//! on [`wide`] numbers.

#[allow(unsafe_code, reason = "the host's own x87 unit does the work")]
pub mod host;
pub mod remainder;
pub mod transcendental;
pub mod wide;

use crate::arch::F80;
use std::cmp::Ordering;

/// Bits of the status word.
pub mod status {
    /// Invalid operation.
    pub const IE: u16 = 1 << 0;
    /// Denormal operand.
    pub const DE: u16 = 1 << 1;
    /// Division by zero.
    pub const ZE: u16 = 1 << 2;
    /// Overflow.
    pub const OE: u16 = 1 << 3;
    /// Underflow.
    pub const UE: u16 = 1 << 4;
    /// Inexact result.
    pub const PE: u16 = 1 << 5;
    /// Stack fault.
    pub const SF: u16 = 1 << 6;
    /// Summary of unmasked exceptions.
    pub const ES: u16 = 1 << 7;
    /// Condition code 0.
    pub const C0: u16 = 1 << 8;
    /// Condition code 1.
    pub const C1: u16 = 1 << 9;
    /// Condition code 2.
    pub const C2: u16 = 1 << 10;
    /// Condition code 3.
    pub const C3: u16 = 1 << 14;
    /// Busy: follows ES.
    pub const B: u16 = 1 << 15;
    /// The six exceptions.
    pub const EXCEPTIONS: u16 = 0x3f;
    /// Exceptions that precede the computation: unmasked ones leave operands and destination unchanged.
    pub const BEFORE: u16 = IE | DE | ZE;
}
use status::*;

/// Exponent bias.
pub const BIAS: i32 = 0x3fff;
const SIGN: u16 = 0x8000;
const INTEGER: u64 = 1 << 63;
const QUIET: u64 = 1 << 62;

/// Class of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpClass {
    /// Pseudo-NaNs, pseudo-infinities and unnormals, which are invalid operands.
    Unsupported,
    /// A NaN, quiet or signalling.
    Nan,
    /// A normal number.
    Normal,
    /// An infinity.
    Infinity,
    /// A zero.
    Zero,
    /// Denormals and pseudo-denormals.
    Denormal,
}

impl F80 {
    /// The real indefinite: the default NaN.
    pub const INDEFINITE: Self = Self { significand: INTEGER | QUIET, sign_exponent: 0xffff };
    /// +0.
    pub const ZERO: Self = Self { significand: 0, sign_exponent: 0 };
    /// +1.
    pub const ONE: Self = Self { significand: INTEGER, sign_exponent: BIAS as u16 };

    /// Returns infinity with a sign.
    pub fn infinity(negative: bool) -> Self {
        Self { significand: INTEGER, sign_exponent: 0x7fff }.with_sign(negative)
    }

    /// Returns true if the sign bit is set.
    pub fn negative(self) -> bool {
        self.sign_exponent & SIGN != 0
    }

    /// Returns the biased exponent.
    pub fn exponent(self) -> i32 {
        i32::from(self.sign_exponent & !SIGN)
    }

    /// Returns the same magnitude with a sign.
    pub fn with_sign(self, negative: bool) -> Self {
        Self { sign_exponent: self.sign_exponent & !SIGN | if negative { SIGN } else { 0 }, ..self }
    }

    /// Inverts the sign (FCHS).
    pub fn negated(self) -> Self {
        Self { sign_exponent: self.sign_exponent ^ SIGN, ..self }
    }

    /// Classifies the encoding.
    pub fn class(self) -> FpClass {
        match (self.exponent(), self.significand) {
            (0, 0) => FpClass::Zero,
            (0, _) => FpClass::Denormal,
            (_, s) if s & INTEGER == 0 => FpClass::Unsupported,
            (0x7fff, INTEGER) => FpClass::Infinity,
            (0x7fff, _) => FpClass::Nan,
            _ => FpClass::Normal,
        }
    }

    /// Returns true for a signalling NaN.
    pub fn is_signalling(self) -> bool {
        self.class() == FpClass::Nan && self.significand & QUIET == 0
    }

    /// Returns the quiet form of a NaN.
    pub fn quieted(self) -> Self {
        Self { significand: self.significand | QUIET, ..self }
    }

    /// Returns the memory image.
    pub fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.significand.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sign_exponent.to_le_bytes());
        bytes
    }

    /// Creates a value from a memory image.
    pub fn from_bytes(bytes: [u8; 10]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j] = bytes;
        Self { significand: u64::from_le_bytes([a, b, c, d, e, f, g, h]), sign_exponent: u16::from_le_bytes([i, j]) }
    }

    /// Converts an integer, exactly.
    pub fn from_int(value: i64) -> Self {
        Self::from_magnitude(value.unsigned_abs()).with_sign(value < 0)
    }

    /// Converts a non-negative integer, exactly.
    pub fn from_magnitude(magnitude: u64) -> Self {
        if magnitude == 0 {
            return Self::ZERO;
        }
        let shift = magnitude.leading_zeros();
        Self { significand: magnitude << shift, sign_exponent: (BIAS as u32 + 63 - shift) as u16 }
    }

    /// Converts a single-precision value, exactly; signalling NaNs are kept. Also returns true if it is denormal in its
    /// own format.
    pub fn from_single(bits: u32) -> (Self, bool) {
        Self::widen(bits >> 31 != 0, bits >> 23 & 0xff, 0xff, u64::from(bits & 0x7f_ffff) << 40)
    }

    /// Converts a double-precision value, exactly; signalling NaNs are kept. Also returns true if it is denormal in its
    /// own format.
    pub fn from_double(bits: u64) -> (Self, bool) {
        Self::widen(bits >> 63 != 0, (bits >> 52) as u32 & 0x7ff, 0x7ff, (bits & 0xf_ffff_ffff_ffff) << 11)
    }

    /// Widens a value; the binary point of `fraction` is after bit 63.
    fn widen(negative: bool, exponent: u32, max: u32, fraction: u64) -> (Self, bool) {
        let rebias = BIAS as u32 - max / 2;
        let (value, denormal) = match (exponent, fraction) {
            (0, 0) => (Self::ZERO, false),
            (0, _) => {
                let shift = fraction.leading_zeros();
                (Self { significand: fraction << shift, sign_exponent: (rebias + 1 - shift) as u16 }, true)
            }
            (e, _) if e == max => (Self { significand: INTEGER | fraction, sign_exponent: 0x7fff }, false),
            (e, _) => (Self { significand: INTEGER | fraction, sign_exponent: (rebias + e) as u16 }, false),
        };
        (value.with_sign(negative), denormal)
    }

    /// Rounds the magnitude to an integer. Returns `None` if it has more than 64 bits, or is not a number. The flags
    /// are PE if inexact, with C1 if rounded away from zero.
    pub fn to_integer(self, rounding: Rounding) -> Option<(u64, u16)> {
        match self.class() {
            FpClass::Zero => return Some((0, 0)),
            FpClass::Normal | FpClass::Denormal => {}
            _ => return None,
        }
        let point = BIAS + 63 - self.exponent();
        if point < 0 {
            return None;
        }
        let (whole, fraction) = match point {
            0 => (self.significand, 0),
            1..=63 => (self.significand >> point, self.significand << (64 - point)),
            64 => (0, self.significand),
            // Less than one half, and nonzero.
            _ => (0, 1),
        };
        if fraction == 0 {
            return Some((whole, 0));
        }
        let up = rounding.away(self.negative(), whole & 1 != 0, fraction & INTEGER != 0, fraction << 1 != 0);
        // Bits have been shifted out, so the sum can't overflow.
        Some((whole + u64::from(up), PE | if up { C1 } else { 0 }))
    }
}

/// Rounding control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// Towards zero.
    Zero,
}

impl Rounding {
    /// Decodes the rounding control of a control word.
    pub fn of(control: u16) -> Self {
        Self::of_bits((control >> 10) as u8)
    }

    /// Decodes the two low bits: the field of a control word or MXCSR, or of an immediate.
    pub fn of_bits(bits: u8) -> Self {
        [Self::Nearest, Self::Down, Self::Up, Self::Zero][usize::from(bits & 3)]
    }

    /// Returns true if a number is rounded away from zero, given its sign, its last bit (`odd`), the next bit (`half`),
    /// and the or of all further bits (`sticky`).
    #[inline(always)]
    pub fn away(self, negative: bool, odd: bool, half: bool, sticky: bool) -> bool {
        match self {
            Self::Nearest => half && (sticky || odd),
            Self::Down => negative && (half || sticky),
            Self::Up => !negative && (half || sticky),
            Self::Zero => false,
        }
    }
}

/// Compares two values. Returns `None` if they are unordered. The flags are DE for denormals and IE for invalid
/// operands, which include quiet NaNs unless `quiet` is set.
pub fn compare(a: F80, b: F80, quiet: bool) -> (Option<Ordering>, u16) {
    let classes = [a.class(), b.class()];
    if classes.contains(&FpClass::Unsupported) {
        return (None, IE);
    }
    if classes.contains(&FpClass::Nan) {
        let invalid = !quiet || a.is_signalling() || b.is_signalling();
        return (None, if invalid { IE } else { 0 });
    }
    let flags = if classes.contains(&FpClass::Denormal) { DE } else { 0 };
    // A pseudo-denormal has the exponent of the smallest normal numbers.
    let magnitude = |v: F80| (v.exponent().max(1), v.significand);
    let key = |v: F80| if v.class() == FpClass::Zero { (0, 0) } else { magnitude(v) };
    let order = match (a.negative(), b.negative()) {
        _ if classes == [FpClass::Zero, FpClass::Zero] => Ordering::Equal,
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (false, false) => key(a).cmp(&key(b)),
        (true, true) => key(b).cmp(&key(a)),
    };
    (Some(order), flags)
}
