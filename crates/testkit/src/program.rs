//! Random programs: pieces of code of random instructions that jump, call and return among each other.
//!
//! A program is a function of its seed, and tests name programs that found something by their seeds: the random
//! numbers, and the order in which they are drawn, must not change.

mod builder;
mod forms;
mod steps;

use crate::tiers::{ABSENT, ALIAS, CODE_PAGES, LOW, OTHER, READ_ONLY, RECOVERY, STACK, Start, Width};
use crate::{CODE, DATA, Random};
use builder::Builder;
use cpu::Tier;
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Formatter, GasFormatter, Instruction, Mnemonic, Register};
use std::fmt::Write;

const PAGE: u64 = 4096;
/// Largest size of a piece in bytes.
const PIECE: u64 = 112;
/// Bytes reserved for the jump at the piece's end.
const END: u64 = 14;

/// Returns an address for data, mostly a valid one and often near the end of a page.
fn address(random: &mut Random) -> u64 {
    let page = match random.below(32) {
        0 => READ_ONLY,
        1 => ABSENT,
        2 => OTHER,
        3 => ALIAS,
        4 => CODE + random.below(CODE_PAGES) * PAGE,
        5 => return random.next(),
        6 => random.of(&[0x0000_7fff_ffff_f000, 0xffff_8000_0000_0000, 0x0000_8000_0000_0000]),
        7..=9 => STACK - PAGE,
        10..=14 => LOW,
        15..=18 => LOW + PAGE,
        19..=24 => DATA + PAGE,
        _ => DATA,
    };
    page + match random.below(6) {
        0 => PAGE - 1 - random.below(34),
        1 => random.below(64),
        2 => random.below(PAGE),
        _ => random.below(PAGE) & !31,
    }
}

/// Returns a number for a register.
fn value(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.below(70),
        1 => random.next() as i8 as u64,
        2 => random.of(&[0, 1, u64::MAX, 1 << 63, 1 << 31, u32::MAX.into(), i64::MAX as u64, 0x8000, 0x80]),
        3 | 4 => random.next(),
        _ => address(random),
    }
}

fn general(random: &mut Random, narrow: bool) -> u32 {
    // RSP mostly has its own uses.
    loop {
        let register = random.below(if narrow { 8 } else { 16 }) as u32;
        if register != 4 || random.one_in(24) {
            return register;
        }
    }
}

/// Returns the program of a seed, and the source of the random numbers after it.
pub fn of(seed: u64) -> (Random, Start) {
    let mut random = Random::new(seed);
    // Even seeds keep the programs from before these options existed.
    let start = start(&mut random, seed % 2 == 1, seed % 8 == 5);
    // Some programs have probes.
    let probes = if seed % 5 == 4 { probes(&start, seed) } else { Vec::new() };
    (random, Start { recorded: seed % 4 != 3, probes, ..start })
}

/// Returns a few addresses of instructions.
fn probes(start: &Start, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    let bits = if start.width == Width::Long { 64 } else { 32 };
    let from = (start.rip - CODE) as usize;
    let instructions = Decoder::with_ip(bits, &start.code[from..], start.rip, DecoderOptions::NONE);
    instructions.into_iter().filter(|i| i.code() != Code::Int3 && random.one_in(40)).take(8).map(|i| i.ip()).collect()
}

