//! Floating-point operations that AVX-512 adds: exponents and significands, rounding to a fraction, scaling, ranges,
//! classes, and the table of VFIXUPIMM.

use super::arithmetic::{add, as_zero, compare, denormals, invalid, nan};
use super::float::{binary, bits, packed, scalar, two, unary};
use super::lanes::{Element, at};
use super::number::{
    DIVIDE_BY_ZERO, Double, Environment, Format, Half, INEXACT, INVALID, Kind, Number, Rounding, Single, UNDERFLOW,
    infinity, round, rounded, unpack, zero,
};
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};
use std::cmp::Ordering;

/// Binds these instructions.
pub fn bind(i: &Instruction) -> Option<Body> {
    [bind_unary, bind_binary, bind_other].iter().find_map(|bind| bind(i.mnemonic()))
}

fn bind_unary(mnemonic: Mnemonic) -> Option<Body> {
    unary! { mnemonic;
        Vgetexpph Vgetexpps Vgetexppd Vgetexpsh Vgetexpss Vgetexpsd => exponent,
        Vgetmantph Vgetmantps Vgetmantpd Vgetmantsh Vgetmantss Vgetmantsd => mantissa,
        Vrndscaleph Vrndscaleps Vrndscalepd Vrndscalesh Vrndscaless Vrndscalesd => round_scaled,
        Vreduceph Vreduceps Vreducepd Vreducesh Vreducess Vreducesd => reduce,
    }
}

fn bind_binary(mnemonic: Mnemonic) -> Option<Body> {
    binary! { mnemonic;
        Vscalefph Vscalefps Vscalefpd Vscalefsh Vscalefss Vscalefsd => scale,
    }
}

fn bind_other(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vrangeps => |f, o| two::<Single, false>(f, o, range::<Single>),
        Vrangepd => |f, o| two::<Double, false>(f, o, range::<Double>),
        Vrangess => |f, o| two::<Single, true>(f, o, range::<Single>),
        Vrangesd => |f, o| two::<Double, true>(f, o, range::<Double>),
        Vfixupimmps => |f, o| packed::<Single>(f, o, |env, n| fix::<Single>(env, f, o, n)),
        Vfixupimmpd => |f, o| packed::<Double>(f, o, |env, n| fix::<Double>(env, f, o, n)),
        Vfixupimmss => |f, o| scalar::<Single>(f, o, |env| fix::<Single>(env, f, o, 0)),
        Vfixupimmsd => |f, o| scalar::<Double>(f, o, |env| fix::<Double>(env, f, o, 0)),
        Vfpclassph => classes::<Half, false>,
        Vfpclassps => classes::<Single, false>,
        Vfpclasspd => classes::<Double, false>,
        Vfpclasssh => classes::<Half, true>,
        Vfpclassss => classes::<Single, true>,
        Vfpclasssd => classes::<Double, true>,
        _ => return None,
    })
}

/// Converts a small integer to a format, exactly.
fn small<F: Format>(value: i32) -> u64 {
    let magnitude = u64::from(value.unsigned_abs());
    if magnitude == 0 {
        return 0;
    }
    let high = 63 - magnitude.leading_zeros();
    let fraction = (magnitude << (F::FRACTION - high)) & ((1 << F::FRACTION) - 1);
    zero::<F>(value < 0) | (high as u64 + F::BIAS as u64) << F::FRACTION | fraction
}

/// VGETEXP.
fn exponent<F: Format>(env: &mut Environment, _: &Form, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    if let Some(result) = nan::<F, 1>(env, [a], [&x]) {
        return result;
    }
    denormals(env, [&x]);
    match x.kind {
        Kind::Infinite => infinity::<F>(false),
        Kind::Zero => infinity::<F>(true),
        _ => small::<F>(x.exponent),
    }
}

/// VGETMANT.
fn mantissa<F: Format>(env: &mut Environment, form: &Form, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    if let Some(result) = nan::<F, 1>(env, [a], [&x]) {
        return result;
    }
    let (positive, refuse_negative) = (form.imm & 4 != 0, form.imm & 8 != 0);
    if x.negative && refuse_negative && x.kind != Kind::Zero {
        return invalid::<F>(env);
    }
    denormals(env, [&x]);
    let sign = zero::<F>(x.negative && !positive);
    let one = (F::BIAS as u64) << F::FRACTION;
    if x.kind != Kind::Finite {
        return sign | one;
    }
    let fraction = (x.significand << 1) >> (64 - F::FRACTION);
    // The exponent of the result is 0 or -1.
    let lower = match form.imm & 3 {
        0 => false,
        1 => x.exponent & 1 != 0,
        2 => true,
        _ => fraction & F::QUIET != 0,
    };
    sign | (one - (u64::from(lower) << F::FRACTION)) | fraction
}

