//! Runs cells, each in a process and a directory of its own, which the [`Store`] keeps once the cell has finished. The processes are children of this
//! one (`local.rs`) or tasks on the nodes of a cluster (`slurm.rs`). A finished cell never runs again, and an interrupted cell leaves nothing behind.
//! Cells that differ only in their workloads share a boot (`boots.rs`).

mod local;
mod said;
mod shell;
mod slurm;

pub use shell::quoted;
pub use slurm::SlurmError;

use crate::Cell;
use crate::boots::{Begin, Boots};
use crate::child::MOST_OUTPUT;
use crate::failure::Failure;
use crate::fingerprint::{Fingerprints, Unreadable};
use crate::store::{Finished, Found, OUTPUT, Partial, Store};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between checks of the children.
const NAP: Duration = Duration::from_millis(10);
/// Minimum free space for a cell, in bytes.
const ROOM: usize = 256 << 10;
/// Exit status of `tollgate run` at its time limit.
const TIMED_OUT: i32 = 124;
/// Exit status of `tollgate run` after a panic of the guest's kernel.
const PANICKED: i32 = 123;
/// Exit status of `tollgate run` after a machine reset that was not requested of the guest's kernel.
const RESET: i32 = 122;

/// Settings for the execution of cells.
pub struct Options {
    /// Path of the `tollgate` program.
    pub program: PathBuf,
    /// Base directory of the guests' names.
    pub root: PathBuf,
    /// Place of execution.
    pub place: Place,
    /// True to run cells that have finished before.
    pub fresh: bool,
    /// Arguments of `tollgate run` that select the execution tier. The results do not depend on them.
    pub tier: Vec<String>,
}

/// Place of execution.
#[derive(Clone, Debug)]
pub enum Place {
    /// This host, with this many cells at a time.
    Here(usize),
    /// Nodes of a cluster, as Slurm array jobs.
    Slurm {
        /// Largest number of tasks of an array that run at a time.
        jobs: Option<usize>,
        /// Further options of `sbatch`, such as the partition.
        options: Vec<String>,
    },
}

/// The reason why no cell can run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file that every cell needs is missing.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Slurm is not available.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
}

/// The outcome of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cell has finished, now or in an earlier run.
    Finished(Finished),
    /// The cell failed.
    Failed(Failure),
    /// The run was interrupted before the cell finished.
    Interrupted,
}

/// An observer of the progress.
pub trait Watch {
    /// Reports cells that run again because their stored results are damaged, each with the damage.
    fn damaged(&mut self, _cells: &[(&Cell, String)]) {}
    /// Reports that a cell has started.
    fn begun(&mut self, _cell: &Cell) {}
    /// Reports that a cell is done; `ran` is false if its stored result was used.
    fn done(&mut self, _cell: &Cell, _outcome: &Outcome, _ran: bool) {}
    /// Called at short intervals.
    fn tick(&mut self) {}
}

/// A cell ready to run: its arguments for the program, and its directory.
pub(crate) struct Job {
    cell: usize,
    arguments: Vec<String>,
    directory: Partial,
    /// Time limit in seconds.
    timeout: u32,
    /// True if the cell writes a snapshot beside its ledger.
    saves: bool,
}

/// The end of a job.
#[derive(Debug)]
pub(crate) enum End {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
    /// It failed for this reason; the end of its output is shown too if that helps.
    Broken(String),
}

/// A place where jobs run.
pub(crate) trait Executor {
    /// Returns the number of further jobs that can start now.
    fn room(&self) -> usize;
    /// Starts jobs. Returns the jobs that could not start, each with the reason.
    fn start(&mut self, jobs: Vec<Job>) -> Vec<(Job, String)>;
    /// Returns the jobs that have ended since the last call.
    fn ended(&mut self) -> Vec<(Job, End)>;
    /// Returns true if no job is left.
    fn is_idle(&self) -> bool;
    /// Cancels all jobs and waits until none of them writes any more.
    fn cancel(&mut self);
}

/// Returns the lines of an output that explain its end.
pub fn said(output: &Path) -> Vec<String> {
    said::said(output, MOST_OUTPUT)
}

struct Runner<'a> {
    cells: &'a [Cell<'a>],
    options: &'a Options,
    store: &'a Store,
    fingerprints: Vec<Option<String>>,
    outcomes: Vec<Option<Outcome>>,
    boots: Boots,
    /// Cells that have the fingerprint of an earlier one, with the position of that one.
    same: BTreeMap<usize, usize>,
}

