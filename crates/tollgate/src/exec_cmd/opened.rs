//! The files that a command uses on this host: it is executed once before its guest is made, and its system calls are watched.

use super::files::is_of_guest;
use crate::output::say;
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The shell stops itself before it becomes the command, so that nothing of the command is missed.
const START: &str = "kill -STOP $$; exec \"$@\"";
/// The longest path, with its end.
const LONGEST: usize = 4096;
/// The code segment of 64-bit programs. The numbers of others' system calls are different ones.
const CODE_64: u64 = 0x33;
/// The directory descriptor that stands for the working directory.
const WORKING_DIRECTORY: i32 = -100;

/// Returns the arguments of a system call that are a path, and those that are the descriptor of the directory where it begins.
fn path_arguments(number: u64) -> &'static [(Option<usize>, usize)] {
    match number {
        // open, stat, lstat, access, execve, chdir, mkdir, creat, readlink
        2 | 4 | 6 | 21 | 59 | 80 | 83 | 85 | 89 => &[(None, 0)],
        // rename, link
        82 | 86 => &[(None, 0), (None, 1)],
        // symlink
        88 => &[(None, 1)],
        // openat, mkdirat, newfstatat, readlinkat, faccessat, execveat, statx, openat2, faccessat2
        257 | 258 | 262 | 267 | 269 | 322 | 332 | 437 | 439 => &[(Some(0), 1)],
        // renameat, linkat, renameat2
        264 | 265 | 316 => &[(Some(0), 1), (Some(2), 3)],
        // symlinkat
        266 => &[(Some(1), 2)],
        _ => &[],
    }
}

/// The paths that a command has named.
#[derive(Default)]
struct Named {
    all: BTreeSet<PathBuf>,
    /// Paths that did not exist when the command first named them, by their real directories: the command may have made these files.
    made: BTreeSet<PathBuf>,
}

impl Named {
    fn add(&mut self, path: PathBuf) {
        if is_of_guest(&path) || self.all.contains(&path) {
            return;
        }
        if path.symlink_metadata().is_err() {
            self.made.extend(plain(&path));
            // The guest then looks in vain in the same directory as the host does.
            let searched = path.ancestors().skip(1).find(|directory| directory.is_dir());
            if let Some(searched) = searched.filter(|directory| directory.parent().is_some()) {
                self.add(searched.to_path_buf());
            }
        } else if plain(&path).is_none_or(|plain| !self.made.contains(&plain)) {
            self.all.insert(path);
        }
    }

    /// Returns what was there before, and is there still.
    fn present(self) -> Vec<PathBuf> {
        self.all.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
    }
}

/// Returns the path of a file by its real directory.
fn plain(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// Returns a text of a process, up to its zero.
fn text(process: Pid, address: u64) -> Option<OsString> {
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let mut bytes = Vec::new();
    // A text may end at the end of a page, behind which there is nothing.
    while bytes.len() < LONGEST {
        let at = address + bytes.len() as u64;
        let mut part = vec![0; LONGEST - at as usize % LONGEST];
        let length = memory.read_at(&mut part, at).ok().filter(|length| *length > 0)?;
        match part[..length].iter().position(|byte| *byte == 0) {
            Some(end) => {
                bytes.extend(&part[..end]);
                return Some(OsStr::from_bytes(&bytes).to_owned());
            }
            None => bytes.extend(&part[..length]),
        }
    }
    None
}

/// Notes the paths of the system call that a process begins. It is stopped at the entry and at the end of each; at the entry, the kernel has put an error in the place of
/// the result.
fn note(process: Pid, named: &mut Named) {
    let Ok(registers) = ptrace::getregs(process) else { return };
    if registers.cs != CODE_64 || registers.rax as i64 != -i64::from(Errno::ENOSYS as i32) {
        return;
    }
    let values = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
    for (directory, path) in path_arguments(registers.orig_rax) {
        let Some(path) = text(process, values[*path]).filter(|path| !path.is_empty()).map(PathBuf::from) else {
            continue;
        };
        let from = match directory.map(|at| values[at] as i32) {
            _ if path.is_absolute() => Some(PathBuf::new()),
            None | Some(WORKING_DIRECTORY) => std::fs::read_link(format!("/proc/{process}/cwd")).ok(),
            Some(descriptor) => std::fs::read_link(format!("/proc/{process}/fd/{descriptor}")).ok(),
        };
        if let Some(from) = from.map(|from| from.join(&path)).filter(|path| path.is_absolute()) {
            named.add(from);
        }
    }
}

/// Lets a process go on to its next system call. One that has been killed meanwhile is reported as such.
fn go_on(process: Pid, signal: Option<Signal>) -> Result<()> {
    match ptrace::syscall(process, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).context("a process of the command can't be continued"),
    }
}

