//! Answers of a processor model to CPUID.

/// Registers that CPUID returns for a sub-leaf.
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

/// A CPUID entry of the model: the part that does not depend on the processor's state.
#[derive(Clone, Copy, Debug)]
pub struct CpuidEntry {
    /// Leaf (EAX).
    pub leaf: u32,
    /// Sub-leaf (ECX), or `None` if the leaf has none.
    pub subleaf: Option<u32>,
    /// Returned registers, before state-dependent bits (OSXSAVE, APIC ID, XSAVE sizes, ...) are applied.
    pub regs: CpuidRegs,
}
