//! Runs that repeat each other though their input comes from outside: `--record` and `--replay`.

use crate::contain::Sandbox;
use crate::output::OutputFile;
use anyhow::{Context, Result};
use clap::Args;
use machine::Machine;
use std::path::PathBuf;

/// The largest recording that is read, in bytes.
const LARGEST: u64 = 1 << 32;

/// Options that record and repeat a run.
#[derive(Args)]
pub struct RepeatArgs {
    /// Writes the command's input, with its virtual time, to a file for --replay
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "root", "share"])]
    record: Option<PathBuf>,
    /// Gives the command the input of a file that --record has written, at the same virtual times, and no other. The command, its files and all options must be as
    /// they were then
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "share"])]
    replay: Option<PathBuf>,
}

/// A recording in the making.
pub struct Recording {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl RepeatArgs {
    /// Whether a file identifies the run, by hashes of what it is made from.
    pub fn identifies(&self) -> bool {
        self.record.is_some() || self.replay.is_some()
    }

    /// Whether the input comes from a file, and from nowhere else.
    pub fn replays(&self) -> bool {
        self.replay.is_some()
    }

    /// Prepares a machine whose command has not begun. `facts` identify the run.
    pub fn prepare(
        &self,
        machine: &mut Machine,
        facts: &[(String, String)],
        sandbox: Sandbox,
    ) -> Result<Option<Recording>> {
        if let Some(path) = &self.replay {
            let failed = || format!("can't replay {}", path.display());
            let bytes = crate::input::read(path, LARGEST).with_context(failed)?;
            machine.replay(&bytes, facts).with_context(failed)?;
        }
        let Some(path) = &self.record else { return Ok(None) };
        machine.record();
        let file = OutputFile::create_for(sandbox, path, "recorded input")?;
        Ok(Some(Recording { file, facts: facts.to_vec() }))
    }
}

impl Recording {
    /// Writes the recording of a run that is over.
    pub fn write(self, machine: &Machine) -> Result<()> {
        self.file.write(&machine.recording(&self.facts).context("can't record the input")?)
    }
}
