//! Execution counters of blocks, by origin.
//!
//! Kernel code runs under the page tables of every process, so counts are kept by origin (address space and ring) and
//! block. Each origin has a table of its own. Translated code increments table entries directly, by numbers of its own
//! above those of blocks, so that hot counters are close together. The host allocates memory on first access. The least
//! recently used table is drained for the next origin if it has not been used for long or if all tables are in use: most
//! belong to tasks that have ended.
//!
//! Numbers are given in the order in which code is translated, or first counted. After a boot, most are of code that does not run again, and each
//! table touches nearly all of its pages for a few hot counters. Once many origins have tables, the numbers are given anew
//! ([`Counters::is_sparse`]).

use ledger::{OriginId, Ticks};

/// Maximum number of blocks.
pub const MOST_BLOCKS: usize = 1 << 17;
/// Maximum number of counters in translated code; they begin at [`MOST_BLOCKS`].
pub const MOST_NUMBERS: usize = 1 << 18;
/// Maximum number of origins with counts.
const MOST_ORIGINS: usize = 1024;
/// Number of requests after which a table is old enough for another origin: its task has most likely ended. Tables take up to a
/// quarter of a megabyte each.
const OLD: u64 = 40_000;
const ABSENT: u32 = u32::MAX;
/// Number of counters that are checked together.
const GROUP: usize = 16;
/// Number of counters in a page of the host's memory.
const PER_PAGE: usize = 4096 / size_of::<u32>();
/// Number of pages in a table.
const PAGES: usize = (MOST_BLOCKS + MOST_NUMBERS) / PER_PAGE;
/// Bytes of all tables, of the counters that are used, from which on these are numbered anew: most are of code that ran once, so that the
/// hot ones are spread over all pages, in the table of each origin.
const SPARSE: usize = 32 << 20;
/// Limit of one counter. Translated code counts less than this in addition.
const ENOUGH: u32 = 1 << 31;

/// Minimum cost between two executions of a block: a translated block costs at least this much up to a branch at its
/// end, and a handler is assumed to cost as much.
pub const CHEAPEST: Ticks = 400;
/// Time in which no counter can overflow.
pub const DRAIN: Ticks = CHEAPEST << 30;

/// Execution counts by origin and block.
pub struct Counters {
    /// Table of each origin.
    by_origin: Vec<u32>,
    tables: Vec<Table>,
    /// Parts of counters while a table is drained, by number; 0 otherwise. The tables have no memory for them.
    parts: Vec<u32>,
    /// Blocks whose parts are not 0.
    parted: Vec<u32>,
    /// Position of each block in the tables, in the order in which blocks were first counted, or [`ABSENT`].
    places: Vec<u32>,
    /// The block of each position.
    placed: Vec<u32>,
    /// Number of requests for a table so far.
    asked: u64,
    /// Times by which more than [`SPARSE`] is needed, so that a program with much hot code is not translated again and again.
    patience: usize,
}

/// Counts of one origin.
struct Table {
    origin: OriginId,
    counts: Vec<u32>,
    /// Time of the last request, see [`Counters::asked`].
    last: u64,
    /// Lower bound of the counting time since the table was drained.
    time: Ticks,
    /// Pages that have been touched. Those of blocks are marked when they are, the others when they are drained.
    touched: [u64; PAGES.div_ceil(64)],
}

impl Table {
    #[inline(always)]
    fn touch(&mut self, page: usize) {
        self.touched[page / 64] |= 1 << (page % 64);
    }

    fn is_touched(&self, page: usize) -> bool {
        self.touched[page / 64] >> (page % 64) & 1 != 0
    }
}

impl Counters {
    /// Creates empty counters.
    pub fn new() -> Self {
        let parts = vec![0; MOST_BLOCKS + MOST_NUMBERS];
        Self {
            by_origin: Vec::new(),
            tables: Vec::new(),
            parts,
            parted: Vec::new(),
            places: Vec::new(),
            placed: Vec::new(),
            asked: 0,
            patience: 1,
        }
    }

    #[inline(always)]
    fn slot(&mut self, block: u32, origin: OriginId) -> Option<&mut u32> {
        let table = *self.by_origin.get(origin.0 as usize)?;
        let place = match self.places.get(block as usize) {
            Some(&place) if place != ABSENT => place,
            _ => self.place(block),
        };
        let table = self.tables.get_mut(table as usize)?;
        table.touch(place as usize / PER_PAGE % PAGES);
        table.counts.get_mut(place as usize)
    }

