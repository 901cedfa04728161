//! Runs cells, each in a process of its own and in a directory of its own that the [`Store`] keeps once the cell is done: as children of this
//! one (`local.rs`), or on the nodes of a cluster (`slurm.rs`). So a finished cell is never run again, and one that was interrupted leaves nothing. Cells that differ in their workloads alone
//! boot once (`boots.rs`).

mod local;
mod shell;
mod slurm;

pub(crate) use shell::quoted;
pub use slurm::SlurmError;

use crate::Cell;
use crate::boots::{Begin, Boots};
use crate::failure::Failure;
use crate::fingerprint::{Fingerprints, Unreadable};
use crate::store::{Finished, Found, OUTPUT, Partial, Store};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most that a cell may print, in bytes.
const MOST_OUTPUT: u64 = 64 << 20;
/// How much of a failed cell's output is shown: bytes, lines.
const TAIL: (u64, usize) = (8192, 12);
/// Between two looks at the children.
const NAP: Duration = Duration::from_millis(10);
/// Room that a cell needs at least, in bytes.
const ROOM: usize = 256 << 10;
/// Exit status of `tollgate run` when its time is up.
const TIMED_OUT: i32 = 124;
/// … when the guest's kernel panicked.
const PANICKED: i32 = 123;
/// … when the machine was reset, and nobody had asked the guest's kernel for that.
const RESET: i32 = 122;

/// How cells are run.
pub struct Options {
    /// The `tollgate` program.
    pub program: PathBuf,
    /// The directory that guests' names are relative to.
    pub root: PathBuf,
    /// Where they run.
    pub place: Place,
    /// Whether cells are run although there is a finished one.
    pub fresh: bool,
    /// Arguments of `tollgate run` that say what executes the instructions; what comes out does not depend on them.
    pub tier: Vec<String>,
}

/// Where cells run.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this host, so many at a time.
    Here(usize),
    /// On the nodes of a cluster, as array jobs of Slurm.
    Slurm {
        /// Tasks of an array that run at a time, at most.
        jobs: Option<usize>,
        /// Options of `sbatch`, such as the partition.
        options: Vec<String>,
    },
}

/// Why nothing can be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file is missing that all cells need.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// There is no Slurm.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
}

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran now, or at an earlier time.
    Finished(Finished),
    /// It failed.
    Failed(Failure),
    /// The run was interrupted before it was done.
    Interrupted,
}

/// Who is told of the progress.
pub trait Watch {
    /// Cells are run although something is kept for them, which is damaged: each with what is wrong.
    fn damaged(&mut self, _cells: &[(&Cell, String)]) {}
    /// A cell was begun.
    fn begun(&mut self, _cell: &Cell) {}
    /// A cell is done; `ran` if it ran now.
    fn done(&mut self, _cell: &Cell, _outcome: &Outcome, _ran: bool) {}
    /// Some time has passed.
    fn tick(&mut self) {}
}

/// A cell that is to run: its arguments for the program, and where it writes.
pub(crate) struct Job {
    cell: usize,
    arguments: Vec<String>,
    directory: Partial,
    /// Seconds after which it has failed.
    timeout: u32,
    /// If it writes a snapshot beside its ledger.
    saves: bool,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) enum End {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// In another way, which is the reason why the cell failed; the end of the output is shown with it if that helps.
    Broken(String),
}

/// Where jobs run.
pub(crate) trait Executor {
    /// How many more jobs it takes now.
    fn room(&self) -> usize;
    /// Takes jobs, and returns those that can't be started, with the reason.
    fn start(&mut self, jobs: Vec<Job>) -> Vec<(Job, String)>;
    /// The jobs that have ended since the last look.
    fn ended(&mut self) -> Vec<(Job, End)>;
    /// If it has no job.
    fn is_idle(&self) -> bool;
    /// Ends all jobs, and waits until none of them writes any more.
    fn cancel(&mut self);
}

/// The end of what a cell printed.
pub fn tail(output: &Path) -> Vec<String> {
    let read = || {
        let mut file = File::open(output)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL.0)))?;
        let mut bytes = Vec::new();
        file.take(TAIL.0).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let printable = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
    let lines: Vec<String> = text.lines().map(printable).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL.1)..].to_vec()
}

struct Runner<'a> {
    cells: &'a [Cell<'a>],
    options: &'a Options,
    store: &'a Store,
    fingerprints: Vec<Option<String>>,
    outcomes: Vec<Option<Outcome>>,
    boots: Boots,
    /// Cells with the same fingerprint as an earlier one.
    same: BTreeMap<usize, usize>,
}

impl Runner<'_> {
    fn fail(&mut self, cell: usize, reason: String, tail: Vec<String>, watch: &mut dyn Watch) {
        self.conclude(cell, Outcome::Failed(Failure { reason, tail, ran: true }), true, watch);
    }

    fn conclude(&mut self, cell: usize, outcome: Outcome, ran: bool, watch: &mut dyn Watch) {
        watch.done(&self.cells[cell], &outcome, ran);
        self.outcomes[cell] = Some(outcome);
    }

    /// Concludes what needs no run, and returns what does.
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
                    let advice = format!("{error}: '{}' makes it", cell.guest().made_by);
                    let failure = Failure { reason: advice, tail: Vec::new(), ran: false };
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

    /// What is to be run for a cell.
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

    /// What became of a job that has ended.
    fn end(&mut self, job: Job, end: End, watch: &mut dyn Watch) {
        let Job { cell, directory, .. } = job;
        self.boots.ended(cell);
        let wanted = self.cells[cell].guest().status;
        let reason = match end {
            End::Exited(code) if code == wanted => None,
            End::Exited(TIMED_OUT) => Some(format!("was not done after {} s", self.cells[cell].timeout())),
            End::Exited(PANICKED) => Some("ended because the guest's kernel panicked".into()),
            End::Exited(RESET) => Some("ended with a reset that nobody asked for".into()),
            End::Exited(code) => Some(format!("ended with status {code} where {wanted} was expected")),
            End::Signalled(signal) => Some(format!("was ended by signal {signal}")),
            End::Broken(reason) => Some(reason),
        };
        let output = tail(&directory.path().join(OUTPUT));
        if let Some(reason) = reason {
            return match room(&directory) {
                Ok(()) => self.fail(cell, reason, output, watch),
                // That is why, whatever it had to say of it.
                Err(error) => {
                    let reason = format!("{} can't be written to: {error}", self.store.path().display());
                    self.fail(cell, reason, Vec::new(), watch)
                }
            };
        }
        let fingerprint = self.fingerprints[cell].clone().unwrap_or_default();
        match self.store.keep(directory, &fingerprint, &self.cells[cell].command()) {
            Ok(finished) => self.conclude(cell, Outcome::Finished(finished), true, watch),
            Err(reason) => self.fail(cell, format!("can't be kept: {reason}"), output, watch),
        }
    }

    /// The next cell that need not wait for another one's boot.
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

    /// A cell that could not even be started.
    fn not_started(&mut self, cell: usize, reason: String, watch: &mut dyn Watch) {
        self.boots.ended(cell);
        self.conclude(cell, Outcome::Failed(Failure { reason, tail: Vec::new(), ran: false }), true, watch);
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

/// Whether there is room for what a cell writes: the same that `tollgate run` makes sure of for a ledger.
fn room(directory: &Partial) -> std::io::Result<()> {
    std::fs::write(directory.path().join("room"), [0; ROOM])
}

/// Runs cells that are not finished yet, and returns what became of each. Ends early when `stop` is set. Cells end with the
/// thread that calls this, if not before.
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
