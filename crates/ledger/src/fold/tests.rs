use super::*;
use crate::ledger::{Header, Ledger};
use crate::summary::By;
use crate::{Class, Profile, Recorder, Symbol, Symbols, evenly_priced};
use std::collections::BTreeMap;

const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// A run of a kernel with functions of 64 bytes, of a module, and of a user's code in three spaces. Function 1 is hot.
fn run(addresses: u64) -> (Header, Recorder, Symbols) {
    let profile = Profile::named("skx").expect("is built in");
    let costs = profile.costs();
    let mut recorder = Recorder::default();
    let mut clock = 0;
    let shape = evenly_priced(&[(Class::Alu, 2), (Class::Load, 1)], &costs.class);
    let price: u64 = shape.iter().map(|part| part.2).sum();
    let id = recorder.shape(&shape);
    for space in 1..4 {
        let kernel = recorder.origin(Origin::new(0, 0, space << 12));
        let user = recorder.origin(Origin::new(0, 3, space << 12));
        for i in 0..addresses {
            let runs = if (64..80).contains(&i) { 1_000_000 } else { 1 + i % 3 };
            for (who, rip) in [(kernel, KERNEL + i), (kernel, KERNEL + 0x100_0000 + i), (user, 0x40_0000 + 16 * i)] {
                recorder.add_block(who, rip, id, runs);
                clock += price * runs;
            }
            let kind = Kind::new(Family::Rdmsr, (i % 100) as u32);
            recorder.add(kernel, KERNEL + i, kind, 1, 500);
            clock += 500;
        }
    }
    let mut symbols = Symbols::default();
    let function = |base: u64, i: u64| Symbol::new(base + 64 * i, 64, &format!("f{i}"));
    symbols.add("", AddressSpace::default(), (0..addresses / 64).map(|i| function(KERNEL, i)).collect());
    symbols.add(
        "module",
        AddressSpace::default(),
        (0..addresses / 64).map(|i| function(KERNEL + 0x100_0000, i)).collect(),
    );
    (Header::new(&profile, vec![clock]), recorder, symbols)
}

fn by(ledger: &Ledger, by: By) -> BTreeMap<String, Amount> {
    ledger.all().busy(by)
}

fn entries(ledger: &Ledger) -> usize {
    ledger.blocks.len() + ledger.events.len()
}

#[test]
fn what_fits_is_not_folded() {
    let (header, recorder, symbols) = run(640);
    let exact = Ledger::new(header, &recorder, &symbols);
    assert_eq!(entries(&exact), 3 * 640 * 4);
    assert_eq!(exact.folded, Folded::default());
    assert_eq!(exact.folded.describe(), None);
}

#[test]
fn functions_keep_their_sums() {
    let (header, recorder, symbols) = run(640);
    let exact = Ledger::new(header.clone(), &recorder, &symbols);
    let folded = Ledger::fitting(header, &recorder, &symbols, 4000);
    assert!(entries(&folded) <= 4000);
    folded.verify().expect("still adds up");
    for table in [By::Symbol, By::Space, By::Ring, By::Level, By::Region] {
        assert_eq!(by(&folded, table), by(&exact, table), "{table:?}");
    }
    assert_eq!(folded.all().kinds(), exact.all().kinds());
    assert_eq!(folded.all().classes(), exact.all().classes());
    // The hot addresses are still told apart.
    let (before, after) = (by(&exact, By::Address), by(&folded, By::Address));
    let hot: Vec<_> = before.iter().filter(|(_, amount)| amount.count > 1_000_000).collect();
    assert_eq!(hot.len(), 48);
    assert!(hot.iter().all(|(name, amount)| after.get(*name) == Some(*amount)));
    assert!(after.contains_key("0xffffffff81000000 f0, folded"), "{:?}", after.keys().take(9).collect::<Vec<_>>());
    assert!(after.contains_key("0x400000 page of [user code]"));
    let text = folded.folded.describe().expect("is folded");
    assert!(text.contains(&format!("{} addresses", folded.folded.addresses)), "{text}");
    // 640 addresses at three places in three spaces, of which 16 of each are kept.
    assert_eq!(folded.folded.addresses, 3 * 3 * (640 - 16));
}

