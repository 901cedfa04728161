//! Cells as array jobs of Slurm, on nodes that share the store's directory.
//!
//! Slurm is used by its commands, as a user would. A batch of cells is one array: each task runs a script of its own that the batch's
//! directory has, and at its end leaves the status there, under its number. So the outcome of a task does not depend on what Slurm still
//! knows of it; Slurm is only asked about tasks that left none.

mod commands;
mod script;

use super::{End, Executor, Job, MOST_OUTPUT, Options};
use crate::store::{OUTPUT, Partial, Store};
use commands::Commands;
pub use commands::SlurmError;
use script::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks at the statuses that tasks have left.
const LOOK: Duration = Duration::from_millis(500);
/// Between two questions to Slurm.
const ASK: Duration = Duration::from_secs(5);
/// How long the status of a task that Slurm does not list any more may take to arrive: the delay of a network file system.
const GRACE: Duration = Duration::from_secs(15);
/// Before Slurm is asked again to take an array that it did not take while others ran.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long cancelled tasks may take to end.
const FAREWELL: Duration = Duration::from_secs(30);
/// A reason of Slurm's to hold a task that could not be started on its node; nobody would ever release it.
const HELD: &str = "launch failed requeued held";

/// An array that has been submitted.
struct Array {
    /// Slurm's number of it.
    id: String,
    batch: Batch,
    /// Tasks that have not ended, by number.
    tasks: BTreeMap<usize, Task>,
}

struct Task {
    job: Job,
    /// When Slurm did not list it any more.
    gone: Option<Instant>,
}

/// A cluster.
pub struct Slurm<'a> {
    options: &'a Options,
    store: &'a Store,
    commands: Commands,
    /// Tasks of an array that run at a time, at most.
    at_once: Option<usize>,
    /// Tasks of an array, at most.
    largest: usize,
    /// The directory of the program's copy.
    _directory: Partial,
    program: PathBuf,
    /// Jobs that are not submitted yet.
    queue: Vec<Job>,
    arrays: Vec<Array>,
    /// When Slurm may be asked again to take an array.
    next_submission: Instant,
    looked: Instant,
    asked: Instant,
}

impl<'a> Slurm<'a> {
    /// The cluster that `sbatch` submits to, with more of its options. The program is copied into the store, so that all nodes run the same
    /// one even if it is built anew meanwhile.
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

    /// Submits an array of the first jobs that wait.
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

    /// Submits what waits; if that fails while nothing runs, nothing will change it, and the jobs are returned.
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

    /// Notes which tasks Slurm still knows.
    fn ask(&mut self) -> Vec<(Job, End)> {
        let mut lost = Vec::new();
        for array in &mut self.arrays {
            // A controller that does not answer is asked again.
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

/// How a shell's status says that a task ended.
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
        // Slurm is asked first: what it does not list any more must have left a status by now.
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
        // Whatever ends the run early leaves nothing on the cluster.
        self.arrays.iter().for_each(|array| self.commands.cancel(&array.id));
    }
}
