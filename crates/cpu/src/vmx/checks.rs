//! Checks of VM entry (SDM vol. 3, 26.2 and 26.3). Each failure has a name.

use super::controls::{Controls, MsrList};
use crate::arch::Segment;
use crate::capability::Capability;
use crate::state::Cpu;
use x86::control::*;
use x86::page::OFFSET;
use x86::vmx::capability::misc;
use x86::vmx::{
    activity, entry, exit, function, interruptibility, interruption, pending_debug, pin, primary, secondary,
};
use x86::{descriptor, flags, rights, seg};

/// Result of a check; the error is the name of the failure.
pub(super) type Check = Result<(), &'static str>;

pub(super) fn require(good: bool, name: &'static str) -> Check {
    if good { Ok(()) } else { Err(name) }
}

/// Returns true if an injected event belongs to an instruction.
fn software(kind: u32) -> bool {
    use interruption::*;
    matches!(kind, SOFTWARE_INTERRUPT | PRIVILEGED_SOFTWARE_EXCEPTION | SOFTWARE_EXCEPTION)
}

impl Cpu {
    /// Checks the controls (26.2.1). `protected` is true if the guest has CR0.PE set.
    pub(super) fn check_controls(&self, c: &Controls, protected: bool) -> Check {
        self.check_execution_controls(c)?;
        self.check_apic_controls(c)?;
        self.check_paging_controls(c)?;
        let timer = c.pin & pin::PREEMPTION_TIMER != 0;
        require(timer || c.exit & exit::SAVE_PREEMPTION_TIMER == 0, "preemption timer saved but not activated")?;
        let lists = [&c.msr_lists.exit_store, &c.msr_lists.exit_load, &c.msr_lists.entry_load];
        require(lists.into_iter().all(|list| self.good_list(list)), "address of a list of MSRs")?;
        self.check_injection(c, protected)
    }

    fn check_execution_controls(&self, c: &Controls) -> Check {
        let offered = self.vmx_capabilities();
        require(offered.pin.admits(c.pin), "pin-based controls")?;
        require(offered.primary.admits(c.primary), "primary processor-based controls")?;
        require(offered.secondary.admits(c.second()), "secondary processor-based controls")?;
        require(offered.exit.admits(c.exit), "VM-exit controls")?;
        require(offered.entry.admits(c.entry), "VM-entry controls")?;
        require(c.cr3_target_count <= offered.cr3_targets(), "CR3-target count")?;
        let bitmaps = c.io_bitmap_addresses.into_iter().flatten().chain(c.msr_bitmap_address);
        require(bitmaps.into_iter().all(|page| self.page_aligned(page)), "address of an I/O or MSR bitmap")?;
        require(c.pin & pin::NMI != 0 || c.pin & pin::VIRTUAL_NMIS == 0, "virtual NMIs without NMI exiting")?;
        let window = c.primary & primary::NMI_WINDOW != 0;
        require(c.pin & pin::VIRTUAL_NMIS != 0 || !window, "NMI-window exiting without virtual NMIs")?;
        let scales = c.secondary(secondary::TSC_SCALING);
        require(!scales || c.tsc_multiplier != 0, "TSC multiplier 0")?;
        let shadows = c.secondary(secondary::VMCS_SHADOWING);
        let good = c.shadow_bitmaps.iter().all(|page| self.page_aligned(*page));
        require(!shadows || good, "address of a VMREAD or VMWRITE bitmap")
    }

