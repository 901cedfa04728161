//! The helper process that writes or removes a file at the end of a run. A confined process can't open files by name once its machine runs, so it
//! starts the helper first. The helper writes one file when it has received all contents, or removes one file, and does nothing else.
//!
//! The contents arrive on standard input, preceded by their length (64 bits, little-endian). If the input ends early, no file is written.
//!
//! The helper, too, is confined before it reads anything of the machine's: it has only the directory of the file and the two pipes open, can create, rename
//! and remove files there, and reads and opens no other file.

use crate::contain::confine_keeper;
use crate::destination::Destination;
use crate::streams::Stream;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The executable of this process.
const EXECUTABLE: &str = "/proc/self/exe";
/// The name of the command.
const COMMAND: &str = "keep";
/// Bytes that are read at a time: the size of a pipe.
const BUFFER: usize = 64 << 10;

/// Writes standard input to a file once it is complete. Internal to `run` and `exec`.
#[derive(Args)]
pub struct KeepArgs {
    /// Removes the file when standard input ends
    #[arg(long)]
    remove: bool,
    /// Temporary name of the file, in the same directory, until it is complete
    #[arg(long, value_name = "NAME")]
    beside: Option<OsString>,
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(args: &KeepArgs) -> Result<()> {
    let place =
        Destination::of(&args.file).with_context(|| format!("can't open the directory of {}", args.file.display()))?;
    confine_keeper(place.directory())?;
    let mut input = std::io::stdin().lock();
    let Some(beside) = args.beside.as_ref().filter(|_| !args.remove) else {
        copy(&mut input, |_| Ok(()))?;
        return place.remove().with_context(|| format!("can't remove {}", args.file.display()));
    };
    let mut length = [0; 8];
    match input.read_exact(&mut length) {
        Ok(()) => {}
        // The run ended without contents.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let length = u64::from_le_bytes(length);
    let written = place.replace(beside, |file| {
        let came = copy(&mut input.take(length), |bytes| file.write_all(bytes))?;
        if came == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    });
    if let Err(error) = written {
        // The reader reports the error, if it is still there.
        let _ = Stream::Output.put(error.to_string().as_bytes());
    }
    Ok(())
}

/// Reads the input to its end and returns its length. `std::io::copy` would use system calls that move data between files, which a confined process
/// does not have.
fn copy(input: &mut impl Read, mut put: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    let (mut buffer, mut copied) = (vec![0; BUFFER], 0);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(count) => {
                put(&buffer[..count])?;
                copied += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a command that starts this program. If a dynamic loader was told to start it (`ld-linux-x86-64.so.2 tollgate`), the executable of the
/// process is the loader, which needs the program's name and the directories of its libraries.
fn this_program() -> Command {
    let mut command = Command::new(EXECUTABLE);
    let (program, libraries) = mapped_files(this_program as *const () as u64);
    match (std::fs::read_link(EXECUTABLE), program) {
        (Ok(executable), Some(program)) if executable != program => {
            command.arg("--library-path").arg(libraries.join(OsStr::new(":"))).arg(program);
        }
        _ => drop(command.arg0("tollgate")),
    }
    command
}

/// Returns the file that is mapped at an address of this process, and the directories of the other mapped files.
fn mapped_files(address: u64) -> (Option<PathBuf>, Vec<OsString>) {
    let mut program = None;
    let mut directories = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        let (Some((range, _)), Some(start)) = (line.split_once(' '), line.find('/')) else { continue };
        let path = Path::new(&line[start..]);
        let bounds = range
            .split_once('-')
            .and_then(|(a, b)| Some(u64::from_str_radix(a, 16).ok()?..u64::from_str_radix(b, 16).ok()?));
        if bounds.is_some_and(|bounds| bounds.contains(&address)) {
            program = Some(path.to_owned());
        }
        let directory = path.parent().unwrap_or(path).as_os_str();
        if !directories.iter().any(|known| known == directory) {
            directories.push(directory.to_owned());
        }
    }
    (program, directories)
}

/// A helper process that waits for the end of the run.
#[derive(Debug)]
pub struct Keeper(Child);

impl Keeper {
    fn start(option: &OsStr, file: &Path) -> Result<Self> {
        let mut command = this_program();
        command.arg(COMMAND).arg(option).arg("--").arg(file);
        // A key that ends the run must not end the helper before its work.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(
            command
                .spawn()
                .context("can't start the process that writes files (--sandbox off disables the sandbox it)")?,
        ))
    }

    /// Starts a process that writes a file, under the name `beside` until it is complete.
    pub fn writer(file: &Path, beside: &OsStr) -> Result<Self> {
        let mut option = OsString::from("--beside=");
        option.push(beside);
        Self::start(&option, file)
    }

    /// Starts a process that removes a file when this process ends for any reason.
    pub fn remover(file: &Path) -> Result<Self> {
        Self::start("--remove".as_ref(), file)
    }

    /// Sends the contents and waits until the file is written.
    pub fn write(mut self, bytes: &[u8]) -> Result<()> {
        let sent =
            self.0.stdin.take().map(|mut pipe| {
                pipe.write_all(&(bytes.len() as u64).to_le_bytes()).and_then(|()| pipe.write_all(bytes))
            });
        let mut said = String::new();
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_string(&mut said)?;
        }
        let ended = self.0.wait()?;
        if !said.is_empty() {
            bail!("{said}");
        }
        if !ended.success() {
            bail!("the process that writes it failed: {ended}");
        }
        sent.transpose()?;
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // A failure can't be reported any more.
        let _ = self.0.wait();
    }
}
