//! The CPUID that guests see: the real processor's, limited to what the modelled one executes.

use super::Vendor;

/// The result of one CPUID leaf or sub-leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidLeaf {
    /// EAX going in.
    pub leaf: u32,
    /// ECX going in, or `None` where the leaf ignores it.
    pub subleaf: Option<u32>,
    /// EAX coming out.
    pub eax: u32,
    /// EBX coming out.
    pub ebx: u32,
    /// ECX coming out.
    pub ecx: u32,
    /// EDX coming out.
    pub edx: u32,
}

/// Ors together the bits of the given numbers.
const fn bits(numbers: &[u32]) -> u32 {
    let mut mask = 0;
    let mut i = 0;
    while i < numbers.len() {
        mask |= 1 << numbers[i];
        i += 1;
    }
    mask
}

/// Leaf 1 EDX: FPU, VME, DE, PSE, TSC, MSR, PAE, MCE, CX8, APIC, SEP, MTRR, PGE, MCA, CMOV, PAT, PSE36, CLFSH, MMX, FXSR, SSE,
/// SSE2.
const LEAF_1_EDX: u32 = bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26]);
/// Leaf 1 ECX: SSE3, PCLMULQDQ, MONITOR, SSSE3, FMA, CX16, PCID, SSE4.1, SSE4.2, x2APIC, MOVBE, POPCNT, TSC-deadline, AES,
/// XSAVE, AVX, F16C, RDRAND.
const LEAF_1_ECX: u32 = bits(&[0, 1, 3, 9, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30]);
/// Leaf 7 EBX: FSGSBASE, TSC_ADJUST, BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID, AVX512F, AVX512DQ, RDSEED, ADX, SMAP, AVX512_IFMA, CLFLUSHOPT,
/// CLWB, AVX512CD, SHA, AVX512BW, AVX512VL.
const LEAF_7_EBX: u32 = bits(&[0, 1, 3, 5, 7, 8, 9, 10, 16, 17, 18, 19, 20, 21, 23, 24, 28, 29, 30, 31]);
/// Leaf 7 ECX: AVX512_VBMI, UMIP, PKU, AVX512_VBMI2, GFNI, VAES, VPCLMULQDQ, AVX512_VNNI, AVX512_BITALG, AVX512_VPOPCNTDQ, LA57, RDPID,
/// PKS.
const LEAF_7_ECX: u32 = bits(&[1, 2, 3, 6, 8, 9, 10, 11, 12, 14, 16, 22, 31]);
/// Leaf 7 EDX: FSRM, MD_CLEAR, AMX-BF16, AVX512_FP16, AMX-TILE, AMX-INT8, IBRS and IBPB, STIBP, L1D_FLUSH, ARCH_CAPABILITIES, SSBD.
const LEAF_7_EDX: u32 = bits(&[4, 10, 22, 23, 24, 25, 26, 27, 28, 29, 31]);
/// Leaf 7 sub-leaf 1 EAX: AVX-VNNI, AVX512_BF16, AMX-FP16.
const LEAF_7_1_EAX: u32 = bits(&[4, 5, 21]);
/// Leaf 7 ECX of Intel: CET's shadow stacks. AMD's differ from them.
const LEAF_7_ECX_CET: u32 = bits(&[7]);
/// Leaf 7 EDX of Intel: CET's indirect-branch tracking.
const LEAF_7_EDX_CET: u32 = bits(&[20]);
/// IA32_XSS: CET's state of user code and of supervisors; with shadow stacks.
const XSS_CET: u32 = bits(&[11, 12]);
/// XCR0: x87, SSE, AVX, PKRU.
const XCR0: u32 = bits(&[0, 1, 2, 9]);
/// XCR0: opmask registers, upper halves of ZMM0-15, ZMM16-31; with AVX512F.
const XCR0_AVX512: u32 = bits(&[5, 6, 7]);
/// XCR0: configuration and data of tiles; with AMX-TILE.
const XCR0_TILES: u32 = bits(&[17, 18]);
/// Leaf 0xD sub-leaf 1 EAX: XSAVEOPT, XSAVEC, XGETBV with ECX = 1, XSAVES, IA32_XFD.
const LEAF_D_1_EAX: u32 = bits(&[0, 1, 2, 3, 4]);
/// Leaf 0xD sub-leaf 1 EAX: IA32_XFD.
const LEAF_D_1_EAX_XFD: u32 = 1 << 4;
/// Leaf 0x80000001 ECX: LAHF in 64-bit mode, LZCNT, PREFETCHW.
const EXTENDED_ECX: u32 = bits(&[0, 5, 8]);
/// Leaf 0x80000001 EDX: SYSCALL, NX, 1 GiB pages, RDTSCP, long mode.
const EXTENDED_EDX: u32 = bits(&[11, 20, 26, 27, 29]);
/// Leaf 0x80000001 EDX of AMD: the bits that repeat leaf 1 EDX.
const EXTENDED_EDX_REPEATED: u32 = 0x0183_f3ff;
/// Leaf 0x80000008 EBX of AMD: IBPB, IBRS, STIBP, IBRS and STIBP always on, SSBD.
const AMD_8_EBX: u32 = bits(&[12, 14, 15, 16, 17, 24]);
/// Leaf 0x80000021 EAX of AMD: LFENCE always serializing, VERW clears buffers, null selectors clear the base, selective IBPB, IBPB
/// flushes the types of branches.
const AMD_21_EAX: u32 = bits(&[2, 5, 6, 27, 28]);
/// Leaf 6 EAX: the APIC timer never stops.
const LEAF_6_EAX: u32 = bits(&[2]);

