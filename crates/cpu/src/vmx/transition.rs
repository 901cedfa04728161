//! VM entry and exit: transitions between root and non-root mode.

use super::controls::Controls;
use super::information::VmExit;
use crate::arch::attention;
use crate::fault::{Cause, Fault};
use crate::state::Cpu;
use ledger::{Family, Kind, TICKS_PER_CYCLE, Ticks};
use x86::msr::DEBUGCTL_BTF;
use x86::vmx::{activity, entry, exit, interruptibility, interruption, pending_debug, pin, reason, secondary};
use x86::{flags, rights, seg, vector};

/// Interruptibility, and the corresponding flags in [`attention`](crate::arch::Arch::attention).
const BLOCKING: [(u32, u32); 2] =
    [(interruptibility::STI, attention::STI_SHADOW), (interruptibility::MOV_SS, attention::SS_SHADOW)];
/// Attention flags that apply to the guest only.
const GUEST_ATTENTION: u32 = attention::STI_SHADOW
    | attention::SS_SHADOW
    | attention::STEP
    | attention::DEBUG
    | attention::HALT
    | attention::MWAIT
    | attention::MWAIT_MASKED;

/// Reason for a failed VM entry. The processor is then in root mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryFailure {
    /// A check on the controls failed (SDM vol. 3, 26.2): nothing has changed.
    #[error("VM entry with invalid control field: {0}")]
    Control(&'static str),
    /// A check on the guest's state failed (SDM vol. 3, 26.3): [`vm_exit`](crate::arch::Arch::vm_exit) reports it too.
    #[error("VM entry with invalid guest state: {0}")]
    GuestState(&'static str),
}

impl Cpu {
    /// Returns true if the processor is in VMX non-root mode.
    #[inline(always)]
    pub fn non_root(&self) -> bool {
        self.arch.vmx.active
    }

    /// Returns the controls of the last VM entry, with the changes made by exits.
    pub fn controls(&self) -> &Controls {
        &self.arch.vmx.controls
    }

    /// Returns the controls for changes between an exit and [`Cpu::vm_reentry`].
    pub fn controls_mut(&mut self) -> &mut Controls {
        &mut self.arch.vmx.controls
    }

    /// Performs a VM entry with these controls, into the guest whose registers are in the processor's fields.
    pub fn vm_entry(&mut self, controls: Controls) -> Result<(), EntryFailure> {
        self.arch.vmx.controls = controls;
        self.vm_reentry()
    }

    /// Performs a VM entry with the current controls.
    pub fn vm_reentry(&mut self) -> Result<(), EntryFailure> {
        if self.arch.vmx.active {
            return Err(EntryFailure::Control("the processor is in non-root mode already"));
        }
        // A previous exit that was not handled.
        self.arch.attention &= !attention::VM_EXIT;
        self.check_controls(&self.arch.vmx.controls, self.protected()).map_err(EntryFailure::Control)?;
        self.charge_host_kind(Kind::new(Family::VmEntry, 0), 1);
        if let Err(check) = self.check_guest(&self.arch.vmx.controls).and_then(|()| self.load_guest_pdptes()) {
            self.arch.vm_exit =
                VmExit { reason: reason::INVALID_GUEST_STATE | reason::ENTRY_FAILURE, ..VmExit::default() };
            self.charge_host_kind(Kind::new(Family::VmExit, reason::INVALID_GUEST_STATE), 1);
            return Err(EntryFailure::GuestState(check));
        }
        self.enter_non_root();
        Ok(())
    }

    /// Continues in non-root mode, with the guest's registers.
    pub(super) fn enter_non_root(&mut self) {
        if self.engine.emulation.is_some() {
            return self.entered_in_software();
        }
        self.begin_run();
        self.exits_end();
        self.arch.vmx.active = true;
        self.micro.level = if self.arch.vmx.inner.is_some() { 2 } else { 1 };
        self.transition_flush();
        self.enter_guest_state();
        self.enter_virtual_apic();
        self.mode_changed();
        self.inject();
    }

    /// Checks the PDPTEs: with EPT those in the processor's fields; without EPT, an entry loads them from memory.
    pub(super) fn load_guest_pdptes(&mut self) -> Result<(), &'static str> {
        if !self.pae_paging() {
            return Ok(());
        }
        if self.arch.vmx.controls.secondary(secondary::EPT) {
            let good = self.arch.pdpte.iter().all(|entry| self.good_pdpte(*entry));
            return if good { Ok(()) } else { Err("reserved bits of a PDPTE") };
        }
        self.load_pdptes(self.arch.cr3).map_err(|_| {
            self.engine.fault = Cause::None;
            "reserved bits of a PDPTE in memory"
        })
    }

    /// Loads the guest state that is not in registers.
    fn enter_guest_state(&mut self) {
        let vectoring = self.arch.vmx.controls.injects();
        let controls = &self.arch.vmx.controls;
        let blocking = controls.interruptibility;
        let pending = controls.pending_debug;
        let timer = controls.pin & pin::PREEMPTION_TIMER != 0;
        let wait = Ticks::from(controls.preemption_timer) << self.vmx_capabilities().timer_shift();
        self.arch.vmx.timer_at =
            if timer { self.micro.clock.saturating_add(wait * TICKS_PER_CYCLE) } else { Ticks::MAX };
        self.arch.vmx.activity = if vectoring { activity::ACTIVE } else { self.arch.vmx.controls.activity };
        self.arch.vmx.trap_pending = false;
        self.arch.vmx.delivering = None;
        self.arch.vmx.nmi_unblocked = false;
        self.arch.nmi_blocked = blocking & interruptibility::NMI != 0;
        self.arch.single_step = false;
        self.arch.pending_dr6 = 0;
        self.arch.attention &= !(attention::STI_SHADOW | attention::SS_SHADOW | attention::DEBUG | attention::HALT);
        let stepping = self.arch.flags & (flags::TF | flags::RF) != 0 || self.breakpoints_enabled();
        if stepping {
            self.attend(attention::STEP);
        }
        if vectoring {
            return;
        }
        for (bit, shadow) in BLOCKING {
            if blocking & bit != 0 {
                self.attend(shadow);
            }
        }
        self.arch.pending_dr6 = pending & (pending_debug::BREAKPOINTS | pending_debug::BS);
        if self.arch.pending_dr6 != 0 {
            self.attend(attention::DEBUG);
        }
    }

    /// Stops the running instruction for a VM exit: a handler or a walk returns this instead of a fault. The caller
    /// fills further fields of [`vm_exit`](crate::arch::Arch::vm_exit) afterwards.
    #[cold]
    pub(crate) fn exit_fault(&mut self, reason: u32, qualification: u64) -> Fault {
        self.arch.vm_exit =
            VmExit { reason, qualification, instruction_length: u32::from(self.engine.ilen), ..VmExit::default() };
        self.engine.fault = Cause::VmExit;
        Fault
    }

    /// Leaves non-root mode; [`vm_exit`](crate::arch::Arch::vm_exit) and RIP must be final. [`Cpu::run`] returns at
    /// once.
    #[cold]
    pub(crate) fn leave_guest(&mut self) {
        if self.engine.emulation.is_some() {
            // The hypervisor of this guest decides on the exit.
            return self.attend(attention::VM_EXIT);
        }
        self.engine.ilen = 0;
        self.begin_run();
        let (reason, started) = (self.arch.vm_exit.basic(), self.micro.clock);
        self.charge_host_kind(Kind::new(Family::VmExit, reason), 1);
        self.exit_begins(reason, started);
        self.save_guest_state();
        self.arch.vmx.active = false;
        self.micro.level = 0;
        self.transition_flush();
        self.mode_changed();
        self.attend(attention::VM_EXIT);
    }

    /// Stores the guest state that is not in registers.
    pub(crate) fn save_guest_state(&mut self) {
        let shadow = self.arch.attention | self.arch.vmx.shadow;
        let mut blocking = if self.arch.nmi_blocked { interruptibility::NMI } else { 0 };
        for (bit, attended) in BLOCKING {
            blocking |= if shadow & attended != 0 { bit } else { 0 };
        }
        self.show_privilege_level();
        let long = self.long_mode();
        let left = (self.arch.vmx.timer_at.saturating_sub(self.micro.clock) / TICKS_PER_CYCLE)
            >> self.vmx_capabilities().timer_shift();
        let activity = std::mem::replace(&mut self.arch.vmx.activity, activity::ACTIVE);
        let debug = self.pending_debug_exceptions(blocking, activity == activity::HLT);
        self.arch.vmx.timer_at = Ticks::MAX;
        self.arch.vmx.trap_pending = false;
        let controls = &mut self.arch.vmx.controls;
        controls.interruptibility = blocking;
        controls.pending_debug = debug;
        controls.activity = activity;
        controls.entry_interruption &= !interruption::VALID;
        controls.entry = (controls.entry & !entry::IA32E_GUEST) | if long { entry::IA32E_GUEST } else { 0 };
        if controls.pin & pin::PREEMPTION_TIMER != 0 && controls.exit & exit::SAVE_PREEMPTION_TIMER != 0 {
            controls.preemption_timer = u32::try_from(left).unwrap_or(u32::MAX);
        }
        self.arch.attention &= !GUEST_ATTENTION;
        self.arch.pending_dr6 = 0;
        self.arch.single_step = false;
    }

    /// Sets the current privilege level to the DPL of SS: a VMCS has no other field for it (SDM vol. 3, 24.4.1). On
    /// Intel processors they are always equal. AMD's SYSRET loads only the selector of SS (APM vol. 3), whose DPL stays
    /// that of the kernel; a VMCB has a field for the level.
    pub(super) fn show_privilege_level(&mut self) {
        let ss = &mut self.arch.seg[usize::from(seg::SS)];
        ss.rights = ss.rights & !(3 << rights::DPL_SHIFT) | u32::from(self.arch.cpl) << rights::DPL_SHIFT;
    }

    /// Returns true if a single-step trap follows each instruction, and not only each branch.
    pub(super) fn steps_instructions(&self) -> bool {
        self.arch.flags & flags::TF != 0 && self.arch.msr.debugctl & DEBUGCTL_BTF == 0
    }

    /// Returns the debug exceptions that an exit leaves pending: those over which it has priority, or which MOV SS
    /// defers. An exit that is caused by a debug exception leaves none, whatever an entry in that state requires (SDM
    /// vol. 3, 27.3.4).
    fn pending_debug_exceptions(&self, blocking: u32, halted: bool) -> u64 {
        let exit = &self.arch.vm_exit;
        if exit.basic() == reason::EXCEPTION_NMI && exit.interruption & interruption::VECTOR == u32::from(vector::DB) {
            return 0;
        }
        let held = blocking & interruptibility::MOV_SS != 0 || self.arch.vm_exit.basic() == reason::MONITOR_TRAP;
        let mut pending = 0;
        if held && self.arch.attention & attention::DEBUG != 0 {
            pending = self.arch.pending_dr6 & (pending_debug::BREAKPOINTS | pending_debug::BS);
            pending |= if pending & pending_debug::BREAKPOINTS != 0 { pending_debug::ENABLED_BREAKPOINT } else { 0 };
        }
        // Requirement of an entry in this state.
        let shadow = interruptibility::STI | interruptibility::MOV_SS;
        if blocking & shadow != 0 || halted {
            let traced = self.steps_instructions();
            pending = (pending & !pending_debug::BS) | if traced { pending_debug::BS } else { 0 };
        }
        pending
    }
}
