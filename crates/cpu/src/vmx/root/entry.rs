//! VMLAUNCH and VMRESUME: entry into the guest of the current VMCS (SDM vol. 3, chapter 26).

use super::super::checks::{Check, require};
use super::super::controls::{Controls, MsrList, MsrLists};
use super::super::information::VmExit;
use super::super::vmcs::Vmcs;
use super::host::CR0_KEPT;
use super::{NO_VMCS, cet};
use crate::arch::{Segment, TableRegister, attention};
use crate::charged::Nesting;
use crate::exec::msr::good_pat;
use crate::state::Cpu;
use ledger::{Family, Kind};
use x86::control::*;
use x86::vmx::qualification::entry_failure;
use x86::vmx::{entry, error, primary, reason, region, secondary, vmcs};
use x86::{debug, flags, reg, rights, seg};

/// VMCS fields of a segment register: the first of each kind.
struct Fields {
    selector: u32,
    base: u32,
    limit: u32,
    rights: u32,
}

/// Returns the fields of a segment register by its number in the order of the VMCS: ES to GS, LDTR, TR.
const fn fields(number: u32) -> Fields {
    Fields {
        selector: vmcs::GUEST_ES_SELECTOR + 2 * number,
        base: vmcs::GUEST_ES_BASE + 2 * number,
        limit: vmcs::GUEST_ES_LIMIT + 2 * number,
        rights: vmcs::GUEST_ES_RIGHTS + 2 * number,
    }
}

/// Numbers of LDTR and TR in the order of the VMCS.
pub(super) const LDTR: u32 = 6;
pub(super) const TR: u32 = 7;
const _: () = assert!(fields(TR).rights == vmcs::GUEST_TR_RIGHTS && fields(LDTR).base == vmcs::GUEST_LDTR_BASE);
const _: () = assert!(seg::ES == 0 && seg::GS == 5);

/// Defined bits of RFLAGS; bit 1 is always set.
const RFLAGS: u64 = flags::ALL | 2;

impl Vmcs {
    pub(super) fn segment(&self, number: u32) -> Segment {
        let of = fields(number);
        Segment {
            base: self.get(of.base),
            limit: self.get32(of.limit),
            rights: self.get32(of.rights),
            selector: self.get(of.selector) as u16,
        }
    }

    pub(super) fn set_segment(&mut self, number: u32, segment: &Segment) {
        let of = fields(number);
        self.set(of.base, segment.base);
        self.set(of.limit, segment.limit.into());
        self.set(of.rights, segment.rights.into());
        self.set(of.selector, segment.selector.into());
    }

    fn list(&self, address: u32, count: u32) -> MsrList {
        MsrList { address: self.get(address), count: self.get32(count) }
    }

