//! What the maker's microcode updates add to a processor: features by which software mitigates vulnerabilities.

use super::{Profile, Provenance, Sourced, Vendor};
use crate::{Family, Kind};

/// Leaf 7 EDX: VERW clears buffers.
const MD_CLEAR: u32 = 1 << 10;
/// IA32_ARCH_CAPABILITIES: free of both leaks whose buffers VERW clears with MD_CLEAR.
const NO_LEAKS: u64 = 1 << 5 | 1 << 8;
/// IA32_ARCH_CAPABILITIES: VERW clears the fill buffers.
const FB_CLEAR: u64 = 1 << 17;
/// VERW of memory, where it clears buffers.
const VERW: Kind = Kind::new(Family::DescriptorTable, 2);

/// Microcode updates of a processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Microcode {
    /// Revision with the updates.
    pub revision: u32,
    /// Revision without them.
    pub unpatched_revision: u32,
    /// Bits of CPUID that the updates add: leaf, sub-leaf, registers.
    pub cpuid: Vec<[u32; 6]>,
    /// Bits of IA32_ARCH_CAPABILITIES that the updates add.
    pub arch_capabilities: u64,
    /// The origin of these facts.
    pub from: Provenance,
}

impl Profile {
    /// Returns the processor with the features of the microcode updates, or without them.
    pub(super) fn with_updates(mut self, patched: bool) -> Self {
        let Some(microcode) = self.microcode.clone() else { return self };
        for &[leaf, subleaf, eax, ebx, ecx, edx] in &microcode.cpuid {
            let Some(row) = self.raw_cpuid.iter_mut().find(|row| row[..2] == [leaf, subleaf]) else { continue };
            for (register, bits) in row[2..].iter_mut().zip([eax, ebx, ecx, edx]) {
                *register = if patched { *register | bits } else { *register & !bits };
            }
        }
        let bits = microcode.arch_capabilities;
        let known = self
            .arch_capabilities
            .take()
            .or_else(|| (bits != 0).then(|| Sourced { value: 0, from: microcode.from.clone() }));
        if self.reports_capabilities() {
            self.arch_capabilities = known;
        }
        if let Some(capabilities) = &mut self.arch_capabilities {
            let value = capabilities.value;
            capabilities.value = if patched { value | bits } else { value & !bits };
        }
        if !patched
            && !self.verw_clears()
            && let Some(price) = self.prices.kinds.get_mut(&VERW)
        {
            price.value = 0;
        }
        self
    }

    /// Returns true if CPUID reports IA32_ARCH_CAPABILITIES.
    fn reports_capabilities(&self) -> bool {
        self.real_cpuid(7, 0).is_some_and(|leaf| leaf.edx & super::cpuid::LEAF_7_EDX_ARCH_CAPABILITIES != 0)
    }

    /// Returns true if VERW of memory clears buffers of the processor: with MD_CLEAR if it may leak by microarchitectural data
    /// sampling, and with FB_CLEAR. On AMD's processors the price of clearing is not published.
    pub(super) fn verw_clears(&self) -> bool {
        let capabilities = self.arch_capabilities.as_ref().map_or(0, |value| value.value);
        let md_clear = self.real_cpuid(7, 0).is_some_and(|leaf| leaf.edx & MD_CLEAR != 0);
        self.vendor == Vendor::Intel
            && (md_clear && capabilities & NO_LEAKS != NO_LEAKS || capabilities & FB_CLEAR != 0)
    }

    /// Returns the revision of the processor's microcode; `None` if its file has none.
    pub fn microcode_revision(&self) -> Option<u32> {
        let microcode = self.microcode.as_ref()?;
        Some(if self.options.unpatched { microcode.unpatched_revision } else { microcode.revision })
    }
}
