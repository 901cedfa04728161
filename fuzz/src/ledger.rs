//! Ledger files: the bytes as a file, and as the payload of an intact file, so that the checksum does not obstruct
//! mutations.

use ::ledger::profile::Profile;
use ::ledger::summary::By;
use ::ledger::{Context, Family, Header, Kind, Ledger, Origin, Recorder, Symbol, Symbols, Task, TaskKind, VERSION};

/// Reads, checks, sums up and writes the file again.
pub fn run(data: &[u8]) {
    if let Ok(ledger) = Ledger::read(data) {
        use_up(&ledger);
    }
    if let Ok(ledger) = Ledger::read(&frame(data)) {
        use_up(&ledger);
    }
}

fn use_up(ledger: &Ledger) {
    let totals = ledger.verify();
    let names = ledger.regions.iter().filter_map(|region| ledger.region(&region.name)).take(8);
    for selection in names.chain([ledger.all()]) {
        let total = selection.total();
        if let Ok(totals) = &totals {
            assert!(total.ticks <= totals.ticks && total.instructions <= totals.instructions);
        }
        selection.classes();
        selection.devices();
        selection.kinds().into_keys().for_each(|kind| drop(ledger.describe(kind)));
        for by in [By::Symbol, By::Address, By::Space, By::Ring, By::Region, By::Task, By::Comm] {
            for row in selection.rows(by).into_values() {
                row.busy();
                row.crossings();
            }
            selection.busy(by);
            assert!(selection.top(by, 3).rows.len() <= 3);
        }
    }
    let again = Ledger::read(&ledger.to_bytes().expect("what was read is not too large"));
    assert_eq!(again.as_ref(), Ok(ledger), "what was read can be written and read again");
}

/// Returns a file of one frame.
fn frame(payload: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(payload);
    let mut frames = (payload.len() as u32).to_le_bytes().to_vec();
    frames.extend((packed.len() as u32).to_le_bytes());
    frames.extend(packed);
    let hash = frames
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut file = b"\x8fLEDGR\r\n".to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend((frames.len() as u64).to_le_bytes());
    file.extend(hash.to_le_bytes());
    file.extend(frames);
    file
}

/// Returns a small ledger with every section filled: as a file, and its payload alone.
pub fn seeds() -> Vec<Vec<u8>> {
    let profile = Profile::named("skx").expect("it is built in");
    let mut recorder = Recorder::default();
    let mut clock = 0;
    let task = recorder.task(Task::new(TaskKind::Process, 7, 8, "work"));
    for (ring, rip, name, context) in
        [(0, 0xffff_ffff_8100_0000, "", Context::Interrupt), (3, 0x40_1000, "work", Context::Task)]
    {
        let region = recorder.region(name);
        recorder.region_begins(region);
        recorder.region_ends(region, 1000);
        let origin = recorder.origin(Origin { region, context, task, ..Origin::new(0, ring, 0x1000_0000) });
        for (family, param) in [
            (Family::Syscall, 0),
            (Family::PortOut, 0x3f8),
            (Family::Exception, 14),
            (Family::VmExit, 28),
            (Family::Operation, 3),
        ] {
            recorder.add(origin, rip + u64::from(param), Kind::new(family, param), 2, 500);
            clock += 500;
        }
        let shape = recorder.shape(&vec![(::ledger::Class::Alu, 3, 1000)]);
        recorder.add_block(origin, rip, shape, 7);
        clock += 7 * 1000;
    }
    let mut header = Header::new(&profile, vec![clock]);
    header.metadata.insert("kernel".into(), "vmlinuz".into());
    header.names.insert(Kind::new(Family::PortOut, 0x3f8), "serial".into());
    let mut symbols = Symbols::default();
    symbols.add("", ledger::AddressSpace::default(), vec![Symbol::new(0xffff_ffff_8100_0000, 0x40, "entry")]);
    let ledger = Ledger::new(header, &recorder, &symbols);
    ledger.verify().expect("the sample is consistent");
    let file = ledger.to_bytes().expect("the sample is small");
    let size = u32::from_le_bytes(std::array::from_fn(|i| file[26 + i])) as usize;
    let payload = lz4_flex::block::decompress(&file[34..], size).expect("it was just compressed");
    vec![file, payload]
}
