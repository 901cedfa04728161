//! CPUID for the guest: the processor's values, without features that are not virtualized, plus the hypervisor's
//! leaves.

mod hidden;
pub(crate) mod runtime;

pub(crate) use hidden::hidden_cr4;

use self::runtime::RuntimeCpuid;
use crate::config::VmConfig;
use crate::paravirt::{CPUID_FEATURES, CPUID_SIGNATURE, SIGNATURE, feature, page};
use crate::vm::Hypervisor;
use cpu::Cpu;
use cpu::model::CpuidRegs;
use hidden::{HIDDEN, VMX};

/// Leaves reserved for hypervisors.
const HYPERVISOR_LEAVES: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x4fff_ffff;

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

/// Returns true if a guest is offered a feature that the processor has: the bit of a register, by its position.
pub(crate) fn is_offered(config: &VmConfig, leaf: (u32, u32), register: usize, bit: u32) -> bool {
    const ECX: usize = 2;
    const TRACKING: ((u32, u32), usize, u32) = ((7, 0), 3, 20);
    let shadow = !config.mmu.is_tdp();
    let hides = |&(hidden, number, shadow_only): &(u32, u32, bool)| {
        ((hidden, 0), ECX, number) == (leaf, register, bit) && (shadow || !shadow_only)
    };
    (leaf, register, bit) != TRACKING && !HIDDEN.iter().any(hides)
}

/// State components of CET.
pub(crate) const CET_STATES: u32 = 3 << 11;

fn hypervisor_leaf(config: &VmConfig, caches_cr3: bool, leaf: u32) -> CpuidRegs {
    match leaf {
        CPUID_SIGNATURE => CpuidRegs { eax: CPUID_FEATURES, ebx: SIGNATURE[0], ecx: SIGNATURE[1], edx: SIGNATURE[2] },
        CPUID_FEATURES if config.paravirt => {
            CpuidRegs { eax: paravirt_features(config, caches_cr3), ebx: page::API_VERSION, ecx: page::SIZE, edx: 0 }
        }
        _ => CpuidRegs::default(),
    }
}
