//! From samples to cycles.

use crate::block::Block;
use crate::child::{self, Sample, Samples};
use crate::failure::Failure;
use crate::options::Options;
use crate::routine::{self, Code};
use crate::stats;
use iced_x86::Instruction;
use serde::{Deserialize, Serialize};

/// Cycles of the core that one repetition of a block takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cycles {
    /// The figure.
    pub cycles: f64,
    /// The least and the greatest figure of three parts of the samples.
    pub interval: [f64; 2],
    /// Cycles of the core in one step of the time stamp counter.
    pub per_stamp: f64,
    /// Pages that the block touched.
    pub pages: u64,
}

/// Measures instructions that are repeated; see [`Block::new`] for those that can be.
pub fn measure(instructions: &[Instruction], options: &Options) -> Result<Cycles, Failure> {
    measure_block(&Block::new(instructions)?, options)
}

/// Measures a block.
pub fn measure_block(block: &Block, options: &Options) -> Result<Cycles, Failure> {
    trace_block(block, options).map(|traced| traced.cycles)
}

/// A measurement in full: what is needed to execute the same code elsewhere.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The figure.
    pub cycles: Cycles,
    /// The code.
    pub code: Code,
    /// Rounds of the loops of the block.
    pub rounds: u64,
    /// Addresses of the pages that the block touched.
    pub pages: Vec<u64>,
    /// Nothing else executed on the core; false without [`Options::idle`] too.
    pub alone: bool,
    /// Cycles that an overlapping chain took in the quieter samples.
    pub window: f64,
}

/// Measures a block, and returns the code and the pages too.
pub fn trace_block(block: &Block, options: &Options) -> Result<Traced, Failure> {
    let mut kind = routine::Kind::of_host();
    let mut code = routine::code(block, kind)?;
    let mut options = options.clone();
    for _ in 0..4 {
        let samples = match child::run(&code, &options) {
            // The block walks through memory: it gets less far with fewer repetitions.
            Err(Failure::Pages) if options.repeats > 128 => {
                options.repeats /= 4;
                continue;
            }
            // An operand of 16 or more bytes may have to be aligned.
            Err(Failure::Protection) if !kind.aligned => {
                kind.aligned = true;
                code = routine::code(block, kind)?;
                continue;
            }
            samples => samples?,
        };
        if let Some(cycles) = cycles(&samples, code.copies as u64, options.grain) {
            let pages = samples.addresses[..samples.pages as usize].to_vec();
            let [windows, chains] = [0, 1].map(|of| samples.windows.map(|both| both[of] as f64));
            let window = stats::usual_ratio(&windows, &chains).map_or(f64::INFINITY, |ratio| ratio * child::ADDITIONS);
            return Ok(Traced { cycles, code, rounds: samples.rounds, pages, alone: samples.alone != 0, window });
        }
    }
    Err(Failure::Noise)
}

