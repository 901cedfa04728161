//! Slurm's commands.

use super::script::Batch;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Slurm's default limit of tasks in an array.
const LARGEST_ARRAY: usize = 1001;
/// The required commands.
const NEEDED: [&str; 4] = ["sbatch", "squeue", "scancel", "scontrol"];

/// The reason why Slurm can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// Slurm is not installed.
    #[error(
        "--on slurm needs {0}, which is not on the PATH; Debian and Ubuntu have it in the package slurm-client (slurm-wlm for a whole cluster)"
    )]
    Missing(&'static str),
    /// The program could not be copied to the store.
    #[error("{program} can't be copied into {store}, where nodes would run it: {error}")]
    Copy {
        /// The program.
        program: String,
        /// The directory.
        store: String,
        /// The error.
        error: std::io::Error,
    },
}

/// Slurm's commands.
pub struct Commands {
    /// Further options of `sbatch`.
    options: Vec<String>,
}

/// A task in the output of `squeue`.
pub struct Listed {
    /// Number in the array; `None` if the entry is not a task of an array.
    pub task: Option<usize>,
    /// Reason why the task does not run, if any.
    pub reason: String,
}

/// Runs a command. Returns its output, or its error message.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name} can't be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr).lines().last().unwrap_or("it gave no reason").to_owned()),
    }
}

impl Commands {
    /// Checks that all commands are installed.
    pub fn new(options: &[String]) -> Result<Self, SlurmError> {
        for name in NEEDED {
            let tried = Command::new(name).arg("--version").stdin(Stdio::null()).output();
            if tried.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                return Err(SlurmError::Missing(name));
            }
        }
        Ok(Self { options: options.to_vec() })
    }

    /// Returns the largest number of tasks that Slurm allows in an array.
    pub fn largest_array(&self) -> usize {
        let config = output(Command::new("scontrol").args(["show", "config"])).unwrap_or_default();
        let found = config.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == "MaxArraySize").then(|| value.trim().parse::<usize>().ok())?
        });
        found.unwrap_or(LARGEST_ARRAY).max(1)
    }

    /// Submits an array of `count` tasks, and returns Slurm's job number.
    pub fn submit(&self, batch: &Batch, count: usize, at_once: Option<usize>, minutes: u32) -> Result<String, String> {
        let limit = at_once.map_or_else(String::new, |jobs| format!("%{jobs}"));
        let mut command = Command::new("sbatch");
        command
            .args(["--parsable", "--job-name=tollgate-lab", "--requeue", "--open-mode=append", "--ntasks=1"])
            .arg(format!("--time={minutes}"))
            .arg(format!("--output={}", batch.log().display()))
            .args(&self.options)
            .arg(format!("--array=0-{}{limit}", count - 1))
            .arg(batch.script());
        let printed = output(&mut command).map_err(|reason| format!("was rejected by Slurm: {reason}"))?;
        // With several clusters, the cluster's name follows the number.
        let id = printed.lines().last().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        let numeric = !id.is_empty() && id.chars().all(|c| c.is_ascii_digit());
        if numeric { Ok(id) } else { Err(format!("was rejected by Slurm: sbatch printed '{printed}'")) }
    }

    /// Returns the unfinished tasks of an array; `None` if Slurm does not answer.
    pub fn tasks(&self, id: &str) -> Option<Vec<Listed>> {
        let listed = output(Command::new("squeue").args(["--noheader", "--array", "--jobs", id, "--format=%K|%r"]));
        match listed {
            Ok(text) => Some(text.lines().map(parsed).collect()),
            // Slurm forgets an array some minutes after its end.
            Err(reason) if reason.contains("Invalid job id") => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Describes the end of a task that left no status.
    pub fn post_mortem(&self, id: &str, number: usize) -> String {
        let record = output(Command::new("scontrol").args(["--oneliner", "show", "job", &format!("{id}_{number}")]));
        let record = record.unwrap_or_default();
        let field = |name: &str| {
            let found = record.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.filter(|value| !value.is_empty() && *value != "(null)" && *value != "None").map(str::to_owned)
        };
        let Some(state) = field("JobState") else { return "is no longer known to Slurm".to_owned() };
        let mut told = state;
        if let Some(reason) = field("Reason") {
            told += &format!(" ({reason})");
        }
        if let Some(code) = field("ExitCode") {
            told += &format!(", exit code {code}");
        }
        if let Some(node) = field("NodeList").or_else(|| field("BatchHost")) {
            told += &format!(", on {node}; does that node see the results' directory?");
        }
        told
    }

    /// Cancels an array or a task. A failure is ignored.
    pub fn cancel(&self, id: &str) {
        let _ = output(Command::new("scancel").arg(id));
    }
}

fn parsed(line: &str) -> Listed {
    let (task, reason) = line.split_once('|').unwrap_or((line, ""));
    Listed { task: task.trim().parse().ok(), reason: reason.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_squeue_is_a_task_and_why_it_waits() {
        let line = parsed("17|(launch failed requeued held)");
        assert_eq!((line.task, line.reason.as_str()), (Some(17), "(launch failed requeued held)"));
        assert_eq!(parsed("N/A|None").task, None);
    }
}
