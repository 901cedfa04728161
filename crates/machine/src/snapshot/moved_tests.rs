use super::*;
use crate::Platform;
use crate::board::Parts;
use crate::machine::{Config, Outcome};
use crate::testing::{self, Nobody};
use cpu::Tier;
use hypervisor::config::Switches;
use hypervisor::paravirt::hypercall_code;
use ledger::symbols::Symbols;
use ledger::{Kind as Event, Operation, Profile, TICKS_PER_CYCLE};
use x86::vmx::reason;

/// Address of the hypercall page.
const PAGE: u64 = 0x30_0000;
/// Number of calls by each way.
const CALLS: u64 = 4000;
const PARAVIRT: &[(&str, &str)] = &[("paravirt", "on")];
const SWITCHES: &[(&str, &str)] = &[("mmu", "shadow"), ("paravirt", "on")];

/// Returns a guest that asks for the hypercall page, and then calls it and executes VMCALL in turns. It exits with status 1 if all calls
/// succeed.
fn code() -> Vec<u8> {
    let [low, high, ..] = CALLS.to_le_bytes();
    [
        &[0xbc, 0x00, 0x00, 0x20, 0x00][..],   // mov esp, 0x200000
        &[0xb9, 0x00, 0x4c, 0x47, 0x54],       // mov ecx, 0x54474c00
        &[0xb8, 0x01, 0x00, 0x30, 0x00],       // mov eax, 0x300001
        &[0x31, 0xd2, 0x0f, 0x30],             // xor edx, edx; wrmsr
        &[0xbe, low, high, 0x00, 0x00],        // mov esi, CALLS
        &[0xb8, 0x02, 0x00, 0x00, 0x00],       // turn: mov eax, 2
        &[0xbf, 0x00, 0x00, 0x30, 0x00],       // mov edi, 0x300000
        &[0xff, 0xd7, 0x85, 0xc0, 0x75, 0x15], // call edi; test eax, eax; jnz: the failure
        &[0xb8, 0x02, 0x00, 0x00, 0x00],       // mov eax, 2
        &[0x0f, 0x01, 0xc1, 0x85, 0xc0],       // vmcall; test eax, eax
        &[0x75, 0x09, 0x4e, 0x75, 0xe1],       // jnz: the failure; dec esi; jnz: the turn
        &[0x31, 0xc0, 0xe6, 0xf4, 0xeb, 0xfe], // xor eax, eax; out 0xf4, al; jmp $
        &[0xb0, 0x01, 0xe6, 0xf4, 0xeb, 0xfe], // the failure: mov al, 1; out 0xf4, al; jmp $
    ]
    .concat()
}

fn profile(name: &str) -> Profile {
    Profile::named(name).unwrap()
}

/// Returns the processor of a guest of `first` that has moved to `processor`.
fn moved_to(processor: &str, first: &str) -> Profile {
    profile(processor).for_guest_of(&profile(first))
}

fn machine_on(profile: Profile, settings: Option<&[(&str, &str)]>, tier: Tier) -> Machine {
    let platform = settings.map_or(Platform::Bare, |settings| {
        let mut switches = Switches::default();
        for (name, value) in settings {
            let switch = Switches::ALL.iter().find(|switch| switch.name == *name).unwrap();
            switches.set(switch, value).unwrap();
        }
        Platform::Hvm(switches.resolve(profile.moved_to.as_deref().unwrap_or(&profile)).unwrap())
    });
    let parts = Parts { overlay: true, ..Parts::default() };
    Machine::new(Config { profile, parts, ..testing::config(&code(), platform, tier) }).unwrap()
}

fn machine(profile: Profile, tier: Tier) -> Machine {
    machine_on(profile, Some(SWITCHES), tier)
}

/// Runs a machine for a number of slices, and returns a snapshot.
fn save_after(machine: &mut Machine, slices: u64) -> Vec<u8> {
    testing::run_slices(machine, slices);
    machine.snapshot(&[]).unwrap()
}

/// Runs a machine to its end, and returns its ledger.
fn finish(machine: &mut Machine) -> Vec<u8> {
    assert_eq!(machine.run(&mut Nobody), Outcome::DebugExit(1), "every call succeeds");
    assert_eq!(machine.check(), Ok(()));
    machine.ledger(&Symbols::default()).to_bytes().unwrap()
}

/// Returns the number of events of a kind.
fn count(machine: &Machine, kind: Event) -> u64 {
    machine.recorder().events().filter(|event| event.2 == kind).map(|event| event.3.count).sum()
}

