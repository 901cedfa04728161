//! Reasons why a block has no figure.

use crate::layout::MOST_BYTES;

/// Reason why a block has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no instruction.
    #[error("the block is empty")]
    Empty,
    /// The block is too long.
    #[error("the block is longer than {} bytes", MOST_BYTES)]
    TooLong,
    /// An instruction cannot be repeated in a program.
    #[error("'{0}' cannot be repeated in a straight line")]
    Unfit(String),
    /// The block cannot be encoded at another address.
    #[error("the block cannot be encoded: {0}")]
    Encoding(String),
    /// The process has no memory at the addresses of a measurement.
    #[error("the memory of a measurement cannot be mapped")]
    Memory,
    /// The block touches too many pages.
    #[error("the block touches too many pages")]
    Pages,
    /// The block accesses addresses that no program may have.
    #[error("the block accesses an address that cannot be mapped")]
    Address,
    /// The block causes #GP or #PF for another reason.
    #[error("the block causes a protection fault")]
    Protection,
    /// The block contains an instruction that the processor does not have.
    #[error("the processor does not have one of the instructions")]
    Illegal,
    /// The block divides by zero, or raises an unmasked exception of numbers.
    #[error("the block causes an arithmetic exception")]
    Arithmetic,
    /// The block causes a trap.
    #[error("the block causes a trap")]
    Trap,
    /// The block ends by another signal.
    #[error("the block ends by signal {0}")]
    Signal(i32),
    /// The block takes too long.
    #[error("the block takes too long")]
    Time,
    /// The samples do not agree.
    #[error("the samples do not agree")]
    Noise,
    /// The host refuses a process.
    #[error("a process for the measurement cannot be started: {0}")]
    Process(std::io::Error),
}

impl Failure {
    /// Returns a short name, by which failures are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLong => "too long",
            Self::Unfit(_) => "not repeatable",
            Self::Encoding(_) => "not encodable",
            Self::Memory => "no memory",
            Self::Pages => "many pages",
            Self::Address => "address",
            Self::Protection => "protection",
            Self::Illegal => "illegal",
            Self::Arithmetic => "arithmetic",
            Self::Trap => "trap",
            Self::Signal(_) => "signal",
            Self::Time => "time",
            Self::Noise => "noise",
            Self::Process(_) => "process",
        }
    }
}
