//! The scripts that nodes run: one for the array, and one for each task.

use super::super::Job;
use super::super::shell::quoted;
use crate::store::{LEDGER, OUTPUT, Partial, Store};
use std::path::{Path, PathBuf};

/// Largest file of a cell that does not save a machine, in the 512-byte units of `ulimit -f`: 256 MiB.
const LARGEST_FILE: u64 = 512 << 10;
/// Number of characters shown of a task's messages outside its cell.
const MOST_SAID: usize = 300;

/// The directory of an array.
pub struct Batch {
    directory: Partial,
    path: PathBuf,
}

/// Returns the script of a task. Each attempt writes files of its own, because a node that Slurm gave up may still be writing while the task runs
/// again on another node. The first attempt to finish renames its files and then reports its status.
fn task(program: &Path, root: &Path, batch: &Path, number: usize, job: &Job) -> std::io::Result<String> {
    let path = |path: &Path| std::path::absolute(path).map(|path| quoted(&path.to_string_lossy()));
    let directory = path(job.directory.path())?;
    let arguments = job.arguments.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let limit = if job.saves { String::new() } else { format!("ulimit -f {LARGEST_FILE}\n") };
    Ok(format!(
        "umask 022\ncd {root} || exit 1\n{limit}attempt={directory}/attempt-${{SLURM_RESTART_COUNT:-0}}\n\
         {program} {arguments} --ledger \"$attempt.ledger\" </dev/null >\"$attempt.output\" 2>&1\n\
         status=$?\n\
         mv \"$attempt.output\" {directory}/{OUTPUT} || exit 1\n\
         test ! -e \"$attempt.ledger\" || mv \"$attempt.ledger\" {directory}/{LEDGER} || exit 1\n\
         echo $status >\"$attempt.status\" && mv \"$attempt.status\" {batch}/status-{number}\n",
        root = path(root)?,
        program = path(program)?,
        batch = path(batch)?,
    ))
}

impl Batch {
    /// Writes the scripts of jobs, which run `program` in the directory `root`.
    pub fn new(store: &Store, program: &Path, root: &Path, jobs: &[Job]) -> std::io::Result<Self> {
        let directory = store.partial()?;
        let path = std::path::absolute(directory.path())?;
        for (number, job) in jobs.iter().enumerate() {
            std::fs::write(path.join(format!("task-{number}")), task(program, root, &path, number, job)?)?;
        }
        let place = quoted(&path.to_string_lossy());
        std::fs::write(path.join("job"), format!("#!/bin/sh\nexec sh {place}/task-\"$SLURM_ARRAY_TASK_ID\"\n"))?;
        Ok(Self { directory, path })
    }

    /// Returns the path of the array's script.
    pub fn script(&self) -> PathBuf {
        self.path.join("job")
    }

    /// Returns the path of a task's own output, as a pattern of `sbatch`.
    pub fn log(&self) -> PathBuf {
        self.path.join("said-%a")
    }

    /// Returns the tasks that have ended, with their statuses. Listing the directory refreshes a network file system's cache.
    pub fn statuses(&self) -> Vec<(usize, i32)> {
        let entries = std::fs::read_dir(self.directory.path()).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let number = entry.file_name().to_str()?.strip_prefix("status-")?.parse().ok()?;
                let status = std::fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
                Some((number, status))
            })
            .collect()
    }

    /// Returns the last line of output that a task's script, or Slurm, wrote about the task.
    pub fn said(&self, number: usize) -> Option<String> {
        let text = std::fs::read(self.path.join(format!("said-{number}"))).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(MOST_SAID).collect())
    }
}
