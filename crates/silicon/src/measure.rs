//! From samples to cycles.

use crate::block::Block;
use crate::child::{self, Sample, Samples};
use crate::routine::{self, Code};
use crate::stats;
use iced_x86::Instruction;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a block is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most samples, each of which executes the block in two loops and a chain of additions in two more.
    pub samples: usize,
    /// How often the block is repeated in a sample at most. More repetitions let a block that walks through memory
    /// leave the first-level cache.
    pub repeats: u64,
    /// Most pages that the block may touch.
    pub pages: usize,
    /// The processor that measures; without one, the one on which the caller runs.
    pub processor: Option<usize>,
    /// Time after which the block is given up.
    pub limit: Duration,
    /// Steps in which the time stamp advances; see [`grain`].
    pub grain: u64,
}

impl Default for Options {
    fn default() -> Self {
        let limit = Duration::from_millis(1000);
        Self { samples: child::SAMPLES, repeats: 512, pages: 8, processor: None, limit, grain: grain() }
    }
}

/// Returns the time stamp.
fn stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; programs may execute it unless Linux forbids it.
    #[allow(unsafe_code, reason = "the time stamp is read")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

/// Returns the steps in which the time stamp advances: on AMD's processors many cycles, on Intel's about one.
pub fn grain() -> u64 {
    static GRAIN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *GRAIN.get_or_init(|| {
        let mut steps: Vec<u64> = (0..2000).map(|_| (stamp(), stamp())).map(|(a, b)| b.wrapping_sub(a)).collect();
        steps.retain(|step| *step > 0);
        steps.into_iter().min().unwrap_or(1).max(1)
    })
}

/// Returns the frequency of the time stamp counter, by the clock of the kernel.
pub fn stamp_hz() -> f64 {
    static FREQUENCY: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        let (start, first) = (std::time::Instant::now(), stamp());
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        stamp().wrapping_sub(first) as f64 / start.elapsed().as_secs_f64()
    })
}

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

/// Reason why a block has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no instruction.
    #[error("the block is empty")]
    Empty,
    /// The block is too long.
    #[error("the block is longer than {} bytes", crate::block::MOST_BYTES)]
    TooLong,
    /// An instruction cannot be repeated in a program.
    #[error("'{0}' cannot be repeated in a straight line")]
    Unfit(String),
    /// The block cannot be encoded at another address.
    #[error("the block cannot be encoded: {0}")]
    Encoding(String),
    /// The process has no memory at the addresses of a measurement.
    #[error("the memory of a measurement cannot be mapped")]
    Memory,
    /// The block touches too many pages.
    #[error("the block touches too many pages")]
    Pages,
    /// The block accesses addresses that no program may have.
    #[error("the block accesses an address that cannot be mapped")]
    Address,
    /// The block causes #GP or #PF for another reason.
    #[error("the block causes a protection fault")]
    Protection,
    /// The block contains an instruction that the processor does not have.
    #[error("the processor does not have one of the instructions")]
    Illegal,
    /// The block divides by zero, or raises an unmasked exception of numbers.
    #[error("the block causes an arithmetic exception")]
    Arithmetic,
    /// The block causes a trap.
    #[error("the block causes a trap")]
    Trap,
    /// The block ends by another signal.
    #[error("the block ends by signal {0}")]
    Signal(i32),
    /// The block takes too long.
    #[error("the block takes too long")]
    Time,
    /// The samples do not agree.
    #[error("the samples do not agree")]
    Noise,
    /// The host refuses a process.
    #[error("a process for the measurement cannot be started: {0}")]
    Process(std::io::Error),
}

impl Failure {
    /// Returns a short name, by which failures are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLong => "too long",
            Self::Unfit(_) => "not repeatable",
            Self::Encoding(_) => "not encodable",
            Self::Memory => "no memory",
            Self::Pages => "many pages",
            Self::Address => "address",
            Self::Protection => "protection",
            Self::Illegal => "illegal",
            Self::Arithmetic => "arithmetic",
            Self::Trap => "trap",
            Self::Signal(_) => "signal",
            Self::Time => "time",
            Self::Noise => "noise",
            Self::Process(_) => "process",
        }
    }
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
            return Ok(Traced { cycles, code, rounds: samples.rounds, pages });
        }
    }
    Err(Failure::Noise)
}

/// Returns the cycles of a block that the shorter loop contains `copies` times, or `None` if the samples do not agree.
fn cycles(samples: &Samples, copies: u64, grain: u64) -> Option<Cycles> {
    let taken = &samples.samples[..samples.count as usize];
    let repeats = (samples.rounds * copies) as f64;
    let additions = (samples.chain_rounds * routine::CHAIN as u64) as f64;
    let figure = |taken: &[Sample]| {
        let fast = |of: fn(&Sample) -> u64| stats::undisturbed(taken.iter().map(of), grain);
        let block = fast(|s| s.block[1])? - fast(|s| s.block[0])?;
        let per_stamp = additions / (fast(|s| s.chain[1])? - fast(|s| s.chain[0])?);
        Some((block * per_stamp / repeats, per_stamp))
    };
    let (cycles, per_stamp) = figure(taken)?;
    let parts: Vec<f64> = taken.chunks(taken.len().div_ceil(3)).filter_map(figure).map(|part| part.0).collect();
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
        samples.samples[..32].fill(Sample { block: [1000, 2000], chain: [480, 960] });
        samples.samples[7] = Sample { block: [100_000, 200_000], chain: [480, 960] };
        let cycles = cycles(&samples, 64, 25).unwrap();
        assert_eq!(cycles.per_stamp, 640.0 / 480.0);
        assert_eq!(cycles.cycles, 1000.0 * (640.0 / 480.0) / 640.0);
        samples.samples[20..32].fill(Sample { block: [1000, 3000], chain: [480, 960] });
        assert_eq!(super::cycles(&samples, 64, 25), None);
    }
}
