//! Tests of shadow stacks and indirect-branch tracking against the manual.

use super::*;
use crate::exec::system_tests::{CODE64, HANDLERS, USER_CODE, USER_DATA, gate, handled, set_gate, system};
use crate::run::Exit;
use crate::testing::{CODE, DATA, Machine, Raised, STACK};
use iced_x86::code_asm::*;
use x86::control::*;
use x86::{descriptor, flags, msr, page, reg, seg};

const UD: Raised = Raised { vector: vector::UD, code: None };
const GP: Raised = Raised { vector: vector::GP, code: Some(0) };

/// Pages of a user shadow stack, and of a supervisor shadow stack.
const USERS: u64 = 0xc0_0000;
const SYSTEMS: u64 = 0xc0_1000;
/// Page table for both pages and their neighbours.
const TABLE: u64 = 0x40_0000;

fn cp(code: u32) -> Raised {
    Raised { vector: vector::CP, code: Some(code) }
}

fn pf(code: u32) -> Raised {
    Raised { vector: vector::PF, code: Some(code) }
}

/// Maps both pages, and an ordinary page after them.
fn map(m: &mut Machine) {
    let ram = &m.cpu.wiring.ram;
    let read = |at: u64| ram.read::<u64>(at).unwrap() & page::ADDRESS;
    let directory = read(read(m.cpu.arch.cr3));
    const USER_STACK: u64 = page::P | page::US | page::A | page::D;
    ram.write::<u64>(directory + 8 * (USERS >> 21), TABLE | page::P | page::RW | page::US | page::A);
    ram.write::<u64>(TABLE, USERS | USER_STACK);
    ram.write::<u64>(TABLE + 8, SYSTEMS | page::P | page::A | page::D);
    ram.write::<u64>(TABLE + 16, (SYSTEMS + 0x1000) | USER_STACK | page::RW);
    m.cpu.micro.tlb.flush_all();
    m.cpu.mapping_changed();
}

/// Enables control-flow enforcement.
fn enforce(m: &mut Machine, user: u64, supervisor: u64) {
    map(m);
    m.cpu.arch.cr4 |= CR4_CET;
    (m.cpu.arch.msr.u_cet, m.cpu.arch.msr.s_cet) = (user, supervisor);
    m.cpu.arch.ssp = if m.cpu.arch.cpl == 3 { USERS } else { SYSTEMS } + 0x800;
    m.cpu.mode_changed();
}

fn machine(cpl: u8, enforced: u64) -> Machine {
    let mut m = Machine::long64(cpl);
    enforce(&mut m, enforced, enforced);
    m
}

fn word(m: &Machine, at: u64) -> u64 {
    u64::from_le_bytes(m.peek(at))
}

fn set(m: &mut Machine, at: u64, value: u64) {
    m.poke(at, &value.to_le_bytes());
}

#[test]
fn calls_push_and_returns_compare() {
    for cpl in [0, 3] {
        let mut m = machine(cpl, SHADOW_STACK);
        let ssp = m.cpu.arch.ssp;
        m.cpu.arch.gpr[0] = CODE + 0x100;
        m.execute(|a| a.call(rax)).unwrap();
        assert_eq!((m.cpu.arch.ssp, word(&m, ssp - 8), m.cpu.arch.rip), (ssp - 8, CODE + 2, CODE + 0x100));
        m.execute(|a| a.ret_1(8)).unwrap();
        assert_eq!((m.cpu.arch.ssp, m.cpu.arch.rip), (ssp, CODE + 2));
        assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], STACK + 8);
        // The shadow stack contains a different address.
        set(&mut m, STACK + 8, CODE + 0x40);
        set(&mut m, ssp, CODE + 0x50);
        assert_eq!(m.execute(|a| a.ret()), Err(cp(1)));
        assert_eq!((m.cpu.arch.ssp, m.cpu.arch.gpr[usize::from(reg::RSP)]), (ssp, STACK + 8));
        set(&mut m, ssp, CODE + 0x40);
        m.execute(|a| a.ret()).unwrap();
        assert_eq!((m.cpu.arch.ssp, m.cpu.arch.rip), (ssp + 8, CODE + 0x40));
    }
    // Code determines its address by a call of the next instruction.
    let mut m = machine(3, SHADOW_STACK);
    m.poke(CODE, &[0xe8, 0, 0, 0, 0, 0xe8, 1, 0, 0, 0]);
    m.step().unwrap();
    assert_eq!(m.cpu.arch.ssp, USERS + 0x800);
    m.step().unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, USERS + 0x7f8)), (USERS + 0x7f8, CODE + 10));
    // 32-bit code has 4-byte slots.
    let mut m = Machine::compatibility32(3);
    enforce(&mut m, SHADOW_STACK, 0);
    m.cpu.arch.gpr[0] = CODE + 0x100;
    m.execute(|a| a.call(eax)).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, USERS + 0x7fc) as u32), (USERS + 0x7fc, CODE as u32 + 2));
    m.execute(|a| a.ret()).unwrap();
    assert_eq!(m.cpu.arch.ssp, USERS + 0x800);
}

