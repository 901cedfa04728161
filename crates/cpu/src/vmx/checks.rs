//! Checks of VM entry (SDM vol. 3, 26.2 and 26.3). Each failure is named.

use super::controls::Controls;
use super::controls::supported;
use super::ept::valid_pointer;
use crate::arch::Segment;
use crate::capability::Capability;
use crate::state::Cpu;
use x86::control::*;
use x86::vmx::{activity, entry, exit, interruptibility, interruption, pending_debug, pin, primary, secondary};
use x86::{descriptor, flags, rights, seg};

/// Result of a check; the error is its name.
type Check = Result<(), &'static str>;

fn require(good: bool, name: &'static str) -> Check {
    if good { Ok(()) } else { Err(name) }
}

/// Whether an injected event comes from an instruction.
fn software(kind: u32) -> bool {
    use interruption::*;
    matches!(kind, SOFTWARE_INTERRUPT | PRIVILEGED_SOFTWARE_EXCEPTION | SOFTWARE_EXCEPTION)
}

impl Cpu {
    /// Checks on the controls (26.2.1).
    pub(super) fn check_controls(&self, c: &Controls) -> Check {
        let second = if c.primary & primary::SECONDARY != 0 { c.secondary } else { 0 };
        require(c.pin & !supported::PIN == 0, "pin-based control that does not exist")?;
        require(c.primary & !supported::PRIMARY == 0, "primary processor-based control that does not exist")?;
        require(second & !supported::SECONDARY == 0, "secondary processor-based control that does not exist")?;
        require(c.exit & !supported::EXIT == 0, "VM-exit control that does not exist")?;
        require(c.entry & !supported::ENTRY == 0, "VM-entry control that does not exist")?;
        require(c.cr3_target_count <= 4, "CR3-target count above 4")?;
        require(c.pin & pin::NMI != 0 || c.pin & pin::VIRTUAL_NMIS == 0, "virtual NMIs without NMI exiting")?;
        let window = c.primary & primary::NMI_WINDOW != 0;
        require(c.pin & pin::VIRTUAL_NMIS != 0 || !window, "NMI-window exiting without virtual NMIs")?;
        require(second & secondary::VPID == 0 || c.vpid != 0, "VPID 0")?;
        let ept = second & secondary::EPT != 0;
        require(ept || second & secondary::UNRESTRICTED_GUEST == 0, "unrestricted guest without EPT")?;
        require(!ept || valid_pointer(c.eptp, self.wiring.model.physical_bits), "EPT pointer")?;
        let timer = c.pin & pin::PREEMPTION_TIMER != 0;
        require(timer || c.exit & exit::SAVE_PREEMPTION_TIMER == 0, "preemption timer saved but not activated")?;
        self.check_injection(c)
    }

