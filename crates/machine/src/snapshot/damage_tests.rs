//! Snapshots that are changed and sealed again: the checksum and the compression are right, and the state is not. Each
//! must be refused with a reason, or be a machine that runs, is saved, and leaves a ledger.

use super::*;
use crate::Platform;
use crate::board::Parts;
use crate::machine::Config;
use crate::testing::{self, Nobody};
use crate::virtio::Disk;
use cpu::Tier;
use hypervisor::config::Switches;
use ledger::Profile;
use ledger::profile::Clock;
use ledger::symbols::Symbols;
use network::options::Net;
use testkit::Random;

/// Number of changed snapshots of each machine. `RESEALED=100000 cargo test -p machine resealed` tries more.
const CHANGES: u64 = 500;
/// Number of slices that a machine runs before it is saved, and after it was restored.
const SLICES: u64 = 2;

/// Returns a guest with paging that counts, asks for CPUID and the time, and lets the interval timer run.
fn code() -> Vec<u8> {
    [
        &[0xbf, 0x00, 0x10, 0x20, 0x00][..],   // mov edi, 0x201000: the page table
        &[0xb8, 0x03, 0x00, 0x00, 0x00],       // mov eax, 3
        &[0xb9, 0x00, 0x04, 0x00, 0x00],       // mov ecx, 1024
        &[0xab, 0x05, 0x00, 0x10, 0x00, 0x00], // stosd; add eax, 0x1000
        &[0xe2, 0xf8],                         // loop: the stosd
        &[0xb8, 0x00, 0x00, 0x20, 0x00],       // mov eax, 0x200000: the directory
        &[0xc7, 0x00, 0x03, 0x10, 0x20, 0x00], // mov dword [eax], 0x201003
        &[0x0f, 0x22, 0xd8],                   // mov cr3, eax
        &[0x0f, 0x20, 0xc0],                   // mov eax, cr0
        &[0x0d, 0x00, 0x00, 0x01, 0x80],       // or eax, 0x80010000
        &[0x0f, 0x22, 0xc0],                   // mov cr0, eax
        &[0xb0, 0x34, 0xe6, 0x43, 0xe6, 0x40, 0xe6, 0x40], // the timer's first channel: a rate
        &[0xff, 0x05, 0x00, 0x00, 0x30, 0x00], // turn: inc dword [0x300000]
        &[0x31, 0xc0, 0x0f, 0xa2],             // xor eax, eax; cpuid
        &[0x0f, 0x31],                         // rdtsc
        &[0xa3, 0x00, 0x10, 0x30, 0x00],       // mov [0x301000], eax
        &[0xeb, 0xed],                         // jmp: turn
    ]
    .concat()
}

/// Returns a platform with a hypervisor on that processor, with these settings.
fn hvm(profile: &Profile, settings: &[(&str, &str)]) -> Platform {
    let mut switches = Switches::default();
    for (name, value) in settings {
        let switch = Switches::ALL.iter().find(|switch| switch.name == *name).unwrap();
        switches.set(switch, value).unwrap();
    }
    Platform::Hvm(switches.resolve(profile).unwrap())
}

/// Returns every device that a machine can have and that can be saved. `disk` is its image.
fn devices(disk: &std::path::Path) -> Parts {
    let nic = |text: &str| match text.parse() {
        Ok(Net::Nic(nic)) => nic,
        other => panic!("{other:?}"),
    };
    Parts {
        disks: vec![Disk::open(disk, false).unwrap()],
        overlay: true,
        paravirt: true,
        console: crate::console::Console::Virtio,
        nics: ["generator:rate=1K,count=50", "generator:rate=1K,count=50,model=ixgbe", "sink"].map(nic).into(),
        channels: vec!["control".to_owned()],
        ..Parts::default()
    }
}

/// The name that stands for [`with_caches`].
const CORE: &str = "core";

/// A machine that can be made again and again.
struct Kind<'a> {
    name: &'static str,
    make: Box<dyn Fn(Tier) -> Machine + 'a>,
}

/// Returns a profile with the model `core`, and caches so small that most of a saved state is not empty lines.
fn with_caches() -> Profile {
    let mut profile = Profile::named("zen3").unwrap().with_clock(Clock::Core).unwrap();
    if let Some(caches) = &mut profile.caches {
        let (l1d, l1i, branches) = (&mut caches.l1d.value, &mut caches.l1i.value, &mut caches.branches.value.table);
        let l3 = caches.l3.iter_mut().map(|level| &mut level.value);
        let levels = [l1d, l1i, branches, &mut caches.l2.value].into_iter().chain(l3);
        for (level, lines) in levels.zip([16, 16, 16, 32, 64]) {
            (level.lines, level.ways) = (lines, 4);
        }
    }
    profile
}

