//! The command `timing`: models of time beside measured blocks.

use anyhow::{Context, Result, bail};
use difftest::forms;
use difftest::timing::{profile::OfProfile, sample};
use iced_x86::{Formatter, GasFormatter};
use ledger::profile::{Clock, Profile};
use serde::Serialize;
use silicon::corpus::{Corpus, Measured, hexadecimal};
use silicon::host::Processor;
use silicon::model::{self, BlockModel, Constant, Score};
use silicon::{Block, mca};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  difftest --timing                                     1000 random blocks and 1000 of usual programs
  difftest --timing --elf /usr/bin/git --random 0       blocks of one program
  difftest --timing --save blocks.json                  the measurements are kept
  difftest --timing --against blocks.json --cpu zen3    the models beside them, without measuring";

/// Measures random blocks and blocks of programs on this machine's processor, and compares models of time with them.
///
/// The blocks are chosen by the seed. A block is repeated in a loop, in a process of its own; figures are cycles of
/// the core for one repetition. Exits with status 2 if nothing could be measured.
#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct TimingOptions {
    /// Seed: the same seed chooses the same blocks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of random blocks
    #[arg(long, default_value_t = 1000, value_name = "N")]
    random: usize,
    /// Number of blocks of programs
    #[arg(long, default_value_t = 1000, value_name = "N")]
    blocks: usize,
    /// Program whose blocks are measured (repeatable); usual ones without it
    #[arg(long, value_name = "FILE")]
    elf: Vec<PathBuf>,
    /// Profile of the model (repeatable): a name or a file
    #[arg(long, default_value = "zen3", value_name = "PROFILE")]
    cpu: Vec<String>,
    /// Processor for llvm-mca, or `none`
    #[arg(long, default_value = "native", value_name = "NAME")]
    mca: String,
    /// The program llvm-mca
    #[arg(long, default_value = "llvm-mca", value_name = "FILE")]
    mca_program: String,
    /// Save the measurements
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    save: Option<PathBuf>,
    /// Compare with saved measurements
    #[arg(long, value_name = "FILE", conflicts_with_all = ["random", "blocks", "elf"])]
    against: Option<PathBuf>,
    /// Worst blocks to show for each model
    #[arg(long, default_value_t = 10, value_name = "N")]
    show: usize,
    /// Only blocks of this source: `random`, or the name of a program
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Result as JSON
    #[arg(long)]
    json: bool,
}

/// One model beside the measurements.
#[derive(Serialize)]
struct Compared {
    model: String,
    all: Score,
    by_source: BTreeMap<String, Score>,
    by_family: BTreeMap<String, Score>,
    worst: Vec<Worst>,
}

/// A block with a great error.
#[derive(Serialize)]
struct Worst {
    source: String,
    family: &'static str,
    measured: f64,
    model: f64,
    code: String,
    instructions: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    processor: &'a Processor,
    seed: u64,
    measured: usize,
    failures: &'a BTreeMap<String, u64>,
    models: Vec<Compared>,
}

/// Runs the command.
pub fn run(options: &TimingOptions) -> Result<bool> {
    let mut models: Vec<Box<dyn BlockModel>> = Vec::new();
    for name in &options.cpu {
        let profile = Profile::find(name).with_context(|| format!("--cpu {name}"))?;
        for model in [Clock::Flat, Clock::Core].into_iter().filter_map(|clock| OfProfile::new(&profile, clock)) {
            models.push(Box::new(model));
        }
    }
    let mut corpus = match &options.against {
        Some(file) => Corpus::load(file)?,
        None => measure(options)?,
    };
    if let Some(file) = &options.save {
        corpus.save(file)?;
    }
    if let Some(source) = &options.source {
        corpus.blocks.retain(|block| block.source == *source);
    }
    if corpus.blocks.is_empty() {
        bail!("no block was measured; failures: {:?}", corpus.failures);
    }
    let blocks = corpus.blocks.iter().map(|block| Ok(block.block()?)).collect::<Result<Vec<Block>>>()?;
    let pairs: Vec<_> = blocks.iter().zip(&corpus.blocks).map(|(block, m)| (block, m.cycles)).collect();
    let constant = Constant::fitted(&pairs);
    let constant_name = format!("constant {:.2}", constant.0);
    let mut compared = Vec::new();
    for model in &models {
        let figures = priced(model.as_ref(), &blocks);
        compared.extend(compare(model.name(), &corpus, &blocks, &figures, options.show));
    }
    if options.mca != "none" {
        let code: Vec<_> = blocks.iter().map(Block::instructions).collect();
        match mca::cycles(&options.mca_program, &options.mca, &code) {
            Ok(figures) => compared.extend(compare("llvm-mca", &corpus, &blocks, &figures, options.show)),
            Err(error) => eprintln!("difftest: without llvm-mca: {error}"),
        }
    }
    let figures = priced(&constant, &blocks);
    compared.extend(compare(&constant_name, &corpus, &blocks, &figures, 0));
    let report = Report {
        processor: &corpus.processor,
        seed: corpus.seed,
        measured: blocks.len(),
        failures: &corpus.failures,
        models: compared,
    };
    if options.json {
        serde_json::to_writer_pretty(std::io::stdout().lock(), &report)?;
        println!();
    } else {
        print(&report)?;
    }
    Ok(true)
}

