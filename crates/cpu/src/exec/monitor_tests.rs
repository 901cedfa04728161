//! Tests of MONITOR and MWAIT, and of their marks in RAM.

use crate::capability::{Capabilities, Capability};
use crate::run::Exit;
use crate::state::Cpu;
use crate::testing::{CODE, DATA, Machine};
use iced_x86::code_asm::*;
use std::sync::Arc;
use x86::{reg, vector};

const FOREVER: u64 = 1 << 40;

/// Returns a machine in 64-bit mode that has MONITOR, with RAX pointing at [`DATA`].
fn machine() -> Machine {
    let mut m = Machine::long64(0);
    let mut model = (*m.cpu.wiring.model).clone();
    model.cpuid.push(crate::model::CpuidEntry {
        leaf: 1,
        subleaf: None,
        regs: crate::model::CpuidRegs { eax: 0, ebx: 0, ecx: 1 << 3, edx: 0 },
    });
    m.cpu.wiring.capabilities = Capabilities::of(&model);
    m.cpu.wiring.model = Arc::new(model);
    assert!(m.cpu.wiring.capabilities.has(Capability::Monitor));
    m.cpu.arch.gpr[usize::from(reg::RAX)] = DATA + 8;
    m
}

#[test]
fn mwait_sleeps_with_an_armed_monitor_only() {
    let mut m = machine();
    m.code(|a| {
        a.mwait()?;
        a.monitor()?;
        a.mwait()?;
        a.mov(ecx, 1)?;
        a.mwait()?;
        a.monitor()?;
        a.hlt()
    });
    assert_eq!(m.run(FOREVER), Exit::Mwait { masked: false });
    assert_eq!(m.cpu.arch.rip, CODE + 9);
    assert_eq!(m.cpu.wiring.ram.monitor(0), Some(DATA));
    assert_eq!(m.run(FOREVER), Exit::Mwait { masked: true });
    // MONITOR supports no extensions.
    m.cpu.arch.idtr.limit = 0;
    assert_eq!(m.run(FOREVER), Exit::Shutdown);
}

#[test]
fn a_write_between_monitor_and_mwait_keeps_it_awake() {
    let mut m = machine();
    m.code(|a| {
        a.mov(dword_ptr(rax), ecx)?;
        a.monitor()?;
        a.mov(dword_ptr(rax + 64), ecx)?;
        a.mov(dword_ptr(rax + 16), ecx)?;
        a.mwait()?;
        a.hlt()
    });
    // The write makes the board check for waiting processors.
    assert_eq!(m.run(FOREVER), Exit::Bus);
    assert!(m.cpu.wiring.ram.take_triggered());
    assert_eq!(m.run(FOREVER), Exit::Halt);
}

#[test]
fn a_write_by_another_processor_is_seen_although_its_fast_path_knew_the_page() {
    let mut m = machine();
    let mut other = Cpu::new(
        1,
        m.cpu.wiring.model.clone(),
        m.cpu.wiring.ram.clone(),
        m.cpu.wiring.bus.clone(),
        m.cpu.wiring.recorder.another(),
    );
    crate::testing::set_long_mode(&mut other, m.cpu.arch.cr3, 0, true);
    other.arch.gpr[usize::from(reg::RAX)] = DATA;
    other.arch.rip = CODE + 0x1000;
    let code = crate::testing::assemble(64, other.arch.rip, |a| {
        a.mov(dword_ptr(rax + 128), ecx)?;
        a.hlt()?;
        a.mov(dword_ptr(rax + 128), ecx)?;
        a.hlt()?;
        a.inc(dword_ptr(rax))?;
        a.hlt()
    });
    m.poke(other.arch.rip, &code);
    m.code(|a| {
        a.monitor()?;
        a.mwait()
    });
    assert_eq!(other.run(&mut m.cache, FOREVER), Exit::Halt);
    assert_eq!(m.run(FOREVER), Exit::Mwait { masked: false });
    // A write to another line of the page.
    assert_eq!(other.run(&mut m.cache, FOREVER), Exit::Halt);
    assert!(!m.cpu.wiring.ram.take_triggered());
    assert_eq!(other.run(&mut m.cache, FOREVER), Exit::Bus);
    assert!(m.cpu.wiring.ram.take_triggered());
    assert_eq!(m.cpu.wiring.ram.monitor(0), None);
    assert_eq!(m.peek::<4>(DATA), [1, 0, 0, 0]);
    // No line of the page is marked any more.
    assert_eq!(m.cpu.wiring.ram.marked(DATA), 0);
    assert_eq!(other.run(&mut m.cache, FOREVER), Exit::Halt);
}

#[test]
fn dropping_code_keeps_the_monitors_of_its_page() {
    let m = machine();
    let ram = &m.cpu.wiring.ram;
    ram.arm_monitor(0, DATA + 70);
    ram.arm_monitor(2, DATA + 4096);
    ram.mark_code(DATA, 1 << 5);
    assert_eq!(ram.marked(DATA), 1 << 5 | 1 << 1);
    ram.set_code(DATA, 0);
    assert_eq!(ram.marked(DATA), 1 << 1);
    ram.clear_all_code();
    assert_eq!((ram.marked(DATA), ram.marked(DATA + 4096)), (1 << 1, 1));
    assert!(!ram.trigger_monitors(DATA, 1));
    assert!(ram.trigger_monitors(DATA, 1 << 1));
    assert_eq!((ram.monitor(0), ram.monitor(2)), (None, Some(DATA + 4096)));
    // An address outside of RAM cannot be monitored.
    ram.arm_monitor(2, 1 << 40);
    assert_eq!(ram.monitor(2), None);
}

#[test]
fn monitor_is_undefined_when_disabled_and_in_user_mode() {
    let mut m = machine();
    m.cpu.arch.msr.misc_enable = 0;
    assert_eq!(m.execute(|a| a.monitor()).unwrap_err().vector, vector::UD);
    m.cpu.arch.msr.misc_enable = 1 << 18;
    m.cpu.arch.cpl = 3;
    assert_eq!(m.execute(|a| a.mwait()).unwrap_err().vector, vector::UD);
}
