//! The blocks of a machine as its processors use them: code that all share ([`Blocks`]), and what each has learnt from
//! executing it (`Use`, in `usage.rs`).
//!
//! Between two invalidations the code only grows. When it is dropped, every processor's counts must be passed to the
//! recorder first, because counters are numbered as blocks are. Processors take turns: the use of the one whose turn it is
//! is at hand, and that of the others is put aside.

use crate::blocks::{Blocks, Derived, NewBlock, key};
use crate::counters::DRAIN;
use crate::op::Op;
use crate::ram::Ram;
use crate::tally::Counts;
use crate::time::Place;
use crate::usage::{NONE, Use};
use ledger::{OriginId, Recorder, Ticks};
use x86::page::PAGE;

/// Memory used by blocks, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Maximum size of translated code so far.
    pub code: usize,
    /// Decoded blocks, their indices and counters, and metadata of translations.
    pub metadata: usize,
}

/// All blocks of a machine, what is derived from them, and the processors' use of them.
pub struct Cache<D> {
    /// The blocks.
    pub code: Blocks<D>,
    /// Use by the processor whose turn it is.
    pub(crate) used: Use,
    /// The processor whose turn it is.
    who: usize,
    /// Use by the other processors that have had a turn.
    others: Vec<Option<Use>>,
}

