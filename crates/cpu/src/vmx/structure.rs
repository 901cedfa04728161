//! VMX data structures in memory: VMCS regions, lists of MSRs, bitmaps, the virtual-APIC page, EPT tables.
//!
//! For the processor itself an address is that of the structure. If a hypervisor emulates VMX for its guest
//! ([`super::software`]), it is an address of that guest, which the map of the guest's memory translates.

use crate::state::Cpu;
use ledger::Kind;
use zerocopy::{FromBytes, IntoBytes};

impl Cpu {
    /// Reads a value inside one page. Returns `None` outside of memory.
    #[inline(always)]
    pub(super) fn structure<T: FromBytes>(&self, address: u64) -> Option<T> {
        self.wiring.ram.read::<T>(self.backing(address)?)
    }

    /// Writes a value inside one page, and reports the write to decoded code and to the emulating hypervisor.
    pub(super) fn set_structure<T: IntoBytes>(&mut self, address: u64, value: T) {
        self.note_structure(address, size_of::<T>() as u64);
        self.set_table(address, value);
    }

    /// Writes flags of a table entry, which are reported to hypervisors separately.
    pub(super) fn set_table<T: IntoBytes>(&mut self, address: u64, value: T) {
        if let Some(host) = self.backing(address) {
            self.code_written(host, size_of::<T>() as u64);
            self.wiring.ram.write(host, value);
        }
    }

    /// Reports a write to the emulating hypervisor.
    pub(super) fn note_structure(&mut self, address: u64, len: u64) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_data(address, len, true);
        }
    }

    /// Charges the hypervisor for a part of a transition, unless software performs it with its own prices.
    pub(super) fn charge_transition(&mut self, kind: Kind) {
        if self.engine.emulation.is_none() {
            self.charge_host_kind(kind, 1);
        }
    }
}
