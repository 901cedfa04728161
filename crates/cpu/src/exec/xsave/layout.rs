//! State components and where they are kept (SDM vol. 1, 13.4), and what CPUID says about them.

use crate::model::CpuidRegs;
use crate::state::Cpu;
use iced_x86::Code;
use x86::control::*;

use crate::features::Features;

/// Bytes of the legacy region and the header.
pub const HEADER_END: usize = 576;

/// A component of the extended region: its number, bytes, and offset in the standard format.
pub struct Component {
    /// Number of the component.
    pub number: u32,
    /// Bytes.
    pub size: usize,
    /// Offset in the standard format.
    pub offset: usize,
}

/// The components of the extended region. None is aligned in the compacted format, and all are user state.
pub const COMPONENTS: [Component; 2] =
    [Component { number: 2, size: 256, offset: 576 }, Component { number: 9, size: 8, offset: 832 }];

/// Longest save area.
pub const LONGEST: usize = 840;

/// The state components this model supports: what may be set in XCR0. IA32_XSS has none.
pub fn supported(cpu: &Cpu) -> u64 {
    let has = |code| cpu.wiring.features.contains(Features::needed(code));
    let mut mask = XCR0_X87 | XCR0_SSE;
    if has(Code::VEX_Vzeroupper) {
        mask |= XCR0_AVX;
    }
    if has(Code::Wrpkru) {
        mask |= XCR0_PKRU;
    }
    mask
}

/// Bytes of a save area for these components in the standard format.
pub fn standard_size(components: u64) -> usize {
    let ends = COMPONENTS.iter().filter(|c| components >> c.number & 1 != 0).map(|c| c.offset + c.size);
    ends.max().unwrap_or(HEADER_END)
}

/// Offset of a component in the compacted format of these components; of the end, for a number beyond the last.
pub fn compacted_offset(components: u64, number: u32) -> usize {
    let before = COMPONENTS.iter().filter(|c| c.number < number && components >> c.number & 1 != 0);
    HEADER_END + before.map(|c| c.size).sum::<usize>()
}

/// Bytes of a save area for these components in the compacted format.
pub fn compacted_size(components: u64) -> usize {
    compacted_offset(components, 63)
}

/// CPUID leaf 0DH for the model and the current XCR0.
pub fn xstate_cpuid(cpu: &Cpu, subleaf: u32) -> CpuidRegs {
    let has = |code| cpu.wiring.features.contains(Features::needed(code));
    if !has(Code::Xsave_mem) {
        return CpuidRegs::default();
    }
    let all = supported(cpu);
    match subleaf {
        0 => CpuidRegs {
            eax: all as u32,
            ebx: standard_size(cpu.arch.xcr0) as u32,
            ecx: standard_size(all) as u32,
            edx: (all >> 32) as u32,
        },
        1 => {
            let bits = [has(Code::Xsaveopt_mem), has(Code::Xsavec_mem), xgetbv1(cpu), has(Code::Xsaves_mem)];
            let eax = bits.iter().enumerate().fold(0, |set, (n, &bit)| set | u32::from(bit) << n);
            let compacts = eax & 0b1010 != 0;
            let ebx = if compacts { compacted_size(cpu.arch.xcr0 | cpu.arch.msr.xss) as u32 } else { 0 };
            CpuidRegs { eax, ebx, ecx: 0, edx: 0 }
        }
        number => match COMPONENTS.iter().find(|c| c.number == number && all >> c.number & 1 != 0) {
            Some(c) => CpuidRegs { eax: c.size as u32, ebx: c.offset as u32, ecx: 0, edx: 0 },
            None => CpuidRegs::default(),
        },
    }
}

/// Whether XGETBV with ECX = 1 exists. A model without CPUID contents has everything.
pub fn xgetbv1(cpu: &Cpu) -> bool {
    cpu.wiring.model.cpuid.is_empty() || cpu.wiring.model.static_cpuid(13, 1).eax & 4 != 0
}
