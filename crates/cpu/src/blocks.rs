//! Decoded basic blocks: the unit that is executed, charged and, later, translated.
//!
//! Blocks are looked up by the guest-physical address of their first byte, so they survive address-space switches and
//! are shared by all processors of a machine. They know nothing of their executions (see `usage.rs`). A block never leaves its page, with one exception: a block of a single
//! instruction may cross into the next page. Such a block also holds the address of the second page, which is checked
//! on each entry.

use crate::breakpoints::Breakpoints;
use crate::counters::{Counters, MOST_BLOCKS, MOST_NUMBERS};
use crate::op::Op;
use crate::probe::Probes;
use crate::ram::{Ram, lines};
use crate::saved::{SavedBlock, SavedBlocks};
use crate::tally::Counts;
use crate::tier::Tier;
use crate::time::{Place, Runs, START};
use ledger::{Kind, OriginId, Recorder, ShapeId, Ticks};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use x86::page::PAGE;

/// Maximum number of operations; when it is reached everything is dropped and decoded again.
pub const MAX_OPS: usize = 400_000;
/// Maximum number of instructions per block.
pub const MAX_BLOCK: usize = 32;

/// See [`Blocks::threshold`].
const THRESHOLD: u16 = 40;

pub(crate) const DEAD: u64 = u64::MAX;

/// Bit of [`Block::key`] of a block that is part of a restored state and has not been decoded since. No lookup finds such a block; the processor
/// that needs it decodes it ([`Blocks::waiting_at`]).
const WAITS: u32 = 1 << 31;

/// A decoded block.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Block {
    /// Guest-physical address of its first byte; all ones if the block is invalid.
    pub physical: u64,
    /// Address at which it was decoded (offset in CS outside 64-bit mode).
    pub rip: u64,
    /// Guest-physical page of the second part of an instruction that crosses pages, else 0.
    pub second: u64,
    /// Cost of one execution, in ticks.
    pub cost: u64,
    /// Index of the first operation.
    pub first: u32,
    /// Number of operations.
    pub count: u32,
    /// Number of instructions by class.
    pub shape: ShapeId,
    /// See [`key`]; with [`WAITS`] before the block is decoded.
    key: u32,
    /// Context after the block, in which the next instruction is priced; see [`crate::time`].
    pub after: Place,
    /// True if the block has a probe.
    pub probe: bool,
    /// True if an instruction of the block has a breakpoint.
    pub breakpoint: bool,
    /// Number of bytes that it covers.
    pub len: u16,
}

impl Block {
    /// Returns the decoding mode, see [`crate::mode`].
    #[inline(always)]
    pub fn mode(&self) -> u8 {
        self.key as u8
    }

    /// Returns the context in which its operations are priced; see [`crate::time`].
    pub fn context(&self) -> Place {
        (self.key >> 8) as Place
    }

    /// Returns the guest-physical address of one of its operations.
    #[inline(always)]
    pub(crate) fn at(&self, op: &Op) -> u64 {
        self.physical.wrapping_add(op.rip().wrapping_sub(self.rip))
    }

    /// Returns what decodes the block again.
    pub(crate) fn saved(&self) -> SavedBlock {
        SavedBlock {
            physical: self.physical,
            rip: self.rip,
            second: self.second,
            mode: self.mode(),
            context: self.context(),
            probe: self.probe,
            count: self.count,
            len: self.len,
        }
    }

    /// Returns true if the block's operations have not been decoded yet.
    fn waits(&self) -> bool {
        self.key & WAITS != 0
    }

    /// Returns where the block is found.
    fn place(&self) -> (u64, u64, u32) {
        (self.physical, self.rip, self.key & !WAITS)
    }
}

/// Returns the part of a block's identity that is not its address: decoding mode, and the context in which its
/// operations are priced.
#[inline(always)]
pub fn key(mode: u8, context: Place) -> u32 {
    u32::from(mode) | u32::from(context) << 8
}

