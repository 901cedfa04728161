use super::*;
use crate::Platform;
use crate::board::Parts;
use crate::machine::{Config, Outcome};
use crate::testing::{self, Nobody};
use cpu::Tier;
use ledger::stack::Keeps;
use ledger::symbols::Symbols;

/// Minimum number of slices that the guest runs.
const SLICES: u64 = 5;

/// Returns the configuration of a guest that counts, calls and writes to memory for some slices, and exits with status
/// 1.
fn config(platform: Platform, tier: Tier, memory: u64) -> Config {
    let code = [
        &[0xbc, 0x00, 0x00, 0x20, 0][..],   // mov esp, 0x200000
        &[0xb9, 0x00, 0x00, 0x40, 0],       // mov ecx, 0x400000
        &[0xe8, 0x09, 0, 0, 0],             // call: the function
        &[0x49, 0x75, 0xf8],                // dec ecx; jnz: the call
        &[0x31, 0xc0, 0xe6, 0xf4],          // xor eax, eax; out 0xf4, al
        &[0xeb, 0xfe],                      // jmp
        &[0x89, 0x0d, 0x00, 0x00, 0x30, 0], // the function: mov [0x300000], ecx
        &[0xc3],                            // ret
    ]
    .concat();
    let parts = Parts { overlay: true, ..Parts::default() };
    Config { memory, parts, ..testing::config(&code, platform, tier) }
}

fn machine(platform: &Platform, tier: Tier) -> Machine {
    Machine::new(config(platform.clone(), tier, 8 << 20)).unwrap()
}

fn images() -> Vec<(String, String)> {
    vec![("kernel".to_owned(), "the counter".to_owned())]
}

/// Runs a machine to its end, and returns its ledger.
fn finish(machine: &mut Machine) -> Vec<u8> {
    assert_eq!(machine.run(&mut Nobody), Outcome::DebugExit(1));
    machine.ledger(&Symbols::default()).to_bytes().unwrap()
}

/// Runs a machine for a number of slices, and returns a snapshot.
fn save_after(machine: &mut Machine, slices: u64) -> Vec<u8> {
    testing::run_slices(machine, slices);
    machine.snapshot(&images()).unwrap()
}

fn platforms() -> Vec<Platform> {
    vec![Platform::Bare, testing::hvm()]
}

#[test]
fn a_restored_machine_goes_on_as_the_whole_run() {
    for platform in platforms() {
        let whole = finish(&mut machine(&platform, Tier::default()));
        for slices in [0, 1, 3, SLICES] {
            let mut saved = machine(&platform, Tier::Translator);
            let snapshot = save_after(&mut saved, slices);
            assert_eq!(finish(&mut saved), whole, "saving leaves no trace");
            for tier in [Tier::Interpreter, Tier::Translator] {
                let mut restored = machine(&platform, tier);
                restored.restore(&snapshot, &images()).unwrap();
                assert_eq!(restored.snapshot(&images()).unwrap(), snapshot, "{slices} slices");
                // Some of its code has been executed then, and other code waits.
                let more = if slices < SLICES { 1 } else { 0 };
                let later = save_after(&mut machine(&platform, tier), slices + more);
                assert!(save_after(&mut restored, more) == later, "{slices} slices, {tier:?}, and {more}");
                assert!(finish(&mut restored) == whole, "{slices} slices, {tier:?}");
            }
        }
    }
}

#[test]
fn the_stacks_of_a_restored_machine_are_those_of_the_whole_run() {
    let keeps = Keeps { interval: 30_000_000, crossings: true, trace: true };
    for platform in platforms() {
        let machine = |tier| {
            let config = config(platform.clone(), tier, 8 << 20);
            Machine::new(Config { stacks: keeps, ..config }).unwrap()
        };
        let whole = finish(&mut machine(Tier::default()));
        assert!(!ledger::Ledger::read(&whole).unwrap().stacks.charges.is_empty());
        let mut saved = machine(Tier::Translator);
        let snapshot = save_after(&mut saved, 3);
        assert!(finish(&mut saved) == whole, "saving leaves no trace");
        let mut restored = machine(Tier::Interpreter);
        restored.restore(&snapshot, &images()).unwrap();
        assert!(finish(&mut restored) == whole);
    }
}

