//! Tests of the way of code.

use super::Memory;
use super::code::{Entries, branch_key};
use super::tests::{Bench, CACHES};
use ledger::{Kind, Ticks};

impl Bench {
    /// Executes a line of code for `work` ticks. Returns the wait before it.
    fn execute(&mut self, line: u64, work: Ticks) -> Ticks {
        let mut waits = 0;
        if !self.memory.front.has(line) {
            waits = self.memory.miss_code(&CACHES, line, self.now).1;
            assert!(waits <= CACHES.memory_latency);
        }
        self.now += waits + work;
        assert!(self.memory.fits(&CACHES, self.now, 0, 1));
        waits
    }

    /// Executes lines twice, and returns the mean time of one in the second round.
    fn again(&mut self, lines: impl Iterator<Item = u64> + Clone, work: Ticks) -> Ticks {
        for line in lines.clone() {
            self.execute(line, work);
        }
        let began = self.now;
        let count = lines.clone().map(|line| self.execute(line, work)).count();
        (self.now - began) / count as Ticks
    }
}

/// Lines in another order than that of their addresses.
fn scattered(count: u64) -> impl Iterator<Item = u64> + Clone {
    (0..count).map(move |n| n * 7919 % count)
}

#[test]
fn code_that_fits_the_first_level_costs_nothing_more() {
    assert_eq!(Bench::new().again(0..512, 2_000), 2_000);
    assert_eq!(Bench::new().again(scattered(512), 2_000), 2_000);
}

#[test]
fn predicted_code_hides_latencies_and_pays_for_transfers() {
    // From the second level in any order: 4 cycles each, or the work if that is more.
    assert_eq!(Bench::new().again(scattered(2_000), 2_000) / 100, 46);
    assert_eq!(Bench::new().again(0..2_000, 2_000) / 100, 40);
    assert_eq!(Bench::new().again(scattered(2_000), 12_000), 12_000);
    // From the third level.
    let third = Bench::new().again(scattered(20_000), 2_000);
    assert!((16_000..17_000).contains(&third), "{third}");
    let in_a_row = Bench::new().again(0..20_000, 2_000);
    assert!((8_000..9_000).contains(&in_a_row), "{in_a_row}");
    // From memory.
    let memory = Bench::new().again(0..200_000, 2_000);
    assert!((25_000..27_000).contains(&memory), "{memory}");
}

#[test]
fn what_is_behind_a_redirection_pays_its_latency() {
    let mut bench = Bench::new();
    for line in 0..2_000 {
        bench.execute(line, 50_000);
    }
    assert_eq!(bench.execute(3, 50_000), 0);
    bench.memory.front.redirected = bench.now;
    assert_eq!(bench.execute(5, 2_000), CACHES.l2.latency);
    // The next one was asked for together with it.
    assert_eq!(bench.execute(6, 50_000), 0);
}

#[test]
fn a_line_in_a_row_was_asked_for_before_an_unknown_branch_led_to_it() {
    let wait = |line| {
        let mut bench = Bench::new();
        for line in 0..2_000 {
            bench.execute(line, 50_000);
        }
        bench.execute(5, 50_000);
        bench.memory.front.turned = bench.now;
        bench.execute(line, 2_000)
    };
    assert_eq!((wait(6), wait(7)), (0, CACHES.l2.latency));
}

#[test]
fn a_wait_for_data_gives_the_front_end_time() {
    let wait = |stall: Ticks| {
        let mut bench = Bench::new();
        for line in 0..20_000 {
            bench.execute(line, 50_000);
        }
        bench.memory.front.waits.add(bench.now, stall, CACHES.code.ahead);
        bench.now += stall;
        bench.execute(3, 0)
    };
    assert_eq!((wait(0), wait(4_000), wait(50_000)), (10_000, 6_000, 0));
}

#[test]
fn lines_come_from_the_caches_of_data() {
    let mut bench = Bench::new();
    let level = |bench: &mut Bench, line| {
        let (kind, ticks, _) = bench.memory.miss_code(&CACHES, line, bench.now);
        bench.now += ticks;
        kind
    };
    assert_eq!(level(&mut bench, 5), Kind::cache_miss(true, Kind::MEMORY, false));
    for way in 1..=8 {
        bench.execute(5 + 64 * way, 0);
    }
    assert!(!bench.memory.front.has(5));
    assert_eq!(level(&mut bench, 5), Kind::cache_miss(true, 2, false));
}

#[test]
fn branches_are_known_by_the_line_until_others_take_its_place() {
    let mut memory = Memory::new(&CACHES, 0);
    let [here, beside, elsewhere] = [0x40_1000, 0x40_103f, 0x40_1040].map(branch_key);
    assert!(!memory.front.knows(here, Entries::One));
    memory.front.learn(here, Entries::One);
    assert!(memory.front.knows(beside, Entries::One) && !memory.front.knows(elsewhere, Entries::One));
    let table = &CACHES.code.branches.table;
    let sets = u64::from(table.lines / u32::from(table.ways));
    let mut gone = |ways: std::ops::RangeInclusive<u64>, entries| -> Vec<u64> {
        ways.flat_map(|way| memory.front.learn(here + way * sets, entries)).flatten().collect()
    };
    assert_eq!(gone(1..=8, Entries::One), [here]);
    // A far branch needs two entries, of which a line that has one gets the other.
    let line = |way| here + way * sets;
    assert_eq!(gone(8..=8, Entries::Two), [line(1)]);
    assert_eq!(gone(9..=9, Entries::Two), [line(2), line(3)]);
    let known = |way, entries| memory.front.knows(line(way), entries);
    assert!([8, 9].iter().all(|way| known(*way, Entries::One) && known(*way, Entries::Two)));
    assert!(known(4, Entries::One) && !known(4, Entries::Two) && !known(2, Entries::One));
    // The second entry of a line takes the place of whichever is next, also of the line's first one.
    for way in 10..40 {
        for entries in [Entries::One, Entries::Two] {
            for again in [way, way - 1, way - 2, way - 3, way - 4] {
                memory.front.learn(line(again), entries);
                assert!(memory.front.knows(line(again), entries), "{way} {again}");
            }
        }
    }
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut bench = Bench::new();
    for n in 0..3_000 {
        bench.execute(n * 7, n % 9 * 1_000);
    }
    let other = |change: fn(&mut ledger::caches::Caches)| {
        let mut caches = CACHES;
        change(&mut caches);
        bench.memory.fits(&caches, bench.now, 0, 1)
    };
    assert!(other(|_| ()));
    assert!(!other(|caches| caches.code.l1i.ways = 4));
    assert!(!other(|caches| caches.code.branches.table.lines = 2048));
    assert!(!bench.memory.front.fits(&CACHES.code, 1_000_000), "the time of an earlier state");
}
