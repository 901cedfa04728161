//! Events in non-root mode: injection, exits instead of deliveries, and events between instructions.

use super::controls::Controls;
use super::information::VmExit;
use super::state::Delivering;
use crate::arch::attention;
use crate::exec::interrupt::{Event, Source};
use crate::fault::{Cause, Exec, Fault};
use crate::state::Cpu;
use x86::debug::DR6_CONDITIONS;
use x86::vmx::qualification::ept as qualification;
use x86::vmx::{activity, exit, interruption, pin, primary, reason};
use x86::{flags, vector};

/// Returns true if an exception exits because of the exception bitmap.
pub(super) fn in_bitmap(controls: &Controls, vector: u8, code: Option<u32>) -> bool {
    let bit = controls.exception_bitmap >> (vector & 31) & 1 != 0;
    if vector == vector::PF {
        let matches = code.unwrap_or(0) & controls.pf_error_mask == controls.pf_error_match;
        return bit == matches;
    }
    bit
}

impl Cpu {
    /// Delivers the event that a VM entry injects.
    pub(super) fn inject(&mut self) {
        let controls = &self.arch.vmx.controls;
        let info = controls.entry_interruption;
        if info & interruption::VALID == 0 {
            return;
        }
        let length = controls.entry_instruction_length;
        let (source, length) = match info & interruption::TYPE {
            interruption::OTHER_EVENT => {
                self.arch.vmx.trap_pending = true;
                return;
            }
            interruption::EXTERNAL => (Source::External, 0),
            interruption::NMI => (Source::Nmi, 0),
            interruption::SOFTWARE_INTERRUPT => (Source::Int, length),
            interruption::SOFTWARE_EXCEPTION => (Source::Trap, length),
            interruption::PRIVILEGED_SOFTWARE_EXCEPTION => (Source::Int1, length),
            _ => (Source::Exception, 0),
        };
        if source == Source::Nmi {
            self.arch.nmi_blocked = true;
        }
        let code = (info & interruption::ERROR_CODE != 0).then_some(controls.entry_error_code);
        self.deliver(Event { vector: (info & interruption::VECTOR) as u8, code, source, injected: true }, length);
    }

    /// Returns an event as interruption or IDT-vectoring information.
    fn information(&self, event: &Event, length: u32) -> Delivering {
        let kind = match event.source {
            Source::Exception => interruption::HARDWARE_EXCEPTION,
            Source::External => interruption::EXTERNAL,
            Source::Nmi => interruption::NMI,
            Source::Int => interruption::SOFTWARE_INTERRUPT,
            Source::Trap => interruption::SOFTWARE_EXCEPTION,
            Source::Int1 => interruption::PRIVILEGED_SOFTWARE_EXCEPTION,
        };
        // Real-address mode has no error codes.
        let code = event.code.filter(|_| self.protected());
        let has_code = if code.is_some() { interruption::ERROR_CODE } else { 0 };
        let info = interruption::VALID | has_code | kind | u32::from(event.vector);
        Delivering { info, code: code.unwrap_or(0), length }
    }

    /// Returns the exit information for an exception.
    fn exception_information(&self, event: &Event, length: u32) -> VmExit {
        let what = self.information(event, length);
        let qualification = match event.vector {
            vector::DB => self.engine.fault_dr6 & DR6_CONDITIONS,
            vector::PF => self.engine.fault_address,
            _ => 0,
        };
        VmExit {
            reason: reason::EXCEPTION_NMI,
            qualification,
            instruction_length: length,
            interruption: what.info,
            interruption_error: what.code,
            ..VmExit::default()
        }
    }

    /// Exits if an event about to be delivered is an exception that exits. Returns true in that case.
    pub(crate) fn exception_exits(&mut self, event: &Event) -> bool {
        self.arch.vmx.activity = activity::ACTIVE;
        let original = self.arch.vmx.delivering.take();
        let unblocked = std::mem::take(&mut self.arch.vmx.nmi_unblocked);
        let subject = event.source == Source::Exception && !event.injected;
        if !subject || !in_bitmap(&self.arch.vmx.controls, event.vector, event.code) {
            return false;
        }
        self.arch.vm_exit = self.exception_information(event, 0);
        match original {
            Some(original) => self.arch.vm_exit.set_vectoring(original),
            None if unblocked && event.vector != vector::DF => {
                self.arch.vm_exit.interruption |= interruption::NMI_UNBLOCKED
            }
            None => {}
        }
        self.leave_with_resume_flag(event);
        true
    }

    /// Exits if an exception during the delivery of `first` exits. Returns true in that case.
    pub(crate) fn nested_exits(&mut self, event: &Event, first: &Event, length: u32) -> bool {
        if !in_bitmap(&self.arch.vmx.controls, event.vector, event.code) {
            return false;
        }
        self.arch.vm_exit = self.exception_information(event, length);
        let original = self.information(first, length);
        self.arch.vm_exit.set_vectoring(original);
        self.leave_with_resume_flag(event);
        true
    }

