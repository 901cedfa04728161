//! CET state in a VMCS: IA32_S_CET, SSP and the interrupt SSP table, of guest and host (SDM vol. 3, 26.2.2, 26.3.1.1,
//! 27.3.1 and 27.5.1).

use super::super::checks::{Check, require};
use super::super::vmcs::Vmcs;
use crate::state::Cpu;
use x86::vmx::{entry, vmcs};

/// Fields of the guest, and of the host.
pub(super) const GUEST: [u32; 3] = [vmcs::GUEST_S_CET, vmcs::GUEST_SSP, vmcs::GUEST_INTERRUPT_SSP_TABLE_ADDRESS];
pub(super) const HOST: [u32; 3] = [vmcs::HOST_S_CET, vmcs::HOST_SSP, vmcs::HOST_INTERRUPT_SSP_TABLE_ADDRESS];

impl Cpu {
    /// Checks the fields for a load, for 64-bit code if `long`.
    pub(super) fn check_cet(&self, v: &Vmcs, fields: [u32; 3], long: bool) -> Check {
        let [control, ssp, table] = fields.map(|field| v.get(field));
        require(self.good_cet_control(control), "IA32_S_CET")?;
        require(ssp & 3 == 0 && self.canonical_base(ssp), "SSP")?;
        require(long || ssp >> 32 == 0, "upper half of SSP")?;
        require(self.canonical_base(table), "IA32_INTERRUPT_SSP_TABLE_ADDR")
    }

    /// Loads the values of these fields.
    pub(super) fn load_cet(&mut self, [control, ssp, table]: [u64; 3]) {
        self.arch.msr.s_cet = control;
        self.arch.ssp = ssp;
        self.arch.msr.interrupt_ssp_table = table;
    }

    /// Stores the guest's state, if the processor supports it.
    pub(super) fn store_cet(&mut self) {
        if !self.vmx_capabilities().entry.offers(entry::LOAD_CET) {
            return;
        }
        let values = [self.arch.msr.s_cet, self.arch.ssp, self.arch.msr.interrupt_ssp_table];
        for (field, value) in GUEST.into_iter().zip(values) {
            self.arch.vmx.operation.vmcs.set(field, value);
        }
    }
}