impl Runner<'_> {
    /// Records the failure of a cell that has run in a directory, and keeps its output.
    fn fail(&mut self, cell: usize, reason: String, directory: &Partial, watch: &mut dyn Watch) {
        let said = said(&directory.path().join(OUTPUT));
        let fingerprint = self.fingerprints[cell].as_deref().unwrap_or_default();
        let output = self.store.keep_output(directory, fingerprint);
        self.conclude(cell, Outcome::Failed(Failure { reason, said, output, ran: true }), true, watch);
    }

    fn conclude(&mut self, cell: usize, outcome: Outcome, ran: bool, watch: &mut dyn Watch) {
        watch.done(&self.cells[cell], &outcome, ran);
        self.outcomes[cell] = Some(outcome);
    }

    /// Settles the cells that need no run, and returns the others.
    fn plan(&mut self, watch: &mut dyn Watch) -> Result<Vec<usize>, Unreadable> {
        let mut prints = Fingerprints::new(&self.options.root, &self.options.program)?;
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut wanted = Vec::new();
        let mut damaged = Vec::new();
        let mut boots = Vec::new();
        for (at, cell) in self.cells.iter().enumerate() {
            let fingerprint = match prints.of(cell) {
                Ok(fingerprint) => fingerprint,
                Err(error) => {
                    let root = &self.options.root;
                    // The user has made a capture, the guest's command the other files.
                    let capture =
                        cell.captures().iter().any(|name| root.join(name).display().to_string() == error.path);
                    let reason = match capture {
                        true => error.to_string(),
                        false if cell.experiment.file.is_none() => {
                            format!(
                                "{error}: '{}' makes it in Tollgate's source tree, which --root names",
                                cell.guest().made_by
                            )
                        }
                        false => format!("{error}: '{}' makes it", cell.guest().made_by),
                    };
                    let failure = Failure::before_the_run(reason);
                    self.conclude(at, Outcome::Failed(failure), false, watch);
                    continue;
                }
            };
            self.fingerprints[at] = Some(fingerprint.clone());
            if let Some(&earlier) = first.get(&fingerprint) {
                self.same.insert(at, earlier);
                continue;
            }
            let found = if self.options.fresh { Found::Nothing } else { self.store.find(&fingerprint) };
            match found {
                Found::Finished(finished) => {
                    self.conclude(at, Outcome::Finished(finished), false, watch);
                    continue;
                }
                Found::Damaged(reason) => damaged.push((cell, reason)),
                Found::Nothing => {}
            }
            first.insert(fingerprint, at);
            wanted.push(at);
            boots.extend(prints.of_boot(cell)?.map(|boot| (at, boot)));
        }
        self.boots = Boots::new(boots);
        if !damaged.is_empty() {
            watch.damaged(&damaged);
        }
        Ok(wanted)
    }

    /// Returns the job of a cell.
    fn job(&self, cell: usize, begin: Begin) -> std::io::Result<Job> {
        let directory = self.store.partial()?;
        let text = |path: PathBuf| std::path::absolute(path).map(|path| path.to_string_lossy().into_owned());
        let timeout = self.cells[cell].timeout();
        let mut arguments = self.cells[cell].arguments();
        arguments.extend(self.options.tier.iter().cloned());
        let saves = matches!(begin, Begin::Saves(_));
        match begin {
            Begin::Boots | Begin::Waits => {}
            Begin::Saves(file) => arguments.extend(["--save-at".to_owned(), "workload".to_owned(), text(file)?]),
            Begin::From(file) => arguments.extend(["--restore".to_owned(), text(file)?]),
        }
        arguments.extend(["--timeout".to_owned(), timeout.to_string()]);
        Ok(Job { cell, arguments, directory, timeout, saves })
    }

    /// Records the outcome of a job that has ended.
    fn end(&mut self, job: Job, end: End, watch: &mut dyn Watch) {
        let Job { cell, directory, .. } = job;
        self.boots.ended(cell);
        let wanted = self.cells[cell].guest().status;
        let reason = match end {
            End::Exited(code) if code == wanted => None,
            End::Exited(TIMED_OUT) => Some(format!("was not done after {} s", self.cells[cell].timeout())),
            End::Exited(PANICKED) => Some("ended because the guest's kernel panicked".into()),
            End::Exited(RESET) => Some("ended with an unrequested reset".into()),
            End::Exited(code) => Some(format!("ended with status {code} where {wanted} was expected")),
            End::Signalled(signal) => Some(crate::child::killed(signal)),
            End::Broken(reason) => Some(reason),
        };
        if let Some(reason) = reason {
            return match room(&directory) {
                Ok(()) => self.fail(cell, reason, &directory, watch),
                // This error is the reason of the failure, whatever the cell printed.
                Err(error) => {
                    let reason = format!("{} can't be written to: {error}", self.store.path().display());
                    let failure = Failure { ran: true, ..Failure::before_the_run(reason) };
                    self.conclude(cell, Outcome::Failed(failure), true, watch)
                }
            };
        }
        let fingerprint = self.fingerprints[cell].clone().unwrap_or_default();
        match self.store.keep(&directory, &fingerprint, &self.cells[cell].command()) {
            Ok(finished) => self.conclude(cell, Outcome::Finished(finished), true, watch),
            Err(reason) => self.fail(cell, format!("can't be kept: {reason}"), &directory, watch),
        }
    }

    /// Returns the next cell that need not wait for another cell's boot.
    fn next(&mut self, waiting: &mut Vec<usize>) -> Option<(usize, Begin)> {
        let store = self.store;
        for at in 0..waiting.len() {
            let begin = self.boots.begin(waiting[at], || store.partial());
            if begin != Begin::Waits {
                return Some((waiting.remove(at), begin));
            }
        }
        None
    }

    /// Records a cell that could not start.
    fn not_started(&mut self, cell: usize, reason: String, watch: &mut dyn Watch) {
        self.boots.ended(cell);
        self.conclude(cell, Outcome::Failed(Failure::before_the_run(reason)), true, watch);
    }

    fn run(&mut self, wanted: Vec<usize>, executor: &mut dyn Executor, stop: &AtomicBool, watch: &mut dyn Watch) {
        let mut waiting = wanted;
        loop {
            let stopped = stop.load(Ordering::Relaxed);
            self.boots.look();
            let mut jobs = Vec::new();
            while !stopped && jobs.len() < executor.room() {
                let Some((cell, begin)) = self.next(&mut waiting) else { break };
                watch.begun(&self.cells[cell]);
                match self.job(cell, begin) {
                    Ok(job) => jobs.push(job),
                    Err(error) => {
                        let reason = format!("can't be started in {}: {error}", self.store.path().display());
                        self.not_started(cell, reason, watch);
                    }
                }
            }
            for (job, reason) in executor.start(jobs) {
                self.not_started(job.cell, reason, watch);
            }
            if executor.is_idle() {
                match waiting.is_empty() || stopped {
                    true => return,
                    false => continue,
                }
            }
            std::thread::sleep(NAP);
            watch.tick();
            for (job, end) in executor.ended() {
                self.end(job, end, watch);
            }
            if stop.load(Ordering::Relaxed) {
                return executor.cancel();
            }
        }
    }
}

