//! `tollgate lab`: runs experiments in parallel, and compares them with published figures and with earlier runs.

mod cells;
mod guests;
mod kernels;
mod progress;
mod score;
mod settings;
mod verdict;

use crate::forms::{self, Forms, Target, form};
use crate::output::{self, OutputFile};
use crate::size::size_text;
use crate::table::{
    Align::{Left, Right},
    counted, emit, number, table,
};
use crate::tier::TierName;
use crate::usage::WrongArguments;
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use lab::check::{Document, Limits};
use lab::experiment::{self, Experiment};
use lab::results::ExperimentResult;
use lab::size::parse_size;
use lab::store::{Images, Pruned, Pruning, Size, Store};
use lab::{Cell, layouts, report, text};
use ledger::profile::Clock;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status if a cell failed, or a check found a regression.
const FAILED: u8 = 1;
/// Default directory for cells.
const OUT: &str = "target/lab";
/// Default size limit of that directory in bytes: the cells of about ten versions of the program.
const KEEP: u64 = 1 << 30;
/// Largest number of layouts.
const MOST_LAYOUTS: i64 = 100;
/// Largest baseline in bytes.
const LARGEST_BASELINE: u64 = 256 << 20;

/// Runs experiments: a matrix of configurations over workloads, beside published figures.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate lab list
  tollgate lab run pv-cr3 --html pv-cr3.html
  tollgate lab run --all --jobs 8 --json=baseline.json
  tollgate lab run pv-cr3 cr0-wp --markdown=cells.md --csv=cells.csv
  tollgate lab run cr0-wp --only 'queue/*'
  tollgate lab run qdisc --layouts 6
  tollgate lab run udp-rx --kernel amd64 --kernel ~/net-next
  tollgate lab run ./nested.toml --kernel cloud --kernel ~/kvm --layouts 6 --functions 'kvm_*'
  tollgate lab run ./mine.toml
  tollgate lab run --all --on slurm --sbatch '--partition=short --mem=4G' --out /shared/lab
  tollgate lab check baseline.json --limit-cycles 0.5%
  tollgate lab score baseline.json
  tollgate lab prune --older-than 30 --dry-run

Exit status:
  0    every cell ran and, for check, nothing regressed
  1    a cell failed, or something regressed
  2    invalid command line
  126  nothing could run, for example because guest images are missing
  130  interrupted (a second Ctrl-C ends the laboratory at once)")]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the experiments
    List(ListArgs),
    /// Shows an experiment: its description, its cells, and the command of each cell
    Show(ShowArgs),
    /// Runs experiments and shows their results
    Run(RunArgs),
    /// Runs the cells of a baseline again, and lists the counts and costs that have grown
    Check(CheckArgs),
    /// Says how far results are from the published figures
    Score(score::ScoreArgs),
    /// Removes kept cells by age or size
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
    /// Name from `tollgate lab list`, or TOML file
    #[arg(value_name = "NAME")]
    name: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArgs {
    /// Names from `tollgate lab list`, or TOML files
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Runs all experiments of `tollgate lab list`
    #[arg(long)]
    all: bool,
    /// Runs the columns with this kernel in place of the experiment's own: the name of a packaged kernel, a package, or a tree in which a kernel was built; patches follow after colons
    /// (`cloud:0001.patch`). May be repeated
    #[arg(long, value_name = "KERNEL", value_parser = kernels::Wanted::parse)]
    kernel: Vec<kernels::Wanted>,
    /// Runs each cell in this number of layouts, each with 1 MiB of memory more than the one before, and shows means with their 95 % intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_LAYOUTS))]
    layouts: u32,
    /// Shows the functions of each pair of cells whose names match this pattern, with the wildcards * and ?, and their sum; with --layouts each difference has its interval.
    /// Comma-separated values do not have them. May be repeated
    #[arg(long, value_name = "PATTERN")]
    functions: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// Prints the complete results as JSON, or writes them to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    json: Option<Target>,
    /// Prints tables in Markdown, or writes them to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    markdown: Option<Target>,
    /// Prints comma-separated values, or writes them to a file: a row for each cell
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    csv: Option<Target>,
    /// Writes a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of lines that explain each difference; 0 for none
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
}

/// A form of the results.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Markdown,
    Csv,
}

