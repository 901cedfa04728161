use super::*;
use ledger::caches::{Branches, Code, DeviceWrites, Walks};

const LEVEL: Level = Level { lines: 512, ways: 8, latency: 4_000, transfer: 0, same_set: 0 };
pub(super) const CACHES: Caches = Caches {
    l1d: LEVEL,
    code: Code {
        l1i: Level { latency: 0, ..LEVEL },
        transfer: 4_000,
        ahead: 40_000,
        scattered: 3,
        sequential: 12,
        branches: Branches { table: Level { lines: 4096, latency: 12_000, ..LEVEL }, far: 2 },
    },
    l2: Level { lines: 4096, ways: 8, latency: 14_000, transfer: 4_000, same_set: 0 },
    l3: Some(Level { lines: 65536, ways: 16, latency: 50_000, transfer: 8_000, same_set: 0 }),
    memory_latency: 300_000,
    memory_transfer: 16_000,
    memory_stream: 8_000,
    memory_same_set: 0,
    set_loads: 0,
    between_cores: 110_000,
    device_writes: DeviceWrites::L3,
    splits: [500, 10_000],
    window: 43_000,
    fill_buffers: 12,
    walks: Walks { pde: 4, pdpte: 2, pml4e: 1, nested: 2, walkers: 2 },
};

/// Returns an access to a line at `now`, in a run that begins with it.
pub(super) fn access_to(line: u64, write: bool, now: Ticks) -> Access {
    Access { line, linear: line << LINE_SHIFT, write, locked: false, rip: 0x1000, now, began: now }
}

/// Memory in which a line points to another one, if there is such a pair.
pub(super) fn pointing(pointer: Option<(u64, u64)>) -> impl Fn(u64) -> Option<[u64; 8]> {
    move |at| {
        let to = pointer.filter(|(from, _)| *from == at).map_or(0, |(_, to)| to << LINE_SHIFT);
        Some([0, to, 0, 0, 0, 0, 0, 0])
    }
}

/// Caches with a clock, and memory in which each line points to the next of a chain.
pub(super) struct Bench {
    pub memory: Memory,
    pub now: Ticks,
}

impl Bench {
    pub fn new() -> Self {
        Self { memory: Memory::new(&CACHES, 0), now: 1_000_000 }
    }

    /// Accesses a line after `work` ticks. Returns the wait.
    fn access(&mut self, line: u64, write: bool, work: Ticks, pointer: Option<(u64, u64)>) -> Ticks {
        self.now += work;
        if let Some(slot) = self.memory.find(line) {
            if write {
                assert_eq!(self.memory.change(&CACHES, line, slot, self.now), None, "nobody else has it");
            }
            return 0;
        }
        let miss = self.memory.miss(&CACHES, access_to(line, write, self.now), &pointing(pointer));
        self.now += miss.ticks;
        miss.ticks
    }
}

/// Lines in an order that no prefetcher follows, in different pages.
fn scattered(n: u64) -> u64 {
    0x10_0000 + (n * 7919 % 100_003) * 67
}

#[test]
fn a_chain_pays_the_latency_for_each_link_and_independent_misses_share_it() {
    let total = |chain: bool| {
        let mut bench = Bench::new();
        let began = bench.now;
        for n in 1..1000 {
            let pointer = chain.then(|| (scattered(n - 1), scattered(n)));
            bench.access(scattered(n), false, 2_000, pointer);
        }
        (bench.now - began) / 999
    };
    let (chain, independent) = (total(true), total(false));
    assert!((295_000..=305_000).contains(&chain), "{chain}");
    // Twelve at a time.
    assert!((24_000..=30_000).contains(&independent), "{independent}");
}

#[test]
fn a_stream_costs_the_transfer_of_its_lines() {
    let mut bench = Bench::new();
    let began = bench.now;
    for n in 0..6400 {
        bench.access(0x40_0000 + n, false, 1_000, None);
    }
    let each = (bench.now - began) / 6400;
    // Two lines of each page are not asked for ahead.
    assert!((16_000..=24_000).contains(&each), "{each}");
}

#[test]
fn writing_a_stream_costs_no_more_than_reading_it() {
    let each = |write: bool| {
        let mut bench = Bench::new();
        // More than the caches hold, so that changed lines leave them.
        (0..80_000).for_each(|n| _ = bench.access(0x40_0000 + n, write, 1_000, None));
        let began = bench.now;
        (0..20_000).for_each(|n| _ = bench.access(0x80_0000 + n, write, 1_000, None));
        (bench.now - began) / 20_000
    };
    let (read, written) = (each(false), each(true));
    assert!((16_000..=24_000).contains(&read), "{read}");
    assert!((16_000..=read + 1_000).contains(&written), "{written}");
}

