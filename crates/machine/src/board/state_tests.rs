//! Tests of boards that are saved and restored: the copy behaves as the original does, and arbitrary bytes do no harm.

use super::*;
use crate::memory::layout;
use crate::state::{DeviceState, RestoreError, StateError};
use proptest::prelude::*;

const CPUS: usize = 2;
/// Base addresses of accesses to device memory.
const WINDOWS: [u64; 7] = [
    layout::LOCAL_APIC,
    layout::IO_APIC,
    layout::PCI_WINDOW.start,
    layout::PCI_WINDOW.start + 0x4000,
    layout::PCI_ECAM.start + 0x8000,
    layout::PCI_ECAM.start + 0x1_0000,
    0xff00_0000,
];

/// An action of a guest or of the outside world.
#[derive(Clone, Debug)]
enum Step {
    In(usize, usize, u16, u8),
    Out(usize, usize, u16, u8, u32),
    Read(usize, usize, u16, u8),
    Write(usize, usize, u16, u8, u64),
    Rdmsr(usize, u32),
    Wrmsr(usize, u32, u64),
    Acknowledge(usize),
    Pass(u64),
    ToEvent,
    Input(Vec<u8>),
}

fn board(parts: Parts) -> (Board, GuestRam) {
    let ram = GuestRam::new(1 << 20).unwrap();
    let profile = Profile::named("skx").unwrap();
    (Board::new(&ram, CPUS, &profile, parts).unwrap(), ram)
}

fn parts() -> Parts {
    Parts { paravirt: true, console: console::Console::Virtio, ..Parts::default() }
}

/// Returns steps of which most access one range of ports or one window.
fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    (any::<usize>(), any::<usize>()).prop_flat_map(move |(focus, window)| {
        let range = prop_oneof![4 => Just(focus), 1 => any::<usize>()];
        let window = prop_oneof![2 => Just(window), 1 => any::<usize>()];
        let (size, cpu) = (prop::sample::select(vec![1u8, 1, 1, 2, 4]), 0..CPUS);
        let width = prop::sample::select(vec![4u8, 4, 4, 1, 2, 8]);
        let offset = prop_oneof![(0u16..0x400).prop_map(|at| at & !3), 0u16..0x1000];
        let msr = prop_oneof![Just(0x1b), Just(0x6e0), 0x800u32..0x840];
        // Small values arm timers that expire soon.
        let value = prop_oneof![any::<u64>(), 0..0x1_0000u64, (0..64u32).prop_map(|bit| 1 << bit)];
        let port_value = prop_oneof![any::<u32>(), 0..0x100u32];
        let step = prop_oneof![
            6 => (cpu.clone(), range.clone(), 0..0x20u16, size.clone()).prop_map(|(c, r, o, s)| Step::In(c, r, o, s)),
            12 => (cpu.clone(), range, 0..0x20u16, size, port_value).prop_map(|(c, r, o, s, v)| Step::Out(c, r, o, s, v)),
            3 => (cpu.clone(), window.clone(), offset.clone(), width.clone()).prop_map(|(c, w, o, s)| Step::Read(c, w, o, s)),
            6 => (cpu.clone(), window, offset, width, value.clone()).prop_map(|(c, w, o, s, v)| Step::Write(c, w, o, s, v)),
            1 => (cpu.clone(), msr.clone()).prop_map(|(c, m)| Step::Rdmsr(c, m)),
            2 => (cpu.clone(), msr, value).prop_map(|(c, m, v)| Step::Wrmsr(c, m, v)),
            2 => cpu.prop_map(Step::Acknowledge),
            3 => (0..48u32, any::<u8>()).prop_map(|(digits, step)| Step::Pass(u64::from(step) << digits >> 8)),
            3 => Just(Step::ToEvent),
            1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Input),
        ];
        prop::collection::vec(step, count)
    })
}