#[derive(Args)]
struct CheckArgs {
    /// Output of an earlier `tollgate lab run --json`
    #[arg(value_name = "BASELINE")]
    baseline: PathBuf,
    /// Permitted growth of counts
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = parse_percent)]
    limit_counts: f64,
    /// Permitted growth of cycles
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_percent)]
    limit_cycles: f64,
    #[command(flatten)]
    common: Common,
    /// Prints the findings as JSON
    #[arg(long)]
    json: bool,
    /// Number of regressions shown per cell; 0 for all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

#[derive(Args)]
struct PruneArgs {
    /// Directory of the kept cells
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
    /// Removes the least recently used cells beyond this size; `all` removes none by size (default: 1G unless --older-than is given)
    #[arg(long, value_name = "SIZE", value_parser = parse_keep)]
    keep: Option<Keep>,
    /// Removes cells that were not used for this many days
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u32>,
    /// Removes nothing, and shows the cells that would be removed
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A size limit for kept cells in bytes; `None` for no limit.
#[derive(Clone, Copy)]
struct Keep(Option<u64>);

/// Options for the execution of cells.
#[derive(Args)]
struct Common {
    /// Place of execution: this host, or Slurm array jobs on nodes that share --out and --root. Does not affect the results
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = On::Local)]
    on: On,
    /// Further options of sbatch for --on slurm, such as '--partition=short --mem=4G'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Number of parallel cells (default: the host's processors; with --on slurm as many as Slurm runs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Selects cells: row/column or experiment/row/column, with the wildcards * and ?. May be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Directory for finished cells
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
    /// Size limit for finished cells: after the run, the least recently used cells beyond it are removed, except those of this run.
    /// `all` for no limit
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_keep)]
    keep: Keep,
    /// Base directory of guest images [default: for built-in experiments, the checkout around the current directory or the program, else
    /// the installed share/tollgate; for others, the current directory, or the former if only that has all images]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Runs finished cells again
    #[arg(long)]
    fresh: bool,
    /// Model of time of cells whose experiment names none: flat or core [default: flat]
    #[arg(long, value_name = "MODEL", value_parser = crate::model::parse)]
    model: Option<Clock>,
    /// Tier that executes the guests. Does not affect the results
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
}

/// Place of execution.
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

