//! Floating-point numbers in integer registers: formats, MXCSR, decomposition and rounding.

use super::Form;
use super::lanes::Element;
pub use crate::f80::Rounding;

/// Exception flags of MXCSR.
pub const INVALID: u32 = 1;
pub const DENORMAL: u32 = 1 << 1;
pub const DIVIDE_BY_ZERO: u32 = 1 << 2;
pub const OVERFLOW: u32 = 1 << 3;
pub const UNDERFLOW: u32 = 1 << 4;
pub const INEXACT: u32 = 1 << 5;
/// Exceptions that precede an operation.
const BEFORE: u32 = INVALID | DENORMAL | DIVIDE_BY_ZERO;

/// A binary interchange format.
pub trait Format {
    /// Element type that holds a number.
    type Bits: Element;
    /// Number of fraction bits.
    const FRACTION: u32;
    /// Total number of bits.
    const WIDTH: u32 = 8 * <Self::Bits as Element>::SIZE as u32;
    /// Biased exponent of infinities and NaNs.
    const SPECIAL: u64 = (1 << (Self::WIDTH - 1 - Self::FRACTION)) - 1;
    /// Exponent bias, which is also the maximum exponent.
    const BIAS: i32 = (Self::SPECIAL >> 1) as i32;
    /// Minimum exponent of a normal number.
    const LEAST: i32 = 1 - Self::BIAS;
    const SIGN: u64 = 1 << (Self::WIDTH - 1);
    const INFINITY: u64 = Self::SPECIAL << Self::FRACTION;
    const QUIET: u64 = 1 << (Self::FRACTION - 1);
    /// QNaN that invalid operations return.
    const DEFAULT_NAN: u64 = Self::SIGN | Self::INFINITY | Self::QUIET;
    /// True if MXCSR.DAZ and MXCSR.FTZ have an effect; they have none on half precision.
    const CONTROLLED: bool = true;
}

/// IEEE 754 binary16.
pub struct Half;
/// IEEE 754 binary32.
pub struct Single;
/// IEEE 754 binary64.
pub struct Double;

impl Format for Half {
    type Bits = u16;
    const FRACTION: u32 = 10;
    const CONTROLLED: bool = false;
}

impl Format for Single {
    type Bits = u32;
    const FRACTION: u32 = 23;
}

impl Format for Double {
    type Bits = u64;
    const FRACTION: u32 = 52;
}

/// MXCSR during the computation of an instruction.
#[derive(Clone, Debug)]
pub struct Environment {
    pub rounding: Rounding,
    pub denormals_are_zeros: bool,
    pub flush_to_zero: bool,
    /// Masked exceptions, as bits of flags.
    pub masked: u32,
    /// Raised exceptions.
    pub flags: u32,
    /// True for VCVTPS2PH, which is older than half-precision arithmetic and follows different rules.
    pub f16c: bool,
}

impl Environment {
    /// Creates the environment from MXCSR, with the overrides of the encoding: embedded rounding, and suppression of
    /// exceptions.
    pub fn new(form: &Form, mxcsr: u32) -> Self {
        Environment {
            rounding: Rounding::of_bits(form.rounding.unwrap_or((mxcsr >> 13) as u8)),
            denormals_are_zeros: mxcsr & 0x40 != 0,
            flush_to_zero: mxcsr & 0x8000 != 0,
            masked: if form.quiet || form.recording { 0x3f } else { mxcsr >> 7 & 0x3f },
            flags: 0,
            f16c: false,
        }
    }

    #[inline(always)]
    pub fn raise(&mut self, flags: u32) {
        self.flags |= flags;
    }

    /// Returns the flags for MXCSR. An unmasked exception before the operation prevents the detection of those after
    /// it.
    pub fn raised(&self, form: &Form) -> u32 {
        if form.quiet {
            0
        } else if self.flags & BEFORE & !self.masked != 0 {
            self.flags & BEFORE
        } else {
            self.flags
        }
    }
}

/// Class of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Zero,
    Finite,
    Infinite,
    Quiet,
    Signalling,
}

/// A decomposed number.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    pub negative: bool,
    pub kind: Kind,
    /// True for a denormal that is not treated as zero.
    pub denormal: bool,
    /// Exponent: a finite number is `significand * 2^(exponent - 63)`.
    pub exponent: i32,
    /// Significand, with the highest bit set.
    pub significand: u64,
}

impl Number {
    #[inline(always)]
    pub fn is_nan(&self) -> bool {
        matches!(self.kind, Kind::Quiet | Kind::Signalling)
    }
}

