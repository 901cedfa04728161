//! Messages on standard error, and output files of long commands: such a file is known to be writable before the work, and complete or absent
//! after it.

use crate::contain::Sandbox;
use crate::destination::{Destination, close, parent};
use crate::keep::Keeper;
use crate::streams::{Lost, Stream};
use crate::usage::WrongArguments;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Prints a message on standard error. A failure can't be reported.
pub fn say(text: &str) {
    let _ = Stream::Errors.put(format!("{text}\n").as_bytes());
}

/// Prints a line that was asked for, such as the result of `--json`, on standard error. A missing reader is not an error.
pub fn result(text: &str) -> Result<()> {
    match Stream::Errors.put(format!("{text}\n").as_bytes()) {
        Err(lost @ Lost::Failed(..)) => Err(lost.into()),
        Ok(()) | Err(Lost::NoReader) => Ok(()),
    }
}

/// Returns an error with its causes, each once: some errors repeat their cause in their own text.
pub fn described(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Beginning of the extension of a file that is not complete; the number of the process that writes it follows.
pub const PARTIAL: &str = "partial-";

/// A file that will be written.
pub struct OutputFile {
    /// The name of the file's kind, for messages.
    what: &'static str,
    path: PathBuf,
    way: Way,
}

/// The way in which the file is written.
enum Way {
    /// Directly: a device, a pipe, or standard output. It stays open, because a reader would take the first close for the end.
    Direct(File),
    /// Under this temporary name beside the final one, then renamed. The temporary file exists only during the write, so a process that
    /// is killed during its work leaves nothing behind.
    Beside(Destination, OsString),
    /// By another process, in the same way.
    Kept(Keeper),
}

/// An option and a file that it names.
pub type Named<'a> = (&'static str, &'a Path);

/// Refuses two options that name one output file, or an input file and an output file: what is written last would
/// replace the other. Each command that writes files names what it reads here. An input that is no file is ignored: it may be the name of something
/// else, such as a kernel.
pub fn distinct<'a, I: AsRef<Path>>(
    outputs: impl IntoIterator<Item = Named<'a>>,
    inputs: impl IntoIterator<Item = (&'static str, I)>,
) -> Result<()> {
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    let same = |known: &[(&str, PathBuf)], option: &str, path: &Path| {
        let place = place(path);
        match known.iter().find(|(_, known)| *known == place) {
            Some((other, _)) => {
                bail!(WrongArguments::new(format!("{other} and {option} name the same file: {}", path.display())))
            }
            None => Ok(place),
        }
    };
    for (option, path) in outputs {
        // A device or a pipe takes any number of files.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            continue;
        }
        let place = same(&known, option, path)?;
        known.push((option, place));
    }
    for (option, path) in inputs {
        if path.as_ref().is_file() {
            same(&known, option, path.as_ref())?;
        }
    }
    Ok(())
}

/// Returns the file of an option, if the option is given.
pub fn named<'a>(option: &'static str, path: &'a Option<PathBuf>) -> Option<Named<'a>> {
    path.as_deref().map(|path| (option, path))
}

/// Returns the absolute path of a file that need not exist.
fn place(path: &Path) -> PathBuf {
    let beside = || Some(parent(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

impl OutputFile {
    /// Prepares a file at `path`. `what` names it in error messages.
    pub fn create(path: &Path, what: &'static str) -> Result<Self> {
        let shown = path.display().to_string();
        let failed = || format!("can't write the {what} {shown}");
        let link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let descriptor = link && (path.starts_with("/dev") || path.starts_with("/proc"));
        let mut path = path.to_path_buf();
        let way = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => bail!("{}: it is a directory", failed()),
            Ok(metadata) if !metadata.is_file() => {
                Way::Direct(OpenOptions::new().write(true).open(&path).with_context(failed)?)
            }
            // Standard output that goes to a file: append to its contents.
            Ok(_) if descriptor => Way::Direct(OpenOptions::new().append(true).open(&path).with_context(failed)?),
            _ => {
                if link && let Ok(target) = std::fs::canonicalize(&path) {
                    // The symbolic link stays.
                    path = target;
                }
                let place = Destination::of(&path).with_context(failed)?;
                let mut temporary = place.name().to_owned();
                temporary.push(format!(".{PARTIAL}{}", std::process::id()));
                place.try_room(&temporary).with_context(failed)?;
                Way::Beside(place, temporary)
            }
        };
        Ok(Self { what, path, way })
    }

    /// Prepares a file for a process that will be confined; another process then writes the file.
    pub fn create_for(sandbox: Sandbox, path: &Path, what: &'static str) -> Result<Self> {
        let file = Self::create(path, what)?;
        let way = match (file.way, sandbox) {
            (Way::Beside(_, temporary), Sandbox::On) => Way::Kept(Keeper::writer(&file.path, &temporary)?),
            (way, _) => way,
        };
        Ok(Self { way, ..file })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the whole file.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let written = match self.way {
            Way::Direct(mut file) => file.write_all(bytes).and_then(|()| close(file)).map_err(Into::into),
            Way::Beside(place, temporary) => {
                place.replace(&temporary, |file| file.write_all(bytes)).map_err(Into::into)
            }
            Way::Kept(keeper) => keeper.write(bytes),
        };
        written.with_context(|| format!("can't write the {} {}", self.what, self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = |text: &'static str| anyhow::Error::msg(text);
        assert_eq!(described(&error("c").context("b: c").context("a")), "a: b: c");
        assert_eq!(described(&error("c").context("b").context("a")), "a: b: c");
    }

    const NO_INPUTS: [Named<'static>; 0] = [];

    #[test]
    fn one_file_has_one_writer() {
        let directory = std::env::temp_dir().join(format!("tollgate-distinct-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("a");
        let same = directory.join(".").join("a");
        let refused =
            |b: &Path| distinct([("--ledger", &*file), ("--record", b)], NO_INPUTS).map_err(|e| e.to_string());
        let message = format!("--ledger and --record name the same file: {}", same.display());
        assert_eq!(refused(&same), Err(message.clone()));
        std::os::unix::fs::symlink(&file, directory.join("link")).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(refused(&same), Err(message));
        assert!(refused(&directory.join("link")).is_err());
        assert_eq!(refused(&directory.join("b")), Ok(()));
        let null = Path::new("/dev/null");
        assert!(distinct([("--ledger", null), ("--record", null)], NO_INPUTS).is_ok());
        // What is read is not written; several options may read one file.
        let read = |inputs: &[(&'static str, &Path)]| {
            distinct([("--html", &*file)], inputs.iter().copied()).map_err(|e| e.to_string())
        };
        let link = directory.join("link");
        let message = format!("--html and --load name the same file: {}", link.display());
        assert_eq!(read(&[("--load", &link)]), Err(message));
        assert_eq!(read(&[("--load", &directory.join("b")), ("--load", &directory.join("b"))]), Ok(()));
        // A name that is no file may be that of a kernel.
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read(&[("--kernel", &file)]), Ok(()));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let directory = std::env::temp_dir().join(format!("tollgate-output-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (link, target) = (directory.join("link"), directory.join("target"));
        std::fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        OutputFile::create(&link, "report").unwrap().write(b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
