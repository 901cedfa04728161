//! Tests of half precision against exact arithmetic: unary operations on all numbers, the others on many.

use super::exact::{self, INDEFINITE, INEXACT, INVALID, Rounded, UNDERFLOW};
use super::forms::variants;
use super::{Function, Operands, find, rounds};
use crate::testing::Random;
use iced_x86::{Code, Instruction, Mnemonic, OpKind};

/// Returns the function of the first form of a mnemonic whose name contains `name`, on registers.
fn function(name: &str, imm: u8) -> Function {
    let code = Code::values()
        .find(|code| format!("{code:?}").starts_with(&format!("EVEX_{name}")))
        .unwrap_or_else(|| panic!("no form {name}"));
    let mut i: Instruction = variants(code, &mut Random::new(1))
        .into_iter()
        .find(|i| !(0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory))
        .expect("a form on registers");
    let last = i.op_count() - 1;
    if i.op_kind(last) == OpKind::Immediate8 {
        i.set_immediate8(imm);
    }
    assert!(i.mnemonic() != Mnemonic::INVALID);
    find(&i).expect("a function")
}

/// Returns operands of 64 bits each, with all exceptions masked.
fn values(rounding: u32, d: u64, a: u64, b: u64) -> Operands {
    let vector = |value: u64| {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    // DAZ and FTZ are set, which has no effect on half precision.
    Operands { dest: vector(d), a: vector(a), b: vector(b), c: [0; 64], mask: u64::MAX, mxcsr: 0x9fc0 | rounding << 13 }
}

fn half(function: &Function, rounding: u32, d: u16, a: u16, b: u16) -> Rounded {
    let outcome = function.run(&values(rounding, d.into(), a.into(), b.into()));
    (u16::from_le_bytes([outcome.dest[0], outcome.dest[1]]), outcome.mxcsr_flags)
}

/// Returns every number at a boundary of the format, and its neighbours.
fn boundaries() -> Vec<u16> {
    let exponents = [0, 1, 2, 9, 10, 13, 14, 15, 16, 17, 25, 26, 29, 30, 31];
    let fractions = [0, 1, 2, 0x155, 0x1ff, 0x200, 0x201, 0x2aa, 0x3fe, 0x3ff];
    let positive = exponents.iter().flat_map(|e| fractions.map(|f| e << 10 | f));
    positive.flat_map(|h: u16| [h, h | 0x8000]).collect()
}

/// Returns pairs of boundaries, and random pairs.
fn pairs(random: &mut Random) -> Vec<[u16; 2]> {
    let list = boundaries();
    let mut pairs: Vec<_> = list.iter().flat_map(|&x| list.iter().map(move |&y| [x, y])).collect();
    pairs.extend((0..20_000 * rounds()).map(|_| [random.next() as u16, random.next() as u16]));
    pairs
}

#[test]
fn sums_products_and_quotients_are_exact_ones_rounded() {
    let mut random = Random::new(7);
    let pairs = pairs(&mut random);
    let [add, subtract, multiply, divide] = ["Vaddsh", "Vsubsh", "Vmulsh", "Vdivsh"].map(|name| function(name, 0));
    for rounding in 0..4 {
        for &[x, y] in &pairs {
            let subtrahend = if exact::is_nan(y) { y } else { y ^ 0x8000 };
            let text = format!("{x:04x} {y:04x} {rounding}");
            assert_eq!(half(&add, rounding, 0, x, y), exact::add(rounding, x, y, false), "{text} +");
            assert_eq!(half(&subtract, rounding, 0, x, y), exact::add(rounding, x, subtrahend, false), "{text} -");
            assert_eq!(half(&multiply, rounding, 0, x, y), exact::multiply(rounding, x, y), "{text} *");
            assert_eq!(half(&divide, rounding, 0, x, y), exact::divide(rounding, x, y), "{text} /");
        }
    }
}

#[test]
fn fused_and_complex_operations_round_where_they_should() {
    let mut random = Random::new(11);
    let list = boundaries();
    let fused = function("Vfmadd231sh", 0);
    let negated = function("Vfnmsub213sh", 0);
    let complex = ["Vfmulcsh", "Vfcmulcsh", "Vfmaddcsh", "Vfcmaddcsh"].map(|name| function(name, 0));
    for case in 0..60_000 * rounds() {
        let rounding = (case % 4) as u32;
        let mut next = || match random.below(3) {
            0 => list[random.below(list.len() as u64) as usize],
            1 => (random.next() as u16 & 0x83ff) | (0x2c00 + 0x400 * random.below(8) as u16),
            _ => random.next() as u16,
        };
        let [d, x, y] = [next(), next(), next()];
        let text = format!("{d:04x} {x:04x} {y:04x} {rounding}");
        assert_eq!(half(&fused, rounding, d, x, y), exact::fused(rounding, [x, y, d], false, false), "{text}");
        assert_eq!(half(&negated, rounding, d, x, y), exact::fused(rounding, [x, d, y], true, true), "{text}");
        let [d1, x1, y1] = [next(), next(), next()];
        let text = format!("{text} {d1:04x} {x1:04x} {y1:04x}");
        let pair = |low: u16, high: u16| u64::from(low) | u64::from(high) << 16;
        for (n, function) in complex.iter().enumerate() {
            let o = values(rounding, pair(d, d1), pair(x, x1), pair(y, y1));
            let outcome = function.run(&o);
            // Complex arithmetic records exceptions as if they were masked.
            assert!(function.masks_exceptions() && !fused.masks_exceptions());
            assert_eq!(function.run(&Operands { mxcsr: o.mxcsr & !0x1f80, ..o }), outcome, "complex {n}: {text}");
            let first = |p, q, r| match n {
                0 | 1 => exact::multiply(rounding, p, q),
                _ => exact::fused(rounding, [p, q, r], false, false),
            };
            let conjugate = n & 1 != 0;
            let (real, mut flags) = first(x, y, d);
            let (imaginary, more) = first(x1, y, d1);
            flags |= more;
            let (real, more) = exact::fused(rounding, [x1, y1, real], !conjugate, false);
            flags |= more;
            let (imaginary, more) = exact::fused(rounding, [x, y1, imaginary], conjugate, false);
            flags |= more;
            let expected = (pair(real, imaginary) as u32, flags);
            let got = (u32::from_le_bytes(outcome.dest[..4].try_into().expect("four bytes")), outcome.mxcsr_flags);
            assert_eq!(got, expected, "complex {n}: {text}");
        }
    }
}

#[test]
fn roots_of_all_numbers() {
    let root = function("Vsqrtsh", 0);
    for x in 0..=u16::MAX {
        for rounding in 0..4 {
            assert_eq!(half(&root, rounding, 0, 0, x), exact::square_root(rounding, x), "{x:04x} {rounding}");
        }
    }
}

/// Returns the result of VRCP14SS or VRSQRT14SS for a half's magnitude, rounded to nearest.
fn shortened(approximation: &Function, negative: bool, x: u16) -> u16 {
    let single = (exact::units(x) as f32) / f32::exp2(24.0);
    let outcome = approximation.run(&values(3, 0, 0, single.to_bits().into()));
    let bits = u64::from(u32::from_le_bytes(outcome.dest[..4].try_into().expect("four bytes")));
    exact::from_wide(0, negative, bits & 0x7f_ffff | 0x80_0000, (bits >> 23) as i32 - 150).0
}

#[test]
fn approximations_of_all_numbers() {
    let [reciprocal, root] = ["Vrcpsh", "Vrsqrtsh"].map(|name| function(name, 0));
    let [reciprocal14, root14] = ["Vrcp14ss", "Vrsqrt14ss"].map(|name| function(name, 0));
    for x in 0..=u16::MAX {
        let (sign, magnitude) = (x & 0x8000, x & 0x7fff);
        let expected = match magnitude {
            0 => x | 0x7c00,
            0x7c00 => sign,
            _ if exact::is_nan(x) => x | 0x200,
            _ => shortened(&reciprocal14, sign != 0, x),
        };
        assert_eq!(half(&reciprocal, 2, 0, 0, x), (expected, 0), "{x:04x}");
        let expected_root = match magnitude {
            0 => x | 0x7c00,
            _ if exact::is_nan(x) => x | 0x200,
            _ if sign != 0 => INDEFINITE,
            0x7c00 => 0,
            _ => shortened(&root14, false, x),
        };
        assert_eq!(half(&root, 1, 0, 0, x), (expected_root, 0), "{x:04x} root");
        // The manual's error bound, if the result is a normal number.
        let value = |h: u16| exact::units(h) as f64 / f64::exp2(24.0);
        let bound = f64::exp2(-11.0) + f64::exp2(-14.0);
        if exact::is_nan(x) || magnitude == 0 || magnitude == 0x7c00 {
            continue;
        }
        if (0x400..0x7c00).contains(&(expected & 0x7fff)) {
            assert!((value(expected) * value(x) - 1.0).abs() < bound, "{x:04x}");
        }
        assert!(sign != 0 || (value(expected_root) * value(x).sqrt() - 1.0).abs() < bound, "{x:04x} root");
    }
}

#[test]
fn integers_of_all_numbers_and_numbers_of_integers() {
    let to = [
        ("w", 16, true),
        ("uw", 16, false),
        ("dq", 32, true),
        ("udq", 32, false),
        ("qq", 64, true),
        ("uqq", 64, false),
    ];
    for (name, width, is_signed) in to {
        let [rounded, truncated] = ["Vcvtph2", "Vcvttph2"].map(|prefix| function(&format!("{prefix}{name}_"), 0));
        for x in 0..=u16::MAX {
            for rounding in 0..5 {
                let (function, mode) = if rounding == 4 { (&truncated, 3) } else { (&rounded, rounding) };
                let mut o = values(rounding & 3, 0, x.into(), 0);
                o.mask = 1;
                let outcome = function.run(&o);
                let low = u64::from_le_bytes(outcome.dest[..8].try_into().expect("eight bytes"));
                let all = u64::MAX >> (64 - width);
                let value = exact::to_multiple(mode, exact::signed(x), 24) >> 24;
                let (least, greatest) =
                    if is_signed { (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1) } else { (0, all.into()) };
                let special = exact::is_nan(x) || exact::is_infinite(x);
                let expected = if special || value < least || value > greatest {
                    (if is_signed { 1 << (width - 1) } else { all }, INVALID)
                } else {
                    (value as u64 & all, if value << 24 == exact::signed(x) { 0 } else { INEXACT })
                };
                assert_eq!((low & all, outcome.mxcsr_flags), expected, "{name} {x:04x} {rounding}");
            }
        }
    }
    let mut random = Random::new(13);
    for (name, width, is_signed) in to {
        let function = function(&format!("Vcvt{name}2ph_"), 0);
        for case in 0..20_000 * rounds() {
            let rounding = (case & 3) as u32;
            let bits = random.next() >> random.below(64);
            let bits = if random.below(2) == 0 { bits.wrapping_neg() } else { bits } & (u64::MAX >> (64 - width));
            let value = if is_signed { i128::from((bits << (64 - width)) as i64 >> (64 - width)) } else { bits.into() };
            let mut o = values(rounding, 0, bits, 0);
            o.mask = 1;
            let outcome = function.run(&o);
            let got = (u16::from_le_bytes([outcome.dest[0], outcome.dest[1]]), outcome.mxcsr_flags);
            let expected = exact::from_wide(rounding, value < 0, value.unsigned_abs() as u64, 0);
            assert_eq!(got, expected, "{name} {bits:x} {rounding}");
        }
    }
}

#[test]
fn conversions_between_formats() {
    let [to_single, to_double] = ["Vcvtsh2ss", "Vcvtsh2sd"].map(|name| function(name, 0));
    for x in 0..=u16::MAX {
        let outcome = to_double.run(&values(0, 0, 0, x.into()));
        let double = f64::from_le_bytes(outcome.dest[..8].try_into().expect("eight bytes"));
        let outcome_single = to_single.run(&values(0, 0, 0, x.into()));
        let single = f32::from_le_bytes(outcome_single.dest[..4].try_into().expect("four bytes"));
        let (flags, nan) = exact::operands(&[x]);
        assert_eq!((outcome.mxcsr_flags, outcome_single.mxcsr_flags), (flags, flags), "{x:04x}");
        let sign = u64::from(x >> 15);
        let expected = match nan {
            Some(nan) => sign << 63 | 0x7ff0_0000_0000_0000 | u64::from(nan & 0x3ff) << 42,
            None if exact::is_infinite(x) => sign << 63 | 0x7ff0_0000_0000_0000,
            None => sign << 63 | (exact::units(x) as f64 / f64::exp2(24.0)).to_bits(),
        };
        assert_eq!(double.to_bits(), expected, "{x:04x}");
        let expected = match nan {
            Some(nan) => (sign as u32) << 31 | 0x7f80_0000 | u32::from(nan & 0x3ff) << 13,
            None => (double as f32).to_bits(),
        };
        assert_eq!(single.to_bits(), expected, "{x:04x}");
    }
    let [from_single, from_double] = ["Vcvtss2sh", "Vcvtsd2sh"].map(|name| function(name, 0));
    let mut random = Random::new(17);
    for case in 0..100_000 * rounds() {
        let rounding = (case & 3) as u32;
        // Near a half, or near the middle between two; denormals of the wider formats are zeros with DAZ.
        let near = f64::from(exact::units(random.next() as u16 & 0x7fff) as f32) / f64::exp2(24.0);
        let step = f64::from_bits(near.to_bits() ^ (random.below(2) << random.below(44)));
        let value = f64::from_bits(step.to_bits().wrapping_add(random.below(3)).wrapping_sub(1));
        let value = if random.below(2) == 0 { value } else { -value };
        let value = if random.below(8) == 0 { f64::from(f32::from_bits(random.next() as u32)) } else { value };
        for (function, bits, double) in [
            (&from_single, u64::from((value as f32).to_bits()), f64::from(value as f32)),
            (&from_double, value.to_bits(), value),
        ] {
            let zero = double.abs() < f64::MIN_POSITIVE
                || double.abs() < f64::from(f32::MIN_POSITIVE) && std::ptr::eq(function, &from_single);
            let outcome = function.run(&values(rounding, 0, 0, bits));
            let got = (u16::from_le_bytes([outcome.dest[0], outcome.dest[1]]), outcome.mxcsr_flags);
            let raw = double.to_bits();
            let expected = if double.is_nan() {
                continue;
            } else if double.is_infinite() {
                ((raw >> 48) as u16 & 0x8000 | 0x7c00, 0)
            } else if zero {
                ((raw >> 48) as u16 & 0x8000, 0)
            } else {
                let significand = raw & ((1 << 52) - 1) | 1 << 52;
                exact::from_wide(rounding, raw >> 63 != 0, significand, (raw >> 52 & 0x7ff) as i32 - 1075)
            };
            assert_eq!(got, expected, "{bits:x} {rounding}");
        }
    }
}

#[test]
fn scaled_rounding_of_all_numbers() {
    for imm in (0..=255).filter(|imm| imm & 4 == 0 || imm >> 4 & 3 == 1) {
        let [round, reduce] = ["Vrndscalesh", "Vreducesh"].map(|name| function(name, imm));
        let own = 2;
        let rounding = if imm & 4 != 0 { own } else { u32::from(imm & 3) };
        let stride = if rounds() > 2 { 1 } else { 5 };
        for x in (0..=u16::MAX).step_by(stride) {
            let got = half(&round, own, 0, 0, x);
            let rest = half(&reduce, own, 0, 0, x);
            let silent = |flags: u32| if imm & 8 != 0 { flags & !INEXACT } else { flags };
            if exact::is_nan(x) {
                let invalid = if x & 0x200 == 0 { INVALID } else { 0 };
                assert_eq!((got, rest), ((x | 0x200, invalid), (x | 0x200, invalid)), "{x:04x} {imm:02x}");
                continue;
            }
            if exact::is_infinite(x) {
                assert_eq!((got, rest), ((x, 0), (0, 0)), "{x:04x} {imm:02x}");
                continue;
            }
            let value = exact::signed(x);
            let multiple = exact::to_multiple(rounding, value, 24 - u32::from(imm >> 4));
            let sign = if multiple == 0 { x & 0x8000 } else { 0 };
            let expected = exact::ratio(0, multiple, 1).0 | sign;
            let tiny = if exact::is_denormal(expected) { UNDERFLOW } else { 0 };
            let flags = if multiple == value { 0 } else { INEXACT | tiny };
            assert_eq!(got, (expected, silent(flags)), "{x:04x} {imm:02x}");
            let (mut difference, flags) = exact::ratio(rounding, value - multiple, 1);
            if value == multiple {
                difference = u16::from(rounding == 1) << 15;
            }
            assert_eq!(rest, (difference, silent(flags & INEXACT)), "{x:04x} {imm:02x} reduced");
        }
    }
}

#[test]
fn exponents_significands_scales_and_classes() {
    let [exponent, scale] = ["Vgetexpsh", "Vscalefsh"].map(|name| function(name, 0));
    let mantissas: Vec<_> = (0..16).map(|imm| function("Vgetmantsh", imm)).collect();
    let classes: Vec<_> = (0..8).map(|bit| function("Vfpclasssh", 1 << bit)).collect();
    for x in 0..=u16::MAX {
        let (flags, nan) = exact::operands(&[x]);
        let value = exact::signed(x);
        let high = 127 - exact::units(x).max(1).leading_zeros() as i128 - 24;
        let expected = match nan {
            Some(nan) => nan,
            None if exact::is_infinite(x) => 0x7c00,
            None if value == 0 => 0xfc00,
            None => exact::ratio(0, high << 24, 1).0,
        };
        assert_eq!(half(&exponent, 0, 0, 0, x), (expected, flags), "{x:04x}");
        for (imm, function) in mantissas.iter().enumerate() {
            let sign = if imm & 4 != 0 { 0 } else { x & 0x8000 };
            let expected = match nan {
                Some(nan) => (nan, flags),
                None if exact::negative(x) && imm & 8 != 0 && value != 0 => (INDEFINITE, INVALID),
                None if exact::is_infinite(x) || value == 0 => (sign | 0x3c00, 0),
                None => {
                    // In units of 2^-24, in [1, 2).
                    let one = if high > 0 { exact::units(x) >> high } else { exact::units(x) << -high };
                    let lower = match imm & 3 {
                        0 => false,
                        1 => high & 1 != 0,
                        2 => true,
                        _ => one >= 3 << 23,
                    };
                    (sign | exact::ratio(0, one as i128, if lower { 2 } else { 1 }).0, flags)
                }
            };
            assert_eq!(half(function, 0, 0, 0, x), expected, "{x:04x} {imm}");
        }
        let class = match nan {
            Some(_) if x & 0x200 != 0 => 1,
            Some(_) => 1 << 7,
            None if value == 0 => 2 << (x >> 15),
            None if exact::is_infinite(x) => 8 << (x >> 15),
            None => u32::from(exact::is_denormal(x)) << 5 | u32::from(value < 0) << 6,
        };
        for (bit, function) in classes.iter().enumerate() {
            assert_eq!(function.run(&values(0, 0, x.into(), 0)).k as u32, class >> bit & 1, "{x:04x} class {bit}");
        }
    }
    let mut random = Random::new(19);
    for case in 0..100_000 * rounds() {
        let rounding = (case & 3) as u32;
        let [x, y] = [random.next() as u16, random.next() as u16 & 0x83ff | (0x2c00 + 0x400 * random.below(10) as u16)];
        if exact::is_nan(x) || exact::is_infinite(x) || exact::units(x) == 0 {
            continue;
        }
        let power = (exact::to_multiple(1, exact::signed(y), 24) >> 24) as i32;
        let (result, flags) = exact::from_wide(rounding, exact::negative(x), exact::units(x) as u64, power - 24);
        let denormal = if exact::is_denormal(x) { exact::DENORMAL } else { 0 };
        assert_eq!(half(&scale, rounding, 0, x, y), (result, flags | denormal), "{x:04x} {y:04x} {rounding}");
    }
}
