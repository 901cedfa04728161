//! VM exits to guest software: the guest's state is stored in the current VMCS, the host's is loaded from it (SDM vol.
//! 3, chapter 27).

use crate::arch::attention;
use crate::state::Cpu;
use x86::control::EFER_LMA;
use x86::vmx::{abort, entry, exit, interruption, reason, region, secondary, vmcs};
use x86::{reg, seg};

impl Cpu {
    /// Completes a VM exit: [`vm_exit`](crate::arch::Arch::vm_exit) has the reason, the guest's registers are still the
    /// processor's.
    #[cold]
    pub(crate) fn exit_to_software(&mut self) {
        self.store_information();
        self.store_guest();
        let stored = self.store_msrs(self.arch.vmx.controls.msr_lists.exit_store);
        if stored.is_err() {
            return self.abort_vmx(abort::SAVING_MSRS);
        }
        self.return_to_host();
    }

    /// Stores the exit-information fields (27.2).
    fn store_information(&mut self) {
        let exit = self.arch.vm_exit;
        let v = &mut self.arch.vmx.operation.vmcs;
        v.set(vmcs::EXIT_REASON, u64::from(exit.reason));
        v.set(vmcs::EXIT_QUALIFICATION, exit.qualification);
        v.set(vmcs::GUEST_LINEAR_ADDRESS, exit.guest_linear);
        v.set(vmcs::GUEST_PHYSICAL_ADDRESS, exit.guest_physical);
        v.set(vmcs::EXIT_INTERRUPTION_INFORMATION, u64::from(exit.interruption));
        v.set(vmcs::EXIT_INTERRUPTION_ERROR_CODE, u64::from(exit.interruption_error));
        v.set(vmcs::IDT_VECTORING_INFORMATION, u64::from(exit.vectoring));
        v.set(vmcs::IDT_VECTORING_ERROR_CODE, u64::from(exit.vectoring_error));
        v.set(vmcs::EXIT_INSTRUCTION_LENGTH, u64::from(exit.instruction_length));
        v.set(vmcs::EXIT_INSTRUCTION_INFORMATION, u64::from(exit.instruction_information));
        let event = v.get32(vmcs::ENTRY_INTERRUPTION_INFORMATION) & !interruption::VALID;
        v.set(vmcs::ENTRY_INTERRUPTION_INFORMATION, u64::from(event));
    }

