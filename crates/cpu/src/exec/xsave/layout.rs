//! Where the state components lie in a save area (SDM vol. 1, 13.4), by what the profile's CPUID says, and what CPUID says about them.

use super::component::{KNOWN, Known};
use crate::features::Features;
use crate::model::{CpuidRegs, Model};
use crate::state::Cpu;
use iced_x86::Code;
use x86::control::*;

/// Bytes of the legacy region and the header.
pub const HEADER_END: usize = 576;
/// The components of the legacy region.
const LEGACY: u64 = XCR0_X87 | XCR0_SSE;
/// CPUID.0xD, ECX of a component's sub-leaf: it is supervisor state, enabled in IA32_XSS.
const SUPERVISOR: u32 = 1 << 0;
/// Likewise: in the compacted format it begins at a multiple of 64 bytes.
const ALIGNED: u32 = 1 << 1;
/// Likewise: IA32_XFD can disable it.
const DISABLABLE: u32 = 1 << 2;
/// No area is longer. The largest component of a real processor ends at 11008.
const LONGEST: usize = 1 << 16;

/// A component of the extended region.
#[derive(Clone, Copy)]
pub struct Component {
    /// What the component is made of.
    pub known: &'static Known,
    /// Offset in the standard format; supervisor state has none.
    offset: usize,
    /// In the compacted format it begins at a multiple of 64 bytes.
    aligned: bool,
    /// IA32_XFD can disable it.
    disablable: bool,
}

impl Component {
    /// The bit of the component in bitmaps.
    pub fn bit(&self) -> u64 {
        1 << self.known.number
    }

    fn end(&self) -> usize {
        self.offset + self.known.size
    }
}

/// The components of a model, in the order of their numbers.
#[derive(Clone)]
pub struct Layout {
    /// Those of the extended region.
    pub components: Vec<Component>,
    /// What may be set in XCR0.
    pub user: u64,
    /// What may be set in IA32_XSS.
    pub supervisor: u64,
    /// What may be set in IA32_XFD.
    pub disablable: u64,
}

impl Layout {
    /// That of a model. One without CPUID contents (tests of single instructions) has every component, at the offsets of the
    /// processors that have them.
    pub fn of(model: &Model) -> Self {
        let everything = model.cpuid.is_empty();
        let (all, extension) = (model.static_cpuid(13, 0), model.static_cpuid(13, 1));
        let announced = u64::from(all.eax) | u64::from(all.edx) << 32 | u64::from(extension.ecx);
        let mut layout = Self { components: Vec::new(), user: LEGACY, supervisor: 0, disablable: 0 };
        for known in KNOWN {
            let regs = if everything { known.usual } else { model.static_cpuid(13, known.number) };
            let offset = regs.ebx as usize;
            let supervisor = regs.ecx & SUPERVISOR != 0;
            let fits = supervisor || (HEADER_END..=LONGEST - known.size).contains(&offset);
            let there = everything || announced & 1 << known.number != 0;
            if !there || regs.eax as usize != known.size || supervisor != known.supervisor() || !fits {
                continue;
            }
            let (aligned, disablable) = (regs.ecx & ALIGNED != 0, regs.ecx & DISABLABLE != 0);
            let component = Component { known, offset, aligned, disablable };
            *(if supervisor { &mut layout.supervisor } else { &mut layout.user }) |= component.bit();
            layout.disablable |= if disablable { component.bit() } else { 0 };
            layout.components.push(component);
        }
        layout
    }

    /// The components of a bitmap.
    fn among(&self, bitmap: u64) -> impl Iterator<Item = &Component> {
        self.components.iter().filter(move |component| bitmap & component.bit() != 0)
    }

    /// Bytes of a save area for the components of a bitmap in the standard format.
    pub fn standard_size(&self, bitmap: u64) -> usize {
        self.among(bitmap).map(Component::end).max().unwrap_or(HEADER_END)
    }

    /// Bytes of a save area for the components of a bitmap in the compacted format.
    pub fn compacted_size(&self, bitmap: u64) -> usize {
        self.among(bitmap).fold(HEADER_END, |end, component| begin(end, component) + component.known.size)
    }

    /// Where the component at an index lies: in the compacted format of the components of a bitmap, if one is given.
    pub fn offset(&self, index: usize, compacted: Option<u64>) -> usize {
        let component = &self.components[index];
        let Some(bitmap) = compacted else { return component.offset };
        let before = self.components[..index].iter().filter(|other| bitmap & other.bit() != 0);
        begin(before.fold(HEADER_END, |end, other| begin(end, other) + other.known.size), component)
    }

    /// Whether a value can be in XCR0 (SDM vol. 1, 13.3).
    pub fn allows_xcr0(&self, value: u64) -> bool {
        let together = |set: u64| value & set == 0 || value & set == set;
        let behind = |what: u64, needed: u64| value & what == 0 || value & needed != 0;
        value & XCR0_X87 != 0
            && value & !self.user == 0
            && behind(XCR0_AVX, XCR0_SSE)
            && behind(XCR0_AVX512, XCR0_AVX)
            && together(XCR0_AVX512)
            && together(XCR0_TILES)
    }
}

/// Where a component begins in the compacted format if the one before ends here.
fn begin(end: usize, component: &Component) -> usize {
    if component.aligned { end.next_multiple_of(64) } else { end }
}

/// CPUID leaf 0DH for the model and the current XCR0.
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
        number => match layout.components.iter().find(|component| component.known.number == number) {
            Some(c) => {
                let traits = [(c.known.supervisor(), SUPERVISOR), (c.aligned, ALIGNED), (c.disablable, DISABLABLE)];
                let ecx = traits.iter().fold(0, |set, (has, bit)| set | if *has { *bit } else { 0 });
                CpuidRegs { eax: c.known.size as u32, ebx: c.offset as u32, ecx, edx: 0 }
            }
            None => CpuidRegs::default(),
        },
    }
}

/// Whether XGETBV with ECX = 1 exists. A model without CPUID contents has everything.
pub fn xgetbv1(cpu: &Cpu) -> bool {
    cpu.wiring.model.cpuid.is_empty() || cpu.wiring.model.static_cpuid(13, 1).eax & 4 != 0
}