fn kinds(disk: &std::path::Path) -> Vec<Kind<'_>> {
    let kind = |name, profile: &'static str, cpus, settings: Option<&'static [(&str, &str)]>, all_devices| {
        let make = move |tier| {
            let profile = match profile {
                CORE => with_caches(),
                name => Profile::named(name).unwrap(),
            };
            let platform = settings.map_or(Platform::Bare, |settings| hvm(&profile, settings));
            let parts = if all_devices { devices(disk) } else { Parts { overlay: true, ..Parts::default() } };
            Machine::new(Config { cpus, profile, parts, ..testing::config(&code(), platform, tier) }).unwrap()
        };
        Kind { name, make: Box::new(make) }
    };
    vec![
        kind("every device", "skx", 1, None, true),
        kind("two processors", "max", 2, None, false),
        kind("shadow", "skx", 1, Some(&[("mmu", "shadow")]), false),
        kind("TDP", "emr", 1, Some(&[("mmu", "tdp"), ("nested", "on")]), false),
        kind("core", CORE, 2, None, false),
        kind("core, shadow", CORE, 1, Some(&[("mmu", "shadow")]), false),
        kind("legacy TDP, two processors", "skx", 2, Some(&[("mmu", "legacy-tdp")]), false),
    ]
}

fn run_on(machine: &mut Machine) {
    let mut left = SLICES + 1;
    let _ = machine.run_until(&mut Nobody, &mut |_| {
        left -= 1;
        left == 0
    });
}

/// Returns the parts of an encoded state: their bytes one after the other are the state's. The charges follow.
fn parts(state: &State) -> Vec<Vec<u8>> {
    fn add(parts: &mut Vec<Vec<u8>>, value: &impl Serialize) {
        parts.push(encode(value).unwrap());
    }
    let mut all = Vec::new();
    add(&mut all, &state.processors.len());
    for processor in &state.processors {
        add(&mut all, &processor.arch);
        add(&mut all, &processor.micro);
        add(&mut all, &(processor.activity, processor.nmis, processor.spun));
        add(&mut all, &processor.guest);
    }
    add(&mut all, &state.hypervisor);
    add(&mut all, &state.devices.len());
    for device in &state.devices {
        add(&mut all, device);
    }
    add(&mut all, &state.record);
    add(&mut all, &state.blocks);
    add(&mut all, &state.tasks);
    add(&mut all, &(&state.watch, state.look, &state.turns, &state.monitors, state.triggered));
    add(&mut all, &state.moves);
    all
}

/// Appends a number as postcard writes it.
fn number(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Changes a few bytes of one part, or puts another number where one may be.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let Some(last) = bytes.len().checked_sub(1) else { return };
    let at = random.below(last as u64 + 1) as usize;
    match random.below(8) {
        0..3 => bytes[at] ^= 1 << random.below(8),
        3 => bytes[at] = random.of(&[0, 1, 0x7f, 0xff]),
        4 => bytes.truncate(at),
        5 => {
            // A count that no longer fits, or one element less or more of a list of bytes.
            bytes.remove(at);
        }
        _ => {
            let len = 1 + bytes[at..].iter().take_while(|byte| **byte & 0x80 != 0).count().min(9);
            let most = u64::MAX >> random.of(&[0, 1, 8, 16, 32, 33, 48, 56]);
            let value = match random.below(4) {
                0 => most,
                1 => random.below(70),
                2 => random.next() & most,
                _ => 1 << random.below(64),
            };
            let mut other = Vec::new();
            number(value, &mut other);
            bytes.splice(at..(at + len).min(last + 1), other);
        }
    }
}

/// Returns a snapshot with this state and these charges, and a right checksum.
fn resealed(contents: &Contents, state: &[u8], charges: &[u8]) -> Vec<u8> {
    let memory: Vec<u8> = encode(&contents.memory).unwrap();
    let contents = Contents {
        command: contents.command.clone(),
        machine: contents.machine.clone(),
        state: lz4_flex::block::compress_prepend_size(state).into(),
        charges: lz4_flex::block::compress_prepend_size(charges).into(),
        memory: decode(&memory).unwrap(),
    };
    file::seal(file::Kind::Snapshot, &contents).unwrap()
}

