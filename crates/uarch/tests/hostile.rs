//! Core tables with any contents: a table is refused with a reason, or has prices.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
use uarch::{CoreTable, InFlight, Lead, Repeat, State, step, string};

/// The files of a core.
fn files(name: &str) -> [String; 2] {
    ["toml", "forms"].map(|kind| {
        let path = format!("{}/../../profiles/cores/{name}.{kind}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    })
}

fn next(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random as usize
}

/// Replaces a number of the text, or a few characters.
fn change(text: &mut String, random: &mut u64) {
    let numbers = [
        "0",
        "-1",
        "1e9",
        "1e300",
        "nan",
        "inf",
        "65535",
        "65536",
        "4294967295",
        "99999999999",
        "3",
        "",
        "\u{fffd}",
        "..",
        "\n",
    ];
    let ascii: Vec<(usize, usize)> = {
        let bytes = text.as_bytes();
        let digit = |at: &usize| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[*at - 1].is_ascii_digit());
        let end =
            |at: usize| bytes[at..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |len| at + len);
        (0..bytes.len()).filter(digit).map(|at| (at, end(at))).collect()
    };
    let (mut start, mut end) = ascii[next(random) % ascii.len()];
    if next(random).is_multiple_of(4) {
        start = next(random) % text.len();
        end = (start + next(random) % 6).min(text.len());
    }
    if text.is_char_boundary(start) && text.is_char_boundary(end) {
        text.replace_range(start..end, numbers[next(random) % numbers.len()]);
    }
}

/// Prices instructions of every kind, with contexts that are encoded and read again.
fn use_table(core: &CoreTable) {
    let code: Vec<u8> = (0..400u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let instructions: Vec<Instruction> =
        Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).into_iter().filter(|i| !i.is_invalid()).collect();
    let (mut info, mut state) = (InstructionInfoFactory::new(), State::new());
    let mut all = InFlight::default();
    for (n, i) in instructions.iter().enumerate() {
        let next = core.step(&mut info, i, if n % 50 == 7 { u32::MAX } else { 1000 });
        all.branch(core, &next);
        if n % 4 == 0 {
            all.begin(core, &next, [Lead::Taken, Lead::Called, Lead::Through][n % 3]);
        }
    }
    for i in &instructions {
        let price = step(core, &mut state, &core.step(&mut info, i, 1000));
        assert!(price < 1 << 28, "{i}: {price}");
        state = State::decode(&state.encode()).unwrap();
    }
    state.bounds(core);
    state.close(core, true);
    for repeat in [Repeat::Movs, Repeat::MovsWide, Repeat::Stos, Repeat::StosWide] {
        for length in [0, 1, 100, 1 << 20, 1 << 40, u64::MAX] {
            string(core, repeat, length, length ^ 1, Some(7));
        }
    }
}

#[test]
fn a_core_with_any_figures_is_refused_with_a_reason_or_has_prices() {
    let (mut refused, mut used) = (0, 0);
    for name in ["zen3", "skylakex"] {
        let files = files(name);
        for seed in 1..500u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut changed = files.clone();
            let which = next(&mut random) % 2;
            (0..=next(&mut random) % 3).for_each(|_| change(&mut changed[which], &mut random));
            let [parameters, forms] = &changed;
            match CoreTable::parse("changed", parameters, forms) {
                Ok(core) => {
                    use_table(&core);
                    used += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("profiles/cores/changed."), "{text}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && used > 100, "{refused} refused, {used} used");
}
