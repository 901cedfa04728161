//! Instruction-set extensions of a model, from its CPUID contents.
//!
//! The check is made when an instruction is decoded ([`crate::table::view`]). An instruction that the model lacks becomes
//! #UD (or, for TZCNT and LZCNT, the older instruction with the same opcode), so that a processor of 2006 does not
//! execute AVX2.

use crate::leaf::{CpuidEntry, CpuidRegs};
use iced_x86::{Code, CpuidFeature};
use ledger::profile::{CpuidLeaf, Profile};

/// A set of extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reg {
    Ebx,
    Ecx,
    Edx,
    Eax,
}

/// Name of an extension in the decoder, and its CPUID leaf, sub-leaf, register and bit. The position in the table is
/// the bit in [`Features`].
type Place = (CpuidFeature, u32, u32, Reg, u8);

const PLACES: &[Place] = &[
    (CpuidFeature::MMX, 1, 0, Reg::Edx, 23),
    (CpuidFeature::FXSR, 1, 0, Reg::Edx, 24),
    (CpuidFeature::SSE, 1, 0, Reg::Edx, 25),
    (CpuidFeature::SSE2, 1, 0, Reg::Edx, 26),
    (CpuidFeature::SSE3, 1, 0, Reg::Ecx, 0),
    (CpuidFeature::PCLMULQDQ, 1, 0, Reg::Ecx, 1),
    (CpuidFeature::MONITOR, 1, 0, Reg::Ecx, 3),
    (CpuidFeature::SSSE3, 1, 0, Reg::Ecx, 9),
    (CpuidFeature::FMA, 1, 0, Reg::Ecx, 12),
    (CpuidFeature::CMPXCHG16B, 1, 0, Reg::Ecx, 13),
    (CpuidFeature::SSE4_1, 1, 0, Reg::Ecx, 19),
    (CpuidFeature::SSE4_2, 1, 0, Reg::Ecx, 20),
    (CpuidFeature::MOVBE, 1, 0, Reg::Ecx, 22),
    (CpuidFeature::POPCNT, 1, 0, Reg::Ecx, 23),
    (CpuidFeature::AES, 1, 0, Reg::Ecx, 25),
    (CpuidFeature::XSAVE, 1, 0, Reg::Ecx, 26),
    (CpuidFeature::AVX, 1, 0, Reg::Ecx, 28),
    (CpuidFeature::F16C, 1, 0, Reg::Ecx, 29),
    (CpuidFeature::RDRAND, 1, 0, Reg::Ecx, 30),
    (CpuidFeature::FSGSBASE, 7, 0, Reg::Ebx, 0),
    (CpuidFeature::BMI1, 7, 0, Reg::Ebx, 3),
    (CpuidFeature::AVX2, 7, 0, Reg::Ebx, 5),
    (CpuidFeature::BMI2, 7, 0, Reg::Ebx, 8),
    (CpuidFeature::INVPCID, 7, 0, Reg::Ebx, 10),
    (CpuidFeature::RDSEED, 7, 0, Reg::Ebx, 18),
    (CpuidFeature::ADX, 7, 0, Reg::Ebx, 19),
    (CpuidFeature::SMAP, 7, 0, Reg::Ebx, 20),
    (CpuidFeature::CLFLUSHOPT, 7, 0, Reg::Ebx, 23),
    (CpuidFeature::CLWB, 7, 0, Reg::Ebx, 24),
    (CpuidFeature::SHA, 7, 0, Reg::Ebx, 29),
    (CpuidFeature::PKU, 7, 0, Reg::Ecx, 3),
    (CpuidFeature::VAES, 7, 0, Reg::Ecx, 9),
    (CpuidFeature::VPCLMULQDQ, 7, 0, Reg::Ecx, 10),
    (CpuidFeature::CET_SS, 7, 0, Reg::Ecx, 7),
    (CpuidFeature::AVX512F, 7, 0, Reg::Ebx, 16),
    (CpuidFeature::AVX512DQ, 7, 0, Reg::Ebx, 17),
    (CpuidFeature::AVX512_IFMA, 7, 0, Reg::Ebx, 21),
    (CpuidFeature::AVX512CD, 7, 0, Reg::Ebx, 28),
    (CpuidFeature::AVX512BW, 7, 0, Reg::Ebx, 30),
    (CpuidFeature::AVX512VL, 7, 0, Reg::Ebx, 31),
    (CpuidFeature::AVX512_VBMI, 7, 0, Reg::Ecx, 1),
    (CpuidFeature::AVX512_VBMI2, 7, 0, Reg::Ecx, 6),
    (CpuidFeature::GFNI, 7, 0, Reg::Ecx, 8),
    (CpuidFeature::AVX512_VNNI, 7, 0, Reg::Ecx, 11),
    (CpuidFeature::AVX512_BITALG, 7, 0, Reg::Ecx, 12),
    (CpuidFeature::AVX512_VPOPCNTDQ, 7, 0, Reg::Ecx, 14),
    (CpuidFeature::AVX_VNNI, 7, 1, Reg::Eax, 4),
    (CpuidFeature::AVX512_BF16, 7, 1, Reg::Eax, 5),
    (CpuidFeature::RDPID, 7, 0, Reg::Ecx, 22),
    (CpuidFeature::SERIALIZE, 7, 0, Reg::Edx, 14),
    (CpuidFeature::AMX_BF16, 7, 0, Reg::Edx, 22),
    (CpuidFeature::AMX_TILE, 7, 0, Reg::Edx, 24),
    (CpuidFeature::AMX_INT8, 7, 0, Reg::Edx, 25),
    (CpuidFeature::AMX_FP16, 7, 1, Reg::Eax, 21),
    (CpuidFeature::AVX512_FP16, 7, 0, Reg::Edx, 23),
    (CpuidFeature::XSAVEOPT, 13, 1, Reg::Eax, 0),
    (CpuidFeature::XSAVEC, 13, 1, Reg::Eax, 1),
    (CpuidFeature::XSAVES, 13, 1, Reg::Eax, 3),
    (CpuidFeature::LZCNT, 0x8000_0001, 0, Reg::Ecx, 5),
    (CpuidFeature::PREFETCHW, 0x8000_0001, 0, Reg::Ecx, 8),
    (CpuidFeature::RDTSCP, 0x8000_0001, 0, Reg::Edx, 27),
];

