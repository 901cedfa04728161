use super::*;
use crate::charge::OriginId;
use proptest::prelude::*;

fn durations(all: &[Ticks]) -> Durations {
    let mut durations = Durations::default();
    all.iter().for_each(|ticks| durations.add(*ticks));
    durations
}

fn stay(ticks: Ticks) -> Stay {
    Stay { ticks, enter: ticks / 4, mitigation: ticks / 8, leave: ticks / 5 }
}

const CALL: Entry = Entry::new(Gate::Call, 1);

#[test]
fn a_class_is_narrow_and_classes_are_in_order() {
    assert_eq!([0, 1, 127, 128, 129, 130, 255, 256].map(class), [0, 1, 127, 128, 128, 129, 191, 192]);
    assert_eq!(class(u64::MAX), CLASSES - 1);
    let mut before = 0;
    for ticks in (0..4000).chain((12..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + (1 << (bit - 6))])) {
        assert!(class(ticks) >= before, "{ticks}");
        before = class(ticks);
    }
}

#[test]
fn quantiles_are_exact_where_all_stays_of_a_class_are_equal() {
    let list = durations(&[1000, 1000, 1000, 5000, 90_000]);
    assert_eq!(
        [0.0, 0.5, 0.6, 0.7, 0.99].map(|part| list.quantile(part).expect("is there")),
        [1000.0, 1000.0, 1000.0, 5000.0, 90_000.0]
    );
    assert_eq!(list.total(), Amount { count: 5, ticks: 98_000 });
    assert_eq!(Durations::default().quantile(0.5), None);
}

#[test]
fn durations_can_be_taken_apart_and_put_together() {
    let list = durations(&[1000, 1000, 5000, 90_000]);
    assert_eq!(Durations::of(list.classes().to_vec()), Some(list.clone()));
    let one = Amount { count: 1, ticks: 7 };
    assert_eq!(Durations::of(vec![(8, one), (7, one)]), None);
    assert_eq!(Durations::of(vec![(7, one), (7, one)]), None);
    assert_eq!(Durations::of(vec![(CLASSES, one)]), None);
    assert_eq!(Durations::of(vec![(7, Amount::default())]), None);
}

#[test]
fn system_calls_have_the_names_of_linux() {
    let names = |entry: Entry| (entry.describe(true, None), entry.describe(false, None), entry.plural(true, None));
    let three = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(names(CALL), three("write", "system call 1", "calls of write"));
    let old = Entry::new(Gate::Call32, 1);
    assert_eq!(names(old), three("exit (32-bit)", "system call 1 (32-bit)", "calls of exit (32-bit)"));
    let further = three("system calls from 1024 on", "system calls from 1024 on", "calls of system calls from 1024 on");
    assert_eq!(names(Entry::new(Gate::Call, 1 << 30)), further);
    let fault = Entry::new(Gate::Exception, 14);
    assert_eq!(names(fault), three("exception #PF", "exception #PF", "page faults"));
    let timer = Entry::new(Gate::Interrupt, 0xec);
    assert_eq!(timer.plural(true, Some("0xec local timer")), "interrupts 0xec local timer");
    assert_eq!(timer.describe(true, None), "interrupt 0xec local timer");
    assert_eq!(timer.describe(false, None), "interrupt 0xec");
    assert_eq!(Entry::new(Gate::SoftInterrupts, 0).describe(true, None), "soft interrupts");
}

#[test]
fn entries_without_room_belong_to_the_first_origin() {
    let mut recorded = Recorded::default();
    for origin in 1..=recorded::MOST_ENTRIES as u32 + 2 {
        recorded.add(OriginId(origin), CALL, stay(4000), false);
    }
    let saved = recorded.save();
    assert_eq!(recorded.len(), recorded::MOST_ENTRIES + 1);
    assert_eq!(recorded.take()[0].1.count(), 2);
    assert!(saved.fits(recorded::MOST_ENTRIES + 3, 1 << 62));
    assert!(!saved.fits(recorded::MOST_ENTRIES, 1 << 62));
}

#[test]
fn stays_are_saved_and_restored_and_merged() {
    let mut recorded = Recorded::default();
    for i in 0..1000u64 {
        let entry = Entry::new(Gate::VARIANTS[i as usize % Gate::VARIANTS.len()], i as u32 % 3);
        recorded.add(OriginId(i as u32 % 5), entry, stay(i * i), i % 4 == 0);
    }
    let restored = Recorded::restore(recorded.save());
    assert_eq!(restored.save(), recorded.save());
    let mut both = restored;
    both.put(recorded.clone().take(), |origin| origin);
    let (once, twice) = (recorded.take(), both.take());
    assert!(once.iter().zip(&twice).all(|(a, b)| a.0 == b.0 && 2 * a.1.count() == b.1.count()));
    assert!(once.iter().zip(&twice).all(|(a, b)| a.1.durations.quantile(0.5) == b.1.durations.quantile(0.5)));
}

#[test]
fn a_saved_state_that_cannot_be_does_not_fit() {
    let mut recorded = Recorded::default();
    recorded.add(OriginId(0), CALL, stay(100), true);
    recorded.add(OriginId(0), CALL, stay(1 << 61), false);
    assert!(recorded.save().fits(1, 1 << 62));
    assert!(!recorded.save().fits(0, 1 << 62));
    assert!(!recorded.save().fits(1, 1 << 60));
}

#[test]
fn parts_add_up_to_the_stay() {
    let Stay { ticks, enter, mitigation, leave } = stay(1000);
    assert_eq!(enter + mitigation + leave + stay(1000).handler(), ticks);
}

proptest! {
    #[test]
    fn a_quantile_is_within_a_sixtyfourth_of_the_exact_one(
        mut all in prop::collection::vec(0u64..1 << 40, 1..200),
        part in 0.0f64..=1.0,
    ) {
        let found = durations(&all).quantile(part).expect("is there");
        all.sort_unstable();
        let rank = (part * all.len() as f64).ceil().max(1.0) as usize;
        let exact = all[rank - 1] as f64;
        prop_assert!((found - exact).abs() <= exact / 64.0, "{found} {exact}");
    }
}
