//! What KVM does, on the processor of the `cpu` crate in non-root mode: exit handling, the MMUs, CPUID and MSR policy,
//! paravirtual interfaces. Everything its software would do on a real host is charged at the profile's price, operation by
//! operation; nothing here knows a cost.

pub mod config;
pub mod mmu;

pub use config::Config;
