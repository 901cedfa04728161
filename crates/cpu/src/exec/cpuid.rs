//! CPUID: the model's leaves, with the fields that depend on the processor's state.

use crate::capability::Capability;
use crate::exec::xsave::xstate_cpuid;
use crate::fault::{Exec, Flow};
use crate::model::CpuidRegs;
use crate::op::Op;
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::Mnemonic::*;
use ledger::{Class, Kind};
use x86::control::*;
use x86::msr::{APIC_BASE, APIC_BASE_ENABLE, MISC_ENABLE_MONITOR};
use x86::reg;
use x86::vmx::reason;

/// Instruction table row of CPUID.
pub static ROWS: &[Row] = &[Row::end(Cpuid, Class::System, |_, _| Some(cpuid))];

const EXTENDED: u32 = 0x8000_0000;
/// Crystal frequency for leaf 0x15 if the model does not specify one.
pub const CRYSTAL_HZ: u32 = 25_000_000;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Cpu {
    /// Returns the result of CPUID for a leaf and sub-leaf.
    pub fn cpuid(&mut self, leaf: u32, subleaf: u32) -> CpuidRegs {
        let basic = self.wiring.model.leaf(0, 0).map_or(0, |r| r.eax);
        let extended = self.wiring.model.leaf(EXTENDED, 0).map_or(0, |r| r.eax);
        let in_range = leaf <= basic || (leaf >= EXTENDED && leaf <= extended);
        let leaf = match in_range {
            true => leaf,
            // Beyond the last leaf, Intel processors return the last basic leaf, and AMD's return zeros.
            false if self.wiring.capabilities.shows_amd => return CpuidRegs::default(),
            false => basic,
        };
        let found = self.wiring.model.leaf(leaf, subleaf);
        let mut regs = found.unwrap_or_default();
        match leaf {
            1 => self.features_leaf(&mut regs),
            4 | 0x8000_001d => self.cache_leaf(&mut regs, leaf == 4),
            7 if subleaf == 0 => set(&mut regs.ecx, 1 << 4, self.arch.cr4 & CR4_PKE != 0),
            0xb | 0x1f if self.wiring.capabilities.has(Capability::X2apic) => regs = self.topology(subleaf),
            0xd => regs = xstate_cpuid(self, subleaf),
            0x15 if found.is_some() => self.crystal_leaf(&mut regs),
            0x16 if found.is_some() => {
                let mhz = (self.wiring.model.tsc_hz / 1_000_000) as u32;
                regs = CpuidRegs { eax: mhz, ebx: regs.ebx.max(mhz), ecx: 100, edx: 0 };
            }
            // SYSCALL: Intel processors report it to 64-bit code only.
            0x8000_0001 if !self.wiring.capabilities.shows_amd && !self.engine.long64 => regs.edx &= !(1 << 11),
            0x8000_0008 if self.wiring.capabilities.shows_amd => {
                regs.ecx = (regs.ecx & !0xf0ff) | (self.wiring.processors.max(1) - 1) | self.package_bits() << 12;
            }
            0x8000_001e if self.wiring.capabilities.shows_amd => {
                regs = CpuidRegs { eax: self.wiring.apic_id, ebx: self.wiring.apic_id, ecx: 0, edx: 0 };
            }
            _ => {}
        }
        regs
    }

    /// Returns the number of APIC ID bits below the package's.
    fn package_bits(&self) -> u32 {
        self.wiring.processors.max(1).next_power_of_two().trailing_zeros()
    }

    fn features_leaf(&mut self, regs: &mut CpuidRegs) {
        let addressable = 1u32 << self.package_bits().min(7);
        regs.ebx = (regs.ebx & 0xffff) | addressable << 16 | self.wiring.apic_id << 24;
        set(&mut regs.edx, 1 << 28, self.wiring.processors > 1);
        let xsave = regs.ecx & 1 << 26 != 0;
        set(&mut regs.ecx, 1 << 27, xsave && self.arch.cr4 & CR4_OSXSAVE != 0);
        if self.arch.msr.misc_enable & MISC_ENABLE_MONITOR == 0 {
            regs.ecx &= !(1 << 3);
        }
        let who = self.ident();
        let apic = self.wiring.bus().msr_read(who, APIC_BASE);
        if apic.is_some_and(|base| base & APIC_BASE_ENABLE == 0) {
            regs.edx &= !(1 << 9);
        }
    }

    /// Sets the sharing fields of a cache leaf: the first two levels belong to one processor, the third to the package.
    fn cache_leaf(&self, regs: &mut CpuidRegs, cores: bool) {
        if regs.eax & 0x1f == 0 {
            return;
        }
        let package = (1u32 << self.package_bits()) - 1;
        let level = regs.eax >> 5 & 7;
        let sharing = if level >= 3 { package } else { 0 };
        regs.eax = (regs.eax & 0x3fff) | (sharing & 0xfff) << 14;
        if cores {
            regs.eax |= (package & 0x3f) << 26;
        }
    }

    /// Returns the extended topology: one thread per core, all cores in one package.
    fn topology(&self, subleaf: u32) -> CpuidRegs {
        let (eax, ebx, level) = match subleaf {
            0 => (0, 1, 1),
            1 => (self.package_bits(), self.wiring.processors.max(1), 2),
            _ => (0, 0, 0),
        };
        CpuidRegs { eax, ebx, ecx: level << 8 | subleaf & 0xff, edx: self.wiring.apic_id }
    }

    /// Sets the ratio of TSC and crystal frequency.
    fn crystal_leaf(&self, regs: &mut CpuidRegs) {
        let crystal = if regs.ecx != 0 { regs.ecx } else { CRYSTAL_HZ };
        let common = gcd(u64::from(crystal), self.wiring.model.tsc_hz).max(1);
        let numerator = (self.wiring.model.tsc_hz / common) as u32;
        *regs = CpuidRegs { eax: (u64::from(crystal) / common) as u32, ebx: numerator, ecx: crystal, edx: 0 };
    }
}

fn set(word: &mut u32, bit: u32, on: bool) {
    *word = (*word & !bit) | if on { bit } else { 0 };
}

fn cpuid(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    // CPUID faulting (MISC_FEATURES_ENABLES) raises #GP.
    if cpu.arch.msr.misc_features & 1 != 0 && cpu.arch.cpl != 0 {
        return Err(cpu.gp(0));
    }
    cpu.exit_always(reason::CPUID)?;
    let leaf = cpu.get::<u32>(reg::RAX);
    let subleaf = cpu.get::<u32>(reg::RCX);
    cpu.charge(Kind::cpuid(leaf, subleaf), 1);
    let regs = cpu.cpuid(leaf, subleaf);
    cpu.set::<u32>(reg::RAX, regs.eax);
    cpu.set::<u32>(reg::RBX, regs.ebx);
    cpu.set::<u32>(reg::RCX, regs.ecx);
    cpu.set::<u32>(reg::RDX, regs.edx);
    Ok(Flow::End)
}
