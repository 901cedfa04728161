//! Runs cells as child processes: some at a time, each in a directory of its own that the [`Store`] keeps once the cell is
//! done. So a finished cell is never run again, and one that was interrupted leaves nothing. Cells that differ in their workloads alone
//! boot once (`boots.rs`).

use crate::Cell;
use crate::boots::{Begin, Boots};
use crate::failure::Failure;
use crate::fingerprint::{Fingerprints, Unreadable};
use crate::store::{Finished, Found, LEDGER, OUTPUT, Partial, Store};
use crate::tether::tether;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most that a cell may print, in bytes.
const MOST_OUTPUT: u64 = 64 << 20;
/// The part of a failed cell's output that is shown: bytes, lines.
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

/// The options of a run.
pub struct Options {
    /// The `tollgate` program.
    pub program: PathBuf,
    /// The directory that guests' names are relative to.
    pub root: PathBuf,
    /// The number of cells that run at a time.
    pub jobs: usize,
    /// True if finished cells are run again.
    pub fresh: bool,
    /// Arguments of `tollgate run` that say what executes the instructions; what comes out does not depend on them.
    pub tier: Vec<String>,
}

/// The outcome of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran now, or at an earlier time.
    Finished(Finished),
    /// It failed.
    Failed(Failure),
    /// The run was interrupted before it was done.
    Interrupted,
}

/// The receiver of progress reports.
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

/// A cell that is running.
struct Running {
    cell: usize,
    child: Child,
    directory: Partial,
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

    fn start(&mut self, cell: usize, begin: Begin) -> std::io::Result<Running> {
        let directory = self.store.partial()?;
        let output = File::create(directory.path().join(OUTPUT))?;
        let mut command = Command::new(&self.options.program);
        command.args(self.cells[cell].arguments()).args(&self.options.tier);
        match begin {
            Begin::Boots | Begin::Waits => {}
            Begin::Saves(file) => drop(command.args(["--save-at", "workload"]).arg(std::path::absolute(file)?)),
            Begin::From(file) => drop(command.arg("--restore").arg(std::path::absolute(file)?)),
        }
        command
            .args(["--timeout", &self.cells[cell].timeout().to_string(), "--ledger"])
            .arg(std::path::absolute(directory.path().join(LEDGER))?)
            .current_dir(&self.options.root)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Keys on the terminal are for the laboratory, which then ends its cells itself.
            .process_group(0);
        tether(&mut command, directory.descriptor());
        Ok(Running { cell, child: command.spawn()?, directory })
    }

    /// Handles a child that has ended.
    fn end(&mut self, running: Running, status: ExitStatus, watch: &mut dyn Watch) {
        let Running { cell, directory, .. } = running;
        self.boots.ended(cell);
        let wanted = self.cells[cell].guest().status;
        let reason = match (status.code(), status.signal()) {
            (Some(code), _) if code == wanted => None,
            (Some(TIMED_OUT), _) => Some(format!("was not done after {} s", self.cells[cell].timeout())),
            (Some(PANICKED), _) => Some("ended because the guest's kernel panicked".into()),
            (Some(RESET), _) => Some("ended with a reset that nobody asked for".into()),
            (Some(code), _) => Some(format!("ended with status {code} where {wanted} was expected")),
            (None, signal) => Some(format!("was ended by signal {}", signal.unwrap_or(0))),
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

    fn run(&mut self, wanted: Vec<usize>, stop: &AtomicBool, watch: &mut dyn Watch) {
        let mut waiting = wanted;
        let mut running: Vec<Running> = Vec::new();
        loop {
            self.boots.look();
            while running.len() < self.options.jobs.max(1) && !stop.load(Ordering::Relaxed) {
                let Some((cell, begin)) = self.next(&mut waiting) else { break };
                watch.begun(&self.cells[cell]);
                match self.start(cell, begin) {
                    Ok(started) => running.push(started),
                    Err(error) => {
                        self.boots.ended(cell);
                        let reason = format!("can't be started in {}: {error}", self.store.path().display());
                        let failure = Failure { reason, tail: Vec::new(), ran: false };
                        self.conclude(cell, Outcome::Failed(failure), true, watch);
                    }
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
                        let (cell, output) = (running[at].cell, tail(&running[at].directory.path().join(OUTPUT)));
                        kill(running.remove(at));
                        self.boots.ended(cell);
                        self.fail(cell, format!("printed more than {MOST_OUTPUT} bytes"), output, watch);
                    }
                    Ok(None) => at += 1,
                    Err(error) => {
                        let cell = running[at].cell;
                        kill(running.remove(at));
                        self.boots.ended(cell);
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
    std::fs::metadata(running.directory.path().join(OUTPUT)).is_ok_and(|file| file.len() > MOST_OUTPUT)
}

/// Checks that there is room for the output of a cell, as `tollgate run` does for a ledger.
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
) -> Result<Vec<Outcome>, Unreadable> {
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
    runner.run(wanted, stop, watch);
    for (at, earlier) in std::mem::take(&mut runner.same) {
        let outcome = runner.outcomes[earlier].clone().unwrap_or(Outcome::Interrupted);
        runner.conclude(at, outcome, false, watch);
    }
    Ok(runner.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Interrupted)).collect())
}

#[cfg(test)]
mod tests;
