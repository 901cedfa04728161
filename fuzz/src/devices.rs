//! The board: two processors access ports, device memory and MSRs in any order, and time advances in steps of any size.
//! An event in the past must be gone, or the machine would wait for it forever.

use ::ledger::Ticks;
use ::ledger::profile::Profile;
use arbitrary::{Result, Unstructured};
use cpu::{Bus, Ident};
use machine::board::{Board, Parts};
use machine::memory::{GuestRam, layout};
use std::cell::OnceCell;

const CPUS: usize = 2;
const STEPS: usize = 400;
/// Addresses at which device memory is accessed.
const WINDOWS: [u64; 8] = [
    layout::LOCAL_APIC,
    layout::IO_APIC,
    layout::PCI_WINDOW.start,
    layout::PCI_WINDOW.start + 0x3000,
    layout::PCI_WINDOW.start + 0x4000,
    layout::PCI_ECAM.start,
    layout::PCI_ECAM.start + 0x8000,
    layout::PCI_ECAM.start + 0x1_0000,
];

thread_local! {
    static PROFILE: OnceCell<Profile> = const { OnceCell::new() };
}

/// Creates a board and its memory.
pub(crate) fn board() -> (Board, GuestRam) {
    let ram = GuestRam::new(1 << 20).expect("the host has memory");
    let board = PROFILE.with(|cell| {
        let profile = cell.get_or_init(|| Profile::named("max").expect("it is built in"));
        Board::new(&ram, CPUS, profile, Parts::default()).expect("it has room for its devices")
    });
    (board, ram)
}

/// Takes the pending outputs of a board, as the machine's loop does after each access.
pub(crate) fn calm(board: &mut Board) {
    board.take_written();
    board.console_output();
    for index in 0..CPUS {
        let lapic = board.lapic(index);
        if lapic.take_init() {
            lapic.reset();
        }
        lapic.take_nmis();
        lapic.take_startup();
    }
}

/// Applies the operations of the bytes to a board.
pub fn run(data: &[u8]) {
    let (mut board, ram) = board();
    let mut input = Unstructured::new(data);
    let mut now = 0;
    for _ in 0..STEPS {
        if input.is_empty() || step(&mut board, &ram, &mut input, &mut now).is_err() {
            break;
        }
        calm(&mut board);
    }
}

fn size(input: &mut Unstructured) -> Result<u8> {
    Ok(1 << input.int_in_range(0..=2u8)?)
}

fn port(board: &Board, input: &mut Unstructured) -> Result<u16> {
    let choice = usize::from(input.arbitrary::<u8>()?);
    let count = board.port_ranges().count();
    match board.port_ranges().nth(choice % (count + 1)) {
        Some(range) => {
            let offset = u16::from(input.arbitrary::<u8>()?);
            Ok(range.start + offset % (range.end - range.start))
        }
        None => input.arbitrary(),
    }
}

fn address(input: &mut Unstructured) -> Result<u64> {
    let window = WINDOWS[usize::from(input.arbitrary::<u8>()?) % WINDOWS.len()];
    Ok(window + u64::from(input.arbitrary::<u16>()? & 0x1fff))
}

/// Reads a span of time, from a tick to centuries.
fn span(input: &mut Unstructured) -> Result<Ticks> {
    let digits = input.int_in_range(0..=62u32)?;
    Ok(u64::from(input.arbitrary::<u8>()?) << digits >> 8)
}

/// Executes the next operation of the bytes.
pub(crate) fn step(board: &mut Board, ram: &GuestRam, input: &mut Unstructured, now: &mut Ticks) -> Result<()> {
    let choice = input.arbitrary::<u8>()?;
    let cpu = usize::from(choice >> 7);
    let who = Ident { cpu, now: *now };
    match choice & 0x0f {
        0 | 1 => {
            let port = port(board, input)?;
            board.port_in(who, port, size(input)?);
        }
        2..=4 => {
            let port = port(board, input)?;
            board.port_out(who, port, size(input)?, input.arbitrary()?);
        }
        5 => drop(board.read(who, address(input)?, input.int_in_range(1..=8)?)),
        6 | 7 => board.write(who, address(input)?, input.int_in_range(1..=8)?, input.arbitrary()?),
        8 => drop(board.msr_read(who, msr(input)?)),
        9 => drop(board.msr_write(who, msr(input)?, input.arbitrary()?)),
        10 => {
            board.acknowledge(who);
            board.set_cr8(who, input.arbitrary::<u8>()? & 15);
        }
        11 => {
            *now = now.saturating_add(span(input)?).min(Ticks::MAX / 4);
            pass(board, *now);
        }
        12 => {
            let event = (0..CPUS).filter_map(|i| board.timer_event(i)).chain(board.next_event()).min();
            *now = event.unwrap_or(*now).clamp(*now, Ticks::MAX / 4);
            pass(board, *now);
        }
        13 => {
            let at = u64::from(input.arbitrary::<u16>()?) * 4;
            assert!(ram.write(at, &input.arbitrary::<u64>()?.to_le_bytes()));
        }
        14 => board.console_input(&input.arbitrary::<[u8; 3]>()?),
        _ => drop(board.interrupt(cpu)),
    }
    Ok(())
}

fn msr(input: &mut Unstructured) -> Result<u32> {
    Ok(match input.arbitrary::<u8>()? {
        0..=31 => 0x1b,
        32..=63 => 0x6e0,
        low => 0x800 + u32::from(low & 0x3f),
    })
}

fn pass(board: &mut Board, now: Ticks) {
    board.advance(now);
    for index in 0..CPUS {
        board.advance_timer(index, now);
        assert!(board.timer_event(index).is_none_or(|event| event > now), "a timer is stuck at {now}");
    }
    assert!(board.next_event().is_none_or(|event| event > now), "an event is stuck at {now}");
}

/// Returns inputs that program the timers and let time pass.
pub fn seeds() -> Vec<Vec<u8>> {
    // Ranges of ports are numbered by position: the timer's is the fourth, the clock's the ninth.
    let out = |device: u8, offset: u8, value: u8| vec![2, device, offset, 0, value, 0, 0, 0];
    let write = |window: u8, offset: u16, value: u32| {
        let mut bytes = vec![6, window];
        bytes.extend(offset.to_le_bytes());
        bytes.push(3);
        bytes.extend(u64::from(value).to_le_bytes());
        bytes
    };
    let pit = [out(3, 3, 0x34), out(3, 0, 0x10), out(3, 0, 0), vec![12; 8]].concat();
    let rtc = [out(8, 0, 0x0b), out(8, 1, 0x72), out(8, 0, 0x0a), out(8, 1, 0x26), vec![12; 8]].concat();
    let apic = [write(0, 0xf0, 0x1ff), write(0, 0x320, 0x2_0030), write(0, 0x380, 1000), vec![12; 8]].concat();
    let io_apic = [write(1, 0, 0x14), write(1, 0x10, 0x31), pit.clone()].concat();
    let jump = [pit.clone(), vec![11, 60, 255], vec![12; 8]].concat();
    vec![pit, rtc, apic, io_apic, jump]
}