    /// Checks the controls of APIC virtualization.
    fn check_apic_controls(&self, c: &Controls) -> Check {
        let accesses = c.secondary(secondary::APIC_ACCESSES);
        let virtual_interrupts = c.secondary(secondary::VIRTUAL_INTERRUPTS);
        if c.primary & primary::TPR_SHADOW != 0 {
            require(self.page_aligned(c.virtual_apic), "address of the virtual-APIC page")?;
            require(virtual_interrupts || c.tpr_threshold >> 4 == 0, "reserved bits of the TPR threshold")?;
            let checked = !virtual_interrupts && !accesses;
            require(
                !checked || c.tpr_threshold & 15 <= self.virtual_tpr(c) >> 4,
                "TPR threshold above the virtual TPR",
            )?;
        } else {
            let needs = secondary::X2APIC | secondary::APIC_REGISTERS | secondary::VIRTUAL_INTERRUPTS;
            require(c.second() & needs == 0, "virtual APIC without TPR shadow")?;
        }
        require(!accesses || self.page_aligned(c.apic_access), "address of the APIC-access page")?;
        require(!accesses || !c.secondary(secondary::X2APIC), "virtual APIC both in memory and in x2APIC mode")?;
        let external = c.pin & pin::EXTERNAL_INTERRUPT != 0;
        require(!virtual_interrupts || external, "virtual-interrupt delivery without external-interrupt exiting")?;
        if c.pin & pin::POSTED_INTERRUPTS != 0 {
            let acknowledged = c.exit & exit::ACKNOWLEDGE_INTERRUPT != 0;
            require(virtual_interrupts && acknowledged, "posted interrupts without what they need")?;
            require(c.posted_vector >> 8 == 0, "posted-interrupt vector")?;
            let descriptor = c.posted_descriptor;
            let good = descriptor & 63 == 0 && descriptor & self.beyond_physical() == 0;
            require(good, "address of the posted-interrupt descriptor")?;
        }
        Ok(())
    }

    /// Checks the controls of guest-physical addresses and translations.
    fn check_paging_controls(&self, c: &Controls) -> Check {
        require(!c.secondary(secondary::VPID) || c.vpid != 0, "VPID 0")?;
        let ept = c.secondary(secondary::EPT);
        let needs = secondary::UNRESTRICTED_GUEST | secondary::PML | secondary::MODE_BASED_EXECUTE;
        require(ept || c.second() & needs == 0, "control that needs EPT")?;
        require(!ept || self.valid_ept_pointer(c.eptp), "EPT pointer")?;
        require(
            !c.secondary(secondary::PML) || self.page_aligned(c.pml_address),
            "address of the page-modification log",
        )?;
        if c.secondary(secondary::VM_FUNCTIONS) {
            let switching = 1 << function::EPTP_SWITCHING;
            require(c.vm_functions & !switching == 0, "VM-function controls")?;
            let good = ept && self.page_aligned(c.eptp_list);
            require(c.vm_functions & switching == 0 || good, "EPTP switching")?;
        }
        let exceptions = c.secondary(secondary::EPT_VIOLATION_VE);
        require(!exceptions || self.page_aligned(c.ve_address), "virtualization-exception information address")
    }

    /// Returns true if a physical address is valid and page-aligned.
    pub(super) fn page_aligned(&self, address: u64) -> bool {
        address & (OFFSET | self.beyond_physical()) == 0
    }

    fn good_list(&self, list: &MsrList) -> bool {
        let last = list.address.wrapping_add(16 * u64::from(list.count)).wrapping_sub(1);
        let reaches = last < list.address || (list.address | last) & self.beyond_physical() != 0;
        list.count == 0 || list.address & 15 == 0 && !reaches
    }

    /// Checks the event to be injected (26.2.1.3).
    fn check_injection(&self, c: &Controls, protected: bool) -> Check {
        let info = c.entry_interruption;
        if info & interruption::VALID == 0 {
            return Ok(());
        }
        let (kind, vector) = (info & interruption::TYPE, info & interruption::VECTOR);
        let good = match kind {
            interruption::EXTERNAL | interruption::SOFTWARE_INTERRUPT => true,
            interruption::NMI => vector == 2,
            interruption::HARDWARE_EXCEPTION => vector < 32,
            interruption::PRIVILEGED_SOFTWARE_EXCEPTION | interruption::SOFTWARE_EXCEPTION => vector < 32,
            interruption::OTHER_EVENT => vector == 0 && self.vmx_capabilities().primary.offers(primary::MONITOR_TRAP),
            _ => false,
        };
        require(good, "interruption type and vector")?;
        require(info & 0x7fff_f000 == 0, "reserved bits of the interruption information")?;
        let real = c.secondary(secondary::UNRESTRICTED_GUEST) && !protected;
        let pushes = matches!(vector, 8 | 10..=14 | 17) && kind == interruption::HARDWARE_EXCEPTION && !real;
        require((info & interruption::ERROR_CODE != 0) == pushes, "error code of the event")?;
        require(!pushes || c.entry_error_code >> 16 == 0, "reserved bits of the error code")?;
        let length = c.entry_instruction_length;
        let least = u32::from(!self.vmx_capabilities().has_misc(misc::LENGTH_0));
        require(!software(kind) || (least..=15).contains(&length), "instruction length of a software event")
    }