/// Returns the cycles of a block that the shorter loop contains `copies` times, or `None` if the samples do not agree.
fn cycles(samples: &Samples, copies: u64, grain: u64) -> Option<Cycles> {
    let taken = &samples.samples[..samples.count as usize];
    let repeats = (samples.rounds * copies) as f64;
    let additions = (samples.chain_rounds * routine::CHAIN as u64) as f64;
    let per_stamp = {
        let fast = |of: fn(&Sample) -> u64| stats::undisturbed(taken.iter().map(of), grain);
        additions / (fast(|s| s.chain[1])? - fast(|s| s.chain[0])?)
    };
    let of: [fn(&Sample) -> u64; 4] = [|s| s.block[0], |s| s.block[1], |s| s.chain[0], |s| s.chain[1]];
    let limits = of.map(|of| taken.iter().map(of).min().unwrap_or(0) as f64 * stats::INTERRUPTED);
    // The core may change its frequency between two samples, and hardly within one.
    let figure = |taken: &[Sample]| {
        let whole = |s: &&Sample| of.iter().zip(limits).all(|(of, limit)| of(s) as f64 <= limit);
        let ratio = |s: &Sample| {
            let [block, chain] = [s.block, s.chain].map(|[short, long]| long as f64 - short as f64);
            block / chain.max(1.0)
        };
        let ratios: Vec<f64> = taken.iter().filter(whole).map(ratio).collect();
        Some(stats::quantile(&ratios, stats::QUIETER)? * additions / repeats)
    };
    let cycles = figure(taken)?;
    let parts: Vec<f64> = taken.chunks(taken.len().div_ceil(3)).map(figure).collect::<Option<_>>()?;
    let least = parts.iter().copied().fold(cycles, f64::min);
    let greatest = parts.iter().copied().fold(cycles, f64::max);
    let agrees = cycles > 0.0 && greatest - least <= 0.1 * cycles + 0.05;
    agrees.then_some(Cycles { cycles, interval: [least, greatest], per_stamp, pages: samples.pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::IcedError;
    use iced_x86::code_asm::{CodeAssembler, qword_ptr, registers::*, xmmword_ptr};

    fn block(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<Instruction> {
        let mut a = CodeAssembler::new(64).unwrap();
        write(&mut a).unwrap();
        a.instructions().to_vec()
    }

    #[test]
    fn a_figure_is_in_its_interval() {
        // On a host whose load changes all the time there may be no figure.
        let Ok(cycles) = measure(&block(|a| a.imul_2(rax, rbx)), &Options::default()) else { return };
        assert!(cycles.interval[0] <= cycles.cycles && cycles.cycles <= cycles.interval[1], "{cycles:?}");
    }

    #[test]
    fn failures_are_named() {
        let failure = |write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
            measure(&block(write), &Options::default()).map_err(|failure| failure.name())
        };
        assert_eq!(failure(|a| a.ud2()), Err("not repeatable"));
        assert_eq!(
            failure(|a| {
                a.xor(ecx, ecx)?;
                a.div(rcx)
            }),
            Err("arithmetic")
        );
        assert_eq!(
            failure(|a| {
                a.xor(ecx, ecx)?;
                a.mov(rax, qword_ptr(rcx))
            }),
            Err("address")
        );
        assert_eq!(failure(|a| a.movaps(xmm0, xmmword_ptr(rcx + 1))), Err("protection"));
        assert_eq!(
            failure(|a| {
                a.add(rcx, 0x8000)?;
                a.mov(qword_ptr(rcx), rax)
            }),
            Err("many pages")
        );
        assert_eq!(
            failure(|a| {
                a.mov(rcx, -1i64)?;
                a.rep().stosb()
            }),
            Err("many pages")
        );
    }

    #[test]
    fn pages_appear_where_a_block_accesses_them() {
        let instructions = block(|a| {
            a.mov(rax, qword_ptr(rcx + 0x10_0000))?;
            a.mov(rdx, qword_ptr(rax))
        });
        let code = routine::code(&Block::new(&instructions).unwrap(), routine::Kind::of_host()).unwrap();
        assert_eq!(child::run(&code, &Options::default()).unwrap().pages, 2);
    }

    #[test]
    fn samples_become_cycles() {
        // The stamp advances by 25; a round of 64 blocks of 2 cycles takes 100 stamps, and an addition takes 0.75.
        let mut samples = Samples::EMPTY;
        (samples.count, samples.rounds, samples.chain_rounds, samples.pages) = (32, 10, 10, 1);
        samples.samples[..32].fill(Sample { block: [1000, 2000], chain: [480, 960], window: 0 });
        samples.samples[7] = Sample { block: [100_000, 200_000], chain: [480, 960], window: 0 };
        let cycles = cycles(&samples, 64, 25).unwrap();
        assert_eq!(cycles.per_stamp, 640.0 / 480.0);
        assert!((cycles.cycles - 1000.0 * (640.0 / 480.0) / 640.0).abs() < 1e-9);
        // A core at another frequency takes other times for both.
        samples.samples[8..20].fill(Sample { block: [900, 1800], chain: [432, 864], window: 0 });
        assert!((super::cycles(&samples, 64, 25).unwrap().cycles - cycles.cycles).abs() < 1e-9);
        samples.samples[20..32].fill(Sample { block: [1000, 3000], chain: [480, 960], window: 0 });
        assert_eq!(super::cycles(&samples, 64, 25), None);
    }
}
