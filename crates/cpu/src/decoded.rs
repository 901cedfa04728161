//! Restores the decoded blocks of a saved state ([`SavedBlocks`]).
//!
//! Blocks can be decoded again at any time, but a machine that did so at a different time would behave differently: the
//! end of a block determines the instruction at which an interrupt is taken, a write to decoded bytes ends a block
//! early, and decoding translates the address of the next page. A saved state therefore lists its blocks, and they are
//! decoded again from memory. Translations are not part of it.
//!
//! A block is decoded when it is first executed, since most programs execute few of the blocks that a boot leaves. The result is
//! the same at any time: a block depends on its bytes, whose change drops it, and on its context.

use crate::blocks::{MAX_BLOCK, NewBlock, key};
use crate::decode::MAX_LENGTH;
use crate::op::Op;
use crate::op::Timed;
use crate::saved::{SavedBlock, SavedBlocks};
use crate::state::{Cpu, ImpossibleState};
use crate::time::{End, Place, Runs, START};
use crate::translate::BlockCache;
use ledger::Shape;
use x86::page::PAGE;

/// Returns the operations of instructions.
pub(crate) fn operations(run: &[Timed]) -> Vec<Op> {
    run.iter().map(|timed| timed.op).collect()
}

impl Cpu {
    /// Computes the properties of the block with these operations: prices (a branch learns its own), and instructions by class. `ends` is true if
    /// the last operation ends a run.
    pub(crate) fn describe_block(&self, block: SavedBlock, run: &mut [Timed], ends: bool, runs: &mut Runs) -> NewBlock {
        let ends = run.last().map_or(End::Never, |last| End::of(ends, last.op.class));
        let (prices, after) =
            runs.price(&self.wiring.model.prices(), block.context, &mut run.iter().map(Timed::step), ends);
        run.iter_mut().zip(&prices).for_each(|(timed, price)| timed.op.set_price(*price));
        let ticks: Vec<u32> = prices.iter().map(|price| price.ticks).collect();
        let mut shape: Shape = Vec::new();
        for (Timed { op, .. }, ticks) in run.iter().zip(&ticks) {
            match shape.iter_mut().find(|(class, ..)| *class == op.class) {
                Some((_, n, sum)) => (*n, *sum) = (*n + 1, *sum + u64::from(*ticks)),
                None => shape.push((op.class, 1, u64::from(*ticks))),
            }
        }
        shape.sort_unstable();
        let len: u64 = run.iter().map(|timed| u64::from(timed.op.len)).sum();
        NewBlock {
            physical: block.physical,
            rip: block.rip,
            second: block.second,
            cost: ticks.iter().map(|ticks| u64::from(*ticks)).sum(),
            shape: self.wiring.recorder.shape(&shape),
            key: key(block.mode, block.context),
            after,
            probe: block.probe,
            len: len.min(PAGE) as u16,
            ticks,
        }
    }

    /// Checks that the processor's place in a run is one of the blocks' contexts, which have been restored.
    pub fn check_place(&self, cache: &BlockCache) -> Result<(), ImpossibleState> {
        match cache.code.runs.has(self.micro.run) {
            true => Ok(()),
            false => Err(ImpossibleState("its place in a run")),
        }
    }

    /// Returns true if a block of a saved state may be one: its bytes are in memory, and so many of them have so many operations.
    fn may_be(&self, block: &SavedBlock) -> bool {
        let ram = &self.wiring.ram;
        let here = PAGE - (block.physical & (PAGE - 1));
        let (len, count) = (u64::from(block.len), u64::from(block.count));
        let across = block.second != 0;
        let fits = match across {
            true => block.second & (PAGE - 1) == 0 && here < len && len <= MAX_LENGTH as u64 && count == 1,
            false => len <= here,
        };
        let counts = 1..=MAX_BLOCK as u64;
        fits && len > 0
            && counts.contains(&count)
            && len <= count * MAX_LENGTH as u64
            && ram.visible_page(block.physical).is_some()
            && (!across || ram.visible_page(block.second).is_some())
    }

