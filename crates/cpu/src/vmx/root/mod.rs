//! VMX operation of guest software: a hypervisor on the machine, in root mode, with VMCSs in its memory.
//!
//! Non-root mode does not depend on the kind of hypervisor: controls, checks, events and exits are those of
//! [`crate::vmx`]. A hypervisor of the board passes [`Controls`](super::Controls) and uses the processor's fields for
//! the guest's registers. For guest software, [`entry`] converts the current VMCS to controls and registers, and
//! [`exit`] stores them and loads the host's.

mod cet;
mod entry;
mod exit;
mod host;
mod instructions;
mod lists;
#[cfg(test)]
mod tests;

pub use instructions::ROWS;

use super::vmcs::Vmcs;
use crate::state::Cpu;
use serde::{Deserialize, Serialize};
use x86::page::OFFSET;
use x86::vmx::region;

/// Absent VMCS: the value stored by VMPTRST, and a VMCS link pointer without a target.
pub(super) const NO_VMCS: u64 = u64::MAX;

/// VMX operation of guest software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// VMXON pointer, in VMX operation.
    vmxon: Option<u64>,
    /// Address of the current VMCS, or [`NO_VMCS`].
    current: u64,
    /// Contents of the current VMCS; empty if there is none.
    vmcs: Vmcs,
    /// Interrupt handlers active in the host when it entered the guest ([`crate::charged::Nesting`]).
    host_nesting: crate::charged::Nesting,
    /// Registers that affect translation, at the time when the host entered the guest.
    host_under: [u64; 5],
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            vmxon: None,
            current: NO_VMCS,
            vmcs: Vmcs::default(),
            host_nesting: Default::default(),
            host_under: [0; 5],
        }
    }
}

impl Operation {
    /// Returns true if guest software has entered VMX operation.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.vmxon.is_some()
    }

    /// Returns the current VMCS and its address.
    pub fn current(&self) -> Option<(u64, &Vmcs)> {
        (self.current != NO_VMCS).then_some((self.current, &self.vmcs))
    }

    /// Returns the fields of the current VMCS, for a hypervisor that emulates the VMX of its guest.
    pub fn current_mut(&mut self) -> Option<&mut Vmcs> {
        (self.current != NO_VMCS).then_some(&mut self.vmcs)
    }

    /// Returns true if a saved state is consistent.
    pub(crate) fn is_whole(&self) -> bool {
        let in_place = |region: u64| region == NO_VMCS || region & OFFSET == 0;
        self.vmcs.is_whole() && in_place(self.current) && self.vmxon.is_none_or(in_place)
    }
}

impl Cpu {
    /// Writes the fields of the current VMCS to its region: the processor holds no VMCS from now on.
    fn release_vmcs(&mut self) {
        let region = std::mem::replace(&mut self.arch.vmx.operation.current, NO_VMCS);
        if region != NO_VMCS {
            let vmcs = std::mem::take(&mut self.arch.vmx.operation.vmcs);
            if let Some(host) = self.region_written(region) {
                vmcs.store(&self.wiring.ram, host);
            }
        }
    }

    /// Returns the first 32 bits of a VMCS region; all ones outside of memory.
    fn region_revision(&self, address: u64) -> u32 {
        self.structure::<u32>(address).unwrap_or(u32::MAX)
    }

    /// Returns the address of a VMCS region that is about to be written.
    fn region_written(&mut self, region: u64) -> Option<u64> {
        let host = self.backing(region)?;
        self.code_written(host, region::SIZE);
        self.note_structure(region, region::SIZE);
        Some(host)
    }
}
