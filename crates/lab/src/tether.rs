//! A child process that does not outlive its parent.

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::io::Result;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel send `signal` to the program of `command` when the thread that starts it ends, however it ends. Until it
/// is gone, it keeps `inherited` open, and with it the lock on what that is.
pub fn tether(command: &mut Command, inherited: BorrowedFd, signal: Signal) -> Result<()> {
    let (parent, inherited) = (getpid(), inherited.try_clone_to_owned()?);
    let prepare = move || -> Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // For a parent that died before that call there is no signal, but it is not our parent any more.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        Ok(fcntl_setfd(&inherited, FdFlags::empty())?)
    };
    // SAFETY: `prepare` only makes system calls; it neither allocates nor takes locks.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, TryLockError};
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;

    fn sleeper(inherited: &File, signal: Signal) -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000");
        tether(&mut command, inherited.as_fd(), signal).unwrap();
        command
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let null = File::open("/dev/null").unwrap();
        for signal in [Signal::KILL, Signal::TERM] {
            let begun = || sleeper(&null, signal).spawn().unwrap();
            let mut child = std::thread::scope(|scope| scope.spawn(begun).join().unwrap());
            assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        }
    }

    #[test]
    fn a_lock_lasts_as_long_as_the_child() {
        let path = std::env::temp_dir().join(format!("tollgate-tether-{}", std::process::id()));
        let locked = File::create(&path).unwrap();
        locked.lock().unwrap();
        let mut child = sleeper(&locked, Signal::KILL).spawn().unwrap();
        drop(locked);
        let again = File::open(&path).unwrap();
        assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        child.kill().unwrap();
        child.wait().unwrap();
        // A child that another test has just started keeps it until it executes its program.
        again.lock().unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
