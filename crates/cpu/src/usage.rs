//! Use of blocks by one processor: the number of executions of each block, its latest successors, and the lookups that
//! found it. All processors of a machine share blocks and translations, and each processor has its own use.

use crate::counters::Counters;
use crate::op::{MAX_LENGTH, Timed};
use crate::tally::Counts;

const JUMPS: usize = 1 << 16;
/// Number of cached instructions that were decoded for single-stepping.
const STEPPED: usize = 64;
/// Index that stands for no block.
pub(crate) const NONE: u32 = u32::MAX;

/// An instruction for single-stepping, in 64-bit mode.
#[derive(Clone, Copy)]
struct Stepped {
    rip: u64,
    bytes: [u8; MAX_LENGTH],
    timed: Timed,
    ends: bool,
}

/// Executions of a block that is not translated yet.
#[derive(Clone, Copy, Default)]
struct Heat {
    /// Number of executions, up to the largest number.
    times: u16,
    /// Number of these that continued at the branch target.
    taken: u16,
}

/// One processor's use of the blocks.
pub(crate) struct Use {
    /// Executions that the recorder does not know yet.
    pub(crate) counters: Counters,
    /// Sums of the executions that the recorder has got, for performance counters; `None` if no counter counts.
    pub(crate) tally: Option<Counts>,
    /// Most recent successors of each block: predictions, which are checked before they are used.
    links: Vec<[u32; 2]>,
    heat: Vec<Heat>,
    /// Generation of the translations to which the heat refers.
    heated: u64,
    /// Blocks by address: predictions too.
    jumps: Box<[u32; JUMPS]>,
    stepped: Box<[Option<Stepped>; STEPPED]>,
}

#[inline(always)]
fn slot(physical: u64) -> usize {
    (physical ^ (physical >> 12)) as usize & (JUMPS - 1)
}

impl Default for Use {
    fn default() -> Self {
        Self {
            counters: Counters::new(),
            tally: None,
            links: Vec::new(),
            heat: Vec::new(),
            heated: 0,
            jumps: Box::new([NONE; JUMPS]),
            stepped: Box::new([None; STEPPED]),
        }
    }
}

impl Use {
    /// Returns the successors of a block that are known, or [`NONE`].
    #[inline(always)]
    pub(crate) fn links(&self, block: u32) -> Option<[u32; 2]> {
        self.links.get(block as usize).copied()
    }

    /// Records that a block has this successor, which is not one of [`Use::links`].
    pub(crate) fn link(&mut self, block: u32, next: u32) {
        let at = block as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, [NONE; 2]);
        }
        self.links[at] = [next, self.links[at][0]];
    }

    /// Returns the block that is probably at an address.
    #[inline(always)]
    pub(crate) fn probably_at(&self, physical: u64) -> u32 {
        self.jumps[slot(physical)]
    }

    /// Records that a block is at an address.
    pub(crate) fn found_at(&mut self, physical: u64, index: u32) {
        self.jumps[slot(physical)] = index;
    }

    /// Returns the operation of an instruction in 64-bit mode, if the same bytes were decoded at that address before,
    /// with true if it ends its block.
    pub(crate) fn stepped(&self, rip: u64, bytes: &[u8; MAX_LENGTH]) -> Option<(Timed, bool)> {
        let found = self.stepped[(rip ^ rip >> 6) as usize % STEPPED].as_ref()?;
        (found.rip == rip && found.bytes == *bytes).then_some((found.timed, found.ends))
    }

    /// Stores an operation for [`Use::stepped`].
    pub(crate) fn note_stepped(&mut self, rip: u64, bytes: [u8; MAX_LENGTH], (timed, ends): (Timed, bool)) {
        self.stepped[(rip ^ rip >> 6) as usize % STEPPED] = Some(Stepped { rip, bytes, timed, ends });
    }

    fn heat(&mut self, block: u32) -> &mut Heat {
        let at = block as usize;
        if self.heat.len() <= at {
            self.heat.resize(at + 1, Heat::default());
        }
        &mut self.heat[at]
    }

    /// Counts an execution of a block that is not translated in this generation of the translations. Returns true if that
    /// was at least the `threshold`th.
    pub(crate) fn warm_up(&mut self, block: u32, generation: u64, threshold: u16) -> bool {
        if self.heated != generation {
            self.heated = generation;
            self.heat.clear();
        }
        let heat = self.heat(block);
        heat.times = heat.times.saturating_add(1);
        heat.times >= threshold
    }

    /// Begins to count the executions of a block again.
    pub(crate) fn cool_down(&mut self, block: u32) {
        self.heat(block).times = 0;
    }

    /// Returns true if a block was executed `times` times before it was translated.
    pub(crate) fn is_warm(&self, block: u32, times: u16) -> bool {
        self.heat.get(block as usize).copied().unwrap_or_default().times >= times
    }

    /// Records that execution continued at the branch target of a block, or else behind the block.
    pub(crate) fn note_way(&mut self, block: u32, taken: bool) {
        let heat = self.heat(block);
        heat.taken = heat.taken.saturating_add(u16::from(taken));
    }

    /// Returns true if a block usually continued at its branch target, as far as recorded.
    pub(crate) fn is_taken(&self, block: u32) -> bool {
        self.heat.get(block as usize).is_some_and(|heat| heat.taken > heat.times / 2)
    }

    /// Returns the size of this data in bytes.
    pub(crate) fn taken(&self) -> usize {
        let tables = size_of::<[u32; JUMPS]>() + size_of::<[Option<Stepped>; STEPPED]>();
        let lists = self.links.capacity() * size_of::<[u32; 2]>() + self.heat.capacity() * size_of::<Heat>();
        self.counters.taken() + tables + lists
    }

    /// Forgets everything but decoded single instructions. The counters must have been drained.
    pub(crate) fn clear(&mut self) {
        self.counters.clear();
        self.links.clear();
        self.heat.clear();
        self.jumps.fill(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_that_of_one_generation_of_translations() {
        let mut used = Use::default();
        assert_eq!([1, 2, 3].map(|_| used.warm_up(7, 0, 3)), [false, false, true]);
        used.note_way(7, true);
        used.note_way(7, true);
        assert!(used.is_warm(7, 3) && used.is_taken(7) && !used.is_warm(6, 1) && !used.is_taken(8));
        assert!(!used.warm_up(7, 1, 2), "everything has been dropped");
        assert!(!used.is_taken(7));
        assert!(used.warm_up(7, 1, 2));
        used.cool_down(7);
        assert!(!used.is_warm(7, 1));
    }

    #[test]
    fn the_two_latest_successors_are_known() {
        let mut used = Use::default();
        assert_eq!(used.links(3), None);
        for next in [10, 11, 12] {
            used.link(3, next);
        }
        assert_eq!((used.links(3), used.links(2)), (Some([12, 11]), Some([NONE; 2])));
        used.clear();
        assert_eq!(used.links(3), None);
    }
}