#[test]
fn shadow_stacks_are_pages_of_their_own() {
    let mut m = machine(3, SHADOW_STACK | WRITE_SHADOW_STACK);
    m.execute(|a| a.mov(eax, dword_ptr(USERS))).unwrap();
    assert_eq!(m.execute(|a| a.mov(dword_ptr(USERS), eax)), Err(pf(7)));
    assert_eq!(m.execute(|a| a.wrssq(qword_ptr(USERS + 8), rax)), Ok(()));
    // An ordinary page, a supervisor's shadow stack, and one that is not dirty.
    for (ssp, bits) in [(SYSTEMS + 0x1800, 0), (SYSTEMS + 0x800, 0), (DATA, 0), (USERS + 0x800, page::D)] {
        let mut m = machine(3, SHADOW_STACK);
        let entry = m.cpu.wiring.ram.read::<u64>(TABLE).unwrap();
        m.cpu.wiring.ram.write(TABLE, entry & !bits);
        m.cpu.arch.ssp = ssp;
        m.cpu.arch.gpr[0] = CODE;
        assert_eq!(m.execute(|a| a.call(rax)), Err(pf(0x47)), "{ssp:#x}");
        assert_eq!((m.cpu.arch.ssp, m.cpu.arch.gpr[usize::from(reg::RSP)]), (ssp, STACK));
        assert_eq!(m.execute(|a| a.ret()), Err(pf(0x45)), "{ssp:#x}");
    }
    let mut m = machine(0, SHADOW_STACK);
    m.cpu.arch.ssp = USERS + 0x800;
    m.cpu.arch.gpr[0] = CODE;
    assert_eq!(m.execute(|a| a.call(rax)), Err(pf(0x43)));
    m.cpu.arch.ssp = 1 << 63;
    assert_eq!(m.execute(|a| a.ret()), Err(GP));
    // The address is not mapped.
    m.cpu.arch.ssp = USERS + 0x4800;
    assert_eq!(m.execute(|a| a.ret()), Err(pf(0x40)));
}

