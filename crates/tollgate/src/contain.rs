//! `--sandbox`: confinement of this process while its machines run.

use anyhow::{Context, Result};
use clap::ValueEnum;
use contain::Needs;

/// Values of `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// Confines the process as far as the host's kernel supports it
    On,
    /// No confinement, for debugging Tollgate itself
    Off,
}

impl Sandbox {
    /// Confines this process, and the threads that it starts later, to `needs`. Open descriptors remain usable.
    pub fn confine(self, needs: &Needs) -> Result<()> {
        match self {
            Self::On => contain::confine(needs).context("the sandbox can't be set up (--sandbox off runs without)"),
            Self::Off => Ok(()),
        }
    }
}