fn hypercalls(machine: &Machine) -> u64 {
    count(machine, Event::operation(Operation::Hypercall))
}

fn exits(machine: &Machine) -> u64 {
    count(machine, Event::new(ledger::Family::VmExit, reason::VMCALL))
}

fn code_in_page(machine: &Machine) -> [u8; 4] {
    let mut bytes = [0; 4];
    assert!(machine.vcpus.all[0].cpu.wiring.ram.read_bytes(PAGE, &mut bytes));
    bytes
}

fn moves(ledger: &[u8]) -> String {
    ledger::Ledger::read(ledger).unwrap().header.metadata["moved"].clone()
}

#[test]
fn a_guest_goes_on_at_the_other_makers_processor() {
    let mut first = machine(profile("core2"), Tier::default());
    let snapshot = save_after(&mut first, 3);
    let at = first.now() / TICKS_PER_CYCLE;
    assert_eq!(code_in_page(&first), hypercall_code(false));
    let here = finish(&mut first);
    assert_eq!((hypercalls(&first), exits(&first)), (2 * CALLS, 2 * CALLS));
    let mut ledgers = Vec::new();
    for tier in [Tier::Interpreter, Tier::Translator, Tier::Translator] {
        let mut moved = machine(moved_to("zen3", "core2"), tier);
        moved.restore_or_move(&snapshot, &[]).unwrap();
        assert_eq!(code_in_page(&moved), hypercall_code(true));
        let before = exits(&moved);
        assert!(before > 0 && before < CALLS);
        let ledger = finish(&mut moved);
        // The page has VMMCALL, which exits. VMCALL raises #UD, and the hypervisor makes the call.
        assert_eq!(hypercalls(&moved), 2 * CALLS);
        assert!(exits(&moved).abs_diff(before + (2 * CALLS - before) / 2) <= 1, "{before} {}", exits(&moved));
        assert_eq!(moves(&ledger), format!("core2 to zen3 after {at} cycles"));
        ledgers.push(ledger);
    }
    assert!(ledgers.iter().all(|ledger| *ledger == ledgers[0]));
    assert!(here != ledgers[0]);
}

#[test]
fn a_guest_that_has_moved_is_saved_and_moves_on() {
    let snapshot = save_after(&mut machine(profile("core2"), Tier::default()), 2);
    let mut moved = machine(moved_to("zen3", "core2"), Tier::default());
    moved.restore_or_move(&snapshot, &[]).unwrap();
    let waiting = moved.snapshot(&[]).unwrap();
    let later = save_after(&mut moved, 1);
    let whole = finish(&mut moved);
    for (saved, tier) in [(&waiting, Tier::Interpreter), (&waiting, Tier::Translator), (&later, Tier::Interpreter)] {
        let mut restored = machine(moved_to("zen3", "core2"), tier);
        restored.restore(saved, &[]).unwrap();
        assert!(finish(&mut restored) == whole);
    }
    // A guest that is where it shall go does not move.
    let mut same = machine(moved_to("zen3", "core2"), Tier::default());
    same.restore_or_move(&later, &[]).unwrap();
    assert!(finish(&mut same) == whole);
    let mut back = machine(moved_to("core2", "core2"), Tier::default());
    back.restore_or_move(&later, &[]).unwrap();
    assert_eq!(code_in_page(&back), hypercall_code(false));
    let ledger = finish(&mut back);
    assert_eq!(hypercalls(&back), 2 * CALLS);
    assert!(moves(&ledger).contains("core2 to zen3 after ") && moves(&ledger).contains(", zen3 to core2 after "));
}

#[test]
fn the_hypervisors_switches_may_change_too() {
    let snapshot = save_after(&mut machine(profile("core2"), Tier::default()), 2);
    let tdp = &[("mmu", "tdp"), ("paravirt", "on"), ("huge-pages", "off")];
    let mut moved = machine_on(moved_to("zen3", "core2"), Some(tdp), Tier::default());
    moved.restore_or_move(&snapshot, &[]).unwrap();
    finish(&mut moved);
    let without = &[("mmu", "tdp"), ("paravirt", "off")];
    let refused = machine_on(moved_to("zen3", "core2"), Some(without), Tier::default()).restore_or_move(&snapshot, &[]);
    let refused = refused.unwrap_err().to_string();
    assert_eq!(refused, "it is of another machine: its paravirt is \"on\", and here it is \"off\"");
}

