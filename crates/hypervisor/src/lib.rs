//! A model of KVM on the processor of the `cpu` crate in non-root mode: exit handling, MMUs, CPUID and MSR policy,
//! paravirtual interfaces. Each operation that the software of a real host would execute is charged at the profile's
//! price; this crate contains no prices.

#![forbid(unsafe_code)]

pub mod config;
mod controls;
pub mod cpuid;
pub mod devices;
mod emulate;
mod enter_loop;
mod entry;
pub mod events;
mod exit_context;
mod exits;
pub mod failure;
pub mod mmu;
pub mod moving;
mod nested;
mod paging;
pub mod paravirt;
pub mod registers;
mod resume_flag;
mod summary;
pub mod switches;
pub mod vcpu;
pub mod vm;

pub use config::VmConfig;
pub use failure::Failure;
pub use mmu::RestoreError;
pub use vcpu::Vcpu;
pub use vm::{Hypervisor, Saved, SetupError};