    /// Gives a block the next position in the tables.
    #[cold]
    fn place(&mut self, block: u32) -> u32 {
        if self.places.len() <= block as usize {
            self.places.resize(block as usize + 1, ABSENT);
        }
        let place = self.placed.len() as u32;
        self.placed.push(block);
        self.places[block as usize] = place;
        place
    }

    /// Counts one execution. Returns false if there is no table for it, or if counts must be drained first.
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

    /// Returns the counters of an origin from [`MOST_BLOCKS`] on, for direct increments. Returns `None` if a table must
    /// be drained and released first.
    #[inline]
    pub fn table(&mut self, origin: OriginId) -> Option<*mut u32> {
        let number = match self.by_origin.get(origin.0 as usize) {
            Some(&number) if number != ABSENT => number as usize,
            _ => self.make(origin)?,
        };
        let table = &mut self.tables[number];
        self.asked += 1;
        table.last = self.asked;
        Some(table.counts[MOST_BLOCKS..].as_mut_ptr())
    }

    #[cold]
    fn make(&mut self, origin: OriginId) -> Option<usize> {
        let number = match self.tables.iter().position(|table| table.last == 0) {
            Some(free) => free,
            None if self.tables.len() == MOST_ORIGINS || self.has_old() => return None,
            None => {
                self.tables.push(Table {
                    origin,
                    counts: vec![0; MOST_BLOCKS + MOST_NUMBERS],
                    last: 0,
                    time: 0,
                    touched: [0; PAGES.div_ceil(64)],
                });
                self.tables.len() - 1
            }
        };
        self.tables[number].origin = origin;
        let origin = origin.0 as usize;
        if self.by_origin.len() <= origin {
            self.by_origin.resize(origin + 1, ABSENT);
        }
        self.by_origin[origin] = number as u32;
        Some(number)
    }

    fn has_old(&self) -> bool {
        self.tables.iter().any(|table| self.asked - table.last > OLD)
    }

    /// Returns the origin with the least recently used table.
    pub fn oldest(&self) -> Option<OriginId> {
        self.tables.iter().filter(|table| table.last != 0).min_by_key(|table| table.last).map(|table| table.origin)
    }

    /// Releases the table of an origin, which has been drained.
    pub fn give_up(&mut self, origin: OriginId) {
        let number = std::mem::replace(&mut self.by_origin[origin.0 as usize], ABSENT);
        let table = &mut self.tables[number as usize];
        (table.last, table.time) = (0, 0);
    }

    /// Adds to the counting time of an origin's table, and returns the total since the table was drained.
    pub fn spend(&mut self, origin: OriginId, time: Ticks) -> Ticks {
        let table = self.by_origin.get(origin.0 as usize).and_then(|&number| self.tables.get_mut(number as usize));
        table.map_or(0, |table| {
            table.time = table.time.saturating_add(time);
            table.time
        })
    }

    /// Takes back one execution that was just counted, under this number or under one that includes it.
    pub fn take_one(&mut self, block: u32, origin: OriginId) {
        if let Some(count) = self.slot(block, origin) {
            *count = count.wrapping_sub(1);
        }
    }

    /// Returns the origins that have tables.
    pub fn origins(&self) -> Vec<OriginId> {
        let mut origins: Vec<_> =
            self.tables.iter().filter(|table| table.last != 0).map(|table| table.origin).collect();
        origins.sort_unstable();
        origins
    }

