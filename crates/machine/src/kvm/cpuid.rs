//! CPUID for the guest: the features that both the host's processor and KVM support, without those that need KVM's own
//! interrupt controllers.
//!
//! Every virtual processor is a package of its own, as on the other machines of this board.

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

/// Leaf 1, ECX: x2APIC mode and the TSC deadline, which need KVM's local APIC.
const LOCAL_APIC: u32 = 1 << 21 | 1 << 24;
/// Leaf 1, ECX: a hypervisor is present.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1, EDX: more than one logical processor per package.
const HTT: u32 = 1 << 28;
/// Feature leaf of KVM, EAX: both versions of the paravirtual clock, no delay of ports, and the stability of the clock.
/// The other features are interrupts that KVM's local APIC delivers, or optimize exits to it.
const PARAVIRTUAL: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 24;

/// Returns the leaves for the virtual processor with this APIC ID.
pub fn of_processor(supported: &[kvm_cpuid_entry2], id: u32) -> Vec<kvm_cpuid_entry2> {
    let adjust = |entry: &kvm_cpuid_entry2| {
        let mut entry = *entry;
        match entry.function {
            1 => {
                entry.ebx = entry.ebx & 0xff00 | 1 << 16 | id << 24;
                entry.ecx = entry.ecx & !LOCAL_APIC | HYPERVISOR;
                entry.edx &= !HTT;
            }
            // One core or thread per cache.
            4 | 0x8000_001d => entry.eax &= 0x3fff,
            // Performance counters would interrupt through KVM's local APIC.
            0xa => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
            0xb | 0x1f => entry.edx = id,
            0x4000_0001 => entry.eax &= PARAVIRTUAL,
            0x8000_0008 => entry.ecx = 0,
            0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (id, id, 0),
            _ => {}
        }
        entry
    };
    supported.iter().map(adjust).collect()
}

/// Converts leaves to the format of profiles: leaf, sub-leaf, EAX, EBX, ECX, EDX.
pub fn rows(entries: &[kvm_cpuid_entry2]) -> Vec<[u32; 6]> {
    let row = |e: &kvm_cpuid_entry2| {
        let index = if e.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0 { e.index } else { 0 };
        [e.function, index, e.eax, e.ebx, e.ecx, e.edx]
    };
    entries.iter().filter(|e| !(0x4000_0000..0x5000_0000).contains(&e.function)).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, eax, ebx, ecx, edx, ..kvm_cpuid_entry2::default() }
    }

    #[test]
    fn a_processor_is_a_package_without_kvms_local_apic() {
        let all = [0xffff_ffff; 4];
        let supported = [1, 4, 7, 0xa, 0xb, 0x4000_0001, 0x8000_0008].map(|leaf| entry(leaf, all));
        let made = of_processor(&supported, 3);
        let leaf = |number| made.iter().find(|e| e.function == number).unwrap();
        assert_eq!((leaf(1).ebx, leaf(1).ecx & LOCAL_APIC, leaf(1).edx & HTT), (0x0301_ff00, 0, 0));
        assert_eq!((leaf(4).eax, leaf(0xa).eax, leaf(0xb).edx), (0x3fff, 0, 3));
        assert_eq!((leaf(0x4000_0001).eax, leaf(0x8000_0008).ecx), (PARAVIRTUAL, 0));
        assert_eq!(leaf(7).ebx, u32::MAX, "the rest is the host's");
    }

    #[test]
    fn a_profile_does_not_have_kvms_own_leaves() {
        let made = rows(&[entry(0, [1, 2, 3, 4]), entry(0x4000_0000, [0; 4])]);
        assert_eq!(made, [[0, 0, 1, 2, 3, 4]]);
    }
}
