//! Tracking of stays in the kernel: see [`crate::stays`].

use crate::charged::Charged;
use crate::exec::interrupt::{Event, Source};
use crate::state::Cpu;
use crate::stays::{Open, Suspended};
use ledger::{Context, Entry, Gate, Kind, Origin, Ticks};
use x86::reg;

/// The vector of system calls of 32-bit Linux programs.
const CALL_VECTOR: u8 = 0x80;

impl Cpu {
    /// Returns true if stays are recorded in the current mode. Guests of a hypervisor on the machine have kernels of their own, whose tasks
    /// are not known.
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
        let Charged { task, region, .. } = self.micro.charged;
        let level = self.micro.level;
        let recorder = &mut self.wiring.recorder;
        let origin = recorder.origin(Origin { task, region, context, ..Origin::new(level, 0, 0) });
        recorder.add_stay(origin, entry, spent, nested);
    }

    /// Charges an event by which a kernel protects itself.
    pub(crate) fn charge_mitigation(&mut self, kind: Kind) {
        let before = self.micro.clock;
        self.charge(kind, 1);
        self.micro.stays.mitigation += self.micro.clock - before;
    }

    /// Leaves time that passed while the processor was halted out of all stays.
    pub(crate) fn stays_halted(&mut self, ticks: Ticks) {
        self.micro.stays.settle(self.micro.clock - ticks);
        self.micro.stays.skip(self.micro.clock);
    }

    /// Takes the stays of the current task away, because the kernel switches to another task. Interrupts end here: for the
    /// next task they are over.
    pub fn suspend_stays(&mut self) -> Suspended {
        self.micro.stays.settle(self.micro.clock);
        let interrupt = |open: &Open| open.context == Context::Interrupt;
        if let Some(depth) = self.micro.stays.open.iter().position(interrupt) {
            self.end_stays(depth);
        }
        Suspended { open: std::mem::take(&mut self.micro.stays.open), charged: self.micro.charged }
    }

    /// Gives the current task its stays back.
    pub fn resume_stays(&mut self, suspended: Suspended) {
        self.micro.stays.open = suspended.open;
        self.micro.stays.skip(self.micro.clock);
    }

    /// Ends the stays of a task that will not run again.
    pub fn end_suspended(&mut self, suspended: Suspended) {
        let Suspended { open, charged } = suspended;
        let current = std::mem::replace(&mut self.micro.stays.open, open);
        let own = std::mem::replace(&mut self.micro.charged, charged);
        self.end_stays(0);
        (self.micro.stays.open, self.micro.charged) = (current, own);
    }

    /// Ends the stays of the current task at the end of the run.
    pub fn end_current_stays(&mut self) {
        self.micro.stays.settle(self.micro.clock);
        self.end_stays(0);
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
