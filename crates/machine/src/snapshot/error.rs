//! Errors of snapshots and recorded input.

use crate::state::{RestoreError, StateError};
use cpu::state::ImpossibleState;
use ledger::recorder::SavedError;
use thiserror::Error;

/// Reason for which a snapshot can't be taken or restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Runs by the host's clock can't be repeated.
    #[error("a run on the host's clock cannot be repeated: a snapshot needs --clock virtual")]
    HostClock,
    /// The file has another format.
    #[error("it is not {0}")]
    OtherFile(&'static str),
    /// The file was written by another version of the program.
    #[error("it has version {found}, and this program knows version {known}")]
    Version {
        /// Version of the file.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The file is damaged.
    #[error("it is damaged: its checksum is wrong, or it is cut off")]
    Damaged,
    /// The machine was created with other options.
    #[error("it is of another machine: its {what} is {saved:?}, and here it is {here:?}")]
    OtherMachine {
        /// Name of the option.
        what: String,
        /// Value in the snapshot.
        saved: String,
        /// Value of this machine.
        here: String,
    },
    /// The description of memory is invalid.
    #[error("its description of memory is invalid at {0:#x}")]
    Memory(u64),
    /// A processor's state is impossible.
    #[error("processor {0}: {1}")]
    Processor(usize, ImpossibleState),
    /// There are more or fewer processors.
    #[error("it has {0} processors, and this machine has {1}")]
    Processors(usize, usize),
    /// The state of charges is impossible.
    #[error(transparent)]
    Charges(#[from] SavedError),
    /// A device's state can't be restored.
    #[error(transparent)]
    Device(#[from] RestoreError),
    /// Another part of the state can't be restored.
    #[error(transparent)]
    State(#[from] StateError),
    /// No input has been recorded.
    #[error("no input has been recorded")]
    NothingRecorded,
    /// The hypervisor's state can't be restored.
    #[error("hypervisor: {0}")]
    Hypervisor(#[from] hypervisor::RestoreError),
    /// Only one of snapshot and machine has a hypervisor.
    #[error("it is of another platform")]
    Platform,
}
