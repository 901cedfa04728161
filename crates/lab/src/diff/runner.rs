//! Runs the commands of a diff as child processes, several at a time.

use crate::child::{Child, Exit};
pub use crate::child::{killed, status_text};
use crate::runner::said;
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between checks of the children.
const NAP: Duration = Duration::from_millis(5);

/// The variable that names the configuration file of the user.
pub const CONFIGURATION: &str = "TOLLGATE_CONFIG";

/// A planned run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// File for the run's output.
    pub output: PathBuf,
    /// True if the job is the first of several that belong together: it does not start after the time limit, and the others follow it.
    pub leads: bool,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run exited with status 0.
    Well,
    /// The run failed: its exit status, and the last lines of its output.
    Badly(u8, Vec<String>),
    /// A signal of the host ended the program, and not the command in its guest.
    Killed(i32),
    /// The run exceeded the output limit.
    TooLong,
    /// The run was cancelled or not started, because another run failed or the user stopped the diff.
    Stopped,
    /// The run was not started, because the time limit had expired.
    Late,
}

fn ended(status: ExitStatus, output: &Path) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        (None, Some(signal)) => Ended::Killed(signal),
        (code, _) => Ended::Badly(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX), said(output)),
    }
}

fn start(program: &Path, job: &Job, directory: &File) -> io::Result<Child> {
    let mut command = Command::new(program);
    // The arguments say what a run is, and defaults of the user are among them already.
    command.args(&job.arguments).env(CONFIGURATION, "");
    Child::start(&mut command, job.output.clone(), directory.as_fd(), Signal::KILL)
}

/// Limits on the runs.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Number of jobs that run at a time.
    pub most: usize,
    /// Ends all jobs once it is set.
    pub stop: &'a AtomicBool,
    /// The time after which no job starts that leads others.
    pub until: Option<Instant>,
}

/// Runs jobs in a directory and returns the outcome of each. After a failure no further job starts. The jobs also end with the calling thread. `progress`
/// receives the number of finished jobs.
pub fn run(
    program: &Path,
    jobs: &[Job],
    directory: &Path,
    Limits { most, stop, until }: Limits<'_>,
    progress: &mut dyn FnMut(usize),
) -> io::Result<Vec<Ended>> {
    let directory = File::open(directory)?;
    let mut outcomes = vec![Ended::Stopped; jobs.len()];
    let mut running: Vec<(usize, Child)> = Vec::new();
    let (mut next, mut done, mut failed) = (0, 0, false);
    loop {
        let stopped = stop.load(Ordering::Relaxed);
        let late = until.is_some_and(|until| Instant::now() >= until);
        if late && next < jobs.len() && jobs[next].leads {
            outcomes[next..].fill(Ended::Late);
            next = jobs.len();
        }
        while next < jobs.len() && running.len() < most.max(1) && !failed && !stopped {
            running.push((next, start(program, &jobs[next], &directory)?));
            next += 1;
        }
        if running.is_empty() {
            return Ok(outcomes);
        }
        std::thread::sleep(NAP);
        let mut still = Vec::new();
        for (number, mut child) in running {
            let outcome = match child.ended()? {
                Some(Exit::Status(status)) => ended(status, &jobs[number].output),
                Some(Exit::TooLong) => Ended::TooLong,
                None if stopped => {
                    child.kill();
                    Ended::Stopped
                }
                None => {
                    still.push((number, child));
                    continue;
                }
            };
            failed |= outcome != Ended::Well;
            outcomes[number] = outcome;
            done += 1;
            progress(done);
        }
        running = still;
    }
}

/// Starts one command in a directory. If this program is killed, the command gets SIGTERM: make passes it on to its jobs, which would otherwise go on beside
/// those of the next build, and git removes its lock.
fn start_alone(command: &mut Command, output: &Path, directory: &Path, held: &File) -> io::Result<Child> {
    Child::start(command.current_dir(directory), output.to_path_buf(), held.as_fd(), Signal::TERM)
}

