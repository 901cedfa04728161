use super::shared::Shared;
use super::tests::{CACHES, access_to};
use super::*;

/// Processors that take turns.
struct Bench {
    all: Vec<Memory>,
    holder: usize,
    now: Ticks,
}

impl Bench {
    fn new(processors: usize) -> Self {
        let mut all: Vec<Memory> = (0..processors).map(|number| Memory::new(&CACHES, number)).collect();
        let (first, others) = all.split_first_mut().unwrap();
        first.share(processors, others.iter_mut());
        Self { all, holder: 0, now: 1_000_000 }
    }

    /// Gives the turn to a processor.
    fn turn(&mut self, me: usize) {
        if me != self.holder {
            let [from, to] = self.all.get_disjoint_mut([self.holder, me]).unwrap();
            from.end_turn(self.now);
            from.lend(to);
            self.holder = me;
        }
        self.all[me].take_notice(|_| {});
    }

    /// Accesses a line in a turn of a processor. Returns the kind of the miss, if it is one, and the wait.
    fn access(&mut self, me: usize, line: u64, write: bool, locked: bool) -> (Option<Kind>, Ticks) {
        self.turn(me);
        self.now += 100_000;
        let memory = &mut self.all[me];
        if let Some(slot) = memory.find(line) {
            let taken = if write { memory.change(&CACHES, line, slot, self.now) } else { None };
            let ticks = taken.filter(|_| locked).unwrap_or(0);
            return (taken.map(|_| Kind::cache_miss(false, Kind::PROCESSOR, false)), ticks);
        }
        let access = Access { locked, ..access_to(line, write, self.now) };
        let Miss { kind, ticks, .. } = memory.miss(&CACHES, access, &|_| None);
        (Some(kind), ticks)
    }
}

const THEIRS: Option<Kind> = Some(Kind::cache_miss(false, Kind::PROCESSOR, false));
const MEMORY: Option<Kind> = Some(Kind::cache_miss(false, Kind::MEMORY, false));
const LINE: u64 = 0x10_0000;

#[test]
fn a_changed_line_comes_from_the_processor_that_has_changed_it() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.access(0, LINE, false, false).0, MEMORY);
    assert_eq!(bench.access(0, LINE, true, false).0, None, "nobody else has had it");
    assert_eq!(bench.access(1, LINE, false, false), (THEIRS, CACHES.between_cores - CACHES.window));
    assert_eq!(bench.access(0, LINE, false, false).0, None, "both may read it");
    assert_eq!(bench.access(1, LINE, false, false).0, None);
    assert_eq!(bench.access(0, LINE, true, false).0, THEIRS, "to write it, it must be taken from the other");
    assert_eq!(bench.access(1, LINE, false, false).0, THEIRS);
}

#[test]
fn a_line_that_is_read_only_is_in_all_caches() {
    let mut bench = Bench::new(3);
    for me in 0..3 {
        bench.access(me, LINE, false, false);
    }
    assert!((0..3).all(|me| bench.access(me, LINE, false, false).0.is_none()));
    bench.access(1, LINE, true, false);
    assert_eq!(bench.access(0, LINE, false, false).0, THEIRS);
    assert_ne!(bench.access(2, LINE, false, false).0, THEIRS, "it is no longer that of one");
}

#[test]
fn a_locked_instruction_waits_for_its_line_and_a_store_does_not() {
    let mut bench = Bench::new(2);
    bench.access(0, LINE, true, false);
    assert_eq!(bench.access(1, LINE, true, false), (THEIRS, 0));
    assert_eq!(bench.access(0, LINE, true, true), (THEIRS, CACHES.between_cores));
}

/// Who contends for a line waits until the other's turn has ended, but not longer than the line needs to go and to come back.
#[test]
fn a_locked_instruction_waits_for_another_turn() {
    let wait = |turn: Ticks| {
        let mut bench = Bench::new(2);
        for n in 0..4 {
            bench.access(n % 2, LINE, true, true);
        }
        // Processor 1 goes on, and processor 0 is behind by that.
        bench.now += turn;
        bench.turn(0);
        bench.now -= turn;
        bench.access(0, LINE, true, true).1
    };
    assert_eq!(wait(100_000), CACHES.between_cores, "its turn has ended");
    assert_eq!(wait(150_000), CACHES.between_cores + 50_000);
    assert_eq!(wait(100_000_000), 3 * CACHES.between_cores);
}

#[test]
fn what_an_owner_no_longer_has_is_in_the_third_level() {
    let mut bench = Bench::new(2);
    bench.access(0, LINE, true, false);
    let beyond = u64::from(CACHES.l1d.lines + 2 * CACHES.l2.lines);
    (1..=beyond).for_each(|n| {
        bench.access(0, LINE + n, true, false);
    });
    assert_eq!(bench.access(1, LINE, false, false).0, Some(Kind::cache_miss(false, 3, false)));
    assert_eq!(bench.access(1, LINE + beyond, false, false).0, THEIRS);
}

#[test]
fn turns_are_short_while_a_line_goes_to_and_fro() {
    let mut bench = Bench::new(2);
    let contends = |bench: &Bench| bench.all[bench.holder].turn(&CACHES, bench.now).is_some();
    for n in 0..6 {
        bench.access(n % 2, LINE, true, true);
    }
    assert!(contends(&bench));
    bench.now += 1_000_000_000;
    assert!(!contends(&bench));
    for n in 0..100 {
        bench.access(n % 2, LINE + n as u64, true, true);
    }
    assert!(!contends(&bench), "these are different lines");
}

#[test]
fn the_state_of_others_is_that_of_the_one_that_holds_it() {
    let mut bench = Bench::new(2);
    (0..100).for_each(|n| {
        bench.access(n % 2, LINE + n as u64 / 3, n % 5 == 0, false);
    });
    bench.turn(0);
    let fits =
        |bench: &Bench, number: usize, processors| bench.all[number].fits(&CACHES, bench.now, number, processors);
    assert!(fits(&bench, 0, 2) && fits(&bench, 1, 2));
    assert!(!fits(&bench, 0, 1) && !fits(&bench, 0, 3));
    bench.turn(1);
    assert!(!fits(&bench, 0, 2) && !fits(&bench, 1, 2), "the first one holds it in a saved state");
    assert!(Shared::default().fits(&CACHES, false, 2));
}
