//! Tests of differences between the vendors' processors, as specified by their manuals or observed.

use crate::Tier;
use crate::testing::{CODE, DATA, Machine, RAM, Raised, STACK};
use x86::vector;

const UD: Raised = Raised { vector: vector::UD, code: None };

/// Returns the machine with the conventions of AMD or Intel, and these bytes at RIP.
fn of_vendor(mut machine: Machine, amd: bool, bytes: &[u8]) -> Machine {
    machine.cpu.wiring.capabilities.amd = amd;
    machine.cpu.mode_changed();
    let rip = machine.cpu.arch.rip;
    machine.poke(rip, &[bytes, &[0xf4; 8]].concat());
    machine
}

#[test]
fn a_segment_register_is_pushed_as_a_word_or_with_zeros() {
    for (amd, top) in [(false, 0xffff_0010u32), (true, 0x10)] {
        // push ds
        let mut m = of_vendor(Machine::protected32(0), amd, &[0x1e]);
        m.poke(STACK - 4, &[0xff; 4]);
        m.step().unwrap();
        assert_eq!((m.peek::<4>(STACK - 4), m.cpu.arch.gpr[4]), (top.to_le_bytes(), STACK - 4), "amd: {amd}");
    }
}

#[test]
fn pause_with_rex_b_is_an_exchange_on_amd() {
    for amd in [false, true] {
        for tier in [Tier::Interpreter, Tier::Translator] {
            let mut m = of_vendor(Machine::long64(0), amd, &[0xf3, 0x49, 0x90]);
            m.cache.code.tier = tier;
            (m.cpu.arch.gpr[0], m.cpu.arch.gpr[8]) = (1, 2);
            m.run(1 << 40);
            let expected = if amd { (2, 1) } else { (1, 2) };
            assert_eq!((m.cpu.arch.gpr[0], m.cpu.arch.gpr[8]), expected, "amd: {amd}, {tier:?}");
        }
    }
}

#[test]
fn an_operand_size_prefix_cuts_branches_on_amd() {
    // jmp rel16 or rel32: 66 e9 10 00 00 00
    for (amd, target) in [(false, CODE + 6 + 0x10), (true, (CODE + 4 + 0x10) & 0xffff)] {
        let mut m = of_vendor(Machine::long64(0), amd, &[0x66, 0xe9, 0x10, 0, 0, 0]);
        m.step().unwrap();
        assert_eq!(m.cpu.arch.rip, target, "amd: {amd}");
    }
}

#[test]
fn prefetch_of_a_register_is_undefined_on_amd() {
    assert_eq!(of_vendor(Machine::long64(3), true, &[0x0f, 0x0d, 0xc0]).step(), Err(UD));
    assert!(of_vendor(Machine::long64(3), false, &[0x0f, 0x0d, 0xc0]).step().is_ok());
}

#[test]
fn movsxd_of_a_word_reads_two_words_on_amd() {
    // movsxd ax, [rcx], at the last word of memory
    for (amd, faults) in [(false, false), (true, true)] {
        let mut m = of_vendor(Machine::long64(3), amd, &[0x66, 0x63, 0x01]);
        m.cpu.arch.gpr[1] = RAM - 2;
        assert_eq!(m.step().is_err(), faults, "amd: {amd}");
    }
}

/// SDM vol. 2, PINSRB and PEXTRB: with W set, these do not exist outside 64-bit mode.
#[test]
fn wide_insertions_do_not_exist_outside_64_bit_mode() {
    for (wide, last) in [(false, 0x79), (true, 0xf9)] {
        for opcode in [0x22, 0x16] {
            let mut m = of_vendor(Machine::compatibility32(3), false, &[0xc4, 0xe3, last, opcode, 0xc1, 0]);
            assert_eq!(m.step().is_err(), wide, "{opcode:02x}");
            let mut m = of_vendor(Machine::long64(3), false, &[0xc4, 0xe3, last, opcode, 0xc1, 0]);
            assert!(m.step().is_ok());
        }
    }
}

#[test]
fn bound_reads_both_bounds_before_it_compares() {
    // bound eax, [ecx], whose lower bound is the last word of memory, and whose upper bound is not mapped
    let mut m = of_vendor(Machine::compatibility32(3), false, &[0x62, 0x01]);
    m.cpu.arch.gpr[1] = RAM - 4;
    m.poke(RAM - 4, &5u32.to_le_bytes());
    assert_eq!(m.step(), Err(Raised { vector: vector::PF, code: Some(4) }));
    m.cpu.arch.gpr[1] = DATA;
    m.poke(DATA, &[5, 0, 0, 0, 9, 0, 0, 0]);
    assert_eq!(m.step(), Err(Raised { vector: vector::BR, code: None }));
    m.cpu.arch.gpr[0] = 7;
    assert!(m.step().is_ok());
}

#[test]
fn sysexit_in_long_mode_is_privileged_first_and_undefined_then_on_amd() {
    const GP: Raised = Raised { vector: vector::GP, code: Some(0) };
    assert_eq!(of_vendor(Machine::long64(3), true, &[0x0f, 0x35]).step(), Err(GP));
    assert_eq!(of_vendor(Machine::long64(0), true, &[0x0f, 0x35]).step(), Err(UD));
    assert_eq!(of_vendor(Machine::long64(3), false, &[0x0f, 0x35]).step(), Err(GP));
}
