use super::*;
use crate::entry::BlockRuns;
use crate::ledger::tests::{charged, sample};
use crate::{AddressSpace, Kind, Origin, TaskId};
use proptest::prelude::*;

#[test]
fn what_is_written_is_read_again() {
    let ledger = sample();
    assert_eq!(Ledger::read(&ledger.to_bytes().unwrap()), Ok(ledger));
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    assert_eq!(sample().to_bytes().unwrap(), sample().to_bytes().unwrap());
}

#[test]
fn a_file_of_several_frames_is_read_again() {
    let mut ledger = sample();
    ledger.blocks = (0..300_000u64)
        .map(|i| BlockRuns {
            region: 0,
            origin: (i / 150_000) as u32,
            rip: i * i,
            shape: 0,
            runs: i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        })
        .collect();
    assert!(ledger.payload(VERSION).len() > 2 * FRAME);
    assert_eq!(Ledger::read(&ledger.to_bytes().unwrap()), Ok(ledger));
}

#[test]
fn damage_is_recognized() {
    let bytes = sample().to_bytes().unwrap();
    assert_eq!(Ledger::read(b"\xff\xd8\xff\xe0JFIF and more"), Err(LedgerError::NotALedger));
    assert_eq!(Ledger::read(&[]), Err(LedgerError::NotALedger));
    assert_eq!(
        Ledger::read(&bytes[..bytes.len() - 1]),
        Err(LedgerError::Length { expected: bytes.len() as u64, found: bytes.len() as u64 - 1 })
    );
    let mut flipped = bytes.clone();
    flipped[PREAMBLE + 20] ^= 4;
    assert_eq!(Ledger::read(&flipped), Err(LedgerError::Checksum));
    let mut newer = bytes;
    newer[8] = VERSION as u8 + 1;
    assert_eq!(Ledger::read(&newer), Err(LedgerError::Version { found: VERSION + 1 }));
}

#[test]
fn files_from_before_there_were_hypervisors_are_read() {
    let as_version_1 = |ledger: &Ledger| Ledger::read(&framed(&ledger.payload(1), 1));
    let mut ledger = charged(false);
    assert_eq!(as_version_1(&ledger), Ok(ledger.clone()));
    ledger.events.last_mut().unwrap().kind = Kind::new(Family::VmExit, 10);
    assert_eq!(Ledger::read(&ledger.to_bytes().unwrap()), Ok(ledger.clone()));
    assert!(matches!(as_version_1(&ledger), Err(LedgerError::Malformed { section: "events", .. })));
}

#[test]
fn files_from_before_guests_were_told_apart_are_read() {
    let ledger = charged(true);
    let without = Ledger { entries: Entries::default(), ..ledger.clone() };
    assert_eq!(Ledger::read(&framed(&ledger.payload(BEFORE_GUESTS), BEFORE_GUESTS)), Ok(without.clone()));
    assert_eq!(Ledger::read(&framed(&ledger.payload(BEFORE_STAYS), BEFORE_STAYS)), Ok(without));
}

/// A file around a payload, with the right lengths and checksum.
fn around(payload: &[u8]) -> Vec<u8> {
    framed(payload, VERSION)
}

#[test]
fn a_frame_that_claims_to_be_huge_is_refused() {
    let mut frames = Vec::new();
    frames.extend_from_slice(&u32::MAX.to_le_bytes());
    frames.extend_from_slice(&1u32.to_le_bytes());
    frames.push(0);
    assert_eq!(unpack(&frames), Err(LedgerError::Frame));
}

#[test]
fn entries_that_point_nowhere_are_refused() {
    for break_it in [
        |l: &mut Ledger| l.blocks.last_mut().unwrap().shape = 99,
        |l: &mut Ledger| l.blocks.last_mut().unwrap().origin = 99,
        |l: &mut Ledger| l.events.last_mut().unwrap().region = 99,
        |l: &mut Ledger| l.events.last_mut().unwrap().kind = Kind::new(Family::Instruction, 99),
        |l: &mut Ledger| l.events.last_mut().unwrap().kind = Kind::new(Family::Operation, 99),
        |l: &mut Ledger| l.events.swap(0, 1),
        |l: &mut Ledger| l.origins.swap(0, 1),
        |l: &mut Ledger| l.origins[0].ring = 4,
        |l: &mut Ledger| l.origins.last_mut().unwrap().task = TaskId(l.tasks.len() as u32),
        |l: &mut Ledger| l.regions.clear(),
        |l: &mut Ledger| l.header.tsc_hz = 0,
    ] {
        let mut ledger = sample();
        break_it(&mut ledger);
        assert!(
            ledger != sample()
                && matches!(Ledger::read(&ledger.to_bytes().unwrap()), Err(LedgerError::Malformed { .. }))
        );
    }
}