/// Restores a changed snapshot and runs the machine. Returns false if the snapshot was refused.
fn restore(kind: &Kind, changed: &[u8], tier: Tier, charges: Charges) -> bool {
    let mut machine = (kind.make)(tier);
    if let Err(error) = machine.restore_with(changed, &[], charges) {
        assert!(!matches!(error, SnapshotError::HostClock), "no clock follows the host's");
        assert!(!error.to_string().is_empty());
        return false;
    }
    run_on(&mut machine);
    // The sums of charges may be wrong, and what cannot be reported has a reason.
    let _ = machine.check();
    machine.gather();
    if let Err(error) = machine.is_whole() {
        assert_eq!(charges, Charges::Later, "{error}");
        return false;
    }
    let _ = machine.ledger(&Symbols::default()).to_bytes();
    let again = machine.snapshot(&[]).unwrap();
    (kind.make)(Tier::default()).restore(&again, &[]).unwrap_or_else(|error| panic!("its own snapshot: {error}"));
    true
}

#[test]
fn a_resealed_snapshot_is_refused_with_a_reason_or_is_a_machine_that_runs() {
    let changes = std::env::var("RESEALED").map_or(CHANGES, |number| number.parse().unwrap());
    let disk = std::env::temp_dir().join(format!("tollgate-resealed-{}", std::process::id()));
    std::fs::write(&disk, [0x5a; 4096]).unwrap();
    let mut failures = Vec::new();
    for kind in kinds(&disk) {
        let mut original = (kind.make)(Tier::default());
        run_on(&mut original);
        let snapshot = original.snapshot(&[]).unwrap();
        let contents: Contents = decode(file::open(file::Kind::Snapshot, &snapshot).unwrap()).unwrap();
        let state = file::decompress(&contents.state, file::LARGEST_STATE).unwrap();
        let charges = file::decompress(&contents.charges, file::LARGEST_STATE).unwrap();
        let mut parts = parts(&decode(&state).unwrap());
        assert!(parts.concat() == state, "{}: the parts are the state", kind.name);
        assert!(resealed(&contents, &state, &charges) == snapshot, "{}: unchanged", kind.name);
        parts.push(charges);
        let (mut refused, mut ran) = (0, 0);
        for seed in 0..changes {
            let mut random = Random::new(seed);
            let mut changed = parts.clone();
            let mut changed_parts = Vec::new();
            for _ in 0..=random.below(2) {
                let part = random.below(parts.len() as u64) as usize;
                change(&mut changed[part], &mut random);
                changed_parts.push(part);
            }
            let (charges, state) = changed.split_last().unwrap();
            let changed = resealed(&contents, &state.concat(), charges);
            let tier = random.of(&[Tier::Interpreter, Tier::Translator]);
            let charges = random.of(&[Charges::Now, Charges::Later]);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| restore(&kind, &changed, tier, charges))) {
                Ok(false) => refused += 1,
                Ok(true) => ran += 1,
                Err(_) => failures.push(format!("{}, seed {seed}, parts {changed_parts:?}", kind.name)),
            }
        }
        println!("{}: {refused} refused, {ran} ran", kind.name);
        assert!(ran > changes / 20 && refused > changes / 20, "{}: {refused} refused, {ran} ran", kind.name);
    }
    std::fs::remove_file(&disk).unwrap();
    assert!(failures.is_empty(), "panics, with their messages above: {failures:#?}");
}

#[test]
fn counts_that_would_overflow_and_lines_that_are_too_long_are_refused() {
    let disk = std::path::Path::new("/dev/null");
    let kinds = kinds(disk);
    let kind = kinds.iter().find(|kind| kind.name == "two processors").unwrap();
    let snapshot = (kind.make)(Tier::default()).snapshot(&[]).unwrap();
    let contents: Contents = decode(file::open(file::Kind::Snapshot, &snapshot).unwrap()).unwrap();
    let state = file::decompress(&contents.state, file::LARGEST_STATE).unwrap();
    let charges = file::decompress(&contents.charges, file::LARGEST_STATE).unwrap();
    let refused = |change: &dyn Fn(&mut State)| {
        let mut state: State = decode(&state).unwrap();
        change(&mut state);
        let changed = resealed(&contents, &encode(&state).unwrap(), &charges);
        (kind.make)(Tier::default()).restore(&changed, &[]).map_err(|error| error.to_string())
    };
    assert_eq!(refused(&|_| ()), Ok(()));
    let other = |what: &str| Err(format!("there is no such state: {what}"));
    let line = |length: usize| decode(&encode(&("x".repeat(length), false, false)).unwrap()).unwrap();
    assert_eq!(refused(&|state| state.watch = line(256)), Ok(()));
    assert_eq!(refused(&|state| state.watch = line(257)), other("a line that is too long"));
    let turns = |taken: u64| decode(&encode(&(taken, false)).unwrap()).unwrap();
    assert_eq!(refused(&|state| state.turns = turns(1 << 61)), Ok(()));
    assert_eq!(refused(&|state| state.turns = turns(u64::MAX)), other("a number of turns that no machine takes"));
}
