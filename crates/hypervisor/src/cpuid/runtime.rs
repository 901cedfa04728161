//! The parts of CPUID that depend on the guest's registers: OSXSAVE, OSPKE, the APIC bit, and the sizes of XSAVE areas,
//! as last computed. `exits/cpuid_update.rs` determines the time of the computation.

use serde::{Deserialize, Serialize};
use x86::control::{CR4_OSXSAVE, CR4_PKE};

/// The leaf of processor extended states.
pub const XSTATE: u32 = 0xd;
/// Components of the legacy region.
const LEGACY: u64 = 3;

/// Registers on which the values depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// CR4.OSXSAVE and CR4.PKE.
    pub cr4: u64,
    /// XCR0.
    pub xcr0: u64,
    /// IA32_XSS.
    pub xss: u64,
    /// True if the local APIC is enabled.
    pub apic: bool,
}

impl Inputs {
    /// Clears the bits of XCR0 for x87 and SSE, which do not affect sizes.
    pub fn relevant(self) -> Self {
        Self { xcr0: self.xcr0 & !LEGACY, ..self }
    }
}

/// Values as last computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeCpuid {
    /// Registers from which they were computed.
    pub inputs: Inputs,
    /// Size of the XSAVE area for XCR0.
    pub standard: u32,
    /// Size of the compacted area for XCR0 and IA32_XSS; 0 without XSAVEC and XSAVES.
    pub compacted: u32,
    /// True if a register has changed since.
    pub stale: bool,
}

impl RuntimeCpuid {
    /// Returns the OSXSAVE bit, from CR4.OSXSAVE.
    pub fn osxsave(&self) -> bool {
        self.inputs.cr4 & CR4_OSXSAVE != 0
    }

    /// Returns the OSPKE bit, from CR4.PKE.
    pub fn ospke(&self) -> bool {
        self.inputs.cr4 & CR4_PKE != 0
    }
}

/// Returns the components of `states` outside the legacy region.
pub fn extended(states: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| states & !LEGACY & 1 << bit != 0)
}
