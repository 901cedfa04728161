//! VM exits: reasons, and what they report.

use x86::vmx::reason;

/// What an exit reports: the VM-exit information fields (SDM vol. 3, 24.9).
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
    /// Length of the instruction that exited or made the event.
    pub instruction_length: u32,
    /// Operands of the instruction that exited.
    pub instruction_information: u32,
    /// Event that exited.
    pub interruption: u32,
    /// Its error code.
    pub interruption_error: u32,
    /// Event that was being delivered.
    pub vectoring: u32,
    /// Its error code.
    pub vectoring_error: u32,
}

impl VmExit {
    /// The basic reason.
    pub fn basic(&self) -> u32 {
        self.reason & reason::BASIC
    }
}