    /// Stores the guest-state area (27.3).
    fn store_guest(&mut self) {
        self.store_cet();
        let rflags = self.rflags();
        let pae = self.pae_paging();
        let nesting = self.micro.charged.nesting.bits();
        let arch = &mut self.arch;
        let controls = &arch.vmx.controls;
        let v = &mut arch.vmx.operation.vmcs;
        v.nesting = nesting;
        v.set(vmcs::GUEST_CR0, arch.cr0);
        v.set(vmcs::GUEST_CR3, arch.cr3);
        v.set(vmcs::GUEST_CR4, arch.cr4);
        if controls.exit & exit::SAVE_DEBUG != 0 {
            v.set(vmcs::GUEST_DR7, arch.dr[7]);
            v.set(vmcs::GUEST_DEBUGCTL, arch.msr.debugctl);
        }
        if controls.exit & exit::SAVE_PAT != 0 {
            v.set(vmcs::GUEST_PAT, arch.msr.pat);
        }
        if controls.exit & exit::SAVE_EFER != 0 {
            v.set(vmcs::GUEST_EFER, arch.msr.efer);
        }
        if controls.secondary(secondary::UNRESTRICTED_GUEST) {
            let long = if arch.msr.efer & EFER_LMA != 0 { entry::IA32E_GUEST } else { 0 };
            let word = v.get32(vmcs::ENTRY_CONTROLS) & !entry::IA32E_GUEST | long;
            v.set(vmcs::ENTRY_CONTROLS, u64::from(word));
        }
        v.set(vmcs::GUEST_SYSENTER_CS, arch.msr.sysenter_cs);
        v.set(vmcs::GUEST_SYSENTER_ESP, arch.msr.sysenter_esp);
        v.set(vmcs::GUEST_SYSENTER_EIP, arch.msr.sysenter_eip);
        for number in seg::ES..=seg::GS {
            v.set_segment(u32::from(number), &arch.seg[usize::from(number)]);
        }
        v.set_segment(super::entry::LDTR, &arch.ldtr);
        v.set_segment(super::entry::TR, &arch.tr);
        v.set(vmcs::GUEST_GDTR_BASE, arch.gdtr.base);
        v.set(vmcs::GUEST_GDTR_LIMIT, arch.gdtr.limit.into());
        v.set(vmcs::GUEST_IDTR_BASE, arch.idtr.base);
        v.set(vmcs::GUEST_IDTR_LIMIT, arch.idtr.limit.into());
        v.set(vmcs::GUEST_RSP, arch.gpr[usize::from(reg::RSP)]);
        v.set(vmcs::GUEST_RIP, arch.rip);
        v.set(vmcs::GUEST_RFLAGS, rflags);
        v.set(vmcs::GUEST_INTERRUPTIBILITY_STATE, controls.interruptibility.into());
        v.set(vmcs::GUEST_ACTIVITY_STATE, controls.activity.into());
        v.set(vmcs::GUEST_PENDING_DEBUG_EXCEPTIONS, controls.pending_debug);
        v.set(vmcs::PREEMPTION_TIMER_VALUE, controls.preemption_timer.into());
        v.set(vmcs::GUEST_INTERRUPT_STATUS, controls.interrupt_status.into());
        v.set(vmcs::EPT_POINTER, controls.eptp);
        v.set(vmcs::EPTP_INDEX, controls.eptp_index.into());
        v.set(vmcs::PML_INDEX, controls.pml_index.into());
        if pae && controls.secondary(secondary::EPT) {
            let fields = [vmcs::GUEST_PDPTE0, vmcs::GUEST_PDPTE1, vmcs::GUEST_PDPTE2, vmcs::GUEST_PDPTE3];
            for (field, entry) in fields.into_iter().zip(arch.pdpte) {
                v.set(field, entry);
            }
        }
    }

    /// Loads the host's state and continues there.
    pub(super) fn return_to_host(&mut self) {
        // The NMI that exited blocks others; blocking of virtual NMIs belonged to the guest.
        let nmi = self.arch.vm_exit.reason == reason::EXCEPTION_NMI
            && self.arch.vm_exit.interruption & interruption::TYPE == interruption::NMI;
        let failed = self.arch.vm_exit.reason & reason::ENTRY_FAILURE != 0;
        if nmi {
            self.arch.nmi_blocked = true;
        } else if !failed && self.has_virtual_nmis() {
            self.arch.nmi_blocked = false;
        }
        self.load_host();
        self.micro.charged.leave_guest();
        self.wiring.ram.disarm_monitor(self.wiring.index);
        if self.pae_paging() && self.load_pdptes(self.arch.cr3).is_err() {
            self.engine.fault = crate::fault::Cause::None;
            return self.abort_vmx(abort::HOST_PDPTE);
        }
        let loaded = self.load_msrs(self.arch.vmx.controls.msr_lists.exit_load);
        // The fast path's entries for the host's address spaces also depend on these registers.
        match self.arch.vmx.operation.host_under == self.translation_registers() {
            true => self.space_changed(None),
            false => self.mapping_changed(),
        }
        self.mode_changed();
        if loaded.is_err() {
            self.abort_vmx(abort::LOADING_MSRS);
        }
    }

    /// Performs a VMX abort (27.7): the processor shuts down.
    fn abort_vmx(&mut self, indicator: u32) {
        if let Some((region, _)) = self.arch.vmx.operation.current() {
            self.set_structure(region + region::ABORT, indicator);
        }
        self.attend(attention::SHUTDOWN);
    }
}