/// The payload of a ledger, with other bytes where it has these, which stand there once.
fn payload_with(ledger: &Ledger, bytes: &[u8], others: &[u8]) -> Vec<u8> {
    let mut payload = ledger.payload(VERSION);
    let found: Vec<usize> = memchr::memmem::find_iter(&payload, bytes).collect();
    let [at] = found[..] else { panic!("{found:?}") };
    payload.splice(at..at + bytes.len(), others.iter().copied());
    payload
}

#[test]
fn what_no_writer_writes_is_refused() {
    let mut ledger = sample();
    ledger.tasks.last_mut().unwrap().comm = "unique".to_owned();
    for key in ["key one", "key two"] {
        ledger.header.metadata.insert(key.to_owned(), String::new());
    }
    let read = |bytes: &[u8], others: &[u8]| Ledger::read(&around(&payload_with(&ledger, bytes, others)));
    let (sorts, process, idle) = (TaskKind::ALL.len() as u8, TaskKind::Process as u8, TaskKind::Idle as u8);
    assert_eq!(ledger.tasks.last().unwrap().kind as u8, idle, "the last of the kinds");
    let task = |kind: u8| [&[kind, 0, 0, 6][..], b"unique"].concat();
    assert!(read(&task(idle), &task(idle)).is_ok() && process < idle);
    assert!(matches!(read(&task(idle), &task(sorts)), Err(LedgerError::Malformed { section: "tasks", .. })));
    let twice = read(b"key two", b"key one");
    assert!(matches!(twice, Err(LedgerError::Malformed { reason: "is out of order", .. })), "{twice:?}");
}

#[test]
fn as_many_tasks_are_read_as_a_run_can_have() {
    let mut ledger = sample();
    let task = |tid| Task { kind: TaskKind::Idle, pid: u32::MAX, tid, comm: "x".to_owned() };
    ledger.tasks.extend((0..).map(task).take(MOST_TASKS + 2 - ledger.tasks.len()));
    assert!(Ledger::read(&ledger.to_bytes().unwrap()).is_ok_and(|read| read == ledger));
    ledger.tasks.push(task(u32::MAX));
    let read = Ledger::read(&ledger.to_bytes().unwrap());
    assert!(matches!(read, Err(LedgerError::Malformed { section: "tasks", .. })));
}

#[test]
fn a_changed_payload_with_its_checksum_is_refused_with_a_reason_or_is_a_ledger() {
    let payload = sample().payload(VERSION);
    // The generator of Knuth's MMIX: the same changes in every run.
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..4000 {
        let mut forged = payload.clone();
        for _ in 0..=below(3) {
            let at = below(forged.len());
            forged[at] ^= 1 << below(8);
        }
        if below(16) == 0 {
            forged.truncate(below(forged.len()));
        }
        match Ledger::read(&around(&forged)) {
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty(), "{number}");
            }
            Ok(ledger) => {
                accepted += 1;
                // It may contradict itself, which is said, and what is written of it is read again.
                if let Err(error) = ledger.verify() {
                    assert!(!error.to_string().is_empty(), "{number}");
                }
                let _ = (ledger.all().total(), ledger.symbol(AddressSpace::default(), u64::MAX));
                if let Ok(bytes) = ledger.to_bytes() {
                    assert!(Ledger::read(&bytes).is_ok_and(|read| read == ledger), "{number}");
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} {refused}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Ledger::read(&bytes);
        let _ = Ledger::read(&around(&bytes));
    }

    #[test]
    fn no_change_of_a_payload_makes_the_reader_panic(
        changes in prop::collection::vec((0usize..4000, any::<u8>()), 1..8), cut in 0usize..4000,
    ) {
        let mut payload = sample().payload(VERSION);
        for (at, byte) in changes {
            let at = at % payload.len();
            payload[at] = byte;
        }
        payload.truncate(payload.len() - cut % 16);
        if let Ok(ledger) = Ledger::read(&around(&payload)) {
            let _ = ledger.verify();
            let _ = ledger.symbol(AddressSpace::default(), u64::MAX);
        }
    }
}

/// More blocks than a ledger has now, of one function.
fn many() -> Ledger {
    let mut ledger = charged(false);
    let more = (0..MOST_ENTRIES as u64 + 10).map(|i| BlockRuns { region: 0, origin: 1, rip: i, shape: 0, runs: 1 });
    ledger.blocks = more.collect();
    ledger
}