/// Runs one command in a directory, with its output in a file. If `stop` is set, the command and the processes that it has started are ended.
pub fn alone(command: &mut Command, output: &Path, directory: &Path, stop: &AtomicBool) -> io::Result<Ended> {
    let held = File::open(directory)?;
    let mut child = start_alone(command, output, directory, &held)?;
    loop {
        match child.ended()? {
            Some(Exit::Status(status)) => return Ok(ended(status, output)),
            Some(Exit::TooLong) => return Ok(Ended::TooLong),
            None if stop.load(Ordering::Relaxed) => {
                child.end_all();
                return Ok(Ended::Stopped);
            }
            None => std::thread::sleep(NAP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tollgate-diff-runner-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn outcomes(test: &str, scripts: &[&str], stop: bool) -> Vec<Ended> {
        let stop = AtomicBool::new(stop);
        limited(test, scripts, Limits { most: 1, stop: &stop, until: None })
    }

    fn limited(test: &str, scripts: &[&str], limits: Limits<'_>) -> Vec<Ended> {
        let directory = directory(test);
        let job = |(number, script): (usize, &&str)| Job {
            arguments: vec!["-c".into(), script.into()],
            output: directory.join(number.to_string()),
            leads: number % 2 == 0,
        };
        let jobs: Vec<Job> = scripts.iter().enumerate().map(job).collect();
        let outcomes = run(Path::new("/bin/sh"), &jobs, &directory, limits, &mut |_| {}).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        outcomes
    }

    #[test]
    fn jobs_of_a_make_end_with_the_thread_that_started_it() {
        let directory = directory("make");
        let job = directory.join("job");
        let makefile = "all:\n\t@$(MAKE) -f Makefile inner\ninner:\n\t@echo $$$$ > job; exec sleep 1000\n";
        std::fs::write(directory.join("Makefile"), makefile).unwrap();
        let begun = || {
            let mut make = Command::new("make");
            let held = File::open(&directory).unwrap();
            let child = start_alone(&mut make, &directory.join("output"), &directory, &held).unwrap();
            while std::fs::read_to_string(&job).unwrap_or_default().is_empty() {
                std::thread::sleep(NAP);
            }
            child
        };
        let mut child = std::thread::scope(|scope| scope.spawn(begun).join().unwrap());
        while child.ended().unwrap().is_none() {
            std::thread::sleep(NAP);
        }
        let job = std::fs::read_to_string(job).unwrap();
        let still = std::fs::read_to_string(format!("/proc/{}/cmdline", job.trim())).unwrap_or_default();
        assert!(!still.contains("sleep"), "make ends once its jobs have ended");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_run_that_fails_is_the_last_one() {
        let found = outcomes("fails", &["true", "echo out; echo err >&2; exit 3", "true"], false);
        assert_eq!(found, [Ended::Well, Ended::Badly(3, vec!["out".into(), "err".into()]), Ended::Stopped]);
        assert_eq!(outcomes("signal", &["kill -9 $$"], false), [Ended::Killed(9)]);
    }

    #[test]
    fn a_command_alone_ends_with_all_that_it_started() {
        let directory = directory("alone");
        let (output, stop) = (directory.join("output"), AtomicBool::new(false));
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(alone(&mut sh("test -f output"), &output, &directory, &stop).unwrap(), Ended::Well);
        let bad = alone(&mut sh("echo no; exit 2"), &output, &directory, &stop).unwrap();
        assert_eq!(bad, Ended::Badly(2, vec!["no".into()]));
        stop.store(true, Ordering::Relaxed);
        let started = Instant::now();
        assert_eq!(
            alone(&mut sh("sleep 1000 & sleep 1000; true"), &output, &directory, &stop).unwrap(),
            Ended::Stopped
        );
        assert!(started.elapsed() < Duration::from_secs(1000));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn nothing_is_begun_that_is_stopped() {
        assert_eq!(outcomes("stopped", &["true", "true"], true), [Ended::Stopped, Ended::Stopped]);
    }

    #[test]
    fn a_pair_that_began_in_time_is_finished_and_no_other_begins() {
        let stop = AtomicBool::new(false);
        let late = Some(Instant::now());
        let limits = Limits { most: 1, stop: &stop, until: late };
        assert_eq!(limited("late", &["true", "true"], limits), [Ended::Late, Ended::Late]);
        // The first of the pair outlasts the limit.
        let soon = Instant::now() + Duration::from_millis(300);
        let limits = Limits { until: Some(soon), ..limits };
        let found = limited("soon", &["sleep 0.6", "true", "true", "true"], limits);
        assert_eq!(found, [Ended::Well, Ended::Well, Ended::Late, Ended::Late]);
    }
}
