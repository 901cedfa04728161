//! Events while L2 runs, and their distribution to L1 and L2.

use crate::events::{GuestEvent, vector};
use crate::exit_context::ExitContext;
use crate::failure::Failure;
use cpu::arch::attention;
use cpu::vmx::VmExit;
use x86::vmx::{exit, interruptibility, interruption, pending_debug, pin, primary, reason};

impl ExitContext<'_> {
    /// Leaves L2 if an event is due that L1 intercepts. Returns true in that case.
    pub fn leave_for_guest(&mut self) -> Result<bool, Failure> {
        let Some(inner) = self.vcpu.nested.running() else { return Ok(false) };
        let (pins, exits) = (inner.pin, inner.exit);
        if let Some(exit) = self.vcpu.nested.due.take() {
            self.reflect(exit)?;
            return Ok(true);
        }
        if self.vcpu.nested.entering || self.vcpu.events.next.is_some() {
            // An event that L1 injects, or whose delivery was interrupted, comes first.
            return Ok(false);
        }
        if std::mem::take(&mut self.vcpu.nested.init) {
            self.reflect(VmExit { reason: reason::INIT_SIGNAL, ..VmExit::default() })?;
            return Ok(true);
        }
        let blocking = self.cpu.controls().interruptibility;
        if blocking & (interruptibility::STI | interruptibility::MOV_SS) != 0 {
            return Ok(false);
        }
        let blocked = pins & pin::VIRTUAL_NMIS == 0 && blocking & interruptibility::NMI != 0;
        if self.vcpu.events.nmi && pins & pin::NMI != 0 && !blocked {
            self.vcpu.events.nmi = false;
            let interruption = GuestEvent::nmi().information;
            self.reflect(VmExit { reason: reason::EXCEPTION_NMI, interruption, ..VmExit::default() })?;
            return Ok(true);
        }
        if !self.vcpu.events.waiting || pins & pin::EXTERNAL_INTERRUPT == 0 {
            return Ok(false);
        }
        let mut interruption = 0;
        if exits & exit::ACKNOWLEDGE_INTERRUPT != 0 {
            let Some(event) = self.acknowledge() else { return Ok(false) };
            if self.take_posted(event.vector()) {
                return Ok(false);
            }
            interruption = event.information;
        }
        self.reflect(VmExit { reason: reason::EXTERNAL_INTERRUPT, interruption, ..VmExit::default() })?;
        Ok(true)
    }

    /// Handles an interrupt as the notification of posted interrupts, if L1 has configured it as such.
    fn take_posted(&mut self, vector: u8) -> bool {
        let status = self.cpu.controls().interrupt_status;
        if let Some(inner) = &mut self.vcpu.nested.vmx.running {
            inner.interrupt_status = status;
        }
        let posted =
            self.software(|cpu, view, surroundings, cache| cpu.post_in_software(view, surroundings, cache, vector));
        if let Some(inner) = self.vcpu.nested.running() {
            let status = inner.interrupt_status;
            self.cpu.controls_mut().interrupt_status = status;
        }
        posted
    }

    /// Returns two flags: NMIs, and interrupts, belong to L1 while L2 runs.
    pub fn of_guest_hypervisor(&self) -> (bool, bool) {
        let pins = self.vcpu.nested.running().map_or(0, |inner| inner.pin);
        (pins & pin::NMI != 0, pins & pin::EXTERNAL_INTERRUPT != 0)
    }

    /// Returns the windows that L1 has requested.
    pub fn windows_of_guest_hypervisor(&self) -> u32 {
        let windows = primary::INTERRUPT_WINDOW | primary::NMI_WINDOW;
        self.vcpu.nested.running().map_or(0, |inner| inner.primary & windows)
    }

    /// Handles an interrupt of L1 that cannot be delivered yet: L2 exits as soon as possible.
    pub fn exit_for_interrupt(&mut self) {
        self.vcpu.events.waiting = false;
        self.cpu.attend(attention::INTR);
    }

    /// Handles the debug traps that follow an instruction executed on behalf of the guest, unless L1 has set the
    /// monitor trap flag, whose exit has priority.
    pub fn trap(&mut self, dr6: u64) {
        let monitored = self.vcpu.nested.running().is_some_and(|inner| inner.primary(primary::MONITOR_TRAP));
        if monitored {
            let hit = if dr6 & pending_debug::BREAKPOINTS != 0 { pending_debug::ENABLED_BREAKPOINT } else { 0 };
            let known = pending_debug::BREAKPOINTS | pending_debug::BS;
            self.cpu.controls_mut().pending_debug |= dr6 & known | hit;
            self.reflect_next(VmExit { reason: reason::MONITOR_TRAP, ..VmExit::default() });
        } else if dr6 != 0 {
            self.raise_debug(dr6);
        }
    }

    /// Returns true if L1 intercepts an exception that L0 raises in L2, and schedules the exit. `qualification` is the
    /// address of a page fault, or the DR6 bits of a debug exception.
    pub fn exception_for_guest(&mut self, vector: u8, code: Option<u32>, qualification: u64) -> bool {
        let Some(inner) = self.vcpu.nested.running() else { return false };
        let raised = GuestEvent::exception(vector, code);
        let exit = VmExit {
            reason: reason::EXCEPTION_NMI,
            qualification,
            interruption: raised.information,
            interruption_error: raised.error,
            ..VmExit::default()
        };
        if inner.intercepts(vector, code) {
            if raised.sets_resume_flag() {
                self.set_resume_flag(true);
            } else if vector == vector::DF {
                self.forget_handler();
            }
            self.reflect_next(exit);
            return true;
        }
        let mut events = self.vcpu.events;
        events.raise(vector, code);
        if events.shutdown {
            self.vcpu.events.next = None;
            self.forget_handler();
            self.reflect_next(VmExit { reason: reason::TRIPLE_FAULT, ..VmExit::default() });
            return true;
        }
        let became = events.next.filter(|event| event.vector() == vector::DF && vector != vector::DF);
        if let Some(event) = became.filter(|event| inner.intercepts(vector::DF, event.code())) {
            // The exit is caused by the double fault itself: no event was in delivery (SDM vol. 3, 27.2.4).
            self.vcpu.events.next = None;
            self.forget_handler();
            let information = event.information | interruption::VALID;
            self.reflect_next(VmExit { qualification: 0, interruption: information, interruption_error: 0, ..exit });
            return true;
        }
        false
    }
}
