//! Decoded basic blocks: the unit that is executed, charged and, later, translated.
//!
//! Blocks are found by the guest-physical address of their first byte, so they survive address-space switches and are shared
//! by all processors of a machine. A block never leaves its page, except that a single instruction may cross into the next;
//! such a block also holds the second page's address, which is checked on each entry.

use crate::op::Op;
use crate::ram::{PAGE, Ram, lines};
use ledger::{OriginId, Recorder, ShapeId};
use rustc_hash::FxHashMap;

/// Operations kept at most; at the limit everything is dropped and decoded anew.
pub const MAX_OPS: usize = 400_000;
/// Instructions per block at most.
pub const MAX_BLOCK: usize = 32;

const JUMPS: usize = 1 << 14;
const DEAD: u64 = u64::MAX;

/// A decoded block.
pub struct Block {
    /// Guest-physical address of its first byte; all ones once it is invalid.
    pub physical: u64,
    /// Address it was decoded at (offset in CS outside 64-bit mode).
    pub rip: u64,
    /// Guest-physical page of the second part of an instruction that crosses pages, else 0.
    pub second: u64,
    /// Executions since they were last handed to the recorder.
    pub runs: u64,
    /// Ticks of one execution.
    pub cost: u64,
    /// First operation.
    pub first: u32,
    /// Operations.
    pub count: u32,
    /// Instructions by class.
    pub shape: ShapeId,
    /// Who ran it last.
    pub origin: OriginId,
    /// Decoding mode, see [`crate::decode::mode`].
    pub mode: u8,
    /// Bytes it covers.
    pub len: u16,
}

/// All blocks of a machine.
pub struct BlockCache {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Their operations.
    pub ops: Vec<Op>,
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
    pub fn insert(&mut self, mut block: Block, ops: &[Op], ram: &Ram, recorder: &mut Recorder) -> u32 {
        if self.ops.len() + ops.len() > MAX_OPS {
            self.clear(ram, recorder);
        }
        block.first = self.ops.len() as u32;
        block.count = ops.len() as u32;
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

    /// Hands a block's executions to the recorder.
    #[inline]
    pub fn spill(block: &mut Block, recorder: &mut Recorder) {
        if block.runs != 0 {
            recorder.add_block(block.origin, block.rip, block.shape, block.runs);
            block.runs = 0;
        }
    }

    /// Hands all executions to the recorder.
    pub fn spill_all(&mut self, recorder: &mut Recorder) {
        self.blocks.iter_mut().for_each(|b| Self::spill(b, recorder));
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
            Self::spill(block, recorder);
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
        self.index.clear();
        self.pages.clear();
        self.jumps.fill(u32::MAX);
        ram.clear_all_code();
    }
}
