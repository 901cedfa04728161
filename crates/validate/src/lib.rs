//! How far the modelled processor is from the processor of this machine.
//!
//! The same code is executed natively, as a process, and by the modelled processor; both figures are cycles of the
//! core.
//!
//! Reading order: [`kernel`] (a loop whose time is measured), [`families`] (the kernels), [`program`] (their code),
//! [`native`](mod@native) and [`bare`] (both sides), [`clock`] (the frequency of both), [`blocks`] (basic blocks), [`linux`] (paths through the
//! kernel, and programs), [`run`](mod@run) (everything), [`result`] (what is made of it), [`page`] (how it is drawn), [`choice`] (the
//! profile of a processor).

#![deny(unsafe_code)]

pub mod bare;
pub mod blocks;
pub mod choice;
pub mod clock;
mod counters;
pub mod families;
pub mod kernel;
pub mod layout;
pub mod linux;
pub mod mitigations;
pub mod native;
pub mod page;
pub mod program;
pub mod result;
pub mod run;
pub mod security;
mod shared;
pub mod workloads;

pub use result::Validation;
