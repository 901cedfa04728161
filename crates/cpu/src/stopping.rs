//! Stops of a processor for a debugger, and resumption: see [`crate::stops`].

use crate::arch::NOT_LOADED;
use crate::fault::Cause;
use crate::run::Exit;
use crate::state::Cpu;
use crate::stops::{Count, Held, Place, Stopping, Stops, Why};
use crate::translate::Before;
use crate::translate::BlockCache;
use crate::usage::NONE;
use ledger::Ticks;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use x86::reg;

impl Place {
    /// Returns the place of a processor.
    pub fn of(cpu: &Cpu, late: bool) -> Self {
        Self { processor: cpu.wiring.index, clock: cpu.micro.clock, rip: cpu.arch.rip, late }
    }
}

impl Cpu {
    /// Attaches a debugger's stops to this processor.
    pub fn debug(&mut self, stops: Arc<Stops>) {
        self.engine.stopping.leaving = false;
        self.engine.stopping.stops = Some(stops);
    }

    /// Handles a change of the watched linear addresses, which all processors with these stops share: the fast path is
    /// flushed.
    pub fn watches_changed(&mut self) {
        let space = self.micro.tlb.context().key(self.pcid());
        self.engine.front.forget();
        self.engine.front.enter(space, self.wiring.ram.epoch());
        self.engine.fetch.leave();
        self.access_changed();
    }

    /// Detaches the debugger. A partly executed block still has to be completed as it was begun.
    pub fn leave_alone(&mut self) {
        self.engine.stopping.passed = None;
        self.engine.stopping.began = None;
        match self.engine.stopping.held {
            None => self.engine.stopping.stops = None,
            Some(_) => self.engine.stopping.leaving = true,
        }
    }

    /// Records that the debugger has seen the processor at this point, where no breakpoint stops it again.
    pub fn seen(&mut self) {
        self.engine.stopping.passed = Some(self.code_linear());
    }

    /// Abandons the rest of a partly executed block, because the processor will continue elsewhere.
    pub fn abandon_block(&mut self, cache: &mut BlockCache) {
        self.engine.stopping.iterated = None;
        self.engine.stopping.passed = None;
        self.engine.stopping.began = None;
        if let Some(Held { index, origin, at }) = self.engine.stopping.held.take() {
            cache.turn(self.wiring.index);
            self.micro.run = self.place_in(cache, index, at);
            self.uncharge(cache, index, origin, at);
        }
        self.engine.fetch.leave();
    }

    /// Removes the count of a partly executed block, or adds it again, so that the counts can be passed to the recorder
    /// in between.
    pub fn count_held(&mut self, cache: &mut BlockCache, counted: bool) {
        if let (Some(Held { index, origin, .. }), true) = (self.engine.stopping.held, self.wiring.model.recorded) {
            cache.turn(self.wiring.index);
            match counted {
                true => cache.count(index, origin, &mut self.wiring.recorder),
                false => cache.uncount(index, origin),
            }
        }
    }

    /// Returns true if the page at `linear` must stay off the fast path.
    #[inline]
    pub(crate) fn is_watched(&self, linear: u64) -> bool {
        self.engine.stopping.stops.as_ref().is_some_and(|stops| stops.covers(linear))
    }

    /// Records an access if its address is watched.
    #[inline]
    pub(crate) fn note_watched(&mut self, linear: u64, size: u64, write: bool) {
        if let Some(stops) = &self.engine.stopping.stops {
            stops.access(linear, size, write);
        }
    }

    /// Returns true if the debugger stops the processor before the instruction at RIP. Otherwise that instruction
    /// begins.
    #[cold]
    pub fn stops_here(&mut self, cache: &BlockCache) -> bool {
        let Some(stops) = self.engine.stopping.stops.clone() else { return false };
        let linear = self.code_linear();
        let here = Some((self.arch.rip, self.reg(reg::RCX)));
        if std::mem::take(&mut self.engine.stopping.exited) && self.engine.stopping.began == here {
            return false;
        }
        let passed = self.engine.stopping.passed.take() == Some(linear);
        let index = self.wiring.index;
        let target = Count { begun: stops.begun(), late: true };
        let reached =
            stops.target.get() == Some(target) || stops.place.get().is_some_and(|place| place == Place::of(self, true));
        let why = if reached {
            Some(Why::Reached)
        } else if passed {
            None
        } else if !stops.ignoring.load(Relaxed) && cache.code.breakpoints.contains(linear) {
            Some(Why::Breakpoint)
        } else {
            (stops.step.get() == Some(index)).then_some(Why::Step)
        };
        if why.is_some() {
            self.engine.stopping.passed = Some(linear);
            self.engine.ilen = 0;
            stops.why.set(why);
            return true;
        }
        if stops.last_of.get().is_some_and(|(processor, _)| processor == index) {
            stops.last_of.set(Some((index, stops.begun())));
        }
        self.engine.stopping.began = here;
        stops.begun.fetch_add(1, Relaxed);
        false
    }