    /// Checks that the guest's state (26.3.1), which is in the processor's fields, can be entered with these controls.
    /// Without unrestricted guest some states, on the way into and out of protected mode, cannot.
    pub(crate) fn check_guest(&self, c: &Controls) -> Check {
        self.check_registers(c)?;
        self.check_segments(c)?;
        self.check_tables(c)?;
        self.check_flags(c)?;
        self.check_non_register_state(c)
    }

    fn check_registers(&self, c: &Controls) -> Check {
        let long = c.entry & entry::IA32E_GUEST != 0;
        require(self.arch.cr0 & c.cr0_fixed() == c.cr0_fixed(), "fixed bits of CR0")?;
        require(self.arch.cr0 & (CR0_PE | CR0_PG) != CR0_PG, "CR0.PG without CR0.PE")?;
        require(self.arch.cr4 & CR4_VMXE != 0, "CR4.VMXE clear")?;
        require(self.arch.cr4 & !(self.cr4_bits() | CR4_VMXE) == 0, "reserved bits of CR4")?;
        require(!long || self.arch.cr4 & CR4_PAE != 0, "IA-32e mode guest without CR4.PAE")?;
        require(!long || self.arch.cr0 & CR0_PG != 0, "IA-32e mode guest without CR0.PG")?;
        require(long || self.arch.cr4 & CR4_PCIDE == 0, "CR4.PCIDE outside IA-32e mode")?;
        require(self.arch.cr4 & CR4_CET == 0 || self.arch.cr0 & CR0_WP != 0, "CR4.CET without CR0.WP")?;
        require(self.arch.cr3 & self.beyond_physical() == 0, "CR3 beyond physical addresses")?;
        require(self.arch.dr[7] >> 32 == 0, "upper half of DR7")?;
        require(self.canonical_base(self.arch.msr.sysenter_esp), "IA32_SYSENTER_ESP not canonical")?;
        require(self.canonical_base(self.arch.msr.sysenter_eip), "IA32_SYSENTER_EIP not canonical")?;
        require(long == self.long_mode(), "IA-32e mode guest against EFER.LMA")?;
        let enabled = self.arch.msr.efer & EFER_LME != 0;
        require(self.arch.cr0 & CR0_PG == 0 || long == enabled, "EFER.LMA against EFER.LME")
    }

    fn check_segments(&self, c: &Controls) -> Check {
        let part = |which: u8| &self.arch.seg[usize::from(which)];
        let (cs, ss) = (part(seg::CS), part(seg::SS));
        if self.v8086() {
            let good = (seg::ES..=seg::GS).map(part).all(|s| {
                let real = u64::from(s.selector) << 4;
                s.base == real && s.limit == 0xffff && s.rights == 0xf3
            });
            return require(good, "segment of virtual-8086 mode");
        }
        let unrestricted = c.secondary(secondary::UNRESTRICTED_GUEST);
        // AMD's SYSRET loads the RPL in STAR into SS, and VMRUN does not check it (APM vol. 2, 15.5.1).
        let any_level = unrestricted || self.wiring.capabilities.amd;
        require(any_level || cs.selector & 3 == ss.selector & 3, "RPL of SS against that of CS")?;
        require(cs.base >> 32 == 0, "base of CS")?;
        let flat = [seg::SS, seg::DS, seg::ES].map(part);
        require(flat.iter().all(|s| !s.usable() || s.base >> 32 == 0), "base of SS, DS or ES")?;
        require([seg::FS, seg::GS].map(part).iter().all(|s| self.canonical_base(s.base)), "base of FS or GS")?;
        self.check_code_segment(cs, ss, unrestricted)?;
        let stack = matches!(ss.rights & 15, 3 | 7);
        require(!ss.usable() || stack, "type of SS")?;
        require(any_level || ss.dpl() == ss.selector as u8 & 3, "DPL of SS against its RPL")?;
        let level0 = cs.rights & 15 == 3 || !self.protected();
        require(!level0 || ss.dpl() == 0, "DPL of SS")?;
        require(!ss.usable() || well_formed(ss), "access rights of SS")?;
        for which in [seg::DS, seg::ES, seg::FS, seg::GS] {
            let s = part(which);
            if !s.usable() {
                continue;
            }
            let kind = s.rights & 15;
            let readable = kind & 1 != 0 && (kind & rights::CODE == 0 || kind & rights::RW != 0);
            require(readable, "type of a data segment")?;
            require(unrestricted || kind > 11 || s.dpl() >= s.selector as u8 & 3, "DPL of a data segment")?;
            require(well_formed(s), "access rights of a data segment")?;
        }
        Ok(())
    }