// The set has one bit per extension.
const _: () = assert!(PLACES.len() < 64);

/// Bit of each of the decoder's extensions in [`Features`]; 0 for those that are not checked here.
static MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut i = 0;
    while i < PLACES.len() {
        masks[PLACES[i].0 as usize] = 1 << i;
        i += 1;
    }
    masks
};

/// Extensions that some real processors have and this one does not execute.
const BEYOND: &[Place] = &[
    (CpuidFeature::SMX, 1, 0, Reg::Ecx, 6),
    (CpuidFeature::SGX1, 7, 0, Reg::Ebx, 2),
    (CpuidFeature::HLE, 7, 0, Reg::Ebx, 4),
    (CpuidFeature::RTM, 7, 0, Reg::Ebx, 11),
    (CpuidFeature::MPX, 7, 0, Reg::Ebx, 14),
    (CpuidFeature::AVX512PF, 7, 0, Reg::Ebx, 26),
    (CpuidFeature::AVX512ER, 7, 0, Reg::Ebx, 27),
    (CpuidFeature::WAITPKG, 7, 0, Reg::Ecx, 5),
    (CpuidFeature::KL, 7, 0, Reg::Ecx, 23),
    (CpuidFeature::MOVDIRI, 7, 0, Reg::Ecx, 27),
    (CpuidFeature::MOVDIR64B, 7, 0, Reg::Ecx, 28),
    (CpuidFeature::ENQCMD, 7, 0, Reg::Ecx, 29),
    (CpuidFeature::UINTR, 7, 0, Reg::Edx, 5),
    (CpuidFeature::AVX512_VP2INTERSECT, 7, 0, Reg::Edx, 8),
    (CpuidFeature::TSXLDTRK, 7, 0, Reg::Edx, 16),
    (CpuidFeature::PCONFIG, 7, 0, Reg::Edx, 18),
    (CpuidFeature::SHA512, 7, 1, Reg::Eax, 0),
    (CpuidFeature::SM3, 7, 1, Reg::Eax, 1),
    (CpuidFeature::SM4, 7, 1, Reg::Eax, 2),
    (CpuidFeature::RAO_INT, 7, 1, Reg::Eax, 3),
    (CpuidFeature::CMPCCXADD, 7, 1, Reg::Eax, 7),
    (CpuidFeature::HRESET, 7, 1, Reg::Eax, 22),
    (CpuidFeature::AVX_IFMA, 7, 1, Reg::Eax, 23),
    (CpuidFeature::AVX_VNNI_INT8, 7, 1, Reg::Edx, 4),
    (CpuidFeature::AVX_NE_CONVERT, 7, 1, Reg::Edx, 5),
    (CpuidFeature::AVX_VNNI_INT16, 7, 1, Reg::Edx, 10),
    (CpuidFeature::PTWRITE, 0x14, 0, Reg::Ebx, 4),
    (CpuidFeature::SVM, 0x8000_0001, 0, Reg::Ecx, 2),
    (CpuidFeature::SSE4A, 0x8000_0001, 0, Reg::Ecx, 6),
    (CpuidFeature::XOP, 0x8000_0001, 0, Reg::Ecx, 11),
    (CpuidFeature::SKINIT, 0x8000_0001, 0, Reg::Ecx, 12),
    (CpuidFeature::LWP, 0x8000_0001, 0, Reg::Ecx, 15),
    (CpuidFeature::FMA4, 0x8000_0001, 0, Reg::Ecx, 16),
    (CpuidFeature::TBM, 0x8000_0001, 0, Reg::Ecx, 21),
    (CpuidFeature::MONITORX, 0x8000_0001, 0, Reg::Ecx, 29),
    (CpuidFeature::CLZERO, 0x8000_0008, 0, Reg::Ebx, 0),
    (CpuidFeature::INVLPGB, 0x8000_0008, 0, Reg::Ebx, 3),
    (CpuidFeature::RDPRU, 0x8000_0008, 0, Reg::Ebx, 4),
    (CpuidFeature::MCOMMIT, 0x8000_0008, 0, Reg::Ebx, 8),
];

