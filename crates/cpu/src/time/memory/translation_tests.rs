use super::tests::{Bench, CACHES, access_to, pointing};
use super::*;

const LOOK_UP: Ticks = 9_000;

impl Bench {
    /// Translates the address of an access to a line after `work` ticks. Returns the wait.
    fn translate(
        &mut self,
        line: u64,
        write: bool,
        work: Ticks,
        walk: Option<Ticks>,
        pointer: Option<(u64, u64)>,
    ) -> Ticks {
        self.now += work;
        let access = access_to(line, write, self.now);
        let latency = LOOK_UP + walk.unwrap_or(0);
        let ticks = self.memory.translate(&CACHES, &access, latency, walk.is_some(), &pointing(pointer));
        self.now += ticks;
        ticks
    }

    fn total(&mut self, count: u64, mut step: impl FnMut(&mut Self, u64)) -> Ticks {
        let began = self.now;
        (0..count).for_each(|n| step(self, n));
        self.now - began
    }
}

fn line(n: u64) -> u64 {
    0x10_0000 + n * 64
}

#[test]
fn translations_along_a_chain_add_up_and_others_are_hidden() {
    let pointer = |n: u64| n.checked_sub(1).map(|before| (line(before), line(n)));
    let load = CACHES.l1d.latency;
    let chain = Bench::new().total(1000, |bench, n| {
        bench.translate(line(n), false, load, None, pointer(n));
    });
    let each = chain / 1000;
    assert!((LOOK_UP + load - 100..=LOOK_UP + load).contains(&each), "{each}");
    let alone = Bench::new().total(1000, |bench, n| {
        bench.translate(line(n), false, load, None, None);
    });
    assert_eq!(alone, 1000 * load);
}

#[test]
fn nobody_waits_for_the_translation_of_a_store_while_there_are_walkers() {
    let mut bench = Bench::new();
    assert_eq!(bench.translate(line(0), true, 0, Some(200_000), None), 0);
    let walk: Ticks = 200_000;
    let total = bench.total(1000, |bench, n| {
        bench.translate(line(n), true, 1_000, Some(walk), None);
    });
    let each = (LOOK_UP + walk) / Ticks::from(CACHES.walks.walkers);
    assert!((each * 999..each * 1001).contains(&total), "{total}");
}

#[test]
fn a_miss_waits_for_the_translation_of_its_address() {
    let cost = |walk: Option<Ticks>| {
        let mut bench = Bench::new();
        let wait = walk.map_or(0, |walk| bench.translate(line(0), false, 0, Some(walk), None));
        let access = access_to(line(0), false, bench.now);
        wait + bench.memory.miss(&CACHES, access, &|_| None).ticks
    };
    assert_eq!(cost(None), CACHES.memory_latency - CACHES.window);
    assert_eq!(cost(Some(100_000)), CACHES.memory_latency - CACHES.window + LOOK_UP + 100_000);
}

#[test]
fn a_chain_of_one_load_pays_for_each_look_up_and_for_each_line_once() {
    let mut bench = Bench::new();
    let rip = access_to(line(0), false, 0).rip;
    bench.memory.learn_chain(rip, rip, true);
    let mut step = |bench: &mut Bench, n: u64| {
        bench.translate(line(n), false, 0, None, None);
        let access = access_to(line(n), false, bench.now);
        bench.now += bench.memory.miss(&CACHES, access, &|_| None).ticks;
    };
    // The first loads are hidden by the window.
    bench.total(10, &mut step);
    let each = bench.total(1000, |bench, n| step(bench, 10 + n)) / 1000;
    assert_eq!(each, LOOK_UP + CACHES.memory_latency);
}

#[test]
fn an_entry_is_read_from_where_its_line_is() {
    let mut bench = Bench::new();
    assert_eq!(bench.memory.read_entry(&CACHES, line(0), bench.now), CACHES.memory_latency);
    assert_eq!(bench.memory.read_entry(&CACHES, line(0), bench.now), CACHES.l2.latency);
    bench.memory.fill(
        &CACHES,
        Access { line: line(0), linear: 0, write: true, locked: false, rip: 0, now: bench.now, began: bench.now },
    );
    assert_eq!(bench.memory.read_entry(&CACHES, line(0), bench.now), CACHES.l1d.latency);
}

#[test]
fn code_is_translated_ahead_of_the_core_until_it_is_redirected() {
    let mut bench = Bench::new();
    assert_eq!(bench.memory.translate_code(&CACHES, bench.now, LOOK_UP, false), 0);
    assert_eq!(bench.memory.translate_code(&CACHES, bench.now + 100_000, 90_000, true), 90_000 - CACHES.code.ahead);
    let now = bench.now + 300_000;
    bench.memory.front.redirected = now;
    assert_eq!(bench.memory.translate_code(&CACHES, now, LOOK_UP, false), LOOK_UP);
    let behind = bench.memory.miss_code(&CACHES, line(1), now + LOOK_UP).1;
    assert_eq!(behind, CACHES.memory_latency, "the line is asked for when its address is known");
}