    /// Checks on the event to inject (26.2.1.3).
    fn check_injection(&self, c: &Controls) -> Check {
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
            interruption::OTHER_EVENT => vector == 0,
            _ => false,
        };
        require(good, "interruption type and vector")?;
        require(info & 0x7fff_f000 == 0, "reserved bits of the interruption information")?;
        let real = c.secondary(secondary::UNRESTRICTED_GUEST) && !self.protected();
        let pushes = matches!(vector, 8 | 10..=14 | 17) && kind == interruption::HARDWARE_EXCEPTION && !real;
        require((info & interruption::ERROR_CODE != 0) == pushes, "error code of the event")?;
        require(!pushes || c.entry_error_code >> 16 == 0, "reserved bits of the error code")?;
        let length = c.entry_instruction_length;
        require(!software(kind) || (1..=15).contains(&length), "instruction length of a software event")
    }

    /// Checks on the guest's state (26.3.1), which the processor's fields hold: whether it can be entered with these controls.
    /// Without unrestricted guest there are states, on the way into and out of protected mode, that cannot.
    pub fn check_guest(&self, c: &Controls) -> Check {
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
        // AMD's SYSRET leaves in SS the RPL that STAR has, and VMRUN checks nothing of the kind (APM vol. 2, 15.5.1).
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
        // The bits above the linear address, not its highest one as well, must be alike: code may run over the edge.
        let bits = if self.wiring.capabilities.has(Capability::La57) { 57 } else { 48 };
        let good =
            if in_64_bit_mode { matches!(self.arch.rip as i64 >> bits, 0 | -1) } else { self.arch.rip >> 32 == 0 };
        // AMD's SYSRET goes to whatever is in RCX, and VMRUN to whatever RIP is; fetching from there faults.
        require(good || self.wiring.capabilities.amd, "RIP")?;
        require(!self.v8086() || (!long && self.protected()), "RFLAGS.VM")?;
        let info = c.entry_interruption;
        let external = info & (interruption::VALID | interruption::TYPE) == interruption::VALID;
        require(!external || self.arch.flags & flags::IF != 0, "external interrupt with RFLAGS.IF clear")
    }

    fn check_non_register_state(&self, c: &Controls) -> Check {
        let halted = c.activity == activity::HLT;
        require(matches!(c.activity, activity::ACTIVE | activity::HLT), "activity state")?;
        require(!halted || self.arch.seg[usize::from(seg::SS)].dpl() == 0, "HLT outside level 0")?;
        let blocking = c.interruptibility;
        let (sti, mov_ss) = (blocking & interruptibility::STI != 0, blocking & interruptibility::MOV_SS != 0);
        require(!halted || !(sti || mov_ss), "HLT with blocking by STI or MOV SS")?;
        let known = interruptibility::STI | interruptibility::MOV_SS | interruptibility::NMI;
        require(blocking & !known == 0, "reserved bits of the interruptibility state")?;
        require(!(sti && mov_ss), "blocking by STI and MOV SS")?;
        require(!sti || self.arch.flags & flags::IF != 0, "blocking by STI with RFLAGS.IF clear")?;
        self.check_event_against_state(c)?;
        let pending = c.pending_debug;
        let known = pending_debug::BREAKPOINTS | pending_debug::ENABLED_BREAKPOINT | pending_debug::BS;
        require(pending & !known == 0, "reserved bits of the pending debug exceptions")?;
        let held = sti || mov_ss || halted;
        let traced = self.arch.flags & flags::TF != 0;
        require(!held || (pending & pending_debug::BS != 0) == traced, "pending single step against RFLAGS.TF")?;
        self.check_guest_pdptes(c)
    }

    /// Whether blocking and activity admit the injected event.
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
        let wakes = match kind {
            interruption::EXTERNAL | interruption::NMI | interruption::OTHER_EVENT => true,
            interruption::HARDWARE_EXCEPTION => matches!(vector, 1 | 18),
            _ => false,
        };
        require(c.activity != activity::HLT || wakes, "event that does not end HLT")
    }

    /// Under EPT the PDPTEs are those that the processor's fields hold; without, they come from memory on entry.
    fn check_guest_pdptes(&self, c: &Controls) -> Check {
        if !self.pae_paging() || !c.secondary(secondary::EPT) {
            return Ok(());
        }
        require(self.arch.pdpte.iter().all(|entry| self.good_pdpte(*entry)), "reserved bits of a PDPTE")
    }

    /// Paging with PDPTEs.
    pub(super) fn pae_paging(&self) -> bool {
        self.arch.cr0 & CR0_PG != 0 && self.arch.cr4 & CR4_PAE != 0 && !self.long_mode()
    }
}

/// Whether granularity and limit agree.
fn limit_fits(s: &Segment) -> bool {
    let bytes = s.limit & 0xfff != 0xfff;
    let pages = s.limit >> 20 != 0;
    let granular = s.rights & rights::G != 0;
    if granular { !bytes } else { !pages }
}

/// What holds for every usable code or data segment.
fn well_formed(s: &Segment) -> bool {
    s.rights & (rights::S | rights::P) == rights::S | rights::P && s.rights & rights::RESERVED == 0 && limit_fits(s)
}
