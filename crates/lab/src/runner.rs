//! Runs cells as child processes: some at a time, each in a directory of its own that gets its final name, the cell's
//! fingerprint, once the cell is done. So a finished cell is never run again, and one that was interrupted leaves nothing.

use crate::Cell;
use crate::fingerprint::{Fingerprints, Unreadable};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A finished cell's ledger.
const LEDGER: &str = "ledger";
/// What a cell printed.
const OUTPUT: &str = "output";
/// The most that a cell may print, in bytes.
const MOST_OUTPUT: u64 = 64 << 20;
/// How much of a failed cell's output is shown: bytes, lines.
const TAIL: (u64, usize) = (8192, 12);
/// Between two looks at the children.
const NAP: Duration = Duration::from_millis(10);
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
    /// Where finished cells are kept.
    pub out: PathBuf,
    /// How many at a time.
    pub jobs: usize,
    /// Whether cells are run although there is a finished one.
    pub fresh: bool,
    /// Arguments of `tollgate run` that say what executes the instructions; what comes out does not depend on them.
    pub tier: Vec<String>,
}

/// Why nothing could be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program can't be read.
    #[error(transparent)]
    Program(#[from] Unreadable),
    /// The directory for finished cells can't be used.
    #[error("{path} can't be used for the results: {error}")]
    Directory {
        /// The directory.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

/// Why a cell has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In a few words.
    pub reason: String,
    /// The end of what it printed.
    pub tail: Vec<String>,
}

/// A cell that ran as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its ledger.
    pub ledger: PathBuf,
    /// What it printed.
    pub output: PathBuf,
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
    /// A cell was begun.
    fn begun(&mut self, _cell: &Cell) {}
    /// A cell is done; `ran` if it ran now.
    fn done(&mut self, _cell: &Cell, _outcome: &Outcome, _ran: bool) {}
    /// Some time has passed.
    fn tick(&mut self) {}
}

/// A cell that is running.
struct Running {
    cell: usize,
    child: Child,
    directory: Partial,
}

/// A directory that is removed unless it gets its final name.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After it got its final name there is nothing left here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
    fingerprints: Vec<Option<String>>,
    outcomes: Vec<Option<Outcome>>,
    /// Cells with the same fingerprint as an earlier one.
    same: BTreeMap<usize, usize>,
    started: usize,
}

