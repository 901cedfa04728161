//! Cells as Slurm array jobs, on nodes that share the store's directory.
//!
//! The module uses Slurm's commands. A batch of cells is one array. Each task runs its own script from the batch's directory, and at its end
//! writes its exit status there, under its number. The outcome of a task therefore does not depend on Slurm's records; Slurm is only queried
//! about tasks without a status.

mod commands;
mod script;

use super::{End, Executor, Job, Options};
use crate::child::MOST_OUTPUT;
use crate::store::{OUTPUT, Partial, Store};
use commands::Commands;
pub use commands::SlurmError;
use script::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between checks of the tasks' statuses.
const LOOK: Duration = Duration::from_millis(500);
/// Interval between queries of Slurm.
const ASK: Duration = Duration::from_secs(5);
/// Time that the status of a task which Slurm no longer lists may take to arrive: the delay of a network file system.
const GRACE: Duration = Duration::from_secs(15);
/// Interval between attempts to submit an array that Slurm refused while others ran.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that cancelled tasks may take to end.
const FAREWELL: Duration = Duration::from_secs(30);
/// Slurm's reason for holding a task that could not start on its node. Such a task is never released by itself.
const HELD: &str = "launch failed requeued held";

/// A submitted array.
struct Array {
    /// Slurm's job number.
    id: String,
    batch: Batch,
    /// Tasks that have not ended, by number.
    tasks: BTreeMap<usize, Task>,
}

struct Task {
    job: Job,
    /// The time at which Slurm no longer listed the task.
    gone: Option<Instant>,
}

/// A cluster.
pub struct Slurm<'a> {
    options: &'a Options,
    store: &'a Store,
    commands: Commands,
    /// Largest number of tasks of an array that run at a time.
    at_once: Option<usize>,
    /// Largest number of tasks in an array.
    largest: usize,
    /// Directory of the copied program.
    _directory: Partial,
    program: PathBuf,
    /// Jobs that are not submitted yet.
    queue: Vec<Job>,
    arrays: Vec<Array>,
    /// Earliest time of the next attempt to submit an array.
    next_submission: Instant,
    looked: Instant,
    asked: Instant,
}

impl<'a> Slurm<'a> {
    /// Connects to the cluster that `sbatch` submits to, with further options of `sbatch`. The program is copied into the store, so that all nodes run
    /// the same build even if the original changes.
    pub fn new(
        options: &'a Options,
        store: &'a Store,
        at_once: Option<usize>,
        sbatch: &[String],
    ) -> Result<Self, SlurmError> {
        let commands = Commands::new(sbatch)?;
        let copied = || -> std::io::Result<(Partial, PathBuf)> {
            let directory = store.partial()?;
            let program = std::path::absolute(directory.path().join("tollgate"))?;
            std::fs::copy(&options.program, &program)?;
            Ok((directory, program))
        };
        let (directory, program) = copied().map_err(|error| SlurmError::Copy {
            program: options.program.display().to_string(),
            store: store.path().display().to_string(),
            error,
        })?;
        let now = Instant::now();
        let largest = commands.largest_array();
        Ok(Self {
            options,
            store,
            commands,
            at_once,
            largest,
            _directory: directory,
            program,
            queue: Vec::new(),
            arrays: Vec::new(),
            next_submission: now,
            looked: now,
            asked: now,
        })
    }

    /// Submits an array of the first waiting jobs.
    fn submit(&mut self) -> Result<(), String> {
        let count = self.queue.len().min(self.largest);
        let batch = Batch::new(self.store, &self.program, &self.options.root, &self.queue[..count])
            .map_err(|error| format!("can't be prepared in {}: {error}", self.store.path().display()))?;
        let minutes = self.queue[..count].iter().map(|job| job.timeout).max().unwrap_or(0) / 60 + 2;
        let id = self.commands.submit(&batch, count, self.at_once, minutes)?;
        let tasks = self.queue.drain(..count).map(|job| Task { job, gone: None }).enumerate().collect();
        self.arrays.push(Array { id, batch, tasks });
        Ok(())
    }

