//! A child process that does not outlive its parent.

use std::io::{Error, Result};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel end the program of `command` by SIGKILL when the thread that starts it ends, however it ends. Until it
/// is gone, it keeps `inherited` open, and with it the lock on what that is.
pub fn tether(command: &mut Command, inherited: RawFd) {
    let parent = std::process::id();
    let prepare = move || -> Result<()> {
        let ok = |status: libc::c_int| if status == -1 { Err(Error::last_os_error()) } else { Ok(()) };
        // SAFETY: these calls take no pointers, and may be made between fork and exec.
        unsafe {
            ok(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // For a parent that died before that call there is no signal, but it is not our parent any more.
            if libc::getppid().cast_unsigned() != parent {
                return Err(Error::from_raw_os_error(libc::ESRCH));
            }
            ok(libc::fcntl(inherited, libc::F_SETFD, 0))
        }
    };
    // SAFETY: `prepare` only makes system calls; it neither allocates nor takes locks.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, TryLockError};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;

    fn sleeper(inherited: RawFd) -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000");
        tether(&mut command, inherited);
        command
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let null = File::open("/dev/null").unwrap();
        let begun = || sleeper(null.as_raw_fd()).spawn().unwrap();
        let mut child = std::thread::scope(|scope| scope.spawn(begun).join().unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_lock_lasts_as_long_as_the_child() {
        let path = std::env::temp_dir().join(format!("tollgate-tether-{}", std::process::id()));
        let locked = File::create(&path).unwrap();
        locked.lock().unwrap();
        let mut child = sleeper(locked.as_raw_fd()).spawn().unwrap();
        drop(locked);
        let again = File::open(&path).unwrap();
        assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(again.try_lock().is_ok());
        std::fs::remove_file(path).unwrap();
    }
}