fn bit_of(regs: &CpuidRegs, reg: Reg, bit: u8) -> bool {
    let value = match reg {
        Reg::Eax => regs.eax,
        Reg::Ebx => regs.ebx,
        Reg::Ecx => regs.ecx,
        Reg::Edx => regs.edx,
    };
    value >> bit & 1 != 0
}

/// Returns the mnemonic and the extensions of an instruction, given by the decoder's code number, if the real processor
/// of a profile has it.
pub fn of_real_processor(code: u32, profile: &Profile) -> Option<(String, String)> {
    let code = Code::try_from(code as usize).ok()?;
    let real = |leaf, subleaf| {
        let CpuidLeaf { eax, ebx, ecx, edx, .. } = profile.real_cpuid(leaf, subleaf)?;
        Some(CpuidRegs { eax, ebx, ecx, edx })
    };
    let names: Vec<String> = extensions(code, real)?.iter().map(|name| format!("{name:?}")).collect();
    Some((format!("{:?}", code.mnemonic()).to_uppercase(), names.join(", ")))
}

/// Returns the extensions that an instruction needs, if there are any and a processor with this CPUID has all of them
/// that CPUID reports. `leaf` returns a leaf and sub-leaf.
pub fn extensions(code: Code, leaf: impl Fn(u32, u32) -> Option<CpuidRegs>) -> Option<Vec<CpuidFeature>> {
    let mut found = Vec::new();
    for feature in code.cpuid_features() {
        let Some(&(_, number, subleaf, reg, bit)) = PLACES.iter().chain(BEYOND).find(|place| place.0 == *feature)
        else {
            continue;
        };
        if !leaf(number, subleaf).is_some_and(|regs| bit_of(&regs, reg, bit)) {
            return None;
        }
        found.push(*feature);
    }
    (!found.is_empty()).then_some(found)
}

