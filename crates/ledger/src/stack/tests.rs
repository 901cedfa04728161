use super::*;
use crate::ledger::tests::sample;
use crate::{Family, Ledger, LedgerError};
use proptest::prelude::*;

const SYSCALL: What = What::Crossing(Kind::new(Family::Syscall, 0));

fn once(both: &mut Both, frames: &[u64], whole: bool, what: What) {
    both.charge(frames, whole, what, Amount { count: 1, ticks: 10 });
}

fn finished(both: &Both) -> Stacks {
    both.finish(Keeps { interval: 10, crossings: true, trace: true }, Origin::new(0, 0, 0x1000))
}

/// A ledger with stacks.
fn ledger() -> Ledger {
    let mut both = Both::default();
    once(&mut both, &[0xffff_ffff_8100_0048, 0xffff_ffff_8100_0008, 0x40_1010], true, What::Sample);
    once(&mut both, &[0xffff_ffff_8100_0008, 0x40_1010], false, SYSCALL);
    let stack = both.frames.stack(&[0xffff_ffff_8100_0008], true);
    for (time, cpu, moment) in
        [(9, 1, Moment::Samples(2)), (7, 0, Moment::Task), (5, 1, Moment::Event(Kind::new(Family::Halt, 0)))]
    {
        both.stacked.record(Record { time, cpu, origin: OriginId(0), moment, ticks: 3, stack });
    }
    Ledger { stacks: finished(&both), ..sample() }
}

#[test]
fn frames_are_shared_and_those_that_are_cut_are_marked() {
    let mut both = Both::default();
    once(&mut both, &[3, 2, 1], true, What::Sample);
    once(&mut both, &[4, 2, 1], true, What::Sample);
    once(&mut both, &[3, 2, 1], true, SYSCALL);
    once(&mut both, &[3], false, What::Sample);
    let stacks = finished(&both);
    assert_eq!(stacks.nodes.len(), 6);
    let all: Vec<(Vec<u64>, u64)> =
        stacks.charges.iter().map(|charge| (stacks.frames(charge.stack).collect(), charge.count)).collect();
    assert!(all.contains(&(vec![4, 2, 1], 1)) && all.contains(&(vec![3, TRUNCATED], 1)), "{all:?}");
    assert_eq!(all.iter().filter(|(frames, _)| *frames == [3, 2, 1]).count(), 2);
}

#[test]
fn what_is_written_depends_on_the_stacks_and_not_on_their_order() {
    let of = |order: [usize; 3]| {
        let mut both = Both::default();
        for number in order {
            once(&mut both, [&[9, 1][..], &[8, 2], &[7, 1]][number], true, What::Sample);
        }
        finished(&both)
    };
    assert_eq!(of([0, 1, 2]), of([2, 0, 1]));
    assert_eq!(of([0, 1, 2]), of([1, 2, 0]));
}

#[test]
fn a_ledger_with_stacks_is_read_again() {
    let ledger = ledger();
    let bytes = ledger.to_bytes().unwrap();
    assert_eq!(bytes[8], crate::VERSION as u8);
    assert_eq!(Ledger::read(&bytes), Ok(ledger.clone()));
    let times: Vec<_> = ledger.stacks.records.iter().map(|record| (record.cpu, record.time)).collect();
    assert_eq!(times, [(0, 7), (1, 5), (1, 9)]);
    let without = Ledger { stacks: Stacks::default(), ..ledger };
    assert_eq!(Ledger::read(&without.to_bytes().unwrap()), Ok(without));
}

#[test]
fn stacks_that_cannot_be_are_refused() {
    let damage: [fn(&mut Stacks); 6] = [
        |s| s.charges[0].origin = 7,
        |s| s.charges[0].stack = StackId(99),
        |s| s.charges.swap(0, 1),
        |s| s.records[1].cpu = 0,
        |s| s.records[0].origin = 1,
        |s| s.origins.push(s.origins[0]),
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        let mut ledger = ledger();
        damage(&mut ledger.stacks);
        // A record that comes too late makes the one after it come too early.
        if number == 3 {
            ledger.stacks.records[0].cpu = 1;
        }
        let read = Ledger::read(&ledger.to_bytes().unwrap());
        assert!(matches!(read, Err(LedgerError::Malformed { section: "stacks", .. })), "{number}: {read:?}");
    }
}

#[test]
fn a_saved_state_goes_on() {
    let mut both = Both::default();
    once(&mut both, &[3, 2, 1], true, What::Sample);
    let save = |both: &Both| both.stacked.save(&both.frames);
    let (frames, stacked) = Stacked::restore(save(&both), 1).unwrap();
    let mut restored = Both { frames, stacked };
    for stacks in [&mut both, &mut restored] {
        once(stacks, &[4, 2, 1], true, SYSCALL);
    }
    assert_eq!(save(&both), save(&restored));
    let wrong = |change: fn(&mut SavedStacks)| {
        let mut saved = save(&both);
        change(&mut saved);
        Stacked::restore(saved, 1).is_none()
    };
    assert!(wrong(|s| s.nodes[0].caller = StackId(1)));
    assert!(wrong(|s| s.nodes[1] = s.nodes[0]));
    assert!(wrong(|s| s.charges[0].0.0 = OriginId(1)));
    assert!(wrong(|s| s.charges.push(s.charges[0])));
}

#[test]
fn no_guest_makes_stacks_grow_without_end() {
    let mut both = Both::default();
    for number in 0..(2 * MOST_NODES as u64) {
        once(&mut both, &[number], true, SYSCALL);
    }
    assert!(both.frames.nodes.len() <= MOST_NODES && both.stacked.charges.len() <= 2 * MOST_CHARGES);
    let stacks = finished(&both);
    assert_eq!(stacks.charges.iter().map(|charge| charge.count).sum::<u64>(), 2 * MOST_NODES as u64);
    assert!(stacks.nodes.iter().any(|node| node.address == UNKNOWN));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&mut crate::wire::Reader::new(&bytes), 1, 1);
    }
}

#[test]
fn intervals_have_units() {
    assert_eq!(interval("10us"), Ok(Duration::from_micros(10)));
    assert_eq!(interval("1.5ms"), Ok(Duration::from_micros(1500)));
    assert_eq!(interval("0.1s"), Ok(Duration::from_millis(100)));
    for wrong in ["10", "us", "-1us", "99ns", "1e30s", "10 m", "NaNus"] {
        assert_eq!(interval(wrong), Err(NoInterval), "{wrong}");
    }
}
