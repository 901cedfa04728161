//! CPUID for the guest: the processor's values, without features that are not virtualized, plus the hypervisor's
//! leaves.

pub(crate) mod runtime;

use self::runtime::RuntimeCpuid;
use crate::config::VmConfig;
use crate::paravirt::{CPUID_FEATURES, CPUID_SIGNATURE, SIGNATURE, feature, page};
use crate::vm::Hypervisor;
use cpu::Cpu;
use cpu::model::CpuidRegs;
use x86::control::*;

/// Leaves reserved for hypervisors.
const HYPERVISOR_LEAVES: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x4fff_ffff;

/// Features hidden from the guest: leaf, bit of ECX, and true if that applies to shadow paging only.
const HIDDEN: &[(u32, u32, bool)] = &[
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
const VMX: (u32, u32) = (1, 5);

fn set(word: &mut u32, bit: u32, on: bool) {
    *word = (*word & !(1 << bit)) | if on { 1 << bit } else { 0 };
}

/// Returns the features of the paravirtual interface for a configuration.
fn paravirt_features(config: &VmConfig, caches_cr3: bool) -> u32 {
    use feature::*;
    if !config.paravirt {
        return 0;
    }
    let cache = if caches_cr3 { CR3_CACHE } else { 0 };
    HYPERCALL_PAGE | STATE_PAGE | IO_DELAY | PIC_SHORT | TLB_FLUSH | cache
}

/// Returns the guest's CPUID, with the parts that depend on its registers as last computed.
pub(crate) fn cpuid(vm: &Hypervisor, runtime: &RuntimeCpuid, cpu: &mut Cpu, leaf: u32, subleaf: u32) -> CpuidRegs {
    let config = &vm.config;
    if HYPERVISOR_LEAVES.contains(&leaf) {
        return hypervisor_leaf(config, vm.caches_cr3(), leaf);
    }
    let mut regs = cpu.cpuid(leaf, subleaf);
    let shadow = !config.mmu.is_tdp();
    for &(hidden, bit, shadow_only) in HIDDEN {
        let offered = config.nested && (hidden, bit) == VMX;
        if hidden == leaf && (leaf != 7 || subleaf == 0) && (shadow || !shadow_only) && !offered {
            set(&mut regs.ecx, bit, false);
        }
    }
    match leaf {
        1 => {
            set(&mut regs.ecx, 31, true);
            let xsave = regs.ecx & 1 << 26 != 0;
            set(&mut regs.ecx, 27, xsave && runtime.osxsave());
        }
        // Leaf of MONITOR.
        5 => regs = CpuidRegs::default(),
        7 if subleaf == 0 => {
            let keys = regs.ecx & 1 << 3 != 0;
            set(&mut regs.ecx, 4, keys && runtime.ospke());
            // Indirect-branch tracking.
            set(&mut regs.edx, 20, false);
        }
        runtime::XSTATE if subleaf == 0 => regs.ebx = runtime.standard,
        runtime::XSTATE if subleaf == 1 => {
            regs.ebx = runtime.compacted;
            // State components of CET.
            regs.ecx &= !CET_STATES;
        }
        runtime::XSTATE if subleaf < 32 && CET_STATES >> subleaf & 1 != 0 => regs = CpuidRegs::default(),
        _ => {}
    }
    regs
}

/// State components of CET.
const CET_STATES: u32 = 3 << 11;

fn hypervisor_leaf(config: &VmConfig, caches_cr3: bool, leaf: u32) -> CpuidRegs {
    match leaf {
        CPUID_SIGNATURE => CpuidRegs { eax: CPUID_FEATURES, ebx: SIGNATURE[0], ecx: SIGNATURE[1], edx: SIGNATURE[2] },
        CPUID_FEATURES if config.paravirt => {
            CpuidRegs { eax: paravirt_features(config, caches_cr3), ebx: page::API_VERSION, ecx: page::SIZE, edx: 0 }
        }
        _ => CpuidRegs::default(),
    }
}

/// Returns the bits of CR4 that CPUID does not offer although the processor has them.
pub fn hidden_cr4(config: &VmConfig) -> u64 {
    let shadow = if config.mmu.is_tdp() { 0 } else { CR4_PKE };
    let vmx = if config.nested { 0 } else { CR4_VMXE };
    vmx | CR4_PKS | CR4_CET | shadow
}