#[test]
fn a_guest_stays_where_it_could_not_go_on() {
    let moving = |from: &str, to: Profile, settings: Option<&[(&str, &str)]>| {
        let snapshot = save_after(&mut machine_on(profile(from), settings, Tier::default()), 1);
        machine_on(to, settings, Tier::default()).restore_or_move(&snapshot, &[]).unwrap_err().to_string()
    };
    let lacks = moving("skx", moved_to("zen3", "skx"), Some(PARAVIRT));
    assert_eq!(lacks, "its guest may use avx512f, which zen3 does not have: it can't be moved there");
    let other = moving("skx", moved_to("zen3", "core2"), Some(PARAVIRT));
    assert!(other.starts_with("its guest was started on skx: --cpu must name that processor"), "{other}");
    let on: &[(&str, &str)] = &[("nested", "on"), ("paravirt", "on")];
    let nested = moving("skx", moved_to("icx", "skx"), Some(on));
    assert!(nested.starts_with("its guest may be a hypervisor itself"), "{nested}");
    let snapshot = save_after(&mut machine_on(profile("skx"), Some(PARAVIRT), Tier::default()), 1);
    let to_nested = machine_on(moved_to("icx", "skx"), Some(on), Tier::default()).restore_or_move(&snapshot, &[]);
    let to_nested = to_nested.unwrap_err().to_string();
    assert!(to_nested.starts_with("--nested on can't be used with --migrate"), "{to_nested}");
    let snapshot = save_after(&mut machine(profile("core2"), Tier::default()), 1);
    let restored = machine(profile("zen3"), Tier::default()).restore(&snapshot, &[]).unwrap_err().to_string();
    let expected = "it is of a machine with the processor core2, and here it is zen3: --migrate moves a guest of --platform hvm to another processor";
    assert_eq!(restored, expected);
}

#[test]
fn a_move_keeps_the_model_of_time() {
    let model = |name: &str| vec![("model".to_owned(), name.to_owned())];
    let on = |profile| machine_on(profile, Some(PARAVIRT), Tier::default());
    let snapshot = on(profile("core2")).snapshot(&model("flat")).unwrap();
    let expected = "it is of another machine: its model is \"flat\", and here it is \"core\"";
    let moved = on(moved_to("zen3", "core2")).restore_or_move(&snapshot, &model("core"));
    assert_eq!(moved.unwrap_err().to_string(), expected);
    let restored = on(profile("zen3")).restore(&snapshot, &model("core"));
    assert_eq!(restored.unwrap_err().to_string(), expected);
    on(moved_to("zen3", "core2")).restore_or_move(&snapshot, &model("flat")).unwrap();
}

#[test]
fn a_guest_without_a_hypervisor_stays() {
    let snapshot = machine_on(profile("core2"), None, Tier::default()).snapshot(&[]).unwrap();
    let mut other = machine_on(moved_to("zen3", "core2"), None, Tier::default());
    let refused = other.restore_or_move(&snapshot, &[]).unwrap_err();
    assert!(matches!(refused, SnapshotError::NoHypervisor), "{refused}");
}

#[test]
fn a_changed_snapshot_is_refused_or_moves_to_a_machine_that_runs() {
    let snapshot = save_after(&mut machine(profile("core2"), Tier::default()), 2);
    let contents: Contents = decode(file::open(Kind::Snapshot, &snapshot).unwrap()).unwrap();
    let state = file::decompress(&contents.state, file::LARGEST_STATE).unwrap();
    let mut ran = 0;
    for at in (0..state.len()).step_by(state.len() / 400) {
        let mut forged = state.clone();
        forged[at] ^= 0x11;
        let memory: Vec<u8> = encode(&contents.memory).unwrap();
        let changed = Contents {
            command: contents.command.clone(),
            machine: contents.machine.clone(),
            state: lz4_flex::block::compress_prepend_size(&forged).into(),
            charges: contents.charges.clone(),
            memory: decode(&memory).unwrap(),
        };
        let sealed = file::seal(Kind::Snapshot, &changed).unwrap();
        let mut moved = machine(moved_to("zen3", "core2"), Tier::default());
        if moved.restore_or_move(&sealed, &[]).is_ok() {
            let mut left = 3;
            let mut over = |_: &Machine| {
                left -= 1;
                left == 0
            };
            let _ = moved.run_until(&mut Nobody, &mut over);
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
}