    /// Completes an exit during the delivery of an event that is not an exception;
    /// [`vm_exit`](crate::arch::Arch::vm_exit) already has the reason.
    pub(crate) fn exit_in_delivery(&mut self, event: &Event, length: u32) {
        let original = self.information(event, length);
        self.arch.vm_exit.set_vectoring(original);
        self.leave_with_resume_flag(event);
    }

    /// Leaves the guest with the RF that the handler of `event` would have found on its stack.
    fn leave_with_resume_flag(&mut self, event: &Event) {
        self.arch.flags |= self.pushed_flags(event) & flags::RF;
        self.leave_guest();
    }

    /// Records the begin of a delivery, whose handler returns to the instruction after `length` bytes.
    pub(crate) fn delivery_begins(&mut self, length: u32) {
        if length != 0 {
            let next = self.arch.rip.wrapping_add(u64::from(length));
            self.arch.rip = if self.engine.long64 { next } else { next & 0xffff_ffff };
        }
    }

    /// Records the end of a delivery.
    pub(crate) fn delivery_ends(&mut self) {
        self.arch.vmx.trap_pending |= self.traps_monitored();
    }

    /// Handles a triple fault in non-root mode.
    pub(crate) fn triple_fault_exit(&mut self) {
        self.event_exit(reason::TRIPLE_FAULT);
    }

    /// Exits because of an event between instructions.
    fn event_exit(&mut self, reason: u32) {
        self.arch.vm_exit = VmExit { reason, ..VmExit::default() };
        self.leave_guest();
    }

    /// Handles INT n, INT3, INTO and INT1 in non-root mode. For the exception bitmap the latter three are exceptions.
    pub(crate) fn guest_software_interrupt(&mut self, event: &Event) -> Exec {
        let length = u32::from(self.engine.ilen);
        if event.source != Source::Int && in_bitmap(&self.arch.vmx.controls, event.vector, None) {
            self.arch.vm_exit = self.exception_information(event, length);
            self.engine.fault = Cause::VmExit;
            return Err(Fault);
        }
        let entered = self.enter_handler(event);
        if entered.is_err() {
            let original = self.information(event, length);
            match self.engine.fault {
                Cause::VmExit => {
                    self.arch.vm_exit.set_vectoring(original);
                    self.arch.flags &= !flags::RF;
                }
                Cause::Exception(..) => self.arch.vmx.delivering = Some(original),
                _ => {}
            }
        } else {
            self.delivery_ends();
        }
        entered
    }

    /// Exits on behalf of an instruction, after [`Cpu::exit_fault`]; RIP is that of the instruction.
    pub(crate) fn instruction_exit(&mut self) {
        let unblocked = std::mem::take(&mut self.arch.vmx.nmi_unblocked);
        self.arch.vmx.delivering = None;
        let delivered = self.arch.vm_exit.vectoring & interruption::VALID != 0;
        match self.arch.vm_exit.reason {
            reason::EPT_VIOLATION | reason::EPT_MISCONFIGURATION if !delivered => {
                self.arch.flags |= flags::RF;
                if unblocked && self.arch.vm_exit.reason == reason::EPT_VIOLATION {
                    self.arch.vm_exit.qualification |= qualification::NMI_UNBLOCKED;
                }
            }
            reason::EPT_VIOLATION | reason::EPT_MISCONFIGURATION | reason::TASK_SWITCH => {}
            _ => self.arch.flags &= !flags::RF,
        }
        self.leave_guest();
    }

    /// Returns true if every instruction must be followed by an exit (monitor trap flag).
    pub(crate) fn traps_monitored(&self) -> bool {
        self.arch.vmx.active && self.arch.vmx.controls.primary(primary::MONITOR_TRAP)
    }

    /// Performs the exit after an instruction or delivery with the monitor trap flag, before any debug trap.
    pub(crate) fn monitor_trap(&mut self) -> bool {
        if self.arch.vmx.active && self.leave_after_instruction() {
            return true;
        }
        let due = self.arch.vmx.active && self.arch.vmx.trap_pending;
        if due {
            self.event_exit(reason::MONITOR_TRAP);
        }
        due
    }