/// Decomposes a number; a denormal is a zero with DAZ.
#[inline(always)]
pub fn unpack<F: Format>(env: &Environment, bits: u64) -> Number {
    let negative = bits & F::SIGN != 0;
    let biased = bits >> F::FRACTION & F::SPECIAL;
    let fraction = bits & ((1 << F::FRACTION) - 1);
    let mut number = Number { negative, kind: Kind::Finite, denormal: false, exponent: 0, significand: 0 };
    if biased == F::SPECIAL {
        number.kind = match (fraction, fraction & F::QUIET) {
            (0, _) => Kind::Infinite,
            (_, 0) => Kind::Signalling,
            _ => Kind::Quiet,
        };
    } else if biased != 0 {
        number.exponent = biased as i32 - F::BIAS;
        number.significand = (fraction | 1 << F::FRACTION) << (63 - F::FRACTION);
    } else if fraction == 0 || F::CONTROLLED && env.denormals_are_zeros {
        number.kind = Kind::Zero;
    } else {
        let shift = fraction.leading_zeros();
        number.denormal = true;
        number.exponent = F::LEAST + 63 - F::FRACTION as i32 - shift as i32;
        number.significand = fraction << shift;
    }
    number
}

/// Returns a zero with a sign.
#[inline(always)]
pub fn zero<F: Format>(negative: bool) -> u64 {
    if negative { F::SIGN } else { 0 }
}

/// Returns an infinity with a sign.
#[inline(always)]
pub fn infinity<F: Format>(negative: bool) -> u64 {
    zero::<F>(negative) | F::INFINITY
}

/// Shifts right; the lowest bit becomes 1 if any set bit is shifted out.
#[inline(always)]
pub fn shift_sticky(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..128 => value >> count | u128::from(value << (128 - count) != 0),
        _ => u128::from(value != 0),
    }
}

/// Rounds `significand >> count`. Also returns true if the result is inexact.
#[inline(always)]
pub fn rounded(rounding: Rounding, negative: bool, significand: u128, count: u32) -> (u64, bool) {
    // One bit for the half, and one sticky bit.
    let kept = shift_sticky(significand, count - 2);
    let (half, sticky) = (kept & 2 != 0, kept & 1 != 0);
    let whole = (kept >> 2) as u64;
    let away = rounding.away(negative, whole & 1 != 0, half, sticky);
    (whole + u64::from(away), half || sticky)
}

/// Rounds `significand * 2^(exponent - 127)`, which is nonzero, to a format, and raises the exceptions of the rounding.
#[inline(always)]
pub fn round<F: Format>(env: &mut Environment, negative: bool, exponent: i32, significand: u128) -> u64 {
    let flush = F::CONTROLLED && env.flush_to_zero;
    round_with::<F>(env, negative, exponent, significand, flush)
}

/// Rounds as [`round`] does, with or without flushing to zero.
pub fn round_with<F: Format>(
    env: &mut Environment,
    negative: bool,
    exponent: i32,
    significand: u128,
    flush: bool,
) -> u64 {
    let shift = significand.leading_zeros();
    let (significand, exponent) = (significand << shift, exponent - shift as i32);
    let drop = 127 - F::FRACTION;
    let (whole, inexact) = rounded(env.rounding, negative, significand, drop);
    let carry = whole >> (F::FRACTION + 1) != 0;
    let final_exponent = exponent + i32::from(carry);
    let sign = zero::<F>(negative);
    if final_exponent > F::BIAS {
        let masked = env.masked & OVERFLOW != 0;
        env.raise(OVERFLOW | if masked || inexact { INEXACT } else { 0 });
        let to_infinity = env.rounding.away(negative, true, true, true);
        return sign | (F::INFINITY - u64::from(!to_infinity));
    }
    if exponent >= F::LEAST {
        env.raise(if inexact { INEXACT } else { 0 });
        // The leading one of the significand adds one to the exponent, as a carry does.
        return sign + (((exponent + F::BIAS - 1) as u64) << F::FRACTION) + whole;
    }
    let tiny = final_exponent < F::LEAST;
    let extra = (F::LEAST - exponent) as u32;
    let (denormal, inexact_denormal) = rounded(env.rounding, negative, significand, (drop + extra).min(200));
    if tiny && env.masked & UNDERFLOW == 0 {
        // In half precision the inexactness of a denormal result is the same as with underflow masked.
        let inexact = if F::CONTROLLED || env.f16c { inexact } else { inexact_denormal };
        env.raise(UNDERFLOW | if inexact { INEXACT } else { 0 });
        return sign;
    }
    if tiny && flush {
        env.raise(UNDERFLOW | INEXACT);
        return sign;
    }
    if inexact_denormal {
        env.raise(INEXACT | if tiny { UNDERFLOW } else { 0 });
    }
    sign + denormal
}