    /// Reports an origin's counts of blocks and of so many counters of translated code, and resets them; there are no others. For a
    /// counter that `parts` splits, its parts are reported instead: smaller counters, and blocks.
    pub fn drain(
        &mut self,
        origin: OriginId,
        numbers: usize,
        parts: impl Fn(u32) -> Option<[Option<u32>; 2]>,
        mut take: impl FnMut(u32, u64),
    ) {
        let number = self.by_origin.get(origin.0 as usize).copied().unwrap_or(ABSENT);
        let Some(table) = self.tables.get_mut(number as usize) else { return };
        table.time = 0;
        // A part has a smaller number than the counter that it is a part of.
        let groups = MOST_BLOCKS / GROUP..(MOST_BLOCKS + numbers).div_ceil(GROUP);
        for group in groups.rev() {
            let range = group * GROUP..(group + 1) * GROUP;
            // Most counts are zero, and untouched memory must stay untouched.
            let any = |counts: &[u32]| counts[range.clone()].iter().fold(0, |any, count| any | count) != 0;
            let counted = any(&table.counts);
            if !counted && !any(&self.parts) {
                continue;
            }
            if counted {
                table.touch(range.start / PER_PAGE);
            }
            for number in range.rev() {
                let mut count = std::mem::take(&mut self.parts[number]);
                if counted {
                    count = count.wrapping_add(std::mem::take(&mut table.counts[number]));
                }
                if count == 0 {
                    continue;
                }
                match parts(number as u32) {
                    Some(whole) => {
                        for part in whole.into_iter().flatten() {
                            let sum = &mut self.parts[part as usize];
                            if *sum == 0 && (part as usize) < MOST_BLOCKS {
                                self.parted.push(part);
                            }
                            *sum = sum.wrapping_add(count);
                        }
                    }
                    None => take(number as u32, u64::from(count)),
                }
            }
        }
        for (page, placed) in self.placed.chunks(PER_PAGE).enumerate() {
            if !table.is_touched(page) {
                continue;
            }
            for (count, &block) in table.counts[page * PER_PAGE..].iter_mut().zip(placed) {
                let sum = std::mem::take(count).wrapping_add(std::mem::take(&mut self.parts[block as usize]));
                if sum != 0 {
                    take(block, u64::from(sum));
                }
            }
        }
        for block in self.parted.drain(..) {
            let sum = std::mem::take(&mut self.parts[block as usize]);
            if sum != 0 {
                take(block, u64::from(sum));
            }
        }
    }

    /// Returns the memory used by counters that have been drained, in bytes.
    pub fn taken(&self) -> usize {
        let pages: u32 = self.tables.iter().flat_map(|table| &table.touched).map(|word| word.count_ones()).sum();
        let lists = self.by_origin.capacity() + self.places.capacity() + self.placed.capacity();
        (pages as usize * PER_PAGE + lists) * size_of::<u32>()
    }

    /// Returns true if it is time to number counters anew. `numbers` is the number of counters of translated code.
    pub fn is_sparse(&self, numbers: usize) -> bool {
        (numbers + self.placed.len()) * size_of::<u32>() * self.tables.len() > SPARSE * self.patience
    }

    /// Forgets the positions of blocks, and returns the memory of the tables, which have been drained, to the host.
    #[allow(unsafe_code, reason = "the host takes back pages whose contents are not needed")]
    pub fn shrink(&mut self) {
        self.patience = self.patience.saturating_mul(2);
        self.forget_places();
        for table in &mut self.tables {
            let first = table.counts.as_ptr().align_offset(4096);
            let Some(pages) = table.counts.get_mut(first..) else { continue };
            let len = pages.len() / PER_PAGE * 4096;
            // SAFETY: the pages are within the table, whose memory is anonymous and private. They read as 0 afterwards, as all drained counters do.
            unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
            table.touched = [0; PAGES.div_ceil(64)];
        }
    }

    fn forget_places(&mut self) {
        self.places.clear();
        self.placed.clear();
    }

    /// Releases all tables, which have been drained.
    pub fn clear(&mut self) {
        self.forget_places();
        self.by_origin.clear();
        self.tables.iter_mut().for_each(|table| (table.last, table.time) = (0, 0));
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the table is written as translated code does")]
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
        for origin in counters.origins() {
            counters.drain(origin, 0, |_| None, |block, runs| out.push((block, origin.0, runs)));
        }
        assert_eq!(out, [(0, 0, 2), (63, 0, 1), (64, 0, 2), (100_000, 3, 1), (64, 7, 5)]);
        counters.drain(OriginId(0), 0, |_| None, |_, _| panic!("drained already"));
        // One page of each table, whichever blocks are counted.
        assert_eq!(
            counters.tables.iter().flat_map(|table| &table.touched).map(|word| word.count_ones()).sum::<u32>(),
            3
        );
    }

