//! How often which origin ran which block.
//!
//! Kernel code runs under the page tables of every process, so counts are kept by origin (address space and ring) and block.
//! They lie together by origin: what one process runs between two switches touches few cache lines, and switching to another
//! process sends nothing to the recorder.

use ledger::OriginId;

/// Blocks per chunk.
const CHUNK: usize = 64;
/// Chunks kept at most: 16 MiB of counts.
const MOST_CHUNKS: usize = 1 << 16;
/// Origins with counts at most.
const MOST_ORIGINS: usize = 1 << 12;
/// Numbers of chunks that all origins' tables hold at most.
const MOST_ENTRIES: usize = 1 << 21;
const ABSENT: u32 = u32::MAX;

/// Counts by origin and block.
pub struct Counters {
    /// By origin: the chunks of its blocks.
    tables: Vec<Vec<u32>>,
    chunks: Vec<[u32; CHUNK]>,
    /// Origins whose tables are not empty.
    origins: usize,
    entries: usize,
}

impl Counters {
    /// Nothing counted.
    pub fn new() -> Self {
        Self { tables: Vec::new(), chunks: Vec::new(), origins: 0, entries: 0 }
    }

    #[inline(always)]
    fn slot(&mut self, block: u32, origin: OriginId) -> Option<&mut u32> {
        let chunk = *self.tables.get(origin.0 as usize)?.get(block as usize / CHUNK)?;
        Some(&mut self.chunks.get_mut(chunk as usize)?[block as usize % CHUNK])
    }

    /// Counts one execution; `false` if there is no place for it yet, or it would overflow.
    #[inline(always)]
    pub fn add(&mut self, block: u32, origin: OriginId) -> bool {
        match self.slot(block, origin) {
            Some(count) if *count != u32::MAX => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether counts must be drained and dropped before another place can be made.
    pub fn is_full(&mut self, block: u32, origin: OriginId) -> bool {
        self.slot(block, origin).is_some()
            || self.chunks.len() >= MOST_CHUNKS
            || self.origins >= MOST_ORIGINS
            || self.entries >= MOST_ENTRIES
    }

    /// Makes a place and counts one execution.
    pub fn add_slow(&mut self, block: u32, origin: OriginId) {
        let (origin, at) = (origin.0 as usize, block as usize / CHUNK);
        if self.tables.len() <= origin {
            self.tables.resize_with(origin + 1, Vec::new);
        }
        let table = &mut self.tables[origin];
        if table.is_empty() {
            self.origins += 1;
        }
        if table.len() <= at {
            self.entries += at + 1 - table.len();
            table.resize(at + 1, ABSENT);
        }
        if table[at] == ABSENT {
            table[at] = self.chunks.len() as u32;
            self.chunks.push([0; CHUNK]);
        }
        self.chunks[table[at] as usize][block as usize % CHUNK] += 1;
    }

    /// Takes back one execution that was counted a moment ago.
    pub fn take_one(&mut self, block: u32, origin: OriginId) {
        if let Some(count) = self.slot(block, origin) {
            *count = count.saturating_sub(1);
        }
    }

    /// Hands out all counts and sets them to zero.
    pub fn drain(&mut self, mut take: impl FnMut(u32, OriginId, u64)) {
        for (origin, table) in self.tables.iter().enumerate() {
            for (at, &chunk) in table.iter().enumerate() {
                let Some(counts) = self.chunks.get_mut(chunk as usize) else { continue };
                for (i, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count != 0) {
                    take((at * CHUNK + i) as u32, OriginId(origin as u32), u64::from(*count));
                    *count = 0;
                }
            }
        }
    }

    /// Drops all places.
    pub fn clear(&mut self) {
        self.tables.clear();
        self.chunks.clear();
        self.origins = 0;
        self.entries = 0;
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
                    assert!(!counters.is_full(block, OriginId(origin)));
                    counters.add_slow(block, OriginId(origin));
                }
            }
        }
        counters.take_one(0, OriginId(0));
        let mut out = Vec::new();
        counters.drain(|block, origin, runs| out.push((block, origin.0, runs)));
        assert_eq!(out, [(0, 0, 2), (63, 0, 1), (64, 0, 2), (100_000, 3, 1), (64, 7, 5)]);
        counters.drain(|_, _, _| panic!("drained already"));
    }

    #[test]
    fn many_origins_fill_it_up() {
        let mut counters = Counters::new();
        for origin in 0..MOST_ORIGINS as u32 {
            assert!(!counters.is_full(0, OriginId(origin)));
            counters.add_slow(0, OriginId(origin));
        }
        assert!(counters.is_full(0, OriginId(MOST_ORIGINS as u32)));
        counters.clear();
        assert!(!counters.is_full(0, OriginId(0)));
    }
}
