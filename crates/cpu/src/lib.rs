//! The processor: x86-64 state, decode, interpretation, address translation, faults and interrupts.
//!
//! The driver of a processor (a board, a hypervisor) sees the interface of VMX hardware: [`Cpu::run`] executes until an
//! [`Exit`].
//!
//! Reading order: [`state`] (the processor's state), `op` (a decoded instruction), [`row`] (what an instruction is),
//! [`table`] and [`decode`] (decoding), [`blocks`], [`cache`] (their use by processors), [`run`] (the loop), `exec` (instruction handlers), `mem`,
//! [`tlb`], [`walk`] and [`paging`] (memory), [`vmx`] (VMX operation).
//!
//! Handlers trust the contents of decoded operations, so no other crate can make or change one:
//!
//! ```compile_fail,E0603
//! fn change(operation: &mut cpu::op::Op) {
//!     operation.imm = 0;
//! }
//! ```

#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as cpu;

mod access;
pub mod arch;
pub mod blocks;
mod branches;
mod breakpoints;
pub mod bus;
#[allow(unsafe_code, reason = "guest memory is reached through host pointers")]
mod bytes;
pub mod cache;
pub mod capability;
pub mod charged;
mod charging;
mod code_lines;
pub mod counters;
pub mod decode;
mod decoded;
mod dependence;
pub mod engine;
mod exec;
mod f80;
pub mod fault;
pub mod features;
mod flags;
#[allow(unsafe_code, reason = "its tables are found by translated code")]
mod front;
mod known_code;
mod leaf;
mod lines;
#[allow(unsafe_code, reason = "memory of the host is mapped")]
pub mod mapping;
#[allow(unsafe_code, reason = "guest memory is reached through host pointers")]
mod mem;
pub mod micro;
pub mod mode;
pub mod model;
mod moving;
pub mod native;
pub mod observer;
mod op;
pub mod paging;
#[cfg(test)]
mod paging_tests;
pub mod permission;
pub mod pmu;
pub mod probe;
mod probing;
mod raise;
#[allow(unsafe_code, reason = "guest memory is reached through host pointers")]
pub mod ram;
mod returns;
pub mod row;
pub mod run;
pub mod sampling;
pub mod saved;
pub mod state;
mod staying;
pub mod stays;
mod stopping;
pub mod stops;
pub mod table;
mod tally;
#[cfg(test)]
mod testing;
pub mod tier;
pub mod time;
pub mod tlb;
mod translate;
mod usage;
pub mod vmx;
pub mod walk;
pub mod wiring;
mod xstate;

pub use bus::{Bus, Ident};
pub use fault::{Exec, Fault, Flow};
pub use features::Features;
pub use model::Model;
pub use native::{HostError, host_supported};
pub use op::Op;
pub use ram::Ram;
pub use run::Exit;
pub use state::Cpu;
pub use tier::Tier;
pub use translate::BlockCache;
