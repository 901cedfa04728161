//! Why a saved machine, or recorded input, can't be used.

use crate::state::{RestoreError, StateError};
use cpu::state::ImpossibleState;
use ledger::recorder::SavedError;
use thiserror::Error;

/// Why a snapshot can't be taken or restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// By the host's clock no two runs are the same.
    #[error("by the host's clock nothing can be repeated: a snapshot needs --clock virtual")]
    HostClock,
    /// The file is something else.
    #[error("it is no file of that kind")]
    OtherFile,
    /// The file was written by another version of the program.
    #[error("it has version {found}, and this program knows version {known}")]
    Version {
        /// What the file says.
        found: u32,
        /// What was expected.
        known: u32,
    },
    /// The file is not what was written.
    #[error("it is damaged: its checksum is wrong, or it is cut off")]
    Damaged,
    /// The machine was made with other options.
    #[error("it is of another machine: its {what} is {saved:?}, and here it is {here:?}")]
    OtherMachine {
        /// What differs.
        what: String,
        /// What the snapshot has.
        saved: String,
        /// What this machine has.
        here: String,
    },
    /// Memory is described wrongly.
    #[error("its memory is described wrongly at {0:#x}")]
    Memory(u64),
    /// A processor's state is impossible.
    #[error("processor {0}: {1}")]
    Processor(usize, ImpossibleState),
    /// There are more or fewer processors.
    #[error("it has {0} processors, and this machine has {1}")]
    Processors(usize, usize),
    /// What was charged is impossible.
    #[error(transparent)]
    Charges(#[from] SavedError),
    /// A device's state.
    #[error(transparent)]
    Device(#[from] RestoreError),
    /// Another part of the state.
    #[error(transparent)]
    State(#[from] StateError),
    /// No input has been noted.
    #[error("no input has been recorded")]
    NothingRecorded,
    /// The hypervisor's state.
    #[error("hypervisor: {0}")]
    Hypervisor(#[from] hypervisor::RestoreError),
    /// The snapshot is of a machine with a hypervisor, and this one has none, or the other way round.
    #[error("it is of another platform")]
    Platform,
}