    #[test]
    fn parts_are_counted_instead_of_what_they_make() {
        const NUMBERS: u32 = MOST_BLOCKS as u32;
        let mut counters = Counters::new();
        let table = counters.table(OriginId(0)).expect("a table");
        for (number, count) in [7, 2, 5].into_iter().enumerate() {
            // SAFETY: `number` is within the table.
            unsafe { *table.add(number) = count };
        }
        // The first is block 1, the second is the first and block 2, the third is the second and block 2 again.
        let parts = |number: u32| match number.checked_sub(NUMBERS)? {
            0 => Some([None, Some(1)]),
            1 => Some([Some(NUMBERS), Some(2)]),
            _ => Some([Some(NUMBERS + 1), Some(2)]),
        };
        // The last execution did not complete.
        counters.take_one(2, OriginId(0));
        let mut out = [0; 3];
        counters.drain(OriginId(0), 3, parts, |block, runs| out[block as usize] += runs);
        assert_eq!(out, [0, 14, 11]);
    }

    #[test]
    fn many_origins_fill_it_up() {
        let mut counters = Counters::new();
        for origin in 0..MOST_ORIGINS as u32 {
            assert!(counters.table(OriginId(origin)).is_some());
        }
        let next = OriginId(MOST_ORIGINS as u32);
        assert!(counters.table(next).is_none());
        assert!(counters.table(OriginId(0)).is_some(), "it has its table");
        assert_eq!(counters.oldest(), Some(OriginId(1)), "the first was asked for again");
        assert!(counters.add(5, OriginId(1)));
        counters.drain(OriginId(1), 0, |_| None, |_, _| ());
        counters.give_up(OriginId(1));
        assert!(counters.table(next).is_some());
        assert!(!counters.add(5, OriginId(1)), "its table is another's");
        counters.drain(next, 0, |_| None, |_, _| panic!("it begins at zero"));
        counters.clear();
        assert!(counters.table(OriginId(1)).is_some());
    }

    #[test]
    fn a_table_that_is_not_used_for_long_is_another_s() {
        let mut counters = Counters::new();
        for _ in 0..=OLD {
            assert!(counters.table(OriginId(1)).is_some());
            assert!(counters.table(OriginId(0)).is_some());
        }
        assert!(counters.table(OriginId(2)).is_some());
        for _ in 0..=OLD {
            assert!(counters.table(OriginId(2)).is_some());
        }
        assert!(counters.table(OriginId(3)).is_none());
        assert_eq!(counters.oldest(), Some(OriginId(1)));
        counters.give_up(OriginId(1));
        assert!(counters.table(OriginId(3)).is_some());
    }

    #[test]
    fn counters_that_are_sparse_begin_again_without_memory() {
        let mut counters = Counters::new();
        let counted = |counters: &mut Counters, block: u32| {
            for origin in 0..3 {
                assert!(counters.table(OriginId(origin)).is_some() && counters.add(block, OriginId(origin)));
            }
            let mut out = Vec::new();
            for origin in counters.origins() {
                counters.drain(origin, 0, |_| None, |block, runs| out.push((block, origin.0, runs)));
            }
            assert_eq!(out, [(block, 0, 1), (block, 1, 1), (block, 2, 1)]);
        };
        counted(&mut counters, 100_000);
        let numbers = SPARSE / 3 / size_of::<u32>();
        assert!(counters.is_sparse(numbers) && !counters.is_sparse(numbers / 2));
        counters.shrink();
        assert!(!counters.is_sparse(numbers), "the next time it takes twice as many");
        assert!(counters.tables.iter().all(|table| table.touched.iter().all(|pages| *pages == 0)));
        counted(&mut counters, 7);
    }

    #[test]
    fn time_is_by_origin_and_since_the_last_drain() {
        let mut counters = Counters::new();
        assert_eq!(counters.spend(OriginId(3), 7), 0, "no table");
        counters.table(OriginId(3)).expect("a table");
        counters.table(OriginId(4)).expect("a table");
        assert_eq!((counters.spend(OriginId(3), 7), counters.spend(OriginId(3), 7)), (7, 14));
        assert_eq!(counters.spend(OriginId(4), 1), 1);
        counters.drain(OriginId(3), 0, |_| None, |_, _| ());
        assert_eq!(counters.spend(OriginId(3), 1), 1);
        assert_eq!(counters.spend(OriginId(4), 1), 2);
    }
}