    /// Submits the waiting jobs. Returns them with the reason if that fails while nothing runs, since a later attempt would fail too.
    fn submit_all(&mut self) -> Vec<(Job, String)> {
        while !self.queue.is_empty() && Instant::now() >= self.next_submission {
            if let Err(reason) = self.submit() {
                if self.arrays.is_empty() {
                    return self.queue.drain(..).map(|job| (job, reason.clone())).collect();
                }
                self.next_submission = Instant::now() + PATIENCE;
            }
        }
        Vec::new()
    }

    /// Updates the list of tasks that Slurm knows.
    fn ask(&mut self) -> Vec<(Job, End)> {
        let mut lost = Vec::new();
        for array in &mut self.arrays {
            // Ask again later if the controller does not answer.
            let Some(listed) = self.commands.tasks(&array.id) else { continue };
            let known: BTreeSet<usize> = listed.iter().filter_map(|line| line.task).collect();
            for (number, task) in &mut array.tasks {
                match known.contains(number) {
                    true => task.gone = None,
                    false => drop(task.gone.get_or_insert_with(Instant::now)),
                }
            }
            for line in listed.iter().filter(|line| line.reason.contains(HELD)) {
                if let Some(task) = line.task.and_then(|number| array.tasks.remove(&number)) {
                    self.commands.cancel(&format!("{}_{}", array.id, line.task.unwrap_or(0)));
                    lost.push((task.job, End::Broken(format!("can't be started by Slurm: {}", line.reason))));
                }
            }
        }
        lost
    }
}

/// Converts a shell's exit status to the end of a task.
fn end(status: i32) -> End {
    match status {
        129..=192 => End::Signalled(status - 128),
        status => End::Exited(status),
    }
}

impl Executor for Slurm<'_> {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn start(&mut self, jobs: Vec<Job>) -> Vec<(Job, String)> {
        self.queue.extend(jobs);
        self.submit_all()
    }

    fn ended(&mut self) -> Vec<(Job, End)> {
        let mut ended = Vec::new();
        if self.looked.elapsed() < LOOK {
            return ended;
        }
        // Query Slurm first: a task that it no longer lists must have left its status by now.
        if self.asked.elapsed() >= ASK {
            ended.extend(self.ask());
            self.asked = Instant::now();
        }
        for array in &mut self.arrays {
            for (number, status) in array.batch.statuses() {
                if let Some(Task { job, .. }) = array.tasks.remove(&number) {
                    let output = std::fs::metadata(job.directory.path().join(OUTPUT));
                    let end = match output.is_ok_and(|file| file.len() > MOST_OUTPUT) {
                        true => End::Broken(format!("printed more than {MOST_OUTPUT} bytes")),
                        false => end(status),
                    };
                    ended.push((job, end));
                }
            }
            let late: Vec<usize> = array
                .tasks
                .iter()
                .filter(|(_, task)| task.gone.is_some_and(|since| since.elapsed() >= GRACE))
                .map(|(number, _)| *number)
                .collect();
            for number in late {
                if let Some(Task { job, .. }) = array.tasks.remove(&number) {
                    let told = self.commands.post_mortem(&array.id, number);
                    let mut reason = format!("was ended by Slurm, task {}_{number}: {told}", array.id);
                    if let Some(said) = array.batch.said(number) {
                        reason += &format!("; {said}");
                    }
                    ended.push((job, End::Broken(reason)));
                }
            }
        }
        self.arrays.retain(|array| !array.tasks.is_empty());
        self.looked = Instant::now();
        let refused = self.submit_all();
        ended.extend(refused.into_iter().map(|(job, reason)| (job, End::Broken(reason))));
        ended
    }

    fn is_idle(&self) -> bool {
        self.arrays.is_empty() && self.queue.is_empty()
    }

    fn cancel(&mut self) {
        self.arrays.iter().for_each(|array| self.commands.cancel(&array.id));
        let begun = Instant::now();
        let runs = |array: &Array| self.commands.tasks(&array.id).is_none_or(|tasks| !tasks.is_empty());
        while begun.elapsed() < FAREWELL && self.arrays.iter().any(runs) {
            std::thread::sleep(LOOK);
        }
        self.queue.clear();
        self.arrays.clear();
    }
}

impl Drop for Slurm<'_> {
    fn drop(&mut self) {
        // Leave nothing on the cluster, whatever ends the run.
        self.arrays.iter().for_each(|array| self.commands.cancel(&array.id));
    }
}
