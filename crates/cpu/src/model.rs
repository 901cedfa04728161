//! Which processor this is: prices, sizes and CPUID.

use ledger::{Costs, Geometry};

/// Registers a CPUID sub-leaf returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidRegs {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// A CPUID entry of the model: what does not depend on the processor's state.
#[derive(Clone, Copy, Debug)]
pub struct CpuidEntry {
    /// Leaf (EAX).
    pub leaf: u32,
    /// Sub-leaf (ECX), or `None` where the leaf has none.
    pub subleaf: Option<u32>,
    /// What it returns, before state-dependent bits (OSXSAVE, APIC id, XSAVE sizes, ...).
    pub regs: CpuidRegs,
}

/// A processor model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Prices.
    pub costs: Costs,
    /// Sizes of TLBs and predictors.
    pub geometry: Geometry,
    /// Static CPUID contents, already limited to what the processor executes.
    pub cpuid: Vec<CpuidEntry>,
    /// Frequency of core and TSC, in hertz.
    pub tsc_hz: u64,
    /// IA32_ARCH_CAPABILITIES, where CPUID has it.
    pub arch_capabilities: u64,
    /// MAXPHYADDR.
    pub physical_bits: u8,
}

impl Model {
    /// The static contents of a CPUID leaf; zero if the model does not have it.
    pub fn static_cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
        self.leaf(leaf, subleaf).unwrap_or_default()
    }

    /// The static contents of a CPUID leaf, if it has any. A leaf without sub-leaves answers to every sub-leaf.
    pub fn leaf(&self, leaf: u32, subleaf: u32) -> Option<CpuidRegs> {
        let found = self.cpuid.iter().find(|e| e.leaf == leaf && e.subleaf.is_none_or(|s| s == subleaf));
        found.map(|e| e.regs)
    }
}
