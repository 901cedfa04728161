//! Tests of sleeping processors and of the events that wake them: programs of a few bytes in real mode.

use super::*;
use crate::board::Parts;
use crate::memory::GuestRam;
use cpu::Model;
use cpu::bus::lock;
use cpu::model::{CpuidEntry, CpuidRegs};
use ledger::profile::{Clock, Profile};
use ledger::{Costs, Geometry, Recorder};
use std::sync::{Arc, Mutex};

/// Cycles that the writer spends before it writes.
const DELAY: u64 = 100_000;
/// Arms the monitor at 0x3000 and waits, then sets 0x3100 and halts for good; interrupts stay masked.
const WAITER: &[u8] = &[
    0x66, 0xb8, 0x00, 0x30, 0x00, 0x00, // mov eax, 0x3000
    0x66, 0x31, 0xc9, // xor ecx, ecx
    0x66, 0x31, 0xd2, // xor edx, edx
    0x0f, 0x01, 0xc8, // monitor
    0x0f, 0x01, 0xc9, // mwait
    0xc6, 0x06, 0x00, 0x31, 0x01, // mov byte [0x3100], 1
    0xfa, 0xf4, // cli; hlt
];
/// Counts down, then writes 0x3020 and halts for good.
const WRITER: &[u8] = &[
    0x66, 0xb9, 0xa0, 0x86, 0x01, 0x00, // mov ecx, 100000
    0x66, 0x49, // dec ecx
    0x75, 0xfc, // jnz
    0xc6, 0x06, 0x20, 0x30, 0x01, // mov byte [0x3020], 1
    0xfa, 0xf4, // cli; hlt
];

fn machine(programs: &[&[u8]]) -> (Vcpus, GuestRam, Arc<Mutex<Board>>) {
    machine_of(Costs::free(), Arc::new(cpu::time::Flat), Geometry::generic(), programs)
}

/// A machine whose processors have the pipeline and caches of a profile.
fn machine_of_a_core(programs: &[&[u8]]) -> Vcpus {
    let profile = Profile::find("zen3").unwrap().with_clock(Clock::Core).unwrap();
    machine_of(profile.costs(), cpu::time::timing(&profile), profile.geometry(), programs).0
}

fn machine_of(
    costs: Costs,
    timing: Arc<dyn cpu::time::Timing>,
    geometry: Geometry,
    programs: &[&[u8]],
) -> (Vcpus, GuestRam, Arc<Mutex<Board>>) {
    let ram = GuestRam::new(16 << 20).unwrap();
    let profile = Profile::find("skx").unwrap();
    let board = Arc::new(Mutex::new(Board::new(&ram, programs.len(), &profile, Parts::default()).unwrap()));
    let features = CpuidRegs { eax: 0, ebx: 0, ecx: 1 << 3, edx: 1 << 4 }; // MONITOR, TSC
    let model = Arc::new(Model {
        costs,
        timing,
        geometry,
        cpuid: vec![CpuidEntry { leaf: 1, subleaf: None, regs: features }],
        tsc_hz: 1_000_000_000,
        arch_capabilities: 0,
        microcode: 0,
        vmx: None,
        amd: false,
        physical_bits: 46,
        recorded: true,
        branches: false,
    });
    let view = crate::view::processor_ram(&ram, None);
    let recorder = Recorder::default();
    let cpus = programs.iter().enumerate().map(|(index, program)| {
        let start = 0x1000 * (index as u64 + 1);
        assert!(ram.write(start, program));
        let mut cpu = Cpu::new(index, model.clone(), view.clone(), board.clone(), recorder.another());
        cpu.arch.seg[usize::from(seg::CS)] = Segment::real(0, true);
        cpu.arch.rip = start;
        cpu.mode_changed();
        cpu
    });
    let mut vcpus = Vcpus::new(cpus.collect(), board.clone(), None, ram.clone());
    vcpus.all.iter_mut().for_each(|vcpu| vcpu.activity = Activity::Running);
    drop(ram.take_written());
    (vcpus, ram, board)
}

fn byte(ram: &GuestRam, address: u64) -> u8 {
    let mut byte = [0];
    assert!(ram.read(address, &mut byte));
    byte[0]
}

/// Takes a lock at 0x5000, reads the time-stamp counter, increments 0x5008 if it is less than the last one at 0x5004, and
/// releases the lock, a thousand times.
const READER: &[u8] = &[
    0x66, 0xb9, 0xe8, 0x03, 0x00, 0x00, // mov ecx, 1000
    0xb8, 0x01, 0x00, // mov ax, 1
    0x87, 0x06, 0x00, 0x50, // xchg [0x5000], ax
    0x85, 0xc0, 0x75, 0xf5, // test ax, ax; jnz mov
    0x0f, 0x31, // rdtsc
    0x66, 0x3b, 0x06, 0x04, 0x50, // cmp eax, [0x5004]
    0x73, 0x04, // jae
    0xff, 0x06, 0x08, 0x50, // inc word [0x5008]
    0x66, 0xa3, 0x04, 0x50, // mov [0x5004], eax
    0xc7, 0x06, 0x00, 0x50, 0x00, 0x00, // mov word [0x5000], 0
    0x66, 0x49, // dec ecx
    0x75, 0xda, // jnz mov
    0xfa, 0xf4, // cli; hlt
];

