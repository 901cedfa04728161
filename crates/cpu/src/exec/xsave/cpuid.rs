//! CPUID leaf of the state components (SDM vol. 1, 13.2).

use crate::features::Features;
use crate::model::CpuidRegs;
use crate::state::Cpu;
use crate::xstate::{ALIGNED, DISABLABLE, SUPERVISOR};
use iced_x86::Code;

/// Returns CPUID leaf 0DH for the model and the current XCR0.
pub fn xstate_cpuid(cpu: &Cpu, subleaf: u32) -> CpuidRegs {
    let has = |code| cpu.wiring.features.contains(Features::needed(code));
    if !has(Code::Xsave_mem) {
        return CpuidRegs::default();
    }
    let layout = &cpu.wiring.xstate;
    match subleaf {
        0 => CpuidRegs {
            eax: layout.user as u32,
            ebx: layout.standard_size(cpu.arch.xcr0) as u32,
            ecx: layout.standard_size(layout.user) as u32,
            edx: (layout.user >> 32) as u32,
        },
        1 => {
            let disables = layout.disablable != 0;
            let bits = [has(Code::Xsaveopt_mem), has(Code::Xsavec_mem), xgetbv1(cpu), has(Code::Xsaves_mem), disables];
            let eax = bits.iter().enumerate().fold(0, |set, (n, &bit)| set | u32::from(bit) << n);
            let compacts = eax & 0b1010 != 0;
            let ebx = if compacts { layout.compacted_size(cpu.arch.xcr0 | cpu.arch.msr.xss) as u32 } else { 0 };
            CpuidRegs { eax, ebx, ecx: layout.supervisor as u32, edx: (layout.supervisor >> 32) as u32 }
        }
        number => match layout.components.iter().find(|component| component.known().number == number) {
            Some(c) => {
                let traits = [(c.known().supervisor(), SUPERVISOR), (c.aligned, ALIGNED), (c.disablable, DISABLABLE)];
                let ecx = traits.iter().fold(0, |set, (has, bit)| set | if *has { *bit } else { 0 });
                CpuidRegs { eax: c.known().size() as u32, ebx: c.offset as u32, ecx, edx: 0 }
            }
            None => CpuidRegs::default(),
        },
    }
}

/// Returns true if XGETBV with ECX = 1 is supported. A model without CPUID contents has all features.
pub fn xgetbv1(cpu: &Cpu) -> bool {
    cpu.wiring.model.cpuid.is_empty() || cpu.wiring.model.static_cpuid(13, 1).eax & 4 != 0
}
