//! Stops: points at which a debugger stops the processors, without an effect on the guest or the ledger.
//!
//! Interrupts are taken between blocks, so splitting a block at a breakpoint would change their timing. Therefore
//! blocks remain unchanged: a block with a breakpoint is not translated, and the processor can stop between any two of
//! its instructions, with the block charged as a whole, and continue there later ([`Held`]). Blocks are not dropped
//! when a breakpoint is set or removed either, because the presence of a block determines whether writes to code are
//! noticed.
//!
//! While there are other stops than breakpoints (watchpoints, a step, a count of instructions), all blocks are executed
//! that way, and repeated string instructions stop after each iteration. Watched pages stay off the fast path for data,
//! so that each access to them is seen.
//!
//! The instructions that a debugger observes are counted, on all processors together: a count identifies a point of the
//! run at which a second run of the same guest can be stopped again.

use crate::bus::lock;
use crate::flags::Lazy;
use crate::ram::GROUP;
use ledger::{OriginId, Ticks};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use x86::page::PAGE;

/// Kinds of accesses that a watchpoint reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// Both.
    Both,
}

/// A range of watched linear addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// First address.
    pub start: u64,
    /// Length in bytes; not 0.
    pub len: u64,
    /// Kinds of accesses that are reported.
    pub kind: Watched,
}

impl Watch {
    /// Returns the first watched address that an access touches.
    pub(crate) fn touched(&self, linear: u64, size: u64, write: bool) -> Option<u64> {
        let counts = match self.kind {
            Watched::Write => write,
            Watched::Read => !write,
            Watched::Both => true,
        };
        let from = linear.max(self.start);
        // A range may end at the end of the address space.
        let (last, own) = (linear.wrapping_add(size - 1), self.start.wrapping_add(self.len - 1));
        (counts && from <= last.min(own)).then_some(from)
    }
}

/// Reason for which a processor has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// The last instruction touched this watched address.
    Watch(u64, Watched),
    /// An instruction has been executed.
    Step,
    /// The count given to [`Stops::stop_at`] has been reached.
    Reached,
}

/// A point of the run: the number of instructions begun, the last of which has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Number of instructions since [`Stops::restart`].
    pub begun: u64,
    /// True if the next instruction is about to begin: interrupts before it have been taken.
    pub late: bool,
}

/// Place of a processor, which a second run of the same guest reaches again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the processor.
    pub processor: usize,
    /// Clock of the processor.
    pub clock: Ticks,
    /// RIP.
    pub rip: u64,
    /// As in [`Count`].
    pub late: bool,
}

/// A value that is mostly absent, and is then found to be without a lock.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    set: AtomicBool,
    value: Mutex<Option<T>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { set: AtomicBool::new(false), value: Mutex::new(None) }
    }
}

impl<T: Copy> Slot<T> {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Relaxed)
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<T> {
        self.is_set().then(|| *lock(&self.value)).flatten()
    }

    pub(crate) fn set(&self, value: Option<T>) {
        *lock(&self.value) = value;
        self.set.store(value.is_some(), Relaxed);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        let value = self.get();
        if value.is_some() {
            self.set(None);
        }
        value
    }
}

/// Stops of a debugger on all processors of a machine.
#[derive(Debug, Default)]
pub struct Stops {
    pub(crate) begun: AtomicU64,
    pub(crate) counting: AtomicBool,
    pub(crate) step: Slot<usize>,
    pub(crate) target: Slot<Count>,
    pub(crate) place: Slot<Place>,
    watching: AtomicBool,
    watches: Mutex<Vec<Watch>>,
    pub(crate) touched: Slot<(u64, Watched)>,
    pub(crate) why: Slot<Why>,
    pub(crate) ignoring: AtomicBool,
    /// For reverse steps of a processor: the count before the last instruction that it has begun.
    pub(crate) last_of: Slot<(usize, u64)>,
}

impl Stops {
    /// Restarts the count of instructions at 0, which requires that all of them are observed, or stops counting.
    pub fn restart(&self, counting: bool) {
        self.begun.store(0, Relaxed);
        self.counting.store(counting, Relaxed);
    }

    /// Continues counting.
    pub fn keep_counting(&self) {
        self.counting.store(true, Relaxed);
    }

    /// Returns the number of instructions begun.
    #[inline]
    pub fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Stops a processor after its next instruction; `None` cancels.
    pub fn step(&self, processor: Option<usize>) {
        self.step.set(processor);
    }

    /// Stops at a count; `None` cancels.
    pub fn stop_at(&self, target: Option<Count>) {
        self.target.set(target);
    }

    /// Stops at a place; `None` cancels.
    pub fn stop_in(&self, place: Option<Place>) {
        self.place.set(place);
    }