/// Parameters of a new block.
pub struct NewBlock {
    /// See [`Block::physical`].
    pub physical: u64,
    /// See [`Block::rip`].
    pub rip: u64,
    /// See [`Block::second`].
    pub second: u64,
    /// See [`Block::cost`].
    pub cost: u64,
    /// See [`Block::shape`].
    pub shape: ShapeId,
    /// See [`key`].
    pub key: u32,
    /// See [`Block::after`].
    pub after: Place,
    /// See [`Block::probe`].
    pub probe: bool,
    /// See [`Block::len`].
    pub len: u16,
    /// Marginal price of each operation, in ticks.
    pub ticks: Vec<u32>,
}

/// Meaning of a counter in translated code.
#[derive(Clone, Copy)]
enum Counted {
    /// An event at an instruction.
    Event { rip: u64, kind: Kind, price: Ticks },
    /// Ticks of events of a kind at an instruction, which the counter before this one counts.
    Time { rip: u64, kind: Kind },
    /// Executions of a sequence of blocks: the sequence of another counter, if any, followed by a block.
    Prefix { before: Option<u32>, block: u32 },
}

/// In place of the price of an event, if the prices differ.
const TIMED: Ticks = Ticks::MAX;

/// Data that is made from blocks and must be dropped with them, such as translations.
pub trait Derived: Default {
    /// Drops what is made from a block.
    fn remove(&mut self, block: u32);

    /// Drops everything.
    fn clear(&mut self);

    /// Returns an empty one, for users of this one.
    fn renewed(&self) -> Self;

    /// Allocates the memory that is needed. Returns false if the host refuses it.
    fn prepare(&mut self) -> bool;

    /// Returns the maximum size of code so far, and the size of other data, in bytes.
    fn taken(&self) -> (usize, usize);
}

/// All blocks of a machine, and what is derived from them.
pub struct Blocks<D> {
    /// Blocks by index.
    pub blocks: Vec<Block>,
    /// Operations of all blocks.
    pub ops: Vec<Op>,
    /// For each operation, the price of its block from the operation on, in ticks.
    rests: Vec<Ticks>,
    /// Number of operations of a restored state that have not been decoded, and of those that belong to invalid blocks of that state: they
    /// occupy room as if they were in `ops`.
    waiting: usize,
    /// Contexts in which operations are priced.
    pub(crate) runs: Runs,
    /// Execution tier.
    pub tier: Tier,
    /// Number of executions after which a block is translated in tiers that wait.
    pub threshold: u16,
    /// Meanings of the counters in translated code.
    counted: Vec<Counted>,
    /// Counters of events.
    events: FxHashMap<(u64, Kind, Ticks), u32>,
    /// Counters of prefixes.
    prefixes: FxHashMap<(Option<u32>, u32), u32>,
    /// Data that is derived from the blocks.
    pub(crate) translations: D,
    index: FxHashMap<(u64, u64, u32), u32>,
    pages: FxHashMap<u64, Vec<u32>>,
    pub(crate) probes: Probes,
    pub(crate) breakpoints: Breakpoints,
}

