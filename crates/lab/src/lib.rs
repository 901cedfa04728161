//! The laboratory: runs a matrix of configurations over one workload, sets the outcome beside published figures, and says
//! what on the ledger explains each difference.
//!
//! An [`Experiment`] is read from a TOML file. Its [`Cell`]s are run as child processes by [`runner`], each leaving a ledger;
//! [`diff`] holds one command in two kernels, or under two settings, against each other. [`results`] are made from those, and reported as text, as HTML, as JSON, or held against an earlier run ([`check`]).

#![deny(unsafe_code)]

mod boots;
pub mod charges;
pub mod check;
mod child;
pub mod csv;
pub mod diff;
pub mod difference;
pub mod experiment;
pub mod export;
pub mod failure;
pub mod fingerprint;
pub mod flame;
pub mod format;
pub mod functions;
mod input;
pub mod layouts;
mod markdown;
pub mod measure;
pub mod report;
pub mod results;
pub mod runner;
pub mod score;
mod shown;
pub mod size;
pub mod slots;
pub mod stat;
pub mod store;
pub mod text;
pub mod trust;

#[cfg(test)]
mod testing;
#[allow(unsafe_code, reason = "a child is prepared between fork and exec")]
mod tether;

pub use experiment::{Cell, Experiment, ExperimentError};
