//! Operations that only half precision and BF16 have: complex arithmetic, approximations, dot products.

use super::approximate14::{reciprocal_of, reciprocal_root_of};
use super::arithmetic::{fused, multiply};
use super::float::{bits, packed, scalar};
use super::lanes::{Element, at, by_index, each, finish, finish_scalar, map1};
use super::number::{Environment, Format, Half, Kind, Rounding, Single, infinity, round, unpack, zero};
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};

/// Binds these instructions.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vfmulcph => complex::<false, false, false>,
        Vfcmulcph => complex::<false, true, false>,
        Vfmaddcph => complex::<true, false, false>,
        Vfcmaddcph => complex::<true, true, false>,
        Vfmulcsh => complex::<false, false, true>,
        Vfcmulcsh => complex::<false, true, true>,
        Vfmaddcsh => complex::<true, false, true>,
        Vfcmaddcsh => complex::<true, true, true>,
        Vrcpph => |f, o| packed::<Half>(f, o, |_, n| reciprocal(bits::<Half>(&o.a, n))),
        Vrcpsh => |f, o| scalar::<Half>(f, o, |_| reciprocal(bits::<Half>(&o.b, 0))),
        Vrsqrtph => |f, o| packed::<Half>(f, o, |_, n| reciprocal_root(bits::<Half>(&o.a, n))),
        Vrsqrtsh => |f, o| scalar::<Half>(f, o, |_| reciprocal_root(bits::<Half>(&o.b, 0))),
        Vcvtneps2bf16 => |f, o| map1(f, o, |x: u32| brain(x)),
        Vcvtne2ps2bf16 => each!(u16, |f, o, n| {
            let half = f.length / 4;
            brain(at(if n < half { &o.b } else { &o.a }, n % half))
        }),
        Vdpbf16ps => each!(u32, |_f, o, n| dot_product(at(&o.dest, n), at(&o.a, n), at(&o.b, n))),
        _ => return None,
    })
}

/// Returns true for complex arithmetic.
pub fn is_complex(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Vfmulcph | Vfcmulcph | Vfmaddcph | Vfcmaddcph | Vfmulcsh | Vfcmulcsh | Vfmaddcsh | Vfcmaddcsh)
}

/// Computes complex products of pairs, of which the first element is the real part. Each step is rounded; all
/// exceptions are recorded as if they were masked. `CONJUGATE` uses the conjugate of the second source.
fn complex<const ADD: bool, const CONJUGATE: bool, const SCALAR: bool>(form: &Form, o: &Operands) -> Outcome {
    let mut env = Environment::new(form, o.mxcsr);
    let count = if SCALAR { 1 } else { form.length / 4 };
    let mut result = [0; 64];
    for n in (0..count).filter(|n| o.mask >> n & 1 != 0) {
        let pair = |v| [bits::<Half>(v, 2 * n), bits::<Half>(v, 2 * n + 1)];
        let ([d0, d1], [a0, a1], [b0, b1]) = (pair(&o.dest), pair(&o.a), pair(&o.b));
        let mut first = |x, y, d| {
            if ADD { fused::<Half>(&mut env, [x, y, d], false, false) } else { multiply::<Half>(&mut env, form, x, y) }
        };
        let (real, imaginary) = (first(a0, b0, d0), first(a1, b0, d1));
        let real = fused::<Half>(&mut env, [a1, b1, real], !CONJUGATE, false);
        let imaginary = fused::<Half>(&mut env, [a0, b1, imaginary], CONJUGATE, false);
        ((imaginary << 16 | real) as u32).put(&mut result, n);
    }
    let outcome =
        if SCALAR { finish_scalar::<u32>(form, o, at(&result, 0)) } else { finish::<u32>(form, o, result, count) };
    Outcome { mxcsr_flags: env.raised(form), ..outcome }
}

/// Returns an environment with rounding to nearest that raises no exceptions.
fn quiet(controlled: bool) -> Environment {
    Environment {
        rounding: Rounding::Nearest,
        denormals_are_zeros: controlled,
        flush_to_zero: controlled,
        masked: 0x3f,
        flags: 0,
        f16c: false,
    }
}

/// VRCPPH: the approximation of VRCP14, rounded to nearest. The manual's error bound, 2^-11 + 2^-14, is the sum of both
/// steps' errors.
fn reciprocal(a: u64) -> u64 {
    let x = unpack::<Half>(&quiet(false), a);
    match x.kind {
        Kind::Quiet | Kind::Signalling => a | Half::QUIET,
        Kind::Infinite => zero::<Half>(x.negative),
        Kind::Zero => infinity::<Half>(x.negative),
        Kind::Finite => shortened(x.negative, reciprocal_of(&x)),
    }
}

/// VRSQRTPH: the approximation of VRSQRT14, rounded to nearest.
fn reciprocal_root(a: u64) -> u64 {
    let x = unpack::<Half>(&quiet(false), a);
    match x.kind {
        Kind::Quiet | Kind::Signalling => a | Half::QUIET,
        Kind::Zero => infinity::<Half>(x.negative),
        _ if x.negative => Half::DEFAULT_NAN,
        Kind::Infinite => 0,
        Kind::Finite => shortened(false, reciprocal_root_of(&x)),
    }
}

/// Converts an approximation with sixteen bits of fraction to half precision.
fn shortened(negative: bool, (exponent, fraction): (i32, u32)) -> u64 {
    round::<Half>(&mut quiet(false), negative, exponent, u128::from(1 << 16 | fraction) << 111)
}

/// Converts a number to BF16, rounded to nearest; denormals are zeros, and MXCSR has no effect.
fn brain(x: u32) -> u16 {
    let magnitude = x & 0x7fff_ffff;
    match magnitude {
        0..0x0080_0000 => (x >> 16) as u16 & 0x8000,
        0x7f80_0001.. => (x >> 16) as u16 | 0x40,
        _ => ((x + 0x7fff + (x >> 16 & 1)) >> 16) as u16,
    }
}

/// VDPBF16PS: adds two products of BF16, one after the other, the second pair first; denormals are zeros.
fn dot_product(d: u32, a: u32, b: u32) -> u32 {
    let mut env = quiet(true);
    let high = |x: u32| u64::from(x & 0xffff_0000);
    let low = |x: u32| u64::from(x << 16);
    let sum = fused::<Single>(&mut env, [high(a), high(b), u64::from(d)], false, false);
    fused::<Single>(&mut env, [low(a), low(b), sum], false, false) as u32
}