#[test]
fn shapes_of_older_files_have_the_ticks_of_their_classes() {
    let ledger = Ledger { entries: Entries::default(), ..sample() };
    let read = Ledger::read(&framed(&ledger.payload(BEFORE_TICKS), BEFORE_TICKS));
    assert_eq!(read, Ok(ledger.clone()), "its prices are even");
    let mut uneven = ledger;
    uneven.shapes[0][0].2 += 1;
    assert_eq!(Ledger::read(&uneven.to_bytes().unwrap()), Ok(uneven));
}

#[test]
fn older_files_with_more_entries_are_folded_as_they_are_read() {
    let ledger = many();
    let read = Ledger::read(&framed(&ledger.payload(2), 2)).expect("is readable");
    assert!(read.blocks.len() + read.events.len() <= MOST_ENTRIES);
    assert_eq!(read.all().total().instructions, ledger.all().total().instructions);
    assert_eq!(read.all().total().ticks, ledger.all().total().ticks);
    assert!(read.folded.addresses > MOST_ENTRIES as u64 / 2);
    let now = Ledger::read(&framed(&ledger.payload(VERSION), VERSION));
    assert!(matches!(now, Err(LedgerError::Malformed { section: "events", .. })), "none is written now");
}

#[test]
fn nothing_is_written_that_cannot_be_read() {
    let error = many().to_bytes().expect_err("is too large").to_string();
    assert!(error.contains("the ledger is too large") && error.contains("--limit"), "{error}");
    let mut ledger = sample();
    let text = "\u{e9}".repeat(LONGEST_METADATA);
    ledger.header.metadata.insert("command line".into(), text.clone());
    ledger.symbols[0].name = text.clone();
    ledger.regions[1].name = "\u{1f6a7}".repeat(LONGEST_REGION_NAME);
    let region = ledger.regions[1].name.clone();
    let read = Ledger::read(&ledger.to_bytes().unwrap()).expect("is readable");
    assert_eq!(read.header.metadata["command line"], text[..LONGEST_METADATA]);
    assert_eq!(read.symbols[0].name, text[..LONGEST_NAME]);
    assert_eq!(read.regions[1].name, region);
    ledger.symbols = (0..LARGEST_PAYLOAD / LONGEST_NAME + 1)
        .map(|i| SavedSymbol { start: i as u64, name: text[..LONGEST_NAME].to_owned(), ..ledger.symbols[0].clone() })
        .collect();
    assert!(ledger.to_bytes().expect_err("is too large").to_string().contains("--symbols"));
}

#[test]
fn a_payload_beyond_the_limit_is_called_too_large() {
    let bytes = framed(&vec![0; LARGEST_PAYLOAD + 1], 2);
    assert!(bytes.len() < 1 << 20, "little is enough to ask for much");
    assert_eq!(Ledger::read(&bytes), Err(LedgerError::TooLarge));
    assert!(LedgerError::TooLarge.to_string().contains("run the guest again"));
}

#[test]
fn folded_places_are_read_again_and_checked() {
    let mut ledger = sample();
    ledger.folded.addresses = 3;
    ledger.folded.recorded = Coarseness::from_index(2).unwrap();
    let range = Range { start: 0x40_1000, len: 0x1000 };
    ledger.folded.places.push(FoldedPlace { region: 1, origin: 2, rip: 0x40_1010, range });
    assert_eq!(Ledger::read(&ledger.to_bytes().unwrap()), Ok(ledger.clone()));
    for break_it in [
        |l: &mut Ledger| l.folded.places[0].region = 9,
        |l: &mut Ledger| l.folded.places[0].origin = 9,
        |l: &mut Ledger| l.folded.places[0].range.start = 0x40_1011,
        |l: &mut Ledger| l.folded.places.push(l.folded.places[0]),
    ] {
        let mut broken = ledger.clone();
        break_it(&mut broken);
        let read = Ledger::read(&broken.to_bytes().unwrap());
        assert!(matches!(read, Err(LedgerError::Malformed { section: "folded", .. })), "{read:?}");
    }
}

#[test]
fn stacks_of_a_run_that_recorded_none_are_refused() {
    let mut ledger = sample();
    ledger.stacks = Stacks::default();
    assert_eq!(Ledger::read(&around(&ledger.payload(VERSION))).as_ref(), Ok(&ledger));
    ledger.stacks.origins = vec![Origin::default()];
    let read = Ledger::read(&around(&ledger.payload(VERSION)));
    assert!(matches!(read, Err(LedgerError::Malformed { .. })), "{read:?}");
}
