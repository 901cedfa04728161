//! The pipeline: what a run of instructions takes.

mod encoding;
mod in_flight;
mod state;
mod step;

pub use in_flight::{InFlight, Lead};
pub use state::{State, step};
pub use step::{End, Step};
