//! The processor: x86-64 state, decode, interpretation, address translation, faults and interrupts.

pub mod bus;
pub mod flags;
pub mod model;

pub use bus::{Bus, Ident};
pub use model::Model;