    fn check_code_segment(&self, cs: &Segment, ss: &Segment, unrestricted: bool) -> Check {
        let level = match cs.rights & 15 {
            3 => unrestricted && cs.dpl() == 0,
            9 | 11 => cs.dpl() == ss.dpl(),
            13 | 15 => cs.dpl() <= ss.dpl(),
            _ => return Err("type of CS"),
        };
        require(level, "DPL of CS")?;
        let long = self.long_mode() && cs.rights & rights::L != 0;
        require(!long || cs.rights & rights::DB == 0, "CS.L with CS.D")?;
        require(cs.usable() && well_formed(cs), "access rights of CS")
    }

    fn check_tables(&self, c: &Controls) -> Check {
        let long = c.entry & entry::IA32E_GUEST != 0;
        let (tr, ldtr) = (&self.arch.tr, &self.arch.ldtr);
        let kind = tr.rights as u8 & 15;
        let busy = descriptor::TSS32 | descriptor::BUSY;
        let good = kind == busy || (!long && kind == descriptor::TSS16 | descriptor::BUSY);
        require(good, "type of TR")?;
        let system = tr.rights & (rights::S | rights::P | rights::UNUSABLE) == rights::P;
        require(system && limit_fits(tr), "access rights of TR")?;
        require(tr.selector & 4 == 0, "TI of TR")?;
        require(self.canonical_base(tr.base), "base of TR")?;
        if ldtr.usable() {
            require(ldtr.rights as u8 & 15 == descriptor::LDT, "type of LDTR")?;
            let system = ldtr.rights & (rights::S | rights::P) == rights::P;
            require(system && limit_fits(ldtr), "access rights of LDTR")?;
            require(ldtr.selector & 4 == 0, "TI of LDTR")?;
            require(self.canonical_base(ldtr.base), "base of LDTR")?;
        }
        require(
            self.canonical_base(self.arch.gdtr.base) && self.canonical_base(self.arch.idtr.base),
            "base of GDTR or IDTR",
        )
    }

    fn check_flags(&self, c: &Controls) -> Check {
        let long = c.entry & entry::IA32E_GUEST != 0;
        let in_64_bit_mode = long && self.arch.seg[usize::from(seg::CS)].rights & rights::L != 0;
        // The bits above the linear address, without its highest bit, must be equal: code may continue past the end of
        // the canonical range.
        let bits = if self.wiring.capabilities.has(Capability::La57) { 57 } else { 48 };
        let good =
            if in_64_bit_mode { matches!(self.arch.rip as i64 >> bits, 0 | -1) } else { self.arch.rip >> 32 == 0 };
        // AMD's SYSRET jumps to any RCX, and VMRUN to any RIP; the fetch then faults.
        require(good || self.wiring.capabilities.amd, "RIP")?;
        require(!self.v8086() || (!long && self.protected()), "RFLAGS.VM")?;
        let info = c.entry_interruption;
        let external = info & (interruption::VALID | interruption::TYPE) == interruption::VALID;
        require(!external || self.arch.flags & flags::IF != 0, "external interrupt with RFLAGS.IF clear")
    }