    /// Returns the controls and the guest state that is not in registers, from the current VMCS.
    fn controls(&self) -> Controls {
        let primary = self.get32(vmcs::PRIMARY_CONTROLS);
        let has = |control: u32| primary & control != 0;
        Controls {
            pin: self.get32(vmcs::PIN_BASED_CONTROLS),
            primary,
            secondary: if has(primary::SECONDARY) { self.get32(vmcs::SECONDARY_CONTROLS) } else { 0 },
            exit: self.get32(vmcs::EXIT_CONTROLS),
            entry: self.get32(vmcs::ENTRY_CONTROLS),
            exception_bitmap: self.get32(vmcs::EXCEPTION_BITMAP),
            pf_error_mask: self.get32(vmcs::PAGE_FAULT_ERROR_CODE_MASK),
            pf_error_match: self.get32(vmcs::PAGE_FAULT_ERROR_CODE_MATCH),
            cr0_mask: self.get(vmcs::CR0_GUEST_HOST_MASK),
            cr0_shadow: self.get(vmcs::CR0_READ_SHADOW),
            cr4_mask: self.get(vmcs::CR4_GUEST_HOST_MASK),
            cr4_shadow: self.get(vmcs::CR4_READ_SHADOW),
            cr3_targets: [
                vmcs::CR3_TARGET_VALUE_0,
                vmcs::CR3_TARGET_VALUE_1,
                vmcs::CR3_TARGET_VALUE_2,
                vmcs::CR3_TARGET_VALUE_3,
            ]
            .map(|field| self.get(field)),
            cr3_target_count: self.get32(vmcs::CR3_TARGET_COUNT),
            io_bitmap: None,
            io_bitmap_addresses: has(primary::IO_BITMAPS)
                .then(|| [vmcs::IO_BITMAP_A, vmcs::IO_BITMAP_B].map(|field| self.get(field))),
            msr_bitmap: None,
            msr_bitmap_address: has(primary::MSR_BITMAPS).then(|| self.get(vmcs::MSR_BITMAP)),
            xss_bitmap: self.get(vmcs::XSS_EXIT_BITMAP),
            tsc_offset: self.get(vmcs::TSC_OFFSET),
            eptp: self.get(vmcs::EPT_POINTER),
            vpid: self.get(vmcs::VPID) as u16,
            ple_gap: self.get32(vmcs::PLE_GAP),
            ple_window: self.get32(vmcs::PLE_WINDOW),
            preemption_timer: self.get32(vmcs::PREEMPTION_TIMER_VALUE),
            tsc_multiplier: self.get(vmcs::TSC_MULTIPLIER),
            virtual_apic: self.get(vmcs::VIRTUAL_APIC_ADDRESS),
            apic_access: self.get(vmcs::APIC_ACCESS_ADDRESS),
            tpr_threshold: self.get32(vmcs::TPR_THRESHOLD),
            interrupt_status: self.get(vmcs::GUEST_INTERRUPT_STATUS) as u16,
            eoi_exits: [
                vmcs::EOI_EXIT_BITMAP_0,
                vmcs::EOI_EXIT_BITMAP_1,
                vmcs::EOI_EXIT_BITMAP_2,
                vmcs::EOI_EXIT_BITMAP_3,
            ]
            .map(|field| self.get(field)),
            posted_vector: self.get(vmcs::POSTED_INTERRUPT_VECTOR) as u16,
            posted_descriptor: self.get(vmcs::POSTED_INTERRUPT_DESCRIPTOR),
            vm_functions: self.get(vmcs::VM_FUNCTION_CONTROLS),
            eptp_list: self.get(vmcs::EPTP_LIST_ADDRESS),
            eptp_index: self.get(vmcs::EPTP_INDEX) as u16,
            pml_address: self.get(vmcs::PML_ADDRESS),
            pml_index: self.get(vmcs::PML_INDEX) as u16,
            ve_address: self.get(vmcs::VIRTUALIZATION_EXCEPTION_ADDRESS),
            shadow_bitmaps: [vmcs::VMREAD_BITMAP, vmcs::VMWRITE_BITMAP].map(|field| self.get(field)),
            link_pointer: self.get(vmcs::VMCS_LINK_POINTER),
            shadow_vmcs: None,
            msr_lists: MsrLists {
                exit_store: self.list(vmcs::EXIT_MSR_STORE_ADDRESS, vmcs::EXIT_MSR_STORE_COUNT),
                exit_load: self.list(vmcs::EXIT_MSR_LOAD_ADDRESS, vmcs::EXIT_MSR_LOAD_COUNT),
                entry_load: self.list(vmcs::ENTRY_MSR_LOAD_ADDRESS, vmcs::ENTRY_MSR_LOAD_COUNT),
            },
            entry_interruption: self.get32(vmcs::ENTRY_INTERRUPTION_INFORMATION),
            entry_error_code: self.get32(vmcs::ENTRY_EXCEPTION_ERROR_CODE),
            entry_instruction_length: self.get32(vmcs::ENTRY_INSTRUCTION_LENGTH),
            interruptibility: self.get32(vmcs::GUEST_INTERRUPTIBILITY_STATE),
            activity: self.get32(vmcs::GUEST_ACTIVITY_STATE),
            pending_debug: self.get(vmcs::GUEST_PENDING_DEBUG_EXCEPTIONS),
            target_spaces: [None; 4],
        }
    }
}