#[test]
fn no_processor_reads_an_earlier_time_than_another_one_has_read() {
    // Another distance between the processors, whose turns begin at other instructions.
    for nops in 0..8 {
        let late = [&[0x90; 8][..nops], READER].concat();
        let (mut vcpus, ram, _) = machine(&[READER, &late, &late]);
        assert_eq!(vcpus.run(), Pause::Stuck);
        assert_eq!((byte(&ram, 0x5000), byte(&ram, 0x5008)), (0, 0), "{nops}");
    }
}

#[test]
fn a_write_by_another_processor_ends_mwait_at_the_time_of_the_write() {
    for (waiter, programs) in [(0, [WAITER, WRITER]), (1, [WRITER, WAITER])] {
        let (mut vcpus, ram, _) = machine(&programs);
        assert_eq!(vcpus.run(), Pause::Stuck);
        assert_eq!(byte(&ram, 0x3100), 1);
        let clocks = [vcpus.all[waiter].cpu.micro.clock, vcpus.all[1 - waiter].cpu.micro.clock];
        assert!(
            clocks.iter().all(|clock| (DELAY..4 * DELAY).contains(&(clock / ledger::TICKS_PER_CYCLE))),
            "{clocks:?}"
        );
        assert!(clocks[0].abs_diff(clocks[1]) / ledger::TICKS_PER_CYCLE < 100, "{clocks:?}");
    }
}

#[test]
fn a_device_that_writes_ends_mwait() {
    let (mut vcpus, ram, _) = machine(&[WAITER, &[0xf4]]);
    assert_eq!(vcpus.run(), Pause::Stuck);
    assert_eq!(vcpus.all[0].activity, Activity::Mwait { masked: false });
    assert!(ram.write(0x303f, &[1]));
    vcpus.device_writes(ram.take_written());
    vcpus.monitors(DELAY);
    assert_eq!(vcpus.all[0].activity, Activity::Running);
    assert_eq!(vcpus.run(), Pause::Stuck);
    assert_eq!(byte(&ram, 0x3100), 1);
}

#[test]
fn without_the_write_it_sleeps() {
    let (mut vcpus, ram, _) = machine(&[WAITER]);
    assert_eq!(vcpus.run(), Pause::Stuck);
    assert_eq!(byte(&ram, 0x3100), 0);
}

#[test]
fn a_masked_interrupt_ends_mwait_if_asked_to() {
    for masked in [false, true] {
        let mut program = WAITER.to_vec();
        // With ECX = 1 for MWAIT only.
        program.splice(15..15, if masked { [0x66, 0x41] } else { [0x90, 0x90] });
        let (mut vcpus, ram, board) = machine(&[&program]);
        let paused = vcpus.run();
        assert_eq!(matches!(paused, Pause::Idle(_)), masked, "{paused:?}");
        lock(&board).lapic(0).set_lint(0, true);
        assert_eq!(vcpus.run(), Pause::Stuck);
        assert_eq!(byte(&ram, 0x3100), u8::from(masked));
    }
}

/// Programs the alarm for every second, allows it to wake the machine, and suspends.
const SUSPENDER: &[u8] = &[
    0xfa, // cli
    0xb0, 0x01, 0xe6, 0x70, 0xb0, 0xc0, 0xe6, 0x71, // seconds of the alarm: any
    0xb0, 0x03, 0xe6, 0x70, 0xb0, 0xc0, 0xe6, 0x71, // minutes
    0xb0, 0x05, 0xe6, 0x70, 0xb0, 0xc0, 0xe6, 0x71, // hours
    0xb0, 0x0b, 0xe6, 0x70, 0xb0, 0x22, 0xe6, 0x71, // alarm interrupt, 24 hours
    0xba, 0x02, 0x06, 0xb8, 0x00, 0x04, 0xef, // enable RTC_EN
    0xba, 0x04, 0x06, 0xb8, 0x00, 0x24, 0xef, // sleep type 1, SLP_EN
    0xf4, // never comes here
];
/// Code at the waking vector: sets 0x3100 and halts for good.
const WAKER: &[u8] = &[0xc6, 0x06, 0x00, 0x31, 0x01, 0xfa, 0xf4];