#[test]
fn instructions_move_along_and_write() {
    let mut m = machine(3, SHADOW_STACK);
    m.execute(|a| a.rdsspq(rax)).unwrap();
    assert_eq!(m.cpu.arch.gpr[0], USERS + 0x800);
    m.cpu.arch.gpr[0] = 0x1103;
    m.execute(|a| a.incsspq(rax)).unwrap();
    assert_eq!(m.cpu.arch.ssp, USERS + 0x818);
    m.execute(|a| a.incsspd(eax)).unwrap();
    assert_eq!(m.cpu.arch.ssp, USERS + 0x824);
    // The last slot is checked.
    m.cpu.arch.gpr[0] = 255;
    m.cpu.arch.ssp = USERS + 0xff0;
    assert_eq!(m.execute(|a| a.incsspq(rax)), Err(pf(0x45)));
    assert_eq!(m.execute(|a| a.wrssq(qword_ptr(USERS), rax)), Err(UD), "not allowed");
    m.cpu.arch.msr.u_cet |= WRITE_SHADOW_STACK;
    assert_eq!(m.execute(|a| a.wrssq(qword_ptr(USERS + 4), rax)), Err(GP), "alignment");
    m.execute(|a| a.wrssd(dword_ptr(USERS + 4), eax)).unwrap();
    assert_eq!(word(&m, USERS), 255 << 32);
    assert_eq!(m.execute(|a| a.wrssq(qword_ptr(DATA), rax)), Err(pf(0x47)));
    assert_eq!(m.execute(|a| a.wrussq(qword_ptr(USERS), rax)), Err(GP), "privilege");
    let mut m = machine(0, 0);
    m.cpu.arch.gpr[0] = 77;
    m.execute(|a| a.wrussq(qword_ptr(USERS), rax)).unwrap();
    assert_eq!(word(&m, USERS), 77);
    assert_eq!(m.execute(|a| a.wrussq(qword_ptr(SYSTEMS), rax)), Err(pf(0x47)));
    // Without shadow stacks RDSSP is a NOP, and the others are undefined.
    m.execute(|a| a.rdsspq(rax)).unwrap();
    assert_eq!(m.cpu.arch.gpr[0], 77);
    assert_eq!(m.execute(|a| a.incsspq(rax)), Err(UD));
    assert_eq!(m.execute(|a| a.saveprevssp()), Err(UD));
    assert_eq!(m.execute(|a| a.rstorssp(qword_ptr(USERS))), Err(UD));
    assert_eq!(m.execute(|a| a.setssbsy()), Err(UD));
    m.cpu.arch.cr4 &= !CR4_CET;
    assert_eq!(m.execute(|a| a.wrussq(qword_ptr(USERS), rax)), Err(UD));
}

#[test]
fn tokens_lead_to_other_stacks_and_back() {
    let mut m = machine(3, SHADOW_STACK);
    let (old, new) = (m.cpu.arch.ssp, USERS + 0x400);
    set(&mut m, new - 8, new | 1);
    m.execute(|a| a.rstorssp(qword_ptr(new - 8))).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, new - 8)), (new - 8, old | 3));
    assert!(!m.cpu.arch.lazy.cf());
    m.execute(|a| a.saveprevssp()).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, old - 8)), (new, old | 1));
    m.execute(|a| a.rstorssp(qword_ptr(old - 8))).unwrap();
    m.execute(|a| a.saveprevssp()).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, new - 8)), (old, new | 1));
    // A stack that ended at an odd slot has a hole above its token.
    set(&mut m, new - 8, (new + 4) | 1);
    m.execute(|a| a.rstorssp(qword_ptr(new - 8))).unwrap();
    assert!(m.cpu.arch.lazy.cf());
    assert_eq!(m.execute(|a| a.saveprevssp()), Err(GP), "no hole in 64-bit mode");
    for token in [new, new | 3, (new + 8) | 1, (new - 8) | 1, 1] {
        let mut m = machine(3, SHADOW_STACK);
        set(&mut m, new - 8, token);
        assert_eq!(m.execute(|a| a.rstorssp(qword_ptr(new - 8))), Err(cp(4)), "{token:#x}");
        assert_eq!((m.cpu.arch.ssp, word(&m, new - 8)), (old, token));
    }
    assert_eq!(m.execute(|a| a.rstorssp(qword_ptr(new - 4))), Err(GP));
    let mut m = machine(3, SHADOW_STACK);
    m.cpu.arch.lazy.load(0);
    assert_eq!(m.execute(|a| a.saveprevssp()), Err(GP), "no token");
}

#[test]
fn supervisors_tokens_are_busy_once() {
    let mut m = machine(0, SHADOW_STACK);
    let at = SYSTEMS + 0xff8;
    m.cpu.arch.msr.pl_ssp[0] = at;
    assert_eq!(m.execute(|a| a.setssbsy()), Err(cp(5)));
    set(&mut m, at, at);
    m.execute(|a| a.setssbsy()).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, at)), (at, at | 1));
    assert_eq!(m.execute(|a| a.setssbsy()), Err(cp(5)));
    m.execute(|a| a.clrssbsy(qword_ptr(at))).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, at), m.cpu.arch.lazy.cf()), (0, at, false));
    m.execute(|a| a.clrssbsy(qword_ptr(at))).unwrap();
    assert!(m.cpu.arch.lazy.cf());
}

