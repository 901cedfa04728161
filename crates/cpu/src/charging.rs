//! Tracking of the origin to which a processor's activity is charged: see [`crate::charged`].

use crate::charged::{Charged, Nesting};
use crate::state::Cpu;
use crate::vmx::NonRoot;
use ledger::{Family, Kind, Origin};
use x86::control::CR0_PG;

impl Cpu {
    /// Sets the charged task, region and context from now on.
    pub fn set_charged(&mut self, charged: Charged) {
        self.micro.charged = charged;
        self.origin_changed();
    }

    /// Begins the handler of an event: the cost of the delivery is charged to it.
    pub(crate) fn handler_begins(&mut self, interrupt: bool) {
        self.micro.probe_passed = false;
        self.micro.charged.nesting.enter(interrupt);
        if interrupt {
            self.origin_changed();
        }
    }

    /// Abandons a handler that was about to begin: a VM exit precedes it.
    pub(crate) fn handler_abandoned(&mut self) {
        self.event_abandoned();
        self.micro.charged.nesting.leave();
        self.origin_changed();
    }

    /// Records that IRET has returned to the current privilege level: a handler never interrupts another one that runs
    /// in user mode. The origin is updated with the change of mode.
    pub(crate) fn handler_ends(&mut self) {
        self.stay_ends(self.arch.cpl == 3, Kind::new(Family::Iret, 0));
        match self.arch.cpl {
            3 => self.micro.charged.nesting = Nesting::default(),
            _ => self.micro.charged.nesting.leave(),
        }
    }

    /// Updates the origin after a change of level, CPL, CR3 or charged task.
    pub(crate) fn origin_changed(&mut self) {
        if self.engine.emulation.is_some() {
            return;
        }
        if !self.wiring.model.recorded {
            return;
        }
        let own = if self.arch.cr0 & CR0_PG != 0 { self.arch.cr3 & x86::page::ADDRESS } else { 0 };
        let guest = self.guest_of_software();
        let charged = &self.micro.charged;
        let (task, context) = charged.own(guest.is_some());
        let host = Origin {
            guest: guest.unwrap_or_default(),
            region: charged.region,
            level: 0,
            ring: self.arch.cpl,
            context,
            task,
            space: self.micro.charged_space.unwrap_or(own),
        };
        let recorder = &mut self.wiring.recorder;
        self.engine.host_origin = recorder.origin(host);
        self.engine.origin = match self.micro.level {
            0 => self.engine.host_origin,
            level => {
                let (task, context) = if guest.is_some() { self.micro.charged.inner() } else { (task, context) };
                recorder.origin(Origin { level, task, context, ..host })
            }
        };
        if self.micro.tally.is_on() {
            self.note_origin();
        }
    }

    /// Returns the current guest ([`Origin::guest`]) in non-root mode of a hypervisor that runs on the machine.
    pub fn guest_of_software(&self) -> Option<u64> {
        let NonRoot { active, ept, controls, operation, inner, .. } = &*self.arch.vmx;
        if let Some(inner) = inner {
            return Some(inner.name);
        }
        if !active || !operation.is_on() {
            return None;
        }
        if *ept { Some(controls.eptp & x86::page::ADDRESS) } else { operation.current().map(|(address, _)| address) }
    }

    /// Returns true if a hypervisor runs on the machine: its software has entered VMX operation, real or emulated.
    pub fn has_hypervisor(&self) -> bool {
        self.arch.vmx.guest_operation || self.arch.vmx.operation.is_on()
    }
}
