//! The runs of a diff. Each is a separate `tollgate exec`, whose ledger has the costs. Pairs of runs are added until their differences decide.

use super::{DiffArgs, again, noop};
use crate::exec_cmd::{DIRECTORY, FILES, Kernel, SETTLED, STATE, command_text, parameters};
use crate::exec_runs::{self, Given, Place, Ran};
use crate::model;
use crate::table::read_ledger;
use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use lab::diff::origin::{File, Origin, Provenance};
use lab::diff::paid::COMMAND;
use lab::diff::runner::{self, Ended, Job, Limits};
use lab::diff::verdict::stages;
use lab::diff::{Answer, Paid, Remarks, Run, Runs, Terms, Verdict, judge};
use lab::flame::Folded;
use ledger::summary::UNNAMED_FACT;
use ledger::{Header, Profile};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Names of the two sides.
const NAMES: [&str; 2] = ["A", "B"];
/// Facts of a ledger that are no inputs of the machine, or that a provenance has in a place of its own.
const NO_INPUTS: [&str; 11] = [
    "kernel",
    "command line",
    "command",
    "files",
    "tollgate",
    "model",
    "random seed",
    FILES,
    SETTLED,
    DIRECTORY,
    parameters::UNKNOWN,
];

/// Names of facts about a kernel that are no state to compare.
const RELEASE: &str = "release";
const UNLOADED: &str = "unloaded";
const NO_STATE: [&str; 2] = [RELEASE, UNLOADED];

/// The outcome of all runs.
pub enum Measured {
    /// The runs of A and B, and what a reader must know about them.
    Both(Box<(Runs, Runs, Remarks)>),
    /// The exit status after a failure, which has been reported.
    Ended(u8),
}

/// One side of the comparison.
struct Side {
    title: String,
    /// Options of `tollgate exec`.
    options: Vec<OsString>,
    profile: Profile,
    /// The options of the kernel's configuration, if they are known.
    configuration: Option<String>,
    /// True if a program emulates the processor, at prices of its own.
    emulated: bool,
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
        let clock = args.sides.value(side, "model").map(model::parse).transpose().map_err(|error| anyhow!(error))?;
        let profile = model::profile(args.sides.value(side, "cpu").unwrap_or(crate::exec_cmd::CPU), clock)?;
        let emulated = args.sides.value(side, "platform") == Some("emulated");
        let configuration = kernel.configuration();
        Ok(Self { title: parts.join(", "), options, profile, configuration, emulated })
    }

    /// Returns the side without runs.
    fn runs(&self) -> Runs {
        let prices = if self.emulated { &self.profile.emulator.prices } else { &self.profile.prices };
        Runs {
            title: self.title.clone(),
            tsc_hz: self.profile.tsc_hz.value,
            clock: self.profile.clock,
            prices: Some(Arc::new(prices.clone())),
            origin: Origin::default(),
            runs: Vec::new(),
        }
    }

    /// Returns what the side was measured on, by the header of one of its ledgers.
    fn origin(&self, header: &Header) -> Origin {
        let fact = |key: &str| header.metadata.get(key).cloned().unwrap_or_default();
        let is_input =
            |key: &str| !NO_INPUTS.contains(&key) && !key.starts_with(UNNAMED_FACT) && !key.starts_with(STATE);
        let state = |name: &str| header.metadata.get(&format!("{STATE}{name}"));
        let states = header.metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(STATE)?, value)));
        let states = states.filter(|(name, _)| !NO_STATE.contains(name));
        let inputs = header.metadata.iter().filter(|(key, _)| is_input(key));
        Origin {
            processor: self.profile.title.clone(),
            profile: self.profile.name.clone(),
            model: self.profile.clock.name().to_owned(),
            release: state(RELEASE).cloned(),
            image: fact("kernel"),
            command_line: fact("command line"),
            inputs: inputs.map(|(key, value)| (key.clone(), value.clone())).collect(),
            state: states.map(|(name, value)| (name.to_owned(), value.clone())).collect(),
            configuration: self.configuration.clone(),
        }
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

/// A run of one side under one layout.
struct Planned {
    side: usize,
    seed: Option<u64>,
    ledger: PathBuf,
    job: Job,
}