    /// Returns true if the processor should stop after the instruction that it has just executed.
    pub fn stops_after(&mut self) -> bool {
        let Some(stops) = &self.engine.stopping.stops else { return false };
        let early = Count { begun: stops.begun(), late: false };
        let why = match stops.touched.take() {
            Some((address, kind)) => Why::Watch(address, kind),
            None if stops.target.get() == Some(early) => Why::Reached,
            None if stops.place.get().is_some_and(|place| place == Place::of(self, false)) => Why::Reached,
            None => return false,
        };
        stops.why.set(Some(why));
        self.engine.ilen = 0;
        true
    }

    /// Runs as [`Cpu::run`] does, for a processor with a debugger.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_debugged(&mut self, cache: &mut BlockCache, deadline: Ticks, stops: &Stops) -> Exit {
        self.arch.vector.loaded = NOT_LOADED;
        let mut before = NONE;
        let mut led = Before::Nothing;
        match self.engine.stopping.held.take() {
            Some(held) => {
                if let Some(exit) = self.attended_block(cache, held, stops) {
                    return exit;
                }
            }
            None => self.arrive(deadline),
        }
        if self.engine.stopping.leaving {
            self.engine.stopping = Stopping::default();
            return self.run_on(cache);
        }
        loop {
            if self.stops_after() {
                return Exit::Debug;
            }
            if self.micro.clock >= self.engine.stop_at {
                led = Before::Nothing;
                if let Some(exit) = self.between_blocks(cache) {
                    return exit;
                }
                if self.stops_after() {
                    return Exit::Debug;
                }
                if self.micro.clock >= self.engine.stop_at {
                    continue;
                }
            }
            let Some(index) = self.next_block(cache, before, led) else {
                if stops.why.is_set() {
                    return Exit::Debug;
                }
                (led, before) = (Before::Nothing, NONE);
                continue;
            };
            if cache.code.blocks[index as usize].probe && self.stops_at_probe() {
                return Exit::Probe;
            }
            if stops.cautious() || cache.code.blocks[index as usize].breakpoint {
                led = Before::Nothing;
                let held = self.charge_block(cache, index);
                if let Some(exit) = self.attended_block(cache, held, stops) {
                    return exit;
                }
                before = index;
            } else if self.run_translated(cache, before, index, &mut led) {
                before = NONE;
            } else {
                led = Before::Nothing;
                self.run_block(cache, index);
                before = index;
            }
        }
    }

    /// Charges a block before any of its operations has been executed.
    fn charge_block(&mut self, cache: &mut BlockCache, index: u32) -> Held {
        if self.wiring.model.recorded {
            cache.count(index, self.engine.origin, &mut self.wiring.recorder);
        }
        self.enter_block(cache, index);
        Held { index, origin: self.engine.origin, at: 0 }
    }

    /// Executes the rest of a block, with checks before and after each instruction.
    fn attended_block(&mut self, cache: &mut BlockCache, held: Held, stops: &Stops) -> Option<Exit> {
        let Held { index, origin, mut at } = held;
        while let Some(op) = cache.code.ops_of(index).get(at).copied() {
            let here = Held { index, origin, at };
            if self.stops_after() || self.stops_here(cache) {
                self.engine.stopping.held = Some(here);
                return Some(Exit::Debug);
            }
            self.arch.rip = op.next;
            self.engine.ilen = op.len;
            if self.has_lines() {
                self.note_operation(cache, index, at);
            }
            if self.models_code() {
                self.ask_for_operation(cache, index, at);
            }
            self.engine.stopping.iterating = stops.cautious();
            let ran = (op.exec)(self, &op);
            self.engine.stopping.iterating = false;
            if ran.is_err() && self.engine.fault == Cause::Iteration {
                self.engine.fault = Cause::None;
                self.arch.rip = op.rip();
                continue;
            }
            if !matches!(ran, Ok(crate::fault::Flow::Next)) {
                if ran.is_err() {
                    // An instruction that faults has not accessed anything.
                    stops.touched.set(None);
                }
                self.end_block(cache, index, origin, at, ran);
                return None;
            }
            at += 1;
        }
        None
    }
}
