//! `--sandbox`: confinement of this process while its machines run.

use anyhow::{Context, Result};
use clap::ValueEnum;
use contain::{Inherited, Needs};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// The descriptors that this process has from the program that started it. They stay open until the process is confined, because an option can name
/// one, such as `/dev/fd/3`.
static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Remembers which descriptors are inherited, and keeps them from the programs that this one starts. The program calls this before it opens any
/// descriptor.
pub fn remember_inherited() {
    // Without /proc the list stays empty.
    INHERITED.get_or_init(|| Inherited::list().unwrap_or_default()).withhold();
}

fn close_inherited() {
    if let Some(inherited) = INHERITED.get() {
        inherited.close();
    }
}

/// Confines a process that writes or removes one file in a directory.
pub fn confine_keeper(directory: BorrowedFd) -> Result<()> {
    close_inherited();
    contain::confine_keeper(directory).context("the process that writes files can't be confined")
}

/// Values of `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// Confines the process as far as the host's kernel supports it
    On,
    /// No confinement, for debugging Tollgate itself
    Off,
}

impl Sandbox {
    /// Confines this process, and the threads that it starts later, to `needs`. Descriptors that the process has opened remain usable.
    pub fn confine(self, needs: &Needs) -> Result<()> {
        match self {
            Self::On => {
                close_inherited();
                contain::confine(needs).context("the sandbox can't be set up (--sandbox off disables the sandbox)")
            }
            Self::Off => Ok(()),
        }
    }
}