#[test]
fn whatever_the_limit_everything_adds_up() {
    let (header, recorder, symbols) = run(640);
    let exact = Ledger::new(header.clone(), &recorder, &symbols);
    let clock = exact.header.clocks[0];
    let mut lines = Vec::new();
    for most in [7000, 4000, 2000, 1000, 500, 200, 100, 30, 10] {
        let folded = Ledger::fitting(header.clone(), &recorder, &symbols, most);
        assert!(entries(&folded) <= most, "{most}: {}", entries(&folded));
        assert_eq!(folded.verify().map(|totals| totals.ticks), Ok(clock), "{most}");
        for table in [By::Symbol, By::Address, By::Space, By::Ring, By::Level, By::Region] {
            assert_eq!(folded.all().rows(table).values().map(|row| row.ticks).sum::<u64>(), clock, "{most} {table:?}");
        }
        assert_eq!(by(&folded, By::Ring), by(&exact, By::Ring), "{most}");
        assert_eq!(folded.all().classes(), exact.all().classes(), "{most}");
        assert_eq!(Ledger::read(&folded.to_bytes().unwrap()).as_ref(), Ok(&folded), "{most}");
        lines.extend(by(&folded, By::Symbol).into_keys().filter(|name| name.contains("folded")));
    }
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, ["[kernel, folded]", "[module, folded]"]);
}

#[test]
fn what_cannot_be_folded_stays() {
    let (header, recorder, symbols) = run(64);
    let ledger = Ledger::fitting(header, &recorder, &symbols, 2);
    assert_eq!(entries(&ledger), 3 * 64 * 4);
    ledger.verify().expect("adds up");
}

/// 5000 blocks of a user's code where there is room for 1000, with single instructions of a price beside them.
fn coarsely(single: Option<u64>) -> Recorder {
    let mut recorder = Recorder::with_room(1000);
    let user = recorder.origin(Origin::new(0, 3, 0x1000));
    let alu = recorder.shape(&vec![(Class::Alu, 1, price(&Profile::named("skx").expect("is built in")))]);
    for i in 0..5000 {
        recorder.add_block(user, 0x40_0000 + i, alu, 1);
        if let Some(ticks) = single {
            recorder.add(user, 0x40_0000 + i, Kind::new(Family::Instruction, Class::Alu as u32), 1, ticks);
        }
    }
    recorder.finish();
    recorder
}

#[test]
fn a_run_that_was_recorded_coarsely_says_so() {
    let profile = Profile::named("skx").expect("is built in");
    let recorder = coarsely(Some(price(&profile)));
    let ledger = Ledger::new(Header::new(&profile, vec![10_000 * price(&profile)]), &recorder, &Symbols::default());
    ledger.verify().expect("adds up");
    assert_eq!(
        ledger.folded.describe().as_deref(),
        Some("tasks by name, user code and areas with much code by pages of 4 KiB")
    );
    assert_eq!(ledger.folded.range(0, 0, 0x40_1000), Some(Range { start: 0x40_1000, len: 4096 }));
    assert_eq!(ledger.events.len(), 2, "one kind in two pages");
    assert!(ledger.all().busy(By::Address).contains_key("0x401000 page of [user code]"));
}

fn price(profile: &Profile) -> u64 {
    u64::from(profile.costs().class[Class::Alu as usize])
}

#[test]
fn code_without_symbols_does_not_fold_into_an_image() {
    let profile = Profile::named("skx").expect("is built in");
    let mut recorder = Recorder::default();
    let kernel = recorder.origin(Origin::new(0, 0, 0x1000));
    let alu = recorder.shape(&vec![(Class::Alu, 1, price(&profile))]);
    let mut symbols = Vec::new();
    for i in 0..300 {
        symbols.push(Symbol::new(KERNEL + 0x1000 * i, 0x100, &format!("f{i}")));
        // In a function, and in none.
        recorder.add_block(kernel, KERNEL + 0x1000 * i, alu, 1);
        recorder.add_block(kernel, KERNEL + 0x1000 * i + 0x800, alu, 2);
    }
    let mut all = Symbols::default();
    all.add("", AddressSpace::default(), symbols);
    let header = Header::new(&profile, vec![900 * price(&profile)]);
    let exact = Ledger::new(header.clone(), &recorder, &all);
    let folded = Ledger::fitting(header, &recorder, &all, 40);
    let (exact, folded) = (by(&exact, By::Symbol), by(&folded, By::Symbol));
    assert!(folded.contains_key("[kernel, folded]"), "{folded:?}");
    assert_eq!(folded["[kernel, no symbol]"], exact["[kernel, no symbol]"]);
}

#[test]
fn a_page_that_was_recorded_as_one_and_folds_alone_is_still_a_page() {
    let profile = Profile::named("skx").expect("is built in");
    let recorder = coarsely(None);
    let header = Header::new(&profile, vec![5000 * price(&profile)]);
    let ledger = Ledger::fitting(header, &recorder, &Symbols::default(), 1);
    ledger.verify().expect("adds up");
    let places: Vec<_> = ledger.folded.places.iter().map(|place| place.range.len).collect();
    assert!(!places.is_empty() && places.iter().all(|len| *len >= 4096), "{places:?}");
}
