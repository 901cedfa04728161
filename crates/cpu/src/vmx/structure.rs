//! What VMX keeps in memory: VMCS regions, lists of MSRs, bitmaps, the virtual-APIC page, tables of EPT.
//!
//! For the processor itself an address is where a structure is. Where a hypervisor carries out VMX for its guest ([`super::software`]),
//! it is an address of that guest, whose memory a map has.

use crate::state::Cpu;
use ledger::Kind;

impl Cpu {
    /// Reads a value, which lies in one page. `None`: there is no memory.
    #[inline(always)]
    pub(super) fn structure<T: Copy>(&self, address: u64) -> Option<T> {
        self.wiring.ram.read::<T>(self.backing(address)?)
    }

    /// Writes a value, which lies in one page. Decoded code and the hypervisor that emulates are told.
    pub(super) fn set_structure<T: Copy>(&mut self, address: u64, value: T) {
        self.note_structure(address, size_of::<T>() as u64);
        self.set_table(address, value);
    }

    /// Likewise for flags of a table, which hypervisors are told of otherwise.
    pub(super) fn set_table<T: Copy>(&mut self, address: u64, value: T) {
        if let Some(host) = self.backing(address) {
            self.code_written(host, size_of::<T>() as u64);
            self.wiring.ram.write(host, value);
        }
    }

    /// Tells the hypervisor that emulates of a write.
    pub(super) fn note_structure(&mut self, address: u64, len: u64) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_data(address, len, true);
        }
    }

    /// Charges the hypervisor for a part of a transition, unless it is one that software carries out at its own prices.
    pub(super) fn charge_transition(&mut self, kind: Kind) {
        if self.engine.emulation.is_none() {
            self.charge_host_kind(kind, 1);
        }
    }
}
