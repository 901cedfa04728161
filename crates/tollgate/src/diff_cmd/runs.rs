//! The runs of a diff. Each is a separate `tollgate exec`, whose ledger has the costs. Pairs of runs are added until their differences decide.

use super::asked::Asked;
use super::{again, noop};
use crate::exec_cmd::{CHANGED, DIRECTORY, END, FILES, Kernel, SETTLED, command_text, parameters};
use crate::exec_runs::{self, Failed, Given, Place};
use crate::identity::STATE;
use crate::model;
use crate::output::described;
use crate::table::{hexadecimal, read_ledger};
use anyhow::{Context, Result, anyhow};
use lab::diff::origin::{File, Files, Origin, Provenance};
use lab::diff::paid::{COMMAND, NoCommand};
use lab::diff::runner::{self, Ended, Job, Limits};
use lab::diff::statistics::LOOKS;
use lab::diff::verdict::stages;
use lab::diff::{
    Answer, Interrupted, Known, Paid, Remarks, Run, Runs, Terms, TimeLimit, Verdict, WITHOUT_NAMES, judge,
};
use lab::flame::Folded;
use lab::format::listed;
use ledger::profile::Prices;
use ledger::summary::UNNAMED_FACT;
use ledger::{Header, Profile};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Facts of a ledger that are no inputs of the machine, or that a provenance has in a place of its own.
const NO_INPUTS: [&str; 13] = [
    "kernel",
    "command line",
    "command",
    "files",
    "tollgate",
    "model",
    "random seed",
    FILES,
    CHANGED,
    SETTLED,
    END,
    DIRECTORY,
    parameters::UNKNOWN,
];

/// Names of facts about a kernel that are no state to compare.
const RELEASE: &str = "release";
const UNLOADED: &str = "unloaded";
const NO_STATE: [&str; 2] = [RELEASE, UNLOADED];

/// The outcome of all runs.
pub enum Measured {
    /// The runs of each side, and what a reader must know about them.
    Sides(Vec<Runs>, Remarks),
    /// A run failed, or the user or a limit ended the measurement before the first pair of runs was complete. The sides have no runs.
    Failed(Failed, Vec<Runs>),
}

/// How sides are measured.
pub struct How<'a> {
    /// Number of layouts; None: as many as decide.
    pub layouts: Option<u16>,
    /// The time of the host after which no pair of runs begins.
    pub time_limit: Option<Duration>,
    /// Seed of the first layout.
    pub seed: Option<u64>,
    /// Number of parallel runs.
    pub jobs: Option<u16>,
    /// Virtual time for which the kernel must have been idle.
    pub settle: Duration,
    /// Interval between call stacks.
    pub sample: Option<&'a str>,
    /// True if the call stacks are drawn.
    pub draws: bool,
    /// Tells whether a side needs no further pairs.
    pub decided: &'a dyn Fn(&Verdict) -> bool,
    /// The directory for the files of the runs.
    pub place: &'a Place<'a>,
    /// Ends the measurement once it is set.
    pub stop: &'a AtomicBool,
}

/// What a measurement has done so far, for a person who waits.
pub enum Progress<'a> {
    /// This many runs have ended.
    Runs(usize),
    /// This many pairs have been judged: the other sides, with their verdicts.
    Pairs(usize, &'a [(&'a str, Verdict)]),
}

/// One side of the comparison.
struct Side {
    name: String,
    /// Name of its files, without their endings.
    stem: String,
    title: String,
    command: Vec<OsString>,
    parameters: Vec<(String, String)>,
    /// Options of `tollgate exec`.
    options: Vec<OsString>,
    profile: Profile,
    /// The options of the kernel's configuration, if they are known.
    configuration: Option<String>,
    /// True if a program emulates the processor, at prices of its own.
    emulated: bool,
}

