//! Cells as child processes on this host.

use super::{End, Executor, Job, Options};
use crate::child::{Child, Exit, MOST_OUTPUT};
use crate::store::{LEDGER, OUTPUT};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Child processes, several at a time.
pub struct Local<'a> {
    options: &'a Options,
    jobs: usize,
    running: Vec<(Job, Child)>,
}

impl<'a> Local<'a> {
    /// Creates an executor for `jobs` children at a time.
    pub fn new(options: &'a Options, jobs: usize) -> Self {
        Self { options, jobs: jobs.max(1), running: Vec::new() }
    }

    fn spawn(&self, job: &Job) -> std::io::Result<Child> {
        let mut command = Command::new(&self.options.program);
        command
            .args(&job.arguments)
            .arg("--ledger")
            .arg(std::path::absolute(job.directory.path().join(LEDGER))?)
            .current_dir(&self.options.root);
        Child::start(&mut command, job.directory.path().join(OUTPUT), job.directory.descriptor(), Signal::KILL)
    }
}

fn end(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, signal) => End::Signalled(signal.unwrap_or(0)),
    }
}

impl Executor for Local<'_> {
    fn room(&self) -> usize {
        self.jobs.saturating_sub(self.running.len())
    }

    fn start(&mut self, jobs: Vec<Job>) -> Vec<(Job, String)> {
        let mut refused = Vec::new();
        for job in jobs {
            match self.spawn(&job) {
                Ok(child) => self.running.push((job, child)),
                Err(error) => {
                    let place = job.directory.path().parent().unwrap_or(job.directory.path()).display().to_string();
                    refused.push((job, format!("can't be started in {place}: {error}")));
                }
            }
        }
        refused
    }

    fn ended(&mut self) -> Vec<(Job, End)> {
        let mut ended = Vec::new();
        for (job, mut child) in std::mem::take(&mut self.running) {
            let end = match child.ended() {
                Ok(Some(Exit::Status(status))) => end(status),
                Ok(Some(Exit::TooLong)) => End::Broken(format!("printed more than {MOST_OUTPUT} bytes")),
                Ok(None) => {
                    self.running.push((job, child));
                    continue;
                }
                Err(error) => {
                    child.kill();
                    End::Broken(format!("can't be waited for: {error}"))
                }
            };
            ended.push((job, end));
        }
        ended
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn cancel(&mut self) {
        self.running.drain(..).for_each(|(_, mut child)| child.kill());
    }
}