/// Returns the extensions that the real processor of a profile has and its guests do not, because the modelled processor does not execute their
/// instructions.
pub fn lacking(profile: &Profile) -> Vec<String> {
    let offered = profile.cpuid();
    let has = |leaf: Option<&CpuidLeaf>, reg, bit| {
        leaf.is_some_and(|&CpuidLeaf { eax, ebx, ecx, edx, .. }| bit_of(&CpuidRegs { eax, ebx, ecx, edx }, reg, bit))
    };
    let is_lacking = |&&(_, leaf, subleaf, reg, bit): &&Place| {
        let own = offered.iter().find(|own| (own.leaf, own.subleaf.unwrap_or(0)) == (leaf, subleaf));
        has(profile.real_cpuid(leaf, subleaf).as_ref(), reg, bit) && !has(own, reg, bit)
    };
    PLACES.iter().chain(BEYOND).filter(is_lacking).map(|(feature, ..)| format!("{feature:?}")).collect()
}

impl Features {
    /// All extensions.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the extensions that a CPUID table reports. An empty table, as in tests of single instructions, has all
    /// extensions.
    pub fn of(cpuid: &[CpuidEntry]) -> Self {
        if cpuid.is_empty() {
            return Self::ALL;
        }
        let mut set = 0;
        for (i, &(_, leaf, subleaf, reg, bit)) in PLACES.iter().enumerate() {
            let announced =
                cpuid.iter().any(|e| e.leaf == leaf && e.subleaf.unwrap_or(0) == subleaf && bit_of(&e.regs, reg, bit));
            set |= u64::from(announced) << i;
        }
        Self(set)
    }

    /// Returns the extensions that an instruction needs, of those that are checked here.
    pub fn needed(code: Code) -> Self {
        Self(code.cpuid_features().iter().fold(0, |set, feature| set | MASKS[*feature as usize]))
    }

    /// Returns true if all of `other` are in this set.
    #[inline]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sse2_only() -> Features {
        let regs = CpuidRegs { edx: 1 << 26 | 1 << 25, ..CpuidRegs::default() };
        Features::of(&[CpuidEntry { leaf: 1, subleaf: None, regs }])
    }

    #[test]
    fn announced_extensions_are_allowed_and_others_are_not() {
        let set = sse2_only();
        assert!(set.contains(Features::needed(Code::Paddb_xmm_xmmm128)));
        assert!(set.contains(Features::needed(Code::Add_r32_rm32)));
        assert!(!set.contains(Features::needed(Code::VEX_Vpaddb_ymm_ymm_ymmm256)));
        assert!(Features::ALL.contains(Features::needed(Code::VEX_Vpaddb_ymm_ymm_ymmm256)));
    }

    #[test]
    fn an_instruction_of_the_real_processor_has_its_extensions_named() {
        let skx = Profile::named("skx").unwrap();
        let zen3 = Profile::named("zen3").unwrap();
        let code = Code::EVEX_Vmovdqu64_ymm_k1z_ymmm256 as u32;
        assert_eq!(of_real_processor(code, &skx), Some(("VMOVDQU64".to_owned(), "AVX512VL, AVX512F".to_owned())));
        assert_eq!(of_real_processor(code, &zen3), None);
        assert_eq!(of_real_processor(Code::Ud2 as u32, &skx), None);
        assert_eq!(of_real_processor(u32::MAX, &skx), None);
    }

    #[test]
    fn extensions_that_guests_do_not_have_are_listed() {
        let lacks = |profile: &str, name: &str| {
            lacking(&Profile::named(profile).unwrap()).iter().any(|lacking| lacking == name)
        };
        for name in ["CLZERO", "MONITORX", "MOVDIRI", "MOVDIR64B"] {
            assert!(lacks("zen5", name) && !lacks("core2", name), "{name}");
        }
        // Extensions that the model executes, and extensions that the processor does not have.
        assert!(!lacks("zen5", "AVX2") && !lacks("zen5", "RTM") && !lacks("zen3", "MOVDIRI"));
    }

    #[test]
    fn what_a_real_processor_has_is_told_from_its_cpuid() {
        let leaf = |ebx| move |leaf, _| (leaf == 7).then_some(CpuidRegs { ebx, ..CpuidRegs::default() });
        let (f, vl) = (1 << 16, 1 << 31);
        let code = Code::EVEX_Vmovdqu64_ymm_k1z_ymmm256;
        assert_eq!(extensions(code, leaf(f | vl)), Some(vec![CpuidFeature::AVX512VL, CpuidFeature::AVX512F]));
        assert_eq!(extensions(code, leaf(f)), None);
        assert_eq!(extensions(Code::INVALID, leaf(f | vl)), None);
    }
}
