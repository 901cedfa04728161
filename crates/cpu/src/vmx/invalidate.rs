//! TLB invalidation by instructions, and by VMX transitions.

use super::NonRoot;
use super::flush::{Flush, Invalidation, Invept, Invvpid};
use crate::state::Cpu;
use x86::vmx::secondary;

impl Cpu {
    /// Performs the TLB invalidation of an instruction. In an emulation it is only recorded, because the TLB is not the
    /// one seen by the guest.
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

    /// Invalidates translations through EPT. Nothing is charged here; the hypervisor charges for it.
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

    /// Invalidates translations by VPID. Nothing is charged here; the hypervisor charges for it.
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

    /// Ends non-root mode without an exit, as RESET and INIT do here: they reset the guest's processor. Other callers
    /// must call [`Cpu::mode_changed`] afterwards.
    pub fn abandon_guest(&mut self) {
        *self.arch.vmx = NonRoot::default();
        self.micro.level = 0;
        self.micro.charged_space = None;
        // No index is reassigned: VPID 0 without EPT is always known.
        let _ = self.micro.tlb.enter(0, None);
        self.mapping_changed();
    }

    /// Returns the registers that affect translation, in addition to CR3 and PDPTEs.
    pub(super) fn translation_registers(&self) -> [u64; 5] {
        [self.arch.cr0, self.arch.cr4, self.arch.msr.efer, u64::from(self.arch.pkru), self.arch.msr.pkrs]
    }

    /// Activates the guest's translations on VM entry and the host's on VM exit; [`Self::non_root`] is already updated.
    /// Without VPIDs both use VPID 0, which is flushed completely.
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
        // The fast path's entries for a VPID also depend on these registers, which the hypervisor may have changed.
        if tagged && !renumbered && (!self.arch.vmx.active || self.arch.vmx.left_under == under) {
            self.space_changed(None);
        } else {
            self.mapping_changed();
        }
        self.arch.vmx.left_under = under;
    }
}
