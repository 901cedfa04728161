//! Differential testing of the processor against the host: one random instruction at a time is executed natively and
//! emulated, and every bit of the outcome is compared. See `docs/guides/differential-testing.md`.
//!
//! Reading order: [`forms`] (the tested forms), [`operands`] and [`case`] (the construction of a case), [`native`] and
//! [`emulated`] (the two sides), [`compare`], [`runner`]. [`sweep`] goes through all encodings instead of known
//! instructions. [`timing`] compares the time of blocks instead of results.

#![deny(unsafe_code)]

pub mod case;
pub mod compare;
#[allow(unsafe_code, reason = "the guest's memory is behind a raw pointer")]
pub mod emulated;
pub mod forms;
pub mod layout;
#[allow(unsafe_code, reason = "instructions are executed natively")]
pub mod native;
pub mod operands;
pub mod runner;
#[allow(unsafe_code, reason = "a state of zeroes is one")]
pub mod state;
pub mod sweep;
pub mod timing;
pub mod values;
pub mod vendor;
