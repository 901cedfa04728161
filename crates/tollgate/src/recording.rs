//! Recording of a machine's external input, and its replay.

use crate::contain::Sandbox;
use crate::input;
use crate::output::OutputFile;
use anyhow::{Context, Result};
use machine::Machine;
use std::path::Path;

/// A recording in progress.
pub struct Recording {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl Recording {
    /// Starts the recording of a machine that has not run. `facts` identify the run. The file is written after the run.
    pub fn start(machine: &mut Machine, path: &Path, facts: &[(String, String)], sandbox: Sandbox) -> Result<Self> {
        machine.record();
        Ok(Self { file: OutputFile::create_for(sandbox, path, "recorded input")?, facts: facts.to_vec() })
    }

    /// Writes the input of a finished run.
    pub fn write(self, machine: &Machine) -> Result<()> {
        self.file.write(&machine.recording(&self.facts).context("can't record the input")?)
    }
}

/// Replays recorded input, a file of at most `largest` bytes, on a machine that has not run. `facts` must be those of the recorded run.
pub fn replay(machine: &mut Machine, path: &Path, largest: u64, facts: &[(String, String)]) -> Result<()> {
    let failed = || format!("can't replay {}", path.display());
    machine.replay(&input::read_regular(path, largest, "recorded input")?, facts).with_context(failed)
}
