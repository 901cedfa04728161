//! The sockets of guests that can be joined: `$XDG_RUNTIME_DIR/tollgate/PID.socket`, or `/tmp/tollgate-UID/PID.socket` without that variable.

use crate::contain::Sandbox;
use crate::keep::Keeper;
use anyhow::{Context, Result, bail};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
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
    /// A connection to it.
    pub stream: UnixStream,
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

fn guest(path: &Path) -> Option<Guest> {
    if path.extension().is_none_or(|extension| extension != EXTENSION) {
        return None;
    }
    let id = path.file_stem()?.to_str()?.parse().ok()?;
    match UnixStream::connect(path) {
        Ok(stream) => Some(Guest { id, stream }),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
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
    fn a_stale_socket_is_removed() {
        let directory = scratch("stale");
        let socket = Socket::listen(&directory, Sandbox::Off).unwrap();
        let stale = directory.join("1.socket");
        drop(UnixListener::bind(&stale).unwrap());
        std::fs::write(directory.join("other"), "").unwrap();
        assert!(stale.exists());
        assert_eq!(guests(&directory).unwrap().len(), 1);
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
