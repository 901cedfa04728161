//! The runs of a diff. Each is a separate `tollgate exec`, whose ledger has the costs.

use super::DiffArgs;
use crate::exec_cmd::{DIRECTORY, Kernel, SETTLED, command_text, parameters};
use crate::output::say;
use crate::table::read_ledger;
use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use lab::diff::paid::COMMAND;
use lab::diff::runner::{self, Ended, Job};
use lab::diff::{Paid, Run, Runs};
use lab::flame::Folded;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Exit status after an interruption by the user: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Names of the two sides.
const NAMES: [&str; 2] = ["A", "B"];

/// The outcome of all runs.
pub enum Measured {
    /// The runs of A and B, and what a reader must know about them.
    Both(Runs, Runs, Vec<String>),
    /// The exit status after a failure, which has been reported.
    Ended(u8),
}

/// One side of the comparison.
struct Side {
    title: String,
    /// Options of `tollgate exec`.
    options: Vec<OsString>,
}

impl Side {
    fn new(args: &DiffArgs, side: usize) -> Result<Self> {
        let given = args.kernels.get(side).map(|name| name.to_string_lossy().into_owned());
        let given = given.or_else(|| args.sides.kernel(side).map(str::to_owned));
        // A kernel is fetched once, and a missing kernel is not a failure of the command.
        let kernel = Kernel::find(given.as_deref())?;
        let mut options = [args.sides.common.clone(), args.sides.own[side].clone()].concat();
        options.retain(|option| !option.to_string_lossy().starts_with("--kernel="));
        options.extend(given.iter().map(|name| OsString::from(format!("--kernel={name}"))));
        let words = [&args.a, &args.b][side].trim();
        if !words.is_empty() {
            append(&mut options, words);
        }
        let name = given.unwrap_or_else(|| kernel.image.display().to_string());
        let mut parts = vec![name];
        parts.extend(args.sides.differing(side));
        parts.extend((!words.is_empty()).then(|| words.to_owned()));
        Ok(Self { title: parts.join(", "), options })
    }
}

/// Appends words to the kernel's command line, after the user's.
fn append(options: &mut Vec<OsString>, words: &str) {
    const OPTION: &str = "--append=";
    let mut all = String::new();
    options.retain(|option| {
        let text = option.to_string_lossy();
        let given = text.strip_prefix(OPTION);
        all.extend(given.map(|given| format!("{given} ")));
        given.is_none()
    });
    options.push(format!("{OPTION}{all}{words}").into());
}

/// The directory for the files of the runs: the user's, or a temporary one that is removed at the end.
struct Place {
    path: PathBuf,
    kept: bool,
}