/// Executes a step, and returns all of its visible effects.
fn step(board: &mut Board, now: &mut Ticks, step: &Step) -> String {
    let who = |cpu: usize| Ident { cpu, now: *now };
    let ranges: Vec<_> = board.port_ranges().collect();
    let port = |range: usize, offset: u16| {
        let range = &ranges[range % ranges.len()];
        range.start + offset % (range.end - range.start)
    };
    let address = |window: usize, offset: u16| WINDOWS[window % WINDOWS.len()] + u64::from(offset);
    let seen = match *step {
        Step::In(cpu, range, offset, size) => board.port_in(who(cpu), port(range, offset), size).into(),
        Step::Out(cpu, range, offset, size, value) => {
            board.port_out(who(cpu), port(range, offset), size, value);
            0
        }
        Step::Read(cpu, window, offset, size) => board.read(who(cpu), address(window, offset), size),
        Step::Write(cpu, window, offset, size, value) => {
            board.write(who(cpu), address(window, offset), size, value);
            0
        }
        Step::Rdmsr(cpu, index) => board.msr_read(who(cpu), index).unwrap_or(u64::MAX),
        Step::Wrmsr(cpu, index, value) => board.msr_write(who(cpu), index, value).into(),
        Step::Acknowledge(cpu) => board.acknowledge(who(cpu)).unwrap_or_default().into(),
        Step::Pass(time) => {
            *now = now.saturating_add(time).min(Ticks::MAX / 4);
            pass(board, *now);
            0
        }
        Step::ToEvent => {
            let event = (0..CPUS).filter_map(|i| board.timer_event(i)).chain(board.next_event()).min();
            *now = event.unwrap_or(*now).clamp(*now, Ticks::MAX / 4);
            pass(board, *now);
            0
        }
        Step::Input(ref bytes) => {
            board.console_input(bytes);
            0
        }
    };
    let signals: Vec<_> = (0..CPUS)
        .map(|index| {
            let interrupt = board.interrupt(index);
            let lapic = board.lapic(index);
            let init = lapic.take_init();
            if init {
                lapic.reset();
            }
            (interrupt, init, lapic.take_nmis(), lapic.take_startup(), lapic.next_event())
        })
        .collect();
    let machine = (board.next_event(), board.ending(), board.status(), board.suspended(), board.resume(), board.now());
    let console = (board.console_output(), board.console_waiting(), board.console_room());
    format!("{seen:#x} {signals:?} {machine:?} {console:?} {:?}", board.pop_mark())
}

fn pass(board: &mut Board, now: Ticks) {
    board.advance(now);
    (0..CPUS).for_each(|index| board.advance_timer(index, now));
    assert!(board.next_event().is_none_or(|event| event > now), "an event is stuck at {now}");
    assert!((0..CPUS).all(|i| board.timer_event(i).is_none_or(|event| event > now)), "a timer is stuck at {now}");
}

/// Creates a board, executes some steps on it, and returns it with its time.
fn after(steps: &[Step]) -> (Board, Ticks) {
    let (mut board, _) = board(parts());
    let mut now = 0;
    for taken in steps {
        step(&mut board, &mut now, taken);
    }
    (board, now)
}