    /// Puts the blocks of a saved state into an empty cache. Probes must have been restored.
    pub fn restore_blocks(&mut self, saved: &SavedBlocks, cache: &mut BlockCache) -> Result<(), ImpossibleState> {
        let count = saved.blocks.iter().map(|block| u64::from(block.count)).sum::<u64>() + u64::from(saved.dead.1);
        if !BlockCache::has_room(saved.blocks.len() as u64 + u64::from(saved.dead.0), count) {
            return Err(ImpossibleState("more decoded code than there can be"));
        }
        cache.code.runs = Runs::restore(&*self.wiring.model.timing, &saved.contexts)
            .ok_or(ImpossibleState("prices of decoded code"))?;
        if !saved.blocks.iter().all(|block| cache.code.runs.has(block.context)) {
            return Err(ImpossibleState("prices of decoded code"));
        }
        if !saved.blocks.iter().all(|block| self.may_be(block)) {
            return Err(ImpossibleState("decoded code that is not in memory"));
        }
        cache.code.bury(saved.dead, saved.blocks.len());
        saved.blocks.iter().for_each(|block| cache.code.expect(block, &self.wiring.ram));
        for (page, lines) in &saved.marks {
            self.wiring.ram.set_code(*page, *lines);
        }
        Ok(())
    }

    /// Returns the block of a restored state at an address, which nothing has executed since; it is decoded now.
    #[inline(never)]
    pub(crate) fn decode_waiting(&mut self, cache: &mut BlockCache, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let (index, block) = cache.code.waiting_at(physical, rip, key)?;
        let decoded = self.decode_again(&block).map(|(mut run, ends)| {
            let new = self.describe_block(block, &mut run, ends, &mut cache.code.runs);
            (new, operations(&run))
        });
        match decoded {
            Some((new, ops)) if new.len == block.len => {
                cache.code.complete(index, new, &ops);
                Some(index)
            }
            // The state comes from elsewhere, and is not one that this program saved.
            _ => {
                cache.code.give_up(index);
                None
            }
        }
    }

    /// Returns the context after the first `done` operations of a block. It is the begin of a run if the block's bytes are
    /// no longer in memory.
    pub(crate) fn place_in(&self, cache: &mut BlockCache, index: u32, done: usize) -> Place {
        if !self.wiring.model.timing.has_contexts() {
            return START;
        }
        let saved = SavedBlock { count: done as u32, ..cache.code.blocks[index as usize].saved() };
        match self.decode_again(&saved) {
            Some((run, _)) => {
                cache.code.runs.after(&self.wiring.model.prices(), saved.context, &mut run.iter().map(Timed::step))
            }
            None if done == 0 => saved.context,
            None => START,
        }
    }

    /// Returns the instructions of a block, with true if the last of them ends a run.
    fn decode_again(&self, block: &SavedBlock) -> Option<(Vec<Timed>, bool)> {
        let offset = block.physical & (PAGE - 1);
        let count = block.count.min(MAX_BLOCK as u32) as usize;
        let here = (PAGE - offset).min((count * MAX_LENGTH) as u64) as usize;
        let mut bytes = vec![0; here];
        let ram = &self.wiring.ram;
        if !ram.read_bytes(block.physical, &mut bytes) {
            return None;
        }
        if block.second != 0 {
            bytes.resize(here + MAX_LENGTH, 0);
            if block.second & (PAGE - 1) != 0 || !ram.read_bytes(block.second, &mut bytes[here..]) {
                return None;
            }
        }
        let mut ended = false;
        let mut run = Vec::with_capacity(count);
        run.extend(self.decode_bytes(&bytes, block.rip, block.mode).take(count).map(|(timed, ends)| {
            ended = ends;
            timed
        }));
        (run.len() == block.count as usize && !run.is_empty()).then_some((run, ended))
    }

    /// Decodes instructions from bytes, of which the first is at `rip`, up to one that the bytes do not contain whole. With each comes true if it ends
    /// its block.
    pub(crate) fn decode_bytes(&self, bytes: &[u8], mut rip: u64, mode: u8) -> impl Iterator<Item = (Timed, bool)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            let instruction = Self::decode_one(&rest[..rest.len().min(MAX_LENGTH)], rip, mode).ok()?;
            let (op, ends) = self.operation_of(&instruction, mode);
            (rip, at) = (op.next, at + usize::from(op.len).max(1));
            Some((Timed { op, instruction }, ends))
        })
    }
}
