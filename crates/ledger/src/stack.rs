//! Call stacks of crossings and of samples at fixed intervals of virtual time; and a trace, which adds their times.
//!
//! Stacks are stored beside the charges and charge nothing: a ledger with stacks has the same charges as one without.
//!
//! Stacks are interned in a tree whose root is the empty stack: a node is a frame, and its parent is the frame of the caller. A guest decides
//! how many stacks there are; beyond [`MOST_NODES`] frames, further stacks are recorded as [`UNKNOWN`].

mod files;
mod wire;

use crate::charge::OriginId;
use crate::{Amount, Kind, Origin, Ticks};
pub use files::{Files, LONGEST_PATH, file_of, in_file};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
pub(crate) use wire::{read, write};

/// Largest number of frames of all stacks together.
pub const MOST_NODES: usize = 1 << 20;
/// Largest number of sums by stack. As many further sums are kept without their stacks.
pub const MOST_CHARGES: usize = 1 << 19;
/// Largest number of records in a trace; later records are only counted.
pub const MOST_RECORDS: usize = 1 << 21;
/// Largest depth of a stack.
pub const DEEPEST: usize = 128;
/// Shortest interval between samples.
const SHORTEST: Duration = Duration::from_nanos(100);
/// Units of time in nanoseconds. `s` is last, because the other names end in it.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
/// Stands for an address: the stack continues, but the unwinder could not follow it. No code has this address.
pub const TRUNCATED: u64 = 1 << 63;
/// Stands for an address: the stack was not recorded, because there were too many stacks.
pub const UNKNOWN: u64 = TRUNCATED + 1;

/// The reason why a text is no interval between samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a time from 100ns on, with its unit, such as 10us or 1ms")]
pub struct NoInterval;

/// Parses an interval between samples, such as `10us`.
pub fn interval(text: &str) -> Result<Duration, NoInterval> {
    let unit = UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let time = unit.and_then(|(number, size)| Some(number.parse::<f64>().ok()? * size));
    match time {
        Some(ns) if (SHORTEST.as_nanos() as f64..1e18).contains(&ns) => Ok(Duration::from_nanos(ns as u64)),
        _ => Err(NoInterval),
    }
}

/// Number of a stack: the node of its innermost frame, or 0 for the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StackId(pub u32);

/// A frame, with the stack of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// Stack of the caller.
    pub caller: StackId,
    /// Address of the instruction; for a CALL, the address of its last byte.
    pub address: u64,
}

/// The subject of a sum by stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum What {
    /// Samples. Each stands for the interval between two samples.
    Sample,
    /// Crossings of a kind.
    Crossing(Kind),
}

/// The subject of a trace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Moment {
    /// This number of samples at once.
    Samples(u64),
    /// An event of a kind: a crossing, or time spent halted.
    Event(Kind),
    /// A switch to another task, which is the origin's.
    Task,
}

/// A trace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record<O> {
    /// Start on the processor's clock.
    pub time: Ticks,
    /// Processor number.
    pub cpu: u32,
    /// Origin.
    pub origin: O,
    /// Subject.
    pub moment: Moment,
    /// Duration.
    pub ticks: Ticks,
    /// Call stack.
    pub stack: StackId,
}

/// The recorder's settings for stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// Ticks between two samples; 0 for no samples.
    pub interval: Ticks,
    /// True to record the stacks of crossings.
    pub crossings: bool,
    /// True to record a trace.
    pub trace: bool,
}

impl Keeps {
    /// Returns true if nothing is recorded.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// A sum by stack. Numbers are positions in the lists of [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StackCharge {
    /// The origin.
    pub origin: u32,
    /// The stack.
    pub stack: StackId,
    /// Subject.
    pub what: What,
    /// Number of occurrences.
    pub count: u64,
    /// Ticks: the charges of crossings, or the time that samples stand for.
    pub ticks: Ticks,
}

/// The stacks of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// The settings of the run.
    pub keeps: Keeps,
    /// Origins, sorted. Their tasks and regions are numbers in the ledger's lists.
    pub origins: Vec<Origin>,
    /// Frames. A frame follows its caller; number 1 is the first of the list.
    pub nodes: Vec<Node>,
    /// Sums, sorted.
    pub charges: Vec<StackCharge>,
    /// Trace records, by processor and time.
    pub records: Vec<Record<u32>>,
    /// Number of records that were dropped for lack of room.
    pub lost: u64,
}

impl Stacks {
    /// Returns the node of a stack, or None for the empty stack.
    pub fn node(&self, stack: StackId) -> Option<Node> {
        self.nodes.get((stack.0 as usize).checked_sub(1)?).copied()
    }