impl<D: Derived> Default for Cache<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Derived> Cache<D> {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self { code: Blocks::new(), used: Use::default(), who: 0, others: Vec::new() }
    }

    /// Returns true if a cache can hold this number of blocks and operations.
    pub(crate) fn has_room(blocks: u64, operations: u64) -> bool {
        Blocks::<D>::has_room(blocks, operations)
    }

    /// Begins the turn of a processor.
    #[inline]
    pub(crate) fn turn(&mut self, who: usize) {
        if self.who != who {
            self.change(who);
        }
    }

    #[cold]
    fn change(&mut self, who: usize) {
        let processors = self.others.len().max(who + 1).max(self.who + 1);
        self.others.resize_with(processors, || None);
        let next = self.others[who].take().unwrap_or_default();
        self.others[self.who] = Some(std::mem::replace(&mut self.used, next));
        self.who = who;
    }

    /// Returns the code, and the use of all processors, in their order.
    fn everyone(&mut self) -> (&mut Blocks<D>, impl Iterator<Item = &mut Use>) {
        let at = self.who.min(self.others.len());
        let (before, after) = self.others.split_at_mut(at);
        let (before, after) = (before.iter_mut().flatten(), after.iter_mut().flatten());
        (&mut self.code, before.chain(std::iter::once(&mut self.used)).chain(after))
    }

    /// Looks up a block, first among the known successors of the block `before` (or `NONE`).
    #[inline(always)]
    pub fn find(&mut self, before: u32, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let Some(links) = self.used.links(before) else {
            return self.find_first(before, physical, rip, key);
        };
        if self.code.is(links[0], physical, rip, key) {
            return Some(links[0]);
        }
        if self.code.is(links[1], physical, rip, key) {
            return Some(links[1]);
        }
        let found = self.find_by_address(physical, rip, key)?;
        self.used.link(before, found);
        Some(found)
    }

    /// Does the same for a block without known successors.
    #[inline(always)]
    fn find_first(&mut self, before: u32, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let found = self.find_by_address(physical, rip, key)?;
        if before != NONE {
            self.used.link(before, found);
        }
        Some(found)
    }

    #[inline(always)]
    fn find_by_address(&mut self, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let index = self.used.probably_at(physical);
        if self.code.is(index, physical, rip, key) { Some(index) } else { self.find_slow(physical, rip, key) }
    }

    #[inline(never)]
    fn find_slow(&mut self, physical: u64, rip: u64, key: u32) -> Option<u32> {
        let index = self.code.at(physical, rip, key)?;
        self.used.found_at(physical, index);
        Some(index)
    }

    /// Adds a block with its operations and marks its bytes as decoded.
    pub fn insert(&mut self, mut new: NewBlock, ops: &[Op], ram: &Ram, recorder: &mut Recorder) -> u32 {
        if self.code.is_full_for(ops.len()) {
            let shape = recorder.names().shapes()[new.shape.0 as usize].clone();
            self.clear(ram, recorder);
            // No block refers to a shape any more: shapes that never ran can be dropped.
            recorder.forget_shapes();
            new.shape = recorder.shape(&shape);
        }
        let physical = new.physical;
        let index = self.code.insert(new, ops, ram);
        self.used.found_at(physical, index);
        index
    }

    /// Counts an execution of a block.
    #[inline(always)]
    pub fn count(&mut self, index: u32, origin: OriginId, recorder: &mut Recorder) {
        if !self.used.counters.add(index, origin) {
            self.count_slow(index, origin, recorder);
        }
    }

    #[inline(never)]
    fn count_slow(&mut self, index: u32, origin: OriginId, recorder: &mut Recorder) {
        self.counts(origin, recorder);
        if !self.used.counters.add(index, origin) {
            // The counter has no room left.
            self.code.spill(&mut self.used.counters, &mut self.used.tally, origin, recorder);
            self.used.counters.add(index, origin);
        }
    }

    /// Returns the table in which translated code counts executions by an origin.
    #[inline]
    pub(crate) fn counts(&mut self, origin: OriginId, recorder: &mut Recorder) -> *mut u32 {
        if let Some(table) = self.used.counters.table(origin) {
            return table;
        }
        if let Some(oldest) = self.used.counters.oldest() {
            self.code.spill(&mut self.used.counters, &mut self.used.tally, oldest, recorder);
            self.used.counters.give_up(oldest);
        }
        // There is room for a table now.
        self.used.counters.table(origin).unwrap_or(std::ptr::null_mut())
    }

    /// Adds to the time in which translated code has counted executions by an origin, and passes the counts to the
    /// recorder before any can overflow.
    pub(crate) fn spend(&mut self, origin: OriginId, time: Ticks, recorder: &mut Recorder) {
        if self.used.counters.spend(origin, time) >= DRAIN {
            self.code.spill(&mut self.used.counters, &mut self.used.tally, origin, recorder);
        }
    }

    /// Takes back one execution that did not complete.
    pub fn uncount(&mut self, index: u32, origin: OriginId) {
        self.used.counters.take_one(index, origin);
    }

    /// Returns the block at `rip` in a page of guest-physical memory that was decoded in the mode of block `index` and
    /// for this context, if there is one.
    pub(crate) fn block_in_page(&mut self, index: u32, page: u64, rip: u64, context: Place) -> Option<u32> {
        let mode = self.code.blocks[index as usize].mode();
        self.find_by_address(page | rip & (PAGE - 1), rip, key(mode, context))
    }

    /// Returns the successor of block `index`, if it was always the same on this processor.
    pub(crate) fn only_successor(&self, index: u32) -> Option<u64> {
        match self.used.links(index)? {
            [next, NONE] => self.code.blocks.get(next as usize).map(|next| next.rip),
            _ => None,
        }
    }

    /// Records that block `index` followed the interpreted block `before`, or [`NONE`].
    #[inline]
    pub(crate) fn note_way(&mut self, before: u32, index: u32) {
        if let Some(block) = self.code.blocks.get(before as usize) {
            let taken = self.code.blocks[index as usize].rip != block.rip.wrapping_add(u64::from(block.len));
            self.used.note_way(before, taken);
        }
    }

    /// Returns the memory in use.
    pub fn taken(&self) -> Taken {
        let (code, metadata) = self.code.taken();
        let others = self.others.iter().flatten().map(Use::taken).sum::<usize>();
        Taken { code, metadata: metadata + self.used.taken() + others }
    }

    /// Passes all execution counts to the recorder: those of the first processor first, and of each in the order of
    /// origins.
    pub fn spill_all(&mut self, recorder: &mut Recorder) {
        let (code, everyone) = self.everyone();
        for used in everyone {
            for origin in used.counters.origins() {
                code.spill(&mut used.counters, &mut used.tally, origin, recorder);
            }
        }
    }

    /// Passes the execution counts of an origin on the processor whose turn it is to the recorder.
    pub(crate) fn spill(&mut self, origin: OriginId, recorder: &mut Recorder) {
        self.code.spill(&mut self.used.counters, &mut self.used.tally, origin, recorder);
    }

    /// Passes all execution counts of the processor whose turn it is to the recorder.
    pub(crate) fn spill_own(&mut self, recorder: &mut Recorder) {
        for origin in self.used.counters.origins() {
            self.spill(origin, recorder);
        }
    }

    /// Returns true if the executions of the processor whose turn it is are summed up for performance counters.
    #[inline]
    pub(crate) fn is_tallied(&self) -> bool {
        self.used.tally.is_some()
    }

    /// Begins to sum up the executions of the processor whose turn it is, or ends to.
    pub(crate) fn set_tallied(&mut self, tallied: bool) {
        self.used.tally = tallied.then(Counts::default);
    }

    /// Takes the sums of the processor whose turn it is.
    pub(crate) fn take_tally(&mut self) -> Counts {
        self.used.tally.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops translated code and the numbers of counters, if these are sparse. Returns true if it did. Code that is still hot is
    /// translated again, and its counters are close together.
    pub(crate) fn renumber(&mut self, recorder: &mut Recorder) -> bool {
        let sparse = self.used.counters.is_sparse(self.code.numbers());
        if sparse {
            self.spill_all(recorder);
            let (code, everyone) = self.everyone();
            code.forget_translations();
            everyone.for_each(|used| used.counters.shrink());
        }
        sparse
    }

    /// Drops everything, and frees the memory.
    pub fn release(&mut self, ram: &Ram, recorder: &mut Recorder) {
        self.clear(ram, recorder);
        *self = Self { code: self.code.renewed(), ..Self::new() };
    }

    /// Drops everything.
    pub fn clear(&mut self, ram: &Ram, recorder: &mut Recorder) {
        self.spill_all(recorder);
        let (code, everyone) = self.everyone();
        code.clear(ram);
        everyone.for_each(Use::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::lines;
    use crate::saved::SavedBlock;
    use crate::time::START;
    use crate::translate::BlockCache;
    use ledger::Origin;

    /// Code and use can be handed to a thread, and the use of each processor to another one.
    #[test]
    fn code_and_use_are_of_no_thread() {
        fn of_no_thread<T: Send>() {}
        of_no_thread::<BlockCache>();
        of_no_thread::<Use>();
    }

    #[test]
    fn each_processor_has_its_own_counts_and_predictions() {
        let ram = Ram::anonymous(PAGE);
        let mut recorder = Recorder::default();
        let origin = recorder.origin(Origin::default());
        let mut cache = BlockCache::new();
        let shape = recorder.shape(&vec![]);
        let block = |rip| NewBlock {
            physical: rip,
            rip,
            second: 0,
            cost: 0,
            shape,
            key: 0,
            after: 0,
            probe: false,
            len: 1,
            ticks: Vec::new(),
        };
        let [first, second] = [8, 16].map(|rip| cache.insert(block(rip), &[], &ram, &mut recorder));
        for (who, times) in [(0, 2), (3, 5), (1, 1)] {
            cache.turn(who);
            assert_eq!(cache.only_successor(first), None);
            assert_eq!(cache.find(first, 16, 16, 0), Some(second));
            assert_eq!(cache.only_successor(first), Some(16));
            (0..times).for_each(|_| cache.count(first, origin, &mut recorder));
        }
        cache.turn(3);
        assert_eq!(cache.only_successor(first), Some(16));
        cache.uncount(first, origin);
        cache.spill_all(&mut recorder);
        let runs: Vec<_> = recorder.blocks().map(|(_, rip, _, runs)| (rip, runs)).collect();
        assert_eq!(runs, [(8, 7)]);
        cache.clear(&ram, &mut recorder);
        cache.turn(0);
        assert_eq!((cache.find(first, 16, 16, 0), cache.only_successor(first)), (None, None));
    }

    #[test]
    fn a_restored_block_waits_until_it_is_needed_or_its_bytes_are_written() {
        let ram = Ram::anonymous(PAGE);
        let mut cache = BlockCache::new();
        let saved =
            |rip| SavedBlock { physical: rip, rip, second: 0, mode: 0, context: START, probe: false, count: 2, len: 4 };
        cache.code.bury((1, 3), 2);
        [64, 128, 192].iter().for_each(|rip| cache.code.expect(&saved(*rip), &ram));
        let waits = |cache: &BlockCache, rip| cache.code.waiting_at(rip, rip, 0).map(|(_, block)| block);
        assert_eq!((cache.find(NONE, 64, 64, 0), waits(&cache, 64)), (None, Some(saved(64))));
        cache.code.set_breakpoints([129]);
        let kept = cache.code.save(&ram);
        assert_eq!((kept.dead, kept.blocks.len()), ((1, 3), 3));
        cache.code.invalidate(0, lines(64, 1), &ram);
        assert_eq!((waits(&cache, 64), waits(&cache, 128)), (None, Some(saved(128))));
        let (index, _) = cache.code.waiting_at(192, 192, 0).expect("it waits");
        cache.code.give_up(index);
        assert_eq!((cache.find(NONE, 192, 192, 0), waits(&cache, 192)), (None, None));
        // An invalid block keeps its room.
        let kept = cache.code.save(&ram);
        assert_eq!((kept.dead, kept.blocks), ((3, 7), vec![saved(128)]));
    }
}
