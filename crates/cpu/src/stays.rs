//! Stays in the kernel: which entries have begun on this processor and not returned, and what each has cost so far.
//!
//! The time since the last change belongs to the innermost stay. An exception within a stay is a part of it; an interrupt is not. A
//! return to user mode ends all stays, and a return within the kernel the innermost one that a handler began. The board takes the
//! stays of a task away when the guest's kernel switches to another task, and gives them back later.
//!
//! A VM exit is a stay in the hypervisor, which ends with the next entry. A hypervisor on the machine may return to user mode meanwhile, as KVM does for a
//! device of QEMU, so that its stay does not belong to the others: it has the time of the task that runs the guest, without interrupts.

use crate::charged::Charged;
use ledger::{Context, Entry, Gate, RegionId, Stay, TaskId, Ticks};
use serde::{Deserialize, Serialize};

/// Greatest depth of stays. The outermost one is forgotten beyond it.
const DEEPEST: usize = 32;

/// A stay that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub(crate) entry: Entry,
    pub(crate) context: Context,
    /// The cost of the stay so far, without the time since the last change.
    pub(crate) spent: Stay,
    /// True if another stay contains it.
    pub(crate) nested: bool,
}

/// A VM exit that the hypervisor on the machine handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub(crate) entry: Entry,
    /// The cost so far, without the time since the last change.
    pub(crate) spent: Stay,
    /// The clock at the exit, until the hypervisor begins to run, if the exit is one in software.
    pub(crate) arrives: Option<Ticks>,
}

/// The stays of a processor that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    /// The innermost one is the last.
    pub(crate) open: Vec<Open>,
    /// The clock at the last change.
    since: Ticks,
    /// Ticks of all mitigations, on this processor.
    pub(crate) mitigation: Ticks,
    /// The same at the last change.
    mitigation_since: Ticks,
    /// The VM exit that the hypervisor on the machine handles.
    pub(crate) exited: Option<Exited>,
    /// The VM exit that the board's hypervisor handles, and the clock at its begin, without halted time.
    pub(crate) outside: Option<(Entry, Ticks)>,
}

/// The stays of a task that does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspended {
    pub(crate) open: Vec<Open>,
    pub(crate) exited: Option<Exited>,
    /// The origin when it ran last.
    pub(crate) charged: Charged,
}

impl Suspended {
    /// Returns true if a saved state is possible. `known` returns true for a task and a region that exist.
    pub fn fits(&self, known: impl Fn(TaskId, RegionId) -> bool) -> bool {
        self.open.len() <= DEEPEST && (self.open.is_empty() || known(self.charged.task, self.charged.region))
    }
}

impl Stays {
    /// Returns true if a saved state is possible for a processor with this clock.
    pub(crate) fn fits(&self, clock: Ticks) -> bool {
        let sound = |open: &Open| [open.spent.ticks, open.spent.mitigation].iter().all(|ticks| *ticks <= clock);
        self.open.len() <= DEEPEST
            && self.since <= clock
            && self.mitigation <= clock
            && self.mitigation_since <= self.mitigation
            && self.open.iter().all(sound)
            && self.exited.is_none_or(|exited| exited.spent.ticks <= clock && exited.spent.mitigation <= clock)
            && self.outside.is_none_or(|outside| outside.1 <= clock)
    }

    /// Adds the time since the last change to the innermost stay, and to that in the hypervisor.
    pub(crate) fn settle(&mut self, now: Ticks) {
        let (ticks, mitigation) =
            (now.saturating_sub(self.since), self.mitigation.saturating_sub(self.mitigation_since));
        let interrupted = self.open.last().is_some_and(|open| open.context != Context::Task);
        let exited = self.exited.as_mut().filter(|_| !interrupted).map(|exited| &mut exited.spent);
        for spent in exited.into_iter().chain(self.open.last_mut().map(|open| &mut open.spent)) {
            spent.ticks += ticks;
            spent.mitigation += mitigation;
        }
        self.skip(now);
    }

    /// Leaves the time since the last change out.
    pub(crate) fn skip(&mut self, now: Ticks) {
        (self.since, self.mitigation_since) = (now, self.mitigation);
    }

    pub(crate) fn push(&mut self, entry: Entry, enter: Ticks) {
        if self.open.len() == DEEPEST {
            self.open.remove(0);
        }
        let outer = self.open.last().map_or(Context::Task, |open| open.context);
        let context = match entry.gate {
            Gate::Interrupt | Gate::Nmi => Context::Interrupt,
            Gate::SoftInterrupts => Context::SoftInterrupt,
            _ => outer,
        };
        let nested = !self.open.is_empty() && !entry.interrupts();
        self.open.push(Open { entry, context, spent: Stay { enter, ..Stay::default() }, nested });
    }

    /// Removes the innermost stay, and adds what it cost to the stay that contains it.
    pub(crate) fn pop(&mut self) -> Option<Open> {
        let open = self.open.pop()?;
        if let Some(outer) = self.open.last_mut().filter(|_| open.nested) {
            outer.spent.ticks += open.spent.ticks;
            outer.spent.mitigation += open.spent.mitigation;
        }
        Some(open)
    }
}