    /// Returns the addresses of a stack, the innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = u64> + '_ {
        let innermost = self.node(stack);
        std::iter::successors(innermost, |node| self.node(node.caller)).map(|node| node.address)
    }

    /// Returns all stacks with charges or records, each with its origin.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (u32, StackId)> + '_ {
        let charges = self.charges.iter().map(|charge| (charge.origin, charge.stack));
        charges.chain(self.records.iter().map(|record| (record.origin, record.stack)))
    }
}

/// The frames of a machine's stacks, and the files that some of them are in.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    nodes: Vec<Node>,
    numbers: FxHashMap<Node, StackId>,
    /// The files of frames in files.
    pub(crate) files: Files,
}

/// Sums and records of a recorder by stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacked {
    charges: FxHashMap<(OriginId, StackId, What), Amount>,
    records: Vec<Record<OriginId>>,
    lost: u64,
}

/// The saved stacks of a machine, sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedStacks {
    pub(crate) nodes: Vec<Node>,
    pub(crate) charges: Vec<((OriginId, StackId, What), Amount)>,
    pub(crate) records: Vec<Record<OriginId>>,
    pub(crate) lost: u64,
    pub(crate) files: Files,
}

impl SavedStacks {
    /// Returns the origins of sums and records.
    pub fn origins(&self) -> impl Iterator<Item = OriginId> + '_ {
        self.charges.iter().map(|charge| charge.0.0).chain(self.records.iter().map(|record| record.origin))
    }

    /// Gives the origins other numbers.
    pub fn renumber(&mut self, moved: impl Fn(&mut OriginId)) {
        self.charges.iter_mut().for_each(|charge| moved(&mut charge.0.0));
        self.charges.sort_unstable_by_key(|charge| charge.0);
        self.records.iter_mut().for_each(|record| moved(&mut record.origin));
    }
}

impl Frames {
    /// Returns the number of the stack with these frames, the innermost first. `whole` is false if further frames are missing.
    pub(crate) fn stack(&mut self, frames: &[u64], whole: bool) -> StackId {
        let mut stack = StackId(0);
        let more = (!whole).then_some(TRUNCATED);
        for address in more.into_iter().chain(frames.iter().rev().copied()) {
            let node = Node { caller: stack, address };
            stack = match self.numbers.get(&node) {
                Some(known) => *known,
                None if self.nodes.len() >= MOST_NODES - 1 => return self.unknown(),
                None => self.add(node),
            };
        }
        stack
    }

    /// Returns the files of frames in files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the places in files that frames have in place of their addresses.
    pub fn in_files(&self) -> BTreeSet<u64> {
        self.nodes.iter().map(|node| node.address).filter(|address| file_of(*address).is_some()).collect()
    }

    fn add(&mut self, node: Node) -> StackId {
        self.nodes.push(node);
        let number = StackId(self.nodes.len() as u32);
        self.numbers.insert(node, number);
        number
    }

    /// Returns the substitute for a stack that has no room.
    fn unknown(&mut self) -> StackId {
        let node = Node { caller: StackId(0), address: UNKNOWN };
        self.numbers.get(&node).copied().unwrap_or_else(|| self.add(node))
    }

    /// Returns the frames in an order that does not depend on when each was first seen, and the new position of each.
    fn in_order(&self) -> (Vec<Node>, Vec<u32>) {
        let mut called: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len() + 1];
        for (node, number) in self.nodes.iter().zip(1u32..) {
            called[node.caller.0 as usize].push(number);
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut moved = vec![0; self.nodes.len() + 1];
        let mut waiting = vec![0u32];
        while let Some(number) = waiting.pop() {
            if let Some(node) = (number as usize).checked_sub(1).map(|at| self.nodes[at]) {
                nodes.push(Node { caller: StackId(moved[node.caller.0 as usize]), ..node });
                moved[number as usize] = nodes.len() as u32;
            }
            let list = &mut called[number as usize];
            list.sort_unstable_by_key(|called| std::cmp::Reverse(self.nodes[*called as usize - 1].address));
            waiting.append(list);
        }
        (nodes, moved)
    }
}

impl Stacked {
    /// Returns the number of sums and records.
    pub fn len(&self) -> usize {
        self.charges.len() + self.records.len()
    }

    /// Adds samples or crossings.
    pub fn charge(&mut self, origin: OriginId, stack: StackId, what: What, amount: Amount, frames: &mut Frames) {
        let mut key = (origin, stack, what);
        if self.charges.len() >= MOST_CHARGES && !self.charges.contains_key(&key) {
            key.1 = frames.unknown();
            if self.charges.len() >= 2 * MOST_CHARGES && !self.charges.contains_key(&key) {
                let what = match what {
                    What::Crossing(kind) => What::Crossing(kind.without_number()),
                    What::Sample => What::Sample,
                };
                key = (OriginId(0), key.1, what);
            }
        }
        self.charges.entry(key).or_default().add(amount);
    }

