//! VMX of a guest that is itself a hypervisor: its state, and the features that it is offered.

use super::capability::VmxCapabilities;
use super::controls::Controls;
use super::root::operation::Operation;
use serde::{Deserialize, Serialize};

/// VMX state of a guest hypervisor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestVmx {
    /// VMX operation of the guest hypervisor.
    pub operation: Operation,
    /// Controls of the nested guest while it runs, with addresses in the guest hypervisor's memory.
    pub running: Option<Box<Controls>>,
}

impl GuestVmx {
    /// Returns true if a saved state is consistent.
    pub fn is_whole(&self) -> bool {
        let on = self.operation.is_on() || self.running.is_none();
        on && self.operation.is_whole() && self.running.as_ref().is_none_or(|controls| controls.fits())
    }
}

/// VMX features that a hypervisor offers to guests that are hypervisors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Controls and features.
    pub vmx: VmxCapabilities,
    /// Bits of CR4 that the processor has, and the guest does not.
    pub hidden_cr4: u64,
}
