//! Transition from L1 to L2.

use super::merge::{Pages, merged};
use crate::events::GuestEvent;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::mmu::{EptFormat, Nested, Pml, TransitionTags};
use crate::registers::{Ownership, Visible};
use cpu::vmx::{Controls, GuestView, MsrBitmap, NestedGuest};
use ledger::{Family, Kind, Operation, TICKS_PER_CYCLE, Ticks};
use x86::page::{ADDRESS, PAGE};
use x86::vmx::capability::ept_vpid;
use x86::vmx::{interruption, pin, primary, reason, secondary, vmcs};

/// Number of fields that `prepare_vmcs02` writes at each entry, number for rarely changed fields of vmcs12, and number
/// that `nested_vmx_run` reads from vmcs12 (KVM of Linux 6.1): VMWRITEs, and VMREADs of a shadow VMCS.
const WRITES: u64 = 22;
const RARE_WRITES: u64 = 57;

/// L2's tag is L1's with this bit set.
const TAG: u16 = 1 << 15;

impl ExitContext<'_> {
    /// Completes an entry of L1 that has passed its checks; the registers are L2's.
    pub(super) fn enter_inner(&mut self, view: &GuestView) -> Result<(), Failure> {
        self.charge(Operation::NestedEntry, 1);
        self.charge(Operation::Vmwrite, WRITES);
        // vmcs02 becomes current.
        self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 1);
        if std::mem::take(&mut self.vcpu.nested.dirty) {
            self.charge(Operation::Vmwrite, RARE_WRITES);
        }
        let Some(inner) = self.vcpu.nested.running().cloned() else { return Ok(()) };
        let outer = self.cpu.controls().clone();
        let pages = self.pages_of(&inner);
        *self.cpu.controls_mut() = merged(&outer, &inner, &pages, self.vcpu.tsc_offset, self.inner_tag(outer.vpid));
        self.vcpu.nested.outer = Some(Box::new(outer));
        self.vcpu.nested.entering = true;
        self.vcpu.nested.timer_at = self.timer_of(&inner);
        self.vcpu.events.next = injected(&inner);
        let running = self.running_guest(&inner);
        self.vcpu.visible = Visible::of_view(view);
        self.cpu.arch.vmx.inner = Some(running);
        self.changed_level(Some(inner.tag()).filter(|tag| *tag != 0), true)
    }

    /// Returns the pages of L1's memory to which vmcs12 refers.
    fn pages_of(&mut self, inner: &Controls) -> Pages {
        let page = |used: bool, address: u64| self.host_address(address).filter(|_| used);
        let virtual_apic = page(inner.primary(primary::TPR_SHADOW), inner.virtual_apic);
        let apic_access = page(inner.secondary(secondary::APIC_ACCESSES), inner.apic_access);
        let bitmap = inner.msr_bitmap_address.and_then(|address| page(true, address));
        let msr_bitmap = bitmap.and_then(|host| {
            let mut bytes: Box<MsrBitmap> = Box::new([0; PAGE as usize]);
            self.cpu.wiring.ram.read_bytes(host, &mut bytes[..]).then_some(bytes)
        });
        if msr_bitmap.is_some() {
            self.charge(Operation::NestedBitmap, 1);
        }
        Pages { virtual_apic, apic_access, msr_bitmap }
    }

    /// Returns the time at which L1's timer for L2 expires.
    fn timer_of(&self, inner: &Controls) -> Ticks {
        if inner.pin & pin::PREEMPTION_TIMER == 0 {
            return Ticks::MAX;
        }
        let shift = self.vm.offer.map_or(0, |offer| offer.vmx.timer_shift());
        let wait = (Ticks::from(inner.preemption_timer) << shift).saturating_mul(TICKS_PER_CYCLE);
        self.cpu.micro.clock.saturating_add(wait)
    }

    /// Describes L2 for inspection from outside. The visible registers are still those of L1.
    fn running_guest(&self, inner: &Controls) -> NestedGuest {
        let (vmcs, host_cr3) = match self.vcpu.nested.vmx.operation.current() {
            Some((address, vmcs)) => (address, vmcs.get(vmcs::HOST_CR3)),
            None => (0, 0),
        };
        let host = GuestView { cr3: host_cr3, ..self.vcpu.visible.view(self.cpu.arch.xcr0) };
        let ept = inner.secondary(secondary::EPT);
        NestedGuest { name: if ept { inner.eptp & ADDRESS } else { vmcs }, ept, host }
    }

    /// Returns the VPID of L2's translations.
    pub fn inner_tag(&self, outer: u16) -> u16 {
        if self.vm.config.nested_vpid && outer != 0 { outer | TAG } else { outer }
    }

    /// Updates registers, role and roots after a change of the level. `tag` is the VPID that L1 has assigned to L2,
    /// `entry` is true if L2 runs next.
    pub(super) fn changed_level(&mut self, tag: Option<u16>, entry: bool) -> Result<(), Failure> {
        self.program();
        self.cpu.mode_changed();
        self.cpuid_may_have_changed();
        let tags = TransitionTags { entry, vpid12: tag, vpid02: self.vm.config.nested_vpid };
        let last = self.vcpu.nested.vpid;
        self.vcpu.nested.vpid = self.with_mmu(|mmu, vcpu, guest| {
            mmu.nested_transition(vcpu, guest);
            mmu.nested_transition_flush(vcpu, tags, last)
        })?;
        Ok(())
    }

    /// Returns the registers of L2 for the MMU, in addition to those of every guest.
    pub fn nested_paging(&self) -> Option<Nested> {
        let inner = self.vcpu.nested.running()?;
        let can = |feature| self.vm.offer.is_some_and(|offer| offer.vmx.has_ept_vpid(feature));
        let ept = EptFormat {
            execute_only: can(ept_vpid::EXECUTE_ONLY),
            flags: can(ept_vpid::ACCESSED_DIRTY),
            pages_2m: can(ept_vpid::PAGES_2M),
            pages_1g: can(ept_vpid::PAGES_1G),
            mode_based: inner.secondary(secondary::MODE_BASED_EXECUTE),
        };
        let log = Pml { address: inner.pml_address, index: inner.pml_index };
        Some(Nested {
            eptp: inner.secondary(secondary::EPT).then_some(inner.eptp),
            ept,
            pml: inner.secondary(secondary::PML).then_some(log),
        })
    }

    /// Handles L2's choice of another EPT pointer in L1's list.
    pub fn switched_ept(&mut self) -> Result<(), Failure> {
        if let (Some(inner), Some(guest)) = (self.vcpu.nested.running(), &mut self.cpu.arch.vmx.inner) {
            guest.name = inner.eptp & ADDRESS;
        }
        self.with_mmu(|mmu, vcpu, guest| mmu.nested_transition(vcpu, guest))
    }

    /// Handles modifications that the MMU has logged for L1.
    pub fn follow_log(&mut self, logged: u16) {
        if let Some(inner) = &mut self.vcpu.nested.vmx.running {
            inner.pml_index = inner.pml_index.wrapping_sub(logged);
        }
    }

    /// Returns the control-register bits that belong to the running guest.
    pub fn ownership(&self) -> Ownership {
        match self.vcpu.nested.running() {
            Some(inner) => self.vm.ownership.within(inner),
            None => self.vm.ownership,
        }
    }

    /// Writes the fields of vmcs02 that change at each entry.
    pub fn program_inner(&mut self) {
        let Some(inner) = self.vcpu.nested.running() else { return };
        let clock = self.cpu.micro.clock;
        let left =
            (self.vcpu.nested.timer_at.saturating_sub(clock) / TICKS_PER_CYCLE) >> cpu::vmx::PREEMPTION_TIMER_SHIFT;
        let visible = self.vcpu.visible;
        let cr0 = visible.cr0 & !inner.cr0_mask | inner.cr0_shadow & inner.cr0_mask;
        let cr4 = visible.cr4 & !inner.cr4_mask | inner.cr4_shadow & inner.cr4_mask;
        let exits = inner.primary & primary::MOV_DR;
        let controls = self.cpu.controls_mut();
        (controls.cr0_shadow, controls.cr4_shadow) = (cr0, cr4);
        controls.primary |= exits;
        controls.preemption_timer = u32::try_from(left).unwrap_or(u32::MAX);
        let checked = secondary::VIRTUAL_INTERRUPTS | secondary::APIC_ACCESSES;
        if controls.primary(primary::TPR_SHADOW) && controls.second() & checked == 0 {
            // A threshold that has been passed since must not make L0's entry fail.
            let (page, threshold) = (controls.virtual_apic, inner.tpr_threshold);
            let tpr = self.cpu.wiring.ram.read::<u8>(page + TPR).map_or(0, |tpr| u32::from(tpr >> 4));
            self.cpu.controls_mut().tpr_threshold = threshold.min(tpr);
        }
    }

    /// Handles HLT of L2 that L1 does not intercept: L2 waits as its processor would.
    pub fn halt_inner(&mut self) -> Step {
        self.cpu.controls_mut().activity = x86::vmx::activity::HLT;
        Step::Resume
    }
}

/// Offset of the task priority in the virtual-APIC page.
const TPR: u64 = 0x80;

/// Returns the event that L1 injects.
fn injected(inner: &Controls) -> Option<GuestEvent> {
    let information = inner.entry_interruption;
    (information & interruption::VALID != 0).then_some(GuestEvent {
        information,
        error: inner.entry_error_code,
        length: inner.entry_instruction_length,
        raised: false,
    })
}
