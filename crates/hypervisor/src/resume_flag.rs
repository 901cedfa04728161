//! RF of the guest's flags where it is not what the guest is to have (SDM vol. 3, 27.3.3).
//!
//! An exit for a fault saves the RF that a handler would have found on its stack, and one for a violation of EPT saves it set: the guest was to
//! return to its instruction. What the hypervisor mends without the guest's knowledge leaves RF as it was before. A fault that the hypervisor
//! raises needs it set before the entry; if its handler is never reached, the guest's own hypervisor must not find it.

use crate::events::{Before, Entered, GuestEvent};
use crate::exit_context::ExitContext;
use cpu::vmx::VmExit;
use x86::debug::DR7_ENABLED;
use x86::vmx::{interruption, reason};
use x86::{flags, vector};

impl ExitContext<'_> {
    /// Sets RF of the guest's flags.
    pub fn set_resume_flag(&mut self, value: bool) {
        let others = self.cpu.arch.flags & !flags::RF;
        self.cpu.arch.flags = others | if value { flags::RF } else { 0 };
    }

    /// The guest is about to be entered with this event.
    pub fn follow_entry(&mut self, event: Option<GuestEvent>) {
        let (rip, set) = (self.cpu.arch.rip, self.cpu.arch.flags & flags::RF != 0);
        let before = self.vcpu.events.before.take().filter(|before| before.rip == rip);
        let given = set || event.is_some_and(|event| event.sets_resume_flag());
        let before = before.map_or(set, |before| before.set);
        self.vcpu.events.entered = Some(Entered { event, rip, before, given });
        self.set_resume_flag(given);
    }

    /// The guest has exited: the entry, if it was at the same instruction.
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

    /// The delivery of an event was interrupted by an exception that is the hypervisor's own, whose RF was saved.
    pub fn interrupted_by_fault(&mut self, event: &GuestEvent, entered: Option<Entered>) {
        let same = |entered: &Entered| entered.event.is_some_and(|given| given.information == event.information);
        self.set_resume_flag(entered.filter(same).map_or(event.is_fault(), |entered| entered.given));
    }

    /// The hypervisor has mended what the guest has exited for.
    pub fn forget_fault(&mut self) {
        let Some(before) = self.vcpu.events.before.filter(|_| self.vcpu.events.next.is_none()) else { return };
        // With RF clear a breakpoint on the instruction would be met a second time.
        if before.known || self.cpu.arch.dr[7] & DR7_ENABLED == 0 {
            self.set_resume_flag(before.set);
        }
    }

    /// A double or triple fault has come of the exception before, which nothing returns to.
    pub fn forget_handler(&mut self) {
        if let Some(before) = self.vcpu.events.before {
            self.set_resume_flag(before.set);
        }
    }
}

/// Whether an exit is for a double or triple fault: RF is saved as it is.
pub(crate) fn returns_nowhere(exit: &VmExit) -> bool {
    let asked = interruption::VALID | interruption::TYPE | interruption::VECTOR;
    let double = interruption::VALID | interruption::HARDWARE_EXCEPTION | u32::from(vector::DF);
    match exit.basic() {
        reason::TRIPLE_FAULT => true,
        reason::EXCEPTION_NMI => exit.interruption & asked == double,
        _ => false,
    }
}
