//! VMX operation of guest software: the machine's own hypervisor, in root mode, with VMCSs in its memory.
//!
//! Non-root mode is the same whoever is in charge of it: controls, checks, events and exits are those of [`crate::vmx`]. A
//! hypervisor of the board hands over [`Controls`](super::Controls) and finds the guest's registers in the processor's fields; for guest
//! software, [`entry`] makes controls and registers from the current VMCS, and [`exit`] puts them back and loads the host's.

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

/// No VMCS: what VMPTRST stores then, and a VMCS link pointer that leads nowhere.
pub(super) const NO_VMCS: u64 = u64::MAX;

/// VMX operation, as guest software has entered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The VMXON pointer, in VMX operation.
    vmxon: Option<u64>,
    /// The address of the current VMCS, or [`NO_VMCS`].
    current: u64,
    /// The current VMCS; nothing while there is none.
    vmcs: Vmcs,
    /// What handlers the host was in when it entered the guest ([`crate::charged::Nesting`]).
    host_nesting: crate::charged::Nesting,
    /// Registers that translation depends on, as the host left them when it entered the guest.
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
    /// Whether the processor is in VMX operation by guest software.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.vmxon.is_some()
    }

    /// The current VMCS and its address.
    pub fn current(&self) -> Option<(u64, &Vmcs)> {
        (self.current != NO_VMCS).then_some((self.current, &self.vmcs))
    }

    /// The fields of the current VMCS, for a hypervisor that has the VMX of its guest in hand.
    pub fn current_mut(&mut self) -> Option<&mut Vmcs> {
        (self.current != NO_VMCS).then_some(&mut self.vmcs)
    }

    /// Whether it can have been saved.
    pub(crate) fn is_whole(&self) -> bool {
        let in_place = |region: u64| region == NO_VMCS || region & OFFSET == 0;
        self.vmcs.is_whole() && in_place(self.current) && self.vmxon.is_none_or(in_place)
    }
}

impl Cpu {
    /// Puts the fields of the current VMCS into its region: the processor holds none from now on.
    fn release_vmcs(&mut self) {
        let region = std::mem::replace(&mut self.arch.vmx.operation.current, NO_VMCS);
        if region != NO_VMCS {
            let vmcs = std::mem::take(&mut self.arch.vmx.operation.vmcs);
            if let Some(host) = self.region_written(region) {
                vmcs.store(&self.wiring.ram, host);
            }
        }
    }

    /// The first 32 bits of a VMCS region; all ones where there is no memory.
    fn region_revision(&self, address: u64) -> u32 {
        self.structure::<u32>(address).unwrap_or(u32::MAX)
    }

    /// A VMCS region is about to be written: where it is.
    fn region_written(&mut self, region: u64) -> Option<u64> {
        let host = self.backing(region)?;
        self.code_written(host, region::SIZE);
        self.note_structure(region, region::SIZE);
        Some(host)
    }
}
