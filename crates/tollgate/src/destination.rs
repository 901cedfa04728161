//! A file that is complete or absent under its name: it is written under another name beside it, and then renamed.

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Free space that must be available before the work, in bytes.
const ROOM: usize = 256 << 10;
/// Permissions of a new file, before the umask.
const NEW_FILE: u32 = 0o666;

/// A name of a file in an open directory. Whatever happens to the directory's own name, the file stays in it.
pub struct Destination {
    directory: OwnedFd,
    name: OsString,
}

impl Destination {
    /// Opens the directory of a file, which need not exist.
    pub fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?.to_owned();
        let directory =
            fs::openat(CWD, parent(path), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { directory, name })
    }

    /// Returns the descriptor of the directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the name of the file in the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Creates a new file of another name in the directory.
    fn create(&self, name: &OsStr) -> io::Result<File> {
        // A file or a link of that name is somebody else's.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.directory, name, flags, Mode::from_raw_mode(NEW_FILE))?.into())
    }

    /// Writes the file under the name `beside`, and gives it its name when `fill` has succeeded.
    pub fn replace(&self, beside: &OsStr, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.create(beside)?;
        let rename = || fs::renameat(&self.directory, beside, &self.directory, &self.name).map_err(Into::into);
        let written = fill(&mut file).and_then(|()| close(file)).and_then(|()| rename());
        if written.is_err() {
            // The error that is reported is the first one.
            let _ = fs::unlinkat(&self.directory, beside, AtFlags::empty());
        }
        written
    }

    /// Removes the file.
    pub fn remove(&self) -> io::Result<()> {
        Ok(fs::unlinkat(&self.directory, &self.name, AtFlags::empty())?)
    }

    /// Writes as much as must be available before the work, and removes it.
    pub fn try_room(&self, beside: &OsStr) -> io::Result<()> {
        // A process with the same number was killed while it wrote.
        let _ = fs::unlinkat(&self.directory, beside, AtFlags::empty());
        let tried = self.create(beside)?.write_all(&[0; ROOM]);
        let _ = fs::unlinkat(&self.directory, beside, AtFlags::empty());
        tried
    }
}

/// Returns the directory of a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Closes a file. Some file systems, such as NFS, report only then that the contents did not fit.
pub fn close(file: File) -> io::Result<()> {
    nix::unistd::close(file).map_err(Into::into)
}