impl Place {
    fn new(keep: Option<&Path>) -> Result<Self> {
        let own = || std::env::temp_dir().join(format!("tollgate-diff-{}", std::process::id()));
        let path = keep.map_or_else(own, Path::to_path_buf);
        std::fs::create_dir_all(&path).with_context(|| format!("can't make the directory {}", path.display()))?;
        Ok(Self { path, kept: keep.is_some() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            // The rest of a temporary directory does no harm.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A run of one side under one layout.
struct Planned {
    side: usize,
    seed: Option<u64>,
    ledger: PathBuf,
    job: Job,
}

fn plan(args: &DiffArgs, sides: &[Side; 2], place: &Place) -> Vec<Planned> {
    let seeds: Vec<Option<u64>> = match (args.vary, args.seed) {
        (Some(count), first) => (0..u64::from(count)).map(|n| Some(first.unwrap_or(1).wrapping_add(n))).collect(),
        (None, seed) => vec![seed],
    };
    let one = |seed: Option<u64>, side: usize| {
        let layout = seed.map_or_else(String::new, |seed| format!("-{seed}"));
        let file = |kind: &str| place.path.join(format!("{}{layout}.{kind}", NAMES[side].to_lowercase()));
        let ledger = file("ledger");
        let mut arguments: Vec<OsString> = vec!["exec".into()];
        arguments.extend(sides[side].options.iter().cloned());
        arguments.push(format!("--settle={}", args.settle.as_secs_f64()).into());
        arguments.push("--controlled".into());
        arguments.extend(args.sample.iter().map(|interval| OsString::from(format!("--sample={interval}"))));
        arguments.extend(seed.map(|seed| OsString::from(format!("--seed={seed}"))));
        arguments.extend([OsStr::new("--ledger"), ledger.as_os_str(), OsStr::new("--")].map(OsStr::to_owned));
        arguments.extend(args.command.iter().cloned());
        Planned { side, seed, ledger, job: Job { arguments, output: file("output") } }
    };
    seeds.into_iter().flat_map(|seed| [one(seed, 0), one(seed, 1)]).collect()
}

/// Adds what a reader of the result must know about a run.
fn remark(ledger: &ledger::Ledger, side: usize, remarks: &mut Vec<String>) {
    let fact = |key: &str| ledger.header.metadata.get(key);
    let words = fact(parameters::UNKNOWN).into_iter().flat_map(|words| words.split(' ')).map(str::to_owned);
    let unknown = parameters::warnings(&words.collect::<Vec<_>>());
    let unknown = unknown.into_iter().map(|text| format!("{}: {text}", NAMES[side]));
    let place = fact(DIRECTORY).map(|directory| {
        format!("The command depends on the name of its working directory, {directory}: from another one the result may differ.")
    });
    let command = ledger.region(COMMAND).unwrap_or_else(|| ledger.all());
    let unnamed = command.unnamed();
    let unnamed = unnamed.iter().map(|unnamed| {
        let share = crate::table::share(unnamed.ticks, unnamed.of);
        format!("{}: {share} of the command's cycles have no name, {}", NAMES[side], unnamed.describe())
    });
    for text in unknown.chain(place).chain(unnamed) {
        if !remarks.contains(&text) {
            remarks.push(text);
        }
    }
}

/// Reads a run and the frequency of its cycles from its ledger; the stacks only if they are drawn.
fn read(planned: &Planned, draws: bool, remarks: &mut Vec<String>) -> Result<(Run, u64)> {
    let ledger = read_ledger(&planned.ledger)?;
    remark(&ledger, planned.side, remarks);
    let settled = ledger.header.metadata.get(SETTLED).and_then(|text| text.parse().ok());
    let paid = Paid::of(&ledger).with_context(|| planned.ledger.display().to_string())?;
    let settled_after = settled.unwrap_or(f64::INFINITY);
    let stacks = if draws { Folded::of(&ledger, Some(COMMAND)) } else { Folded::default() };
    Ok((Run { seed: planned.seed, paid, stacks, settled_after }, ledger.header.tsc_hz))
}

/// Reports the first run that failed, and returns its exit status.
fn failure(args: &DiffArgs, planned: &[Planned], outcomes: &[Ended]) -> Option<u8> {
    let all = || planned.iter().zip(outcomes);
    let named = |planned: &Planned| {
        let layout = planned.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
        format!("tollgate: {}{layout}: {}", NAMES[planned.side], command_text(&args.command))
    };
    let bad = all().find_map(|(planned, outcome)| match outcome {
        Ended::Badly(status, tail) => {
            Some((format!("{} ended with status {status}", named(planned)), *status, &tail[..]))
        }
        Ended::TooLong => Some((format!("{} printed too much", named(planned)), crate::usage::FAILED, &[][..])),
        Ended::Well | Ended::Stopped => None,
    });
    if let Some((text, status, tail)) = bad {
        say(&text);
        tail.iter().for_each(|line| say(&format!("    | {line}")));
        return Some(status);
    }
    let stopped = all().any(|(_, outcome)| *outcome == Ended::Stopped);
    stopped.then(|| {
        say("tollgate: interrupted");
        INTERRUPTED
    })
}

/// Runs the command on both sides.
pub fn measure(args: &DiffArgs) -> Result<Measured> {
    let sides = [Side::new(args, 0)?, Side::new(args, 1)?];
    let place = Place::new(args.keep.as_deref())?;
    let planned = plan(args, &sides, &place);
    let stop = crate::lab_cmd::stop_on_signals().context("signals can't be caught")?;
    let most = args.jobs.map(usize::from);
    let most = most.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let jobs: Vec<Job> = planned.iter().map(|planned| planned.job.clone()).collect();
    // The bar appears on a terminal only.
    let bar = ProgressBar::new(jobs.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos} of {len} runs, {elapsed}")?);
    bar.tick();
    let outcomes = runner::run(&program, &jobs, &place.path, most, &stop, &mut |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let outcomes = outcomes.map_err(|error| anyhow!("can't execute the runs: {error}"))?;
    if let Some(status) = failure(args, &planned, &outcomes) {
        return Ok(Measured::Ended(status));
    }
    let mut remarks = Vec::new();
    let mut both = sides.map(|side| Runs { title: side.title, tsc_hz: 0, runs: Vec::new() });
    for planned in &planned {
        let (run, tsc_hz) = read(planned, args.html.is_some(), &mut remarks)?;
        both[planned.side].tsc_hz = tsc_hz;
        both[planned.side].runs.push(run);
    }
    let [a, b] = both;
    Ok(Measured::Both(a, b, remarks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_after_those_that_are_given() {
        let mut options: Vec<OsString> = ["--append=quiet x=1", "--cpu=skx"].map(OsString::from).to_vec();
        append(&mut options, "mitigations=off");
        assert_eq!(options, ["--cpu=skx", "--append=quiet x=1 mitigations=off"]);
        append(&mut options, "y");
        assert_eq!(options[1], "--append=quiet x=1 mitigations=off y");
    }
}
