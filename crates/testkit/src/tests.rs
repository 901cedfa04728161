//! The properties of the machine that tests rely on.

use super::*;
use iced_x86::code_asm::*;
use x86::vector;

#[test]
fn code_runs_in_every_mode() {
    for mut machine in [
        Machine::real16(),
        Machine::protected32(0),
        Machine::protected32(3),
        Machine::compatibility32(3),
        Machine::long64(0),
        Machine::long64(3),
    ] {
        machine
            .execute(|a| {
                a.mov(ax, 40)?;
                a.add(ax, 2)
            })
            .unwrap();
        assert_eq!(machine.cpu.arch.gpr[0], 42);
    }
}

#[test]
fn faults_are_returned_and_rip_stays() {
    let mut machine = Machine::long64(3);
    let start = machine.cpu.arch.rip;
    let raised = machine.execute(|a| a.mov(rax, qword_ptr(RAM))).unwrap_err();
    assert_eq!(raised, Raised { vector: vector::PF, code: Some(4) });
    assert_eq!((machine.cpu.engine.fault_address, machine.cpu.arch.rip), (RAM, start));
}

#[test]
fn memory_and_stack_are_there() {
    let mut machine = Machine::long64(3);
    machine.poke(DATA, &7u64.to_le_bytes());
    machine
        .execute(|a| {
            a.inc(qword_ptr(DATA))?;
            a.mov(rax, qword_ptr(DATA))?;
            a.mov(qword_ptr(rsp - 8), rax)
        })
        .unwrap();
    assert_eq!(machine.peek::<8>(STACK - 8), 8u64.to_le_bytes());
}
