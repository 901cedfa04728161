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

use crate::flags::Lazy;
use crate::ram::GROUP;
use ledger::{OriginId, Ticks};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use x86::page::PAGE;

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
    pub(crate) fn touched(&self, linear: u64, size: u64, write: bool) -> Option<u64> {
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

/// What a debugger waits for on all processors of a machine.
#[derive(Debug, Default)]
pub struct Stops {
    pub(crate) begun: Cell<u64>,
    pub(crate) counting: Cell<bool>,
    pub(crate) step: Cell<Option<usize>>,
    pub(crate) target: Cell<Option<Count>>,
    pub(crate) place: Cell<Option<Place>>,
    pub(crate) watches: RefCell<Vec<Watch>>,
    pub(crate) touched: Cell<Option<(u64, Watched)>>,
    pub(crate) why: Cell<Option<Why>>,
    pub(crate) ignoring: Cell<bool>,
    /// For the processor that steps backwards: before which instructions of its own it has been.
    pub(crate) last_of: Cell<Option<(usize, u64)>>,
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

    /// Adds a watchpoint. Each processor must then be told with [`Cpu::watches_changed`](crate::Cpu::watches_changed).
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
    pub(crate) fn cautious(&self) -> bool {
        let watching = !self.ignoring.get() && !self.watches.borrow().is_empty();
        self.counting.get()
            || self.step.get().is_some()
            || self.target.get().is_some()
            || self.place.get().is_some()
            || watching
    }

    /// Whether data at a linear address must stay out of the fast path: where a page of its group is watched.
    pub(crate) fn covers(&self, linear: u64) -> bool {
        let group = !(GROUP as u64 * PAGE - 1);
        let first = linear & group;
        let holds = |w: &Watch| w.touched(first, GROUP as u64 * PAGE, w.kind != Watched::Read).is_some();
        self.watches.borrow().iter().any(holds)
    }
}

/// A block that has been charged as a whole, and of which some operations have yet to run.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub(crate) index: u32,
    pub(crate) origin: OriginId,
    pub(crate) at: usize,
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
    pub(crate) held: Option<Held>,
    /// The debugger is gone, but for the block that is held.
    pub(crate) leaving: bool,
    /// The debugger has seen the processor before this instruction.
    pub(crate) passed: Option<u64>,
    /// RIP and RCX when the last instruction began.
    pub(crate) began: Option<(u64, u64)>,
    /// There has been a VM exit since then: the same instruction may begin once more.
    pub(crate) exited: bool,
    /// Repeated string instructions stop after each iteration.
    pub(crate) iterating: bool,
    /// One that has.
    pub(crate) iterated: Option<Iterated>,
}