#[test]
fn lines_stay_in_the_level_that_they_fit() {
    // Kind of the second round over so many lines.
    let level = |lines: u64| {
        let mut memory = Memory::new(&CACHES, 0);
        let mut last = None;
        for _ in 0..2 {
            for line in 0..lines {
                let access = access_to(line, false, 0);
                last = match memory.find(line) {
                    Some(_) => None,
                    None => Some(memory.miss(&CACHES, access, &|_| None).kind.param & !Kind::PREFETCHED),
                };
            }
        }
        last
    };
    assert_eq!(level(512), None);
    assert_eq!(level(4096), Some(2));
    assert_eq!(level(60_000), Some(3));
    assert_eq!(level(100_000), Some(Kind::MEMORY));
}

#[test]
fn nobody_waits_for_a_store_until_the_buffers_are_full() {
    let mut bench = Bench::new();
    let first: Ticks = (0..12).map(|n| bench.access(scattered(n), true, 1_000, None)).sum();
    assert_eq!(first, 0);
    let more: Ticks = (12..200).map(|n| bench.access(scattered(n), true, 1_000, None)).sum();
    assert!(more > 0);
}

#[test]
fn no_miss_costs_more_than_the_most() {
    let mut bench = Bench::new();
    for n in 1..20_000 {
        let pointer = (n % 3 == 0).then(|| (scattered(n - 1), scattered(n)));
        let ticks = bench.access(scattered(n), n % 5 == 0, n % 50 * 1_000, pointer);
        assert!(ticks <= Memory::most(&CACHES), "{ticks}");
    }
}

#[test]
fn a_changed_line_is_known_until_it_is_replaced() {
    let mut memory = Memory::new(&CACHES, 0);
    let access = access_to(5, false, 0);
    let slot = memory.miss(&CACHES, access, &|_| None).slot;
    assert!(!memory.is_changed(slot));
    assert_eq!(memory.find(5), Some(slot));
    assert_eq!(memory.change(&CACHES, 5, slot, 0), None, "nobody else has it");
    assert!(memory.is_changed(slot));
    for way in 1..=8 {
        let line = 5 + 64 * way;
        memory.miss(&CACHES, Access { line, linear: line << LINE_SHIFT, ..access }, &|_| None);
    }
    assert_eq!(memory.find(5), None);
    // The second level has it.
    assert_eq!(memory.miss(&CACHES, access, &|_| None).kind.param & !Kind::PREFETCHED, 2);
}

#[test]
fn states_of_other_sizes_are_refused() {
    let memory = Memory::new(&CACHES, 0);
    assert!(memory.fits(&CACHES, 0, 0, 1));
    assert!(!memory.fits(&Caches { l3: None, ..CACHES }, 0, 0, 1));
    assert!(!memory.fits(&Caches { l1d: Level { ways: 16, ..LEVEL }, ..CACHES }, 0, 0, 1));
    assert!(!memory.fits(&Caches { l2: Level { lines: 2048, ..CACHES.l2 }, ..CACHES }, 0, 0, 1));
}

#[test]
fn the_state_after_misses_fits_the_time_and_later_times_do_not() {
    let mut bench = Bench::new();
    for n in 1..5_000 {
        let pointer = (n % 3 == 0).then(|| (scattered(n - 1), scattered(n)));
        bench.access(scattered(n), n % 5 == 0, n % 50 * 1_000, pointer);
        assert!(bench.memory.fits(&CACHES, bench.now, 0, 1));
    }
    let wrong: [fn(&mut Memory); 9] = [
        |memory| memory.waits.until = Ticks::MAX,
        |memory| memory.waits.early = Ticks::MAX,
        |memory| memory.free = Ticks::MAX,
        |memory| memory.back = Ticks::MAX,
        |memory| memory.last.0 = Ticks::MAX,
        |memory| memory.last.1 = Ticks::MAX,
        |memory| memory.coming[3].arrives = Ticks::MAX,
        |memory| memory.coming[3].line = LINES,
        |memory| memory.newest = 8,
    ];
    for (n, change) in wrong.iter().enumerate() {
        let mut memory = bench.memory.clone();
        change(&mut memory);
        assert!(!memory.fits(&CACHES, bench.now, 0, 1), "{n}");
    }
}