/// Watches a process that has stopped itself, and all that it makes, until the last of them has ended. Returns how the first one ended.
fn watch(first: Pid, named: &mut Named) -> Result<WaitStatus> {
    match waitpid(first, Some(WaitPidFlag::WUNTRACED)).context("can't wait for the command")? {
        WaitStatus::Stopped(..) => {}
        other => bail!("the command could not be started: {other:?}"),
    }
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    if let Err(error) = ptrace::seize(first, options) {
        // It would stay stopped.
        let _ = kill(first, Signal::SIGKILL);
        let _ = waitpid(first, None);
        return Err(error).context("this system does not let one process watch another (ptrace)");
    }
    kill(first, Signal::SIGCONT).context("the command can't be continued")?;
    let mut ended = None;
    loop {
        // Children of other threads are not ours to wait for.
        let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => break,
            Err(error) => return Err(error).context("can't wait for the command"),
        };
        match status {
            WaitStatus::PtraceSyscall(process) => {
                note(process, named);
                go_on(process, None)?;
            }
            WaitStatus::PtraceEvent(process, _, _) => go_on(process, None)?,
            WaitStatus::Stopped(process, signal) => go_on(process, Some(signal))?,
            WaitStatus::Exited(process, _) | WaitStatus::Signaled(process, ..) if process == first => {
                ended = Some(status);
            }
            _ => {}
        }
    }
    ended.context("the command's end was missed")
}

/// Executes a command on this host, with this environment and in this directory, and returns the files and directories that it has used. It has no input, and what it
/// prints is dropped.
pub fn of_command(
    program: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    directory: &Path,
) -> Result<Vec<PathBuf>> {
    let shown = program.display();
    say(&format!("tollgate: --add-opened: running {shown} on this host first, to see which files it opens"));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", START, "sh"]).arg(program).args(arguments).current_dir(directory).env_clear();
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().context("--add-opened: /bin/sh can't be started")?;
    let mut named = Named::default();
    let failed = || format!("--add-opened: {shown}");
    match watch(Pid::from_raw(child.id() as i32), &mut named).with_context(failed)? {
        WaitStatus::Exited(_, 0) => {}
        WaitStatus::Exited(_, status) => {
            say(&format!("tollgate: --add-opened: on this host {shown} ended with status {status}"));
        }
        WaitStatus::Signaled(_, signal, _) => {
            say(&format!("tollgate: --add-opened: on this host {shown} was killed by {signal}"));
        }
        _ => {}
    }
    Ok(named.present())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_and_its_children_use_is_seen() {
        let place = std::env::temp_dir().join(format!("tollgate-opened-{}", std::process::id()));
        for directory in ["sub", "searched"] {
            std::fs::create_dir_all(place.join(directory)).unwrap();
        }
        for file in ["read", "sub/tested", "unused"] {
            std::fs::write(place.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("read", place.join("link")).unwrap();
        let script = "test -e sub/tested; cat link >made; (cd sub; cat ../made); cat searched/x/none; mkdir new; cat new/none; exit 3";
        let arguments = ["-c", script].map(OsString::from);
        let environment = [("PATH".into(), "/usr/bin:/bin".into())];
        let used = match of_command(Path::new("/bin/sh"), &arguments, &environment, &place) {
            Err(error) if format!("{error:#}").contains("(ptrace)") => {
                say("skipped: processes can't be watched here");
                return;
            }
            used => used.unwrap(),
        };
        let has = |name: &str| used.contains(&place.join(name));
        assert!(["link", "sub/tested", "searched"].iter().all(|name| has(name)), "{used:?}");
        assert!(
            ["unused", "made", "new", "searched/x", "searched/x/none", "sub/../made"].iter().all(|name| !has(name)),
            "{used:?}"
        );
        assert!(used.iter().any(|path| path.ends_with("cat")), "{used:?}");
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_end_of_a_path_may_be_the_end_of_a_page() {
        let own = format!("{}\0", "/x".repeat(9));
        let this = Pid::this();
        assert_eq!(text(this, own.as_ptr() as u64), Some(OsString::from("/x".repeat(9))));
        assert_eq!(text(this, 8), None);
    }
}
