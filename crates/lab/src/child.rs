//! A child process with its output in a file. It gets a signal when the thread that started it ends, and it is killed if it prints too much.

use crate::tether::tether;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Largest output of a child, in bytes.
pub const MOST_OUTPUT: u64 = 64 << 20;

/// The time that a child has to end when it is asked.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between looks at a child that is to end.
const NAP: Duration = Duration::from_millis(20);

/// Says that a signal ended a process of this host.
pub fn killed(signal: i32) -> String {
    let memory = if signal == Signal::KILL.as_raw() { ": this host may have too little memory" } else { "" };
    format!("was ended on this host by signal {signal}{memory}")
}

/// Signals that end a process, with their numbers on x86-64.
const SIGNALS: [(u8, &str); 20] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (31, "SIGSYS"),
];

/// Describes the exit status of a command. A status above 128 is that of a command that a signal has ended, by convention only: the signal is named as such.
pub fn status_text(status: u8) -> String {
    let signal = SIGNALS.iter().find(|(signal, _)| status.checked_sub(128) == Some(*signal));
    signal.map_or_else(|| format!("status {status}"), |(_, name)| format!("status {status}, as after {name}"))
}

/// A running child.
pub struct Child {
    process: process::Child,
    output: PathBuf,
}

/// The end of a child.
pub enum Exit {
    /// The child ended by itself or by a signal.
    Status(ExitStatus),
    /// The child was killed, because it had printed more than [`MOST_OUTPUT`].
    TooLong,
}

impl Child {
    /// Starts a program without input. Its standard output and error go to the file `output`, and it keeps the descriptor `inherited` open. It gets the
    /// signal `orphaned` when the thread that starts it ends.
    pub fn start(command: &mut Command, output: PathBuf, inherited: BorrowedFd, orphaned: Signal) -> io::Result<Self> {
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // Keys on the terminal signal this program, which then ends its children itself.
        command.process_group(0);
        tether(command, inherited, orphaned)?;
        Ok(Self { process: command.spawn()?, output })
    }

    /// Returns the child's end, or None if the child still runs.
    pub fn ended(&mut self) -> io::Result<Option<Exit>> {
        if let Some(status) = self.process.try_wait()? {
            return Ok(Some(Exit::Status(status)));
        }
        let long = std::fs::metadata(&self.output).is_ok_and(|file| file.len() > MOST_OUTPUT);
        Ok(long.then(|| {
            self.kill();
            Exit::TooLong
        }))
    }

    /// Asks the child and the processes that it started to end, and kills them if they do not. Waits for the child's end.
    pub fn end_all(&mut self) {
        let group = Pid::from_child(&self.process);
        // The processes may have ended already.
        let _ = kill_process_group(group, Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(NAP);
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.process.wait();
    }

    /// Kills the child and waits for its end.
    pub fn kill(&mut self) {
        // The child may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_a_signal_has_its_name() {
        assert_eq!(
            [1, 128, 139, 255].map(status_text),
            ["status 1", "status 128", "status 139, as after SIGSEGV", "status 255"]
        );
    }
}
