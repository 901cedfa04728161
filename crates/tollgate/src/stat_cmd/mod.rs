//! `tollgate stat`: counts what a command does, in the form of `perf stat`.

pub(crate) mod options;

use crate::exec_cmd::{Kernel, command_text, parameters};
use crate::exec_runs::{self, Place};
use crate::forms::{self, Forms, Target, form};
use crate::identity::RELEASE;
use crate::model;
use crate::output::{self, say};
use crate::stop::{INTERRUPTED, Stop};
use crate::table::{counted, read_ledger};
use crate::top_down;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use lab::diff::runner::{self, Ended, Job, Limits};
use lab::stat::{Run, Stat, Subject};
use options::Passed;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Counts what a command does in a guest kernel, as `perf stat` does on a processor: cycles, instructions, branches, misses, crossings.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate stat -- gzip -9c README.md
  tollgate stat -r 6 -- hackbench -g 1 -l 20
  tollgate stat --model core --cpu zen3 -- openssl speed -seconds 1 sha256
  tollgate stat --json -r 6 -- ./benchmark | jq '.counters[] | {name, value, deviation}'
  tollgate stat --csv=counters.csv -r 6 -- ./benchmark

Counts are of the command's own tasks, in user mode and in the kernel. Interrupts and other tasks have a line of their own. The surroundings of the command are those of `tollgate diff`, and its output is not shown.

Exit status: 0 on success, the command's if it fails, 130 after an interruption (the counts are then those of the layouts that are complete), and otherwise that of `tollgate exec`.")]
pub struct StatArgs {
    /// Repeats the run under N layouts, with seeds from --seed on, and prints means with the standard error
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Seed of the first layout [default: none for one run, else 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of parallel runs [default: the host's processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Starts the command once only the kernel's idle tasks have run for this many seconds of virtual time
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = crate::run_cmd::parse_seconds)]
    settle: Duration,
    /// Prints the complete result as JSON, or writes it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    json: Option<Target>,
    /// Prints comma-separated values, or writes them to a file: a row for each layout, a column for each counter
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    csv: Option<Target>,
    /// Keeps the ledgers and the command's output in a directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    passed: Passed,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// A form of the result.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Csv,
}

/// Runs the command.
pub fn run(args: &StatArgs) -> Result<ExitCode> {
    exec_runs::check(&args.passed.words)?;
    let forms = [form("--json", Kind::Json, &args.json), form("--csv", Kind::Csv, &args.csv)];
    let forms = Forms::new(forms.into_iter().flatten())?;
    output::distinct(forms.named(), exec_runs::inputs(&args.passed.words, &args.command))?;
    let forms = forms.create()?;
    // A kernel is fetched once, and a missing kernel is not a failure of the command.
    Kernel::find(args.passed.value("kernel"), args.passed.value("modules"))?;
    crate::exec_cmd::remark_boots();
    let clock = args.passed.value("model").map(model::parse).transpose().map_err(|error| anyhow!(error))?;
    let profile = model::profile(args.passed.value("cpu").unwrap_or(crate::exec_cmd::CPU), clock)?;
    let stop = Stop::on_signals("no result is shown").context("signals can't be caught")?;
    let place = Place::new("stat", args.keep.as_deref(), &stop)?;
    let most = args.jobs.map(usize::from);
    let most = most.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let drawn = args.repeat > 1 || args.seed.is_some();
    let seed = |number: u16| drawn.then(|| args.seed.unwrap_or(1).wrapping_add(u64::from(number)));
    let seeds: Vec<Option<u64>> = (0..args.repeat).map(seed).collect();
    let file = |seed: Option<u64>, kind: &str| {
        place.path.join(format!("stat{}.{kind}", seed.map_or_else(String::new, |seed| format!("-{seed}"))))
    };
    let ledgers: Vec<PathBuf> = seeds.iter().map(|seed| file(*seed, "ledger")).collect();
    ledgers.iter().try_for_each(|ledger| exec_runs::make_way(ledger))?;
    let job = |(seed, ledger): (&Option<u64>, &PathBuf)| {
        let given = exec_runs::Given { options: &args.passed.words, settle: args.settle, sample: None, seed: *seed };
        Job { arguments: given.arguments(ledger, &args.command), output: file(*seed, "output"), leads: true }
    };
    let jobs: Vec<Job> = seeds.iter().zip(&ledgers).map(job).collect();
    let limits = Limits { most, stop: &stop, until: None };
    let outcomes = runner::run(&program, &jobs, &place.path, limits, &mut |_| ());
    let outcomes = outcomes.map_err(|error| exec_runs::not_executed(&program, &error))?;
    let name = |number: usize| seeds[number].map_or_else(String::new, |seed| format!("seed {seed}: "));
    let named = |number| format!("{}{}", name(number), command_text(&args.command));
    let complete = outcomes.iter().take_while(|outcome| **outcome == Ended::Well).count();
    let failed = exec_runs::failed(&outcomes, named, |number| &ledgers[number]);
    let interrupted = failed.as_ref().is_some_and(|failed| failed.interrupted) && complete > 0;
    if let Some(failed) = failed.filter(|_| !interrupted) {
        failed.report();
        return Ok(ExitCode::from(failed.status));
    }
    let mut runs = Vec::new();
    let mut kernel = None;
    for (seed, path) in seeds.iter().copied().zip(&ledgers).take(complete) {
        let ledger = read_ledger(path)?;
        let fact = |key: &str| ledger.header.metadata.get(key);
        if runs.is_empty() {
            kernel = fact(RELEASE).cloned();
            let words = fact(parameters::UNKNOWN).into_iter().flat_map(|words| words.split(' ')).map(str::to_owned);
            let appended = args.passed.value("append").unwrap_or_default().split_whitespace();
            let warnings = parameters::warnings(&words.collect::<Vec<_>>()).into_iter();
            warnings
                .chain(parameters::of_values(appended, kernel.as_deref()))
                .for_each(|text| say(&format!("tollgate: {text}")));
        }
        runs.push(Run::of(&ledger, seed, top_down::slot_of(&ledger)).with_context(|| command_text(&args.command))?);
    }
    let subject = Subject {
        command: command_text(&args.command),
        processor: profile.title.clone(),
        profile: profile.name.clone(),
        model: profile.clock.name(),
        kernel,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let stat = Stat::new(subject, profile.tsc_hz.value, profile.clock, &runs);
    drop(place);
    stop.shows();
    let form = |kind| match kind {
        Kind::Json => {
            let document = serde_json::to_value(&stat).context("can't write the result as JSON")?;
            Ok(format!("{document:#}\n"))
        }
        Kind::Csv => Ok(stat.csv()),
    };
    forms.show(form, || stat.text())?;
    if interrupted {
        say(&format!("tollgate: interrupted after {complete} of {}", counted(seeds.len(), "layout", "layouts")));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}
