//! Measurements of this machine's processor.
//!
//! [`measure()`] says how many cycles of the core a block of instructions takes when it is repeated, in the form that the
//! processor executes natively. Nothing here knows a model of time; [`stats`] compares two lists of figures, whoever
//! made them.
//!
//! Reading order: [`block`] (what can be measured), [`routine`] (the code around a block), `child` (its execution in a
//! process of its own), [`options`] (the size of a measurement, and its clock), [`measure`](mod@measure) (samples become cycles), [`corpus`]
//! (measured blocks in a file), [`model`] (how far a model is from them). Beside them,
//! [`host`] says which processor this machine has, and [`release`] which kernel.

#![deny(unsafe_code)]

pub mod block;
#[allow(unsafe_code, reason = "machine code is executed in a forked process")]
mod child;
pub mod corpus;
pub mod failure;
pub mod family;
pub mod host;
pub mod layout;
pub mod mca;
pub mod measure;
pub mod model;
pub mod options;
pub mod program;
pub mod random;
pub mod release;
pub mod routine;
pub mod sample;
pub mod stats;
pub mod window;

pub use block::Block;
pub use failure::Failure;
pub use measure::{Cycles, measure};
pub use options::Options;
