//! Features of the processor that the guest's CPUID does not offer.

use crate::config::VmConfig;
use x86::control::*;

/// Features hidden from the guest: leaf, bit of ECX, and true if that applies to shadow paging only.
pub(super) const HIDDEN: &[(u32, u32, bool)] = &[
    // MONITOR: the guest must not block the processor in MWAIT.
    (1, 3, false),
    // VMX, SMX.
    (1, 5, false),
    (1, 6, false),
    // Performance counters.
    (1, 15, false),
    // Protection keys require the guest's own tables.
    (7, 3, true),
    (7, 4, true),
    // Protection keys of supervisor pages.
    (7, 31, false),
    // Shadow stacks.
    (7, 7, false),
    // SVM.
    (0x8000_0001, 2, false),
];

/// Leaf and ECX bit of VMX.
pub(super) const VMX: (u32, u32) = (1, 5);

/// Returns the bits of CR4 that CPUID does not offer although the processor has them.
pub fn hidden_cr4(config: &VmConfig) -> u64 {
    let shadow = if config.mmu.is_tdp() { 0 } else { CR4_PKE };
    let vmx = if config.nested { 0 } else { CR4_VMXE };
    vmx | CR4_PKS | CR4_CET | shadow
}