/// Decodes the immediate of VRNDSCALE and VREDUCE: rounding mode, number of fraction bits, and suppression of the
/// precision exception.
fn scaled_rounding(env: &Environment, form: &Form) -> (Rounding, i32, bool) {
    let rounding = if form.imm & 4 != 0 { env.rounding } else { Rounding::of_bits(form.imm) };
    (rounding, i32::from(form.imm >> 4), form.imm & 8 != 0)
}

/// Rounds a finite number to a multiple of 2^-`places`. Also returns true if the result is inexact.
fn to_multiple<F: Format>(x: &Number, bits: u64, rounding: Rounding, places: i32) -> (u64, bool) {
    // Number of significand bits below the multiple.
    let drop = 63 - x.exponent - places;
    if drop <= 63 - F::FRACTION as i32 {
        return (bits, false);
    }
    let (whole, inexact) = rounded(rounding, x.negative, u128::from(x.significand) << 64, (drop + 64).min(250) as u32);
    if whole == 0 {
        return (zero::<F>(x.negative), inexact);
    }
    // The multiple can be represented in the format.
    let mut quiet = Environment {
        rounding: Rounding::Zero,
        denormals_are_zeros: false,
        flush_to_zero: false,
        masked: 0x3f,
        flags: 0,
        f16c: false,
    };
    (round::<F>(&mut quiet, x.negative, 127 - places, u128::from(whole)), inexact)
}

/// VRNDSCALE.
fn round_scaled<F: Format>(env: &mut Environment, form: &Form, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    if let Some(result) = nan::<F, 1>(env, [a], [&x]) {
        return result;
    }
    let (rounding, places, silent) = scaled_rounding(env, form);
    match x.kind {
        Kind::Infinite => a,
        Kind::Zero => zero::<F>(x.negative),
        _ => {
            let (result, inexact) = to_multiple::<F>(&x, a, rounding, places);
            if inexact && !silent {
                env.raise(INEXACT);
            }
            // In half precision a multiple of 2^-15 can be tiny.
            let tiny = (1..1 << F::FRACTION).contains(&(result & !F::SIGN));
            if tiny && (inexact || env.masked & UNDERFLOW == 0) {
                env.raise(UNDERFLOW);
            }
            result
        }
    }
}

/// VREDUCE: the difference between a number and its VRNDSCALE.
fn reduce<F: Format>(env: &mut Environment, form: &Form, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    if let Some(result) = nan::<F, 1>(env, [a], [&x]) {
        return result;
    }
    let (rounding, places, silent) = scaled_rounding(env, form);
    let whole = match x.kind {
        Kind::Infinite => return 0,
        Kind::Zero => zero::<F>(x.negative),
        _ => to_multiple::<F>(&x, a, rounding, places).0,
    };
    // Only the subtraction can be inexact. Underflow is not raised. Intel processors flush the result independently of
    // the underflow mask; AMD's do so only if underflow is masked.
    let mut difference = Environment { rounding, flags: 0, masked: 0x3f, ..env.clone() };
    let result = add::<F>(&mut difference, form, as_zero::<F>(env, a), whole ^ F::SIGN);
    if !silent {
        env.raise(difference.flags & INEXACT);
    }
    result
}

/// VSCALEF: `a` times two to the power of floor(`b`).
fn scale<F: Format>(env: &mut Environment, _: &Form, a: u64, b: u64) -> u64 {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    if x.kind == Kind::Quiet && y.kind == Kind::Infinite {
        return if y.negative { 0 } else { infinity::<F>(false) };
    }
    if let Some(result) = nan::<F, 2>(env, [a, b], [&x, &y]) {
        return result;
    }
    match (x.kind, y.kind, y.negative) {
        (Kind::Infinite, Kind::Infinite, true) | (Kind::Zero, Kind::Infinite, false) => return invalid::<F>(env),
        // A denormal exponent operand is not reported.
        _ => denormals(env, [&x]),
    }
    match (x.kind, y.kind) {
        (Kind::Infinite, _) => a,
        (Kind::Zero, _) => zero::<F>(x.negative),
        (_, Kind::Infinite) if y.negative => zero::<F>(x.negative),
        (_, Kind::Infinite) => infinity::<F>(x.negative),
        (_, Kind::Zero) => round::<F>(env, x.negative, x.exponent, u128::from(x.significand) << 64),
        _ => {
            let power = floor(&y).clamp(-100_000, 100_000) as i32;
            round::<F>(env, x.negative, x.exponent + power, u128::from(x.significand) << 64)
        }
    }
}

/// Returns the floor of a finite number; saturates far from zero.
fn floor(y: &Number) -> i64 {
    if y.exponent >= 40 {
        return if y.negative { -(1 << 40) } else { 1 << 40 };
    }
    let drop = (127 - y.exponent).min(250) as u32;
    let (whole, _) = rounded(Rounding::Down, y.negative, u128::from(y.significand) << 64, drop);
    if y.negative { -(whole as i64) } else { whole as i64 }
}

