//! Guest memory as the processor sees it.
//!
//! This is one of the modules with `unsafe`: the processor reaches guest memory through host pointers.

use crate::hypervisor_memory::HypervisorMemory;
use crate::memory::{GuestRam, HostRange};
use cpu::Ram;
use cpu::ram::RamRegion;
use std::sync::Arc;

/// The processor's view of guest memory.
pub(crate) fn processor_ram(ram: &GuestRam, tables: Option<&HypervisorMemory>) -> Ram {
    let region = |r: HostRange| RamRegion { start: r.start, len: r.len, host: r.host, read_only: false, hidden: false };
    let regions = ram.host_ranges().into_iter().map(region).chain(tables.map(HypervisorMemory::region)).collect();
    // SAFETY: the ranges are mapped as long as what is handed over with them lives, and vm-memory makes no references to
    // guest memory.
    unsafe { Ram::new(regions, Arc::new((ram.clone(), tables.cloned()))) }
}
