//! The parts of CPUID that depend on the guest's registers: OSXSAVE, OSPKE, the APIC's bit, and the sizes of XSAVE areas, as last worked out. When that is done
//! is in `exits/cpuid_update.rs`.

use serde::{Deserialize, Serialize};
use x86::control::{CR4_OSXSAVE, CR4_PKE};

/// The leaf of processor extended states.
pub const XSTATE: u32 = 0xd;
/// The components in the legacy region.
const LEGACY: u64 = 3;

/// What the answers depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// CR4.OSXSAVE and CR4.PKE.
    pub cr4: u64,
    /// XCR0.
    pub xcr0: u64,
    /// IA32_XSS.
    pub xss: u64,
    /// The local APIC is enabled.
    pub apic: bool,
}

impl Inputs {
    /// Without XCR0's bits for x87 and SSE, which change no size.
    pub fn relevant(self) -> Self {
        Self { xcr0: self.xcr0 & !LEGACY, ..self }
    }
}

/// The answers, as last worked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeCpuid {
    /// What they were worked out from.
    pub inputs: Inputs,
    /// Size of the XSAVE area for XCR0.
    pub standard: u32,
    /// Size of the compacted area for XCR0 and IA32_XSS; 0 without XSAVEC and XSAVES.
    pub compacted: u32,
    /// A register has changed since.
    pub stale: bool,
}

impl RuntimeCpuid {
    /// CR4.OSXSAVE.
    pub fn osxsave(&self) -> bool {
        self.inputs.cr4 & CR4_OSXSAVE != 0
    }

    /// CR4.PKE.
    pub fn ospke(&self) -> bool {
        self.inputs.cr4 & CR4_PKE != 0
    }
}

/// The components of `states` outside the legacy region.
pub fn extended(states: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| states & !LEGACY & 1 << bit != 0)
}
