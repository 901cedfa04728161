//! Recording and replay of external input: `--record` and `--replay`.

use crate::contain::Sandbox;
use crate::output::OutputFile;
use anyhow::{Context, Result};
use clap::Args;
use machine::Machine;
use std::path::PathBuf;

/// Largest recording, in bytes.
const LARGEST: u64 = 1 << 32;

/// Options for recording and replay.
#[derive(Args)]
pub struct RepeatArgs {
    /// Writes the command's input, with its virtual times, to a file for --replay
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "root", "share"])]
    record: Option<PathBuf>,
    /// Gives the command the input that --record wrote, at the same virtual times, and no other. Requires the same
    /// command, files and options
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "share"])]
    replay: Option<PathBuf>,
}

/// A recording or replay in progress.
pub struct Recording {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl RepeatArgs {
    /// Returns true if a file identifies the run, by hashes of its inputs.
    pub fn identifies(&self) -> bool {
        self.record.is_some() || self.replay.is_some()
    }

    /// Returns true if all input comes from a file.
    pub fn replays(&self) -> bool {
        self.replay.is_some()
    }

    /// Prepares a machine whose command has not started. `facts` identify the run.
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
    /// Writes the recording of a finished run.
    pub fn write(self, machine: &Machine) -> Result<()> {
        self.file.write(&machine.recording(&self.facts).context("can't record the input")?)
    }
}
