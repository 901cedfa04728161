//! Tracking of stays in the kernel: see [`crate::stays`].

use crate::charged::Charged;
use crate::exec::interrupt::{Event, Source};
use crate::state::Cpu;
use crate::stays::{Exited, Open, Suspended};
use ledger::{Context, Entry, Family, Gate, Kind, Origin, Stay, Ticks};
use x86::reg;

/// The vector of system calls of 32-bit Linux programs.
const CALL_VECTOR: u8 = 0x80;

impl Cpu {
    /// Returns true if stays are recorded in the current mode. Guests of a hypervisor on the machine have kernels of their own, of which only the
    /// exits are recorded.
    #[inline]
    fn records_stays(&self) -> bool {
        self.wiring.model.recorded && !(self.arch.vmx.active && self.guest_of_software().is_some())
    }

    fn begin_stay(&mut self, entry: Entry, started: Ticks, enter: Ticks) {
        let stays = &mut self.micro.stays;
        stays.settle(started);
        stays.push(entry, enter);
    }

    /// Returns the number of a system call that is about to begin.
    fn call_number(&self) -> u32 {
        self.arch.gpr[usize::from(reg::RAX)] as u32
    }

    /// Begins the stay of a system call, before its charge.
    pub(crate) fn call_begins(&mut self, long: bool, kind: Kind) {
        if self.records_stays() {
            let entry = Entry::new(if long { Gate::Call } else { Gate::Call32 }, self.call_number());
            self.begin_stay(entry, self.micro.clock, self.wiring.model.price(kind));
        }
    }

    /// Begins the stay of an event, whose delivery began at `started`.
    pub(crate) fn event_begins(&mut self, event: &Event, started: Ticks) {
        if !self.records_stays() {
            return;
        }
        let (gate, number) = match event.source {
            Source::Exception => (Gate::Exception, u32::from(event.vector)),
            Source::External => (Gate::Interrupt, u32::from(event.vector)),
            Source::Nmi => (Gate::Nmi, 0),
            Source::Int if event.vector == CALL_VECTOR => (Gate::Call32, self.call_number()),
            Source::Int | Source::Trap | Source::Int1 => (Gate::Software, u32::from(event.vector)),
        };
        self.begin_stay(Entry::new(gate, number), started, self.wiring.model.price(event.kind()));
    }

    /// Drops the stay of an event that is not delivered after all.
    pub(crate) fn event_abandoned(&mut self) {
        if self.records_stays() {
            self.micro.stays.settle(self.micro.clock);
            self.micro.stays.pop();
        }
    }

    /// Ends all stays with a return to user mode, or the innermost one that a handler began with a return within the kernel.
    pub(crate) fn stay_ends(&mut self, to_user: bool, way_out: Kind) {
        if self.micro.stays.open.is_empty() || !self.records_stays() {
            return;
        }
        self.micro.stays.settle(self.micro.clock);
        let leave = self.wiring.model.price(way_out);
        let is_handler = |open: &Open| !matches!(open.entry.gate, Gate::Call | Gate::SoftInterrupts);
        if let Some(open) = self.micro.stays.open.last_mut().filter(|open| to_user || is_handler(open)) {
            open.spent.leave = leave;
            self.end_stays(if to_user { 0 } else { self.micro.stays.open.len() - 1 });
        }
    }

    /// Ends the stays from this depth on.
    fn end_stays(&mut self, depth: usize) {
        while self.micro.stays.open.len() > depth
            && let Some(open) = self.micro.stays.pop()
        {
            self.record_stay(open);
        }
    }

    fn record_stay(&mut self, Open { entry, context, spent, nested }: Open) {
        self.record_in(self.micro.level, context, entry, spent, nested);
    }

    fn record_in(&mut self, level: u8, context: Context, entry: Entry, spent: Stay, nested: bool) {
        let Charged { task, region, .. } = self.micro.charged;
        let recorder = &mut self.wiring.recorder;
        let origin = recorder.origin(Origin { task, region, context, ..Origin::new(level, 0, 0) });
        recorder.add_stay(origin, entry, spent, nested);
    }

    /// Begins the stay of a VM exit of the processor, which began at `started`.
    pub(crate) fn exit_begins(&mut self, reason: u32, started: Ticks) {
        if !self.wiring.model.recorded {
            return;
        }
        let nested = self.arch.vmx.inner.is_some();
        let entry = Entry::new(if nested { Gate::NestedExit } else { Gate::VmExit }, reason);
        if nested || !self.arch.vmx.operation.is_on() {
            self.micro.stays.outside = Some((entry, started));
            return;
        }
        let enter = self.wiring.model.price(Kind::new(Family::VmExit, reason));
        self.micro.stays.settle(started);
        self.micro.stays.exited = Some(Exited { entry, spent: Stay { enter, ..Stay::default() }, arrives: None });
    }

