//! Decoded basic blocks: the unit that is executed, charged and, later, translated.
//!
//! Blocks are found by the guest-physical address of their first byte, so they survive address-space switches and are shared
//! by all processors of a machine. A block never leaves its page, except that a single instruction may cross into the next;
//! such a block also holds the second page's address, which is checked on each entry.

use crate::op::Op;
use crate::ram::{PAGE, Ram, lines};
use ledger::{OriginId, Recorder, ShapeId};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Operations kept at most; at the limit everything is dropped and decoded anew.
pub const MAX_OPS: usize = 400_000;
/// Counters kept at most, likewise.
const MAX_COUNTERS: usize = 1 << 21;
/// Instructions per block at most.
pub const MAX_BLOCK: usize = 32;

const JUMPS: usize = 1 << 16;
const DEAD: u64 = u64::MAX;
const NOT_RUN: Counter = Counter { runs: 0, origin: OriginId(u32::MAX) };

/// A decoded block.
pub struct Block {
    /// Guest-physical address of its first byte; all ones once it is invalid.
    pub physical: u64,
    /// Address it was decoded at (offset in CS outside 64-bit mode).
    pub rip: u64,
    /// Guest-physical page of the second part of an instruction that crosses pages, else 0.
    pub second: u64,
    /// Ticks of one execution.
    pub cost: u64,
    /// First operation.
    pub first: u32,
    /// Operations.
    pub count: u32,
    /// Instructions by class.
    pub shape: ShapeId,
    /// First of its counters.
    pub counter: u32,
    /// How many counters it has, a power of two, minus one.
    pub counters: u16,
    /// Executions that found the counter of another origin, since counters were last added.
    collisions: u16,
    /// Decoding mode, see [`crate::decode::mode`].
    pub mode: u8,
    /// Bytes it covers.
    pub len: u16,
}

/// Executions of a block by one origin, since they were last handed to the recorder.
///
/// A block that many origins run (kernel code, under the page tables of every process) gets more counters, each used by the
/// origins whose number leads to it, so that an address-space switch does not send every block's count to the recorder.
#[derive(Clone, Copy)]
struct Counter {
    runs: u64,
    origin: OriginId,
}

/// Most counters of one block.
const MOST_COUNTERS: usize = 256;
/// Collisions after which a block gets more counters, for each that it has.
const PATIENCE: u16 = 8;

/// What a block is made with.
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
    /// See [`Block::mode`].
    pub mode: u8,
    /// See [`Block::len`].
    pub len: u16,
}

/// All blocks of a machine.
pub struct BlockCache {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Their operations.
    pub ops: Vec<Op>,
    counters: Vec<Counter>,
    index: FxHashMap<(u64, u64, u8), u32>,
    pages: FxHashMap<u64, Vec<u32>>,
    jumps: Box<[u32; JUMPS]>,
}