/// Makes a program.
fn start(random: &mut Random, walks: bool, wide: bool) -> Start {
    let most = random.of(&[4, 40]);
    let pieces = 2 + random.below(most);
    let first = match random.below(3) {
        0 => CODE + PAGE - random.below(2 * PIECE),
        1 => CODE + random.below(PAGE),
        _ => CODE + 2 * PAGE - random.below(6 * PIECE),
    };
    let width = random.of(&[Width::Long, Width::Long, Width::Long, Width::Compatibility, Width::Protected]);
    let narrow = width != Width::Long;
    let starts: Vec<u64> = (0..pieces).map(|n| first + n * PIECE).collect();
    let mut code = vec![0xcc; (CODE_PAGES * PAGE) as usize];
    for (number, &at) in starts.iter().enumerate() {
        let bases = [general(random, narrow), general(random, narrow)];
        let x87 = random.one_in(4);
        let encoder = Encoder::new(if narrow { 32 } else { 64 });
        let mut builder = Builder {
            random,
            bases: [Register::None; 2],
            narrow,
            x87,
            wide,
            evex: false,
            walks,
            starts: &starts,
            encoder,
            ip: at,
            number: 0,
        };
        builder.bases = bases.map(|n| builder.full(n));
        let next = starts[(number + 1) % starts.len()];
        let limit = at + PIECE - END;
        let mut first: Vec<Instruction> = Vec::new();
        if builder.random.one_in(2) {
            let code = builder.sized(Code::Mov_rm64_imm32, Code::Mov_rm32_imm32);
            first.extend(Instruction::with2(code, builder.place(RECOVERY), next as i32));
        }
        for base in bases {
            if !builder.random.one_in(4) {
                let to = address(builder.random);
                first.extend(builder.set(base, to));
            }
        }
        for i in first {
            builder.put(&i, limit.saturating_sub(builder.ip));
        }
        let steps = 1 + builder.random.below(24);
        for _ in 0..steps {
            for i in builder.step() {
                builder.put(&i, limit.saturating_sub(builder.ip));
            }
        }
        let end = if builder.random.one_in(4) {
            let steps = (next.saturating_sub(builder.ip)).min(PIECE);
            let fill = vec![0x90; steps as usize];
            let from = (builder.ip - CODE) as usize;
            code[from..from + fill.len()].copy_from_slice(&fill);
            None
        } else {
            Instruction::with_branch(builder.sized(Code::Jmp_rel32_64, Code::Jmp_rel32_32), next).ok()
        };
        if let Some(end) = end {
            builder.put(&end, END);
        }
        let bytes = builder.encoder.take_buffer();
        let from = (at - CODE) as usize;
        code[from..from + bytes.len()].copy_from_slice(&bytes);
    }
    let cpl = random.of(&[0, 3, 3]);
    let mut gpr = [0; 16];
    gpr.fill_with(|| value(random));
    gpr[4] = STACK - 8 * random.below(64);
    if width == Width::Protected {
        gpr.iter_mut().for_each(|register| *register &= 0xffff_ffff);
    }
    let mut bases = [address(random), address(random)];
    if narrow {
        bases = bases.map(|base| if random.one_in(2) { 0 } else { base & 0xffff_ffff });
    }
    Start {
        probes: Vec::new(),
        width,
        cpl,
        smap: cpl == 0 && random.one_in(2),
        rip: first,
        code,
        gpr,
        flags: random.next() & 0xad5 | if random.one_in(3) { 1 << 18 } else { 0 },
        bases,
        pointers: random.one_in(4),
        recorded: true,
        seed: random.next(),
        tier: if random.one_in(2) { Tier::Auto } else { Tier::Translator },
        threshold: 1 + random.below(8) as u16,
    }
}

/// Formats a program for people.
pub fn listing(start: &Start) -> String {
    let mut text = format!(
        "{:?}, cpl {} smap {} at {:#x}, flags {:#x}, bases {:x?}, {:?}\n{:x?}\n",
        start.width, start.cpl, start.smap, start.rip, start.flags, start.bases, start.tier, start.gpr
    );
    let from = (start.rip - CODE) as usize;
    let end = start.code.iter().rposition(|byte| *byte != 0xcc).map_or(0, |at| at + 1);
    let mut formatter = GasFormatter::new();
    let bits = if start.width == Width::Long { 64 } else { 32 };
    for i in Decoder::with_ip(bits, &start.code[from..end], start.rip, DecoderOptions::NONE) {
        if i.mnemonic() == Mnemonic::Int3 || i.mnemonic() == Mnemonic::Nop {
            continue;
        }
        let mut line = String::new();
        formatter.format(&i, &mut line);
        let _ = writeln!(text, "  {:x}: {line}", i.ip());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the FNV-1a checksum.
    fn checksum(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// Tests name these programs by their seeds. An instruction that is new in the table changes the programs of all
    /// seeds, unless `forms.rs` leaves it out.
    #[test]
    fn a_seed_stands_for_the_same_program_as_ever() {
        for (seed, expected) in [(34_662, 0x3c0e_665a_867d_e9ad), (58_668, 0x3860_f3e5_cfa9_7646)] {
            let (_, start) = of(seed);
            let gpr: Vec<u8> = start.gpr.iter().flat_map(|register| register.to_le_bytes()).collect();
            assert_eq!(checksum(&[start.code, gpr].concat()), expected, "program {seed}");
        }
    }
}