    fn check_non_register_state(&self, c: &Controls) -> Check {
        let halted = c.activity == activity::HLT;
        let offered = self.vmx_capabilities();
        let known = match c.activity {
            activity::ACTIVE => true,
            activity::HLT => offered.has_misc(misc::HLT),
            activity::SHUTDOWN => offered.has_misc(misc::SHUTDOWN),
            activity::WAIT_FOR_SIPI => offered.has_misc(misc::WAIT_FOR_SIPI),
            _ => false,
        };
        require(known, "activity state")?;
        require(!halted || self.arch.seg[usize::from(seg::SS)].dpl() == 0, "HLT outside level 0")?;
        let blocking = c.interruptibility;
        let (sti, mov_ss) = (blocking & interruptibility::STI != 0, blocking & interruptibility::MOV_SS != 0);
        require(
            c.activity == activity::ACTIVE || !(sti || mov_ss),
            "blocking by STI or MOV SS of a processor that is not active",
        )?;
        let known = interruptibility::STI | interruptibility::MOV_SS | interruptibility::NMI;
        require(blocking & !known == 0, "reserved bits of the interruptibility state")?;
        require(!(sti && mov_ss), "blocking by STI and MOV SS")?;
        require(!sti || self.arch.flags & flags::IF != 0, "blocking by STI with RFLAGS.IF clear")?;
        self.check_event_against_state(c)?;
        let pending = c.pending_debug;
        let known = pending_debug::BREAKPOINTS | pending_debug::ENABLED_BREAKPOINT | pending_debug::BS;
        require(pending & !known == 0, "reserved bits of the pending debug exceptions")?;
        let held = sti || mov_ss || halted;
        let traced = self.steps_instructions();
        require(!held || (pending & pending_debug::BS != 0) == traced, "pending single step against RFLAGS.TF")
    }

    /// Checks that blocking and activity state permit the injected event.
    fn check_event_against_state(&self, c: &Controls) -> Check {
        let info = c.entry_interruption;
        if info & interruption::VALID == 0 {
            return Ok(());
        }
        let (kind, vector) = (info & interruption::TYPE, info & interruption::VECTOR);
        let blocking = c.interruptibility;
        let shadow = blocking & (interruptibility::STI | interruptibility::MOV_SS) != 0;
        match kind {
            interruption::EXTERNAL => require(!shadow, "external interrupt with blocking by STI or MOV SS")?,
            interruption::NMI => {
                require(blocking & interruptibility::MOV_SS == 0, "NMI with blocking by MOV SS")?;
                let blocked = c.pin & pin::VIRTUAL_NMIS != 0 && blocking & interruptibility::NMI != 0;
                require(!blocked, "NMI with virtual-NMI blocking")?;
            }
            _ => {}
        }
        let heeded = match (c.activity, kind) {
            (activity::ACTIVE, _) => true,
            (activity::HLT, interruption::EXTERNAL | interruption::NMI | interruption::OTHER_EVENT) => true,
            (activity::HLT, interruption::HARDWARE_EXCEPTION) => matches!(vector, 1 | 18),
            (activity::SHUTDOWN, interruption::NMI) => true,
            (activity::SHUTDOWN, interruption::HARDWARE_EXCEPTION) => vector == 18,
            _ => false,
        };
        require(heeded, "event that does not end the activity state")
    }

    /// Returns true if paging uses PDPTEs.
    pub(super) fn pae_paging(&self) -> bool {
        self.arch.cr0 & CR0_PG != 0 && self.arch.cr4 & CR4_PAE != 0 && !self.long_mode()
    }
}

/// Returns true if granularity and limit are consistent.
fn limit_fits(s: &Segment) -> bool {
    let bytes = s.limit & 0xfff != 0xfff;
    let pages = s.limit >> 20 != 0;
    let granular = s.rights & rights::G != 0;
    if granular { !bytes } else { !pages }
}

/// Returns true if a usable code or data segment satisfies the common checks.
fn well_formed(s: &Segment) -> bool {
    s.rights & (rights::S | rights::P) == rights::S | rights::P && s.rights & rights::RESERVED == 0 && limit_fits(s)
}
