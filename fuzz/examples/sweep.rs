//! Executes every opcode, with every mandatory prefix, with memory and register operands, in every mode, through the `decode`
//! target: what a fuzzer would take long to come by. `sweep ROUNDS [SEED]` does it with other registers each round.

use std::panic::catch_unwind;
use tollgate_fuzz::decode;

/// Modes of the `decode` target: real, protected at both levels, 16-bit, virtual-8086, compatibility, 64-bit at both levels.
const MODES: [u8; 9] = [0, 1, 9, 2, 3, 4, 12, 5, 13];
/// Findings to report before giving up.
const MOST: usize = 40;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 32) as u8
    }
}

/// All opcodes up to and with their ModRM byte.
fn opcodes(random: &mut Random) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    for prefix in [&[][..], &[0x66], &[0xf3], &[0xf2], &[0xf0], &[0x67], &[0x48], &[0x66, 0x48], &[0x36, 0x67]] {
        for map in maps {
            for opcode in 0..=255u8 {
                for reg in 0..8 {
                    for mode in [0, 0xc0] {
                        let modrm = mode | reg << 3 | random.byte() & 7;
                        all.push([prefix, map, &[opcode, modrm]].concat());
                    }
                }
            }
        }
    }
    for map in 1..4u8 {
        for opcode in 0..=255u8 {
            for rest in 0..16u8 {
                // pp, L and W; an unused vvvv in half of them.
                let vvvv = if random.byte() & 1 == 0 { 15 } else { random.byte() & 15 };
                let third = rest & 7 | vvvv << 3 | (rest & 8) << 4;
                for mode in [0, 0xc0] {
                    let modrm = mode | random.byte() & 0x3f;
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
    let mut random = Random(arguments.next().unwrap_or(1) << 1 | 1);
    let mut findings = 0;
    let mut executed = 0u64;
    for round in 0..rounds {
        for code in opcodes(&mut random) {
            for mode in MODES {
                let settings = random.byte() % 12;
                let mut input = vec![mode, if random.byte() & 3 == 0 { random.byte() & 0x1f } else { 0x80 }, settings];
                for _ in 0..settings {
                    // Registers, mostly general ones, with values of one byte's choice.
                    let register = if random.byte() & 1 == 0 { random.byte() & 15 } else { random.byte() };
                    input.extend([register, random.byte() & 0x7f]);
                    if (128..160).contains(&register) {
                        input.push(random.byte());
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
