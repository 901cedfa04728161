//! The module against the host's AVX-512 units, and half precision against exact arithmetic.

mod forms;
mod host;
mod values;

use super::{Bytes, Form, Operands, Outcome, find};
use forms::{Shape, variants};
use host::Host;
use iced_x86::{Code, EncodingKind, Instruction, OpKind};
use values::Random;

/// A form with nothing special, for tests of functions.
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

/// Whether results of two processors for VRCP14 or VRSQRT14 are both within the architecture's error.
fn close(i: &Instruction, got: &Outcome, expected: &Outcome) -> bool {
    use iced_x86::Mnemonic::*;
    let near = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x / y - 1.0).abs() < f64::exp2(-13.0);
    let (x, y) = (got.dest.as_chunks::<8>().0, expected.dest.as_chunks::<8>().0);
    let double = |bytes: [u8; 8]| f64::from_le_bytes(bytes);
    let (a, b) = (got.dest.as_chunks::<4>().0, expected.dest.as_chunks::<4>().0);
    let single = |bytes: [u8; 4]| f64::from(f32::from_le_bytes(bytes));
    got.mxcsr_flags == expected.mxcsr_flags
        && match i.mnemonic() {
            Vrcp14ps | Vrcp14ss | Vrsqrt14ps | Vrsqrt14ss => {
                a.iter().zip(b).all(|(&a, &b)| a == b || near(single(a), single(b)))
            }
            Vrcp14pd | Vrcp14sd | Vrsqrt14pd | Vrsqrt14sd => {
                x.iter().zip(y).all(|(&x, &y)| x == y || near(double(x), double(y)))
            }
            _ => false,
        }
}

/// Rounds over all forms; the environment asks for more, or for the forms whose name contains a text.
fn rounds() -> u64 {
    std::env::var("SOFTWARE_VECTOR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

fn chosen(code: Code) -> bool {
    std::env::var("SOFTWARE_VECTOR_FORMS").is_ok_and(|text| text.is_empty())
        || std::env::var("SOFTWARE_VECTOR_FORMS").map_or(true, |text| {
            let name = format!("{code:?}").to_lowercase();
            text.to_lowercase().split(',').any(|part| name.contains(part))
        })
}

fn evex() -> impl Iterator<Item = Code> {
    Code::values().filter(|code| code.op_code().encoding() == EncodingKind::EVEX && code.op_code().mode64())
}

/// The families that this module leaves to others or that no profile has.
fn elsewhere(code: Code) -> bool {
    use iced_x86::CpuidFeature::*;
    let absent = [AVX512ER, AVX512PF, AVX512_4FMAPS, AVX512_4VNNIW, AVX512_VP2INTERSECT];
    let kinds = code.op_code().op_kinds();
    let indexed = kinds.iter().any(|kind| format!("{kind:?}").contains("vsib"));
    indexed || code.cpuid_features().iter().any(|feature| absent.contains(feature))
}

/// What an instruction's destination is, and so which field of an outcome counts.
fn compared(i: &Instruction, outcome: &Outcome) -> Outcome {
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
        .filter(|&code| variants(code, &mut Random(1)).iter().any(|i| find(i).is_none()))
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
fn results_are_those_of_the_host_s_units() {
    let Some(mut host) = Host::new() else {
        eprintln!("skipped: the host has no AVX-512 units");
        return;
    };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut cases, mut wrong, mut missed) = (0u64, 0, std::collections::BTreeMap::new());
    let mut reported = 0;
    let codes: Vec<_> = evex().filter(|&code| host.has(code) && !elsewhere(code) && chosen(code)).collect();
    for code in codes {
        for round in 0..rounds() {
            for i in variants(code, &mut random) {
                let Some(function) = find(&i) else {
                    *missed.entry(format!("{:?}", code.mnemonic())).or_insert(0) += 1;
                    continue;
                };
                let shape = Shape::of(&i);
                host.load(&i);
                for case in 0..8 {
                    let o = values::operands(&i, &shape, &mut random, round * 8 + case);
                    let expected = compared(&i, &host.run(&i, &o));
                    let got = compared(&i, &function.run(&o));
                    cases += 1;
                    if got != expected && !close(&i, &got, &expected) {
                        wrong += 1;
                        *missed.entry(format!("wrong {:?}", code.mnemonic())).or_insert(0) += 1;
                        if reported < 5 {
                            reported += 1;
                            report(&i, &o, &got, &expected);
                        }
                        break;
                    }
                }
            }
        }
    }
    eprintln!("{cases} cases compared");
    assert!(wrong == 0 && missed.is_empty(), "{wrong} wrong: {missed:?}");
}

fn report(i: &Instruction, o: &Operands, got: &Outcome, expected: &Outcome) {
    use iced_x86::{Formatter, GasFormatter};
    let mut text = String::new();
    GasFormatter::new().format(i, &mut text);
    let hex = |v: &Bytes| {
        v.chunks(8).map(|c| format!("{:016x} ", u64::from_le_bytes(c.try_into().unwrap()))).collect::<String>()
    };
    eprintln!("{:?}: {text} mask {:x} mxcsr {:x}", i.code(), o.mask, o.mxcsr);
    for (name, v) in [("d", &o.dest), ("a", &o.a), ("b", &o.b), ("got", &got.dest), ("exp", &expected.dest)] {
        eprintln!("  {name:3} {}", hex(v));
    }
    eprintln!("  got k {:x} general {:x} flags {:x} rflags {:x}", got.k, got.general, got.mxcsr_flags, got.rflags);
    eprintln!(
        "  exp k {:x} general {:x} flags {:x} rflags {:x}",
        expected.k, expected.general, expected.mxcsr_flags, expected.rflags
    );
}
