//! The board: guest memory, devices, interrupt controllers, firmware tables, loaders and the loop that drives processors.

#![deny(unsafe_code)]

pub mod account;
pub mod acpi;
pub mod awaited;
pub mod board;
pub mod console;
pub mod debugger;
pub mod device;
pub mod devices;
pub mod error;
pub mod firmware;
pub mod group;
mod guest_memory;
pub mod host;
mod host_time;
pub mod hypervisor_memory;
pub mod ixgbe;
mod kernel_symbols;
pub mod kvm;
mod lacking;
pub mod loader;
pub mod lockstep;
pub mod machine;
#[allow(unsafe_code, reason = "what is mapped is shown as bytes")]
pub mod memory;
pub mod moves;
pub mod pci;
pub mod platform;
pub mod postmortem;
mod recording;
mod replay;
pub mod snapshot;
pub mod stacks;
pub mod state;
#[allow(unsafe_code, reason = "the kernel is asked for a device by ioctl")]
pub mod tap;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod vcpus;
pub mod verdict;
#[allow(unsafe_code, reason = "the processor reaches guest memory through host pointers")]
mod view;
pub mod virtio;

pub use lacking::Lacking;

pub use error::MachineError;
pub use group::Group;
pub use host::{Host, Poll};
pub use machine::{ClockSource, Config, MEMORY_MAP, Machine, Outcome};
pub use platform::Platform;
pub use verdict::Cause;

/// Maximum number of processors of a machine.
pub const MAX_CPUS: usize = 255;