/// The last basic and the last extended leaf that a guest is told of.
const LAST_BASIC: u32 = 0x1f;
const LAST_EXTENDED: u32 = 0x8000_0021;

const LEAF_1_ECX_XSAVE: u32 = 1 << 26;
const SYSCALL: u32 = 1 << 11;
const LONG_MODE: u32 = 1 << 29;
const LA57: u32 = 1 << 16;
/// Leaf 7 EBX: AVX512F.
const LEAF_7_EBX_AVX512F: u32 = 1 << 16;
/// Leaf 7 EDX: AMX-TILE.
const LEAF_7_EDX_AMX_TILE: u32 = 1 << 24;
/// Leaf 7 EDX: IA32_ARCH_CAPABILITIES.
pub(super) const LEAF_7_EDX_ARCH_CAPABILITIES: u32 = bits(&[29]);
/// IA32_ARCH_CAPABILITIES of a processor that nothing has to be done for (SDM volume 4, table 2-2): RDCL_NO, IBRS_ALL, SKIP_L1DFL_VMENTRY,
/// SSB_NO, MDS_NO, IF_PSCHANGE_MC_NO, TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, BHI_NO, PBRSB_NO, GDS_NO, RFDS_NO, ITS_NO.
pub(super) const NOT_VULNERABLE: u64 = bits(&[0, 1, 3, 4, 5, 6, 8, 13, 14, 15, 20, 24, 26, 27]) as u64 | 1 << 62;
/// Leaf 1 ECX: VMX.
const LEAF_1_ECX_VMX: u32 = bits(&[5]);
/// Leaf 1 ECX: PCID.
const LEAF_1_ECX_PCID: u32 = bits(&[17]);
/// Leaf 7 EBX: INVPCID.
const LEAF_7_EBX_INVPCID: u32 = bits(&[10]);

/// See [`super::Profile::cpuid`]. `raw` is sorted by leaf and sub-leaf.
pub(super) fn visible(raw: &[[u32; 6]], vendor: Vendor, physical_bits: u8, vmx: bool) -> Vec<CpuidLeaf> {
    let leaf_1_ecx = LEAF_1_ECX | if vmx { LEAF_1_ECX_VMX } else { 0 };
    let find = |leaf, subleaf| raw.iter().find(|entry| entry[0] == leaf && entry[1] == subleaf);
    let xsave = find(1, 0).is_some_and(|entry| entry[4] & LEAF_1_ECX_XSAVE != 0);
    let la57 = find(7, 0).is_some_and(|entry| entry[4] & LA57 != 0);
    let states = components(find(7, 0));
    let cet = vendor == Vendor::Intel && find(7, 0).is_some_and(|entry| entry[4] & LEAF_7_ECX_CET != 0);
    let (stacks, tracking) = if cet { (LEAF_7_ECX_CET, LEAF_7_EDX_CET) } else { (0, 0) };
    let xss = if cet { find(0xd, 1).map_or(0, |entry| entry[4] & XSS_CET) } else { 0 };
    let xcr0 = find(0xd, 0).map_or(0, |entry| entry[2] & states);
    let mut leaves = Vec::new();
    for &[leaf, subleaf, eax, ebx, ecx, edx] in raw {
        let shown: Option<[u32; 4]> = match (leaf, subleaf) {
            (0, _) => Some([eax.min(LAST_BASIC), ebx, ecx, edx]),
            // The brand index and the size of a cache line; APIC id and count of processors are the processor's.
            (1, _) => Some([eax, ebx & 0xffff, ecx & leaf_1_ecx, edx & LEAF_1_EDX]),
            (2 | 5 | 0x15 | 0x16 | 0x8000_0002..=0x8000_0006, _) => Some([eax, ebx, ecx, edx]),
            // Without the counts of processors.
            (4, _) => Some([eax & 0x3ff, ebx, ecx, edx]),
            (6, _) => Some([eax & LEAF_6_EAX, 0, 0, 0]),
            (7, 0) => Some([eax.min(1), ebx & LEAF_7_EBX, ecx & (LEAF_7_ECX | stacks), edx & (LEAF_7_EDX | tracking)]),
            (7, 1) => Some([eax & LEAF_7_1_EAX, 0, 0, 0]),
            (0xd, 0) if xsave => Some([xcr0, 0, area_size(raw, xcr0), 0]),
            (0xd, 1) if xsave => Some([eax & leaf_d_1_eax(xcr0), 0, xss, 0]),
            (0xd, 2..=31) if xsave && (xcr0 | xss) & 1 << subleaf != 0 => Some([eax, ebx, ecx, edx]),
            // Without the count of processors that share the TLB.
            (0x1d | 0x1e, _) if xcr0 & XCR0_TILES == XCR0_TILES => Some([eax, ebx, ecx, edx]),
            (0x18, _) => Some([eax, ebx, ecx, edx & 0x3fff]),
            (0x8000_0000, _) => Some([eax.min(LAST_EXTENDED), ebx, ecx, edx]),
            (0x8000_0001, _) => Some(extended(raw, vendor, [eax, ebx, ecx, edx])),
            (0x8000_0007, _) => Some([0, 0, 0, edx & 1 << 8]),
            (0x8000_0008, _) => {
                let linear = if la57 { 57 } else { 48 };
                let ebx = if vendor == Vendor::Amd { ebx & AMD_8_EBX } else { 0 };
                Some([linear << 8 | u32::from(physical_bits), ebx, 0, 0])
            }
            (0x8000_0019, _) if vendor == Vendor::Amd => Some([eax, ebx, 0, 0]),
            (0x8000_0021, _) if vendor == Vendor::Amd => Some([eax & AMD_21_EAX, 0, 0, 0]),
            _ => None,
        };
        if let Some([eax, ebx, ecx, edx]) = shown {
            let subleaf = matches!(leaf, 4 | 7 | 0xd | 0x18 | 0x1d | 0x1e).then_some(subleaf);
            leaves.push(CpuidLeaf { leaf, subleaf, eax, ebx, ecx, edx });
        }
    }
    leaves
}