impl Runner<'_> {
    fn finished(&self, fingerprint: &str) -> Finished {
        let directory = self.options.out.join(fingerprint);
        Finished { ledger: directory.join(LEDGER), output: directory.join(OUTPUT) }
    }

    fn fail(&mut self, cell: usize, reason: String, tail: Vec<String>, watch: &mut dyn Watch) {
        self.settle(cell, Outcome::Failed(Failure { reason, tail }), true, watch);
    }

    fn settle(&mut self, cell: usize, outcome: Outcome, ran: bool, watch: &mut dyn Watch) {
        watch.done(&self.cells[cell], &outcome, ran);
        self.outcomes[cell] = Some(outcome);
    }

    /// Settles what needs no run, and returns what does.
    fn plan(&mut self, watch: &mut dyn Watch) -> Result<Vec<usize>, RunError> {
        let mut prints = Fingerprints::new(&self.options.root, &self.options.program)?;
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let mut wanted = Vec::new();
        for (at, cell) in self.cells.iter().enumerate() {
            let fingerprint = match prints.of(cell) {
                Ok(fingerprint) => fingerprint,
                Err(error) => {
                    let advice = format!("{error}: '{}' makes it", cell.guest().made_by);
                    self.fail(at, advice, Vec::new(), watch);
                    continue;
                }
            };
            self.fingerprints[at] = Some(fingerprint.clone());
            let finished = self.finished(&fingerprint);
            if let Some(&earlier) = first.get(&fingerprint) {
                self.same.insert(at, earlier);
            } else if !self.options.fresh && finished.ledger.is_file() {
                self.settle(at, Outcome::Finished(finished), false, watch);
            } else {
                first.insert(fingerprint, at);
                wanted.push(at);
            }
        }
        Ok(wanted)
    }

    fn start(&mut self, cell: usize) -> std::io::Result<Running> {
        self.started += 1;
        let name = format!(".partial-{}-{}", std::process::id(), self.started);
        let directory = Partial(self.options.out.join(name));
        std::fs::create_dir_all(&directory.0)?;
        let output = File::create(directory.0.join(OUTPUT))?;
        let mut command = Command::new(&self.options.program);
        command
            .args(self.cells[cell].arguments())
            .args(&self.options.tier)
            .args(["--timeout", &self.cells[cell].timeout().to_string(), "--ledger"])
            .arg(std::path::absolute(directory.0.join(LEDGER))?)
            .current_dir(&self.options.root)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Keys on the terminal are for the laboratory, which then ends its cells itself.
            .process_group(0);
        Ok(Running { cell, child: command.spawn()?, directory })
    }

    /// What became of a child that has ended.
    fn end(&mut self, running: Running, status: ExitStatus, watch: &mut dyn Watch) {
        let (cell, directory) = (running.cell, &running.directory.0);
        let wanted = self.cells[cell].guest().status;
        let reason = match (status.code(), status.signal()) {
            (Some(code), _) if code == wanted => None,
            (Some(TIMED_OUT), _) => Some(format!("was not done after {} s", self.cells[cell].timeout())),
            (Some(PANICKED), _) => Some("ended because the guest's kernel panicked".into()),
            (Some(RESET), _) => Some("ended with a reset that nobody asked for".into()),
            (Some(code), _) => Some(format!("ended with status {code} where {wanted} was expected")),
            (None, signal) => Some(format!("was ended by signal {}", signal.unwrap_or(0))),
        };
        if let Some(reason) = reason {
            return self.fail(cell, reason, tail(&directory.join(OUTPUT)), watch);
        }
        let fingerprint = self.fingerprints[cell].clone().unwrap_or_default();
        let place = self.options.out.join(&fingerprint);
        // An older one is in the way only if it was to be made anew.
        let _ = std::fs::remove_dir_all(&place);
        match std::fs::rename(directory, &place) {
            Ok(()) => self.settle(cell, Outcome::Finished(self.finished(&fingerprint)), true, watch),
            Err(error) => self.fail(cell, format!("{} can't be made: {error}", place.display()), Vec::new(), watch),
        }
    }

    fn run(&mut self, wanted: Vec<usize>, stop: &AtomicBool, watch: &mut dyn Watch) {
        let mut waiting = wanted.into_iter();
        let mut running: Vec<Running> = Vec::new();
        loop {
            while running.len() < self.options.jobs.max(1) && !stop.load(Ordering::Relaxed) {
                let Some(cell) = waiting.next() else { break };
                watch.begun(&self.cells[cell]);
                match self.start(cell) {
                    Ok(started) => running.push(started),
                    Err(error) => self.fail(cell, format!("can't be started: {error}"), Vec::new(), watch),
                }
            }
            if running.is_empty() {
                return;
            }
            std::thread::sleep(NAP);
            watch.tick();
            let mut at = 0;
            while at < running.len() {
                match running[at].child.try_wait() {
                    Ok(Some(status)) => {
                        let ended = running.remove(at);
                        self.end(ended, status, watch);
                    }
                    Ok(None) if stop.load(Ordering::Relaxed) => kill(running.remove(at)),
                    Ok(None) if talks_too_much(&running[at]) => {
                        let (cell, output) = (running[at].cell, tail(&running[at].directory.0.join(OUTPUT)));
                        kill(running.remove(at));
                        self.fail(cell, format!("printed more than {MOST_OUTPUT} bytes"), output, watch);
                    }
                    Ok(None) => at += 1,
                    Err(error) => {
                        let cell = running[at].cell;
                        kill(running.remove(at));
                        self.fail(cell, format!("can't be waited for: {error}"), Vec::new(), watch);
                    }
                }
            }
        }
    }
}

/// Ends a child and removes what it has written.
fn kill(mut running: Running) {
    // It may have ended by itself in between.
    let _ = running.child.kill();
    let _ = running.child.wait();
}

fn talks_too_much(running: &Running) -> bool {
    std::fs::metadata(running.directory.0.join(OUTPUT)).is_ok_and(|file| file.len() > MOST_OUTPUT)
}

/// Runs cells that are not finished yet, and returns what became of each. Ends early when `stop` is set.
pub fn run(
    cells: &[Cell],
    options: &Options,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<Vec<Outcome>, RunError> {
    let directory = |error| RunError::Directory { path: options.out.display().to_string(), error };
    std::fs::create_dir_all(&options.out).map_err(directory)?;
    let count = cells.len();
    let mut runner = Runner {
        cells,
        options,
        fingerprints: vec![None; count],
        outcomes: vec![None; count],
        same: BTreeMap::new(),
        started: 0,
    };
    let wanted = runner.plan(watch)?;
    runner.run(wanted, stop, watch);
    for (at, earlier) in std::mem::take(&mut runner.same) {
        let outcome = runner.outcomes[earlier].clone().unwrap_or(Outcome::Interrupted);
        runner.settle(at, outcome, false, watch);
    }
    Ok(runner.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Interrupted)).collect())
}

#[cfg(test)]
mod tests;