    /// Ignores breakpoints and watchpoints while `ignoring` is true.
    pub fn ignore(&self, ignoring: bool) {
        self.ignoring.store(ignoring, Relaxed);
    }

    /// Starts to record the instructions that a processor begins, see [`Stops::last_of`]; `None` cancels.
    pub fn follow(&self, processor: Option<usize>) {
        self.last_of.set(processor.map(|processor| (processor, u64::MAX)));
    }

    /// Returns the number of instructions that had begun before the last one of the followed processor.
    pub fn last_of(&self) -> Option<u64> {
        self.last_of.get().map(|(_, begun)| begun).filter(|begun| *begun != u64::MAX)
    }

    /// Cancels all stops except breakpoints and watchpoints.
    pub fn clear(&self) {
        self.step.set(None);
        self.target.set(None);
        self.place.set(None);
        self.touched.set(None);
        self.why.set(None);
        self.last_of.set(None);
        self.counting.store(false, Relaxed);
        self.ignoring.store(false, Relaxed);
    }

    fn change_watches<R>(&self, change: impl FnOnce(&mut Vec<Watch>) -> R) -> R {
        let mut watches = lock(&self.watches);
        let result = change(&mut watches);
        self.watching.store(!watches.is_empty(), Relaxed);
        result
    }

    /// Adds a watchpoint. The caller must then call [`Cpu::watches_changed`](crate::Cpu::watches_changed) for each
    /// processor.
    pub fn watch(&self, watch: Watch) {
        self.change_watches(|watches| watches.push(watch));
    }

    /// Removes such a watchpoint. Returns true if there was one.
    pub fn unwatch(&self, watch: Watch) -> bool {
        self.change_watches(|watches| {
            let found = watches.iter().position(|w| *w == watch);
            found.map(|at| watches.swap_remove(at)).is_some()
        })
    }

    /// Removes all watchpoints.
    pub fn unwatch_all(&self) {
        self.change_watches(Vec::clear);
    }

    /// Takes the reason for which a processor has stopped.
    pub fn take_why(&self) -> Option<Why> {
        self.why.take()
    }

    /// Returns the watchpoints.
    pub fn watches(&self) -> Vec<Watch> {
        lock(&self.watches).clone()
    }

    /// Records an access if its address is watched.
    #[inline]
    pub(crate) fn access(&self, linear: u64, size: u64, write: bool) {
        if self.ignoring.load(Relaxed) || !self.watching.load(Relaxed) {
            return;
        }
        let touched = lock(&self.watches).iter().find_map(|w| Some((w.touched(linear, size, write)?, w.kind)));
        if touched.is_some() {
            self.touched.set(touched);
        }
    }

    /// Returns true if each instruction must be checked.
    pub(crate) fn cautious(&self) -> bool {
        let watching = !self.ignoring.load(Relaxed) && self.watching.load(Relaxed);
        let awaited = self.step.is_set() || self.target.is_set() || self.place.is_set();
        self.counting.load(Relaxed) || awaited || watching
    }

    /// Returns true if data at a linear address must stay off the fast path, because a page of its group is watched.
    pub(crate) fn covers(&self, linear: u64) -> bool {
        let group = !(GROUP as u64 * PAGE - 1);
        let first = linear & group;
        let holds = |w: &Watch| w.touched(first, GROUP as u64 * PAGE, w.kind != Watched::Read).is_some();
        self.watching.load(Relaxed) && lock(&self.watches).iter().any(holds)
    }
}

/// A block that has been charged as a whole, and is partly executed.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub(crate) index: u32,
    pub(crate) origin: OriginId,
    pub(crate) at: usize,
}

/// A repeated string instruction that has been stopped between two iterations: the number of completed iterations,
/// which are charged together, and the flags from before the first.
#[derive(Clone, Copy, Debug)]
pub struct Iterated {
    /// Number of completed iterations.
    pub done: u64,
    /// Flags from before the instruction.
    pub before: Lazy,
}

/// State of a processor for a debugger.
#[derive(Debug, Default)]
pub struct Stopping {
    /// Stops of the debugger, if there is one.
    pub(crate) stops: Option<Arc<Stops>>,
    pub(crate) held: Option<Held>,
    /// True if the debugger has detached, but a partly executed block remains.
    pub(crate) leaving: bool,
    /// Address of the instruction before which the debugger has already seen the processor.
    pub(crate) passed: Option<u64>,
    /// RIP and RCX at the begin of the last instruction.
    pub(crate) began: Option<(u64, u64)>,
    /// True if there has been a VM exit since then: the same instruction may begin again.
    pub(crate) exited: bool,
    /// True if repeated string instructions stop after each iteration.
    pub(crate) iterating: bool,
    /// A string instruction that has stopped after an iteration.
    pub(crate) iterated: Option<Iterated>,
}
