//! Performance counters in the CPUID that guests see.

use super::cpuid::CpuidLeaf;
use super::{Profile, Vendor};

/// Leaf 1 ECX: IA32_PERF_CAPABILITIES.
const PERF_CAPABILITIES: u32 = 1 << 15;
/// Leaf 0x80000001 ECX of AMD: PerfCtrExtCore, six counters of the core.
pub(super) const EXTENDED_COUNTERS: u32 = 1 << 23;
/// The version of architectural performance monitoring that guests have.
const VERSION: u32 = 2;
/// Number of the events of leaf 0xA EBX that are reported: up to mispredicted branches.
const EVENTS: u32 = 7;
/// Leaf 0xA EBX: references to the last cache and its misses, which only a model with caches knows.
const CACHE_EVENTS: u32 = 3 << 3;
/// Leaf 0xA EBX: mispredicted branches, which only a model that predicts directions knows.
const BRANCH_MISSES: u32 = 1 << 6;
/// Leaf 0xA EDX: three fixed counters of 40 bits, which processors have that report none (Core 2, whose CPUID is older than
/// the field).
const FIXED_OF_CORE_2: u32 = 3 | 40 << 5;

impl Profile {
    /// Adds the processor's performance counters to the CPUID that guests see.
    pub(super) fn show_counters(&self, leaves: &mut Vec<CpuidLeaf>) {
        match self.vendor {
            Vendor::Intel => {
                let Some(real) = self.real_cpuid(0xa, 0) else { return };
                let capabilities = self.real_cpuid(1, 0).map_or(0, |leaf| leaf.ecx & PERF_CAPABILITIES);
                leaves.iter_mut().filter(|leaf| leaf.leaf == 1).for_each(|leaf| leaf.ecx |= capabilities);
                leaves.push(CpuidLeaf { subleaf: None, ..self.monitoring(real) });
                leaves.sort_by_key(|leaf| (leaf.leaf, leaf.subleaf));
            }
            Vendor::Amd => {
                leaves
                    .iter_mut()
                    .filter(|leaf| leaf.leaf == 0x8000_0001)
                    .for_each(|leaf| leaf.ecx |= EXTENDED_COUNTERS);
            }
        }
    }

    /// Returns the leaf of architectural performance monitoring: that of the processor, as far as its counters and events
    /// are modelled.
    fn monitoring(&self, real: CpuidLeaf) -> CpuidLeaf {
        let geometry = self.geometry();
        let mut unavailable = real.ebx;
        if geometry.caches.is_none() {
            unavailable |= CACHE_EVENTS;
        }
        if !geometry.predicts_directions {
            unavailable |= BRANCH_MISSES;
        }
        let events = (real.eax >> 24).min(EVENTS);
        let fixed = if real.edx & 0x1f == 0 { FIXED_OF_CORE_2 } else { (real.edx & 0x1f).min(3) | real.edx & 0x1fe0 };
        CpuidLeaf {
            eax: events << 24 | real.eax & 0x00ff_ff00 | VERSION,
            ebx: unavailable & ((1 << events) - 1),
            ecx: 0,
            edx: fixed,
            ..real
        }
    }
}
