//! Corrections of RF in the guest's flags (SDM vol. 3, 27.3.3).
//!
//! An exit for a fault saves the RF that a handler would have found on its stack, and an exit for an EPT violation
//! saves it set: the guest would return to its instruction. If the hypervisor resolves the exit without the guest's
//! knowledge, RF must have its previous value. A fault that the hypervisor raises needs RF set before the entry; if its
//! handler is never reached, a guest hypervisor must not see it.

use crate::events::{Before, Entered, GuestEvent};
use crate::exit_context::ExitContext;
use cpu::vmx::VmExit;
use x86::debug::DR7_ENABLED;
use x86::vmx::{interruption, reason};
use x86::{flags, vector};

impl ExitContext<'_> {
    /// Sets RF in the guest's flags.
    pub fn set_resume_flag(&mut self, value: bool) {
        let others = self.cpu.arch.flags & !flags::RF;
        self.cpu.arch.flags = others | if value { flags::RF } else { 0 };
    }

    /// Records an entry of the guest with this event.
    pub fn follow_entry(&mut self, event: Option<GuestEvent>) {
        let (rip, set) = (self.cpu.arch.rip, self.cpu.arch.flags & flags::RF != 0);
        let before = self.vcpu.events.before.take().filter(|before| before.rip == rip);
        let given = set || event.is_some_and(|event| event.sets_resume_flag());
        let before = before.map_or(set, |before| before.set);
        self.vcpu.events.entered = Some(Entered { event, rip, before, given });
        self.set_resume_flag(given);
    }

    /// Records an exit of the guest. Returns the entry if it was at the same instruction.
    pub fn follow_exit(&mut self) -> Option<Entered> {
        let (rip, set) = (self.cpu.arch.rip, self.cpu.arch.flags & flags::RF != 0);
        let entered = self.vcpu.events.entered.take().filter(|entered| entered.rip == rip);
        let faulted =
            matches!(self.exit.basic(), reason::EXCEPTION_NMI | reason::EPT_VIOLATION | reason::EPT_MISCONFIGURATION);
        let before = entered.map_or(set && !faulted, |entered| entered.before);
        self.vcpu.events.before = Some(Before { rip, set: before, known: entered.is_some() });
        let injected = entered.is_some_and(|entered| entered.event.is_some());
        if injected && returns_nowhere(&self.exit) {
            self.set_resume_flag(before);
        }
        entered
    }

    /// Handles the interruption of an event's delivery by an exception of the hypervisor, for which RF was saved.
    pub fn interrupted_by_fault(&mut self, event: &GuestEvent, entered: Option<Entered>) {
        let same = |entered: &Entered| entered.event.is_some_and(|given| given.information == event.information);
        self.set_resume_flag(entered.filter(same).map_or(event.is_fault(), |entered| entered.given));
    }

    /// Restores RF after the hypervisor has resolved the reason for an exit.
    pub fn forget_fault(&mut self) {
        let Some(before) = self.vcpu.events.before.filter(|_| self.vcpu.events.next.is_none()) else { return };
        // With RF clear, a breakpoint on the instruction would be reported a second time.
        if before.known || self.cpu.arch.dr[7] & DR7_ENABLED == 0 {
            self.set_resume_flag(before.set);
        }
    }

    /// Handles a double or triple fault, after which the first exception's handler does not return.
    pub fn forget_handler(&mut self) {
        if let Some(before) = self.vcpu.events.before {
            self.set_resume_flag(before.set);
        }
    }
}

/// Returns true if an exit is for a double or triple fault: RF is saved unchanged.
pub(crate) fn returns_nowhere(exit: &VmExit) -> bool {
    let asked = interruption::VALID | interruption::TYPE | interruption::VECTOR;
    let double = interruption::VALID | interruption::HARDWARE_EXCEPTION | u32::from(vector::DF);
    match exit.basic() {
        reason::TRIPLE_FAULT => true,
        reason::EXCEPTION_NMI => exit.interruption & asked == double,
        _ => false,
    }
}
