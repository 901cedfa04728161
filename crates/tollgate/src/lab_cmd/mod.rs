//! `tollgate lab`: experiments, run in parallel, set beside what was published, and held against earlier runs.

mod progress;

use crate::table::{
    Align::{Left, Right},
    emit, number, table, whole_cycles,
};
use crate::tier::TierName;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lab::check::{Document, Limits, Verdict, What};
use lab::experiment::{self, Experiment};
use lab::results::{ExperimentResult, FORMAT};
use lab::runner::{self, Failure, Options};
use lab::{Cell, pattern, report, results, text};
use progress::Progress;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status when a cell failed, or a check found a regression.
const FAILED: u8 = 1;
/// Exit status when the user stopped it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
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
  tollgate lab check baseline.json --limit-cycles 0.5%

Exit status: 0 when every cell ran (and, for check, nothing regressed); 1 when a cell failed or something regressed; 130 when
interrupted; 126 when nothing could be run; 2 when the command line is wrong.")]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the experiments
    List,
    /// Shows an experiment: what it is about, its cells, and the command that runs each
    Show(ShowArgs),
    /// Runs experiments and shows what came out
    Run(RunArgs),
    /// Runs what a baseline has, and names what is done more often or takes longer now
    Check(CheckArgs),
}

#[derive(Args)]
struct ShowArgs {
    /// A name of `tollgate lab list`, or a TOML file
    #[arg(value_name = "NAME")]
    name: String,
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

/// How cells are run.
#[derive(Args)]
struct Common {
    /// Cells at a time (default: the host's processors)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Only these cells: row/column or experiment/row/column, with * and ?
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Where finished cells are kept
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    out: PathBuf,
    /// The directory that guests' images are named from
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Runs cells again that are finished
    #[arg(long)]
    fresh: bool,
    /// What executes the guests' instructions. Results do not depend on it
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if (0.0..1e6).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a percentage from 0, such as 1% or 0.5%".into()),
    }
}

