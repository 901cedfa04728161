//! Selection of the host's vector units.

use iced_x86::{CpuidFeature, Instruction};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

/// True if the 512-bit units and opmasks are not used.
static NARROW: AtomicBool = AtomicBool::new(false);

/// True if translated code decides by LOOP whether to leave its usual way, and not by JRCXZ: the host executes LOOP as one operation, as AMD's
/// processors do (uops.info: twice in a cycle). Intel's need seven.
static BY_LOOP: LazyLock<AtomicBool> = LazyLock::new(|| {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    AtomicBool::new(matches!(name.as_flattened(), b"AuthenticAMD" | b"HygonGenuine"))
});

/// Executes everything as on a host with 256-bit vector units, or again as on this host. The results are identical.
/// Operations that have been translated are not affected, so the call must precede the first machine.
pub fn limit_to_256_bits(limit: bool) {
    NARROW.store(limit, Ordering::Relaxed);
}

/// Returns true if AVX-512 may be used, with the extensions that every current processor has: F, CD, BW, DQ, VL.
#[inline]
pub fn wide() -> bool {
    !NARROW.load(Ordering::Relaxed) && detected()
}

fn detected() -> bool {
    static DETECTED: OnceLock<bool> = OnceLock::new();
    *DETECTED.get_or_init(|| {
        use CpuidFeature::*;
        [AVX512F, AVX512CD, AVX512BW, AVX512DQ, AVX512VL].into_iter().all(host_has)
    })
}

/// Says whether translated code decides by LOOP, whatever the host's processor is. The results are identical. Translations that exist are not
/// affected.
pub fn decide_by_loop(decide: bool) {
    BY_LOOP.store(decide, Ordering::Relaxed);
}

/// Returns true if translated code decides by LOOP.
pub fn decides_by_loop() -> bool {
    BY_LOOP.load(Ordering::Relaxed)
}

/// Returns true if the host's units can execute an instruction in an encoding other than EVEX.
pub fn executes(i: &Instruction) -> bool {
    const BEYOND_AVX2: [CpuidFeature; 4] =
        [CpuidFeature::VAES, CpuidFeature::VPCLMULQDQ, CpuidFeature::GFNI, CpuidFeature::AVX_VNNI];
    let limited = NARROW.load(Ordering::Relaxed);
    i.code().cpuid_features().iter().all(|feature| host_has(*feature) && !(limited && BEYOND_AVX2.contains(feature)))
}

/// Returns true if the host has an extension, or if every host must have it.
pub fn host_has(feature: CpuidFeature) -> bool {
    macro_rules! has {
        ($name:tt) => {
            std::arch::is_x86_feature_detected!($name)
        };
    }
    match feature {
        CpuidFeature::VAES => has!("vaes"),
        CpuidFeature::VPCLMULQDQ => has!("vpclmulqdq"),
        CpuidFeature::GFNI => has!("gfni"),
        CpuidFeature::AVX_VNNI => has!("avxvnni"),
        CpuidFeature::AVX512F => has!("avx512f"),
        CpuidFeature::AVX512CD => has!("avx512cd"),
        CpuidFeature::AVX512BW => has!("avx512bw"),
        CpuidFeature::AVX512DQ => has!("avx512dq"),
        CpuidFeature::AVX512VL => has!("avx512vl"),
        CpuidFeature::AVX512_VBMI => has!("avx512vbmi"),
        CpuidFeature::AVX512_VBMI2 => has!("avx512vbmi2"),
        CpuidFeature::AVX512_IFMA => has!("avx512ifma"),
        CpuidFeature::AVX512_VNNI => has!("avx512vnni"),
        CpuidFeature::AVX512_BITALG => has!("avx512bitalg"),
        CpuidFeature::AVX512_VPOPCNTDQ => has!("avx512vpopcntdq"),
        CpuidFeature::AVX512_BF16 => has!("avx512bf16"),
        CpuidFeature::AVX512_FP16 => has!("avx512fp16"),
        _ => true,
    }
}