/// Checks the free space for a cell's files, with the same limit as `tollgate run` has for a ledger.
fn room(directory: &Partial) -> std::io::Result<()> {
    std::fs::write(directory.path().join("room"), [0; ROOM])
}

/// Runs the cells that are not finished yet, and returns the outcome of each. Returns early once `stop` is set. The cells also end with
/// the calling thread.
pub fn run(
    cells: &[Cell],
    options: &Options,
    store: &Store,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<Vec<Outcome>, RunError> {
    let mut executor: Box<dyn Executor> = match &options.place {
        Place::Here(jobs) => Box::new(local::Local::new(options, *jobs)),
        Place::Slurm { jobs, options: sbatch } => Box::new(slurm::Slurm::new(options, store, *jobs, sbatch)?),
    };
    let count = cells.len();
    let mut runner = Runner {
        cells,
        options,
        store,
        fingerprints: vec![None; count],
        outcomes: vec![None; count],
        boots: Boots::default(),
        same: BTreeMap::new(),
    };
    let wanted = runner.plan(watch)?;
    runner.run(wanted, executor.as_mut(), stop, watch);
    for (at, earlier) in std::mem::take(&mut runner.same) {
        let outcome = runner.outcomes[earlier].clone().unwrap_or(Outcome::Interrupted);
        runner.conclude(at, outcome, false, watch);
    }
    Ok(runner.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Interrupted)).collect())
}

#[cfg(test)]
mod tests;
