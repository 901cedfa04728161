//! The features of a guest's CPUID, and those that another processor lacks.
//!
//! A guest keeps the CPUID that it was started with, as under QEMU and KVM. A processor on which it goes on must therefore have every feature of
//! that CPUID, except for those that the hypervisor implements by itself.

use crate::config::VmConfig;
use crate::cpuid::is_offered;
use ledger::Profile;
use ledger::profile::CpuidLeaf;

/// A register of CPUID, by its position.
const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

/// Leaf, sub-leaf and register, with the bits' names in Linux.
type Word = (u32, u32, usize, &'static [(u32, &'static str)]);

const WORDS: &[Word] = &[
    (
        1,
        0,
        EDX,
        &[
            (0, "fpu"),
            (1, "vme"),
            (2, "de"),
            (3, "pse"),
            (4, "tsc"),
            (5, "msr"),
            (6, "pae"),
            (8, "cx8"),
            (11, "sep"),
            (13, "pge"),
            (15, "cmov"),
            (16, "pat"),
            (17, "pse36"),
            (19, "clflush"),
            (23, "mmx"),
            (24, "fxsr"),
            (25, "sse"),
            (26, "sse2"),
        ],
    ),
    (
        1,
        0,
        ECX,
        &[
            (0, "sse3"),
            (1, "pclmulqdq"),
            (3, "monitor"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (17, "pcid"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (22, "movbe"),
            (23, "popcnt"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
        ],
    ),
    (
        7,
        0,
        EBX,
        &[
            (0, "fsgsbase"),
            (3, "bmi1"),
            (5, "avx2"),
            (7, "smep"),
            (8, "bmi2"),
            (9, "erms"),
            (10, "invpcid"),
            (16, "avx512f"),
            (17, "avx512dq"),
            (18, "rdseed"),
            (19, "adx"),
            (20, "smap"),
            (21, "avx512ifma"),
            (23, "clflushopt"),
            (24, "clwb"),
            (28, "avx512cd"),
            (29, "sha_ni"),
            (30, "avx512bw"),
            (31, "avx512vl"),
        ],
    ),
    (
        7,
        0,
        ECX,
        &[
            (1, "avx512vbmi"),
            (2, "umip"),
            (3, "pku"),
            (6, "avx512_vbmi2"),
            (7, "shstk"),
            (8, "gfni"),
            (9, "vaes"),
            (10, "vpclmulqdq"),
            (11, "avx512_vnni"),
            (12, "avx512_bitalg"),
            (14, "avx512_vpopcntdq"),
            (16, "la57"),
            (22, "rdpid"),
            (31, "pks"),
        ],
    ),
    (
        7,
        0,
        EDX,
        &[
            (4, "fsrm"),
            (10, "md_clear"),
            (20, "ibt"),
            (22, "amx_bf16"),
            (23, "avx512_fp16"),
            (24, "amx_tile"),
            (25, "amx_int8"),
            (26, "spec_ctrl"),
            (27, "intel_stibp"),
            (28, "flush_l1d"),
            (31, "spec_ctrl_ssbd"),
        ],
    ),
    (7, 1, EAX, &[(4, "avx_vnni"), (5, "avx512_bf16"), (21, "amx_fp16")]),
    (0xd, 1, EAX, &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1"), (3, "xsaves"), (4, "xfd")]),
    (0x8000_0001, 0, ECX, &[(0, "lahf_lm"), (5, "lzcnt"), (8, "prefetchw")]),
    (0x8000_0001, 0, EDX, &[(11, "syscall"), (20, "nx"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm")]),
    (0x8000_0007, 0, EDX, &[(8, "constant_tsc")]),
    (0x8000_0008, 0, EBX, &[(12, "amd_ibpb"), (14, "amd_ibrs"), (15, "amd_stibp"), (24, "amd_ssbd")]),
    (
        0x8000_0021,
        0,
        EAX,
        &[(2, "lfence_rdtsc"), (5, "verw_clear"), (6, "null_sel_clr_base"), (27, "sbpb"), (28, "ibpb_brtype")],
    ),
];

/// Speculation controls, which Intel and AMD report by different bits. A feature of one maker is there if all of these of the other are
/// (KVM's `kvm_set_cpu_caps`).
const EQUIVALENTS: &[(&str, &[&str])] = &[
    ("spec_ctrl", &["amd_ibpb", "amd_ibrs"]),
    ("intel_stibp", &["amd_stibp"]),
    ("spec_ctrl_ssbd", &["amd_ssbd"]),
    ("amd_ibpb", &["spec_ctrl"]),
    ("amd_ibrs", &["spec_ctrl"]),
    ("amd_stibp", &["intel_stibp"]),
    ("amd_ssbd", &["spec_ctrl_ssbd"]),
];

/// The first of the extended state components; the others have fixed places.
const FIRST_EXTENDED: u32 = 2;

/// Returns a register of a sub-leaf.
fn register(cpuid: &[CpuidLeaf], leaf: u32, subleaf: u32, register: usize) -> u32 {
    let found = cpuid.iter().find(|entry| entry.leaf == leaf && entry.subleaf.is_none_or(|s| s == subleaf));
    found.map_or(0, |entry| [entry.eax, entry.ebx, entry.ecx, entry.edx][register])
}

/// Returns true if CPUID has the feature of that name.
fn has(cpuid: &[CpuidLeaf], name: &str) -> bool {
    let is = |(leaf, subleaf, place, bits): &Word| {
        let value = register(cpuid, *leaf, *subleaf, *place);
        bits.iter().any(|(bit, known)| *known == name && value >> bit & 1 != 0)
    };
    WORDS.iter().any(is)
}

/// A feature that a guest may use and that its destination lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// A feature of CPUID, by its name in Linux.
    #[error("may use {feature}, which {processor} does not have")]
    Feature {
        /// Name of the feature.
        feature: &'static str,
        /// Name of the processor.
        processor: String,
    },
    /// A feature of CPUID that needs two-dimensional paging.
    #[error("may use {0}, which guests have with two-dimensional paging only (--mmu tdp)")]
    Paging(&'static str),
    /// Wide physical addresses.
    #[error("has physical addresses of {bits} bits, and {processor} has fewer")]
    Address {
        /// MAXPHYADDR.
        bits: u8,
        /// Name of the processor.
        processor: String,
    },
    /// A state component of XSAVE.
    #[error(
        "may save state component {number} with XSAVE, which {processor} does not have with the same size at the same place"
    )]
    Component {
        /// Number of the component.
        number: u32,
        /// Name of the processor.
        processor: String,
    },
}

/// The hypervisor and the processor on which a guest goes on.
pub struct Destination<'a> {
    /// Switches.
    pub config: &'a VmConfig,
    /// The processor.
    pub processor: &'a Profile,
}

impl Destination<'_> {
    /// Returns the first thing that a guest of `guest` may use and would not have here. `config` has the switches of the hypervisor on which the
    /// guest has run.
    pub fn lacks(&self, guest: &Profile, config: &VmConfig) -> Option<Lack> {
        let (shown, here) = (guest.cpuid(), self.processor.cpuid());
        let processor = || self.processor.name.clone();
        for (leaf, subleaf, place, bits) in WORDS {
            let register = register(&shown, *leaf, *subleaf, *place);
            let offered = |config, bit| is_offered(config, (*leaf, *subleaf), *place, bit);
            for &(bit, name) in bits.iter().filter(|(bit, _)| register >> bit & 1 != 0 && offered(config, *bit)) {
                let of_others = |(feature, others): &(&str, &[&str])| {
                    *feature == name && others.iter().all(|other| has(&here, other))
                };
                if !has(&here, name) && !EQUIVALENTS.iter().any(of_others) {
                    return Some(Lack::Feature { feature: name, processor: processor() });
                }
                if !offered(self.config, bit) {
                    return Some(Lack::Paging(name));
                }
            }
        }
        let bits = guest.physical_bits.value;
        if bits > self.processor.physical_bits.value {
            return Some(Lack::Address { bits, processor: processor() });
        }
        component(&shown, &here).map(|number| Lack::Component { number, processor: processor() })
    }
}

/// Returns the first state component of XSAVE that is missing here, or has another size or place in memory.
fn component(shown: &[CpuidLeaf], here: &[CpuidLeaf]) -> Option<u32> {
    let states =
        |cpuid: &[CpuidLeaf]| register(cpuid, 0xd, 0, EAX) | register(cpuid, 0xd, 1, ECX) & !crate::cpuid::CET_STATES;
    let wanted = states(shown);
    let place = |cpuid: &[CpuidLeaf], number| [EAX, EBX, ECX].map(|at| register(cpuid, 0xd, number, at));
    let differs = |number: &u32| {
        wanted >> number & 1 != 0
            && (states(here) >> number & 1 == 0
                || *number >= FIRST_EXTENDED && place(shown, *number) != place(here, *number))
    };
    (0..u32::BITS).find(differs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MmuMode;

    /// Returns the reason why a guest of the first processor cannot go on on the second one.
    fn lacks(from: &str, to: &str) -> Option<String> {
        lacks_under(from, to, MmuMode::Shadow, MmuMode::Shadow)
    }

    fn lacks_under(from: &str, to: &str, left: MmuMode, mmu: MmuMode) -> Option<String> {
        let [from, to] = [from, to].map(|name| Profile::named(name).unwrap());
        let config = |mmu| VmConfig { mmu, ..VmConfig::default() };
        Destination { config: &config(mmu), processor: &to }.lacks(&from, &config(left)).map(|lack| lack.to_string())
    }

    #[test]
    fn every_processor_can_take_its_own_guests() {
        for name in Profile::names() {
            assert_eq!(lacks(name, name), None, "{name}");
        }
    }

    #[test]
    fn a_missing_feature_has_its_name() {
        for name in Profile::names() {
            assert_eq!(lacks("core2", name), None, "{name}");
        }
        let feature = |name: &str, processor: &str| Some(format!("may use {name}, which {processor} does not have"));
        assert_eq!(lacks("zen3", "core2"), feature("pclmulqdq", "core2"));
        assert_eq!(lacks("skx", "hsw"), feature("avx512f", "hsw"));
        assert_eq!(lacks("skx", "zen3"), feature("avx512f", "zen3"));
        assert_eq!(lacks("skx", "icx"), None);
    }

    #[test]
    fn protection_keys_stay_where_two_dimensional_paging_is() {
        let needs = Some("may use pku, which guests have with two-dimensional paging only (--mmu tdp)");
        assert_eq!(lacks_under("skx", "icx", MmuMode::Tdp, MmuMode::Tdp), None);
        assert_eq!(lacks_under("skx", "icx", MmuMode::Tdp, MmuMode::Shadow), needs.map(str::to_owned));
        assert_eq!(lacks_under("skx", "icx", MmuMode::Shadow, MmuMode::Shadow), None);
    }

    #[test]
    fn every_feature_that_a_guest_is_shown_has_a_name() {
        // The features that the hypervisor implements itself: x2APIC, TSC deadline, TSC_ADJUST, IA32_ARCH_CAPABILITIES, machine checks, APIC, MTRRs; and
        // facts that are no features.
        let own = [
            (1, ECX, 1 << 21 | 1 << 24 | 1 << 5),
            (1, EDX, 1 << 7 | 1 << 9 | 1 << 12 | 1 << 14),
            (7, EBX, 1 << 1),
            (7, EDX, 1 << 29),
            (0x8000_0008, EBX, 1 << 16 | 1 << 17),
        ];
        for profile in Profile::names().map(|name| Profile::named(name).unwrap()) {
            let cpuid = profile.cpuid();
            for (leaf, subleaf, place, bits) in WORDS {
                let named = bits.iter().fold(0, |all, (bit, _)| all | 1 << bit);
                let of_host = own.iter().filter(|(l, p, _)| (l, p) == (leaf, place)).fold(0, |all, own| all | own.2);
                // AMD repeats leaf 1.
                let repeated = if (*leaf, *place) == (0x8000_0001, EDX) { 0x0183_f3ff } else { 0 };
                let shown = register(&cpuid, *leaf, *subleaf, *place);
                assert_eq!(shown & !(named | of_host | repeated), 0, "{} {leaf:#x} {place}", profile.name);
            }
        }
    }
}
