//! How often which origin ran which block.
//!
//! Kernel code runs under the page tables of every process, so counts are kept by origin (address space and ring) and block.
//! Each origin has a table of its own, which translated code counts in directly, by numbers of its own above those of blocks: what is
//! hot lies close together. The host gives memory where it is touched.

use ledger::OriginId;

/// Blocks at most.
pub const MOST_BLOCKS: usize = 1 << 17;
/// Numbers of what translated code counts, at most; they begin at [`MOST_BLOCKS`].
pub const MOST_NUMBERS: usize = 1 << 18;
/// Origins with counts at most.
const MOST_ORIGINS: usize = 512;
const ABSENT: u32 = u32::MAX;
/// Places that are looked at together.
const GROUP: usize = 16;
/// Places in a page of the host's memory.
const PER_PAGE: usize = 4096 / size_of::<u32>();
/// Pages of a table.
const PAGES: usize = (MOST_BLOCKS + MOST_NUMBERS) / PER_PAGE;
/// What is counted in one place at most; translated code counts less than this beside it, or in parts of it.
const ENOUGH: u32 = 1 << 31;

/// Counts by origin and block.
pub struct Counters {
    /// By origin: its table.
    by_origin: Vec<u32>,
    /// Tables; those from `used` on are zero.
    tables: Vec<Vec<u32>>,
    used: usize,
    /// By table: which pages of it have been touched.
    touched: Vec<[u64; PAGES.div_ceil(64)]>,
}

impl Counters {
    /// Nothing counted.
    pub fn new() -> Self {
        Self { by_origin: Vec::new(), tables: Vec::new(), used: 0, touched: Vec::new() }
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

    /// The counts of an origin from [`MOST_BLOCKS`] on, for whoever counts by itself. `None`: counts must be drained and dropped first.
    #[inline]
    pub fn table(&mut self, origin: OriginId) -> Option<*mut u32> {
        let number = match self.by_origin.get(origin.0 as usize) {
            Some(&number) if number != ABSENT => number as usize,
            _ => self.make(origin)?,
        };
        Some(self.tables[number][MOST_BLOCKS..].as_mut_ptr())
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
            self.tables.push(vec![0; MOST_BLOCKS + MOST_NUMBERS]);
            self.touched.push([0; PAGES.div_ceil(64)]);
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

    /// Hands out all counts of the first `blocks` blocks and of as many numbers, and sets them to zero. There are no others. What
    /// `parts` says of a number is counted instead of it: smaller numbers, and blocks.
    pub fn drain(
        &mut self,
        blocks: usize,
        numbers: usize,
        parts: impl Fn(u32) -> Option<[Option<u32>; 2]>,
        mut take: impl FnMut(u32, OriginId, u64),
    ) {
        let groups = |range: std::ops::Range<usize>| (range.start / GROUP..range.end.div_ceil(GROUP)).rev();
        for (origin, &table) in self.by_origin.iter().enumerate() {
            let origin = OriginId(origin as u32);
            let Some(counts) = self.tables.get_mut(table as usize) else { continue };
            for group in groups(MOST_BLOCKS..MOST_BLOCKS + numbers).chain(groups(0..blocks)) {
                let range = group * GROUP..(group + 1) * GROUP;
                // Most are zero, and memory that was never touched must not be.
                if counts[range.clone()].iter().fold(0, |any, count| any | count) == 0 {
                    continue;
                }
                let page = range.start / PER_PAGE;
                self.touched[table as usize][page / 64] |= 1 << (page % 64);
                for number in range.rev() {
                    let count = std::mem::take(&mut counts[number]);
                    if count == 0 {
                        continue;
                    }
                    match parts(number as u32) {
                        Some(whole) => whole.into_iter().flatten().for_each(|part| {
                            let sum = &mut counts[part as usize];
                            *sum = sum.wrapping_add(count);
                        }),
                        None => take(number as u32, origin, u64::from(count)),
                    }
                }
            }
        }
    }

    /// Bytes that counts take, as far as they have been drained.
    pub fn taken(&self) -> usize {
        let pages: u32 = self.touched.iter().flatten().map(|word| word.count_ones()).sum();
        pages as usize * PER_PAGE * size_of::<u32>() + self.by_origin.capacity() * size_of::<u32>()
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
        counters.drain(MOST_BLOCKS, 0, |_| None, |block, origin, runs| out.push((block, origin.0, runs)));
        assert_eq!(out, [(64, 0, 2), (63, 0, 1), (0, 0, 2), (100_000, 3, 1), (64, 7, 5)]);
        counters.drain(MOST_BLOCKS, 0, |_| None, |_, _, _| panic!("drained already"));
        // Two pages of the second table, one of each of the others.
        assert_eq!(counters.taken() / 4096, 3);
    }

    #[test]
    fn parts_are_counted_instead_of_what_they_make() {
        const NUMBERS: u32 = MOST_BLOCKS as u32;
        let mut counters = Counters::new();
        let table = counters.table(OriginId(0)).expect("a table");
        for (number, count) in [7, 2, 5].into_iter().enumerate() {
            // SAFETY: the table has many more places.
            unsafe { *table.add(number) = count };
        }
        // The first is block 1, the next that and block 2, the last both and block 2 again.
        let parts = |number: u32| match number.checked_sub(NUMBERS)? {
            0 => Some([None, Some(1)]),
            1 => Some([Some(NUMBERS), Some(2)]),
            _ => Some([Some(NUMBERS + 1), Some(2)]),
        };
        // The last of them did not complete.
        counters.take_one(2, OriginId(0));
        let mut out = [0; 3];
        counters.drain(3, 3, parts, |block, _, runs| out[block as usize] += runs);
        assert_eq!(out, [0, 14, 11]);
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
