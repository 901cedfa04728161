//! The signals by which a user ends a measurement. The first one is a request: what is complete is shown. The second one ends the program at once.

use crate::output::say;
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

/// The temporary directories that the program would leave behind if it ended now, and whether it has begun to show its result.
#[derive(Default)]
struct Now {
    temporary: BTreeSet<PathBuf>,
    showing: bool,
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

/// Ends the program. The state stays locked, so that the main thread does not report the loss of its files.
fn end(now: &Mutex<Now>, without: &str) -> ! {
    let now = locked(now);
    now.temporary.iter().for_each(|directory| remove(directory));
    // On a terminal, the line replaces a bar.
    let start = if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    let what = if now.showing { "the result may be incomplete" } else { without };
    say(&format!("{start}tollgate: ended at the second signal: {what}"));
    std::process::exit(INTERRUPTED.into())
}

impl Stop {
    /// Waits for SIGINT, SIGTERM and SIGHUP. `without` says what the user does not get after a second signal, before a result is shown.
    pub fn on_signals(without: &'static str) -> io::Result<Self> {
        let stop = Self { asked: Arc::default(), now: Arc::default() };
        let (asked, now) = (Arc::clone(&stop.asked), Arc::clone(&stop.now));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                if asked.swap(true, Ordering::Relaxed) {
                    end(&now, without);
                }
            }
        })?;
        Ok(stop)
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