/// Plans pairs of runs by their numbers.
fn plan(args: &DiffArgs, sides: &[Side; 2], place: &Place, pairs: std::ops::Range<usize>) -> Vec<Planned> {
    let drawn = args.layouts != Some(1);
    let seed = |number: usize| match args.seed {
        None if !drawn => None,
        first => Some(first.unwrap_or(1).wrapping_add(number as u64)),
    };
    let one = |seed: Option<u64>, side: usize| {
        let layout = seed.map_or_else(String::new, |seed| format!("-{seed}"));
        let file = |kind: &str| place.path.join(format!("{}{layout}.{kind}", NAMES[side].to_lowercase()));
        let ledger = file("ledger");
        let given = Given { options: &sides[side].options, settle: args.settle, sample: args.sample.as_deref(), seed };
        let arguments = given.arguments(&ledger, &args.command);
        Planned { side, seed, ledger, job: Job { arguments, output: file("output"), leads: side == 0 } }
    };
    pairs.map(seed).flat_map(|seed| [one(seed, 0), one(seed, 1)]).collect()
}

/// Adds what a reader of the result must know about a run. Shares are those of a side's first run.
fn remark(ledger: &ledger::Ledger, side: usize, first: bool, remarks: &mut Remarks) {
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
    let add = |list: &mut Vec<String>, text: String| {
        if !list.contains(&text) {
            list.push(text);
        }
    };
    unknown.for_each(|text| add(&mut remarks.warnings, text));
    place.into_iter().for_each(|text| add(&mut remarks.notes, text));
    unnamed.filter(|_| first).for_each(|text| add(&mut remarks.notes, text));
}

/// Reads a run and the header of its ledger; the stacks only if they are drawn.
fn read(planned: &Planned, first: bool, draws: bool, remarks: &mut Remarks) -> Result<(Run, Header)> {
    let ledger = read_ledger(&planned.ledger)?;
    remark(&ledger, planned.side, first, remarks);
    let settled = ledger.header.metadata.get(SETTLED).and_then(|text| text.parse().ok());
    let paid = Paid::of(&ledger).with_context(|| planned.ledger.display().to_string())?;
    let settled_after = settled.unwrap_or(f64::INFINITY);
    let stacks = if draws { Folded::of(&ledger, Some(COMMAND)) } else { Folded::default() };
    Ok((Run { seed: planned.seed, paid, stacks, settled_after }, ledger.header))
}

/// Returns the files of the host that a run's command could read, and the number of those that are not listed.
fn files(header: &Header) -> (Vec<File>, usize) {
    let list = header.metadata.get(FILES).map_or("", String::as_str);
    let file = |line: &str| {
        let (sha256, rest) = line.split_once(' ')?;
        let (bytes, path) = rest.split_once(' ')?;
        Some(File { path: path.to_owned(), sha256: sha256.to_owned(), bytes: bytes.parse().ok()? })
    };
    let others = |line: &str| line.strip_prefix("and ")?.strip_suffix(" others")?.parse::<usize>().ok();
    (list.lines().filter_map(file).collect(), list.lines().filter_map(others).sum())
}

/// Returns the words in a fact of a ledger.
fn words(header: &Header, key: &str) -> Vec<String> {
    let text = header.metadata.get(key).map_or("", String::as_str);
    text.split_whitespace().map(str::to_owned).collect()
}

/// Adds what settings without an effect there are. Returns true if the sides differ in nothing else.
fn remark_on_settings(args: &DiffArgs, both: &[Runs; 2], headers: [&Header; 2], remarks: &mut Remarks) -> bool {
    let unknown = headers.map(|header| words(header, parameters::UNKNOWN));
    let given = |side: usize, word: &String| {
        let lines = [[&*args.a, &*args.b][side], args.sides.value(side, "append").unwrap_or_default()];
        lines.iter().any(|line| line.split_whitespace().any(|given| given == word)) && !parameters::is_known(word)
    };
    let unloaded = [0, 1].map(|side| {
        let all = words(headers[side], &format!("{STATE}{UNLOADED}"));
        all.into_iter().filter(|word| given(side, word)).collect::<Vec<_>>()
    });
    let known = [0, 1].map(|side| noop::Known {
        name: NAMES[side],
        origin: &both[side].origin,
        unknown: &unknown[side],
        unloaded: &unloaded[side],
    });
    for known in &known {
        remarks.warnings.extend(noop::of_modules(known.name, known.unloaded));
    }
    let both = [&known[0], &known[1]];
    let found = noop::found(both);
    remarks.warnings.extend(found.warnings);
    remarks.notes.extend(found.note);
    found.nothing_else
}

