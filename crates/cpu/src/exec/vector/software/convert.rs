//! Conversions between formats, and between numbers and integers.

use super::arithmetic::{convert, from_integer, to_integer};
use super::float::{bits, scalar};
use super::lanes::{Element, at, finish};
use super::number::{Double, Environment, Format, Half, Rounding, Single};
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};

/// Binds conversions.
pub fn bind(i: &Instruction) -> Option<Body> {
    [between_formats, from_vectors, to_vectors, from_general, to_general].iter().find_map(|bind| bind(i.mnemonic()))
}

/// Converts each selected element; the wider of the two element types fills the vector length.
#[inline(always)]
fn packed<A: Element, R: Element>(form: &Form, o: &Operands, f: impl Fn(&mut Environment, u64) -> u64) -> Outcome {
    let count = form.length / A::SIZE.max(R::SIZE);
    let mut env = Environment::new(form, o.mxcsr);
    let mut result = [0; 64];
    for n in (0..count).filter(|n| o.mask >> n & 1 != 0) {
        R::truncate(f(&mut env, A::get(&o.a, n).extend())).put(&mut result, n);
    }
    Outcome { mxcsr_flags: env.raised(form), ..finish::<R>(form, o, result, count) }
}

/// Converts between formats, packed.
fn formats<S: Format, D: Format>(form: &Form, o: &Operands) -> Outcome {
    packed::<S::Bits, D::Bits>(form, o, |env, x| convert::<S, D>(env, x, false))
}

/// Converts between formats, scalar.
fn formats_scalar<S: Format, D: Format>(form: &Form, o: &Operands) -> Outcome {
    scalar::<D>(form, o, |env| convert::<S, D>(env, bits::<S>(&o.b, 0), false))
}

fn between_formats(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcvtps2pd => formats::<Single, Double>,
        Vcvtpd2ps => formats::<Double, Single>,
        Vcvtph2psx => formats::<Half, Single>,
        Vcvtps2phx => formats::<Single, Half>,
        Vcvtph2pd => formats::<Half, Double>,
        Vcvtpd2ph => formats::<Double, Half>,
        Vcvtss2sd => formats_scalar::<Single, Double>,
        Vcvtsd2ss => formats_scalar::<Double, Single>,
        Vcvtsh2ss => formats_scalar::<Half, Single>,
        Vcvtss2sh => formats_scalar::<Single, Half>,
        Vcvtsh2sd => formats_scalar::<Half, Double>,
        Vcvtsd2sh => formats_scalar::<Double, Half>,
        // The conversions of F16C: VCVTPH2PS does not report denormals, VCVTPS2PH takes its rounding mode from the
        // immediate.
        Vcvtph2ps => |f, o| packed::<u16, u32>(f, o, |env, x| convert::<Half, Single>(env, x, true)),
        Vcvtps2ph => |f, o| {
            let rounding = if f.imm & 4 == 0 { Some(f.imm & 3) } else { f.rounding };
            packed::<u32, u16>(&Form { rounding, ..*f }, o, |env, x| {
                env.f16c = true;
                convert::<Single, Half>(env, x, false)
            })
        },
        _ => return None,
    })
}

/// Converts integers of type `I` to a format, packed.
fn integers<I: Element + PartialOrd, D: Format>(form: &Form, o: &Operands) -> Outcome {
    packed::<I, D::Bits>(form, o, |env, x| {
        let negative = I::truncate(x) < I::default();
        from_integer::<D>(env, negative, if negative { x.wrapping_neg() } else { x })
    })
}

fn from_vectors(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcvtw2ph => integers::<i16, Half>,
        Vcvtuw2ph => integers::<u16, Half>,
        Vcvtdq2ph => integers::<i32, Half>,
        Vcvtdq2ps => integers::<i32, Single>,
        Vcvtdq2pd => integers::<i32, Double>,
        Vcvtudq2ph => integers::<u32, Half>,
        Vcvtudq2ps => integers::<u32, Single>,
        Vcvtudq2pd => integers::<u32, Double>,
        Vcvtqq2ph => integers::<i64, Half>,
        Vcvtqq2ps => integers::<i64, Single>,
        Vcvtqq2pd => integers::<i64, Double>,
        Vcvtuqq2ph => integers::<u64, Half>,
        Vcvtuqq2ps => integers::<u64, Single>,
        Vcvtuqq2pd => integers::<u64, Double>,
        _ => return None,
    })
}

/// Converts a format to integers of type `I`, packed.
fn rounded<S: Format, I: Element, const SIGNED: bool, const TRUNCATE: bool>(form: &Form, o: &Operands) -> Outcome {
    packed::<S::Bits, I>(form, o, |env, x| {
        let rounding = if TRUNCATE { Rounding::Zero } else { env.rounding };
        to_integer::<S>(env, x, 8 * I::SIZE as u32, SIGNED, rounding)
    })
}

