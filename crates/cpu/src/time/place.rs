//! The number by which a processor and a block know a context of instructions.

/// Number of a [`Context`](super::Context) in [`Runs`](super::Runs).
pub type Place = u16;

/// The begin of a run: the number of the empty context.
pub const START: Place = 0;