impl Side {
    fn new(asked: &Asked) -> Result<Self> {
        let Asked { name, stem, kernel: given, words, .. } = asked;
        exec_runs::check(&asked.options)?;
        // A kernel is fetched once, and a missing kernel is not a failure of the command.
        let kernel = Kernel::find(given.as_deref(), exec_runs::value(asked.options.iter(), "modules"))?;
        crate::exec_cmd::remark_boots();
        let mut options = asked.options.clone();
        options.extend(given.iter().map(|name| OsString::from(format!("--kernel={name}"))));
        if !words.is_empty() {
            append(&mut options, words);
        }
        let mut parts = vec![given.clone().unwrap_or_else(Kernel::unnamed)];
        parts.extend(asked.differing.iter().cloned());
        parts.extend((!words.is_empty()).then(|| words.clone()));
        let value = |name: &str| exec_runs::value(options.iter(), name);
        let clock = value("model").map(model::parse).transpose().map_err(|error| anyhow!(error))?;
        let profile = model::profile(value("cpu").unwrap_or(crate::exec_cmd::CPU), clock)?;
        let emulated = value("platform") == Some("emulated");
        let configuration = kernel.configuration();
        Ok(Self {
            name: name.clone(),
            stem: stem.clone(),
            title: parts.join(", "),
            command: asked.command.clone(),
            parameters: asked.parameters.clone(),
            options,
            profile,
            configuration,
            emulated,
        })
    }

    /// Returns the value of an option, if it is given.
    fn value(&self, name: &str) -> Option<&str> {
        exec_runs::value(self.options.iter(), name)
    }

    /// Returns the side without runs.
    fn runs(&self) -> Runs {
        Runs {
            name: self.name.clone(),
            title: self.title.clone(),
            command: command_text(&self.command),
            parameters: self.parameters.clone(),
            files: Files::default(),
            tsc_hz: self.profile.tsc_hz.value,
            clock: self.profile.clock,
            prices: None,
            origin: Origin::default(),
            runs: Vec::new(),
        }
    }

