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
pub mod operation;
#[cfg(test)]
mod tests;

pub use instructions::ROWS;

use crate::state::Cpu;
use operation::NO_VMCS;
use x86::vmx::region;

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
