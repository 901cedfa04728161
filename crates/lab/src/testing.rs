//! A small experiment with synthetic ledgers, for tests of everything that is made from results.

use crate::Experiment;
use crate::failure::Failure;
use crate::results::{self, ExperimentResult};
use crate::runner::Outcome;
use crate::store::Finished;
use ledger::{Class, Family, Header, Kind, Ledger, Operation, Origin, Profile, Recorder, Symbol, Symbols};
use std::path::PathBuf;

/// An experiment of two rows and three columns; one cell is left out.
pub const EXPERIMENT: &str = r#"
title = "A sample <of> tolls"
about = """
What crossings cost & why.

A second paragraph.
"""
[source]
text = "Somebody: a table, once"
reference = "<1@example.org>"
[defaults]
profile = "skx"
guest = "g"
[guest.g]
image = "target/guests/g.elf"
made-by = "make guests"
[[column]]
id = "native"
title = "native"
set = { platform = "bare" }
[[column]]
id = "before"
title = "KVM before"
set = { platform = "hvm", mmu = "shadow" }
[[column]]
id = "after"
title = "KVM after"
set = { platform = "hvm", mmu = "tdp" }
[[row]]
id = "switch"
title = "switch"
metric = { region = "work", per = 4, unit = "us" }
scale = "4 switches"
published = { native = 1.5, before = 61.18, after = 2 }
[[row]]
id = "exits"
title = "exits"
metric = { count = "VM exit *", region = "work", unit = "exits" }
[[skip]]
row = "exits"
column = "native"
reason = "nothing to leave"
[[factor]]
from = "before"
to = "after"
"#;

/// A ledger of a guest with so many exits by MOV CR3; without any it is a machine of its own. Prices are this test's.
pub fn ledger(exits: u64) -> Ledger {
    let mut recorder = Recorder::default();
    let level = u8::from(exits != 0);
    let region = recorder.region("work");
    recorder.region_begins(region);
    let [kernel, user, host] = [(level, 0), (level, 3), (0, 0)]
        .map(|(level, ring)| recorder.origin(Origin { region, ..Origin::new(level, ring, 0x1000) }));
    let (price, mut clock) = (1000, 0);
    let shape = recorder.shape(&vec![(Class::Alu, 3, 3 * price), (Class::Load, 1, price)]);
    for (origin, rip, runs) in [(kernel, 0xffff_8000_0000_0010, 500), (user, 0x40_0000, 300)] {
        recorder.add_block(origin, rip, shape, runs);
        clock += 4 * price * runs;
    }
    let mut event = |origin, rip, kind, count: u64, cycles: u64| {
        if count != 0 {
            recorder.add(origin, rip, kind, count, count * cycles * 1000);
            clock += count * cycles * 1000;
        }
    };
    event(kernel, 0xffff_8000_0000_0110, Kind::new(Family::ControlRegister, 3), 40, 180);
    event(kernel, 0xffff_8000_0000_0018, Kind::new(Family::TlbMissData, 4), 12, 35);
    event(host, 0xffff_8000_0000_0110, Kind::new(Family::VmExit, 28), exits, 900);
    event(host, 0xffff_8000_0000_0110, Kind::new(Family::VmEntry, 0), exits, 600);
    event(host, 0xffff_8000_0000_0110, Kind::operation(Operation::RunLoop), exits, 400);
    event(host, 0xffff_8000_0000_0110, Kind::operation(Operation::TableRead), exits * 8, 5);
    recorder.region_ends(region, clock);
    let profile = Profile::named("skx").expect("is built in");
    let mut header = Header::new(&profile, vec![clock]);
    header.class_ticks = [price as u32; Class::COUNT];
    let mut symbols = Symbols::default();
    symbols.add(
        "",
        ledger::AddressSpace::default(),
        vec![
            Symbol::new(0xffff_8000_0000_0000, 0x100, "do_work"),
            Symbol::new(0xffff_8000_0000_0100, 0x100, "load_cr3"),
        ],
    );
    Ledger::new(header, &recorder, &symbols)
}

/// The sample experiment.
pub fn experiment() -> Experiment {
    let file = directory().join("sample.toml");
    std::fs::write(&file, EXPERIMENT).unwrap();
    let mut experiment = Experiment::load(&file).unwrap_or_else(|error| panic!("{error}"));
    experiment.file = None;
    std::fs::remove_dir_all(directory()).unwrap();
    experiment
}

/// A directory of this process for the test that asks.
fn directory() -> PathBuf {
    let name = std::thread::current().name().unwrap_or("test").replace(':', "-");
    let directory = std::env::temp_dir().join(format!("tollgate-lab-sample-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The sample and its results: `before` has 40 exits, `after` so many; the exits of `after` are not there because it failed.
pub fn results(after: u64) -> (Experiment, ExperimentResult) {
    let experiment = experiment();
    let directory = directory();
    let mut result = ExperimentResult { name: experiment.name.clone(), file: None, cells: Vec::new() };
    for cell in experiment.cells() {
        let exits = [0, 40, after][cell.column];
        let finished =
            Finished { ledger: directory.join(cell.id().replace('/', "-")), output: directory.join("output") };
        std::fs::write(&finished.ledger, ledger(exits).to_bytes().unwrap()).unwrap();
        std::fs::write(&finished.output, "some output\n").unwrap();
        let outcome = match cell.id().as_str() {
            "exits/after" => Outcome::Failed(Failure {
                reason: "was ended by signal 9".to_owned(),
                said: vec!["it hurts".to_owned()],
                output: None,
                ran: true,
            }),
            _ => Outcome::Finished(finished),
        };
        result.cells.push(results::cell(&cell, &outcome).0);
    }
    std::fs::remove_dir_all(directory).unwrap();
    (experiment, result)
}