impl<D: Derived> Default for Blocks<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Derived> Blocks<D> {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self {
            blocks: Vec::new(),
            ops: Vec::new(),
            rests: Vec::new(),
            waiting: 0,
            runs: Runs::default(),
            tier: Tier::default(),
            threshold: THRESHOLD,
            counted: Vec::new(),
            events: FxHashMap::default(),
            prefixes: FxHashMap::default(),
            translations: D::default(),
            index: FxHashMap::default(),
            pages: FxHashMap::default(),
            probes: Probes::default(),
            breakpoints: Breakpoints::default(),
        }
    }

    /// Returns true if `index` is the block at an address.
    #[inline(always)]
    pub(crate) fn is(&self, index: u32, physical: u64, rip: u64, key: u32) -> bool {
        let block = self.blocks.get(index as usize);
        block.is_some_and(|b| b.physical == physical && b.rip == rip && b.key == key)
    }

    /// Returns the block at an address, if there is one that is decoded.
    pub(crate) fn at(&self, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let index = self.index.get(&(physical, rip, key)).copied()?;
        (!self.blocks[index as usize].waits()).then_some(index)
    }

    /// Returns the block of a restored state at an address, if it has not been decoded yet.
    pub(crate) fn waiting_at(&self, physical: u64, rip: u64, key: u32) -> Option<(u32, SavedBlock)> {
        if self.waiting == 0 {
            return None;
        }
        let index = self.index.get(&(physical, rip, key)).copied()?;
        let block = &self.blocks[index as usize];
        block.waits().then(|| (index, block.saved()))
    }

    /// Returns true if everything must be dropped before a block with this number of operations is added.
    pub(crate) fn is_full_for(&self, operations: usize) -> bool {
        let full = self.blocks.len() == MOST_BLOCKS || self.counted.len() == MOST_NUMBERS;
        full || self.ops.len() + self.waiting + operations > MAX_OPS
    }

    /// Adds a block with its operations, for which there is room, and marks its bytes as decoded.
    pub(crate) fn insert(&mut self, new: NewBlock, ops: &[Op], ram: &Ram) -> u32 {
        let block = self.decoded(new, ops);
        self.place(block, ram)
    }

    /// Adds the operations of a block, and returns the block.
    fn decoded(&mut self, new: NewBlock, ops: &[Op]) -> Block {
        let NewBlock { physical, rip, second, cost, shape, key, after, probe, len, ticks } = new;
        let breakpoint = self.breakpoints.may_be_in(physical, ops);
        let block = Block {
            physical,
            rip,
            second,
            cost,
            first: self.ops.len() as u32,
            count: ops.len() as u32,
            shape,
            key,
            after,
            probe,
            breakpoint,
            len,
        };
        self.ops.extend_from_slice(ops);
        let first = self.rests.len();
        self.rests.extend(ticks.iter().map(|ticks| Ticks::from(*ticks)));
        let mut rest = 0;
        for ticks in self.rests[first..].iter_mut().rev() {
            rest += *ticks;
            *ticks = rest;
        }
        block
    }

    /// Adds a block to the indices, and marks its bytes as decoded.
    fn place(&mut self, block: Block, ram: &Ram) -> u32 {
        let index = self.blocks.len() as u32;
        let page = block.physical & !(PAGE - 1);
        let offset = block.physical - page;
        let here = u64::from(block.len).min(PAGE - offset);
        ram.mark_code(page, lines(offset, here));
        self.pages.entry(page).or_default().push(index);
        if block.second != 0 {
            ram.mark_code(block.second, lines(0, u64::from(block.len) - here));
            self.pages.entry(block.second).or_default().push(index);
        }
        self.index.insert(block.place(), index);
        self.blocks.push(block);
        index
    }

    /// Adds a block of a restored state, which is decoded when it is first executed. Its bytes do not change until then: a write to them drops it.
    pub(crate) fn expect(&mut self, saved: &SavedBlock, ram: &Ram) {
        let SavedBlock { physical, rip, second, mode, context, probe, count, len } = *saved;
        let key = key(mode, context) | WAITS;
        let (cost, first, shape, after, breakpoint) = (0, 0, ShapeId(0), START, false);
        self.place(Block { physical, rip, second, cost, first, count, shape, key, after, probe, breakpoint, len }, ram);
        self.waiting += count as usize;
    }

    /// Adds the operations of a block from [`Blocks::waiting_at`].
    pub(crate) fn complete(&mut self, index: u32, new: NewBlock, ops: &[Op]) {
        self.waiting -= ops.len();
        self.blocks[index as usize] = self.decoded(new, ops);
    }

    /// Drops a block from [`Blocks::waiting_at`] that cannot be decoded.
    pub(crate) fn give_up(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        self.index.remove(&block.place());
        block.physical = DEAD;
    }

    /// Returns the counter of translated code for events of a kind at an instruction, or `None` if there is none left.
    pub(crate) fn event(&mut self, rip: u64, kind: Kind, price: Ticks) -> Option<u32> {
        if let Some(number) = self.events.get(&(rip, kind, price)) {
            return Some(*number);
        }
        let number = self.count_as(Counted::Event { rip, kind, price })?;
        self.events.insert((rip, kind, price), number);
        Some(number)
    }

    /// Returns the counter of translated code for events of a kind at an instruction whose prices differ; the next counter is for
    /// their ticks. Returns `None` if there are none left.
    pub(crate) fn timed_event(&mut self, rip: u64, kind: Kind) -> Option<u32> {
        if let Some(number) = self.events.get(&(rip, kind, TIMED)) {
            return Some(*number);
        }
        if self.counted.len() + 2 > MOST_NUMBERS {
            return None;
        }
        let number = self.count_as(Counted::Event { rip, kind, price: 0 })?;
        self.count_as(Counted::Time { rip, kind })?;
        self.events.insert((rip, kind, TIMED), number);
        Some(number)
    }

    /// Returns the counter of executions of the sequence `before`, followed by `block`, or `None` if there is none
    /// left.
    pub(crate) fn prefix(&mut self, before: Option<u32>, block: u32) -> Option<u32> {
        if let Some(number) = self.prefixes.get(&(before, block)) {
            return Some(*number);
        }
        let number = self.count_as(Counted::Prefix { before, block })?;
        self.prefixes.insert((before, block), number);
        Some(number)
    }

    fn count_as(&mut self, what: Counted) -> Option<u32> {
        if self.counted.len() == MOST_NUMBERS {
            return None;
        }
        self.counted.push(what);
        Some(self.counted.len() as u32 - 1)
    }

    /// Returns the operations of a block.
    pub(crate) fn ops_of(&self, index: u32) -> &[Op] {
        let block = &self.blocks[index as usize];
        &self.ops[block.first as usize..][..block.count as usize]
    }

    /// Returns, for each of a block's operations, the price of the block from the operation on.
    #[inline]
    pub(crate) fn rests_of(&self, index: u32) -> &[Ticks] {
        let block = &self.blocks[index as usize];
        &self.rests[block.first as usize..][..block.count as usize]
    }

    /// Returns the marginal prices of a block's operations.
    pub(crate) fn ticks_of(&self, index: u32) -> impl Iterator<Item = Ticks> {
        let rests = self.rests_of(index);
        rests.iter().zip(rests.iter().skip(1).chain([&0])).map(|(rest, next)| rest - next)
    }

    /// Returns the maximum size of translated code so far, and that of everything else, in bytes.
    pub(crate) fn taken(&self) -> (usize, usize) {
        // Size of a map entry with its control byte, at the average load of maps.
        let entry = |size: usize| (size + 1) * 3 / 2;
        let pages: usize = self.pages.values().map(|list| list.capacity() * size_of::<u32>()).sum();
        let indices = self.index.len() * entry(size_of::<((u64, u64, u32), u32)>())
            + self.pages.len() * entry(size_of::<(u64, Vec<u32>)>())
            + pages;
        let decoded = self.blocks.capacity() * size_of::<Block>()
            + self.ops.capacity() * size_of::<Op>()
            + self.rests.capacity() * size_of::<Ticks>();
        let (code, translations) = self.translations.taken();
        let counts = self.counted.capacity() * size_of::<Counted>()
            + self.prefixes.len() * entry(size_of::<((Option<u32>, u32), u32)>())
            + self.events.len() * entry(size_of::<((u64, Kind), u32)>());
        (code, decoded + indices + counts + translations)
    }

    /// Passes a processor's execution counts of an origin to the recorder.
    /// `tally` has their sums for performance counters, if it is needed.
    pub(crate) fn spill(
        &self,
        counters: &mut Counters,
        tally: &mut Option<Counts>,
        origin: OriginId,
        recorder: &mut Recorder,
    ) {
        const NUMBERS: u32 = MOST_BLOCKS as u32;
        let (blocks, counted) = (&self.blocks, &self.counted);
        let user = tally.is_some() && recorder.names().is_user(origin);
        let parts = |number: u32| match counted[number.checked_sub(NUMBERS)? as usize] {
            Counted::Prefix { before, block } => Some([before.map(|number| number + NUMBERS), Some(block)]),
            Counted::Event { .. } | Counted::Time { .. } => None,
        };
        let mut executed = Vec::new();
        counters.drain(origin, counted.len(), parts, |number, runs| {
            if let Some(block) = blocks.get(number as usize) {
                executed.push((block.rip, block.shape, runs));
                if let Some(tally) = tally {
                    let classes = self.ops_of(number).iter().map(|op| op.class);
                    tally.add_block(user, classes, runs, block.cost);
                }
                return;
            }
            let (rip, kind, count, ticks) = match counted.get(number.wrapping_sub(NUMBERS) as usize) {
                Some(&Counted::Event { rip, kind, price }) => (rip, kind, runs, price * runs),
                Some(&Counted::Time { rip, kind }) => (rip, kind, 0, runs),
                _ => return,
            };
            recorder.add(origin, rip, kind, count, ticks);
            if let Some(tally) = tally {
                tally.add(user, kind, count, ticks);
            }
        });
        recorder.add_blocks(origin, &executed);
    }

    /// Drops the blocks that contain any of the given 64-byte lines of a page.
    pub fn invalidate(&mut self, page: u64, written: u64, ram: &Ram) {
        let Some(list) = self.pages.get_mut(&page) else {
            ram.set_code(page, 0);
            return;
        };
        let mut kept = 0;
        list.retain(|&index| {
            let block = &mut self.blocks[index as usize];
            if block.physical == DEAD {
                return false;
            }
            let covered = if block.physical & !(PAGE - 1) == page {
                let offset = block.physical - page;
                lines(offset, u64::from(block.len).min(PAGE - offset))
            } else {
                let first = PAGE - (block.physical & (PAGE - 1));
                lines(0, u64::from(block.len) - first)
            };
            if covered & written == 0 {
                kept |= covered;
                return true;
            }
            self.index.remove(&block.place());
            block.physical = DEAD;
            self.translations.remove(index);
            false
        });
        if list.is_empty() {
            self.pages.remove(&page);
        }
        ram.set_code(page, kept);
    }

    /// Returns the blocks in the cache for a saved state.
    pub fn save(&self, ram: &Ram) -> SavedBlocks {
        let alive = self.blocks.iter().filter(|block| block.physical != DEAD);
        let blocks: Vec<SavedBlock> = alive.map(Block::saved).collect();
        let operations: u32 = blocks.iter().map(|block| block.count).sum();
        let all = (self.ops.len() + self.waiting) as u32;
        let dead = (self.blocks.len() - blocks.len(), all - operations);
        SavedBlocks { dead: (dead.0 as u32, dead.1), blocks, contexts: self.runs.save(), marks: ram.marks() }
    }

    /// Returns true if a cache can hold this number of blocks and operations.
    pub(crate) fn has_room(blocks: u64, operations: u64) -> bool {
        blocks <= MOST_BLOCKS as u64 && operations <= MAX_OPS as u64
    }

    /// Occupies the room of invalid blocks and their operations in an empty cache, and makes room for others.
    pub(crate) fn bury(&mut self, (blocks, operations): (u32, u32), others: usize) {
        self.waiting = operations as usize;
        let dead = Block {
            physical: DEAD,
            rip: 0,
            second: 0,
            cost: 0,
            first: 0,
            count: 0,
            shape: ShapeId(0),
            key: WAITS,
            after: START,
            probe: false,
            breakpoint: false,
            len: 1,
        };
        self.blocks.reserve(blocks as usize + others);
        self.blocks.resize(blocks as usize, dead);
        self.index.reserve(others);
    }

    /// Sets a probe at an address: see [`crate::probe`].
    pub fn add_probe(&mut self, rip: u64, ram: &Ram) {
        if self.probes.insert(rip) {
            self.invalidate_code_at(rip, ram);
        }
    }

    /// Removes all probes.
    pub fn remove_probes(&mut self, ram: &Ram) {
        for rip in self.probes.take() {
            self.invalidate_code_at(rip, ram);
        }
    }

    /// Sets a breakpoint at a linear address: see [`crate::stops`].
    pub fn add_breakpoint(&mut self, linear: u64) {
        if self.breakpoints.insert(linear) {
            self.breakpoints_changed();
        }
    }

    /// Removes a breakpoint. Returns true if there was one.
    pub fn remove_breakpoint(&mut self, linear: u64) -> bool {
        let was = self.breakpoints.remove(linear);
        if was {
            self.breakpoints_changed();
        }
        was
    }

    /// Sets breakpoints at these addresses, and removes all others.
    pub fn set_breakpoints(&mut self, addresses: impl IntoIterator<Item = u64>) {
        self.breakpoints = Breakpoints::default();
        for linear in addresses {
            self.breakpoints.insert(linear);
        }
        self.breakpoints_changed();
    }

    /// Updates the breakpoint flags of blocks. The blocks are kept, because they determine when a write to code is
    /// noticed; their translations are dropped.
    fn breakpoints_changed(&mut self) {
        for (index, block) in (0..).zip(&mut self.blocks) {
            if block.waits() {
                continue;
            }
            let ops = &self.ops[block.first as usize..][..block.count as usize];
            let breakpoint = block.physical != DEAD && self.breakpoints.may_be_in(block.physical, ops);
            if breakpoint != block.breakpoint {
                block.breakpoint = breakpoint;
                self.translations.remove(index);
            }
        }
    }

    /// Returns the breakpoints.
    pub fn breakpoints(&self) -> &Breakpoints {
        &self.breakpoints
    }

    /// Drops the blocks that contain an instruction at `rip`, at any physical address.
    fn invalidate_code_at(&mut self, rip: u64, ram: &Ram) {
        let holds = |block: &&Block| block.physical != DEAD && rip.wrapping_sub(block.rip) < u64::from(block.len);
        let places: BTreeSet<(u64, u64)> = self
            .blocks
            .iter()
            .filter(holds)
            .map(|block| {
                let first = block.physical & (PAGE - 1);
                let here = u64::from(block.len).min(PAGE - first);
                (block.physical & !(PAGE - 1), lines(first, here))
            })
            .collect();
        for (page, lines) in places {
            self.invalidate(page, lines, ram);
        }
    }

    /// Allocates the memory for translations, which the first translation would otherwise do. Returns false if the host refuses it: everything is
    /// interpreted then.
    pub fn prepare(&mut self) -> bool {
        self.tier == Tier::Interpreter || self.translations.prepare()
    }

    /// Returns empty blocks with the same settings, probes and contexts, which take the place of these empty ones.
    pub(crate) fn renewed(&mut self) -> Self {
        Self {
            tier: self.tier,
            threshold: self.threshold,
            translations: self.translations.renewed(),
            probes: std::mem::take(&mut self.probes),
            breakpoints: std::mem::take(&mut self.breakpoints),
            runs: std::mem::take(&mut self.runs),
            ..Self::new()
        }
    }

    /// Returns the number of counters of translated code.
    pub(crate) fn numbers(&self) -> usize {
        self.counted.len()
    }

    /// Drops translated code and its counters. The processors' counts must have been passed to the recorder.
    pub(crate) fn forget_translations(&mut self) {
        self.translations.clear();
        self.counted.clear();
        self.events.clear();
        self.prefixes.clear();
    }

    /// Drops everything. The processors' counts must have been passed to the recorder.
    pub(crate) fn clear(&mut self, ram: &Ram) {
        self.blocks.clear();
        self.ops.clear();
        self.rests.clear();
        self.waiting = 0;
        self.forget_translations();
        self.index.clear();
        self.pages.clear();
        ram.clear_all_code();
    }
}
