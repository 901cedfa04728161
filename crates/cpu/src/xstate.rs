//! Layout of the state components in a save area (SDM vol. 1, 13.4), according to the profile's CPUID.
//! [`crate::exec::xsave`] defines their contents.

use crate::arch::{TILE, TILES};
use crate::leaf::CpuidRegs;
use crate::model::Model;
use x86::control::*;

/// Size of the legacy region and the header in bytes.
pub const HEADER_END: usize = 576;
/// Components of the legacy region.
const LEGACY: u64 = XCR0_X87 | XCR0_SSE;
/// CPUID.0xD, ECX of a component's sub-leaf: supervisor state, enabled in IA32_XSS.
pub(crate) const SUPERVISOR: u32 = 1 << 0;
/// CPUID.0xD, ECX of a component's sub-leaf: aligned to 64 bytes in the compacted format.
pub(crate) const ALIGNED: u32 = 1 << 1;
/// CPUID.0xD, ECX of a component's sub-leaf: IA32_XFD can disable it.
pub(crate) const DISABLABLE: u32 = 1 << 2;
/// Maximum size of a save area. The last component of a real processor ends at 11008.
const LONGEST: usize = 1 << 16;

/// A component that the model can execute.
pub struct Known {
    /// Number of the component.
    pub number: u32,
    /// CPUID.0xD, sub-leaf of the component, on processors that have it.
    pub usual: CpuidRegs,
}

impl Known {
    /// Returns the size in bytes.
    pub const fn size(&self) -> usize {
        self.usual.eax as usize
    }

    /// Returns true for supervisor state.
    pub const fn supervisor(&self) -> bool {
        self.usual.ecx & SUPERVISOR != 0
    }
}

const fn known(number: u32, size: u32, offset: u32, traits: u32) -> Known {
    Known { number, usual: CpuidRegs { eax: size, ebx: offset, ecx: traits, edx: 0 } }
}

/// The components: AVX, opmask registers, ZMM_Hi256, Hi16_ZMM, PKRU, CET_U, CET_S, TILECFG, TILEDATA.
pub static KNOWN: [Known; 9] = [
    known(2, 256, 576, 0),
    known(5, 64, 1088, 0),
    known(6, 512, 1152, 0),
    known(7, 1024, 1664, 0),
    known(9, 8, 2688, 0),
    known(11, 16, 0, SUPERVISOR),
    known(12, 24, 0, SUPERVISOR),
    known(17, 64, 2752, ALIGNED),
    known(18, (TILES * TILE) as u32, 2816, ALIGNED | DISABLABLE),
];

/// A component of the extended region.
#[derive(Clone, Copy)]
pub struct Component {
    /// Index in [`KNOWN`].
    pub index: usize,
    /// Offset in the standard format; supervisor state has none.
    pub offset: usize,
    /// True if it is aligned to 64 bytes in the compacted format.
    pub aligned: bool,
    /// True if IA32_XFD can disable it.
    pub disablable: bool,
}

impl Component {
    /// Returns the description of the component.
    pub fn known(&self) -> &'static Known {
        &KNOWN[self.index]
    }

    /// Returns the bit of the component in bitmaps.
    pub fn bit(&self) -> u64 {
        1 << self.known().number
    }

    fn end(&self) -> usize {
        self.offset + self.known().size()
    }
}

/// Components of a model, in the order of their numbers.
#[derive(Clone)]
pub struct Layout {
    /// Components of the extended region.
    pub components: Vec<Component>,
    /// Bits that may be set in XCR0.
    pub user: u64,
    /// Bits that may be set in IA32_XSS.
    pub supervisor: u64,
    /// Bits that may be set in IA32_XFD.
    pub disablable: u64,
}

impl Layout {
    /// Returns the layout of a model. A model without CPUID contents (tests of single instructions) has every
    /// component, at the offsets of real processors.
    pub fn of(model: &Model) -> Self {
        let everything = model.cpuid.is_empty();
        let (all, extension) = (model.static_cpuid(13, 0), model.static_cpuid(13, 1));
        let announced = u64::from(all.eax) | u64::from(all.edx) << 32 | u64::from(extension.ecx);
        let mut layout = Self { components: Vec::new(), user: LEGACY, supervisor: 0, disablable: 0 };
        for (index, known) in KNOWN.iter().enumerate() {
            let regs = if everything { known.usual } else { model.static_cpuid(13, known.number) };
            let offset = regs.ebx as usize;
            let supervisor = regs.ecx & SUPERVISOR != 0;
            let fits = supervisor || (HEADER_END..=LONGEST - known.size()).contains(&offset);
            let there = everything || announced & 1 << known.number != 0;
            if !there || regs.eax as usize != known.size() || supervisor != known.supervisor() || !fits {
                continue;
            }
            let (aligned, disablable) = (regs.ecx & ALIGNED != 0, regs.ecx & DISABLABLE != 0);
            let component = Component { index, offset, aligned, disablable };
            *(if supervisor { &mut layout.supervisor } else { &mut layout.user }) |= component.bit();
            layout.disablable |= if disablable { component.bit() } else { 0 };
            layout.components.push(component);
        }
        layout
    }

    /// Returns the components of a bitmap.
    fn among(&self, bitmap: u64) -> impl Iterator<Item = &Component> {
        self.components.iter().filter(move |component| bitmap & component.bit() != 0)
    }

    /// Returns the size of a save area for the components of a bitmap in the standard format.
    pub fn standard_size(&self, bitmap: u64) -> usize {
        self.among(bitmap).map(Component::end).max().unwrap_or(HEADER_END)
    }

    /// Returns the size of a save area for the components of a bitmap in the compacted format.
    pub fn compacted_size(&self, bitmap: u64) -> usize {
        self.among(bitmap).fold(HEADER_END, |end, component| begin(end, component) + component.known().size())
    }

    /// Returns the offset of the component at an index; in the compacted format if the bitmap of its components is
    /// given.
    pub fn offset(&self, index: usize, compacted: Option<u64>) -> usize {
        let component = &self.components[index];
        let Some(bitmap) = compacted else { return component.offset };
        let before = self.components[..index].iter().filter(|other| bitmap & other.bit() != 0);
        begin(before.fold(HEADER_END, |end, other| begin(end, other) + other.known().size()), component)
    }

    /// Returns true if a value is valid for XCR0 (SDM vol. 1, 13.3).
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

/// Returns the start of a component in the compacted format, given the end of the one before.
fn begin(end: usize, component: &Component) -> usize {
    if component.aligned { end.next_multiple_of(64) } else { end }
}