/// VRANGE: minimum or maximum of two numbers or of their magnitudes, with a sign selected by the immediate.
fn range<F: Format>(env: &mut Environment, form: &Form, a: u64, b: u64) -> u64 {
    let (x, y) = (unpack::<F>(env, a), unpack::<F>(env, b));
    for (number, bits) in [(&x, a), (&y, b)] {
        if number.kind == Kind::Signalling {
            env.raise(INVALID);
            return bits | F::QUIET;
        }
    }
    let (a, b) = (as_zero::<F>(env, a), as_zero::<F>(env, b));
    let chosen = match (x.is_nan(), y.is_nan()) {
        (_, true) => a,
        (true, false) => b,
        _ => {
            denormals(env, [&x, &y]);
            let key = |bits: u64| if form.imm & 2 != 0 { bits & !F::SIGN } else { bits };
            // Of equal magnitudes, the positive one is the greater.
            let order = compare::<F>(&mut Environment { flags: 0, ..env.clone() }, false, key(a), key(b));
            let first_is_less = match order {
                Some(Ordering::Equal) => x.negative,
                other => other == Some(Ordering::Less),
            };
            if first_is_less != (form.imm & 1 != 0) { a } else { b }
        }
    };
    let magnitude = chosen & !F::SIGN;
    match form.imm >> 2 & 3 {
        0 => magnitude | a & F::SIGN,
        1 => chosen,
        2 => magnitude,
        _ => magnitude | F::SIGN,
    }
}

/// VFIXUPIMM: returns the value selected by the table in `b` for the class of the number in `a`.
fn fix<F: Format>(env: &mut Environment, form: &Form, o: &Operands, n: usize) -> u64 {
    let (d, a, table) = (bits::<F>(&o.dest, n), bits::<F>(&o.a, n), at::<u32>(&o.b, n * F::Bits::SIZE / 4));
    let x = unpack::<F>(env, a);
    let a = as_zero::<F>(env, a);
    let one = (F::BIAS as u64) << F::FRACTION;
    let class = match (x.kind, x.negative) {
        (Kind::Quiet, _) => 0,
        (Kind::Signalling, _) => 1,
        (Kind::Zero, _) => 2,
        (Kind::Finite, false) if a == one => 3,
        (Kind::Infinite, true) => 4,
        (Kind::Infinite, false) => 5,
        (Kind::Finite, true) => 6,
        (Kind::Finite, false) => 7,
    };
    let mut raise = |bit: u32, flags: u32| {
        if form.imm >> bit & 1 != 0 {
            env.raise(flags);
        }
    };
    match class {
        1 => raise(4, INVALID),
        2 => {
            raise(0, DIVIDE_BY_ZERO);
            raise(1, INVALID);
        }
        3 => {
            raise(2, DIVIDE_BY_ZERO);
            raise(3, INVALID);
        }
        4 => raise(5, INVALID),
        5 => raise(7, INVALID),
        6 => raise(6, INVALID),
        _ => {}
    }
    let greatest = F::INFINITY - 1;
    match table >> (4 * class) & 15 {
        0 => d,
        1 => a,
        2 => a | F::INFINITY | F::QUIET,
        3 => F::DEFAULT_NAN,
        4 => infinity::<F>(true),
        5 => infinity::<F>(false),
        6 => infinity::<F>(x.negative),
        7 => F::SIGN,
        8 => 0,
        9 => F::SIGN | one,
        10 => one,
        11 => one - (1 << F::FRACTION),
        12 => small::<F>(90),
        13 => half_pi::<F>(),
        14 => greatest,
        _ => F::SIGN | greatest,
    }
}

/// Returns pi / 2, rounded to nearest.
fn half_pi<F: Format>() -> u64 {
    let mut env = Environment {
        rounding: Rounding::Nearest,
        denormals_are_zeros: false,
        flush_to_zero: false,
        masked: 0x3f,
        flags: 0,
        f16c: false,
    };
    super::arithmetic::convert::<Double, F>(&mut env, std::f64::consts::FRAC_PI_2.to_bits(), true)
}

/// VFPCLASS.
fn classes<F: Format, const SCALAR: bool>(form: &Form, o: &Operands) -> Outcome {
    let count = if SCALAR { 1 } else { form.length / F::Bits::SIZE };
    let env = Environment::new(form, o.mxcsr);
    let k = (0..count).fold(0, |k, n| {
        let x = unpack::<F>(&env, bits::<F>(&o.a, n));
        let class = match (x.kind, x.negative) {
            (Kind::Quiet, _) => 1,
            (Kind::Zero, false) => 1 << 1,
            (Kind::Zero, true) => 1 << 2,
            (Kind::Infinite, false) => 1 << 3,
            (Kind::Infinite, true) => 1 << 4,
            (Kind::Finite, negative) => u8::from(x.denormal) << 5 | u8::from(negative) << 6,
            (Kind::Signalling, _) => 1 << 7,
        };
        k | u64::from(class & form.imm != 0) << n
    });
    Outcome::mask(k & o.mask)
}
