//! Tests of the module against the host's AVX-512 units, and of half precision against exact arithmetic.

mod exact;
mod forms;
mod half;
mod host;
mod values;

use super::{Form, Function, Operands, Outcome, find};
use crate::testing::Random;
use exact::{DENORMAL, INEXACT, UNDERFLOW};
use forms::{Shape, variants};
use host::Host;
use iced_x86::{Code, CpuidFeature, EncodingKind, Formatter, GasFormatter, Instruction, Mnemonic, OpKind};
use std::collections::BTreeMap;

/// Returns a form without special properties, for tests of functions.
pub fn form() -> Form {
    Form {
        imm: 0,
        length: 64,
        zeroing: false,
        rounding: None,
        quiet: false,
        wide: false,
        broadcast: 0,
        recording: false,
        memory: 0,
    }
}

/// Returns the elements of an approximation's result, and the maximum difference between two processors.
fn approximated(i: &Instruction, outcome: &Outcome) -> Option<(Vec<f64>, f64)> {
    use iced_x86::Mnemonic::*;
    let double = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
    let single = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
    let half = |bytes: &[u8; 2]| {
        let h = u16::from_le_bytes(*bytes);
        // Numbers out of the format's range, infinities and NaNs are distinct numbers.
        if exact::negative(h) { -(exact::units(h) as f64) } else { exact::units(h) as f64 }
    };
    let dest = &outcome.dest;
    Some(match i.mnemonic() {
        Vrcp14pd | Vrcp14sd | Vrsqrt14pd | Vrsqrt14sd => {
            (dest.as_chunks().0.iter().map(double).collect(), f64::exp2(-13.0))
        }
        Vrcp14ps | Vrcp14ss | Vrsqrt14ps | Vrsqrt14ss => {
            (dest.as_chunks().0.iter().map(single).collect(), f64::exp2(-13.0))
        }
        Vrcpph | Vrcpsh | Vrsqrtph | Vrsqrtsh => (dest.as_chunks().0.iter().map(half).collect(), f64::exp2(-9.0)),
        _ => return None,
    })
}

/// Returns true if both outcomes are valid for two different processors: approximations within the architecture's
/// error, or VCVTPS2PH of a denormal with underflow unmasked, for which only Intel's manual specifies an inexact
/// result.
fn close(i: &Instruction, got: &Outcome, expected: &Outcome) -> bool {
    let differing = got.mxcsr_flags ^ expected.mxcsr_flags;
    if i.mnemonic() == Mnemonic::Vcvtps2ph && got.mxcsr_flags & !INEXACT == DENORMAL | UNDERFLOW {
        return differing == INEXACT;
    }
    let (Some((x, bound)), Some((y, _))) = (approximated(i, got), approximated(i, expected)) else { return false };
    let near = |(x, y): (f64, f64)| x.to_bits() == y.to_bits() || (x / y - 1.0).abs() < bound;
    differing == 0 && x.into_iter().zip(y).all(near)
}

/// Returns true if AMD processors keep a tiny result of VREDUCE: they do not flush it to zero while underflow is
/// unmasked.
fn keeps_tiny_remainders(i: &Instruction, o: &Operands) -> bool {
    use iced_x86::Mnemonic::*;
    const FLUSH: u32 = 1 << 15;
    const UNDERFLOW_MASKED: u32 = 1 << 11;
    matches!(i.mnemonic(), Vreducepd | Vreduceps | Vreducesd | Vreducess)
        && o.mxcsr & (FLUSH | UNDERFLOW_MASKED) == FLUSH
        && testkit::host_is_amd()
}

/// Number of operand sets per instruction and round.
const CASES: u64 = 8;

