//! Processor capabilities according to the model's CPUID, for system registers and the instructions that depend on
//! them.
//!
//! Instruction-set extensions are checked at decode time, see [`crate::features`].

use crate::model::Model;

/// A register of a CPUID leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reg {
    Ebx,
    Ecx,
    Edx,
    Eax,
}
use Reg::*;

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident = $leaf:literal, $subleaf:literal, $reg:ident, $bit:literal;)*) => {
        /// A capability on which a register or instruction depends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Capability { $($name),* }

        static WHERE: &[(Capability, u32, u32, Reg, u8)] = &[$((Capability::$name, $leaf, $subleaf, $reg, $bit)),*];
    };
}

capabilities! {
    Vme = 1, 0, Edx, 1;
    De = 1, 0, Edx, 2;
    Pse = 1, 0, Edx, 3;
    Pae = 1, 0, Edx, 6;
    Mce = 1, 0, Edx, 7;
    Sep = 1, 0, Edx, 11;
    Mtrr = 1, 0, Edx, 12;
    Pge = 1, 0, Edx, 13;
    Pat = 1, 0, Edx, 16;
    Fxsr = 1, 0, Edx, 24;
    Sse = 1, 0, Edx, 25;
    Monitor = 1, 0, Ecx, 3;
    Vmx = 1, 0, Ecx, 5;
    Pdcm = 1, 0, Ecx, 15;
    Pcid = 1, 0, Ecx, 17;
    X2apic = 1, 0, Ecx, 21;
    TscDeadline = 1, 0, Ecx, 24;
    Xsave = 1, 0, Ecx, 26;
    Avx = 1, 0, Ecx, 28;
    FsGsBase = 7, 0, Ebx, 0;
    TscAdjust = 7, 0, Ebx, 1;
    Smep = 7, 0, Ebx, 7;
    Invpcid = 7, 0, Ebx, 10;
    Smap = 7, 0, Ebx, 20;
    Umip = 7, 0, Ecx, 2;
    Pku = 7, 0, Ecx, 3;
    La57 = 7, 0, Ecx, 16;
    CetSs = 7, 0, Ecx, 7;
    CetIbt = 7, 0, Edx, 20;
    Rdpid = 7, 0, Ecx, 22;
    Pks = 7, 0, Ecx, 31;
    SpecCtrl = 7, 0, Edx, 26;
    Stibp = 7, 0, Edx, 27;
    FlushL1d = 7, 0, Edx, 28;
    ArchCapabilities = 7, 0, Edx, 29;
    CoreCapabilities = 7, 0, Edx, 30;
    Ssbd = 7, 0, Edx, 31;
    MdClear = 7, 0, Edx, 10;
    Xsaves = 0xd, 1, Eax, 3;
    Xfd = 0xd, 1, Eax, 4;
    Syscall = 0x8000_0001, 0, Edx, 11;
    Nx = 0x8000_0001, 0, Edx, 20;
    Ffxsr = 0x8000_0001, 0, Edx, 25;
    Rdtscp = 0x8000_0001, 0, Edx, 27;
    LongMode = 0x8000_0001, 0, Edx, 29;
    AmdIbpb = 0x8000_0008, 0, Ebx, 12;
    AmdIbrs = 0x8000_0008, 0, Ebx, 14;
    AmdStibp = 0x8000_0008, 0, Ebx, 15;
    AmdSsbd = 0x8000_0008, 0, Ebx, 24;
    Sbpb = 0x8000_0021, 0, Eax, 27;
}

/// Set of a model's capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    bits: u64,
    /// True if instructions follow AMD's conventions where vendors differ.
    pub amd: bool,
    /// True if CPUID names AMD, whose registers the model then has.
    pub shows_amd: bool,
}

/// EBX, ECX and EDX of leaf 0 on processors that follow AMD's conventions.
const AMD: (u32, u32, u32) = (0x6874_7541, 0x444d_4163, 0x6974_6e65);

impl Capabilities {
    /// All capabilities, on an Intel processor.
    pub const ALL: Capabilities = Capabilities { bits: u64::MAX, amd: false, shows_amd: false };

    /// Returns the capabilities of a model.
    pub fn of(model: &Model) -> Self {
        // An empty table, as in tests of single instructions, has all capabilities.
        if model.cpuid.is_empty() {
            return Self::ALL;
        }
        let mut bits = 0;
        for &(capability, leaf, subleaf, reg, bit) in WHERE {
            let Some(regs) = model.leaf(leaf, subleaf) else { continue };
            let value = match reg {
                Eax => regs.eax,
                Ebx => regs.ebx,
                Ecx => regs.ecx,
                Edx => regs.edx,
            };
            bits |= u64::from(value >> bit & 1) << capability as u32;
        }
        let shows_amd = model.leaf(0, 0).is_some_and(|r| (r.ebx, r.ecx, r.edx) == AMD);
        Self { bits, amd: model.amd, shows_amd }
    }

    /// Returns true if instructions follow another vendor's conventions than CPUID says, as in a guest that was moved.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.amd != self.shows_amd
    }

    /// Returns true if the model has a capability.
    #[inline]
    pub fn has(&self, capability: Capability) -> bool {
        self.bits >> capability as u32 & 1 != 0
    }
}