impl Cpu {
    /// Performs a VM entry with the current VMCS. On an early failure, returns its number in [`error`], and nothing has
    /// changed. An entry that fails later, because of the guest's state, continues in the host as an exit does.
    pub(super) fn enter_by_vmcs(&mut self) -> Result<(), u32> {
        let v = &self.arch.vmx.operation.vmcs;
        let controls = v.controls();
        self.check_controls(&controls, v.get(vmcs::GUEST_CR0) & CR0_PE != 0).map_err(|_| error::ENTRY_CONTROLS)?;
        self.check_host(v).map_err(|_| error::ENTRY_HOST_STATE)?;
        let guest_nesting = Nesting::from_bits(v.nesting);
        self.charge_transition(Kind::new(Family::VmEntry, 0));
        self.engine.ilen = 0;
        self.arch.attention &= !attention::VM_EXIT;
        self.wiring.ram.disarm_monitor(self.wiring.index);
        self.micro.charged.enter_guest(guest_nesting);
        self.arch.vmx.operation.host_under = self.translation_registers();
        let raw = self.check_fields();
        self.take_entry_controls(controls);
        self.load_guest();
        let checked = raw
            .and_then(|()| self.check_guest(&self.arch.vmx.controls).map_err(|_| 0))
            .and_then(|()| self.check_link_pointer())
            .and_then(|()| self.load_guest_pdptes().map_err(|_| entry_failure::PDPTE));
        if let Err(qualification) = checked {
            self.fail_entry(reason::INVALID_GUEST_STATE, qualification);
            return Ok(());
        }
        if let Err(number) = self.load_msrs(self.arch.vmx.controls.msr_lists.entry_load) {
            self.fail_entry(reason::MSR_LOADING, number);
            return Ok(());
        }
        self.arch.vmx.operation.vmcs.launched = true;
        self.enter_non_root();
        Ok(())
    }

    /// Returns to the host after a failed entry, as an exit does, with the rest of the VMCS unchanged.
    fn fail_entry(&mut self, reason: u32, qualification: u64) {
        self.charge_transition(Kind::new(Family::VmExit, reason));
        self.arch.vm_exit = VmExit { reason: reason | reason::ENTRY_FAILURE, qualification, ..VmExit::default() };
        let vmcs = &mut self.arch.vmx.operation.vmcs;
        vmcs.set(vmcs::EXIT_REASON, u64::from(reason | reason::ENTRY_FAILURE));
        vmcs.set(vmcs::EXIT_QUALIFICATION, qualification);
        self.transition_flush();
        self.return_to_host();
    }

    /// Checks fields of the guest's state with values that registers cannot hold. The error is the exit qualification.
    fn check_fields(&self) -> Result<(), u64> {
        let v = &self.arch.vmx.operation.vmcs;
        let controls = v.get32(vmcs::ENTRY_CONTROLS);
        let check = || -> Check {
            let rflags = v.get(vmcs::GUEST_RFLAGS);
            require(rflags & 2 != 0 && rflags & !RFLAGS == 0, "reserved bits of RFLAGS")?;
            require(v.get(vmcs::GUEST_CR0) >> 32 == 0, "upper half of CR0")?;
            let limits = [vmcs::GUEST_GDTR_LIMIT, vmcs::GUEST_IDTR_LIMIT];
            require(limits.iter().all(|limit| v.get(*limit) >> 16 == 0), "limit of GDTR or IDTR")?;
            if controls & entry::LOAD_DEBUG != 0 {
                require(v.get(vmcs::GUEST_DR7) >> 32 == 0, "upper half of DR7")?;
                require(v.get(vmcs::GUEST_DEBUGCTL) & !self.debugctl_bits() == 0, "reserved bits of DEBUGCTL")?;
            }
            require(controls & entry::LOAD_PAT == 0 || good_pat(v.get(vmcs::GUEST_PAT)), "PAT")?;
            if controls & entry::LOAD_EFER != 0 {
                let efer = v.get(vmcs::GUEST_EFER);
                require(efer & !self.efer_bits() == 0, "reserved bits of EFER")?;
                let active = efer & EFER_LMA != 0;
                require(active == (controls & entry::IA32E_GUEST != 0), "IA-32e mode guest against EFER.LMA")?;
                let paging = v.get(vmcs::GUEST_CR0) & CR0_PG != 0;
                require(!paging || active == (efer & EFER_LME != 0), "EFER.LMA against EFER.LME")?;
            }
            if controls & entry::LOAD_CET != 0 {
                let code = v.segment(u32::from(seg::CS)).rights;
                let long = controls & entry::IA32E_GUEST != 0 && code & rights::L != 0;
                self.check_cet(v, cet::GUEST, long)?;
            }
            Ok(())
        };
        check().map_err(|_| 0)
    }