/// Returns the number of rounds over all forms; environment variables can increase it, or select forms by name.
fn rounds() -> u64 {
    std::env::var("SOFTWARE_VECTOR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

fn chosen(code: Code) -> bool {
    std::env::var("SOFTWARE_VECTOR_FORMS").ok().filter(|text| !text.is_empty()).is_none_or(|text| {
        let name = format!("{code:?}").to_lowercase();
        text.to_lowercase().split(',').any(|part| name.contains(part))
    })
}

fn evex() -> impl Iterator<Item = Code> {
    Code::values().filter(|code| code.op_code().encoding() == EncodingKind::EVEX && code.op_code().mode64())
}

/// Returns true for families that are implemented elsewhere, or that no profile has.
fn elsewhere(code: Code) -> bool {
    use CpuidFeature::*;
    let absent = [AVX512ER, AVX512PF, AVX512_4FMAPS, AVX512_4VNNIW, AVX512_VP2INTERSECT];
    let kinds = code.op_code().op_kinds();
    let indexed = kinds.iter().any(|kind| format!("{kind:?}").contains("vsib"));
    indexed || code.cpuid_features().iter().any(|feature| absent.contains(feature))
}

/// Returns the outcome with only the fields that the instruction's destination uses.
fn relevant(i: &Instruction, outcome: &Outcome) -> Outcome {
    let empty = Outcome { dest: [0; 64], k: 0, general: 0, mxcsr_flags: outcome.mxcsr_flags, rflags: 0 };
    if sets_flags(i) {
        return Outcome { rflags: outcome.rflags, ..empty };
    }
    if i.op0_kind() == OpKind::Memory {
        let mut dest = outcome.dest;
        dest[i.memory_size().size()..].fill(0);
        return Outcome { dest, ..empty };
    }
    let register = i.op0_register();
    if register.is_k() {
        Outcome { k: outcome.k, ..empty }
    } else if register.is_gpr() {
        Outcome { general: outcome.general, ..empty }
    } else {
        Outcome { dest: outcome.dest, ..empty }
    }
}

fn sets_flags(i: &Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(i.mnemonic(), Vcomiss | Vcomisd | Vcomish | Vucomiss | Vucomisd | Vucomish)
}

#[test]
fn every_form_is_found() {
    let missing: Vec<_> = evex()
        .filter(|&code| !elsewhere(code))
        .filter(|&code| variants(code, &mut Random::new(1)).iter().any(|i| find(i).is_none()))
        .collect();
    assert!(missing.is_empty(), "{} forms without a function: {missing:?}", missing.len());
}

#[test]
fn forms_that_are_elsewhere_are_not_found() {
    for code in evex().filter(|&code| elsewhere(code)) {
        let mut i = Instruction::new();
        i.set_code(code);
        assert!(find(&i).is_none(), "{code:?}");
    }
}

#[test]
fn avx_vnni_computes_as_its_evex_forms() {
    let mut random = Random::new(3);
    let vex = Code::values().filter(|code| code.cpuid_features() == [CpuidFeature::AVX_VNNI]);
    let mut compared = 0;
    for code in vex {
        let length = code.op_code().l();
        let twin = evex()
            .find(|twin| twin.mnemonic() == code.mnemonic() && twin.op_code().l() == length)
            .expect("the same operation with an opmask");
        for (i, other) in variants(code, &mut random).iter().zip(variants(twin, &mut random).iter().step_by(3)) {
            let (shape, functions) = (Shape::of(i), [i, other].map(|i| find(i).expect("a function")));
            for case in 0..100 {
                let o = values::operands(i, &shape, &mut random, case);
                assert_eq!(functions[0].run(&o), functions[1].run(&o), "{code:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 8 * 2 * 100);
}

/// Returns the extension to which a form belongs.
fn family(code: Code) -> String {
    let features = code.cpuid_features();
    let own = features.iter().find(|&&feature| feature != CpuidFeature::AVX512VL && feature != CpuidFeature::AVX512F);
    format!("{:?}", own.unwrap_or(&CpuidFeature::AVX512F))
}

#[test]
fn results_are_those_of_the_host_s_units() {
    let Some(mut host) = Host::new() else {
        eprintln!("skipped: the host has no AVX-512 units");
        return;
    };
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let (mut compared, mut wrong) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
    let codes: Vec<_> = evex().filter(|&code| host.has(code) && !elsewhere(code) && chosen(code)).collect();
    for (code, round) in codes.into_iter().flat_map(|code| (0..rounds()).map(move |round| (code, round))) {
        for i in variants(code, &mut random) {
            let (function, shape) = (find(&i).expect("a function"), Shape::of(&i));
            host.load(&i);
            for case in 0..CASES {
                let o = values::operands(&i, &shape, &mut random, round * CASES + case);
                let expected = relevant(&i, &host.run(&i, &o));
                let got = relevant(&i, &function.run(&o));
                *compared.entry(family(code)).or_default() += 1;
                // An unmasked exception leaves only flags.
                let stops = got.mxcsr_flags & !(o.mxcsr >> 7) & 0x3f != 0;
                let equal = if stops { got.mxcsr_flags == expected.mxcsr_flags } else { got == expected };
                if !equal && !close(&i, &got, &expected) && !keeps_tiny_remainders(&i, &o) {
                    if wrong.values().sum::<u64>() < 5 {
                        report(&i, &o, &got, &expected);
                    }
                    *wrong.entry(format!("{:?}", code.mnemonic())).or_default() += 1;
                    break;
                }
            }
        }
    }
    eprintln!("{} cases compared: {compared:?}", compared.values().sum::<u64>());
    assert!(wrong.is_empty(), "other results than the host's, by mnemonic: {wrong:?}");
}

/// Formats the operands, and the computed and the expected outcome.
fn report(i: &Instruction, o: &Operands, got: &Outcome, expected: &Outcome) {
    let mut text = String::new();
    GasFormatter::new().format(i, &mut text);
    eprintln!("{:?}: {text}, mask {:x}, MXCSR {:x}", i.code(), o.mask, o.mxcsr);
    let vectors =
        [("destination", &o.dest), ("a", &o.a), ("b", &o.b), ("got", &got.dest), ("expected", &expected.dest)];
    for (name, vector) in vectors {
        let words = vector.as_chunks().0.iter().map(|&word| format!(" {:016x}", u64::from_le_bytes(word)));
        eprintln!("  {name:11}{}", words.collect::<String>());
    }
    for (name, outcome) in [("got", got), ("expected", expected)] {
        let Outcome { k, general, mxcsr_flags, rflags, .. } = outcome;
        eprintln!("  {name:11} k {k:x}, general {general:x}, exceptions {mxcsr_flags:x}, RFLAGS {rflags:x}");
    }
}
