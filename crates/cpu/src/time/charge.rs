//! Charges: time passes, and the ledger learns why.

use crate::access::Access;
use crate::fault::{Cause, Exec, Fault};
use crate::lines::read_lines;
use crate::micro::{LATEST, Micro};
use crate::op::Op;
use crate::ram::Ram;
use crate::state::Cpu;
use crate::time::memory::{self, LINE_SHIFT, Memory};
use crate::time::{Resolution, START};
use ledger::caches::Caches;
use ledger::{Class, Family, Kind, Operation, OriginId, Ticks};

/// Returns the kind of event of a hit in the second level of the TLB.
fn second_level(code: bool) -> Kind {
    Kind::new(if code { Family::StlbHitCode } else { Family::StlbHitData }, 0)
}

impl Cpu {
    /// Begins a run: the next instruction has no context, and waits for none in front of it. Events do so, and whoever continues the processor elsewhere.
    #[inline]
    pub fn begin_run(&mut self) {
        self.micro.run = START;
        self.micro.recent.cut();
    }

    /// Charges `count` events of one kind to the current instruction, at the model's price for each, and advances the
    /// clock.
    pub fn charge(&mut self, kind: Kind, count: u64) {
        let ticks = self.wiring.model.price(kind) * count;
        self.charge_ticks(kind, count, ticks);
    }

    /// Charges `count` steps of a hypervisor's software to the current instruction, at level 0.
    pub fn charge_host(&mut self, operation: Operation, count: u64) {
        self.charge_host_kind(Kind::operation(operation), count);
    }

    /// Charges `count` events that the processor or a hypervisor causes at level 0 on behalf of the current
    /// instruction.
    pub fn charge_host_kind(&mut self, kind: Kind, count: u64) {
        let ticks = self.wiring.model.price(kind).saturating_mul(count);
        self.micro.clock += ticks;
        self.redirect(kind);
        self.record(self.engine.host_origin, kind, count, ticks);
    }

    /// Charges an event whose price the caller knows (for example, time spent halted).
    pub fn charge_ticks(&mut self, kind: Kind, count: u64, ticks: Ticks) {
        if self.engine.emulation.is_some() {
            // The hypervisor has its own prices for emulated operations.
            return;
        }
        self.micro.clock += ticks;
        self.redirect(kind);
        self.record(self.engine.origin, kind, count, ticks);
    }

    fn record(&mut self, origin: OriginId, kind: Kind, count: u64, ticks: Ticks) {
        if self.wiring.model.recorded {
            let rip = self.arch.rip.wrapping_sub(u64::from(self.engine.ilen));
            self.put(origin, rip, kind, count, ticks);
            if self.wiring.observer.is_some() {
                self.observe(origin, rip, kind, count, ticks);
            }
        }
    }

    /// Passes a charge to the recorder, and to the performance counters.
    pub(crate) fn put(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        self.wiring.recorder.add(origin, rip, kind, count, ticks);
        if self.micro.tally.is_on() {
            self.tally(origin, kind, count, ticks);
        }
    }

    /// Sets the latest time at which the time-stamp counter may be read in the next turn: no other processor, and no
    /// event of the board, is behind it. A turn ends before an instruction that would read the counter later. So all
    /// processors read their counters in the order of time, as those of a machine with synchronized counters do, although
    /// one processor runs ahead of the others within its turn.
    pub fn set_time_limit(&mut self, limit: Ticks) {
        self.engine.time_limit = limit.min(LATEST) + self.class_price(Class::ReadTsc);
    }

    /// Returns the price of an instruction that is charged by its class alone, such as a step of a string operation.
    pub(crate) fn class_price(&self, class: Class) -> Ticks {
        self.wiring.model.price(Kind::new(Family::Instruction, class as u32))
    }

    /// Stops an instruction of `class` that reads the time-stamp counter while this processor is ahead of others. The
    /// class has been charged.
    pub(crate) fn in_time_order(&mut self, class: Class) -> Exec {
        let late =
            self.micro.clock + self.class_price(Class::ReadTsc) > self.engine.time_limit + self.class_price(class);
        // An emulated instruction can't restart.
        if late && self.engine.emulation.is_none() {
            self.engine.fault = Cause::Ahead;
            return Err(Fault);
        }
        Ok(())
    }

    /// Charges more instructions of a class that are not part of the block's count (iterations of string instructions).
    #[inline]
    pub fn charge_class(&mut self, class: Class, count: u64) {
        self.charge(Kind::new(Family::Instruction, class as u32), count);
    }

    /// Charges a translation of `linear` to `physical` by the second level of the TLB.
    pub(crate) fn charge_second_level(&mut self, linear: u64, physical: u64, access: Access) {
        let kind = second_level(access == Access::Fetch);
        let ticks = self.translation(linear, physical, access, self.wiring.model.price(kind), false);
        self.charge_ticks(kind, 1, ticks);
    }

    /// Returns the most that a translation of a data access by the second level of the TLB costs.
    pub(crate) fn most_of_second_level(&self) -> Ticks {
        let caches = self.wiring.model.geometry.caches.as_ref();
        self.wiring.model.price(second_level(false)) + caches.map_or(0, |caches| caches.l1d.latency)
    }