/// Chooses and measures blocks.
fn measure(options: &TimingOptions) -> Result<Corpus> {
    let (forms, _) = forms::forms(64);
    let programs = if options.elf.is_empty() { silicon::sample::usual_programs() } else { options.elf.clone() };
    let chosen = sample::choose(options.seed, &forms, options.random, &programs, options.blocks)?;
    let mut corpus = Corpus::new(Processor::of_host(), options.seed);
    let progress = std::io::stderr().is_terminal();
    let how = silicon::Options::default();
    for (n, (source, block)) in chosen.iter().enumerate() {
        match silicon::measure::measure_block(block, &how) {
            Ok(figure) => corpus.blocks.push(Measured {
                source: source.clone(),
                code: hexadecimal(block.instructions())?,
                cycles: figure.cycles,
                interval: figure.interval,
            }),
            Err(failure) => corpus.failed(&failure),
        }
        if progress && n % 16 == 0 {
            eprint!("\r{n} of {} blocks ", chosen.len());
        }
    }
    if progress {
        eprintln!();
    }
    Ok(corpus)
}

/// Returns a model's figures.
fn priced(model: &dyn BlockModel, blocks: &[Block]) -> Vec<Option<f64>> {
    blocks.iter().map(|block| Some(model.cycles(block.instructions()))).collect()
}

fn compare(name: &str, corpus: &Corpus, blocks: &[Block], figures: &[Option<f64>], show: usize) -> Option<Compared> {
    let rows = || {
        let known = blocks.iter().zip(&corpus.blocks).zip(figures);
        known.filter_map(|((block, measured), figure)| Some((block, measured, (*figure)?)))
    };
    let family = |block: &Block| silicon::family::Family::of(block.instructions()).name();
    let pair = |measured: &Measured, figure| (figure, measured.cycles);
    let all = Score::of(&rows().map(|(_, m, figure)| pair(m, figure)).collect::<Vec<_>>())?;
    let by_source = model::by_group(rows().map(|(_, m, figure)| (m.source.clone(), pair(m, figure))));
    let by_family = model::by_group(rows().map(|(b, m, figure)| (family(b).to_string(), pair(m, figure))));
    let mut order: Vec<_> = rows().collect();
    let distance = |(_, m, figure): &(&Block, &Measured, f64)| (figure.max(1e-3) / m.cycles).ln().abs();
    order.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    let worst = order.into_iter().take(show).map(|(block, measured, figure)| Worst {
        source: measured.source.clone(),
        family: family(block),
        measured: measured.cycles,
        model: figure,
        code: measured.code.clone(),
        instructions: block.instructions().iter().map(shown).collect(),
    });
    let worst = worst.collect();
    Some(Compared { model: name.to_string(), all, by_source, by_family, worst })
}

fn shown(instruction: &iced_x86::Instruction) -> String {
    let mut text = String::new();
    GasFormatter::new().format(instruction, &mut text);
    text
}

fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for model in &report.models {
        if !model.worst.is_empty() {
            writeln!(out, "Worst blocks of {}:", model.model)?;
        }
        for worst in &model.worst {
            writeln!(
                out,
                "  measured {:8.2}  model {:8.2}  {} ({})  {}",
                worst.measured, worst.model, worst.source, worst.family, worst.code
            )?;
            writeln!(out, "      {}", worst.instructions.join("; "))?;
        }
    }
    writeln!(
        out,
        "\n{} (family {:x}h, model {:x}h)",
        report.processor.name, report.processor.family, report.processor.model
    )?;
    let failures: Vec<String> = report.failures.iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(out, "{} blocks measured; without a figure: {}", report.measured, failures.join(", "))?;
    table(&mut out, "source", report, |model| &model.by_source)?;
    table(&mut out, "family", report, |model| &model.by_family)
}

/// Prints the scores of groups: a group's number of blocks, and of each model median error, bias and tau.
fn table(
    out: &mut impl Write,
    what: &str,
    report: &Report,
    of: fn(&Compared) -> &BTreeMap<String, Score>,
) -> Result<()> {
    write!(out, "\n{what:22} {:>6}", "blocks")?;
    for model in &report.models {
        write!(out, "  {:>21}", model.model)?;
    }
    write!(out, "\n{:29}", "")?;
    for _ in &report.models {
        write!(out, "  {:>7} {:>7} {:>5}", "|error|", "bias", "tau")?;
    }
    writeln!(out)?;
    let Some(first) = report.models.last() else { return Ok(()) };
    let mut names: Vec<&String> = of(first).keys().collect();
    names.sort();
    let line = |out: &mut dyn Write, name: &str, score: &dyn Fn(&Compared) -> Option<Score>| -> Result<()> {
        write!(out, "{name:22} {:>6}", score(first).map_or(0, |score| score.blocks))?;
        for model in &report.models {
            match score(model) {
                Some(s) => {
                    let tau = s.tau.map_or("-".to_string(), |tau| format!("{tau:.2}"));
                    write!(out, "  {:>6.1}% {:>+6.1}% {tau:>5}", 100.0 * s.median, 100.0 * s.bias)?;
                }
                None => write!(out, "  {:>21}", "-")?,
            }
        }
        writeln!(out)?;
        Ok(())
    };
    for name in names {
        line(out, name, &|model| of(model).get(name).copied())?;
    }
    line(out, "in all", &|model| Some(model.all))
}