/// Leaf 0xD sub-leaf 1 EAX with these components: IA32_XFD is for tiles alone.
fn leaf_d_1_eax(xcr0: u32) -> u32 {
    LEAF_D_1_EAX & !if xcr0 & XCR0_TILES == 0 { LEAF_D_1_EAX_XFD } else { 0 }
}

/// State components that exist if the raw contents of leaf 7 have the features that they belong to.
fn components(leaf_7: Option<&[u32; 6]>) -> u32 {
    let shown = leaf_7.map_or([0; 2], |entry| [entry[3] & LEAF_7_EBX, entry[5] & LEAF_7_EDX]);
    let when = |feature: u32, states: u32| if feature != 0 { states } else { 0 };
    XCR0 | when(shown[0] & LEAF_7_EBX_AVX512F, XCR0_AVX512) | when(shown[1] & LEAF_7_EDX_AMX_TILE, XCR0_TILES)
}

/// The size of the XSAVE area, in the standard format, with all of `xcr0` enabled.
fn area_size(raw: &[[u32; 6]], xcr0: u32) -> u32 {
    const LEGACY_AND_HEADER: u32 = 576;
    raw.iter()
        .filter(|entry| entry[0] == 0xd && (2..32).contains(&entry[1]) && xcr0 & 1 << entry[1] != 0)
        .map(|entry| entry[2].saturating_add(entry[3]))
        .fold(LEGACY_AND_HEADER, u32::max)
}

fn extended(raw: &[[u32; 6]], vendor: Vendor, [eax, ebx, ecx, edx]: [u32; 4]) -> [u32; 4] {
    let mut features = edx & EXTENDED_EDX;
    // A dump taken by a 32-bit program lacks SYSCALL on Intel, which reports it in 64-bit mode only.
    if edx & LONG_MODE != 0 {
        features |= SYSCALL;
    }
    match vendor {
        Vendor::Intel => [eax, 0, ecx & EXTENDED_ECX, features],
        Vendor::Amd => {
            let basic = raw.iter().find(|entry| entry[0] == 1).map_or(0, |entry| entry[5]);
            [eax, ebx, ecx & EXTENDED_ECX, features | edx & basic & LEAF_1_EDX & EXTENDED_EDX_REPEATED]
        }
    }
}

/// See [`super::Profile::emulated_cpuid`].
pub(super) fn emulated(mut leaves: Vec<CpuidLeaf>) -> Vec<CpuidLeaf> {
    for leaf in &mut leaves {
        match (leaf.leaf, leaf.subleaf) {
            (1, _) => leaf.ecx &= !(LEAF_1_ECX_PCID | LEAF_1_ECX_VMX),
            (7, Some(0)) => leaf.ebx &= !LEAF_7_EBX_INVPCID,
            _ => {}
        }
    }
    leaves
}