    /// Charges a translation of `linear` to `physical` by a page walk with this number of memory references.
    pub(crate) fn charge_walk(&mut self, linear: u64, physical: u64, access: Access, references: u32) {
        if references == 0 {
            return;
        }
        let code = access == Access::Fetch;
        let kind = Kind::new(if code { Family::TlbMissCode } else { Family::TlbMissData }, references);
        let now = if code { self.micro.clock } else { self.time_of_access().0 };
        let latency = match self.walk_in_caches(now) {
            Some(reads) => self.wiring.model.price(second_level(code)) + reads,
            None => self.wiring.model.price(kind),
        };
        let ticks = self.translation(linear, physical, access, latency, true);
        self.charge_ticks(kind, 1, ticks);
    }

    /// Returns the time that the reads of the last page walk, at `now`, take; `None` if caches are not modelled.
    fn walk_in_caches(&mut self, now: Ticks) -> Option<Ticks> {
        let pcid = self.pcid();
        let Micro { tlb, memory, .. } = &mut self.micro;
        let (memory, caches) = (memory.as_mut()?, self.wiring.model.geometry.caches.as_ref()?);
        let mut ticks = 0;
        tlb.walked(&self.engine.readings, pcid, |line| ticks += memory.read_entry(caches, line, now));
        Some(ticks)
    }

    /// Returns the time for which the core waits for a translation that takes `latency`: all of it, if caches are not modelled.
    fn translation(&mut self, linear: u64, physical: u64, access: Access, latency: Ticks, walks: bool) -> Ticks {
        let (clock, (now, began)) = (self.micro.clock, self.time_of_access());
        if access != Access::Fetch {
            let rip = self.arch.rip.wrapping_sub(u64::from(self.engine.ilen));
            let (line, write, locked) = (physical >> LINE_SHIFT, access.writes(), self.engine.locked);
            let access = memory::Access { line, linear, write, locked, rip, now, began };
            self.learn_chains(&access);
            return self.in_memory(latency, |memory, caches, ram| {
                memory.translate(caches, &access, latency, walks, &read_lines(ram))
            });
        }
        // Code is fetched before the block that it is of is charged.
        self.in_memory(latency, |memory, caches, _| memory.translate_code(caches, clock, latency, walks))
    }

    /// Returns a time in the model of caches, or `otherwise` without one.
    fn in_memory(&mut self, otherwise: Ticks, time: impl FnOnce(&mut Memory, &Caches, &Ram) -> Ticks) -> Ticks {
        match (&mut self.micro.memory, &self.wiring.model.geometry.caches) {
            (Some(memory), Some(caches)) => time(memory, caches, &self.wiring.ram),
            _ => otherwise,
        }
    }

    /// Records the direction of a conditional branch in the modelled predictor, and charges a misprediction.
    #[inline]
    pub(crate) fn conditional_branch(&mut self, op: &Op, taken: bool) {
        if self.wiring.model.recorded && !self.micro.predictor.conditional(op.rip(), taken) {
            self.charge_direction(op);
        }
        if taken {
            self.ask_for_branch(op);
        }
    }

    /// Charges the misprediction of a conditional branch: the refill, and the time until the condition is known, for which a
    /// predicted branch does not wait.
    pub(crate) fn charge_direction(&mut self, op: &Op) {
        let behind = self.late_behind_runs(op);
        self.charge_late_direction(op, behind);
    }

    /// Charges the misprediction of a conditional branch that waits for earlier runs for so long.
    pub(crate) fn charge_late_direction(&mut self, op: &Op, behind: Ticks) {
        let Resolution { elapsed, late, waits_for_load } = op.resolution();
        let kind = Kind::new(Family::BranchMiss, 0);
        let now = self.micro.clock.saturating_sub(self.engine.ahead);
        let memory = self.micro.memory.as_ref().filter(|_| waits_for_load);
        let missed = memory.map_or(0, |memory| memory.outstanding(now).saturating_sub(Ticks::from(elapsed)));
        self.charge_ticks(kind, 1, self.wiring.model.price(kind) + Ticks::from(late).max(behind).max(missed));
        self.micro.recent.cut();
    }

    /// Records an indirect branch in the modelled predictor, and charges a misprediction: the refill, and the time until the target is
    /// known. Returns true if the target was predicted.
    #[inline]
    pub(crate) fn indirect_branch(&mut self, op: &Op, target: u64) -> bool {
        let predicted = self.micro.predictor.indirect(op.rip(), target);
        if !predicted {
            let kind = Kind::new(Family::IndirectMiss, 0);
            self.charge_ticks(kind, 1, self.wiring.model.price(kind) + op.late());
            self.micro.recent.cut();
        }
        predicted
    }

    /// Records a near call in the modelled predictor.
    #[inline]
    pub(crate) fn near_call(&mut self, return_address: u64) {
        let entry = self.micro.predictor.call(return_address);
        // Translated code has not made this call.
        self.engine.returns.forget(entry);
    }

    /// Records a near return in the modelled predictor, and charges a misprediction. Returns true if the target was
    /// predicted.
    #[inline]
    pub(crate) fn near_return(&mut self, target: u64) -> bool {
        let predicted = self.micro.predictor.ret(target);
        self.engine.returned = predicted;
        if !predicted {
            self.charge(Kind::new(Family::ReturnMiss, 0), 1);
            self.micro.recent.cut();
        }
        predicted
    }
}
