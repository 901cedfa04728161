//! Executes every opcode, with every mandatory prefix, with memory and register operands, in every mode, through the
//! `decode` target; a fuzzer would take long to reach them all. `sweep ROUNDS [SEED]` uses other registers in each
//! round.

use std::panic::catch_unwind;
use testkit::Random;
use tollgate_fuzz::decode;

/// Modes of the `decode` target: real, protected at both levels, 16-bit, virtual-8086, compatibility, 64-bit at both
/// levels.
const MODES: [u8; 9] = [0, 1, 9, 2, 3, 4, 12, 5, 13];
/// Number of findings after which the sweep ends.
const MOST: usize = 40;

fn byte(random: &mut Random) -> u8 {
    (random.next() >> 32) as u8
}

/// Returns all opcodes with their ModRM byte.
fn opcodes(random: &mut Random) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    for prefix in [&[][..], &[0x66], &[0xf3], &[0xf2], &[0xf0], &[0x67], &[0x48], &[0x66, 0x48], &[0x36, 0x67]] {
        for map in maps {
            for opcode in 0..=255u8 {
                for reg in 0..8 {
                    for mode in [0, 0xc0] {
                        let modrm = mode | reg << 3 | byte(random) & 7;
                        all.push([prefix, map, &[opcode, modrm]].concat());
                    }
                }
            }
        }
    }
    for map in 1..4u8 {
        for opcode in 0..=255u8 {
            for rest in 0..16u8 {
                // This byte holds pp, L and W; half of them have an unused vvvv.
                let vvvv = if byte(random) & 1 == 0 { 15 } else { byte(random) & 15 };
                let third = rest & 7 | vvvv << 3 | (rest & 8) << 4;
                for mode in [0, 0xc0] {
                    let modrm = mode | byte(random) & 0x3f;
                    all.push(vec![0xc4, 0xe0 | map, third, opcode, modrm]);
                }
            }
        }
    }
    all
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let rounds = arguments.next().unwrap_or(1);
    let mut random = Random::new(arguments.next().unwrap_or(1));
    let mut findings = 0;
    let mut executed = 0u64;
    for round in 0..rounds {
        for code in opcodes(&mut random) {
            for mode in MODES {
                let settings = byte(&mut random) % 12;
                let mut input =
                    vec![mode, if byte(&mut random) & 3 == 0 { byte(&mut random) & 0x1f } else { 0x80 }, settings];
                for _ in 0..settings {
                    // The registers are mostly general ones, with values that one byte selects.
                    let register = if byte(&mut random) & 1 == 0 { byte(&mut random) & 15 } else { byte(&mut random) };
                    input.extend([register, byte(&mut random) & 0x7f]);
                    if (128..160).contains(&register) {
                        input.push(byte(&mut random));
                    }
                }
                input.extend(&code);
                input.extend(random.next().to_le_bytes());
                executed += 1;
                if catch_unwind(|| decode::run(&input)).is_err() {
                    eprintln!("finding in round {round}: mode {mode}, code {code:02x?}, input {input:02x?}");
                    findings += 1;
                    if findings >= MOST {
                        std::process::exit(1);
                    }
                }
            }
        }
        eprintln!("round {round}: {executed} inputs, {findings} findings");
    }
    std::process::exit(i32::from(findings > 0));
}
