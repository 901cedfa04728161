//! `--sandbox`: whether this program keeps nothing but what its machines need while they run.

use anyhow::{Context, Result};
use clap::ValueEnum;
use contain::Needs;

/// Whether the host is kept from the guest by more than this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// As far as the host's kernel can
    On,
    /// Not at all: for those who debug Tollgate itself
    Off,
}

impl Sandbox {
    /// From now on this process, and the threads that it starts, can do nothing else. What is open stays open.
    pub fn confine(self, needs: &Needs) -> Result<()> {
        match self {
            Self::On => contain::confine(needs).context("the sandbox can't be set up (--sandbox off runs without)"),
            Self::Off => Ok(()),
        }
    }
}
