//! Stops: where a debugger wants the processors to stop, without a trace in the guest and on the ledger.
//!
//! Interrupts come between blocks, so that a block which were split at a breakpoint would change when they come. Blocks therefore stay as
//! they are: one with a breakpoint in it is not translated, and the processor can stop between any two of its instructions, with the
//! block charged as a whole, and go on there later ([`Held`]). Nor are blocks dropped when a breakpoint comes or goes, as writes to decoded code are
//! noticed.
//!
//! While there is more to look for than breakpoints (watchpoints, a step, a count of instructions), all blocks run that way, and repeated
//! string instructions stop after each iteration. Watched pages stay out of the fast path for data, so that each access to them is seen.
//!
//! The instructions that a debugger sees are counted, on all processors together: a count names a point of the run, at which a second run of the
//! same guest can be stopped again.

use crate::cache::BlockCache;
use crate::fault::Cause;
use crate::flags::Lazy;
use crate::op::Op;
use crate::ram::GROUP;
use crate::run::Exit;
use crate::state::Cpu;
use crate::translate::Before;
use ledger::{OriginId, Ticks};
use rustc_hash::FxHashSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use x86::page::PAGE;
use x86::reg;

use crate::arch::NOT_LOADED;
use crate::cache::NONE;

/// Which accesses a watchpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// Both.
    Both,
}

/// Linear addresses that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The first one.
    pub start: u64,
    /// How many; not 0.
    pub len: u64,
    /// The accesses to them that count.
    pub kind: Watched,
}

impl Watch {
    /// The first of its addresses that an access touches.
    fn touched(&self, linear: u64, size: u64, write: bool) -> Option<u64> {
        let counts = match self.kind {
            Watched::Write => write,
            Watched::Read => !write,
            Watched::Both => true,
        };
        let from = linear.max(self.start);
        // Ranges may end at the end of all addresses.
        let (last, own) = (linear.wrapping_add(size - 1), self.start.wrapping_add(self.len - 1));
        (counts && from <= last.min(own)).then_some(from)
    }
}

/// Why a processor has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// The last instruction touched this watched address.
    Watch(u64, Watched),
    /// An instruction has been executed.
    Step,
    /// So many instructions have begun as [`Stops::stop_at`] wanted.
    Reached,
}

/// A point of the run: so many instructions have begun, and the last of them has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Instructions, since [`Stops::restart`].
    pub begun: u64,
    /// The next one is about to begin: interrupts that come before it have come.
    pub late: bool,
}

/// Where a processor is, as a second run of the same guest finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub processor: usize,
    /// Its clock.
    pub clock: Ticks,
    /// RIP.
    pub rip: u64,
    /// As in [`Count`].
    pub late: bool,
}

impl Place {
    /// Where a processor is.
    pub fn of(cpu: &Cpu, late: bool) -> Self {
        Self { processor: cpu.wiring.index, clock: cpu.micro.clock, rip: cpu.arch.rip, late }
    }
}

/// What a debugger waits for on all processors of a machine.
#[derive(Debug, Default)]
pub struct Stops {
    begun: Cell<u64>,
    counting: Cell<bool>,
    step: Cell<Option<usize>>,
    target: Cell<Option<Count>>,
    place: Cell<Option<Place>>,
    watches: RefCell<Vec<Watch>>,
    touched: Cell<Option<(u64, Watched)>>,
    why: Cell<Option<Why>>,
    ignoring: Cell<bool>,
    /// For the processor that steps backwards: before which instructions of its own it has been.
    last_of: Cell<Option<(usize, u64)>>,
}

impl Stops {
    /// Counts instructions from 0 on, which takes that all of them are looked at, or counts none.
    pub fn restart(&self, counting: bool) {
        self.begun.set(0);
        self.counting.set(counting);
    }

    /// Goes on counting.
    pub fn keep_counting(&self) {
        self.counting.set(true);
    }

    /// Instructions begun.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Stops a processor after its next instruction, or none.
    pub fn step(&self, processor: Option<usize>) {
        self.step.set(processor);
    }

    /// Stops at a count, or at none.
    pub fn stop_at(&self, target: Option<Count>) {
        self.target.set(target);
    }

    /// Stops at a place, or at none.
    pub fn stop_in(&self, place: Option<Place>) {
        self.place.set(place);
    }

    /// Leaves breakpoints and watchpoints alone.
    pub fn ignore(&self, ignoring: bool) {
        self.ignoring.set(ignoring);
    }

    /// Notes when a processor begins instructions, from none on; see [`Stops::last_of`].
    pub fn follow(&self, processor: Option<usize>) {
        self.last_of.set(processor.map(|processor| (processor, u64::MAX)));
    }

    /// How many instructions had begun before the last one that the followed processor began.
    pub fn last_of(&self) -> Option<u64> {
        self.last_of.get().map(|(_, begun)| begun).filter(|begun| *begun != u64::MAX)
    }

