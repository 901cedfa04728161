//! How a processor follows who is charged: see [`crate::charged`].

use crate::charged::{Charged, Nesting};
use crate::state::Cpu;
use crate::vmx::NonRoot;
use ledger::{Origin, OriginId};
use x86::control::CR0_PG;

impl Cpu {
    /// Sets who is charged from now on.
    pub fn set_charged(&mut self, charged: Charged) {
        self.micro.charged = charged;
        self.origin_changed();
    }

    /// A handler of an event begins: whatever its delivery costs is charged to it.
    pub(crate) fn handler_begins(&mut self, interrupt: bool) {
        self.micro.probe_passed = false;
        self.micro.charged.nesting.enter(interrupt);
        if interrupt {
            self.origin_changed();
        }
    }

    /// A handler that was about to begin does not: the guest is left before.
    pub(crate) fn handler_abandoned(&mut self) {
        self.micro.charged.nesting.leave();
        self.origin_changed();
    }

    /// IRET has returned to the current privilege level: no handler has interrupted another that runs in user mode. Who is charged is
    /// found when the change of mode is followed.
    pub(crate) fn handler_ends(&mut self) {
        match self.arch.cpl {
            3 => self.micro.charged.nesting = Nesting::default(),
            _ => self.micro.charged.nesting.leave(),
        }
    }

    /// Follows a change of level, CPL, CR3 or of what the board says: who is charged from now on.
    pub fn origin_changed(&mut self) {
        if self.engine.emulation.is_some() {
            return;
        }
        if !self.wiring.model.recorded {
            return;
        }
        let own = if self.arch.cr0 & CR0_PG != 0 { self.arch.cr3 & x86::page::ADDRESS } else { 0 };
        let Charged { task, region, .. } = self.micro.charged;
        let host = Origin {
            guest: self.guest_of_software().unwrap_or_default(),
            region,
            level: 0,
            ring: self.arch.cpl,
            context: self.micro.charged.context(),
            task,
            space: self.micro.charged_space.unwrap_or(own),
        };
        let mut recorder = self.wiring.recorder.borrow_mut();
        self.engine.host_origin = recorder.origin(host);
        self.engine.origin = match self.micro.level {
            0 => self.engine.host_origin,
            level => recorder.origin(Origin { level, ..host }),
        };
    }

    /// In non-root mode of a hypervisor that runs on the machine: which of its guests runs ([`Origin::guest`]).
    pub fn guest_of_software(&self) -> Option<u64> {
        let NonRoot { active, ept, controls, operation, inner, .. } = &*self.arch.vmx;
        if inner.is_some() {
            return *inner;
        }
        if !active || !operation.is_on() {
            return None;
        }
        if *ept { Some(controls.eptp & x86::page::ADDRESS) } else { operation.current().map(|(address, _)| address) }
    }

    /// Whether a hypervisor runs on the machine: its software has entered VMX operation, the processor's or one that is emulated.
    pub fn has_hypervisor(&self) -> bool {
        self.arch.vmx.guest_operation || self.arch.vmx.operation.is_on()
    }

    /// Who is charged where no guest code runs yet.
    pub(crate) fn first_origin(recorder: &std::cell::RefCell<ledger::Recorder>) -> OriginId {
        recorder.borrow_mut().origin(Origin::default())
    }
}
