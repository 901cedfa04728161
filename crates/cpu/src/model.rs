//! Processor model: prices, sizes and CPUID.

pub use crate::leaf::{CpuidEntry, CpuidRegs};
use crate::time::{By, Timing, timing};
use crate::vmx::capability::VmxCapabilities;
use ledger::profile::{CpuidLeaf, Profile, Vendor};
use ledger::{Costs, Family, Geometry, Kind, Ticks};
use std::sync::Arc;

/// A processor model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Prices.
    pub costs: Costs,
    /// Model of the time that instructions take.
    pub timing: Arc<dyn Timing>,
    /// Sizes of TLBs and predictors.
    pub geometry: Geometry,
    /// Static CPUID contents, already limited to the features that the processor executes.
    pub cpuid: Vec<CpuidEntry>,
    /// Frequency of core and TSC, in hertz.
    pub tsc_hz: u64,
    /// IA32_ARCH_CAPABILITIES, if CPUID reports it.
    pub arch_capabilities: u64,
    /// Revision of the microcode.
    pub microcode: u32,
    /// VMX capabilities for software, if the processor has VMX.
    pub vmx: Option<VmxCapabilities>,
    /// True if instructions follow AMD's conventions where vendors differ.
    pub amd: bool,
    /// MAXPHYADDR.
    pub physical_bits: u8,
    /// True if charges are recorded. Otherwise the predictors are not modelled either.
    pub recorded: bool,
    /// True if indirect branches are recorded by address and target; the interpreter then executes those of translated
    /// code.
    pub branches: bool,
}

/// Microcode revision of a profile that states none: it is on no system's list of bad revisions.
const GOOD_MICROCODE: u32 = 0x7f00_0000;

/// Returns true if leaf 1 reports VMX (ECX, bit 5).
fn shows_vmx(cpuid: &[CpuidLeaf]) -> bool {
    cpuid.iter().any(|leaf| leaf.leaf == 1 && leaf.ecx & 1 << 5 != 0)
}

impl Model {
    /// Creates the model of a profile with the given prices, sizes and CPUID contents, of which a profile has several.
    pub fn of(profile: &Profile, costs: Costs, geometry: Geometry, cpuid: &[CpuidLeaf]) -> Self {
        let entry = |l: &CpuidLeaf| CpuidEntry {
            leaf: l.leaf,
            subleaf: l.subleaf,
            regs: CpuidRegs { eax: l.eax, ebx: l.ebx, ecx: l.ecx, edx: l.edx },
        };
        Self {
            costs,
            timing: timing(profile),
            geometry,
            cpuid: cpuid.iter().map(entry).collect(),
            tsc_hz: profile.tsc_hz.value,
            arch_capabilities: profile.arch_capabilities.as_ref().map_or(0, |a| a.value),
            microcode: profile.microcode_revision().unwrap_or(GOOD_MICROCODE),
            vmx: profile.vmx.as_ref().filter(|_| shows_vmx(cpuid)).map(VmxCapabilities::of),
            amd: profile.vendor == Vendor::Amd,
            physical_bits: profile.physical_bits.value,
            recorded: true,
            branches: false,
        }
    }

    /// Returns the static contents of a CPUID leaf; zero if the model does not have it.
    pub fn static_cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
        self.leaf(leaf, subleaf).unwrap_or_default()
    }

    /// Returns the static contents of a CPUID leaf, if it has any. A leaf without sub-leaves matches every sub-leaf.
    pub fn leaf(&self, leaf: u32, subleaf: u32) -> Option<CpuidRegs> {
        let found = self.cpuid.iter().find(|e| e.leaf == leaf && e.subleaf.is_none_or(|s| s == subleaf));
        found.map(|e| e.regs)
    }

    /// Returns what prices instructions.
    pub fn prices(&self) -> By<'_> {
        By { timing: &*self.timing, costs: &self.costs }
    }

    /// Returns the price of an event. Instructions that are charged as events, such as the steps of a string
    /// operation, have the price of their class.
    #[inline]
    pub fn price(&self, kind: Kind) -> Ticks {
        match kind.family {
            Family::Instruction => Ticks::from(self.costs.class[kind.param as usize]),
            _ => self.costs.of(kind),
        }
    }
}
