//! Stays in the kernel: from an entry, such as a system call, a fault or an interrupt, to the return from it.
//!
//! A stay contains everything below its entry: the processor's transitions, the handler, and what the handler waits for in caches and
//! TLBs. It does not contain other tasks that run meanwhile, nor interrupts, which are entries of their own; exceptions within the
//! kernel are both a part of the stay that they occur in and stays themselves.
//!
//! Stays repeat what charges say already: they stand beside them and charge nothing. Their durations are kept in classes
//! ([`Durations`]), whose number does not grow with the number of stays.

mod names;
mod recorded;
mod wire;

use crate::{Amount, Origin, Ticks};
pub(crate) use recorded::{Recorded, SavedStays};
use serde::{Deserialize, Serialize};
use strum::{EnumCount, VariantArray};
pub(crate) use wire::{read, write};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EnumCount, VariantArray, Serialize, Deserialize)]
#[repr(u8)]
pub enum Gate {
    /// SYSCALL of 64-bit code; the number is RAX.
    Call,
    /// SYSENTER, INT 0x80, or SYSCALL of other code; the number is EAX.
    Call32,
    /// Exception; the number is the vector.
    Exception,
    /// INT n, INT3, INTO, INT1, except INT 0x80; the number is the vector.
    Software,
    /// External interrupt; the number is the vector.
    Interrupt,
    /// NMI.
    Nmi,
    /// Processing of soft interrupts by a Linux kernel.
    SoftInterrupts,
    /// VM exit of a guest: its stay is in the hypervisor, and lasts until the next entry into that guest. The number is the exit reason.
    VmExit,
    /// VM exit of a nested guest to the board's hypervisor, likewise.
    NestedExit,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// Its kind.
    pub gate: Gate,
    /// Its number, as [`Gate`] says.
    pub number: u32,
}

impl Entry {
    /// The number that stands for all system calls from [`Self::MOST_CALLS`] on.
    pub const FURTHER: u32 = u32::MAX;
    /// Numbers of system calls from this one on are not distinguished: a guest decides which it executes.
    pub const MOST_CALLS: u32 = 1 << 10;

    /// Creates an entry.
    pub const fn new(gate: Gate, number: u32) -> Self {
        let is_call = matches!(gate, Gate::Call | Gate::Call32);
        Self { gate, number: if is_call && number >= Self::MOST_CALLS { Self::FURTHER } else { number } }
    }

    /// Returns true if the entry is one to a hypervisor, and not to a kernel.
    pub const fn is_exit(self) -> bool {
        matches!(self.gate, Gate::VmExit | Gate::NestedExit)
    }

    /// Returns true if the entry interrupts whatever runs, and is not charged to it.
    pub const fn interrupts(self) -> bool {
        matches!(self.gate, Gate::Interrupt | Gate::Nmi | Gate::SoftInterrupts)
    }
}

/// What a stay cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    /// The whole.
    pub ticks: Ticks,
    /// The part of the processor's way in: the delivery of the exception, SYSCALL, or the VM exit.
    pub enter: Ticks,
    /// The part of mitigations: what [`crate::Kind::is_mitigation`] lists, and the change of tables by page-table isolation.
    pub mitigation: Ticks,
    /// The part of the processor's way out: IRET, SYSRET, or the VM entry.
    pub leave: Ticks,
}

impl Stay {
    /// Adds another stay; sums saturate.
    pub fn add(&mut self, more: Self) {
        self.ticks = self.ticks.saturating_add(more.ticks);
        self.enter = self.enter.saturating_add(more.enter);
        self.mitigation = self.mitigation.saturating_add(more.mitigation);
        self.leave = self.leave.saturating_add(more.leave);
    }

    /// Returns the part that is none of the others.
    pub fn handler(self) -> Ticks {
        self.ticks.saturating_sub(self.enter).saturating_sub(self.mitigation).saturating_sub(self.leave)
    }
}

/// Durations, in classes whose widths are 1/64 of the power of two below them. A class has the sum of its durations, so that its mean is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Durations {
    /// Sorted by class.
    classes: Vec<(u16, Amount)>,
}

/// Bits of a duration behind its highest one that its class has.
const BITS: u32 = 6;
/// One more than the highest class.
const CLASSES: u16 = (64 - BITS as u16 + 1) << BITS;

/// Returns the class of a duration.
fn class(ticks: Ticks) -> u16 {
    let shift = (u64::BITS - ticks.leading_zeros()).saturating_sub(BITS + 1);
    ((shift << BITS) as u64 + (ticks >> shift)) as u16
}

impl Durations {
    /// Returns the durations of classes, each with its number, count and sum. None if the classes are not in order, not known or empty.
    pub fn of(classes: Vec<(u16, Amount)>) -> Option<Self> {
        let is_class = |(class, amount): &(u16, Amount)| *class < CLASSES && amount.count != 0;
        (classes.iter().all(is_class) && classes.is_sorted_by(|a, b| a.0 < b.0)).then_some(Self { classes })
    }

    /// Returns the classes in their order, each with its number, count and sum.
    pub fn classes(&self) -> &[(u16, Amount)] {
        &self.classes
    }

    /// Adds a duration.
    pub fn add(&mut self, ticks: Ticks) {
        self.put(class(ticks), Amount { count: 1, ticks });
    }

    fn find(&self, class: u16) -> Result<usize, usize> {
        self.classes.binary_search_by_key(&class, |entry| entry.0)
    }

    fn put(&mut self, class: u16, amount: Amount) {
        match self.find(class) {
            Ok(at) => self.classes[at].1.add(amount),
            Err(at) => self.classes.insert(at, (class, amount)),
        }
    }

    /// Adds all durations of another list.
    pub fn merge(&mut self, more: &Self) {
        more.classes.iter().for_each(|(class, amount)| self.put(*class, *amount));
    }

    /// Returns the number of durations and their sum.
    pub fn total(&self) -> Amount {
        let mut total = Amount::default();
        self.classes.iter().for_each(|(_, amount)| total.add(*amount));
        total
    }

    /// Returns the duration that this part of all durations does not exceed, such as 0.5 for the median: the mean of the class that it is in.
    /// Returns `None` if there is none.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let rank = (part * self.total().count as f64).ceil().max(1.0) as u64;
        let mut before = 0u64;
        let found = self.classes.iter().find(|(_, amount)| {
            before = before.saturating_add(amount.count);
            before >= rank
        });
        found.map(|(_, amount)| amount.ticks as f64 / amount.count as f64)
    }
}

/// All stays of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stays {
    /// Their durations.
    pub durations: Durations,
    /// The sums of their parts.
    pub sum: Stay,
    /// Those within another stay that contains them.
    pub nested: Amount,
}

impl Stays {
    /// Returns the number of stays.
    pub fn count(&self) -> u64 {
        self.durations.total().count
    }

    /// Adds other stays.
    pub fn merge(&mut self, more: &Self) {
        self.durations.merge(&more.durations);
        self.sum.add(more.sum);
        self.nested.add(more.nested);
    }
}

/// The stays of an entry by origin, in a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryStays {
    /// The origin, as a number of [`Entries::origins`].
    pub origin: u32,
    /// The entry.
    pub entry: Entry,
    /// Its stays.
    pub stays: Stays,
}

/// The entries of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Origins, sorted. Their tasks and regions are numbers in the ledger's lists.
    pub origins: Vec<Origin>,
    /// Entries by origin, sorted.
    pub all: Vec<EntryStays>,
}

#[cfg(test)]
mod tests;