#[test]
fn snapshots_of_other_machines_are_refused() {
    let [bare, hvm] = platforms().try_into().ok().unwrap();
    let snapshot = save_after(&mut machine(&bare, Tier::default()), 1);
    let mut larger = Machine::new(config(bare.clone(), Tier::default(), 16 << 20)).unwrap();
    let refused = larger.restore(&snapshot, &images()).unwrap_err().to_string();
    assert_eq!(refused, "it is of another machine: its memory is \"8 MiB\", and here it is \"16 MiB\"");
    assert!(matches!(
        machine(&hvm, Tier::default()).restore(&snapshot, &images()),
        Err(SnapshotError::OtherMachine { .. })
    ));
    let other = [("kernel".to_owned(), "another".to_owned())];
    assert!(matches!(
        machine(&bare, Tier::default()).restore(&snapshot, &other),
        Err(SnapshotError::OtherMachine { .. })
    ));
}

#[test]
fn a_refusal_names_what_is_not_stated() {
    let facts = |key: &str, value: &str| [(key.to_owned(), value.to_owned())];
    for (key, value, unstated) in [("model", "core", "flat"), ("disk 0", "sha256", "nothing")] {
        let message = |saved: &[_], here: &[_]| super::same_machine(saved, here).unwrap_err().to_string();
        let expected =
            |saved, here| format!("it is of another machine: its {key} is {saved:?}, and here it is {here:?}");
        assert_eq!(message(&facts(key, value), &[]), expected(value, unstated));
        assert_eq!(message(&[], &facts(key, value)), expected(unstated, value));
    }
}

#[test]
fn a_refusal_names_the_options_of_a_processor() {
    let facts = |hash: &str, options: Option<&str>| {
        let fact = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let options = options.map(|options| fact("processor options", options));
        [fact("processor", &format!("zen4 {hash}"))].into_iter().chain(options).collect::<Vec<_>>()
    };
    let slow = facts("1", Some("ghz=3.000"));
    let message = |here: &[_]| super::same_machine(&slow, here).unwrap_err().to_string();
    let boosted = message(&facts("2", Some("boost")));
    assert!(boosted.contains("with the processor zen4,ghz=3.000, and here it is zen4,boost: "), "{boosted}");
    let plain = message(&facts("2", None));
    assert!(plain.contains("with the processor zen4,ghz=3.000, and here it is zen4 without options: "), "{plain}");
    // Another version of the program may know the processor with other prices.
    assert!(message(&facts("2", Some("ghz=3.000"))).contains("processor zen4 1, and here it is zen4 2: "));
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let bare = Platform::Bare;
    let snapshot = save_after(&mut machine(&bare, Tier::default()), 2);
    let restore = |bytes: &[u8]| machine(&bare, Tier::default()).restore(bytes, &images());
    let error = restore(b"no snapshot").unwrap_err();
    assert_eq!(error.to_string(), "it is not a snapshot");
    for at in [12, 50, snapshot.len() / 2, snapshot.len() - 1] {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 1;
        assert!(matches!(restore(&damaged), Err(SnapshotError::Damaged)), "byte {at}");
        assert!(matches!(restore(&snapshot[..at]), Err(SnapshotError::Damaged)), "cut at {at}");
    }
    // A correct checksum does not make the contents valid: each byte of them in turn is changed.
    let content = file::open(Kind::Snapshot, &snapshot).unwrap();
    for at in (0..content.len()).step_by(content.len() / 150) {
        let mut forged = content.to_vec();
        forged[at] ^= 0x41;
        let mut machine = machine(&bare, Tier::default());
        let forged = file::seal_with(Kind::Snapshot, |file| Ok([file, forged].concat())).unwrap();
        if machine.restore(&forged, &images()).is_ok() {
            // If the changed state is possible, the machine must be able to run.
            let mut left = 3;
            let mut over = |_: &Machine| {
                left -= 1;
                left == 0
            };
            let _ = machine.run_until(&mut Nobody, &mut over);
        }
    }
}

#[test]
fn each_network_device_is_where_it_was() {
    let made = |nets: &[&str]| {
        let nic = |text: &&str| match text.parse() {
            Ok(network::options::Net::Nic(nic)) => nic,
            other => panic!("{other:?}"),
        };
        let config = config(Platform::Bare, Tier::default(), 8 << 20);
        let parts = Parts { nics: nets.iter().map(nic).collect(), ..config.parts };
        Machine::new(Config { parts, ..config }).unwrap()
    };
    let snapshot = save_after(&mut made(&["bridge", "sink"]), 2);
    made(&["bridge", "sink"]).restore(&snapshot, &images()).unwrap();
    for others in [&["sink", "bridge"][..], &["bridge"], &["bridge", "sink", "sink"]] {
        let refused = made(others).restore(&snapshot, &images());
        assert!(matches!(refused, Err(SnapshotError::OtherMachine { .. })), "{others:?}: {refused:?}");
    }
}
