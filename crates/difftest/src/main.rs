//! Command line of the differential tester.

mod forms_cmd;
mod shard;
mod sweep_cmd;
mod timing_cmd;

use anyhow::{Context, Result, bail};
use clap::Parser;
use difftest::forms::{self, Form};
use difftest::runner::{Mismatch, Runner, Tally};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Runs random instructions on this machine's processor and on the emulated one, and compares every bit.
///
/// Exits with status 1 if anything differs, with 2 if the comparison could not be made.
#[derive(Parser, Clone)]
#[command(name = "difftest", version, args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Cases in all, spread evenly over the forms
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Seed: the same seed gives the same cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Width of code: 64, or 32 for compatibility mode
    #[arg(long, default_value_t = 64, value_parser = clap::builder::PossibleValuesParser::new(["64", "32"]).map(|s| s.parse::<u32>().unwrap_or(64)))]
    mode: u32,
    /// Only this family of the instruction table (repeatable)
    #[arg(long)]
    family: Vec<String>,
    /// Only this form, as the decoder names it, or all forms of this mnemonic (repeatable)
    #[arg(long)]
    code: Vec<String>,
    /// Only the case of this number, of each form
    #[arg(long)]
    index: Option<u64>,
    /// Worker processes
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Mismatches to show per form
    #[arg(long, default_value_t = 1)]
    show: u64,
    /// Have the emulated processor use no wider vector units of the host than this: 256 executes AVX-512 in software
    #[arg(long, default_value_t = 512, value_parser = clap::builder::PossibleValuesParser::new(["256", "512"]).map(|s| s.parse::<u32>().unwrap_or(512)))]
    host_vectors: u32,
    /// Result as JSON
    #[arg(long)]
    json: bool,
    /// Show what would be tested and what is left out, with the reasons
    #[arg(long)]
    list: bool,
    /// Be worker I of N (used by the parent process)
    #[arg(long, hide = true, value_name = "I/N")]
    shard: Option<String>,
}

#[derive(clap::Subcommand, Clone)]
enum Command {
    /// Executes every encoding, defined or not, and compares faults and lengths
    Sweep(sweep_cmd::SweepOptions),
    /// Measures blocks on this machine's processor, and compares models of time with them
    #[command(long_flag = "timing")]
    Timing(timing_cmd::TimingOptions),
    /// Measures a core's table of forms on this machine's processor
    Forms(forms_cmd::FormsOptions),
}

use clap::builder::TypedValueParser;

