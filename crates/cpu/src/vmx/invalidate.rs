//! What is invalidated in the TLB, and by whom.

use super::NonRoot;
use crate::state::Cpu;
use x86::vmx::secondary;

/// What an instruction invalidates, of the current VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Everything, global translations included.
    All,
    /// All that is not global.
    NonGlobal,
    /// What is not global, of one PCID.
    Pcid(u16),
    /// The page of a linear address, of the current PCID and global.
    Page(u64),
    /// The page of a linear address, of one PCID, unless it is global.
    PageOf {
        /// The address.
        linear: u64,
        /// The PCID.
        pcid: u16,
    },
}

/// INVEPT (SDM vol. 3, 30.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invept {
    /// Type 1: what was translated through the tables of an EPT pointer.
    Single(u64),
    /// Type 2: what was translated through any.
    Global,
}

/// INVVPID (SDM vol. 3, 30.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invvpid {
    /// Type 0: one page of a VPID.
    Address {
        /// The VPID.
        vpid: u16,
        /// A linear address in the page.
        linear: u64,
    },
    /// Type 1: a VPID.
    Single(u16),
    /// Type 2: all VPIDs but 0.
    All,
    /// Type 3: a VPID, except for global translations.
    RetainGlobals(u16),
}

/// What the instructions of VMX invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// INVEPT.
    Ept(Invept),
    /// INVVPID.
    Vpid(Invvpid),
}

impl Cpu {
    /// Does what an instruction asks of the TLB. In emulation this is only noted: the TLB is not the guest's as the instruction
    /// sees it.
    pub(crate) fn flush_tlb(&mut self, what: Flush) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_flush(what);
            return;
        }
        match what {
            Flush::All => self.micro.tlb.flush_all(),
            Flush::NonGlobal => self.micro.tlb.flush_non_global(),
            Flush::Pcid(pcid) => self.micro.tlb.flush_pcid(pcid),
            Flush::Page(linear) => {
                let pcid = self.pcid();
                self.micro.tlb.flush_page(linear, pcid);
            }
            Flush::PageOf { linear, pcid } => self.micro.tlb.flush_page_non_global(linear, pcid),
        }
    }

    /// Invalidates translations made through EPT. Nothing is charged: that is up to the hypervisor.
    pub fn invept(&mut self, what: Invept) {
        if let Some(emulating) = &mut self.engine.emulation {
            return emulating.note_invalidation(Invalidation::Ept(what));
        }
        match what {
            Invept::Single(eptp) => self.micro.tlb.flush_ept(Some(eptp)),
            Invept::Global => self.micro.tlb.flush_ept(None),
        }
        self.mapping_changed();
    }

    /// Invalidates translations by VPID. Nothing is charged: that is up to the hypervisor.
    pub fn invvpid(&mut self, what: Invvpid) {
        if let Some(emulating) = &mut self.engine.emulation {
            return emulating.note_invalidation(Invalidation::Vpid(what));
        }
        match what {
            Invvpid::Address { vpid, linear } => self.micro.tlb.flush_page_of_vpid(vpid, linear),
            Invvpid::Single(vpid) => self.micro.tlb.flush_vpid(vpid, true),
            Invvpid::All => self.micro.tlb.flush_vpids(),
            Invvpid::RetainGlobals(vpid) => self.micro.tlb.flush_vpid(vpid, false),
        }
        self.mapping_changed();
    }

    /// Ends non-root mode without an exit, as RESET and INIT do here: the guest's processor is the one that is reset. Who calls
    /// it on its own lets [`Cpu::mode_changed`] follow.
    pub fn abandon_guest(&mut self) {
        *self.arch.vmx = NonRoot::default();
        self.micro.level = 0;
        self.micro.charged_space = None;
        // No context is new: it was VPID 0 without EPT that began.
        let _ = self.micro.tlb.enter(0, None);
        self.mapping_changed();
    }

    /// The registers that translation depends on, besides CR3 and PDPTEs.
    pub(super) fn translation_registers(&self) -> [u64; 5] {
        [self.arch.cr0, self.arch.cr4, self.arch.msr.efer, u64::from(self.arch.pkru), self.arch.msr.pkrs]
    }

    /// Puts the guest's translations in force on VM entry, the host's on VM exit; [`Self::non_root`] says already which. Without
    /// VPIDs both are VPID 0, and everything of it goes.
    pub(super) fn transition_flush(&mut self) {
        if self.engine.emulation.is_some() {
            return;
        }
        let under = self.translation_registers();
        let controls = &self.arch.vmx.controls;
        let mut renumbered = false;
        let tagged = if self.arch.vmx.active {
            let vpid = controls.tag();
            let eptp = controls.secondary(secondary::EPT).then_some(controls.eptp);
            self.arch.vmx.ept = eptp.is_some();
            renumbered = self.micro.tlb.enter(vpid, eptp);
            vpid != 0
        } else {
            let tagged = self.micro.tlb.context().vpid_tagged();
            if !tagged {
                self.micro.tlb.flush_all();
            }
            self.arch.vmx.ept = false;
            renumbered |= self.micro.tlb.enter(0, None);
            tagged
        };
        if !tagged {
            self.micro.tlb.flush_all();
        }
        // What the fast paths know of a VPID also depends on these registers, which the hypervisor may have changed.
        if tagged && !renumbered && (!self.arch.vmx.active || self.arch.vmx.left_under == under) {
            self.space_changed(None);
        } else {
            self.mapping_changed();
        }
        self.arch.vmx.left_under = under;
    }
}
