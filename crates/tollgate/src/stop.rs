//! The signals by which a user ends a measurement. Where a part of a result is a result, the first one is a request: what is complete is shown, and the second
//! one ends the program at once. Elsewhere the first one does.

use crate::output::say;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Exit status after an interruption by the user: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;
/// The number of times that a directory is removed. A run that is about to be killed may add a file to it meanwhile.
const ATTEMPTS: usize = 100;
/// The time between two attempts.
const NAP: Duration = Duration::from_millis(10);

/// The program's present activity, the temporary directories that it would leave behind if it ended now, and whether it has begun to show its result.
#[derive(Default)]
struct Now {
    doing: String,
    temporary: BTreeSet<PathBuf>,
    showing: bool,
}

/// The signal that ends the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Second,
}

/// The flag that the first of the signals sets.
pub struct Stop {
    asked: Arc<AtomicBool>,
    now: Arc<Mutex<Now>>,
}

impl Deref for Stop {
    type Target = AtomicBool;

    fn deref(&self) -> &AtomicBool {
        &self.asked
    }
}

/// Locks the state. A thread that has panicked leaves it complete.
fn locked(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a directory that processes may still write to.
fn remove(directory: &Path) {
    for _ in 0..ATTEMPTS {
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => std::thread::sleep(NAP),
            _ => return,
        }
    }
}

/// Kills the processes that the program has started and not waited for.
fn kill_children() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let numbers = children.collect::<String>();
    for child in numbers.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        // The process may have ended already.
        let _ = kill_process(child, Signal::KILL);
    }
}

/// Ends the program. The state stays locked, so that the main thread does not report the loss of its files.
fn end(now: &Mutex<Now>, which: Which, without: &str) -> ! {
    let now = locked(now);
    kill_children();
    now.temporary.iter().for_each(|directory| remove(directory));
    // On a terminal, the line replaces a bar.
    let start = if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    let what = if now.showing { "the result may be incomplete" } else { without };
    let when = match (which, now.doing.as_str()) {
        (Which::Second, _) => "ended at the second signal".to_owned(),
        (Which::First, "") => "interrupted".to_owned(),
        (Which::First, doing) => format!("interrupted while measuring {doing}"),
    };
    say(&format!("{start}tollgate: {when}: {what}"));
    std::process::exit(INTERRUPTED.into())
}

impl Stop {
    /// Waits for SIGINT, SIGTERM and SIGHUP. `without` says what the user does not get after a second signal, before a result is shown.
    pub fn on_signals(without: &'static str) -> io::Result<Self> {
        Self::at(Which::Second, without)
    }

    /// Ends the program at the first of these signals.
    pub fn at_first_signal(without: &'static str) -> io::Result<Self> {
        Self::at(Which::First, without)
    }

    fn at(which: Which, without: &'static str) -> io::Result<Self> {
        let stop = Self { asked: Arc::default(), now: Arc::default() };
        let (asked, now) = (Arc::clone(&stop.asked), Arc::clone(&stop.now));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                if asked.swap(true, Ordering::Relaxed) || which == Which::First {
                    end(&now, which, without);
                }
            }
        })?;
        Ok(stop)
    }

    /// Notes what is being measured.
    pub fn measures(&self, what: &str) {
        let mut now = locked(&self.now);
        if now.doing != what {
            now.doing = what.to_owned();
        }
    }

    /// Notes a directory that the program removes at its end.
    pub fn remember(&self, directory: &Path) {
        locked(&self.now).temporary.insert(directory.to_path_buf());
    }

    /// Removes a directory that was remembered.
    pub fn remove(&self, directory: &Path) {
        let mut now = locked(&self.now);
        if now.temporary.remove(directory) {
            remove(directory);
        }
    }

    /// Says that the result is shown or saved from here on.
    pub fn shows(&self) {
        locked(&self.now).showing = true;
    }
}