    /// Handles the events between instructions of a guest, highest priority first. Returns true after an exit or a
    /// delivery. `shadow` is the blocking by STI or MOV SS.
    pub(crate) fn guest_events(&mut self, shadow: u32) -> bool {
        let waits = self.arch.vmx.activity;
        if waits == activity::WAIT_FOR_SIPI {
            return false;
        }
        if self.arch.attention & attention::INIT != 0 {
            self.arch.attention &= !attention::INIT;
            self.event_exit(reason::INIT_SIGNAL);
            return true;
        }
        if self.micro.clock >= self.arch.vmx.timer_at {
            self.event_exit(reason::PREEMPTION_TIMER);
            return true;
        }
        if shadow != 0 {
            return false;
        }
        let controls = &self.arch.vmx.controls;
        let (pin, primary) = (controls.pin, controls.primary);
        if primary & primary::NMI_WINDOW != 0 && !self.arch.nmi_blocked {
            self.event_exit(reason::NMI_WINDOW);
            return true;
        }
        if self.arch.attention & attention::NMI != 0 && !self.blocks_nmi() {
            self.arch.attention &= !attention::NMI;
            if pin & pin::NMI != 0 {
                let nmi = self.information(&Event::new(vector::NMI, None, Source::Nmi), 0);
                self.arch.vm_exit =
                    VmExit { reason: reason::EXCEPTION_NMI, interruption: nmi.info, ..VmExit::default() };
                self.leave_guest();
            } else {
                self.arch.vmx.activity = activity::ACTIVE;
                self.deliver_nmi();
            }
            return true;
        }
        let open = self.arch.flags & flags::IF != 0;
        if waits == activity::SHUTDOWN {
            return false;
        }
        if primary & primary::INTERRUPT_WINDOW != 0 && open {
            self.event_exit(reason::INTERRUPT_WINDOW);
            return true;
        }
        let exits = pin & pin::EXTERNAL_INTERRUPT != 0;
        if self.arch.attention & attention::INTR != 0 && (exits || open) && self.guest_interrupt(exits) {
            return true;
        }
        open && self.deliver_virtual_interrupt()
    }

    /// Returns true if an external interrupt ends HLT.
    pub fn interrupts_end_halt(&self) -> bool {
        match self.arch.vmx.activity {
            activity::ACTIVE | activity::HLT => {
                let exits = self.arch.vmx.active && self.arch.vmx.controls.pin & pin::EXTERNAL_INTERRUPT != 0;
                exits || self.arch.flags & flags::IF != 0
            }
            _ => false,
        }
    }

    /// Returns true if blocking applies to the guest's virtual NMIs, and not to those of the processor.
    pub(super) fn has_virtual_nmis(&self) -> bool {
        self.arch.vmx.controls.pin & pin::VIRTUAL_NMIS != 0
    }

    /// Returns true if NMIs are blocked until IRET; with virtual NMIs, blocking does not apply to the processor's.
    pub fn blocks_nmi(&self) -> bool {
        self.arch.nmi_blocked && !(self.arch.vmx.active && self.has_virtual_nmis())
    }

    /// Handles a start-up signal with its vector. Returns true if the guest waited for it, which causes an exit.
    pub fn guest_startup(&mut self, vector: u8) -> bool {
        if !self.arch.vmx.active || self.arch.vmx.activity != activity::WAIT_FOR_SIPI {
            return false;
        }
        self.arch.vm_exit = VmExit { reason: reason::SIPI_SIGNAL, qualification: vector.into(), ..VmExit::default() };
        self.leave_guest();
        true
    }

    /// Handles an external interrupt. Returns true if it was still pending.
    fn guest_interrupt(&mut self, exits: bool) -> bool {
        if exits && self.arch.vmx.controls.exit & exit::ACKNOWLEDGE_INTERRUPT == 0 {
            self.event_exit(reason::EXTERNAL_INTERRUPT);
            return true;
        }
        let who = self.ident();
        let acknowledged = self.wiring.bus().acknowledge(who);
        let Some(vector) = acknowledged else {
            self.arch.attention &= !attention::INTR;
            return false;
        };
        self.attend(attention::BUS);
        let event = Event::new(vector, None, Source::External);
        if exits && self.take_posted_interrupts(vector) {
            return true;
        }
        if exits {
            let interruption = self.information(&event, 0).info;
            self.arch.vm_exit = VmExit { reason: reason::EXTERNAL_INTERRUPT, interruption, ..VmExit::default() };
            self.leave_guest();
        } else {
            self.arch.vmx.activity = activity::ACTIVE;
            self.deliver(event, 0);
        }
        true
    }
}

impl VmExit {
    /// Records the event that was being delivered.
    fn set_vectoring(&mut self, event: Delivering) {
        self.vectoring = event.info;
        self.vectoring_error = event.code;
        if matches!(
            event.info & interruption::TYPE,
            interruption::SOFTWARE_INTERRUPT
                | interruption::SOFTWARE_EXCEPTION
                | interruption::PRIVILEGED_SOFTWARE_EXCEPTION
        ) {
            self.instruction_length = event.length;
        }
    }
}
