//! A part of the sweep of the opcode space: the work of `difftest sweep`, small enough for every test run.

use difftest::native::Unavailable;
use difftest::sweep::space::MAPS;
use difftest::sweep::{Part, SweepCounts, Sweeper};

/// One encoding in this many is executed.
const EVERY: u64 = 61;

/// The native side owns fixed addresses and signals of the process, so one test does all the work.
#[test]
fn encodings_fault_and_complete_as_on_the_host() {
    let mut totals = SweepCounts::default();
    let mut sweeper = match Sweeper::new(64) {
        Ok(sweeper) => sweeper,
        Err(reason @ (Unavailable::Feature(_) | Unavailable::Map { .. } | Unavailable::Signals(_))) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let part = Part { maps: MAPS.map(|(_, map)| map).to_vec(), every: EVERY, share: (0, 1) };
    totals.add(sweeper.run(&part, |_, _| {}));
    sweeper = sweeper.switch(32);
    totals.add(sweeper.run(&part, |_, _| {}));
    assert!(totals.encodings > 100_000, "only {} encodings", totals.encodings);
    assert!(totals.equal > totals.encodings / 10 * 9, "only {} equal", totals.equal);
    let first: Vec<_> = totals.findings.values().take(20).collect();
    assert_eq!(totals.unequal, 0, "of {} encodings; the first: {first:#?}", totals.encodings);

    // The sweep was made to find no operations that looked undefined; a sample may miss them.
    for bytes in [&[0xf3u8, 0x48, 0x0f, 0x1e, 0xc8][..], &[0x0f, 0x1c, 0x00], &[0x0f, 0x18, 0x38], &[0x0f, 0x18, 0x30]]
    {
        let mut padded = [0xcc; 15];
        padded[..bytes.len()].copy_from_slice(bytes);
        let (native, emulated, _) = sweeper.compare(&padded, bytes.len());
        assert_eq!(native, emulated, "{bytes:02x?}");
    }
}
