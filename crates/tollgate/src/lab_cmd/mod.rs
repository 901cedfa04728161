//! `tollgate lab`: experiments, run in parallel, set beside what was published, and held against earlier runs.

mod cells;
mod progress;
mod verdict;

use crate::output::OutputFile;
use crate::size::{parse_size, size_text};
use crate::table::{
    Align::{Left, Right},
    emit, number, table,
};
use crate::tier::TierName;
use anyhow::{Result, anyhow, bail};
pub use cells::stop_on_signals;
use clap::{Args, Subcommand, ValueEnum};
use lab::check::{Document, Limits};
use lab::experiment::{self, Experiment};
use lab::results::ExperimentResult;
use lab::store::{Pruned, Pruning, Size, Store};
use lab::{Cell, report, text};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status when a cell failed, or a check found a regression.
const FAILED: u8 = 1;
/// Exit status when the user stopped it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Where cells are kept.
const OUT: &str = "target/lab";
/// How many bytes of them, unless the user says otherwise: the cells of some ten versions of the program.
const KEEP: u64 = 1 << 30;
/// The largest baseline.
const LARGEST_BASELINE: u64 = 256 << 20;

/// Runs experiments: a matrix of configurations over workloads, beside published figures.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate lab list
  tollgate lab run pv-cr3 --html pv-cr3.html
  tollgate lab run --all --jobs 8 --json > baseline.json
  tollgate lab run cr0-wp --only 'queue/*'
  tollgate lab run ./mine.toml
  tollgate lab run --all --on slurm --sbatch '--partition=short --mem=4G' --out /shared/lab
  tollgate lab check baseline.json --limit-cycles 0.5%
  tollgate lab prune --older-than 30 --dry-run

Exit status: 0 when every cell ran (and, for check, nothing regressed); 1 when a cell failed or something regressed; 130 when
interrupted (a second Ctrl-C ends it at once); 126 when nothing could be run, for want of its guests too; 2 when the command line is wrong.")]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the experiments
    List(ListArgs),
    /// Shows an experiment: what it is about, its cells, and the command that runs each
    Show(ShowArgs),
    /// Runs experiments and shows what came out
    Run(RunArgs),
    /// Runs what a baseline has, and names what is done more often or takes longer now
    Check(CheckArgs),
    /// Removes kept cells: those used least recently, or not for long
    Prune(PruneArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArgs {
    /// A name of `tollgate lab list`, or a TOML file
    #[arg(value_name = "NAME")]
    name: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArgs {
    /// Names of `tollgate lab list`, or TOML files
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All experiments of `tollgate lab list`
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    common: Common,
    /// Prints everything as JSON
    #[arg(long)]
    json: bool,
    /// Prints tables in Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Writes a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Lines that explain each difference; 0 for none
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
}

#[derive(Args)]
struct CheckArgs {
    /// What `tollgate lab run --json` printed
    #[arg(value_name = "BASELINE")]
    baseline: PathBuf,
    /// By how much counts may grow
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = parse_percent)]
    limit_counts: f64,
    /// By how much cycles may grow
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_percent)]
    limit_cycles: f64,
    #[command(flatten)]
    common: Common,
    /// Prints what was found as JSON
    #[arg(long)]
    json: bool,
    /// Regressions shown for each cell; 0 for all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

#[derive(Args)]
struct PruneArgs {
    /// Where cells are kept
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
    /// Removes the least recently used until so much is left, `all` for none (default: 1G unless --older-than is given)
    #[arg(long, value_name = "SIZE", value_parser = parse_keep)]
    keep: Option<Keep>,
    /// Removes those that were not used for so many days
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u32>,
    /// Removes nothing, and says what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// How many bytes of cells are kept; `None` for all.
#[derive(Clone, Copy)]
struct Keep(Option<u64>);

/// How cells are run.
#[derive(Args)]
struct Common {
    /// Where cells run: on this host, or as array jobs of Slurm on nodes that share --out and --root. Results do not depend on it
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = On::Local)]
    on: On,
    /// Options of sbatch for --on slurm, such as '--partition=short --mem=4G'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Cells at a time (default: the host's processors; with --on slurm as many as Slurm runs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Only these cells: row/column or experiment/row/column, with * and ?
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Where finished cells are kept
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
    /// How much is kept there: after the run the least recently used cells beyond it are removed, but none of this run.
    /// `all` for no limit
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_keep)]
    keep: Keep,
    /// The directory that guests' images are named from [default: for experiments that are built in the checkout that this is called in or
    /// that the program lies in, else /usr/share/tollgate; for others the directory that this is called in]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Runs cells again that are finished
    #[arg(long)]
    fresh: bool,
    /// What executes the guests' instructions. Results do not depend on it
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
}

/// Where cells run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    /// On this host
    Local,
    /// On the nodes of a cluster
    Slurm,
}

fn parse_keep(text: &str) -> Result<Keep, String> {
    match text {
        "all" => Ok(Keep(None)),
        _ => parse_size(text).map(|bytes| Keep(Some(bytes))).map_err(|error| format!("{error}, or all")),
    }
}

/// A percentage, as a part.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if (0.0..1e6).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a percentage from 0, such as 1% or 0.5%".into()),
    }
}

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args.json),
        Command::Show(args) => show(args),
        Command::Run(args) => run_experiments(args),
        Command::Check(args) => check(args),
        Command::Prune(args) => prune(args),
    }
}

