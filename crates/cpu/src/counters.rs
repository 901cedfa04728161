//! How often which origin ran which block.
//!
//! Kernel code runs under the page tables of every process, so counts are kept by origin (address space and ring) and block.
//! Each origin has a table of its own, which translated code counts in directly; the host gives its memory where it is
//! touched.

use ledger::OriginId;

/// Blocks at most.
pub const MOST_BLOCKS: usize = 1 << 17;
/// Origins with counts at most.
const MOST_ORIGINS: usize = 512;
const ABSENT: u32 = u32::MAX;
/// Places that are looked at together.
const GROUP: usize = 16;
/// What is counted in one place at most; translated code counts less than this beside it, or in parts of it.
const ENOUGH: u32 = 1 << 31;

/// Counts by origin and block.
pub struct Counters {
    /// By origin: its table.
    by_origin: Vec<u32>,
    /// Tables; those from `used` on are zero.
    tables: Vec<Vec<u32>>,
    used: usize,
}

impl Counters {
    /// Nothing counted.
    pub fn new() -> Self {
        Self { by_origin: Vec::new(), tables: Vec::new(), used: 0 }
    }

    #[inline(always)]
    fn slot(&mut self, block: u32, origin: OriginId) -> Option<&mut u32> {
        let table = *self.by_origin.get(origin.0 as usize)?;
        self.tables.get_mut(table as usize)?.get_mut(block as usize)
    }

    /// Counts one execution; `false` if there is no place for it yet, or counts must be drained first.
    #[inline(always)]
    pub fn add(&mut self, block: u32, origin: OriginId) -> bool {
        match self.slot(block, origin) {
            Some(count) if *count < ENOUGH => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// The counts of an origin, for whoever counts by itself. `None`: counts must be drained and dropped first.
    #[inline]
    pub fn table(&mut self, origin: OriginId) -> Option<*mut u32> {
        let number = match self.by_origin.get(origin.0 as usize) {
            Some(&number) if number != ABSENT => number as usize,
            _ => self.make(origin)?,
        };
        Some(self.tables[number].as_mut_ptr())
    }

    #[cold]
    fn make(&mut self, origin: OriginId) -> Option<usize> {
        if self.used == MOST_ORIGINS {
            return None;
        }
        let origin = origin.0 as usize;
        if self.by_origin.len() <= origin {
            self.by_origin.resize(origin + 1, ABSENT);
        }
        if self.tables.len() == self.used {
            self.tables.push(vec![0; MOST_BLOCKS]);
        }
        self.by_origin[origin] = self.used as u32;
        self.used += 1;
        Some(self.used - 1)
    }

    /// Takes back one execution that was counted a moment ago, under this number or one that it is a part of.
    pub fn take_one(&mut self, block: u32, origin: OriginId) {
        if let Some(count) = self.slot(block, origin) {
            *count = count.wrapping_sub(1);
        }
    }

    /// Hands out all counts of the first `blocks` blocks and sets them to zero. There are no others. What `parts` says of a number
    /// is counted instead of it; those numbers are smaller.
    pub fn drain(
        &mut self,
        blocks: usize,
        parts: impl Fn(u32) -> Option<[u32; 2]>,
        mut take: impl FnMut(u32, OriginId, u64),
    ) {
        for (origin, &table) in self.by_origin.iter().enumerate() {
            let origin = OriginId(origin as u32);
            let Some(counts) = self.tables.get_mut(table as usize) else { continue };
            let groups = blocks.min(counts.len()).div_ceil(GROUP);
            for group in (0..groups).rev() {
                let range = group * GROUP..(group + 1) * GROUP;
                // Most are zero, and memory that was never touched must not be.
                if counts[range.clone()].iter().fold(0, |any, count| any | count) == 0 {
                    continue;
                }
                for block in range.rev() {
                    let count = std::mem::take(&mut counts[block]);
                    if count == 0 {
                        continue;
                    }
                    match parts(block as u32) {
                        Some(whole) => whole.into_iter().for_each(|part| {
                            let sum = &mut counts[part as usize];
                            *sum = sum.wrapping_add(count);
                        }),
                        None => take(block as u32, origin, u64::from(count)),
                    }
                }
            }
        }
    }

    /// Bytes that counts of so many blocks take, where all have been touched.
    pub fn taken(&self, blocks: usize) -> usize {
        self.tables.len() * blocks * size_of::<u32>() + self.by_origin.capacity() * size_of::<u32>()
    }

    /// Drops all places; the counts have been drained.
    pub fn clear(&mut self) {
        self.by_origin.clear();
        self.used = 0;
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_out_as_they_went_in() {
        let mut counters = Counters::new();
        let runs = [(0, 0, 3), (63, 0, 1), (64, 0, 2), (64, 7, 5), (100_000, 3, 1)];
        for (block, origin, times) in runs {
            for _ in 0..times {
                if !counters.add(block, OriginId(origin)) {
                    assert!(counters.table(OriginId(origin)).is_some());
                    assert!(counters.add(block, OriginId(origin)));
                }
            }
        }
        counters.take_one(0, OriginId(0));
        let mut out = Vec::new();
        counters.drain(MOST_BLOCKS, |_| None, |block, origin, runs| out.push((block, origin.0, runs)));
        assert_eq!(out, [(64, 0, 2), (63, 0, 1), (0, 0, 2), (100_000, 3, 1), (64, 7, 5)]);
        counters.drain(MOST_BLOCKS, |_| None, |_, _, _| panic!("drained already"));
    }

    #[test]
    fn parts_are_counted_instead_of_what_they_make() {
        let mut counters = Counters::new();
        let table = counters.table(OriginId(0)).expect("a table");
        // 4 is 3 and 2; 3 is 1 and 2.
        for (number, count) in [(1, 7), (2, 0), (3, 2), (4, 5)] {
            // SAFETY: the table has many more places.
            unsafe { *table.add(number) = count };
        }
        let parts = |number| match number {
            3 => Some([1, 2]),
            4 => Some([3, 2]),
            _ => None,
        };
        // The last of them did not complete.
        counters.take_one(2, OriginId(0));
        let mut out = [0; 5];
        counters.drain(5, parts, |block, _, runs| out[block as usize] += runs);
        assert_eq!(out, [0, 14, 11, 0, 0]);
    }

    #[test]
    fn many_origins_fill_it_up() {
        let mut counters = Counters::new();
        for origin in 0..MOST_ORIGINS as u32 {
            assert!(counters.table(OriginId(origin)).is_some());
        }
        assert!(counters.table(OriginId(MOST_ORIGINS as u32)).is_none());
        counters.clear();
        assert!(counters.table(OriginId(0)).is_some());
    }
}
