//! Errors of snapshots and recorded input.

use crate::state::{RestoreError, StateError};
use cpu::state::ImpossibleState;
use hypervisor::moving::Lack;
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
    /// The machine was created with another processor, to which its guest could be moved.
    #[error(
        "it is of a machine with the processor {saved}, and here it is {here}: --migrate moves a guest of --platform hvm to another processor"
    )]
    OtherProcessor {
        /// Processor of the snapshot.
        saved: String,
        /// Processor of this machine.
        here: String,
    },
    /// Only guests of a hypervisor can be moved.
    #[error("its machine has no hypervisor: only a guest of --platform hvm can be moved to another processor")]
    NoHypervisor,
    /// Guests that may be hypervisors cannot be moved.
    #[error("its guest may be a hypervisor itself (--nested on), and can't be moved to another processor")]
    Nested,
    /// The guest would be one that may be a hypervisor.
    #[error(
        "--nested on can't be used with --migrate: a guest that may be a hypervisor itself can't be moved to another processor"
    )]
    NestedHere,
    /// The machine is not for a guest of this processor.
    #[error(
        "its guest was started on {0}: --cpu must name that processor, and --migrate the one on which the guest goes on"
    )]
    FirstProcessor(String),
    /// The destination of a move lacks a feature.
    #[error("its guest {0}: it can't be moved there")]
    Lacks(Lack),
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
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::RestoreError),
    /// Only one of snapshot and machine has a hypervisor.
    #[error("it is of another platform")]
    Platform,
}