#[test]
fn indirect_branches_lead_to_endbranch() {
    // Code at the target, kind of branch, and true if the branch is allowed.
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const ENDBR32: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfb];
    const NOP: &[u8] = &[0x90];
    const TARGET: u64 = CODE + 0x200;
    const JUMP: &[u8] = &[0xff, 0xe0];
    const CALL: &[u8] = &[0xff, 0xd0];
    const EXEMPT: &[u8] = &[0x3e, 0xff, 0xe0];
    const DIRECT: &[u8] = &[0xe9, 0xfb, 0x01, 0, 0];
    for (control, branch, target, good) in [
        (ENDBRANCH, JUMP, ENDBR64, true),
        (ENDBRANCH, CALL, ENDBR64, true),
        (ENDBRANCH, JUMP, NOP, false),
        (ENDBRANCH, CALL, NOP, false),
        (ENDBRANCH, JUMP, ENDBR32, false),
        (ENDBRANCH, DIRECT, NOP, true),
        (ENDBRANCH, EXEMPT, NOP, false),
        (ENDBRANCH | NO_TRACK, EXEMPT, NOP, true),
        (ENDBRANCH | SUPPRESS, JUMP, NOP, true),
        (SHADOW_STACK, JUMP, NOP, true),
    ] {
        for warm in [false, true] {
            let mut m = system(3);
            enforce(&mut m, control, 0);
            m.poke(CODE, branch);
            m.poke(TARGET, &[target, &[0xf4]].concat());
            // If ENDBRANCH is known to be at the target, the tracker does not wait.
            for _ in 0..=usize::from(warm) {
                m.cpu.arch.rip = CODE;
                m.cpu.arch.gpr[0] = TARGET;
                m.cpu.arch.gpr[usize::from(reg::RSP)] = STACK;
                let vector = handled(&mut m);
                // HLT requires CPL 0.
                assert_eq!(vector, if good { vector::GP } else { vector::CP }, "{control:#x} {branch:x?} {target:x?}");
                let frame: u64 = m.cpu.arch.gpr[usize::from(reg::RSP)];
                let expected = TARGET + if good { target.len() as u64 } else { 0 };
                assert_eq!((word(&m, frame), word(&m, frame + 8)), (if good { 0 } else { 3 }, expected));
                let waits = if good { 0 } else { WAITS };
                assert_eq!(m.cpu.arch.msr.u_cet & WAITS, waits);
                m.cpu.arch.msr.u_cet = control;
                crate::testing::set_flat_segments(&mut m.cpu, 3, x86::rights::L);
                m.cpu.arch.seg[usize::from(seg::CS)].selector = USER_CODE;
                m.cpu.arch.seg[usize::from(seg::SS)].selector = USER_DATA;
            }
        }
    }
}

#[test]
fn pages_of_the_bitmap_need_no_endbranch() {
    for (bit, more, good) in [(true, 0, true), (false, 0, false), (true, NO_SUPPRESS, true)] {
        let mut m = system(3);
        enforce(&mut m, ENDBRANCH | LEGACY | more | DATA, 0);
        let page = (CODE + 0x200) >> 12;
        m.poke(DATA + (page >> 3), &[u8::from(bit) << (page & 7)]);
        m.poke(CODE, &[0xff, 0xe0]);
        m.poke(CODE + 0x200, &[0x90, 0xf4]);
        m.cpu.arch.gpr[0] = CODE + 0x200;
        assert_eq!(handled(&mut m), if good { vector::GP } else { vector::CP });
        let suppressed = m.cpu.arch.msr.u_cet & SUPPRESS != 0;
        assert_eq!(suppressed, good && more == 0);
    }
}