    /// Waits for nothing but breakpoints and watchpoints.
    pub fn clear(&self) {
        self.step.set(None);
        self.target.set(None);
        self.place.set(None);
        self.touched.set(None);
        self.why.set(None);
        self.last_of.set(None);
        self.counting.set(false);
        self.ignoring.set(false);
    }

    /// Adds a watchpoint, for the processors of which each must follow with [`Cpu::watches_changed`].
    pub fn watch(&self, watch: Watch) {
        self.watches.borrow_mut().push(watch);
    }

    /// Removes one such watchpoint. Whether there was any.
    pub fn unwatch(&self, watch: Watch) -> bool {
        let mut watches = self.watches.borrow_mut();
        let found = watches.iter().position(|w| *w == watch);
        found.map(|at| watches.swap_remove(at)).is_some()
    }

    /// Removes all watchpoints.
    pub fn unwatch_all(&self) {
        self.watches.borrow_mut().clear();
    }

    /// Why a processor has stopped.
    pub fn take_why(&self) -> Option<Why> {
        self.why.take()
    }

    /// The watchpoints.
    pub fn watches(&self) -> Vec<Watch> {
        self.watches.borrow().clone()
    }

    /// Each instruction is looked at.
    fn cautious(&self) -> bool {
        let watching = !self.ignoring.get() && !self.watches.borrow().is_empty();
        self.counting.get()
            || self.step.get().is_some()
            || self.target.get().is_some()
            || self.place.get().is_some()
            || watching
    }

    /// Whether data at a linear address must stay out of the fast path: where a page of its group is watched.
    fn covers(&self, linear: u64) -> bool {
        let group = !(GROUP as u64 * PAGE - 1);
        let first = linear & group;
        let holds = |w: &Watch| w.touched(first, GROUP as u64 * PAGE, w.kind != Watched::Read).is_some();
        self.watches.borrow().iter().any(holds)
    }
}

/// A block that has been charged as a whole, and of which some operations have yet to run.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    index: u32,
    origin: OriginId,
    at: usize,
}

/// A repeated string instruction that has been stopped between two iterations: how many are done, which are charged all at once, and the
/// flags from before the first.
#[derive(Clone, Copy, Debug)]
pub struct Iterated {
    /// Iterations done.
    pub done: u64,
    /// The flags as they were.
    pub before: Lazy,
}

/// What a processor keeps for a debugger.
#[derive(Debug, Default)]
pub struct Stopping {
    /// What the debugger waits for, if there is one.
    pub(crate) stops: Option<Rc<Stops>>,
    held: Option<Held>,
    /// The debugger is gone, but for the block that is held.
    leaving: bool,
    /// The debugger has seen the processor before this instruction.
    passed: Option<u64>,
    /// RIP and RCX when the last instruction began.
    began: Option<(u64, u64)>,
    /// There has been a VM exit since then: the same instruction may begin once more.
    pub(crate) exited: bool,
    /// Repeated string instructions stop after each iteration.
    pub(crate) iterating: bool,
    /// One that has.
    pub(crate) iterated: Option<Iterated>,
}

/// The breakpoints of a machine: linear addresses.
#[derive(Clone, Debug, Default)]
pub struct Breakpoints {
    addresses: FxHashSet<u64>,
    /// Where in their pages they are.
    offsets: FxHashSet<u64>,
}

impl Breakpoints {
    /// Whether an instruction at this linear address has one.
    #[inline]
    pub(crate) fn contains(&self, linear: u64) -> bool {
        !self.addresses.is_empty() && self.addresses.contains(&linear)
    }

    pub(crate) fn insert(&mut self, linear: u64) -> bool {
        self.offsets.insert(linear & (PAGE - 1));
        self.addresses.insert(linear)
    }

    pub(crate) fn remove(&mut self, linear: u64) -> bool {
        let was = self.addresses.remove(&linear);
        self.offsets = self.addresses.iter().map(|linear| linear & (PAGE - 1)).collect();
        was
    }

    /// Whether an operation of a block at a physical address may have one: a block does not know the base of its segment, but where it is in
    /// its page.
    pub(crate) fn may_be_in(&self, physical: u64, ops: &[Op]) -> bool {
        if self.addresses.is_empty() {
            return false;
        }
        let Some(first) = ops.first().map(Op::rip) else { return false };
        ops.iter().any(|op| self.offsets.contains(&(physical.wrapping_add(op.rip().wrapping_sub(first)) & (PAGE - 1))))
    }

    /// The addresses, in order.
    pub fn addresses(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.addresses.iter().copied().collect();
        all.sort_unstable();
        all
    }
}

impl Cpu {
    /// Lets a debugger wait for this processor.
    pub fn debug(&mut self, stops: Rc<Stops>) {
        self.engine.stopping.leaving = false;
        self.engine.stopping.stops = Some(stops);
    }

