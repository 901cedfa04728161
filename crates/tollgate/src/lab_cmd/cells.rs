//! Execution of the cells of experiments, and their outcomes.

use super::progress::Progress;
use super::{Common, FAILED, On};
use crate::output::say;
use crate::places;
use crate::size::size_text;
use crate::stop::{INTERRUPTED, Stop};
use crate::usage::WrongArguments;
use anyhow::{Context, Result, bail};
use lab::Cell;
use lab::experiment::Experiment;
use lab::failure::{Failure, groups};
use lab::results::{self, ExperimentResult, Interrupted};
use lab::runner::{self, Options, Outcome, Place};
use lab::store::{Pruning, Store};
use ledger::pattern;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Returns true if one of the patterns selects the cell. Without patterns all cells are selected.
pub fn chosen(only: &[String], full_id: &str) -> bool {
    let short = full_id.split_once('/').map_or(full_id, |(_, short)| short);
    only.is_empty() || only.iter().any(|only| pattern::matches(only, short) || pattern::matches(only, full_id))
}

/// The outcomes of experiments.
pub struct Ran {
    /// The result of each experiment, with the cells that have an outcome.
    pub results: Vec<ExperimentResult>,
    /// Set if the user stopped the run before all cells had an outcome.
    pub interrupted: Option<Interrupted>,
    /// The cells without an outcome for that reason.
    pub unfinished: BTreeSet<String>,
    failures: Vec<(String, Failure)>,
    /// Number of cells with an outcome.
    cells: usize,
}

/// Returns the base directory of image names. For experiments in a user's files it is the current directory, unless only the directory of the built-in
/// experiments has the images.
fn root(experiments: &[Experiment], cells: &[Cell]) -> PathBuf {
    let here = PathBuf::from(".");
    let has_all = |root: &Path| cells.iter().flat_map(Cell::files).all(|file| root.join(file).is_file());
    if experiments.iter().all(|experiment| experiment.file.is_none()) {
        return places::guests();
    }
    if has_all(&here) { here } else { Some(places::guests()).filter(|root| has_all(root)).unwrap_or(here) }
}

/// Runs the cells of experiments, which are in so many layouts, that `--only` and `wanted` select.
pub fn run(experiments: &[Experiment], layouts: u32, common: &Common, wanted: impl Fn(&Cell) -> bool) -> Result<Ran> {
    let all: Vec<Cell> = experiments.iter().flat_map(Experiment::cells).collect();
    const NONE: &str = "no cell is selected; `tollgate lab show NAME` lists the cells of an experiment";
    if !all.iter().any(|cell| chosen(&common.only, &cell.full_id())) {
        bail!(WrongArguments::new(NONE));
    }
    let cells: Vec<Cell> =
        all.into_iter().filter(|cell| chosen(&common.only, &cell.full_id()) && wanted(cell)).collect();
    if cells.is_empty() {
        bail!(NONE);
    }
    let root = common.root.clone().unwrap_or_else(|| root(experiments, &cells));
    super::guests::check(&cells, &root)?;
    let stop = Stop::on_signals("no result is shown; finished cells are kept")?;
    let place = match common.on {
        On::Local => Place::Here(match common.jobs {
            Some(jobs) => usize::from(jobs),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        }),
        On::Slurm => {
            let options = common.sbatch.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned);
            Place::Slurm { jobs: common.jobs.map(usize::from), options: options.collect() }
        }
    };
    let options = Options {
        program: std::env::current_exe().context("can't find this program's own file")?,
        root,
        place,
        fresh: common.fresh,
        tier: common.tier.arguments(),
    };
    let store = Store::open(&common.out, &stop)?;
    let mut progress = Progress::new(cells.len());
    let outcomes = runner::run(&cells, &options, &store, &stop, &mut progress)?;
    drop(progress);
    let named = |experiment: &Experiment| ExperimentResult {
        name: experiment.name.clone(),
        file: experiment.file.clone(),
        cells: Vec::new(),
    };
    let mut ran = Ran {
        results: experiments.iter().map(named).collect(),
        interrupted: Interrupted::of(&outcomes, layouts),
        unfinished: BTreeSet::new(),
        failures: Vec::new(),
        cells: 0,
    };
    for (cell, outcome) in cells.iter().zip(&outcomes) {
        if *outcome == Outcome::Interrupted {
            ran.unfinished.insert(cell.full_id());
            continue;
        }
        ran.cells += 1;
        let (result, failure) = results::cell(cell, outcome);
        let at = experiments.iter().position(|experiment| std::ptr::eq(experiment, cell.experiment));
        if let Some(at) = at {
            ran.results[at].cells.push(result);
        }
        let in_layout = match (cell.experiment.grown, cell.memory()) {
            (1.., Some(memory)) => format!(" with {memory} of memory"),
            _ => String::new(),
        };
        ran.failures.extend(failure.map(|failure| (cell.full_id() + &in_layout, failure)));
    }
    stop.shows();
    if ran.interrupted.is_none() {
        make_room(&store, common, &outcomes);
    }
    Ok(ran)
}

/// Removes kept cells beyond `--keep`, except those that this run has used.
fn make_room(store: &Store, common: &Common, outcomes: &[Outcome]) {
    let used = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Finished(finished) => Some(finished.directory().to_owned()),
        Outcome::Failed(failure) => failure.output.clone(),
        Outcome::Interrupted => None,
    });
    let pruning = Pruning { keep: common.keep.0, ..Pruning::default() };
    // If another laboratory is running, the last one to end removes them. A cell that can't be removed does no harm.
    if let Some(pruned) = store.prune(&pruning, &used.collect())
        && pruned.removed.number != 0
    {
        let (cells, bytes) = (pruned.removed.number, size_text(pruned.removed.bytes));
        let path = store.path().display();
        say(&format!(
            "tollgate: {cells} cells ({bytes}) that were used least recently are removed from {path}: see --keep"
        ));
    }
}

impl Ran {
    /// Returns true if no cell could be run, so that tables would show nothing.
    pub fn is_empty(&self) -> bool {
        self.interrupted.is_none()
            && self.failures.len() == self.cells
            && self.failures.iter().all(|(_, failure)| !failure.ran)
    }

    /// Lists the failed cells on standard error, grouped by cause, and returns the exit status.
    pub fn status(&self, otherwise: u8) -> ExitCode {
        let causes = self.failures.iter().map(|(cell, failure)| (cell.as_str(), (&failure.reason, &failure.said)));
        for (group, (reason, said)) in groups(causes) {
            say(&format!("tollgate: {group}: {reason}"));
            for line in said {
                say(&format!("    | {line}"));
            }
            let first = self.failures.iter().find(|(cell, _)| cell == group.first);
            if let Some(output) = first.and_then(|(_, failure)| failure.output.as_ref()) {
                say(&format!("    the whole output of {} is in {}", group.first, output.display()));
            }
        }
        if self.interrupted.is_some() {
            say("tollgate: interrupted; finished cells are kept");
            return ExitCode::from(INTERRUPTED);
        }
        ExitCode::from(match self.failures.len() {
            0 => otherwise,
            _ if self.is_empty() => crate::usage::FAILED,
            _ => FAILED,
        })
    }
}