#[test]
fn a_tracker_that_waits_outlives_an_interrupt() {
    let mut m = system(3);
    enforce(&mut m, ENDBRANCH, 0);
    m.poke(CODE, &[0xff, 0xe0]);
    m.poke(CODE + 0x200, &[0x90]);
    m.cpu.arch.gpr[0] = CODE + 0x200;
    // A trap after the branch, with a handler that returns.
    m.cpu.arch.flags |= flags::TF;
    m.cpu.mode_changed();
    m.cpu.set_rflags(flags::TF | 2);
    assert_eq!(handled(&mut m), vector::DB);
    assert_eq!(m.cpu.arch.msr.u_cet & WAITS, WAITS);
    let frame = m.cpu.arch.gpr[usize::from(reg::RSP)];
    set(&mut m, frame + 16, 2);
    m.execute(|a| a.iretq()).unwrap();
    assert_eq!((m.cpu.arch.cpl, m.cpu.arch.rip), (3, CODE + 0x200));
    assert_eq!(handled(&mut m), vector::CP);
}

#[test]
fn system_calls_keep_the_users_pointer() {
    let mut m = system(3);
    enforce(&mut m, SHADOW_STACK, ENDBRANCH);
    m.cpu.arch.msr.star = u64::from(CODE64) << 32 | 0x1b << 48;
    m.cpu.arch.msr.lstar = HANDLERS;
    m.execute(|a| a.syscall()).unwrap();
    assert_eq!((m.cpu.arch.cpl, m.cpu.arch.msr.pl_ssp[3]), (0, USERS + 0x800));
    assert_eq!(m.cpu.arch.msr.s_cet & WAITS, WAITS, "the kernel's entry is tracked");
    m.cpu.arch.msr.s_cet = 0;
    m.cpu.arch.ssp = 5;
    m.cpu.mode_changed();
    m.execute(|a| a.sysretq()).unwrap();
    assert_eq!((m.cpu.arch.cpl, m.cpu.arch.ssp), (3, USERS + 0x800));
    // A kernel with a shadow stack begins without a current one.
    m.cpu.arch.msr.s_cet = SHADOW_STACK;
    m.execute(|a| a.syscall()).unwrap();
    assert_eq!(m.cpu.arch.ssp, 0);
}

#[test]
fn interrupts_take_the_kernels_stack_and_iret_gives_it_back() {
    let mut m = system(3);
    enforce(&mut m, SHADOW_STACK, SHADOW_STACK);
    let top = SYSTEMS + 0xff8;
    m.cpu.arch.msr.pl_ssp[0] = top;
    set(&mut m, top, top);
    m.code(|a| a.ud2());
    assert_eq!(handled(&mut m), vector::UD);
    assert_eq!((m.cpu.arch.ssp, word(&m, top), m.cpu.arch.msr.pl_ssp[3]), (top, top | 1, USERS + 0x800));
    // An interrupt in the kernel leaves a frame; with a table entry it uses another stack.
    let handler = HANDLERS + 16 * u64::from(vector::BP);
    m.cpu.arch.rip = DATA;
    m.code(|a| a.int3());
    assert_eq!(handled(&mut m), vector::BP);
    assert_eq!(m.cpu.arch.ssp, top - 24);
    assert_eq!([16, 8, 0].map(|at| word(&m, top - 24 + at)), [u64::from(CODE64), DATA + 1, top]);
    m.cpu.arch.rip = DATA + 0x40;
    m.execute(|a| a.iretq()).unwrap();
    assert_eq!((m.cpu.arch.ssp, m.cpu.arch.rip), (top, DATA + 1));
    set_gate(&mut m, vector::BP, gate(handler, CODE64, descriptor::INTERRUPT_GATE32, 0, 1));
    let table = DATA + 0x800;
    m.cpu.arch.msr.interrupt_ssp_table = table;
    let other = SYSTEMS + 0x100;
    set(&mut m, table + 8, other);
    set(&mut m, other, other);
    m.cpu.arch.rip = DATA;
    m.code(|a| a.int3());
    assert_eq!(handled(&mut m), vector::BP);
    assert_eq!((m.cpu.arch.ssp, word(&m, other)), (other - 24, other | 1));
    m.cpu.arch.rip = DATA + 0x40;
    // A modified frame.
    set(&mut m, other - 16, DATA + 3);
    assert_eq!(m.execute(|a| a.iretq()), Err(cp(2)));
    set(&mut m, other - 16, DATA + 1);
    m.execute(|a| a.iretq()).unwrap();
    assert_eq!((m.cpu.arch.ssp, word(&m, other)), (top, other), "no longer busy");
    // Return to user mode.
    m.cpu.arch.rip = DATA + 0x100;
    m.execute(|a| a.iretq()).unwrap();
    assert_eq!((m.cpu.arch.cpl, m.cpu.arch.ssp, word(&m, top)), (3, USERS + 0x800, top));
    // A busy stack cannot be used: #GP, which cannot be delivered either.
    set(&mut m, top, top | 1);
    m.cpu.arch.rip = CODE;
    m.code(|a| a.ud2());
    assert_eq!(m.run(1 << 32), Exit::Shutdown);
}