    /// Returns the prices of the side.
    fn prices(&self) -> &Prices {
        if self.emulated { &self.profile.emulator.prices } else { &self.profile.prices }
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

/// Plans the runs that some sides lack of a number of layouts. The first run of a layout leads.
fn plan(how: &How, all: &Measurement, active: &[usize], until: usize) -> Vec<Planned> {
    let drawn = how.layouts != Some(1);
    let seed = |number: usize| match how.seed {
        None if !drawn => None,
        first => Some(first.unwrap_or(1).wrapping_add(number as u64)),
    };
    let sides = &all.sides;
    let one = |seed: Option<u64>, number: usize, leads: bool| {
        let side = &sides[number];
        let layout = seed.map_or_else(String::new, |seed| format!("-{seed}"));
        let file = |kind: &str| how.place.path.join(format!("{}{layout}.{kind}", side.stem));
        let ledger = file("ledger");
        let given = Given { options: &side.options, settle: how.settle, sample: how.sample, seed };
        let arguments = given.arguments(&ledger, &side.command);
        let job = Job { arguments, output: file("output"), leads };
        Planned { side: number, seed, ledger, job }
    };
    let of_layout = |layout: usize| {
        let lacking = active.iter().filter(move |side| all.runs[**side].runs.len() <= layout);
        lacking.enumerate().map(move |(place, side)| one(seed(layout), *side, place == 0))
    };
    (0..until).flat_map(of_layout).collect()
}

/// Adds a text to a list that does not have it.
fn add(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

/// Adds what a reader of the result must know about a run. Shares are those of a side's first run.
fn remark(ledger: &ledger::Ledger, name: &str, first: bool, remarks: &mut Remarks) {
    let fact = |key: &str| ledger.header.metadata.get(key);
    let words = fact(parameters::UNKNOWN).into_iter().flat_map(|words| words.split(' ')).map(str::to_owned);
    let unknown = parameters::warnings(&words.collect::<Vec<_>>());
    let line = fact("command line").into_iter().flat_map(|line| line.split_whitespace());
    let release = fact(crate::identity::RELEASE).map(String::as_str);
    let unknown = unknown.into_iter().chain(parameters::of_values(line, release));
    let changed = fact(CHANGED).map(|paths| {
        let paths = paths.lines().map(str::to_owned).collect::<Vec<_>>();
        format!("{name}: {} changed on this host during a run, which may have read parts of the old and of the new contents: measure again.", listed(&paths))
    });
    let place = fact(DIRECTORY).map(|directory| {
        format!("The command depends on the name of its working directory, {directory}: started in another directory, it may give another result.")
    });
    let command = ledger.region(COMMAND).unwrap_or_else(|| ledger.all());
    let unnamed = command.unnamed();
    let unnamed = unnamed.iter().map(|unnamed| {
        let share = crate::table::share(unnamed.ticks, unnamed.of);
        format!("{name}: {share} {WITHOUT_NAMES} {}.", unnamed.describe_in_sentence())
    });
    unknown.for_each(|text| add(&mut remarks.warnings, format!("{name}: {text}")));
    changed.into_iter().for_each(|text| add(&mut remarks.warnings, text));
    place.into_iter().for_each(|text| add(&mut remarks.notes, text));
    unnamed.filter(|_| first).for_each(|text| add(&mut remarks.notes, text));
}

/// Reads a run and the header of its ledger; the stacks only if they are drawn.
fn read(planned: &Planned, name: &str, first: bool, draws: bool, remarks: &mut Remarks) -> Result<(Run, Header)> {
    let ledger = read_ledger(&planned.ledger)?;
    remark(&ledger, name, first, remarks);
    let settled = ledger.header.metadata.get(SETTLED).and_then(|text| text.parse().ok());
    let paid = Paid::of(&ledger).with_context(|| name.to_owned())?;
    let settled_after = settled.unwrap_or(f64::INFINITY);
    let stacks = if draws { Folded::of(&ledger, Some(COMMAND)) } else { Folded::default() };
    Ok((Run { seed: planned.seed, paid, stacks, settled_after }, ledger.header))
}

/// Returns the files of the host that a run's command could read.
fn files(header: &Header) -> Files {
    let fact = |key: &str| header.metadata.get(key).map_or("", String::as_str);
    let file = |line: &str| {
        let (sha256, rest) = line.split_once(' ')?;
        let (bytes, path) = rest.split_once(' ')?;
        Some(File { path: path.to_owned(), sha256: sha256.to_owned(), bytes: bytes.parse().ok()? })
    };
    let others = |line: &str| line.strip_prefix("and ")?.strip_suffix(" others")?.parse::<usize>().ok();
    let list = fact(FILES);
    let more = list.lines().filter_map(others).sum();
    // The list does not depend on time stamps; what is not in the list is known by the hash of everything alone.
    let tree = match (list, more) {
        ("", _) | (_, 1..) => fact("files").to_owned(),
        (list, 0) => hexadecimal(&Sha256::digest(list)),
    };
    Files { list: list.lines().filter_map(file).collect(), more, tree }
}

/// Returns the files whose contents two runs of one command did not have in common, if there are any: those of the host changed between the runs.
fn changed(a: &Files, b: &Files) -> Vec<String> {
    let hash = |of: &Files, path: &str| Some(of.list.iter().find(|file| file.path == path)?.sha256.clone());
    let paths: BTreeSet<&str> = a.list.iter().chain(&b.list).map(|file| file.path.as_str()).collect();
    let changed = paths.into_iter().filter(|path| hash(a, path) != hash(b, path)).map(str::to_owned);
    let changed: Vec<String> = changed.collect();
    match changed.is_empty() && a.tree != b.tree {
        true => vec!["a file that the list does not name".to_owned()],
        false => changed,
    }
}

/// Returns the warning about files that changed between runs of a side.
fn between_runs(name: &str, changed: &[String]) -> String {
    format!(
        "{name}: {} changed on this host between runs, which therefore had other contents: measure again.",
        listed(changed)
    )
}

/// Returns the words in a fact of a ledger.
fn words(header: &Header, key: &str) -> Vec<String> {
    let text = header.metadata.get(key).map_or("", String::as_str);
    text.split_whitespace().map(str::to_owned).collect()
}

/// Adds what settings without an effect two sides have. Returns true if the sides differ in nothing else.
fn remark_on_settings(sides: [&Side; 2], runs: [&Runs; 2], headers: [&Header; 2], remarks: &mut Remarks) -> bool {
    let unknown = headers.map(|header| words(header, parameters::UNKNOWN));
    let given = |side: usize, word: &String| {
        let line = sides[side].value("append").unwrap_or_default();
        line.split_whitespace().any(|given| given == word) && !parameters::is_known(word)
    };
    let unloaded = [0, 1].map(|side| {
        let all = words(headers[side], &format!("{STATE}{UNLOADED}"));
        all.into_iter().filter(|word| given(side, word)).collect::<Vec<_>>()
    });
    let known = [0, 1].map(|side| noop::Known {
        name: &sides[side].name,
        origin: &runs[side].origin,
        unknown: &unknown[side],
        unloaded: &unloaded[side],
    });
    for known in &known {
        noop::of_modules(known.name, known.unloaded).into_iter().for_each(|text| add(&mut remarks.warnings, text));
    }
    let found = noop::found([&known[0], &known[1]]);
    found.warnings.into_iter().for_each(|text| add(&mut remarks.warnings, text));
    found.note.into_iter().for_each(|text| add(&mut remarks.notes, text));
    found.nothing_else
}

/// Says in a few words what a comparison has found.
pub fn figure(verdict: &Verdict) -> String {
    let percent = verdict.relative * 100.0;
    let figure = format!("{percent:+.*}%", usize::from(percent.abs() < 10.0));
    match verdict.answer {
        Answer::Same => "equal".to_owned(),
        Answer::Undecided => format!("{figure}, not decided"),
        Answer::More | Answer::Less | Answer::Within | Answer::OneLayout => figure,
    }
}

/// Says in a few words what the pairs so far have found. Sides with names are named.
pub fn found(verdicts: &[(&str, Verdict)], pairs: usize, named: bool) -> String {
    let open = verdicts.iter().filter(|(_, verdict)| !verdict.is_decided()).count();
    let word = match verdicts {
        [(_, verdict)] if !named => figure(verdict),
        _ if pairs > 1 => format!("{} of {} sides decided", verdicts.len() - open, verdicts.len()),
        _ => {
            verdicts.iter().map(|(name, verdict)| format!("{name} {}", figure(verdict))).collect::<Vec<_>>().join(", ")
        }
    };
    if pairs == 1 { format!("first pair: {word}") } else { format!("{pairs} pairs: {word}") }
}

/// What the measurement has of all sides.
struct Measurement {
    sides: Vec<Side>,
    runs: Vec<Runs>,
    headers: Vec<Option<Header>>,
    /// Sides that need no further runs.
    done: Vec<bool>,
    remarks: Remarks,
}

impl Measurement {
    fn new(asked: &[Asked], known: Vec<Option<Runs>>) -> Result<Self> {
        let sides: Vec<Side> = asked.iter().map(Side::new).collect::<Result<_>>()?;
        let known = known.into_iter().chain(std::iter::repeat_with(|| None));
        Ok(Self {
            runs: sides.iter().zip(known).map(|(side, known)| known.unwrap_or_else(|| side.runs())).collect(),
            headers: sides.iter().map(|_| None).collect(),
            done: vec![false; sides.len()],
            remarks: Remarks::default(),
            sides,
        })
    }

    /// Returns the end of a measurement without a result.
    fn failed(&self, failed: Failed) -> Measured {
        Measured::Failed(failed, self.sides.iter().map(Side::runs).collect())
    }

    /// Returns true if two sides have the same inputs, whatever their names are.
    fn is_same(&self, a: usize, b: usize) -> bool {
        let headers = self.headers[a].as_ref().zip(self.headers[b].as_ref());
        headers.is_some_and(|(a, b)| a.metadata == b.metadata)
            && ["cpu", "model"].iter().all(|name| self.sides[a].value(name) == self.sides[b].value(name))
    }

    /// Adds the runs that went well, for each side up to the first one that did not.
    fn add(&mut self, how: &How, planned: &[Planned], outcomes: &[Ended]) -> Result<usize> {
        let mut complete = vec![true; self.sides.len()];
        let mut added = 0;
        for (planned, outcome) in planned.iter().zip(outcomes) {
            complete[planned.side] &= *outcome == Ended::Well;
            if complete[planned.side] {
                let (name, runs) = (&self.sides[planned.side].name, &mut self.runs[planned.side].runs);
                let (run, header) = read(planned, name, runs.is_empty(), how.draws, &mut self.remarks)?;
                runs.push(run);
                let first = self.headers[planned.side].get_or_insert_with(|| header.clone());
                let changed = changed(&files(first), &files(&header));
                if !changed.is_empty() {
                    add(&mut self.remarks.warnings, between_runs(name, &changed));
                }
                added += 1;
            }
        }
        Ok(added)
    }

    /// Removes runs that have no counterpart, except the first `known` ones of the reference.
    fn pair_up(&mut self, reference: usize, known: usize) {
        let most = self.runs[reference].runs.len();
        let others = self.runs.iter_mut().enumerate().filter(|(side, _)| *side != reference);
        let longest = others.map(|(_, side)| {
            side.runs.truncate(most);
            side.runs.len()
        });
        let longest = longest.max().unwrap_or(most);
        self.runs[reference].runs.truncate(longest.max(known));
    }

    /// Notes what the first runs show of the sides. Returns those that differ from the reference only in words without an effect.
    fn notes(&mut self, reference: usize) -> Vec<bool> {
        for ((side, runs), header) in self.sides.iter().zip(&mut self.runs).zip(&self.headers) {
            if let Some(header) = header {
                runs.origin = side.origin(header);
                runs.files = files(header);
            }
        }
        let mut idle = vec![false; self.sides.len()];
        for (other, idle) in idle.iter_mut().enumerate().filter(|(other, _)| *other != reference) {
            if let (Some(a), Some(b)) = (&self.headers[reference], &self.headers[other]) {
                let sides = [&self.sides[reference], &self.sides[other]];
                let runs = [&self.runs[reference], &self.runs[other]];
                *idle = remark_on_settings(sides, runs, [a, b], &mut self.remarks);
            }
        }
        idle
    }

    /// Returns version, seeds, files and the command that measures the same again, with a number of layouts if a time limit or the user decided it.
    fn provenance(&self, reference: usize, layouts: Option<usize>) -> Provenance {
        let runs = &self.runs[reference];
        let mut list: Vec<File> = Vec::new();
        for file in self.runs.iter().flat_map(|runs| &runs.files.list) {
            if !list.contains(file) {
                list.push(file.clone());
            }
        }
        let seed = |run: Option<&Run>| run.and_then(|run| run.seed);
        let first = seed(runs.runs.first());
        let fixed = layouts.map(|layouts| again::Fixed { layouts, seed: first });
        Provenance {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seeds: first.zip(seed(runs.runs.last())).map(|(first, last)| [first, last]),
            again: again::command(crate::config::line().into_iter(), fixed),
            files: list,
            more_files: runs.files.more,
            tree: runs.files.tree.clone(),
        }
    }
}

/// Runs the command on all sides, until the pairs of runs with the reference decide or a limit is reached. A side that is decided is not run again. What is
/// known of a side from before, under the first layouts, is not measured again; `named` is false for A and B.
pub fn measure(
    how: &How,
    asked: &[Asked],
    known: Vec<Option<Runs>>,
    reference: usize,
    terms: &Terms,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measured> {
    let mut all = Measurement::new(asked, known)?;
    let most = how.jobs.map(usize::from);
    let most = most.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let limits = Limits { most, stop: how.stop, until: how.time_limit.map(|limit| Instant::now() + limit) };
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let others: Vec<usize> = (0..all.sides.len()).filter(|side| *side != reference).collect();
    let mut idle = vec![false; all.sides.len()];
    let (mut late, mut interrupted, mut finished) = (false, false, 0);
    let known_of_reference = all.runs[reference].runs.len();
    let stages = stages(how.layouts);
    // For a single side nothing is to be decided, and the first look has all that a later comparison needs.
    let most_layouts = match how.layouts {
        None if others.is_empty() => LOOKS[0].pairs,
        _ => stages.last().copied().unwrap_or_default(),
    };
    for until in stages {
        let open = others.iter().filter(|side| !all.done[**side]);
        let active: Vec<usize> = std::iter::once(reference).chain(open.copied()).collect();
        let planned = plan(how, &all, &active, until);
        planned.iter().try_for_each(|planned| exec_runs::make_way(&planned.ledger))?;
        let jobs: Vec<Job> = planned.iter().map(|planned| planned.job.clone()).collect();
        let mut count = |done: usize| progress(Progress::Runs(finished + done));
        let outcomes = runner::run(&program, &jobs, &how.place.path, limits, &mut count);
        let outcomes = outcomes.map_err(|error| exec_runs::not_executed(&program, &error))?;
        let called = |number: usize| {
            let Planned { side, seed, .. } = planned[number];
            let layout = seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
            format!("{}{layout}: {}", all.sides[side].name, command_text(&all.sides[side].command))
        };
        let stopped = match exec_runs::failed(&outcomes, called, |number| &planned[number].ledger) {
            Some(failed) if !failed.interrupted => return Ok(all.failed(failed)),
            stopped => stopped,
        };
        finished += match all.add(how, &planned, &outcomes) {
            Err(error) if error.is::<NoCommand>() => return Ok(all.failed(Failed::of(described(&error)))),
            added => added?,
        };
        if stopped.is_some() {
            all.pair_up(reference, known_of_reference);
        }
        late = outcomes.contains(&Ended::Late);
        let pairs = active.iter().map(|side| all.runs[*side].runs.len()).min().unwrap_or_default().min(until);
        if pairs == 0 {
            let late = || Failed::of("the time limit expired before the first pair of runs began".to_owned());
            return Ok(all.failed(stopped.unwrap_or_else(late)));
        }
        let judged = |side: usize| judge(&all.runs[reference].runs, &all.runs[side].runs, terms);
        let verdicts: Vec<(&str, Verdict)> =
            others.iter().map(|side| (all.sides[*side].name.as_str(), judged(*side))).collect();
        if !others.is_empty() && stopped.is_none() {
            progress(Progress::Pairs(pairs, &verdicts));
        }
        let verdicts: Vec<Verdict> = verdicts.into_iter().map(|(_, verdict)| verdict).collect();
        if pairs == 1 {
            idle = all.notes(reference);
        }
        for (side, verdict) in others.iter().zip(&verdicts).filter(|(side, _)| active.contains(side)) {
            let same = verdict.answer == Answer::Same && all.is_same(reference, *side);
            if same {
                let [a, b] = [reference, *side].map(|side| &all.sides[side].name);
                let text = format!(
                    "{a} and {b} have the same kernel, files and settings: there is nothing to compare; one pair of runs confirms it."
                );
                add(&mut all.remarks.warnings, text);
            }
            // Between systems that are the same, more layouts would decide nothing.
            let decided = how.layouts.is_none() && pairs > 1 && ((how.decided)(verdict) || idle[*side]);
            all.done[*side] = same || decided;
        }
        let enough = match others.is_empty() {
            true => pairs >= most_layouts,
            false => others.iter().all(|side| all.done[*side]),
        };
        interrupted = stopped.is_some();
        if late || enough || interrupted {
            break;
        }
    }
    for (side, runs) in all.sides.iter().zip(&mut all.runs) {
        runs.prices = Some(Known::of(side.prices(), &runs.runs));
    }
    let pairs = all.runs[reference].runs.len();
    all.remarks.provenance = all.provenance(reference, (late || interrupted).then_some(pairs));
    let earlier = how.layouts.is_none() && !others.is_empty();
    all.remarks.interrupted = interrupted.then_some(Interrupted { layouts: pairs, most: most_layouts, earlier });
    let limit = how.time_limit.filter(|_| late && !interrupted);
    all.remarks.time_limit =
        limit.map(|limit| TimeLimit { seconds: limit.as_secs_f64(), layouts: pairs, most: most_layouts, earlier });
    all.remarks.idle = others.iter().filter(|side| idle[**side]).map(|side| all.sides[*side].name.clone()).collect();
    Ok(Measured::Sides(all.runs, all.remarks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_changed_between_runs_are_named() {
        let file = |path: &str, sha256: &str| File { path: path.to_owned(), sha256: sha256.to_owned(), bytes: 1 };
        let files = |list: Vec<File>, tree: &str| Files { list, more: 0, tree: tree.to_owned() };
        let first = files(vec![file("/a", "1"), file("/b", "2")], "x");
        assert_eq!(changed(&first, &first), [""; 0]);
        assert_eq!(changed(&first, &files(vec![file("/a", "3"), file("/c", "2")], "y")), ["/a", "/b", "/c"]);
        assert_eq!(
            changed(&first, &Files { tree: "y".to_owned(), ..first.clone() }),
            ["a file that the list does not name"]
        );
        let warning = between_runs("B", &["/a".to_owned(), "/b".to_owned()]);
        assert!(warning.starts_with("B: /a and /b changed on this host between runs"), "{warning}");
    }

    #[test]
    fn words_come_after_those_that_are_given() {
        let mut options: Vec<OsString> = ["--append=quiet x=1", "--cpu=skx"].map(OsString::from).to_vec();
        append(&mut options, "mitigations=off");
        assert_eq!(options, ["--cpu=skx", "--append=quiet x=1 mitigations=off"]);
        append(&mut options, "y");
        assert_eq!(options[1], "--append=quiet x=1 mitigations=off y");
    }
}
