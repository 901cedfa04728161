//! Tests of stays in the kernel, on the operating system of `system_tests`.

use super::system_tests::{HANDLERS, handled, system};
use crate::model::Model;
use crate::testing::{CODE, DATA, Machine, assemble, model};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ledger::stays::Stays;
use ledger::summary::Selection;
use ledger::{Class, Costs, Entry, Family, Gate, Header, Kind, Ledger, Profile, Symbols, TICKS_PER_CYCLE};
use std::collections::BTreeMap;
use std::sync::Arc;
use x86::vector;

/// The kernel's entry for system calls.
const KERNEL: u64 = 0x31_0000;

/// Cycles of the events that cost something; an instruction costs one.
const PRICES: [(Family, u64); 6] = [
    (Family::Syscall, 100),
    (Family::Sysret, 200),
    (Family::Exception, 300),
    (Family::SoftwareInterrupt, 350),
    (Family::Iret, 400),
    (Family::DescriptorTable, 50),
];

/// Returns a machine whose handler of #UD skips the instruction, with this code for programs and for the kernel.
fn machine(
    program: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    kernel: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Machine {
    let mut m = system(3);
    let price = |family| PRICES.iter().find(|price| price.0 == family).map_or(0, |price| price.1 * TICKS_PER_CYCLE);
    let costs = Costs::new([TICKS_PER_CYCLE as u32; Class::COUNT], Family::ALL.map(price), []);
    m.cpu.wiring.model = Arc::new(Model { costs, ..model() });
    m.cpu.arch.msr.star = 0x001b_0008 << 32;
    m.cpu.arch.msr.lstar = KERNEL;
    m.poke(KERNEL, &assemble(64, KERNEL, kernel));
    let skip = |a: &mut CodeAssembler| {
        a.add(qword_ptr(rsp), 2)?;
        a.iretq()
    };
    let at = HANDLERS + 16 * u64::from(vector::UD);
    m.poke(at, &assemble(64, at, skip));
    m.code(program);
    m
}

/// Returns the entries that the machine has recorded.
fn entries(m: &mut Machine) -> BTreeMap<Entry, Stays> {
    m.cpu.record_counts(&mut m.cache);
    let header = Header::new(&Profile::named("skx").unwrap(), vec![m.cpu.micro.clock]);
    let ledger = Ledger::new(header, &m.cpu.wiring.recorder, &Symbols::default());
    let read = Ledger::read(&ledger.to_bytes().unwrap()).unwrap();
    assert_eq!(read, ledger);
    Selection::entries(read.all())
}

/// Asserts the cycles of an entry's only stay: all, and of its parts.
fn assert_stay(entries: &BTreeMap<Entry, Stays>, entry: Entry, [all, enter, mitigation, leave]: [u64; 4]) {
    let stays = &entries[&entry];
    assert_eq!(stays.count(), 1, "{entry:?}");
    let sum = stays.sum;
    assert_eq!(
        [sum.ticks, sum.enter, sum.mitigation, sum.leave].map(|ticks| ticks / TICKS_PER_CYCLE),
        [all, enter, mitigation, leave]
    );
}

const GETPID: Entry = Entry::new(Gate::Call, 39);
const UNDEFINED: Entry = Entry::new(Gate::Exception, vector::UD as u32);

/// A program that makes the call [`GETPID`], and is stopped by the fault of HLT in user mode.
fn getpid_and_halt(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, 39)?;
    a.syscall()?;
    a.hlt()
}

