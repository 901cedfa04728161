//! Tests with random code: a guest that may do everything computes the same as without a hypervisor, and an exit
//! changes nothing.

use super::super::capability::executed;
use super::{Guest, LONG, Mode};
use crate::Exit;
use crate::arch::attention;
use crate::state::Cpu;
use crate::testing::{DATA, Random, STACK};
use std::sync::Arc;
use x86::vmx::{activity, entry, exit, pin, primary, reason, secondary};
use x86::{flags, reg};

/// Number of cycles after which code that does not end is abandoned.
const CYCLES: u64 = 2000;

/// Two-byte opcodes and groups of system instructions, which are generated more often.
const SYSTEM: &[&[u8]] = &[
    &[0x0f, 0x00],
    &[0x0f, 0x01],
    &[0x0f, 0x06],
    &[0x0f, 0x20],
    &[0x0f, 0x21],
    &[0x0f, 0x23],
    &[0x0f, 0x30],
    &[0x0f, 0x31],
    &[0x0f, 0x32],
    &[0x0f, 0x33],
    &[0x0f, 0xa2],
    &[0x0f, 0xc7],
    &[0x66, 0x0f, 0x38, 0x82],
    &[0x0f, 0x01, 0xc1],
    &[0x0f, 0x01, 0xd0],
    &[0x0f, 0x01, 0xd1],
    &[0x0f, 0x01, 0xf9],
    &[0x0f, 0x09],
    &[0x0f, 0x08],
    &[0x6c],
    &[0x6e],
    &[0xf3, 0x6f],
    &[0x8e],
    &[0x9c],
    &[0x9d],
    &[0xcc],
    &[0xcd],
    &[0xcf],
    &[0x48, 0xcf],
    &[0xe4],
    &[0xef],
    &[0xf1],
    &[0xf3, 0x90],
    &[0xf4],
    &[0xfa],
    &[0xfb],
    &[0xff],
    &[0xea],
];

fn code(random: &mut Random) -> Vec<u8> {
    [testkit::bytes::with_known(random, 24, SYSTEM, 3), vec![0xf4; 16]].concat()
}

/// Returns a register value, which often is an address.
fn value(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => DATA + 0x1_0000 + random.below(0x1000),
        2 => STACK - 8 * random.below(16),
        _ => random.below(256),
    }
}

fn guest(seed: u64) -> Guest {
    let mut random = Random::new(seed);
    let (mode, cpl) = match random.below(7) {
        0 | 1 => (Mode::Long, 0),
        2 => (Mode::Long, 3),
        3 => (Mode::Paged, 0),
        4 => (Mode::Paged, 3),
        _ => (Mode::Real, 0),
    };
    let mut guest = Guest::new(mode, cpl);
    for class in &mut std::sync::Arc::make_mut(&mut guest.m.cpu.wiring.model).costs.class {
        *class = ledger::TICKS_PER_CYCLE as u32;
    }
    for number in 0..16 {
        if number != usize::from(reg::RSP) {
            let wide = value(&mut random);
            guest.m.cpu.arch.gpr[number] = if mode == Mode::Long { wide } else { wide & 0xffff_ffff };
        }
    }
    let arbitrary = random.next();
    let traced = if random.one_in(4) { flags::TF } else { 0 };
    guest.m.cpu.set_rflags((arbitrary & (flags::ARITH | flags::IF | flags::DF)) | traced | 2);
    if random.one_in(4) {
        super::events::interrupt(&mut guest.m.cpu, 0x31);
    }
    if random.one_in(8) {
        guest.m.cpu.attend(attention::NMI);
    }
    let bytes = code(&mut random);
    let start = guest.m.cpu.code_linear();
    guest.m.poke(start, &bytes);
    guest
}

/// Runs until an exit other than a device access.
fn run(guest: &mut Guest) -> Exit {
    let deadline = guest.m.cpu.micro.clock + CYCLES * ledger::TICKS_PER_CYCLE;
    loop {
        match guest.m.cpu.run(&mut guest.m.cache, deadline) {
            Exit::Bus => {}
            other => return other,
        }
    }
}

/// Returns all state except memory, as text.
fn registers(cpu: &Cpu) -> String {
    format!(
        "{:x?} rip {:x} flags {:x} seg {:x?} cr {:x} {:x} {:x} {:x} dr {:x?} tables {:x?} {:x?} {:x?} {:x?} msr {:x?} cpl {}",
        &cpu.arch.gpr[..16],
        cpu.arch.rip,
        cpu.rflags() & !flags::RF,
        &cpu.arch.seg[..6],
        cpu.arch.cr0,
        cpu.arch.cr2,
        cpu.arch.cr3,
        cpu.arch.cr4,
        cpu.arch.dr,
        cpu.arch.gdtr,
        cpu.arch.idtr,
        cpu.arch.ldtr,
        cpu.arch.tr,
        cpu.arch.msr,
        cpu.arch.cpl,
    )
}

