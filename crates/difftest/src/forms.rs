//! The tested forms: every form (decoder code) of every mnemonic in the processor's instruction table, apart from those
//! that cannot be compared.

use iced_x86::{Code, CpuidFeature, EncodingKind, Mnemonic, OpCodeOperandKind};
use std::collections::BTreeMap;

/// A form to test.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The decoder's code.
    pub code: Code,
    /// The form's family in the instruction table.
    pub family: &'static str,
}

/// Mnemonics that are not compared, with the reason.
const EXCLUDED: &[(&str, &[Mnemonic])] = {
    use Mnemonic::*;
    &[
        (
            "the value is the machine's own",
            &[Rdtsc, Rdtscp, Rdpmc, Cpuid, Rdrand, Rdseed, Rdpid, Xgetbv, Rdpkru, Wrpkru],
        ),
        (
            "an approximation that vendors define differently; ours is the same everywhere",
            &[
                Rcpps, Rcpss, Rsqrtps, Rsqrtss, Vrcpps, Vrcpss, Vrsqrtps, Vrsqrtss, Vrcp14pd, Vrcp14ps, Vrcp14sd,
                Vrcp14ss, Vrsqrt14pd, Vrsqrt14ps, Vrsqrt14sd, Vrsqrt14ss, Vrcpph, Vrcpsh, Vrsqrtph, Vrsqrtsh,
            ],
        ),
        (
            "transcendental: vendors differ in the last bit; ours is the same everywhere",
            &[F2xm1, Fyl2x, Fyl2xp1, Fptan, Fpatan, Fsin, Fcos, Fsincos],
        ),
        (
            "how much is written depends on what the processor remembers of earlier restores",
            &[Xsaveopt, Xsaveopt64, Xsaves, Xsaves64, Xrstors, Xrstors64],
        ),
        ("the kernel answers in the processor's place (UMIP)", &[Sgdt, Sidt, Sldt, Str, Smsw]),
        (
            "depends on the kernel's descriptor tables",
            &[Lar, Lsl, Verr, Verw, Lds, Les, Lfs, Lgs, Lss, Retf, Iret, Iretd, Iretq, Arpl],
        ),
        (
            "enters the kernel",
            &[
                Syscall, Sysenter, Int, Int1, Int3, Into, Vmcall, Vmmcall, Sysexit, Sysret, Sysexitq, Sysretq, Monitor,
                Mwait,
            ],
        ),
    ]
};

/// Instruction sets that this host may have and the processor under test does not offer.
const NOT_OFFERED: &[CpuidFeature] = &[
    CpuidFeature::AVX512ER,
    CpuidFeature::AVX512PF,
    CpuidFeature::AVX512_VP2INTERSECT,
    CpuidFeature::AVX_VNNI_INT8,
    CpuidFeature::AVX_VNNI_INT16,
    CpuidFeature::AVX_IFMA,
    CpuidFeature::AVX_NE_CONVERT,
    CpuidFeature::SHA512,
    CpuidFeature::SM3,
    CpuidFeature::SM4,
    CpuidFeature::KNC,
];

/// Instruction sets of tiles.
const TILES: &[CpuidFeature] = &[CpuidFeature::AMX_TILE, CpuidFeature::AMX_INT8, CpuidFeature::AMX_BF16];

/// Returns true if the form belongs to an encoding or an instruction set that the processor under test offers to no
/// guest.
pub fn beyond(code: Code) -> bool {
    !matches!(code.op_code().encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX)
        || cpu::table::row(code.mnemonic()).is_none()
        || code.cpuid_features().iter().any(|f| NOT_OFFERED.contains(f))
}

/// Returns the reason why a form is not compared, or `None` if it is compared.
pub fn exclusion(code: Code) -> Option<&'static str> {
    let info = code.op_code();
    if let Some((reason, _)) = EXCLUDED.iter().find(|(_, list)| list.contains(&code.mnemonic())) {
        return Some(reason);
    }
    if !matches!(info.encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX) {
        return Some("an encoding the processor does not offer");
    }
    if code.cpuid_features().iter().any(|f| NOT_OFFERED.contains(f)) {
        return Some("an instruction set the processor does not offer");
    }
    if code.cpuid_features().iter().any(|f| TILES.contains(f)) {
        return Some("Linux lets programs use tiles only if they ask for it");
    }
    if !code.cpuid_features().iter().all(|f| cpu::native::host_has(*f)) {
        return Some("an instruction set that this host does not have");
    }
    if !info.intel_decoder64() && !info.intel_decoder32() {
        return Some("does not exist on Intel processors");
    }
    if code.is_jmp_far() || code.is_jmp_far_indirect() || code.is_call_far() || code.is_call_far_indirect() {
        return Some("depends on the kernel's descriptor tables");
    }
    let segment = |kind| {
        use OpCodeOperandKind::*;
        matches!(kind, seg_reg | es | cs | ss | ds | fs | gs)
    };
    if segment(info.op0_kind()) && code.mnemonic() != Mnemonic::Push {
        return Some("depends on the kernel's descriptor tables");
    }
    None
}

/// Returns the forms in the instruction table that exist in this mode, and the excluded ones by reason.
pub fn forms(bits: u32) -> (Vec<Form>, BTreeMap<&'static str, Vec<Code>>) {
    let mut families = vec![None; Mnemonic::values().len()];
    for (family, rows) in cpu::table::FAMILIES {
        for row in *rows {
            families[row.mnemonic as usize] = Some(*family);
        }
    }
    let mut forms = Vec::new();
    let mut excluded: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for code in Code::values() {
        let Some(family) = families[code.mnemonic() as usize] else { continue };
        let info = code.op_code();
        let exists = info.is_available_in_mode(bits)
            && if bits == 64 { info.intel_decoder64() } else { info.intel_decoder32() }
            && info.is_instruction();
        if !exists {
            continue;
        }
        match exclusion(code) {
            Some(reason) => excluded.entry(reason).or_default().push(code),
            None => forms.push(Form { code, family }),
        }
    }
    (forms, excluded)
}
