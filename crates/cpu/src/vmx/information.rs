//! Exit information of VM exits.

use x86::vmx::reason;

/// The VM-exit information fields (SDM vol. 3, 24.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VmExit {
    /// Exit reason, see [`reason`].
    pub reason: u32,
    /// Exit qualification.
    pub qualification: u64,
    /// Guest-linear address.
    pub guest_linear: u64,
    /// Guest-physical address.
    pub guest_physical: u64,
    /// Length of the instruction that exited or caused the event.
    pub instruction_length: u32,
    /// Information on the operands of the instruction that exited.
    pub instruction_information: u32,
    /// Event that exited.
    pub interruption: u32,
    /// Error code of that event.
    pub interruption_error: u32,
    /// Event in delivery.
    pub vectoring: u32,
    /// Error code of that event.
    pub vectoring_error: u32,
}

impl VmExit {
    /// Returns the basic exit reason.
    pub fn basic(&self) -> u32 {
        self.reason & reason::BASIC
    }
}
