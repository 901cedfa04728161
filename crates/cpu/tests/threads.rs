//! A processor can be handed to another thread, with its memory, its board, its recorder and its code.

use cpu::{Exit, Tier};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use testkit::{CODE, DATA, Machine};

/// A loop with calls, returns, accesses of two pages, x87 and vector instructions, and faults of nothing.
fn program(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut top, mut function) = (a.create_label(), a.create_label());
    a.mov(ecx, 3000)?;
    a.mov(esi, DATA as u32)?;
    a.fldz()?;
    a.set_label(&mut top)?;
    a.call(function)?;
    a.add(qword_ptr(rsi), rcx)?;
    a.mov(rax, qword_ptr(rsi + 4096))?;
    a.dec(ecx)?;
    a.jnz(top)?;
    a.fstp(qword_ptr(rsi + 16))?;
    a.hlt()?;
    a.set_label(&mut function)?;
    a.movq(xmm0, rcx)?;
    a.paddq(xmm1, xmm0)?;
    a.fld1()?;
    a.faddp(st1, st0)?;
    a.add(qword_ptr(rsi + 4096), rcx)?;
    a.ret()
}

/// Executes the program in short turns, each on another thread if `moves` is true. Returns what the guest and the ledger
/// see.
fn run(tier: Tier, moves: bool) -> String {
    let mut machine = Machine::long64(0);
    machine.cache.code.tier = tier;
    machine.cpu.arch.rip = CODE;
    machine.code(program);
    loop {
        let turn = move |mut machine: Machine| {
            let exit = machine.run(1_000_000);
            (machine, exit)
        };
        let (after, exit) = match moves {
            true => std::thread::spawn(move || turn(machine)).join().expect("does not panic"),
            false => turn(machine),
        };
        machine = after;
        match exit {
            Exit::Deadline => {}
            exit => break assert_eq!(exit, Exit::Halt),
        }
    }
    machine.cpu.record_counts(&mut machine.cache);
    let state = format!("{:?} {:?}", machine.cpu.arch, machine.cpu.micro.clock);
    let memory: [u64; 3] = [0, 16, 4096].map(|at| u64::from_le_bytes(machine.peek(DATA + at)));
    format!("{state} {memory:?} {:?}", machine.cpu.wiring.recorder.save())
}

#[test]
fn a_processor_goes_on_on_another_thread() {
    for tier in [Tier::Interpreter, Tier::Translator, Tier::Auto] {
        assert_eq!(run(tier, true), run(tier, false), "{tier:?}");
    }
}
