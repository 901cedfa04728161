//! VMX operation of guest software, as a value.

use crate::vmx::vmcs::Vmcs;
use serde::{Deserialize, Serialize};
use x86::page::OFFSET;

/// Absent VMCS: the value stored by VMPTRST, and a VMCS link pointer without a target.
pub(in crate::vmx) const NO_VMCS: u64 = u64::MAX;

/// VMX operation of guest software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// VMXON pointer, in VMX operation.
    pub(super) vmxon: Option<u64>,
    /// Address of the current VMCS, or [`NO_VMCS`].
    pub(super) current: u64,
    /// Contents of the current VMCS; empty if there is none.
    pub(super) vmcs: Vmcs,
    /// Registers that affect translation, at the time when the host entered the guest.
    pub(super) host_under: [u64; 5],
}

impl Default for Operation {
    fn default() -> Self {
        Self { vmxon: None, current: NO_VMCS, vmcs: Vmcs::default(), host_under: [0; 5] }
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
