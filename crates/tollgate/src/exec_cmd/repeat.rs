//! Recording and replay of external input: `--record` and `--replay`.

use crate::contain::Sandbox;
use crate::recording::{self, Recording};
use anyhow::Result;
use clap::Args;
use machine::Machine;
use std::path::{Path, PathBuf};

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

impl RepeatArgs {
    /// Returns true if a file identifies the run, by hashes of its inputs.
    pub fn identifies(&self) -> bool {
        self.record.is_some() || self.replay.is_some()
    }

    /// Returns the option that writes a file, with this file.
    pub fn output(&self) -> Option<(&'static str, &Path)> {
        self.record.as_deref().map(|file| ("--record", file))
    }

    /// Returns the option that reads a file, with this file.
    pub fn input(&self) -> Option<(&'static str, PathBuf)> {
        self.replay.clone().map(|file| ("--replay", file))
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
            recording::replay(machine, path, LARGEST, facts)?;
        }
        self.record.as_ref().map(|path| Recording::start(machine, path, facts, sandbox)).transpose()
    }
}