    /// Begins the stay of a nested guest's exit in its own hypervisor, to which the board's hypervisor has passed it on.
    pub(crate) fn exit_begins_in_software(&mut self, reason: u32) {
        if self.wiring.model.recorded {
            let started = self.micro.stays.outside.map_or(self.micro.clock, |outside| outside.1);
            self.micro.stays.settle(started);
            let entry = Entry::new(Gate::VmExit, reason);
            self.micro.stays.exited = Some(Exited { entry, spent: Stay::default(), arrives: Some(started) });
        }
    }

    /// Ends the stays of VM exits with an entry of the processor, which has been charged.
    pub(crate) fn exits_end(&mut self) {
        if !self.wiring.model.recorded {
            return;
        }
        let now = self.micro.clock;
        let entry_price = self.wiring.model.price(Kind::new(Family::VmEntry, 0));
        let Some((entry, started)) = self.micro.stays.outside.take() else {
            if self.arch.vmx.operation.is_on() {
                self.exit_ends(0, entry_price);
            }
            return;
        };
        let enter = self.wiring.model.price(Kind::new(Family::VmExit, entry.number));
        let ticks = now.saturating_sub(started);
        self.record_in(0, Context::Task, entry, Stay { ticks, enter, leave: entry_price, mitigation: 0 }, false);
        if self.arch.vmx.inner.is_some() {
            self.exit_ends(1, ticks);
        } else if let Some(exited) = &mut self.micro.stays.exited
            && let Some(since) = exited.arrives.take()
        {
            exited.spent.enter = now.saturating_sub(since);
        }
    }

    /// Ends the stay in the hypervisor on the machine, which is on this level.
    fn exit_ends(&mut self, level: u8, leave: Ticks) {
        self.micro.stays.settle(self.micro.clock);
        if let Some(Exited { entry, spent, .. }) = self.micro.stays.exited.take() {
            self.record_in(level, Context::Task, entry, Stay { leave, ..spent }, false);
        }
    }

    /// Charges an event by which a kernel protects itself.
    pub(crate) fn charge_mitigation(&mut self, kind: Kind) {
        let before = self.micro.clock;
        self.charge(kind, 1);
        self.micro.stays.mitigation += self.micro.clock - before;
    }

    /// Leaves time that passed while the processor was halted out of all stays.
    pub(crate) fn stays_halted(&mut self, ticks: Ticks) {
        let stays = &mut self.micro.stays;
        stays.settle(self.micro.clock - ticks);
        stays.skip(self.micro.clock);
        if let Some((_, started)) = &mut stays.outside {
            *started += ticks;
        }
    }

    /// Takes the stays of the current task away, because the kernel switches to another task. Interrupts end here: for the
    /// next task they are over.
    pub fn suspend_stays(&mut self) -> Suspended {
        self.micro.stays.settle(self.micro.clock);
        let interrupt = |open: &Open| open.context == Context::Interrupt;
        if let Some(depth) = self.micro.stays.open.iter().position(interrupt) {
            self.end_stays(depth);
        }
        let stays = &mut self.micro.stays;
        Suspended { open: std::mem::take(&mut stays.open), exited: stays.exited.take(), charged: self.micro.charged }
    }

    /// Gives the current task its stays back.
    pub fn resume_stays(&mut self, suspended: Suspended) {
        (self.micro.stays.open, self.micro.stays.exited) = (suspended.open, suspended.exited);
        self.micro.stays.skip(self.micro.clock);
    }

    /// Ends the stays of a task that will not run again. A VM exit without an entry is not recorded.
    pub fn end_suspended(&mut self, suspended: Suspended) {
        let Suspended { open, charged, .. } = suspended;
        let current = std::mem::replace(&mut self.micro.stays.open, open);
        let own = std::mem::replace(&mut self.micro.charged, charged);
        self.end_stays(0);
        (self.micro.stays.open, self.micro.charged) = (current, own);
    }

    /// Ends the stays of the current task at the end of the run.
    pub fn end_current_stays(&mut self) {
        self.micro.stays.settle(self.micro.clock);
        self.end_stays(0);
        (self.micro.stays.exited, self.micro.stays.outside) = (None, None);
    }

    /// Begins the stay of soft interrupts.
    pub fn soft_interrupts_begin(&mut self) {
        self.begin_stay(Entry::new(Gate::SoftInterrupts, 0), self.micro.clock, 0);
    }

    /// Ends the stay of soft interrupts, and all within it.
    pub fn soft_interrupts_end(&mut self) {
        self.micro.stays.settle(self.micro.clock);
        let is_soft = |open: &Open| open.entry.gate == Gate::SoftInterrupts;
        if let Some(depth) = self.micro.stays.open.iter().rposition(is_soft) {
            self.end_stays(depth);
        }
    }
}