#[test]
fn a_guest_that_may_do_everything_computes_the_same() {
    let mut compared = 0;
    for seed in 0..150 {
        let mut bare = guest(seed);
        let mut inside = guest(seed).with(|c| {
            c.primary |= primary::MSR_BITMAPS;
            c.msr_bitmap = Some(Arc::new([0; 4096]));
            c.secondary |= secondary::RDTSCP | secondary::INVPCID | secondary::XSAVES;
        });
        inside.enter().expect("valid");
        // The entry has taken time.
        inside.m.cpu.micro.clock = bare.m.cpu.micro.clock;
        let expected = run(&mut bare);
        let found = run(&mut inside);
        match (expected, found) {
            // Exits that a guest can't avoid.
            (_, Exit::Vm) if inside.m.cpu.arch.vm_exit.reason != reason::TRIPLE_FAULT => continue,
            (Exit::Shutdown, Exit::Vm) => {}
            _ => assert_eq!(expected, found, "seed {seed}"),
        }
        assert_eq!(registers(&bare.m.cpu), registers(&inside.m.cpu), "seed {seed}");
        let (a, b) = (bare.m.peek::<0x2000>(DATA + 0x1_0000), inside.m.peek::<0x2000>(DATA + 0x1_0000));
        assert_eq!(a, b, "seed {seed}: memory");
        compared += 1;
    }
    assert!(compared > 80, "{compared}");
}

#[test]
fn an_exit_changes_nothing_and_leaves_a_state_that_can_be_entered() {
    let mut reasons = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let mut g = guest(seed + 100_000).with(|c| {
            c.pin = pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER;
            c.exit = exit::SAVE_PREEMPTION_TIMER;
            c.preemption_timer = 200;
            c.primary |= executed::PRIMARY & !(primary::INTERRUPT_WINDOW | primary::NMI_WINDOW | primary::IO_BITMAPS);
            c.primary &= !(primary::MSR_BITMAPS | primary::MONITOR_TRAP | primary::TPR_SHADOW);
            c.secondary |= secondary::DESCRIPTOR_TABLE
                | secondary::RDTSCP
                | secondary::WBINVD
                | secondary::RDRAND
                | secondary::INVPCID
                | secondary::RDSEED
                | secondary::XSAVES;
            c.exception_bitmap = seed as u32 | 1 << 8;
            c.cr0_mask = u64::MAX;
            c.cr4_mask = u64::MAX;
        });
        g.controls.cr0_shadow = g.m.cpu.arch.cr0;
        g.controls.cr4_shadow = g.m.cpu.arch.cr4;
        // One instruction at a time, by the monitor trap flag, until another exit.
        g.controls.primary |= primary::MONITOR_TRAP;
        g.enter().expect("valid");
        for _ in 0..20 {
            let before = registers(&g.m.cpu);
            assert_eq!(g.m.run(LONG), Exit::Vm, "seed {seed}");
            let last = g.m.cpu.arch.vm_exit;
            reasons.insert(last.basic());
            match last.basic() {
                reason::MONITOR_TRAP => {}
                reason::TRIPLE_FAULT => break,
                // Exceptions may follow progress (strings), and deliver earlier events.
                reason::EXCEPTION_NMI | reason::TASK_SWITCH => break,
                other => {
                    let event = matches!(other, reason::EXTERNAL_INTERRUPT | reason::PREEMPTION_TIMER);
                    assert_eq!(registers(&g.m.cpu), before, "seed {seed}: reason {other}");
                    assert_eq!(last.instruction_length == 0, event, "seed {seed}: reason {other}");
                    assert_eq!(g.m.cpu.controls().activity, activity::ACTIVE);
                    break;
                }
            }
            let long = g.m.cpu.controls().entry & entry::IA32E_GUEST != 0;
            assert_eq!(long, g.m.cpu.long_mode());
            assert_eq!(g.m.cpu.vm_reentry(), Ok(()), "seed {seed}");
        }
    }
    let wanted = [
        reason::CPUID,
        reason::HLT,
        reason::RDTSC,
        reason::VMCALL,
        reason::MOV_DR,
        reason::IO,
        reason::RDMSR,
        reason::PAUSE,
        reason::MONITOR_TRAP,
        reason::EXCEPTION_NMI,
    ];
    for reason in wanted {
        assert!(reasons.contains(&reason), "no exit for reason {reason}: {reasons:?}");
    }
}