impl Default for BlockCache {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn slot(physical: u64) -> usize {
    (physical ^ (physical >> 12)) as usize & (JUMPS - 1)
}

impl BlockCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self {
            blocks: Vec::new(),
            ops: Vec::new(),
            counters: Vec::new(),
            index: FxHashMap::default(),
            pages: FxHashMap::default(),
            jumps: Box::new([u32::MAX; JUMPS]),
        }
    }

    /// Finds a block.
    #[inline(always)]
    pub fn find(&mut self, physical: u64, rip: u64, mode: u8) -> Option<u32> {
        let index = self.jumps[slot(physical)];
        if let Some(block) = self.blocks.get(index as usize)
            && block.physical == physical
            && block.rip == rip
            && block.mode == mode
        {
            return Some(index);
        }
        self.find_slow(physical, rip, mode)
    }

    #[inline(never)]
    fn find_slow(&mut self, physical: u64, rip: u64, mode: u8) -> Option<u32> {
        let index = *self.index.get(&(physical, rip, mode))?;
        self.jumps[slot(physical)] = index;
        Some(index)
    }

    /// Adds a block with its operations and marks its bytes as decoded.
    pub fn insert(&mut self, new: NewBlock, ops: &[Op], ram: &Ram, recorder: &mut Recorder) -> u32 {
        if self.ops.len() + ops.len() > MAX_OPS || self.counters.len() > MAX_COUNTERS {
            self.clear(ram, recorder);
        }
        let NewBlock { physical, rip, second, cost, shape, mode, len } = new;
        let block = Block {
            physical,
            rip,
            second,
            cost,
            first: self.ops.len() as u32,
            count: ops.len() as u32,
            shape,
            counter: self.counters.len() as u32,
            counters: 0,
            collisions: 0,
            mode,
            len,
        };
        self.counters.push(NOT_RUN);
        self.ops.extend_from_slice(ops);
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
        self.index.insert((block.physical, block.rip, block.mode), index);
        self.jumps[slot(block.physical)] = index;
        self.blocks.push(block);
        index
    }

    /// Counts an execution of a block.
    #[inline(always)]
    pub fn count(&mut self, index: u32, origin: OriginId, recorder: &RefCell<Recorder>) {
        let block = &self.blocks[index as usize];
        let at = block.counter as usize + (origin.0 as usize & usize::from(block.counters));
        let counter = &mut self.counters[at];
        if counter.origin == origin {
            counter.runs += 1;
        } else {
            self.count_other(index, at, origin, &mut recorder.borrow_mut());
        }
    }

    /// The counter belongs to another origin: it changes hands, or the block gets more of them.
    #[inline(never)]
    fn count_other(&mut self, index: u32, at: usize, origin: OriginId, recorder: &mut Recorder) {
        let block = &mut self.blocks[index as usize];
        let old = std::mem::replace(&mut self.counters[at], Counter { runs: 1, origin });
        if old.runs == 0 {
            return;
        }
        recorder.add_block(old.origin, block.rip, block.shape, old.runs);
        block.collisions += 1;
        let now = usize::from(block.counters) + 1;
        if block.collisions < PATIENCE * now as u16 || now == MOST_COUNTERS {
            block.collisions = block.collisions.min(u16::MAX - 1);
            return;
        }
        let (from, size) = (block.counter as usize, now * 4);
        block.counter = self.counters.len() as u32;
        block.counters = (size - 1) as u16;
        block.collisions = 0;
        let to = self.counters.len();
        self.counters.resize(to + size, NOT_RUN);
        for i in from..from + now {
            let moved = std::mem::replace(&mut self.counters[i], NOT_RUN);
            if moved.runs != 0 {
                // Origins that had counters of their own still have: their numbers differ in the bits used before.
                self.counters[to + (moved.origin.0 as usize & (size - 1))] = moved;
            }
        }
    }

    /// Takes back one execution that did not complete.
    pub fn uncount(&mut self, index: u32, origin: OriginId) {
        let block = &self.blocks[index as usize];
        let at = block.counter as usize + (origin.0 as usize & usize::from(block.counters));
        // It was counted there a moment ago.
        self.counters[at].runs -= 1;
    }

    /// Hands a block's executions to the recorder.
    fn spill(block: &Block, counters: &mut [Counter], recorder: &mut Recorder) {
        let first = block.counter as usize;
        for counter in &mut counters[first..first + usize::from(block.counters) + 1] {
            if counter.runs != 0 {
                recorder.add_block(counter.origin, block.rip, block.shape, counter.runs);
                counter.runs = 0;
            }
        }
    }

    /// Hands all executions to the recorder.
    pub fn spill_all(&mut self, recorder: &mut Recorder) {
        for block in &self.blocks {
            Self::spill(block, &mut self.counters, recorder);
        }
    }

    /// Drops the blocks that hold any of the given 64-byte lines of a page.
    pub fn invalidate(&mut self, page: u64, written: u64, ram: &Ram, recorder: &mut Recorder) {
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
            Self::spill(block, &mut self.counters, recorder);
            self.index.remove(&(block.physical, block.rip, block.mode));
            block.physical = DEAD;
            false
        });
        if list.is_empty() {
            self.pages.remove(&page);
        }
        ram.set_code(page, kept);
    }

    /// Drops everything.
    pub fn clear(&mut self, ram: &Ram, recorder: &mut Recorder) {
        self.spill_all(recorder);
        self.blocks.clear();
        self.ops.clear();
        self.counters.clear();
        self.index.clear();
        self.pages.clear();
        self.jumps.fill(u32::MAX);
        ram.clear_all_code();
    }
}