proptest! {
    #[test]
    fn a_restored_board_goes_on_as_the_original(before in steps(80), after_it in steps(80)) {
        let (mut original, now) = after(&before);
        let saved = original.save().unwrap();
        let (mut copy, _) = board(parts());
        copy.restore(&saved).unwrap();
        prop_assert_eq!(copy.save().unwrap(), saved);
        let mut times = [now; 2];
        for (number, taken) in after_it.iter().enumerate() {
            let seen = step(&mut original, &mut times[0], taken);
            prop_assert_eq!(step(&mut copy, &mut times[1], taken), seen, "step {}: {:?}", number, taken);
        }
        prop_assert_eq!(copy.save().unwrap(), original.save().unwrap());
    }

    #[test]
    fn no_bytes_do_harm(
        before in steps(40),
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        after_it in steps(60),
    ) {
        let (original, mut now) = after(&before);
        let mut saved = original.save().unwrap();
        let which = which.index(saved.len());
        let bytes = &mut saved[which].bytes;
        for (at, value) in changes.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(length) = length {
            let length = length.index(bytes.len() + 1);
            bytes.truncate(length);
        }
        let (mut copy, _) = board(parts());
        if copy.restore(&saved).is_ok() {
            now = now.max(copy.now()).min(Ticks::MAX / 4);
            for taken in &after_it {
                step(&mut copy, &mut now, taken);
            }
            prop_assert!(copy.save().is_ok());
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(which in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (mut copy, _) = board(parts());
        let mut saved = copy.save().unwrap();
        let which = which.index(saved.len());
        saved[which].bytes = bytes;
        let mut now = 0;
        if copy.restore(&saved).is_ok() {
            pass(&mut copy, now);
            step(&mut copy, &mut now, &Step::ToEvent);
        }
    }
}

#[test]
fn every_state_is_there_once_under_its_name() {
    let (mut board, _) = board(parts());
    let saved = board.save().unwrap();
    let names: Vec<&str> = saved.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(
        names.join(", "),
        "board, pic, ioapic, lapics, pit, i8042, serial, rtc, pm, testdev, pci, reset, exit, status, \
        pvpanic, fw_cfg, marker, debug, workload, network, pci 0: host bridge, pci 1: virtio console, pci 2: virtio entropy, pci 3: option ROM"
    );
    let mut restored = |change: &dyn Fn(&mut Vec<DeviceState>)| {
        let mut states = saved.clone();
        change(&mut states);
        board.restore(&states)
    };
    let rtc = || "rtc".to_owned();
    assert_eq!(restored(&|states| states.reverse()), Ok(()), "the order means nothing");
    assert_eq!(restored(&|states| drop(states.remove(7))), Err(RestoreError::Missing(rtc())));
    assert_eq!(restored(&|states| states.push(states[7].clone())), Err(RestoreError::Twice(rtc())));
    assert_eq!(restored(&|states| states[7].name = "x".to_owned()), Err(RestoreError::Missing(rtc())));
    let unknown =
        |states: &mut Vec<DeviceState>| states.push(DeviceState { name: "x".to_owned(), ..states[0].clone() });
    assert_eq!(restored(&unknown), Err(RestoreError::Unknown("x".to_owned())));
    let version = RestoreError::Version { name: rtc(), found: 2, known: 1 };
    assert_eq!(restored(&|states| states[7].version = 2), Err(version));
    let trailing = RestoreError::Device { name: rtc(), cause: StateError::Trailing(1) };
    assert_eq!(restored(&|states| states[7].bytes.push(0)), Err(trailing));
}

#[test]
fn a_state_of_another_machine_is_refused() {
    let saved = board(parts()).0.save().unwrap();
    let ram = GuestRam::new(1 << 20).unwrap();
    let [skx, zen3] = ["skx", "zen3"].map(|name| Profile::named(name).unwrap());
    let serial = Parts { console: console::Console::Serial, ..parts() };
    for (mut other, expected) in [
        (
            Board::new(&ram, CPUS, &zen3, parts()),
            "\"board\": the state is of a machine with another console or TSC frequency",
        ),
        (Board::new(&ram, 3, &skx, parts()), "\"lapics\": the state is of a machine with another number of processors"),
        (
            Board::new(&ram, CPUS, &skx, serial),
            "\"board\": the state is of a machine with another console or TSC frequency",
        ),
        (
            Board::new(&ram, CPUS, &skx, Parts { paravirt: false, ..parts() }),
            "\"pci\": the state is of a machine with another set of PCI devices",
        ),
    ]
    .map(|(board, expected)| (board.unwrap(), expected))
    {
        assert_eq!(other.restore(&saved).map_err(|error| error.to_string()), Err(expected.to_owned()));
    }
}