#[test]
fn the_alarm_wakes_a_suspended_machine_at_its_waking_vector() {
    let (mut vcpus, ram, board) = machine(&[SUSPENDER]);
    assert!(ram.write(0x2345, WAKER) && ram.write(acpi::WAKING_VECTOR, &0x2345u32.to_le_bytes()));
    let mut pauses = 0;
    let last = loop {
        match vcpus.run() {
            Pause::Slice | Pause::Idle(_) if pauses < 10_000 => pauses += 1,
            pause => break pause,
        }
    };
    assert_eq!(last, Pause::Stuck);
    assert_eq!((byte(&ram, 0x3100), lock(&board).suspended()), (1, false));
    assert_eq!((vcpus.all[0].cpu.arch.seg[1].selector, vcpus.all[0].cpu.arch.rip), (0x234, 5 + WAKER.len() as u64));
    let skx = Profile::find("skx").unwrap().tsc_hz.value;
    assert!(vcpus.all[0].cpu.micro.clock / ledger::TICKS_PER_CYCLE > skx / 2, "the rest of a second");
}

/// Takes a lock at 0x3000, holds it for 50 rounds of a loop, and runs 200 rounds without it; 5000 times.
const CONTENDER: &[u8] = &[
    0xb9, 0x88, 0x13, // mov cx, 5000
    0xb0, 0x01, 0x86, 0x06, 0x00, 0x30, // retry: mov al, 1; xchg [0x3000], al
    0x84, 0xc0, 0x74, 0x04, // test al, al; jz got
    0xf3, 0x90, 0xeb, 0xf2, // pause; jmp retry
    0xbb, 0x32, 0x00, 0x4b, 0x75, 0xfd, // got: mov bx, 50; dec bx; jnz
    0xc6, 0x06, 0x00, 0x30, 0x00, // mov byte [0x3000], 0
    0xbb, 0xc8, 0x00, 0x4b, 0x75, 0xfd, // mov bx, 200; dec bx; jnz
    0x49, 0x75, 0xde, // dec cx; jnz retry
    0xfa, 0xf4, // cli; hlt
];

#[test]
fn a_lock_is_waited_for_as_long_as_it_is_held() {
    let clocks = |programs: &[&[u8]]| {
        let (mut vcpus, _, _) = machine(programs);
        while vcpus.run() != Pause::Stuck {}
        vcpus.all.iter().map(|vcpu| vcpu.cpu.micro.clock).max().unwrap_or_default()
    };
    let (alone, together) = (clocks(&[CONTENDER]), clocks(&[CONTENDER; 2]));
    // Two processors that each hold the lock for a fifth of the time collide occasionally.
    assert!(together > alone && together < alone * 5 / 4, "{together}, alone {alone}");
}

/// Waits without PAUSE until the byte at 0x3000 is that in DL, then sets it to that in DH; 1000 times.
const fn partner(waits_for: u8, sets: u8) -> [u8; 21] {
    [
        0xb9, 0xe8, 0x03, // mov cx, 1000
        0xb2, waits_for, 0xb6, sets, // mov dl, waits_for; mov dh, sets
        0x38, 0x16, 0x00, 0x30, // wait: cmp [0x3000], dl
        0x75, 0xfa, // jne wait
        0x88, 0x36, 0x00, 0x30, // mov [0x3000], dh
        0x49, 0x75, 0xf3, // dec cx; jne wait
        0xf4, // hlt
    ]
}

/// Adds to the word at 0x3000 or beside it, locked, 30000 times.
const fn adder(address: u8) -> [u8; 13] {
    [
        0xb9, 0x30, 0x75, // mov cx, 30000
        0xf0, 0xff, 0x06, address, 0x30, // lock inc word [0x3000 + address]
        0x49, 0x75, 0xf8, // dec cx; jne
        0xfa, 0xf4, // cli; hlt
    ]
}

/// Returns the time of programs, in cycles.
fn cycles(programs: &[&[u8]]) -> u64 {
    let mut vcpus = machine_of_a_core(programs);
    while vcpus.run() != Pause::Stuck {}
    vcpus.all.iter().map(|vcpu| vcpu.cpu.micro.clock).max().unwrap_or_default() / ledger::TICKS_PER_CYCLE
}

/// A turn of the usual length lasts 20,000 cycles.
#[test]
fn processors_that_hand_a_line_to_and_fro_have_short_turns() {
    let each = cycles(&[&partner(0, 1), &partner(1, 0)]) / 2000;
    assert!((60..400).contains(&each), "{each}");
}

#[test]
fn locked_instructions_contend_for_a_line_and_for_nothing_else() {
    let [apart, together, alone] =
        [cycles(&[&adder(0), &adder(0x80)]), cycles(&[&adder(0), &adder(2)]), cycles(&[&adder(0)])];
    assert!(apart < alone * 11 / 10, "{apart} {alone}");
    assert!(together > 2 * apart, "{together} {apart}");
}
