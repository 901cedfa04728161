//! Call stacks: of crossings, and of samples at fixed intervals of virtual time; and a trace, which is both with their times.
//!
//! They stand beside the charges and are no charges themselves: a ledger with them has the same charges as one without.
//!
//! Stacks are interned in a tree whose root is the empty stack: a node is a frame, and its parent the frame that called it. A guest
//! decides how many stacks there are; beyond [`MOST_NODES`] frames further stacks are [`UNKNOWN`].

mod wire;

use crate::recorder::OriginId;
use crate::{Amount, Kind, Origin, Ticks};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
pub(crate) use wire::{read, write};

/// The most frames of all stacks together.
pub const MOST_NODES: usize = 1 << 20;
/// The most sums of samples and crossings by stack. As many again are told apart by all but their stack.
pub const MOST_CHARGES: usize = 1 << 19;
/// The most records of a trace; what comes later is counted.
pub const MOST_RECORDS: usize = 1 << 21;
/// The most frames of one stack.
pub const DEEPEST: usize = 128;
/// In place of an address: the stack goes on, but could not be followed further. No code is there.
pub const TRUNCATED: u64 = 1 << 63;
/// In place of an address: there were too many stacks to tell this one apart.
pub const UNKNOWN: u64 = TRUNCATED + 1;
/// Marks a place in a file, in place of an address: bits that no address has, the file's number, and the offset.
const IN_FILE: u64 = 1 << 62;
const FILE_SHIFT: u32 = 36;
/// Numbers of files are smaller.
pub const MOST_FILES: u32 = 1 << 26;

/// Returns what stands in place of an address for code of a program's file, wherever the file is mapped. Each run sees
/// the same.
pub fn in_file(file: u32, offset: u64) -> Option<u64> {
    let fits = file < MOST_FILES && offset < 1 << FILE_SHIFT;
    fits.then(|| IN_FILE | u64::from(file) << FILE_SHIFT | offset)
}

/// Returns the file's number and the offset that stand in place of an address.
pub fn file_of(address: u64) -> Option<(u32, u64)> {
    let place = address ^ IN_FILE;
    (place < IN_FILE).then_some(((place >> FILE_SHIFT) as u32, place & ((1 << FILE_SHIFT) - 1)))
}

/// A stack's number: the node of its innermost frame, or 0 if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StackId(pub u32);

/// A frame, and the stack of what called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// What called it.
    pub caller: StackId,
    /// The address of the instruction; of a CALL, that of its last byte.
    pub address: u64,
}

/// What is summed by stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum What {
    /// Samples. Each stands for as much time as there is between two of them.
    Sample,
    /// Crossings of a kind.
    Crossing(Kind),
}

/// What is in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Moment {
    /// So many samples at once.
    Samples(u64),
    /// An event of a kind: a crossing, or time spent halted.
    Event(Kind),
    /// The processor goes on with another task, which is the origin's.
    Task,
}

/// Something at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record<O> {
    /// When it began, on the processor's clock.
    pub time: Ticks,
    /// The processor.
    pub cpu: u32,
    /// Who did it.
    pub origin: O,
    /// What it is.
    pub moment: Moment,
    /// How long it took.
    pub ticks: Ticks,
    /// From where.
    pub stack: StackId,
}

/// What a run keeps of stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// Ticks between two samples; 0: there are none.
    pub interval: Ticks,
    /// Crossings have stacks.
    pub crossings: bool,
    /// There is a trace.
    pub trace: bool,
}

impl Keeps {
    /// Whether it keeps nothing.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Sums by stack. Numbers are positions in the lists of [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StackCharge {
    /// The origin.
    pub origin: u32,
    /// The stack.
    pub stack: StackId,
    /// What it is.
    pub what: What,
    /// How often.
    pub count: u64,
    /// Ticks: what crossings were charged, and what time samples stand for.
    pub ticks: Ticks,
}

/// The stacks of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// What the run kept.
    pub keeps: Keeps,
    /// Who, sorted. Tasks and regions are numbers of the ledger's lists.
    pub origins: Vec<Origin>,
    /// The frames. A frame's caller stands in front of it; number 1 is the first of the list.
    pub nodes: Vec<Node>,
    /// Sums, sorted.
    pub charges: Vec<StackCharge>,
    /// The trace, by processor and time.
    pub records: Vec<Record<u32>>,
    /// For how many records there was no room.
    pub lost: u64,
}

impl Stacks {
    /// The node of a stack that is not empty.
    pub fn node(&self, stack: StackId) -> Option<Node> {
        self.nodes.get((stack.0 as usize).checked_sub(1)?).copied()
    }

    /// The addresses of a stack, the innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = u64> + '_ {
        let innermost = self.node(stack);
        std::iter::successors(innermost, |node| self.node(node.caller)).map(|node| node.address)
    }

    /// All stacks that something is charged to, with their origins.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (u32, StackId)> + '_ {
        let charges = self.charges.iter().map(|charge| (charge.origin, charge.stack));
        charges.chain(self.records.iter().map(|record| (record.origin, record.stack)))
    }
}