fn list(json: bool) -> Result<ExitCode> {
    let experiments = experiment::names().map(Experiment::named).collect::<Result<Vec<_>, _>>()?;
    if json {
        let each = experiments.iter().map(|experiment| {
            json!({ "name": experiment.name, "title": experiment.title, "cells": experiment.cells().len() })
        });
        emit(&format!("{:#}\n", each.collect::<serde_json::Value>()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |experiment: &Experiment| {
        let cells = number(experiment.cells().len() as u64);
        vec![experiment.name.clone(), cells, experiment.title.clone()]
    };
    let mut out = String::new();
    let rows: Vec<Vec<String>> = experiments.iter().map(row).collect();
    table(&mut out, &[("name", Left), ("cells", Right), ("title", Left)], &rows);
    emit(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Result<ExitCode> {
    let experiment = Experiment::find(&args.name)?;
    match args.json {
        true => emit(&format!("{:#}\n", report::description(&experiment)))?,
        false => emit(&text::description(&experiment))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_experiments(args: &RunArgs) -> Result<ExitCode> {
    let names: Vec<&str> = match args.all {
        true => experiment::names().collect(),
        false => args.names.iter().map(String::as_str).collect(),
    };
    let experiments = names.into_iter().map(Experiment::find).collect::<Result<Vec<_>, _>>()?;
    let html = args.html.as_deref().map(|path| OutputFile::create(path, "report")).transpose()?;
    let ran = cells::run(&experiments, &args.common, |_| true)?;
    if args.json {
        emit(&format!("{:#}\n", report::document(&experiments, &ran.results, ran.interrupted)))?;
    } else {
        let shown = experiments.iter().zip(&ran.results).filter(|(_, result)| !result.cells.is_empty());
        let parts: Vec<String> = shown
            .map(|(experiment, result)| match args.markdown {
                true => report::markdown(experiment, result, args.top),
                false => text::report(experiment, result, args.top),
            })
            .collect();
        emit(&(head(&ran) + &parts.join("\n\n")))?;
    }
    if let Some(file) = html {
        file.write(report::html(&experiments, &ran.results, ran.interrupted)?.as_bytes())?;
    }
    Ok(ran.status(0))
}

/// What comes before the results of a run that was interrupted.
fn head(ran: &cells::Ran) -> String {
    ran.interrupted.map_or_else(String::new, |early| format!("{early}\n\n"))
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let bytes = crate::input::read(&args.baseline, LARGEST_BASELINE)?;
    let baseline = Document::read(&bytes).map_err(|error| anyhow!("{} {error}", args.baseline.display()))?;
    let find = |result: &ExperimentResult| Experiment::find(result.file.as_deref().unwrap_or(&result.name));
    let experiments = baseline.experiments.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let known = |cell: &Cell| {
        let same = |result: &&ExperimentResult| result.name == cell.experiment.name;
        let result = baseline.experiments.iter().find(same);
        result.is_some_and(|result| result.cells.iter().any(|c| c.measured.is_some() && c.id() == cell.id()))
    };
    let ran = cells::run(&experiments, &args.common, known)?;
    let limits = Limits { counts: args.limit_counts, cycles: args.limit_cycles };
    let only = args.common.only.as_deref();
    let compared = |id: &str| cells::chosen(only, id) && !ran.unfinished.contains(id);
    let verdict = lab::check::check(&baseline.experiments, &ran.results, limits, compared);
    if args.json {
        emit(&format!("{:#}\n", verdict::document(&verdict, ran.interrupted)))?;
    } else {
        emit(&(head(&ran) + &verdict::text(&verdict, args.top)))?;
    }
    let good = verdict.regressions.is_empty() && verdict.missing.is_empty();
    Ok(ran.status(if good { 0 } else { FAILED }))
}

fn prune(args: &PruneArgs) -> Result<ExitCode> {
    let day = Duration::from_secs(24 * 60 * 60);
    let age = args.older_than.map(|days| day * days);
    // Without any limit, what a run would do.
    let keep = args.keep.or(age.is_none().then_some(Keep(Some(KEEP)))).and_then(|keep| keep.0);
    let pruning = Pruning { keep, age, dry_run: args.dry_run };
    let pruned = match Store::existing(&args.out)? {
        None => Some(Pruned::default()),
        Some(store) => store.prune(&pruning, &BTreeSet::new()),
    };
    let Some(pruned) = pruned else {
        bail!("{} is in use by a `tollgate lab` that runs", args.out.display());
    };
    let (removed, kept) = (pruned.removed, pruned.kept);
    if args.json {
        let size = |size: Size| json!({ "cells": size.cells, "bytes": size.bytes });
        let document = json!({
            "dry_run": args.dry_run,
            "removed": size(removed),
            "kept": size(kept),
            "unfinished": pruned.unfinished,
        });
        emit(&format!("{document:#}\n"))?;
    } else {
        let size = |size: Size| format!("{} cells ({})", size.cells, size_text(size.bytes));
        let would = if args.dry_run { "would be " } else { "" };
        emit(&format!("{} {would}removed, {} {would}kept\n", size(removed), size(kept)))?;
    }
    match pruned.failed {
        Some(failed) => bail!("can't remove {failed}"),
        None => Ok(ExitCode::SUCCESS),
    }
}
