//! The sockets of guests that can be joined: `$XDG_RUNTIME_DIR/tollgate/PID.socket`, or `/tmp/tollgate-UID/PID.socket` without that variable.

use crate::contain::Sandbox;
use crate::keep::Keeper;
use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Permissions of the directory: nobody else may even look.
const DIRECTORY_MODE: u32 = 0o700;
/// Permissions of a socket.
const SOCKET_MODE: u32 = 0o600;
/// Extension of the sockets' names.
const EXTENSION: &str = "socket";

/// Returns the directory of the sockets, which may not exist.
pub fn directory() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    match own {
        Some(own) => PathBuf::from(own).join("tollgate"),
        None => PathBuf::from(format!("/tmp/tollgate-{}", nix::unistd::geteuid())),
    }
}

/// Checks that a directory is this user's own and that nobody else can enter it.
fn check(directory: &Path) -> Result<()> {
    let found = std::fs::symlink_metadata(directory)
        .with_context(|| format!("can't look at the directory of sockets {}", directory.display()))?;
    let shown = directory.display();
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{shown} is not a directory of this user's: guests can't be joined there (set XDG_RUNTIME_DIR)");
    }
    if found.mode() & 0o077 != 0 {
        bail!("other users can enter {shown}: guests can't be joined there (chmod 700 {shown})");
    }
    Ok(())
}

/// A socket that listens. It is removed when the value is dropped, or by another process when this one has ended.
pub struct Socket {
    /// The socket.
    pub listener: UnixListener,
    path: PathBuf,
    keeper: Option<Keeper>,
}

impl Socket {
    /// Listens for commands that join the guest of this process.
    pub fn listen(directory: &Path, sandbox: Sandbox) -> Result<Self> {
        let made = std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory);
        if let Some(error) = made.err().filter(|error| error.kind() != ErrorKind::AlreadyExists) {
            return Err(error).with_context(|| format!("can't make the directory of sockets {}", directory.display()));
        }
        check(directory)?;
        let path = directory.join(std::process::id().to_string()).with_extension(EXTENSION);
        // A process of this number that was killed has left it.
        let _ = std::fs::remove_file(&path);
        let failed = || format!("can't listen at {}", path.display());
        let listener = UnixListener::bind(&path).with_context(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(SOCKET_MODE)).with_context(failed)?;
        listener.set_nonblocking(true)?;
        let keeper = (sandbox == Sandbox::On).then(|| Keeper::remover(&path)).transpose()?;
        Ok(Self { listener, path, keeper })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.keeper.is_none() {
            // A failure can't be reported.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A guest that can be joined.
pub struct Guest {
    /// The number of the process that runs it.
    pub id: u32,
    /// A connection to it, which does not block; `None` if so many connections wait for it that it takes no further one.
    pub stream: Option<UnixStream>,
}

/// The state of a process.
pub struct State(File);

impl State {
    /// Opens the state of a process, for later questions of a confined process.
    pub fn of(id: u32) -> Option<Self> {
        File::open(format!("/proc/{id}/stat")).ok().map(Self)
    }

    /// Returns true if the process is stopped by a signal (proc_pid_stat(5)).
    pub fn is_stopped(&self) -> bool {
        let mut line = [0; 512];
        let read = self.0.read_at(&mut line, 0).unwrap_or_default();
        // The name of the program is in parentheses, and may contain any characters.
        let name_ends = line[..read].iter().rposition(|byte| *byte == b')');
        name_ends.is_some_and(|at| line[..read].get(at + 2) == Some(&b'T'))
    }
}

impl Guest {
    /// Returns the command line of the process, for people.
    pub fn command(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.id)).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        words.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the guests that can be joined, in the order of their numbers. A socket without a process is removed.
pub fn guests(directory: &Path) -> Result<Vec<Guest>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    check(directory)?;
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("can't read the directory of sockets {}", directory.display()))?;
    let mut found: Vec<Guest> = entries.flatten().filter_map(|entry| guest(&entry.path())).collect();
    found.sort_by_key(|guest| guest.id);
    Ok(found)
}

/// Connects with a socket. Neither this nor what is done with the connection waits for the other side.
fn connect(path: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn guest(path: &Path) -> Option<Guest> {
    if path.extension().is_none_or(|extension| extension != EXTENSION) {
        return None;
    }
    let id = path.file_stem()?.to_str()?.parse().ok()?;
    match connect(path) {
        Ok(stream) => Some(Guest { id, stream: Some(stream) }),
        Err(rustix::io::Errno::AGAIN) => Some(Guest { id, stream: None }),
        Err(rustix::io::Errno::CONNREFUSED) => {
            // Nobody listens: the process was killed together with the one that removes the socket.
            let _ = std::fs::remove_file(path);
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(test: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tollgate-join-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn a_socket_is_private_and_goes_with_its_guest() {
        let directory = scratch("private");
        let socket = Socket::listen(&directory, Sandbox::Off).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&socket.path)), (0o700, 0o600));
        let found = guests(&directory).unwrap();
        assert_eq!(found.iter().map(|guest| guest.id).collect::<Vec<_>>(), [std::process::id()]);
        drop(socket);
        assert!(guests(&directory).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_guest_that_accepts_nothing_is_found_without_waiting() {
        let directory = scratch("full");
        let socket = Socket::listen(&directory, Sandbox::Off).unwrap();
        rustix::net::listen(&socket.listener, 0).unwrap();
        let has_connections: Vec<bool> =
            (0..3).map(|_| guests(&directory).unwrap().pop().unwrap()).map(|guest| guest.stream.is_some()).collect();
        assert_eq!(has_connections, [true, false, false]);
        drop(socket);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_state_of_a_process_has_its_stop() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (state, pid) = (State::of(child.id()).unwrap(), nix::unistd::Pid::from_raw(child.id() as i32));
        for (signal, stopped) in [(nix::sys::signal::SIGSTOP, true), (nix::sys::signal::SIGCONT, false)] {
            nix::sys::signal::kill(pid, signal).unwrap();
            assert!((0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                state.is_stopped() == stopped
            }));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!state.is_stopped(), "it has ended");
    }

    #[test]
    fn a_stale_socket_is_removed() {
        let directory = scratch("stale");
        let socket = Socket::listen(&directory, Sandbox::Off).unwrap();
        let stale = directory.join("1.socket");
        drop(UnixListener::bind(&stale).unwrap());
        std::fs::write(directory.join("other"), "").unwrap();
        assert!(stale.exists());
        // A process that another test has just forked holds the listening descriptor until it executes a program.
        assert!((0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            guests(&directory).unwrap().len() == 1
        }));
        assert!(!stale.exists() && directory.join("other").exists());
        drop(socket);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let directory = scratch("open");
        assert!(guests(&directory).unwrap().is_empty(), "there is none");
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = Socket::listen(&directory, Sandbox::Off).map(drop).unwrap_err().to_string();
        assert!(error.contains("other users can enter"), "{error}");
        assert!(guests(&directory).is_err());
        std::fs::remove_dir(&directory).unwrap();
        std::fs::write(&directory, "").unwrap();
        assert!(Socket::listen(&directory, Sandbox::Off).is_err());
        std::fs::remove_file(&directory).unwrap();
    }
}
