//! Control registers in two views: the guest's, and the processor's while the guest runs.

use crate::config::{Cr0Wp, VmConfig};
use cpu::Cpu;
use cpu::vmx::Controls;
use serde::{Deserialize, Serialize};
use x86::control::*;
use x86::page::ADDRESS;

/// The guest's view of the registers that control paging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visible {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// The PDPTEs of PAE paging.
    pub pdpte: [u64; 4],
}

impl Visible {
    /// Returns the registers of a processor without a hypervisor.
    pub fn of(cpu: &Cpu) -> Self {
        Self { cr0: cpu.arch.cr0, cr3: cpu.arch.cr3, cr4: cpu.arch.cr4, efer: cpu.arch.msr.efer, pdpte: cpu.arch.pdpte }
    }

    /// Loads them into the processor, and returns the old values. Mode and translations are not updated.
    pub fn swap(&self, cpu: &mut Cpu) -> Self {
        let old = Self::of(cpu);
        (cpu.arch.cr0, cpu.arch.cr3, cpu.arch.cr4, cpu.arch.msr.efer, cpu.arch.pdpte) =
            (self.cr0, self.cr3, self.cr4, self.efer, self.pdpte);
        old
    }

    /// Returns true if paging is enabled.
    pub fn paging(&self) -> bool {
        self.cr0 & CR0_PG != 0
    }

    /// Returns true if long mode is active.
    pub fn long(&self) -> bool {
        self.efer & EFER_LMA != 0
    }

    /// Returns true for PAE paging outside long mode, which has PDPTEs.
    pub fn pae(&self) -> bool {
        self.paging() && self.cr4 & CR4_PAE != 0 && !self.long()
    }

    /// Returns the address space as identified in ledgers.
    pub fn space(&self) -> u64 {
        if self.paging() { self.cr3 & ADDRESS } else { 0 }
    }
}

/// Ownership of control register bits in a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    shadow: bool,
    unrestricted: bool,
    /// CR0 bits that the guest reads and writes without an exit.
    pub cr0: u64,
    /// CR4 bits that the guest reads and writes without an exit.
    pub cr4: u64,
}

impl Ownership {
    /// Returns KVM's assignment of the bits.
    pub fn of(config: &VmConfig) -> Self {
        let tdp = config.mmu.is_tdp();
        let wp = if config.cr0_wp == Cr0Wp::GuestOwned { CR0_WP } else { 0 };
        let pge = if tdp { CR4_PGE } else { 0 };
        let harmless = CR4_PVI | CR4_TSD | CR4_DE | CR4_PCE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_FSGSBASE;
        Self { shadow: !tdp, unrestricted: config.unrestricted_guest, cr0: CR0_TS | wp, cr4: harmless | pge }
    }

    /// Returns the ownership for a nested guest, with the controls that the guest has set for it.
    pub fn within(&self, inner: &Controls) -> Self {
        Self { cr0: self.cr0 & !inner.cr0_mask, cr4: self.cr4 & !inner.cr4_mask, ..*self }
    }

    /// Returns CR0 while the guest runs.
    pub fn real_cr0(&self, visible: &Visible) -> u64 {
        // Caches stay enabled: the guest only sees its own bits.
        let mut cr0 = visible.cr0 & !(CR0_CD | CR0_NW) | CR0_NE | CR0_ET;
        if !self.unrestricted {
            cr0 |= CR0_PE | CR0_PG;
        }
        if self.shadow {
            cr0 |= CR0_WP;
        }
        cr0
    }

    /// Returns CR4 while the guest runs.
    pub fn real_cr4(&self, visible: &Visible) -> u64 {
        // VMX operation fixes the bit, which the guest does not see.
        let mut cr4 = visible.cr4 | CR4_VMXE;
        if self.shadow {
            // The shadow tables of a guest outside long mode are PAE tables, or none at all.
            cr4 |= CR4_PAE;
            if !visible.paging() {
                cr4 &= !(CR4_SMEP | CR4_SMAP | CR4_PKE);
            }
            if !visible.long() {
                cr4 &= !CR4_PCIDE;
            }
        }
        cr4
    }

    /// Returns EFER while the guest runs.
    pub fn real_efer(&self, visible: &Visible) -> u64 {
        if !self.shadow {
            return visible.efer;
        }
        // Paging is enabled in the processor: LME must equal LMA. Shadow tables need the execute-disable bit.
        let lme = if visible.long() { EFER_LME } else { 0 };
        visible.efer & !EFER_LME | lme | EFER_NXE
    }

    /// Takes over the guest's changes to its own bits.
    pub fn follow(&self, visible: &mut Visible, cpu: &Cpu) {
        visible.cr0 = visible.cr0 & !self.cr0 | cpu.arch.cr0 & self.cr0;
        visible.cr4 = visible.cr4 & !self.cr4 | cpu.arch.cr4 & self.cr4;
        if !self.shadow {
            visible.cr3 = cpu.arch.cr3;
            visible.pdpte = cpu.arch.pdpte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MmuMode;

    #[test]
    fn a_shadow_mmu_keeps_write_protection_on() {
        let config = VmConfig { mmu: MmuMode::Shadow, unrestricted_guest: false, ..VmConfig::default() };
        let ownership = Ownership::of(&config);
        let visible = Visible { cr0: CR0_PE | CR0_CD | CR0_NW, efer: EFER_LME, ..Visible::default() };
        assert_eq!(ownership.real_cr0(&visible), CR0_PE | CR0_PG | CR0_WP | CR0_NE | CR0_ET);
        assert_eq!(ownership.real_cr4(&visible), CR4_PAE | CR4_VMXE);
        assert_eq!(ownership.real_efer(&visible), EFER_NXE);
        assert_eq!(ownership.cr4 & CR4_PGE, 0);
    }

    #[test]
    fn two_dimensional_paging_leaves_the_registers_alone() {
        let config = VmConfig { cr0_wp: Cr0Wp::GuestOwned, ..VmConfig::default() };
        let ownership = Ownership::of(&config);
        let visible = Visible { cr0: CR0_ET | CR0_NE, cr4: CR4_SMEP, efer: EFER_LME, ..Visible::default() };
        assert_eq!(ownership.real_cr0(&visible), visible.cr0);
        assert_eq!(
            (ownership.real_cr4(&visible), ownership.real_efer(&visible)),
            (visible.cr4 | CR4_VMXE, visible.efer)
        );
        assert_eq!(ownership.cr0, CR0_TS | CR0_WP);
    }
}