#[test]
fn a_call_contains_the_exception_within_it_and_both_have_all_their_parts() {
    let mut m = machine(getpid_and_halt, |a| {
        a.nop()?;
        a.verw(word_ptr(DATA))?;
        a.ud2()?;
        a.nop()?;
        a.sysretq()
    });
    assert_eq!(handled(&mut m), vector::GP, "HLT in user mode");
    let entries = entries(&mut m);
    // Delivery, ADD, IRET. The undefined instruction itself is not executed.
    let exception = 300 + 1 + 1 + 400;
    assert_stay(&entries, UNDEFINED, [exception, 300, 0, 400]);
    let nested = entries[&UNDEFINED].nested;
    assert_eq!((nested.count, nested.ticks), (1, exception * TICKS_PER_CYCLE));
    // SYSCALL's event, 2 NOPs, VERW with its event, SYSRET with its event.
    assert_stay(&entries, GETPID, [100 + 2 + 51 + exception + 201, 100, 50, 200]);
    assert_eq!(entries[&GETPID].nested.count, 0);
    // The handler of #GP has not returned.
    assert_eq!(entries.len(), 2);
    m.cpu.end_current_stays();
    let last = &self::entries(&mut m)[&Entry::new(Gate::Exception, vector::GP.into())];
    assert_eq!((last.count(), last.sum.leave), (1, 0));
}

#[test]
fn a_call_that_the_program_makes_by_int_0x80_is_one_of_32_bit_programs() {
    let mut m = machine(
        |a| {
            a.mov(eax, 4)?;
            a.int(0x80)?;
            a.ud2()
        },
        |a| a.nop(),
    );
    let at = HANDLERS + 16 * 0x80;
    m.poke(at, &assemble(64, at, |a| a.iretq()));
    let allowed = super::system_tests::gate(at, super::system_tests::CODE64, x86::descriptor::INTERRUPT_GATE32, 3, 0);
    super::system_tests::set_gate(&mut m, 0x80, allowed);
    m.poke(HANDLERS + 16 * u64::from(vector::UD), &[0xf4]);
    assert_eq!(handled(&mut m), vector::UD);
    assert_stay(&entries(&mut m), Entry::new(Gate::Call32, 4), [350 + 401, 350, 0, 400]);
}

#[test]
fn a_switch_of_tasks_takes_stays_away_and_gives_them_back() {
    let mut m = machine(getpid_and_halt, |a| {
        a.nop()?;
        a.hlt()?;
        a.nop()?;
        a.sysretq()
    });
    assert_eq!(m.run(1 << 32), crate::run::Exit::Halt);
    let suspended = m.cpu.suspend_stays();
    assert_ne!(suspended, crate::stays::Suspended::default());
    // Another task, and time that a processor is halted, are no part of it.
    m.cpu.charge_ticks(Kind::new(Family::Iret, 0), 1, 5_000_000);
    m.cpu.resume_stays(suspended);
    m.cpu.charge_halt(1, 7_000_000);
    m.cpu.arch.attention &= !crate::arch::attention::HALT;
    assert_eq!(handled(&mut m), vector::GP);
    // SYSCALL, NOP, HLT, NOP, SYSRET.
    assert_stay(&entries(&mut m), GETPID, [100 + 3 + 201, 100, 0, 200]);
}

#[test]
fn an_interrupt_is_no_part_of_the_call_that_it_interrupts() {
    let mut m = machine(getpid_and_halt, |a| {
        a.hlt()?;
        a.sysretq()
    });
    let at = HANDLERS + 16 * 0x30;
    m.poke(
        at,
        &assemble(64, at, |a| {
            a.nop()?;
            a.iretq()
        }),
    );
    assert_eq!(m.run(1 << 32), crate::run::Exit::Halt);
    m.cpu.arch.attention &= !crate::arch::attention::HALT;
    m.cpu.deliver_interrupt(0x30);
    m.cpu.soft_interrupts_begin();
    m.cpu.charge_ticks(Kind::new(Family::Cpuid, 0), 1, 9_000);
    m.cpu.soft_interrupts_end();
    assert_eq!(handled(&mut m), vector::GP);
    let entries = entries(&mut m);
    assert_stay(&entries, GETPID, [100 + 1 + 201, 100, 0, 200]);
    assert_stay(&entries, Entry::new(Gate::Interrupt, 0x30), [2 + 400, 0, 0, 400]);
    assert_stay(&entries, Entry::new(Gate::SoftInterrupts, 0), [9, 0, 0, 0]);
    assert_eq!(CODE & 0xfff, 0);
}
