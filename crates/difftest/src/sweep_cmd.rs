//! The command `sweep`: compares the opcode space on the host and on the processor under test.

use crate::shard::{self, Progress};
use anyhow::{Context, Result, bail};
use difftest::sweep::space::{MAPS, Map};
use difftest::sweep::{Part, SweepCounts, Sweeper};
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};

const EXAMPLES: &str = "\
Examples:
  difftest sweep                           all of it, in 64-bit and in 32-bit code; some minutes
  difftest sweep --every 100               a hundredth of everything, in seconds
  difftest sweep --map 0f --map 0f38       these opcode maps
  difftest sweep --bytes 'f3 48 0f 1e c8'  one instruction, and what it does on either side";

/// Executes every encoding of the opcode maps at privilege level 3, on this machine's processor and on the emulated
/// one, and compares faults, with vector, error code and address, and lengths or the addresses at which execution
/// continues.
///
/// Instructions that the emulated processor does not offer although the host does, and instructions that enter the
/// kernel, are left out and counted. Exits with status 1 if anything differs, with 2 if the comparison could not be
/// made.
#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct SweepOptions {
    /// Width of code: 64, 32 (compatibility mode), or both
    #[arg(long, default_value = "both", value_parser = ["64", "32", "both"])]
    mode: String,
    /// Only this opcode map (repeatable)
    #[arg(long, value_name = "MAP", value_parser = MAPS.map(|(name, _)| name))]
    map: Vec<String>,
    /// One encoding in so many, spread evenly
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    every: u64,
    /// One encoding, in hexadecimal; where it is too short, INT3s follow
    #[arg(long, value_name = "HEX", conflicts_with_all = ["map", "every"])]
    bytes: Option<String>,
    /// Worker processes
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Groups of differences to show
    #[arg(long, default_value_t = 40, value_name = "N")]
    show: usize,
    /// Result as JSON
    #[arg(long)]
    json: bool,
    /// Be worker I of N (used by the parent process)
    #[arg(long, hide = true, value_name = "I/N")]
    shard: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum SweepMessage {
    Done(String, u64),
    Counts(SweepCounts),
}

impl Progress for SweepMessage {
    fn begins(&self) -> Option<&str> {
        if let Self::Done(place, _) = self { Some(place) } else { None }
    }

    fn is_last(&self) -> bool {
        matches!(self, Self::Counts(_))
    }
}

fn modes(options: &SweepOptions) -> &'static [u32] {
    match options.mode.as_str() {
        "64" => &[64],
        "32" => &[32],
        _ => &[64, 32],
    }
}

fn maps(options: &SweepOptions) -> Vec<Map> {
    MAPS.iter()
        .filter(|(name, _)| options.map.is_empty() || options.map.iter().any(|m| m == name))
        .map(|m| m.1)
        .collect()
}

/// Runs the command. Returns `false` if something differs.
pub fn run(options: &SweepOptions) -> Result<bool> {
    if let Some(hex) = &options.bytes {
        return one(options, hex);
    }
    if let Some(shard) = &options.shard {
        work(options, shard)?;
        return Ok(true);
    }
    let mut totals = SweepCounts::default();
    let progress = std::io::stderr().is_terminal();
    shard::supervise(options.jobs.clamp(1, 64), |message| match message {
        SweepMessage::Done(place, encodings) => {
            if progress {
                eprint!("\r{place}: {encodings} encodings of a worker ");
            }
        }
        SweepMessage::Counts(own) => totals.add(own),
    })
    .context("sweeping")?;
    if progress {
        eprintln!();
    }
    if options.json {
        serde_json::to_writer_pretty(std::io::stdout().lock(), &totals)?;
        println!();
    } else {
        print(options, &totals)?;
    }
    Ok(totals.unequal == 0)
}

fn work(options: &SweepOptions, shard: &str) -> Result<()> {
    let part = Part { maps: maps(options), every: options.every, share: shard::share(shard)? };
    let mut out = std::io::stdout().lock();
    let mut totals = SweepCounts::default();
    let mut sweeper: Option<Sweeper> = None;
    for &bits in modes(options) {
        let mut current = match sweeper.take() {
            None => Sweeper::new(bits)?,
            Some(other) => other.switch(bits),
        };
        let mut failed = None;
        let own = current.run(&part, |encoding, done| {
            let place = format!("{bits}-bit {} {:02x}", encoding.map.name(), encoding.opcode);
            failed = failed.take().or(say(&mut out, &SweepMessage::Done(place, done)).err());
        });
        failed.map_or(Ok(()), Err)?;
        totals.add(own);
        sweeper = Some(current);
    }
    say(&mut out, &SweepMessage::Counts(totals))
}

fn say(out: &mut impl Write, message: &SweepMessage) -> Result<()> {
    writeln!(out, "{}", serde_json::to_string(message)?)?;
    Ok(out.flush()?)
}

/// Compares one encoding in each mode.
fn one(options: &SweepOptions, hex: &str) -> Result<bool> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(|p| if p.len() == 2 { pair(p) } else { None }).collect();
    let Some(bytes) = bytes.filter(|b| (1..=15).contains(&b.len())) else {
        bail!("--bytes wants 1 to 15 bytes in hexadecimal, not '{hex}'");
    };
    let mut padded = [0xcc; 15];
    padded[..bytes.len()].copy_from_slice(&bytes);
    let mut sweeper: Option<Sweeper> = None;
    let mut equal = true;
    for &bits in modes(options) {
        let mut current = match sweeper.take() {
            None => Sweeper::new(bits)?,
            Some(other) => other.switch(bits),
        };
        let (native, emulated, instruction) = current.compare(&padded, bytes.len());
        println!("{bits}-bit code: {instruction}");
        println!("  host      {}", native.describe());
        println!("  emulated  {}", emulated.describe());
        equal &= native == emulated;
        sweeper = Some(current);
    }
    Ok(equal)
}

fn print(options: &SweepOptions, totals: &SweepCounts) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for finding in totals.findings.values().take(options.show) {
        writeln!(out, "{} ({} encodings)", finding.group, finding.count)?;
        writeln!(out, "    {}  {}", finding.bytes, finding.instruction)?;
        writeln!(out, "    host {}; here {}", finding.native, finding.emulated)?;
    }
    let hidden = totals.findings.len().saturating_sub(options.show);
    if hidden != 0 {
        writeln!(out, "... and {hidden} more groups; --show {} shows them", totals.findings.len())?;
    }
    writeln!(out, "{:>12} encodings", totals.encodings)?;
    writeln!(out, "{:>12} with equal outcomes, of which {} undefined on both sides", totals.equal, totals.undefined)?;
    for (reason, count) in &totals.excluded {
        writeln!(out, "{count:>12} not compared: {reason}")?;
    }
    writeln!(out, "{:>12} with unequal outcomes, in {} groups", totals.unequal, totals.findings.len())?;
    Ok(())
}