    /// Adds a record to the trace.
    pub fn record(&mut self, record: Record<OriginId>) {
        match self.records.len() < MOST_RECORDS {
            true => self.records.push(record),
            false => self.lost += 1,
        }
    }

    /// Moves the sums and records of another recorder to this one.
    pub fn take_from(&mut self, other: &mut Self, frames: &mut Frames) {
        let Self { charges, records, lost } = std::mem::take(other);
        let mut charges: Vec<_> = charges.into_iter().collect();
        charges.sort_unstable_by_key(|charge| charge.0);
        for ((origin, stack, what), amount) in charges {
            self.charge(origin, stack, what, amount, frames);
        }
        records.into_iter().for_each(|record| self.record(record));
        self.lost += lost;
    }

    /// Returns the stacks for saving, sorted.
    pub fn save(&self, frames: &Frames) -> SavedStacks {
        let mut charges: Vec<_> = self.charges.iter().map(|(key, amount)| (*key, *amount)).collect();
        charges.sort_unstable_by_key(|charge| charge.0);
        SavedStacks {
            nodes: frames.nodes.clone(),
            charges,
            records: self.records.clone(),
            lost: self.lost,
            files: frames.files.clone(),
        }
    }

    /// Restores saved stacks. Returns None if they are inconsistent, or refer to more than `origins` origins.
    pub fn restore(saved: SavedStacks, origins: usize) -> Option<(Frames, Self)> {
        let SavedStacks { nodes, charges, records, lost, files } = saved;
        let before = nodes.iter().zip(0u32..).all(|(node, number)| node.caller.0 <= number);
        let known = |origin: OriginId, stack: StackId| (origin.0 as usize) < origins && stack.0 as usize <= nodes.len();
        let charged = charges.iter().all(|((origin, stack, _), _)| known(*origin, *stack));
        let recorded = records.iter().all(|record| known(record.origin, record.stack));
        let numbers: FxHashMap<Node, StackId> = nodes.iter().copied().zip((1..).map(StackId)).collect();
        let once = numbers.len() == nodes.len();
        let few = nodes.len() <= MOST_NODES && records.len() <= MOST_RECORDS;
        let count = charges.len();
        let charges: FxHashMap<_, _> = charges.into_iter().collect();
        let right = before && charged && recorded && once && few && charges.len() == count && files.is_sound();
        right.then_some((Frames { nodes, numbers, files }, Self { charges, records, lost }))
    }

    /// Returns the stacks for a ledger. `origin` maps a number to its origin, with the task's number in the ledger.
    pub fn finish(&self, frames: &Frames, keeps: Keeps, origin: impl Fn(OriginId) -> Origin) -> Stacks {
        let used = self.charges.keys().map(|key| key.0).chain(self.records.iter().map(|record| record.origin));
        let mut numbers: Vec<OriginId> = used.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut origins: Vec<Origin> = numbers.iter().map(|number| origin(*number)).collect();
        origins.sort_unstable();
        origins.dedup();
        let at = |number: OriginId| origins.binary_search(&origin(number)).unwrap_or_default() as u32;
        let places: FxHashMap<OriginId, u32> = numbers.into_iter().map(|number| (number, at(number))).collect();
        let (nodes, moved) = frames.in_order();
        let stack = |stack: StackId| StackId(moved[stack.0 as usize]);
        let mut sums: std::collections::BTreeMap<_, Amount> = std::collections::BTreeMap::new();
        for ((origin, of, what), amount) in &self.charges {
            sums.entry((places[origin], stack(*of), *what)).or_default().add(*amount);
        }
        let charge =
            |((origin, stack, what), Amount { count, ticks })| StackCharge { origin, stack, what, count, ticks };
        let charges = sums.into_iter().map(charge).collect();
        let mut records: Vec<Record<u32>> = self
            .records
            .iter()
            .map(|record| Record {
                origin: places[&record.origin],
                stack: stack(record.stack),
                time: record.time,
                cpu: record.cpu,
                moment: record.moment,
                ticks: record.ticks,
            })
            .collect();
        records.sort_by_key(|record| (record.cpu, record.time));
        Stacks { keeps, origins, nodes, charges, records, lost: self.lost }
    }
}

/// The frames of a machine, and its only recorder's sums of them.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Both {
    pub(crate) frames: Frames,
    pub(crate) stacked: Stacked,
}

#[cfg(test)]
impl Both {
    /// Adds samples or crossings of a stack.
    pub(crate) fn charge(&mut self, frames: &[u64], whole: bool, what: What, amount: Amount) {
        let stack = self.frames.stack(frames, whole);
        self.stacked.charge(OriginId(0), stack, what, amount, &mut self.frames);
    }

    /// Returns the stacks for a ledger with one origin.
    pub(crate) fn finish(&self, keeps: Keeps, origin: Origin) -> Stacks {
        self.stacked.finish(&self.frames, keeps, |_| origin)
    }
}

#[cfg(test)]
mod tests;