/// Runs the command.
pub fn run(args: &LabArgs) -> Result<ExitCode> {
    match &args.command {
        Command::List => list(),
        Command::Show(show) => {
            emit(&text::description(&Experiment::find(&show.name)?))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(args) => run_experiments(args),
        Command::Check(args) => check(args),
    }
}

fn list() -> Result<ExitCode> {
    let mut rows = Vec::new();
    for name in experiment::names() {
        let experiment = Experiment::named(name)?;
        rows.push(vec![name.to_owned(), number(experiment.cells().len() as u64), experiment.title]);
    }
    let mut out = String::new();
    table(&mut out, &[("name", Left), ("cells", Right), ("title", Left)], &rows);
    emit(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a pattern chooses a cell.
fn chosen(only: Option<&str>, full_id: &str) -> bool {
    let short = full_id.split_once('/').map_or(full_id, |(_, short)| short);
    only.is_none_or(|only| pattern::matches(only, short) || pattern::matches(only, full_id))
}

/// What became of experiments.
struct Ran {
    results: Vec<ExperimentResult>,
    failures: Vec<(String, Failure)>,
    interrupted: bool,
}

/// Runs the cells of experiments that `--only` and `wanted` choose.
fn cells(experiments: &[Experiment], common: &Common, wanted: impl Fn(&Cell) -> bool) -> Result<Ran> {
    let all: Vec<Cell> = experiments.iter().flat_map(Experiment::cells).collect();
    let only = common.only.as_deref();
    let cells: Vec<Cell> = all.into_iter().filter(|cell| chosen(only, &cell.full_id()) && wanted(cell)).collect();
    if cells.is_empty() {
        bail!("no cell is chosen; `tollgate lab show NAME` lists those of an experiment");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let jobs = match common.jobs {
        Some(jobs) => usize::from(jobs),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let options = Options {
        program: std::env::current_exe().context("can't find this program's own file")?,
        root: common.root.clone(),
        out: common.out.clone(),
        jobs,
        fresh: common.fresh,
        tier: common.tier.arguments(),
    };
    let mut progress = Progress::new(cells.len());
    let outcomes = runner::run(&cells, &options, &stop, &mut progress)?;
    drop(progress);
    let named = |experiment: &Experiment| ExperimentResult {
        name: experiment.name.clone(),
        file: experiment.file.clone(),
        cells: Vec::new(),
    };
    let mut ran = Ran {
        results: experiments.iter().map(named).collect(),
        failures: Vec::new(),
        interrupted: stop.load(Ordering::Relaxed),
    };
    for (cell, outcome) in cells.iter().zip(&outcomes) {
        if *outcome == runner::Outcome::Interrupted {
            continue;
        }
        let (result, failure) = results::cell(cell, outcome);
        let at = experiments.iter().position(|experiment| std::ptr::eq(experiment, cell.experiment));
        if let Some(at) = at {
            ran.results[at].cells.push(result);
        }
        ran.failures.extend(failure.map(|failure| (cell.full_id(), failure)));
    }
    Ok(ran)
}

impl Ran {
    /// Names the cells that failed on standard error, and gives the exit status.
    fn status(&self, otherwise: u8) -> ExitCode {
        for (cell, failure) in &self.failures {
            eprintln!("tollgate: {cell} {}", failure.reason);
            for line in &failure.tail {
                eprintln!("    | {line}");
            }
        }
        if self.interrupted {
            eprintln!("tollgate: interrupted; finished cells are kept");
            return ExitCode::from(INTERRUPTED);
        }
        ExitCode::from(if self.failures.is_empty() { otherwise } else { FAILED })
    }
}

fn run_experiments(args: &RunArgs) -> Result<ExitCode> {
    let names: Vec<&str> = match args.all {
        true => experiment::names().collect(),
        false => args.names.iter().map(String::as_str).collect(),
    };
    let experiments = names.into_iter().map(Experiment::find).collect::<Result<Vec<_>, _>>()?;
    let ran = cells(&experiments, &args.common, |_| true)?;
    if args.json {
        emit(&format!("{:#}\n", report::document(&experiments, &ran.results)))?;
    } else {
        let mut out = String::new();
        let shown = experiments.iter().zip(&ran.results).filter(|(_, result)| !result.cells.is_empty());
        for (experiment, result) in shown {
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            out.push_str(&match args.markdown {
                true => report::markdown(experiment, result, args.top),
                false => text::report(experiment, result, args.top),
            });
        }
        emit(&out)?;
    }
    if let Some(path) = &args.html {
        write_html(path, &report::html(&experiments, &ran.results)?)?;
    }
    Ok(ran.status(0))
}

/// Writes a report beside its name and moves it there once it is whole.
fn write_html(path: &Path, html: &str) -> Result<()> {
    let temporary = path.with_added_extension(format!("partial-{}", std::process::id()));
    let written = std::fs::write(&temporary, html).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // It may not even have come into being.
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(|| format!("can't write the report {}", path.display()))
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let bytes = crate::input::read(&args.baseline, LARGEST_BASELINE)?;
    let name = || args.baseline.display().to_string();
    let text = String::from_utf8(bytes).with_context(name)?;
    let baseline = Document::read(&text).with_context(name)?;
    let find = |result: &ExperimentResult| Experiment::find(result.file.as_deref().unwrap_or(&result.name));
    let experiments = baseline.experiments.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let known = |cell: &Cell| {
        let same = |result: &&ExperimentResult| result.name == cell.experiment.name;
        let result = baseline.experiments.iter().find(same);
        result.is_some_and(|result| result.cells.iter().any(|c| c.measured.is_some() && c.id() == cell.id()))
    };
    let ran = cells(&experiments, &args.common, known)?;
    let limits = Limits { counts: args.limit_counts, cycles: args.limit_cycles };
    let only = args.common.only.as_deref();
    let verdict = lab::check::check(&baseline.experiments, &ran.results, limits, |id| chosen(only, id));
    if args.json {
        emit(&format!("{:#}\n", verdict_document(&verdict)))?;
    } else if !ran.interrupted {
        emit(&verdict_text(&verdict, args.top))?;
    }
    let good = verdict.regressions.is_empty() && verdict.missing.is_empty();
    Ok(ran.status(if good { 0 } else { FAILED }))
}

fn growth(what: What, before: u64, after: u64) -> [String; 3] {
    let shown = |value: u64| match what {
        What::Count => number(value),
        What::Cycles => number(whole_cycles(value)),
    };
    [shown(before), shown(after), crate::table::change(before, after)]
}

fn verdict_text(verdict: &Verdict, top: usize) -> String {
    let mut out = String::new();
    let mut rows = Vec::new();
    let mut shown: (&str, usize) = ("", 0);
    let mut more = 0;
    for regression in &verdict.regressions {
        shown = if shown.0 == regression.cell { (shown.0, shown.1 + 1) } else { (&regression.cell, 1) };
        if top != 0 && shown.1 > top {
            more += 1;
            continue;
        }
        let what = if regression.what == What::Count { "count" } else { "cycles" };
        let [before, after, change] = growth(regression.what, regression.before, regression.after);
        let entry = format!("{}: {}", regression.list, regression.name);
        rows.push(vec![regression.cell.clone(), what.to_owned(), before, after, change, entry]);
    }
    if !rows.is_empty() {
        let headings =
            [("cell", Left), ("what", Left), ("baseline", Right), ("now", Right), ("", Right), ("entry", Left)];
        table(&mut out, &headings, &rows);
        if more != 0 {
            out.push_str(&format!("and {} more (--top 0 shows all)\n", number(more)));
        }
        out.push('\n');
    }
    for (cell, reason) in &verdict.missing {
        out.push_str(&format!("{cell} has no result now: {reason}\n"));
    }
    out.push_str(&format!(
        "{} cells, {} entries compared: {} regressions, {} entries improved, {} cells missing\n",
        verdict.cells,
        number(verdict.entries as u64),
        number(verdict.regressions.len() as u64),
        number(verdict.improved as u64),
        verdict.missing.len()
    ));
    out
}

fn verdict_document(verdict: &Verdict) -> serde_json::Value {
    let regressions = verdict.regressions.iter().map(|r| {
        let what = if r.what == What::Count { "count" } else { "ticks" };
        json!({ "cell": r.cell, "list": r.list, "name": r.name, "what": what, "before": r.before, "after": r.after })
    });
    let missing = verdict.missing.iter().map(|(cell, reason)| json!({ "cell": cell, "reason": reason }));
    json!({
        "format": FORMAT,
        "cells": verdict.cells,
        "entries": verdict.entries,
        "improved": verdict.improved,
        "regressions": regressions.collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
    })
}
