//! The pipeline: what a run of instructions takes.

mod encoding;
mod state;
mod step;

pub use state::{State, step};
pub use step::{End, Step};