/// Stacks of a run, while it goes on.
#[derive(Clone, Debug, Default)]
pub struct Interned {
    nodes: Vec<Node>,
    numbers: FxHashMap<Node, StackId>,
    charges: FxHashMap<(OriginId, StackId, What), Amount>,
    records: Vec<Record<OriginId>>,
    lost: u64,
}

/// What a machine that is saved keeps of it, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedStacks {
    pub(crate) nodes: Vec<Node>,
    pub(crate) charges: Vec<((OriginId, StackId, What), Amount)>,
    pub(crate) records: Vec<Record<OriginId>>,
    pub(crate) lost: u64,
}

impl Interned {
    /// The number of a stack of these frames, the innermost first. `whole`: there are no further ones.
    pub fn stack(&mut self, frames: &[u64], whole: bool) -> StackId {
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

    /// The numbers of the files in which there are frames.
    pub fn files(&self) -> BTreeSet<u32> {
        self.nodes.iter().filter_map(|node| Some(file_of(node.address)?.0)).collect()
    }

    fn add(&mut self, node: Node) -> StackId {
        self.nodes.push(node);
        let number = StackId(self.nodes.len() as u32);
        self.numbers.insert(node, number);
        number
    }

    /// The stack of those for which there was no room.
    fn unknown(&mut self) -> StackId {
        let node = Node { caller: StackId(0), address: UNKNOWN };
        self.numbers.get(&node).copied().unwrap_or_else(|| self.add(node))
    }

    /// Adds samples or crossings.
    pub fn charge(&mut self, origin: OriginId, stack: StackId, what: What, amount: Amount) {
        let mut key = (origin, stack, what);
        if self.charges.len() >= MOST_CHARGES && !self.charges.contains_key(&key) {
            key.1 = self.unknown();
            if self.charges.len() >= 2 * MOST_CHARGES && !self.charges.contains_key(&key) {
                let what = match what {
                    What::Crossing(kind) => What::Crossing(kind.without_number()),
                    What::Sample => What::Sample,
                };
                key = (OriginId(0), key.1, what);
            }
        }
        let sum = self.charges.entry(key).or_default();
        sum.count = sum.count.saturating_add(amount.count);
        sum.ticks = sum.ticks.saturating_add(amount.ticks);
    }

    /// Adds a record to the trace.
    pub fn record(&mut self, record: Record<OriginId>) {
        match self.records.len() < MOST_RECORDS {
            true => self.records.push(record),
            false => self.lost += 1,
        }
    }

    /// All of it, sorted.
    pub fn save(&self) -> SavedStacks {
        let mut charges: Vec<_> = self.charges.iter().map(|(key, amount)| (*key, *amount)).collect();
        charges.sort_unstable_by_key(|charge| charge.0);
        SavedStacks { nodes: self.nodes.clone(), charges, records: self.records.clone(), lost: self.lost }
    }

    /// What was saved, if it can have been: of a recorder with so many origins.
    pub fn restore(saved: SavedStacks, origins: usize) -> Option<Self> {
        let SavedStacks { nodes, charges, records, lost } = saved;
        let before = nodes.iter().zip(0u32..).all(|(node, number)| node.caller.0 <= number);
        let known = |origin: OriginId, stack: StackId| (origin.0 as usize) < origins && stack.0 as usize <= nodes.len();
        let charged = charges.iter().all(|((origin, stack, _), _)| known(*origin, *stack));
        let recorded = records.iter().all(|record| known(record.origin, record.stack));
        let numbers: FxHashMap<Node, StackId> = nodes.iter().copied().zip((1..).map(StackId)).collect();
        let once = numbers.len() == nodes.len();
        let few = nodes.len() <= MOST_NODES && records.len() <= MOST_RECORDS;
        let count = charges.len();
        let charges: FxHashMap<_, _> = charges.into_iter().collect();
        let right = before && charged && recorded && once && few && charges.len() == count;
        right.then_some(Self { nodes, numbers, charges, records, lost })
    }

    /// As a ledger has it. `origin` gives the origin of a number with the task's number in the ledger.
    pub fn finish(&self, keeps: Keeps, origin: impl Fn(OriginId) -> Origin) -> Stacks {
        let used = self.charges.keys().map(|key| key.0).chain(self.records.iter().map(|record| record.origin));
        let mut numbers: Vec<OriginId> = used.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut origins: Vec<Origin> = numbers.iter().map(|number| origin(*number)).collect();
        origins.sort_unstable();
        origins.dedup();
        let at = |number: OriginId| origins.binary_search(&origin(number)).unwrap_or_default() as u32;
        let places: FxHashMap<OriginId, u32> = numbers.into_iter().map(|number| (number, at(number))).collect();
        let (nodes, moved) = self.in_order();
        let stack = |stack: StackId| StackId(moved[stack.0 as usize]);
        let mut sums: std::collections::BTreeMap<_, Amount> = std::collections::BTreeMap::new();
        for ((origin, of, what), amount) in &self.charges {
            let sum = sums.entry((places[origin], stack(*of), *what)).or_default();
            sum.count = sum.count.saturating_add(amount.count);
            sum.ticks = sum.ticks.saturating_add(amount.ticks);
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

    /// The frames in an order that does not depend on when each was first seen, and where each has come to be.
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

#[cfg(test)]
mod tests;