#[derive(Serialize)]
struct Report {
    seed: u64,
    bits: u32,
    families: BTreeMap<String, Tally>,
    total: Tally,
    by_form: BTreeMap<String, u64>,
    mismatches: Vec<Mismatch>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.command {
        Some(Command::Sweep(options)) => sweep_cmd::run(options),
        Some(Command::Timing(options)) => timing_cmd::run(options),
        Some(Command::Forms(options)) => forms_cmd::run(options),
        None => run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("difftest: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn chosen(options: &Options) -> Result<Vec<Form>> {
    let (all, _) = forms::forms(options.mode);
    let known = |family: &String| cpu::table::FAMILIES.iter().any(|(name, _)| name == family);
    if let Some(unknown) = options.family.iter().find(|f| !known(f)) {
        let names: Vec<_> = cpu::table::FAMILIES.iter().map(|(name, _)| *name).collect();
        bail!("no family '{unknown}'; there are: {}", names.join(", "));
    }
    let named = |form: &Form, name: &String| {
        let mnemonic = format!("{:?}", form.code.mnemonic());
        format!("{:?}", form.code) == *name || mnemonic.eq_ignore_ascii_case(name)
    };
    if let Some(unknown) = options.code.iter().find(|name| !all.iter().any(|form| named(form, name))) {
        bail!("no form '{unknown}' is tested in {}-bit code; see --list", options.mode);
    }
    let wanted = |form: &Form| {
        (options.family.is_empty() || options.family.iter().any(|f| f == form.family))
            && (options.code.is_empty() || options.code.iter().any(|name| named(form, name)))
    };
    let forms: Vec<_> = all.into_iter().filter(wanted).collect();
    if forms.is_empty() {
        bail!("nothing is both in that family and of that form");
    }
    Ok(forms)
}

fn list(options: &Options) -> Result<()> {
    let (_, excluded) = forms::forms(options.mode);
    let mut out = std::io::stdout().lock();
    for form in chosen(options)? {
        writeln!(out, "{:20} {:?}", form.family, form.code)?;
    }
    for (reason, codes) in excluded {
        writeln!(out, "\nNot compared: {reason}")?;
        for code in codes {
            writeln!(out, "    {code:?}")?;
        }
    }
    Ok(())
}

fn run(options: &Options) -> Result<bool> {
    if options.list {
        list(options)?;
        return Ok(true);
    }
    let forms = chosen(options)?;
    let per_form = options.cases.div_ceil(forms.len() as u64).max(1);
    let indices = options.index.map_or(0..per_form, |i| i..i + 1);
    cpu::native::limit_to_256_bits(options.host_vectors == 256);
    if let Some(shard) = &options.shard {
        shard::work(Runner::new(options.seed, options.mode)?, &forms, indices, shard)?;
        return Ok(true);
    }
    let mut report = Report {
        seed: options.seed,
        bits: options.mode,
        families: BTreeMap::new(),
        total: Tally::default(),
        by_form: BTreeMap::new(),
        mismatches: Vec::new(),
    };
    let progress = std::io::stderr().is_terminal();
    let planned = (indices.end - indices.start) * forms.len() as u64;
    let mut done = 0;
    let jobs = if options.index.is_some() { 1 } else { options.jobs.clamp(1, 64) };
    shard::supervise(jobs, |message: shard::Message| match message {
        shard::Message::Begins(_) => {}
        shard::Message::Done(cases) => {
            done += cases;
            if progress {
                eprint!("\r{done} of {planned} cases, {} mismatches ", report.by_form.values().sum::<u64>());
            }
        }
        shard::Message::Mismatch(mismatch) => {
            let count = report.by_form.entry(mismatch.code.clone()).or_default();
            *count += 1;
            if *count <= options.show {
                report.mismatches.push(*mismatch);
            }
        }
        shard::Message::Totals(tallies) => {
            for (family, tally) in tallies {
                report.families.entry(family).or_default().add(&tally);
            }
        }
    })
    .context("comparing")?;
    if progress {
        eprintln!();
    }
    for (family, tally) in &mut report.families {
        tally.forms = forms.iter().filter(|form| form.family == family).count() as u64;
        report.total.add(tally);
    }
    if options.json {
        serde_json::to_writer_pretty(std::io::stdout().lock(), &report)?;
        println!();
    } else {
        print(&report)?;
    }
    Ok(report.total.mismatches == 0)
}

fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for m in &report.mismatches {
        writeln!(out, "{}: {}\n  bytes   {}", m.code, m.instruction, m.bytes)?;
        writeln!(out, "  {:16} {:>70} {:>70}", "", "native", "emulated")?;
        for d in &m.differences {
            writeln!(out, "  {:16} {:>70} {:>70}", d.what, d.expected, d.got)?;
        }
        writeln!(out, "  before:")?;
        for (name, value) in &m.before {
            writeln!(out, "    {name:18} {value}")?;
        }
        writeln!(out, "  of {} mismatches of this form; repeat with: {}\n", report.by_form[&m.code], m.repeat())?;
    }
    writeln!(
        out,
        "{:22} {:>6} {:>12} {:>12} {:>9} {:>10}",
        "family", "forms", "cases", "exceptions", "skipped", "mismatches"
    )?;
    let total = [("in all".to_string(), report.total)];
    let families = report.families.iter().map(|(name, tally)| (name.clone(), *tally));
    for (name, t) in families.chain(total) {
        writeln!(
            out,
            "{name:22} {:>6} {:>12} {:>12} {:>9} {:>10}",
            t.forms, t.cases, t.exceptions, t.skipped, t.mismatches
        )?;
    }
    Ok(())
}