/// Returns the hash of the files of the host: of their list, which does not depend on time stamps, or else of all that the ledger knows of them.
fn tree(header: &Header) -> String {
    let fact = |key: &str| header.metadata.get(key).map_or("", String::as_str);
    match (fact(FILES), files(header).1) {
        ("", _) | (_, 1..) => fact("files").to_owned(),
        (list, 0) => Sha256::digest(list).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Says in a few words what the pairs so far have found.
fn found(verdict: &Verdict, pairs: usize) -> String {
    let percent = verdict.relative * 100.0;
    let figure = format!("{percent:+.*}%", usize::from(percent.abs() < 10.0));
    let word = match verdict.answer {
        Answer::Same => "equal".to_owned(),
        Answer::Undecided => format!("{figure}, not decided"),
        Answer::More | Answer::Less | Answer::Within => figure,
    };
    if pairs == 1 { format!("first pair: {word}") } else { format!("{pairs} pairs: {word}") }
}

/// Runs the command on both sides, until the pairs of runs decide or a limit is reached.
pub fn measure(args: &DiffArgs, terms: &Terms) -> Result<Measured> {
    let sides = [Side::new(args, 0)?, Side::new(args, 1)?];
    let place = Place::new("diff", args.keep.as_deref())?;
    let stop = crate::lab_cmd::stop_on_signals().context("signals can't be caught")?;
    let most = args.jobs.map(usize::from);
    let most = most.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let limits = Limits { most, stop: &stop, until: args.time_limit.map(|limit| Instant::now() + limit) };
    let program = std::env::current_exe().context("can't find this program's own file")?;
    // The bar appears on a terminal only.
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {pos} runs, {elapsed} {msg}")?);
    bar.tick();
    let mut remarks = Remarks::default();
    let mut both = [sides[0].runs(), sides[1].runs()];
    let mut headers: [Option<Header>; 2] = [None, None];
    let (mut late, mut idle) = (false, false);
    for until in stages(args.layouts) {
        let before = both[0].runs.len();
        let planned = plan(args, &sides, &place, before..until);
        let jobs: Vec<Job> = planned.iter().map(|planned| planned.job.clone()).collect();
        let mut progress = |done: usize| bar.set_position((2 * before + done) as u64);
        let outcomes = runner::run(&program, &jobs, &place.path, limits, &mut progress);
        let outcomes = outcomes.map_err(|error| anyhow!("can't execute the runs: {error}"))?;
        let named = |number: usize| {
            let Planned { side, seed, .. } = planned[number];
            let layout = seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
            format!("{}{layout}: {}", NAMES[side], command_text(&args.command))
        };
        if let Ran::Ended(status) = exec_runs::reported(&outcomes, named) {
            bar.finish_and_clear();
            return Ok(Measured::Ended(status));
        }
        for (planned, _) in planned.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Ended::Well) {
            let (run, header) = read(planned, both[planned.side].runs.is_empty(), args.html.is_some(), &mut remarks)?;
            both[planned.side].runs.push(run);
            headers[planned.side].get_or_insert(header);
        }
        late = outcomes.contains(&Ended::Late);
        if both[0].runs.is_empty() {
            bar.finish_and_clear();
            anyhow::bail!("the time limit expired before the first pair of runs began");
        }
        let verdict = judge(&both[0].runs, &both[1].runs, terms);
        let pairs = both[0].runs.len();
        match pairs {
            1 => bar.println(format!("tollgate: {}", found(&verdict, 1))),
            _ => bar.set_message(found(&verdict, pairs)),
        }
        let same = headers[0].as_ref().zip(headers[1].as_ref()).is_some_and(|(a, b)| a.metadata == b.metadata)
            && ["cpu", "model"].iter().all(|name| args.sides.value(0, name) == args.sides.value(1, name));
        if pairs == 1 {
            for ((side, runs), header) in sides.iter().zip(&mut both).zip(headers.iter().flatten()) {
                runs.origin = side.origin(header);
            }
            if let [Some(a), Some(b)] = &headers {
                idle = remark_on_settings(args, &both, [a, b], &mut remarks);
            }
        }
        if same && verdict.answer == Answer::Same {
            let text =
                "A and B have the same kernel, files and settings: nothing is compared, and one pair of runs shows it.";
            remarks.warnings.push(text.to_owned());
            break;
        }
        // Between systems that are the same, more layouts would decide nothing.
        if late || args.layouts.is_none() && pairs > 1 && (verdict.is_decided() || idle) {
            break;
        }
    }
    bar.finish_and_clear();
    let pairs = both[0].runs.len();
    let listed = headers[0].as_ref().map(files).unwrap_or_default();
    let tree = headers[0].as_ref().map(tree).unwrap_or_default();
    let seed = |run: Option<&Run>| run.and_then(|run| run.seed);
    remarks.provenance = Provenance {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seeds: seed(both[0].runs.first()).zip(seed(both[0].runs.last())).map(|(first, last)| [first, last]),
        again: again::command(std::env::args_os(), late.then_some(pairs)),
        files: listed.0,
        more_files: listed.1,
        tree,
    };
    let [a, b] = both;
    Ok(Measured::Both(Box::new((a, b, remarks))))
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