/// Parses a percentage into a fraction.
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
        Command::Score(args) => score::run(args),
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
    let experiment = settings::named(&args.name)?;
    match args.json {
        true => emit(&format!("{:#}\n", report::description(&experiment)))?,
        false => emit(&text::description(&experiment))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_experiments(args: &RunArgs) -> Result<ExitCode> {
    let files = args.names.iter().map(|name| ("an experiment", PathBuf::from(name)));
    let kernels = args.kernel.iter().flat_map(kernels::Wanted::words).map(|word| ("--kernel", PathBuf::from(word)));
    let forms = [
        form("--json", Kind::Json, &args.json),
        form("--markdown", Kind::Markdown, &args.markdown),
        form("--csv", Kind::Csv, &args.csv),
    ];
    let forms = Forms::new(forms.into_iter().flatten())?;
    if !args.functions.is_empty() && matches!(forms.printed(), Some(Kind::Csv)) {
        bail!(WrongArguments::new(
            "--csv has no functions: write it to a file, by --csv=FILE, or leave out --functions"
        ));
    }
    output::distinct(output::named("--html", &args.html).into_iter().chain(forms.named()), files.chain(kernels))?;
    let names: Vec<&str> = match args.all {
        true => experiment::names().collect(),
        false => args.names.iter().map(String::as_str).collect(),
    };
    let experiments = names.into_iter().map(settings::named).collect::<Result<Vec<_>>>()?;
    let (mut experiments, images) = kernels::over(experiments, &args.kernel, &args.common.out)?;
    model_them(&mut experiments, &args.common);
    let html = args.html.as_deref().map(|path| OutputFile::create(path, "report")).transpose()?;
    let forms = forms.create()?;
    let in_layouts: Vec<Experiment> =
        experiments.iter().flat_map(|experiment| experiment.in_layouts(args.layouts)).collect();
    let mut ran = cells::run(&in_layouts, args.layouts, &args.common, |_| true)?;
    if let Some(images) = images.filter(|_| ran.interrupted.is_none()) {
        // As with cells, the last laboratory to end removes them, and one that can't be removed does no harm.
        images.prune(&Pruning { keep: args.common.keep.0, ..Pruning::default() });
    }
    ran.results = ran.results.chunks(args.layouts as usize).filter_map(layouts::joined).collect();
    let parts = |part: fn(&Experiment, &ExperimentResult, usize, &[String]) -> String| {
        // Tables say no more than the errors if no cell could be run.
        if ran.is_empty() {
            return String::new();
        }
        let shown = experiments.iter().zip(&ran.results).filter(|(_, result)| !result.cells.is_empty());
        let shown = shown.map(|(experiment, result)| part(experiment, result, args.top, &args.functions));
        head(&ran) + &shown.collect::<Vec<_>>().join("\n\n")
    };
    let form = |kind| match kind {
        Kind::Json => {
            Ok(format!("{:#}\n", report::document(&experiments, &ran.results, ran.interrupted, &args.functions)))
        }
        Kind::Markdown => Ok(parts(report::markdown)),
        Kind::Csv => Ok(report::csv(&experiments, &ran.results)),
    };
    forms.show(form, || parts(text::report))?;
    if let Some(file) = html {
        file.write(report::html(&experiments, &ran.results, ran.interrupted)?.as_bytes())?;
    }
    Ok(ran.status(0))
}

/// Gives experiments that name no model of time that of the command line.
fn model_them(experiments: &mut [Experiment], common: &Common) {
    experiments
        .iter_mut()
        .for_each(|experiment| experiment.defaults.model = experiment.defaults.model.or(common.model));
}

/// Returns the text that precedes the results of an interrupted run.
fn head(ran: &cells::Ran) -> String {
    ran.interrupted.map_or_else(String::new, |early| format!("{early}\n\n"))
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let bytes = crate::input::read(&args.baseline, LARGEST_BASELINE)?;
    let baseline = Document::read(&bytes).map_err(|error| anyhow!("{} {error}", args.baseline.display()))?;
    if !baseline.experiments.iter().flat_map(|result| &result.cells).any(|cell| cell.measured.is_some()) {
        bail!(
            "{}: all cells of this baseline have failed, so there is nothing to compare with",
            args.baseline.display()
        );
    }
    let find = |result: &ExperimentResult| settings::find(result.file.as_deref().unwrap_or(&result.name));
    let mut experiments = baseline.experiments.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    model_them(&mut experiments, &args.common);
    let known = |cell: &Cell| {
        let same = |result: &&ExperimentResult| result.name == cell.experiment.name;
        let result = baseline.experiments.iter().find(same);
        result.is_some_and(|result| result.cells.iter().any(|c| c.measured.is_some() && c.id() == cell.id()))
    };
    let ran = cells::run(&experiments, 1, &args.common, known)?;
    let limits = Limits { counts: args.limit_counts, cycles: args.limit_cycles };
    let compared = |id: &str| cells::chosen(&args.common.only, id) && !ran.unfinished.contains(id);
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
    // Without any limit, apply the default of a run.
    let keep = args.keep.or(age.is_none().then_some(Keep(Some(KEEP)))).and_then(|keep| keep.0);
    let pruning = Pruning { keep, age, dry_run: args.dry_run };
    let pruned = match Store::existing(&args.out)? {
        None => Some(Pruned::default()),
        Some(store) => store.prune(&pruning, &BTreeSet::new()),
    };
    let Some(pruned) = pruned else {
        bail!("{} is in use by a running `tollgate lab`", args.out.display());
    };
    let images = Images::existing(&args.out)?.and_then(|images| images.prune(&pruning));
    if args.json {
        let size = |size: Size, of: &str| json!({ of: size.number, "bytes": size.bytes });
        let mut document = json!({
            "dry_run": args.dry_run,
            "removed": size(pruned.removed, "cells"),
            "kept": size(pruned.kept, "cells"),
            "unfinished": pruned.unfinished,
        });
        if let Some(images) = &images {
            document["images"] =
                json!({ "removed": size(images.removed, "images"), "kept": size(images.kept, "images") });
        }
        emit(&format!("{document:#}\n"))?;
    } else {
        let would = if args.dry_run { "would be " } else { "" };
        let line = |pruned: &Pruned, one: &str, several: &str| {
            let size = |size: Size| format!("{} ({})", counted(size.number, one, several), size_text(size.bytes));
            format!("{} {would}removed, {} {would}kept\n", size(pruned.removed), size(pruned.kept))
        };
        let images = images.as_ref().map(|images| line(images, "image of a guest", "images of guests"));
        emit(&(line(&pruned, "cell", "cells") + &images.unwrap_or_default()))?;
    }
    match pruned.failed.or_else(|| images.and_then(|images| images.failed)) {
        Some(failed) => bail!("can't remove {failed}"),
        None => Ok(ExitCode::SUCCESS),
    }
}
