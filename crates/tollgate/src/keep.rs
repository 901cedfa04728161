//! What is done with files at the end of a run whose process can't do it any more, since nothing is reached by name once its machine runs: a process that is
//! started before writes a file when all of its contents have come, or removes one. It does nothing else, whatever comes.
//!
//! Contents are their length (64 bits, little-endian) and so many bytes on standard input. A pipe that ends before is no file.

use crate::output::replace;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// This program, wherever it is now.
const PROGRAM: &str = "/proc/self/exe";
/// The name of the command.
const COMMAND: &str = "keep";

/// Writes what comes on standard input to a file, if all of it comes; for `run` and `exec`.
#[derive(Args)]
pub struct KeepArgs {
    /// Removes the file when standard input ends
    #[arg(long)]
    remove: bool,
    /// Name that the file has until it is whole
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(args: &KeepArgs) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let Some(beside) = args.beside.as_ref().filter(|_| !args.remove) else {
        std::io::copy(&mut input, &mut std::io::sink())?;
        return std::fs::remove_file(&args.file).with_context(|| format!("can't remove {}", args.file.display()));
    };
    let mut length = [0; 8];
    match input.read_exact(&mut length) {
        Ok(()) => {}
        // There is nothing to be written.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let length = u64::from_le_bytes(length);
    let written = replace(&args.file, beside, |file| {
        let came = std::io::copy(&mut input.take(length), file)?;
        if came == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    });
    if let Err(error) = written {
        // The other end says what is wrong.
        print!("{error}");
    }
    Ok(())
}

/// A process that waits for the end.
#[derive(Debug)]
pub struct Keeper(Child);

impl Keeper {
    fn start(options: &[&str], paths: &[&Path]) -> Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.arg0("tollgate").arg(COMMAND).args(options).args(paths);
        // Keys on the terminal that end the run must not end its last step before it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("no process can be started that writes files at the end (--sandbox off)")?))
    }

    /// Writes a file, which is called `beside` until it is whole.
    pub fn writer(file: &Path, beside: &Path) -> Result<Self> {
        Self::start(&["--beside"], &[beside, file])
    }

    /// Removes a file when this process ends, however it does.
    pub fn remover(file: &Path) -> Result<Self> {
        Self::start(&["--remove"], &[file])
    }

    /// Has the file written.
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
            bail!("the process that writes it has failed: {ended}");
        }
        sent.transpose()?;
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // There is nobody left to tell if it has failed.
        let _ = self.0.wait();
    }
}