    fn check_link_pointer(&self) -> Result<(), u64> {
        let link = self.arch.vmx.controls.link_pointer;
        if link == NO_VMCS {
            return Ok(());
        }
        let shadows = self.arch.vmx.controls.secondary(secondary::VMCS_SHADOWING);
        let is_region = || {
            let revision = self.region_revision(link);
            revision & !region::SHADOW == self.vmx_capabilities().revision
                && (revision & region::SHADOW != 0) == shadows
        };
        let good = self.page_aligned(link) && self.arch.vmx.operation.current != link && is_region();
        if good { Ok(()) } else { Err(entry_failure::LINK_POINTER) }
    }

    /// Loads the guest's registers (26.3.2).
    fn load_guest(&mut self) {
        let v = &self.arch.vmx.operation.vmcs;
        let field = |encoding: u32| v.get(encoding);
        let controls = v.get32(vmcs::ENTRY_CONTROLS);
        let loads = |control: u32| controls & control != 0;
        self.arch.cr0 = field(vmcs::GUEST_CR0) & !CR0_KEPT | self.arch.cr0 & CR0_KEPT;
        self.arch.cr3 = field(vmcs::GUEST_CR3);
        self.arch.cr4 = field(vmcs::GUEST_CR4);
        let long = if loads(entry::IA32E_GUEST) { EFER_LMA | EFER_LME } else { 0 };
        if loads(entry::LOAD_EFER) {
            self.arch.msr.efer = field(vmcs::GUEST_EFER);
        } else if self.arch.cr0 & CR0_PG != 0 {
            self.arch.msr.efer = self.arch.msr.efer & !(EFER_LMA | EFER_LME) | long;
        } else {
            self.arch.msr.efer = self.arch.msr.efer & !EFER_LMA | long & EFER_LMA;
        }
        if loads(entry::LOAD_DEBUG) {
            self.arch.dr[7] = field(vmcs::GUEST_DR7) & debug::DR7_WRITABLE | debug::DR7_FIXED;
            self.arch.msr.debugctl = field(vmcs::GUEST_DEBUGCTL);
        }
        if loads(entry::LOAD_PAT) {
            self.arch.msr.pat = field(vmcs::GUEST_PAT);
        }
        self.arch.msr.sysenter_cs = field(vmcs::GUEST_SYSENTER_CS);
        self.arch.msr.sysenter_esp = field(vmcs::GUEST_SYSENTER_ESP);
        self.arch.msr.sysenter_eip = field(vmcs::GUEST_SYSENTER_EIP);
        for number in 0..=u32::from(seg::GS) {
            self.arch.seg[number as usize] = v.segment(number);
        }
        self.arch.ldtr = v.segment(LDTR);
        self.arch.tr = v.segment(TR);
        let table = |base: u32, limit: u32| TableRegister { base: v.get(base), limit: v.get(limit) as u16 };
        self.arch.gdtr = table(vmcs::GUEST_GDTR_BASE, vmcs::GUEST_GDTR_LIMIT);
        self.arch.idtr = table(vmcs::GUEST_IDTR_BASE, vmcs::GUEST_IDTR_LIMIT);
        self.arch.gpr[usize::from(reg::RSP)] = field(vmcs::GUEST_RSP);
        self.arch.rip = field(vmcs::GUEST_RIP);
        self.arch.pdpte = [vmcs::GUEST_PDPTE0, vmcs::GUEST_PDPTE1, vmcs::GUEST_PDPTE2, vmcs::GUEST_PDPTE3].map(field);
        self.arch.cpl = self.arch.seg[usize::from(seg::SS)].dpl();
        if loads(entry::LOAD_CET) {
            self.load_cet(cet::GUEST.map(field));
        }
        self.set_rflags(self.arch.vmx.operation.vmcs.get(vmcs::GUEST_RFLAGS));
    }
}