    /// Watches linear addresses, for all processors with these stops; each of them must then [forget](Self::watches_changed) what its fast
    /// path knows.
    pub fn watches_changed(&mut self) {
        let space = self.micro.tlb.context().key(self.pcid());
        self.engine.front.forget(|_| true);
        self.engine.front.enter(space, self.wiring.ram.epoch());
        self.engine.fetch.leave();
        self.access_changed();
    }

    /// The debugger is gone. A block in the midst of which the processor stands must yet be finished as it was begun.
    pub fn leave_alone(&mut self) {
        self.engine.stopping.passed = None;
        self.engine.stopping.began = None;
        match self.engine.stopping.held {
            None => self.engine.stopping.stops = None,
            Some(_) => self.engine.stopping.leaving = true,
        }
    }

    /// The debugger has seen the processor where it is now: no breakpoint stops it there.
    pub fn seen(&mut self) {
        self.engine.stopping.passed = Some(self.code_linear());
    }

    /// Gives up what is left of a block in the midst of which a debugger has stopped the processor, as it is made to go on elsewhere.
    pub fn abandon_block(&mut self, cache: &mut BlockCache) {
        self.engine.stopping.iterated = None;
        self.engine.stopping.passed = None;
        self.engine.stopping.began = None;
        if let Some(Held { index, origin, at }) = self.engine.stopping.held.take() {
            self.uncharge(cache, index, origin, at);
        }
        self.engine.fetch.leave();
    }

    /// Takes the count of the block back in the midst of which a debugger has stopped the processor, or counts it again: in between, counts can be
    /// handed to the recorder.
    pub fn count_held(&self, cache: &mut BlockCache, counted: bool) {
        if let (Some(Held { index, origin, .. }), true) = (self.engine.stopping.held, self.wiring.model.recorded) {
            match counted {
                true => cache.count(index, origin, &self.wiring.recorder),
                false => cache.uncount(index, origin),
            }
        }
    }

    /// Whether a page at `linear` must stay out of the fast path.
    #[inline]
    pub(crate) fn is_watched(&self, linear: u64) -> bool {
        self.engine.stopping.stops.as_ref().is_some_and(|stops| stops.covers(linear))
    }

    /// Notes an access if it is watched.
    #[inline]
    pub(crate) fn note_watched(&mut self, linear: u64, size: u64, write: bool) {
        if let Some(stops) = &self.engine.stopping.stops {
            let watches = stops.watches.borrow();
            let touched = watches.iter().find_map(|w| Some((w.touched(linear, size, write)?, w.kind)));
            if touched.is_some() && !stops.ignoring.get() {
                stops.touched.set(touched);
            }
        }
    }

    /// Whether a debugger wants the processor to stop before the instruction at RIP. If not, that instruction begins.
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
        let target = Count { begun: stops.begun.get(), late: true };
        let reached =
            stops.target.get() == Some(target) || stops.place.get().is_some_and(|place| place == Place::of(self, true));
        let why = if reached {
            Some(Why::Reached)
        } else if passed {
            None
        } else if !stops.ignoring.get() && cache.breakpoints.contains(linear) {
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
            stops.last_of.set(Some((index, stops.begun.get())));
        }
        self.engine.stopping.began = here;
        stops.begun.set(stops.begun.get() + 1);
        false
    }

    /// Whether the processor is to stop after the instruction that it has just executed.
    pub fn stops_after(&mut self) -> bool {
        let Some(stops) = &self.engine.stopping.stops else { return false };
        let early = Count { begun: stops.begun.get(), late: false };
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

    /// [`Cpu::run`] for a processor with a debugger.
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
                if stops.why.get().is_some() {
                    return Exit::Debug;
                }
                (led, before) = (Before::Nothing, NONE);
                continue;
            };
            if cache.blocks[index as usize].probe && self.stops_at_probe() {
                return Exit::Probe;
            }
            if stops.cautious() || cache.blocks[index as usize].breakpoint {
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

    /// Charges a block none of whose operations has run yet.
    fn charge_block(&mut self, cache: &mut BlockCache, index: u32) -> Held {
        if self.wiring.model.recorded {
            cache.count(index, self.engine.origin, &self.wiring.recorder);
        }
        self.micro.clock += cache.blocks[index as usize].cost;
        Held { index, origin: self.engine.origin, at: 0 }
    }

    /// Runs what is left of a block, looking before and after each instruction.
    fn attended_block(&mut self, cache: &mut BlockCache, held: Held, stops: &Stops) -> Option<Exit> {
        let Held { index, origin, mut at } = held;
        while let Some(op) = cache.ops_of(index).get(at).copied() {
            let here = Held { index, origin, at };
            if self.stops_after() || self.stops_here(cache) {
                self.engine.stopping.held = Some(here);
                return Some(Exit::Debug);
            }
            self.arch.rip = op.next;
            self.engine.ilen = op.len;
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
                    // An instruction that faults has accessed nothing.
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
