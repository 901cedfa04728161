//! Child processes, each with a process group of its own that is ended as a whole.

use crate::run::{Input, Run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The leaders of all process groups that may still run.
static LEADERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// From now on, a signal that ends this process ends the children too.
pub fn end_with_this_process() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // No child is started while this is locked.
            let leaders = LEADERS.lock().unwrap_or_else(PoisonError::into_inner);
            leaders.iter().for_each(|leader| kill(*leader));
            std::process::exit(128 + signal);
        }
    });
}

fn kill(leader: u32) {
    if let Some(group) = Pid::from_raw(leader.cast_signed()) {
        // The group may have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A running command. Dropping it ends its whole process group.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts a command whose output and messages go to these files, which may be one.
    pub fn start(run: &Run, output: &File, messages: &File) -> io::Result<Self> {
        let mut command = Command::new(&run.program);
        command.args(run.executed()).stdout(output.try_clone()?).stderr(messages.try_clone()?).process_group(0);
        command.stdin(if matches!(run.input, Input::Nothing) { Stdio::null() } else { Stdio::piped() });
        // A test says what it runs, whatever the defaults of the user are.
        command.env("TOLLGATE_CONFIG", "");
        let mut leaders = LEADERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("{} can't be started: {error}", run.program.to_string_lossy()))
        })?;
        leaders.insert(child.id());
        drop(leaders);
        if let (Some(mut input), Input::Typed(bytes, open)) = (child.stdin.take(), run.input.clone()) {
            std::thread::spawn(move || {
                // The command may have ended without reading.
                let _ = input.write_all(bytes);
                std::thread::sleep(open);
            });
        }
        Ok(Self { child })
    }

    /// Waits for the end of the command and returns its exit status as a shell would, or `None` at the deadline.
    pub fn wait(&mut self, deadline: Instant) -> io::Result<Option<i32>> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number");
        let file = pidfd_open(pid, PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout)) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) if left > Duration::ZERO => {}
                Ok(0) => return Ok(None),
                Ok(_) => break,
            }
        }
        let status = self.end()?;
        Ok(Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))))
    }

    /// Ends the group. The number of its leader belongs to it until the leader has been waited for.
    fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        let mut leaders = LEADERS.lock().unwrap_or_else(PoisonError::into_inner);
        if leaders.remove(&self.child.id()) {
            kill(self.child.id());
        }
        drop(leaders);
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    fn shell(script: &str) -> (Running, File) {
        let output = tempfile::tempfile().unwrap();
        let run = Run::new("sh").with("-c", script);
        (Running::start(&run, &output, &output).unwrap(), output)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn statuses_are_those_of_a_shell() {
        for (script, status) in [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)] {
            assert_eq!(shell(script).0.wait(soon()).unwrap(), Some(status), "{script}");
        }
    }

    #[test]
    fn at_the_deadline_the_whole_group_ends() {
        let (mut running, mut output) = shell("sleep 1000 & echo $!; wait");
        let (mut text, deadline) = (String::new(), soon());
        while !text.ends_with('\n') {
            assert!(Instant::now() < deadline, "the shell prints no number");
            output.rewind().unwrap();
            text.clear();
            output.read_to_string(&mut text).unwrap();
        }
        assert_eq!(running.wait(Instant::now()).unwrap(), None);
        drop(running);
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", text.trim())).unwrap_or_default();
        // A killed process that nobody has waited for yet is a zombie.
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < deadline, "{}", stat());
            std::thread::yield_now();
        }
    }

    #[test]
    fn input_is_read_to_its_end() {
        let output = tempfile::tempfile().unwrap();
        let run = Run::new("cat").typed(b"some words", Duration::ZERO);
        assert_eq!(Running::start(&run, &output, &output).unwrap().wait(soon()).unwrap(), Some(0));
        let (mut text, mut output) = (String::new(), output);
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "some words");
    }
}