#[test]
fn registers_take_what_the_manual_allows() {
    let mut m = machine(0, 0);
    for (index, value, good) in [
        (msr::U_CET, 0x3f, true),
        (msr::U_CET, 0x40, false),
        (msr::U_CET, SUPPRESS | WAITS, false),
        (msr::U_CET, 1 << 62, false),
        (msr::S_CET, DATA | 4, true),
        (msr::PL0_SSP, DATA, true),
        (msr::PL3_SSP, DATA + 4, true),
        (msr::PL3_SSP, DATA + 2, false),
        (msr::PL2_SSP, 1 << 62, false),
        (msr::INTERRUPT_SSP_TABLE_ADDR, DATA, true),
        (msr::INTERRUPT_SSP_TABLE_ADDR, 1 << 62, false),
    ] {
        assert_eq!(m.cpu.write_msr(index, value), good, "{index:#x} {value:#x}");
        if good {
            assert_eq!(m.cpu.read_msr(index), Some(value));
        }
    }
    // CR4.CET and CR0.WP.
    assert!(!m.cpu.write_control(0, m.cpu.arch.cr0 & !CR0_WP));
    assert!(m.cpu.write_control(4, m.cpu.arch.cr4 & !CR4_CET));
    assert!(m.cpu.write_control(0, m.cpu.arch.cr0 & !CR0_WP));
    assert!(!m.cpu.write_control(4, m.cpu.arch.cr4 | CR4_CET));
}

#[test]
fn xsaves_has_both_states() {
    const STATES: u64 = 3 << 11;
    let mut m = machine(0, 0);
    m.cpu.arch.msr.xss = STATES;
    m.cpu.arch.msr.u_cet = SHADOW_STACK;
    m.cpu.arch.msr.pl_ssp = [0x1000, 0x2000, 0x3000, 0x4000];
    (m.cpu.arch.gpr[0], m.cpu.arch.gpr[2]) = (STATES, 0);
    m.execute(|a| a.xsaves64(ptr(DATA))).unwrap();
    let words: Vec<u64> = (0..5).map(|n| word(&m, DATA + 576 + 8 * n)).collect();
    assert_eq!(words, [SHADOW_STACK, 0x4000, 0x1000, 0x2000, 0x3000]);
    let saved = m.cpu.arch.msr;
    (m.cpu.arch.msr.u_cet, m.cpu.arch.msr.pl_ssp) = (0, [0; 4]);
    m.execute(|a| a.xrstors64(ptr(DATA))).unwrap();
    assert_eq!(m.cpu.arch.msr, saved);
    for (at, bad) in [(576, 0x40), (584, 2), (600, 1 << 62)] {
        let old = word(&m, DATA + at);
        set(&mut m, DATA + at, bad);
        assert_eq!(m.execute(|a| a.xrstors64(ptr(DATA))), Err(GP), "{at}");
        assert_eq!(m.cpu.arch.msr, saved);
        set(&mut m, DATA + at, old);
    }
    // The user part of XSAVE has neither state.
    assert_eq!(m.cpu.wiring.xstate.user & STATES, 0);
}