fn to_vectors(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcvtph2w => rounded::<Half, u16, true, false>,
        Vcvtph2uw => rounded::<Half, u16, false, false>,
        Vcvtph2dq => rounded::<Half, u32, true, false>,
        Vcvtph2udq => rounded::<Half, u32, false, false>,
        Vcvtph2qq => rounded::<Half, u64, true, false>,
        Vcvtph2uqq => rounded::<Half, u64, false, false>,
        Vcvtps2dq => rounded::<Single, u32, true, false>,
        Vcvtps2udq => rounded::<Single, u32, false, false>,
        Vcvtps2qq => rounded::<Single, u64, true, false>,
        Vcvtps2uqq => rounded::<Single, u64, false, false>,
        Vcvtpd2dq => rounded::<Double, u32, true, false>,
        Vcvtpd2udq => rounded::<Double, u32, false, false>,
        Vcvtpd2qq => rounded::<Double, u64, true, false>,
        Vcvtpd2uqq => rounded::<Double, u64, false, false>,
        Vcvttph2w => rounded::<Half, u16, true, true>,
        Vcvttph2uw => rounded::<Half, u16, false, true>,
        Vcvttph2dq => rounded::<Half, u32, true, true>,
        Vcvttph2udq => rounded::<Half, u32, false, true>,
        Vcvttph2qq => rounded::<Half, u64, true, true>,
        Vcvttph2uqq => rounded::<Half, u64, false, true>,
        Vcvttps2dq => rounded::<Single, u32, true, true>,
        Vcvttps2udq => rounded::<Single, u32, false, true>,
        Vcvttps2qq => rounded::<Single, u64, true, true>,
        Vcvttps2uqq => rounded::<Single, u64, false, true>,
        Vcvttpd2dq => rounded::<Double, u32, true, true>,
        Vcvttpd2udq => rounded::<Double, u32, false, true>,
        Vcvttpd2qq => rounded::<Double, u64, true, true>,
        Vcvttpd2uqq => rounded::<Double, u64, false, true>,
        _ => return None,
    })
}

/// Converts a general register, or an integer in memory, to a scalar; there is no mask.
fn general<D: Format, const SIGNED: bool>(form: &Form, o: &Operands) -> Outcome {
    let raw = at::<u64>(&o.b, 0);
    let value = match (form.wide, SIGNED) {
        (true, _) => raw,
        (false, true) => raw as i32 as u64,
        (false, false) => u64::from(raw as u32),
    };
    let negative = SIGNED && (value as i64) < 0;
    scalar::<D>(form, o, |env| from_integer::<D>(env, negative, if negative { value.wrapping_neg() } else { value }))
}

fn from_general(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcvtsi2sh => general::<Half, true>,
        Vcvtsi2ss => general::<Single, true>,
        Vcvtsi2sd => general::<Double, true>,
        Vcvtusi2sh => general::<Half, false>,
        Vcvtusi2ss => general::<Single, false>,
        Vcvtusi2sd => general::<Double, false>,
        _ => return None,
    })
}

/// Converts a scalar to a general register.
fn scalar_rounded<S: Format, const SIGNED: bool, const TRUNCATE: bool>(form: &Form, o: &Operands) -> Outcome {
    let mut env = Environment::new(form, o.mxcsr);
    let rounding = if TRUNCATE { Rounding::Zero } else { env.rounding };
    let width = if form.wide { 64 } else { 32 };
    let general = to_integer::<S>(&mut env, bits::<S>(&o.a, 0), width, SIGNED, rounding);
    Outcome { general, mxcsr_flags: env.raised(form), ..Outcome::of([0; 64]) }
}

fn to_general(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcvtsh2si => scalar_rounded::<Half, true, false>,
        Vcvtsh2usi => scalar_rounded::<Half, false, false>,
        Vcvttsh2si => scalar_rounded::<Half, true, true>,
        Vcvttsh2usi => scalar_rounded::<Half, false, true>,
        Vcvtss2si => scalar_rounded::<Single, true, false>,
        Vcvtss2usi => scalar_rounded::<Single, false, false>,
        Vcvttss2si => scalar_rounded::<Single, true, true>,
        Vcvttss2usi => scalar_rounded::<Single, false, true>,
        Vcvtsd2si => scalar_rounded::<Double, true, false>,
        Vcvtsd2usi => scalar_rounded::<Double, false, false>,
        Vcvttsd2si => scalar_rounded::<Double, true, true>,
        Vcvttsd2usi => scalar_rounded::<Double, false, true>,
        _ => return None,
    })
}
