//! Tests of gates, privilege changes and tasks in 32-bit protected mode, and of virtual-8086 and real mode.

use crate::arch::{Segment, TableRegister};
use crate::run::Exit;
use crate::testing::{CODE, DATA, Machine, STACK};
use iced_x86::code_asm::*;
use ledger::{Family, Kind};
use x86::control::*;
use x86::{descriptor, flags, reg, rights, seg, vector};

const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const TSS: u64 = 0x6000;
const TSS2: u64 = 0x7000;
/// Handlers: HLT at 16 bytes per vector.
const HANDLERS: u64 = 0x30_0000;
const KERNEL_STACK: u64 = 0x70_0000;

const CODE0: u16 = 0x08;
const DATA0: u16 = 0x10;
const USER_CODE: u16 = 0x1b;
const USER_DATA: u16 = 0x23;
const TASK: u16 = 0x28;
const TASK2: u16 = 0x30;
const CALL_GATE: u16 = 0x38;
const TASK_GATE: u16 = 0x40;
const CODE16: u16 = 0x48;

fn descriptor(kind: u32, dpl: u32) -> u64 {
    let rights = kind | dpl << rights::DPL_SHIFT | rights::P | rights::S | rights::RW | rights::G;
    0x000f_0000_0000_ffff | u64::from(rights) << 40
}

fn tss(base: u64) -> u64 {
    0x67 | base << 16 | 0x89 << 40
}

fn gate(offset: u64, selector: u16, kind: u8, dpl: u8, count: u8) -> u64 {
    let low = (offset & 0xffff) | u64::from(selector) << 16 | u64::from(count) << 32;
    low | u64::from(0x80 | dpl << 5 | kind) << 40 | (offset >> 16 & 0xffff) << 48
}

fn set_gate(m: &mut Machine, vector: u8, gate: u64) {
    m.cpu.wiring.ram.write::<u64>(IDT + 8 * u64::from(vector), gate);
}

/// Returns a machine in 32-bit protected mode with descriptor tables, and handlers that halt.
fn system(cpl: u8) -> Machine {
    let mut m = Machine::protected32(cpl);
    let gdt = [
        0,
        descriptor(rights::CODE | rights::DB, 0),
        descriptor(rights::DB, 0),
        descriptor(rights::CODE | rights::DB, 3),
        descriptor(rights::DB, 3),
        tss(TSS) | 2 << 40,
        tss(TSS2),
        gate(HANDLERS, CODE0, descriptor::CALL_GATE32, 3, 2),
        gate(0, TASK2, descriptor::TASK_GATE, 3, 0),
        descriptor(rights::CODE, 0),
    ];
    for (i, d) in gdt.into_iter().enumerate() {
        m.cpu.wiring.ram.write::<u64>(GDT + 8 * i as u64, d);
    }
    m.cpu.wiring.ram.write::<u32>(TSS + 4, KERNEL_STACK as u32);
    m.cpu.wiring.ram.write::<u16>(TSS + 8, DATA0);
    m.cpu.wiring.ram.write::<u16>(TSS + 0x66, 0x68);
    m.cpu.arch.gdtr = TableRegister { base: GDT, limit: 0x4f };
    m.cpu.arch.idtr = TableRegister { base: IDT, limit: 0x7ff };
    m.cpu.arch.tr = Segment { base: TSS, limit: 0x67, rights: 0x8b, selector: TASK };
    for v in 0..=255u8 {
        let at = HANDLERS + 16 * u64::from(v);
        set_gate(&mut m, v, gate(at, CODE0, descriptor::INTERRUPT_GATE32, 0, 0));
        m.poke(at, &[0xf4]);
    }
    let (code, data) = if cpl == 0 { (CODE0, DATA0) } else { (USER_CODE, USER_DATA) };
    m.cpu.arch.seg[usize::from(seg::CS)].selector = code;
    for which in [seg::SS, seg::DS, seg::ES, seg::FS, seg::GS] {
        m.cpu.arch.seg[usize::from(which)].selector = data;
    }
    m
}

fn handled(m: &mut Machine) -> u8 {
    let exit = m.run(1 << 32);
    assert_eq!(exit, Exit::Halt, "stopped at {:#x}", m.cpu.arch.rip);
    ((m.cpu.arch.rip - 1 - HANDLERS) / 16) as u8
}

fn stack(m: &Machine, slot: u64) -> u32 {
    u32::from_le_bytes(m.peek(m.cpu.arch.gpr[usize::from(reg::RSP)] + 4 * slot))
}

/// Creates a second task at the same level as the first.
fn second_task(m: &mut Machine, rip: u64, code: u16, data: u16) {
    m.cpu.wiring.ram.write::<u32>(TSS2 + 32, rip as u32);
    m.cpu.wiring.ram.write::<u32>(TSS2 + 36, 2 | flags::CF as u32);
    m.cpu.wiring.ram.write::<u32>(TSS2 + 40, 0x1111);
    m.cpu.wiring.ram.write::<u32>(TSS2 + 56, (STACK - 0x1000) as u32);
    for (i, selector) in [data, code, data, data, data, data].into_iter().enumerate() {
        m.cpu.wiring.ram.write::<u16>(TSS2 + 72 + 4 * i as u64, selector);
    }
}

#[test]
fn an_exception_in_user_mode_uses_the_stack_of_the_tss() {
    let mut m = system(3);
    m.code(|a| a.ud2());
    assert_eq!(handled(&mut m), vector::UD);
    assert_eq!(m.cpu.arch.cpl, 0);
    assert_eq!(m.cpu.arch.seg[usize::from(seg::SS)].selector, DATA0);
    let frame: Vec<u32> = (0..5).map(|i| stack(&m, i)).collect();
    let image = (2 | flags::RF) as u32;
    assert_eq!(frame, [CODE as u32, u32::from(USER_CODE), image, STACK as u32, u32::from(USER_DATA)]);
}

#[test]
fn a_16_bit_gate_pushes_words() {
    let mut m = system(0);
    set_gate(&mut m, 0x40, gate(0x1000, CODE16, descriptor::TRAP_GATE16, 0, 0));
    m.code(|a| a.int(0x40));
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.bits()), (0x1000, 16));
    assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], STACK - 6);
    assert_eq!(m.peek::<4>(STACK - 6), [2, 0, CODE0 as u8, 0]);
}

#[test]
fn a_call_gate_switches_stacks_and_copies_parameters_and_retf_goes_back() {
    let mut m = system(3);
    m.code(|a| {
        a.push(0x111)?;
        a.push(0x222)?;
        a.db(&[0x9a, 0, 0, 0, 0, CALL_GATE as u8 | 3, 0])
    });
    let after = CODE + 10 + 7;
    for _ in 0..3 {
        m.step().unwrap();
    }
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl), (HANDLERS, 0));
    let frame: Vec<u32> = (0..6).map(|i| stack(&m, i)).collect();
    assert_eq!(frame, [after as u32, u32::from(USER_CODE), 0x222, 0x111, STACK as u32 - 8, u32::from(USER_DATA)]);
    m.poke(HANDLERS, &[0xca, 8, 0]);
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl), (after, 3));
    assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], STACK);
    assert_eq!(m.cpu.arch.seg[usize::from(seg::SS)].selector, USER_DATA);
}

#[test]
fn a_task_gate_nests_and_iret_goes_back() {
    let mut m = system(0);
    second_task(&mut m, DATA, CODE0, DATA0);
    m.cpu.arch.gpr[0] = 0xaaaa;
    let len = m.code(|a| a.db(&[0x9a, 0, 0, 0, 0, TASK_GATE as u8, 0]));
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.gpr[0], m.cpu.arch.tr.selector), (DATA, 0x1111, TASK2));
    assert_eq!(m.cpu.rflags(), 2 | flags::CF | flags::NT);
    assert_ne!(m.cpu.arch.cr0 & CR0_TS, 0);
    assert_eq!(m.cpu.wiring.ram.read::<u16>(TSS2), Some(TASK), "back link");
    assert_eq!(m.cpu.wiring.ram.read::<u8>(GDT + u64::from(TASK2) + 5), Some(0x8b));
    m.poke(DATA, &[0xcf]);
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.gpr[0], m.cpu.arch.tr.selector), (CODE + len, 0xaaaa, TASK));
    assert_eq!(m.cpu.wiring.ram.read::<u8>(GDT + u64::from(TASK2) + 5), Some(0x89));
    assert_eq!(
        m.cpu.wiring.ram.read::<u32>(TSS2 + 36).map(u64::from),
        Some(2 | flags::CF),
        "NT is clear in the saved image"
    );
}

#[test]
fn a_jump_to_a_busy_task_is_gp_and_a_bad_stack_faults_in_the_new_task() {
    let mut m = system(0);
    m.code(|a| a.db(&[0xea, 0, 0, 0, 0, TASK as u8, 0]));
    assert_eq!(handled(&mut m), vector::GP);
    assert_eq!(stack(&m, 0), u32::from(TASK));
    let mut m = system(0);
    second_task(&mut m, DATA, CODE0, USER_DATA & !3);
    m.code(|a| a.db(&[0xea, 0, 0, 0, 0, TASK2 as u8, 0]));
    // The new stack is invalid for a handler: #TS goes through a task gate, back to the first task.
    set_gate(&mut m, vector::TS, gate(0, TASK, descriptor::TASK_GATE, 0, 0));
    m.run(10_000);
    assert_eq!(m.cpu.arch.tr.selector, TASK);
    assert_eq!(m.cpu.wiring.ram.read::<u16>(TSS), Some(TASK2));
    assert_eq!(m.peek::<4>(STACK - 4), u32::from(USER_DATA & !3).to_le_bytes()[..]);
}

#[test]
fn the_t_flag_of_a_task_traps_on_arrival() {
    let mut m = system(0);
    second_task(&mut m, DATA, CODE0, DATA0);
    m.cpu.wiring.ram.write::<u16>(TSS2 + 100, 1);
    m.code(|a| a.db(&[0xea, 0, 0, 0, 0, TASK2 as u8, 0]));
    assert_eq!(handled(&mut m), vector::DB);
    assert_eq!((stack(&m, 0), m.cpu.arch.dr[6] >> 15 & 1), (DATA as u32, 1));
}

#[test]
fn lar_lsl_verr_and_arpl() {
    let mut m = system(3);
    m.cpu.arch.gpr[0] = u64::from(USER_CODE);
    m.execute(|a| a.lar(ecx, eax)).unwrap();
    assert!(m.cpu.arch.lazy.zf());
    assert_eq!(m.cpu.arch.gpr[1], 0x00cf_fa00);
    m.execute(|a| a.lsl(ecx, eax)).unwrap();
    assert_eq!(m.cpu.arch.gpr[1], u64::from(u32::MAX));
    m.cpu.arch.gpr[0] = u64::from(DATA0);
    m.execute(|a| a.lsl(ecx, eax)).unwrap();
    assert!(!m.cpu.arch.lazy.zf(), "DPL 0 from CPL 3");
    m.cpu.arch.gpr[0] = u64::from(USER_DATA);
    m.execute(|a| a.verw(ax)).unwrap();
    assert!(m.cpu.arch.lazy.zf());
    m.cpu.arch.gpr[0] = 0x10;
    m.cpu.arch.gpr[1] = 3;
    m.execute(|a| a.arpl(ax, cx)).unwrap();
    assert_eq!((m.cpu.arch.gpr[0], m.cpu.arch.lazy.zf()), (0x13, true));
}

/// Only the memory form clears buffers, even if the segment is not writable.
#[test]
fn verw_of_memory_is_an_event_and_verw_of_a_register_is_none() {
    let mut m = system(3);
    let clears = |m: &Machine| {
        let recorder = &m.cpu.wiring.recorder;
        let kind = Kind::new(Family::DescriptorTable, 2);
        recorder.events().filter(|event| event.2 == kind).map(|event| event.3.count).sum::<u64>()
    };
    m.cpu.arch.gpr[0] = u64::from(USER_DATA);
    m.execute(|a| a.verw(ax)).unwrap();
    m.execute(|a| a.verr(word_ptr(DATA as u32))).unwrap();
    assert_eq!(clears(&m), 0);
    for selector in [USER_DATA, 0, USER_CODE] {
        m.poke(DATA, &selector.to_le_bytes());
        m.execute(|a| a.verw(word_ptr(DATA as u32))).unwrap();
        assert_eq!(m.cpu.arch.lazy.zf(), selector == USER_DATA);
    }
    assert_eq!(clears(&m), 3);
}

/// Enters virtual-8086 mode at 1000:0 by IRET, with a stack at 2000:1000.
fn virtual8086(iopl: u64) -> Machine {
    let mut m = system(0);
    let image = (2 | flags::VM | flags::IF | iopl << 12) as i32;
    m.code(|a| {
        for value in [0x6000, 0x5000, 0x4000, 0x3000, 0x2000, 0x1000, image, 0x1000, 0] {
            a.push(value)?;
        }
        a.iretd()
    });
    for _ in 0..10 {
        m.step().unwrap();
    }
    assert!(m.cpu.v8086());
    assert_eq!((m.cpu.arch.cpl, m.bits(), m.cpu.code_linear()), (3, 16, 0x1_0000));
    assert_eq!(m.cpu.arch.seg[usize::from(seg::GS)].base, 0x6_0000);
    m
}

#[test]
fn a_software_interrupt_of_virtual_8086_mode_saves_the_data_segments() {
    let mut m = virtual8086(3);
    set_gate(&mut m, 0x21, gate(HANDLERS + 0x210, CODE0, descriptor::INTERRUPT_GATE32, 3, 0));
    m.poke(0x1_0000, &[0xcd, 0x21]);
    assert_eq!(handled(&mut m), 0x21);
    let frame: Vec<u32> = (0..9).map(|i| stack(&m, i)).collect();
    let image = (2 | flags::VM | flags::IF | flags::IOPL) as u32;
    assert_eq!(frame, [2, 0x1000, image, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000]);
    assert_eq!(m.cpu.arch.seg[usize::from(seg::DS)].selector, 0);
    assert!(!m.cpu.v8086());
}

#[test]
fn without_iopl_3_virtual_8086_mode_faults_or_uses_the_redirection_bitmap() {
    for code in [&[0xcd_u8, 0x21][..], &[0xfa], &[0x9c], &[0xcf]] {
        let mut m = virtual8086(0);
        m.poke(0x1_0000, code);
        assert_eq!(handled(&mut m), vector::GP, "{code:x?}");
    }
    let mut m = virtual8086(0);
    m.cpu.arch.cr4 |= CR4_VME;
    // A redirection bitmap of zeros before the I/O map: INT 21h goes to the program's own vector.
    m.cpu.wiring.ram.write::<u16>(TSS + 0x66, 0x88);
    m.cpu.arch.tr.limit = 0x90;
    m.cpu.wiring.ram.write::<u32>(0x21 * 4, 0x1000_0100);
    m.cpu.set_rflags(m.cpu.rflags() | flags::VIF);
    m.poke(0x1_0000, &[0xcd, 0x21]);
    m.step().unwrap();
    assert_eq!(m.cpu.code_linear(), 0x1_0100);
    assert_eq!(m.cpu.rflags() & flags::VIF, 0);
    let image = u16::from_le_bytes(m.peek(0x2_0000 + 0x1000 - 2));
    assert_eq!(u64::from(image) & (flags::IF | flags::IOPL), flags::IF | flags::IOPL, "VIF shows as IF");
    m.poke(0x1_0100, &[0xcf]);
    m.step().unwrap();
    assert_eq!(m.cpu.code_linear(), 0x1_0002);
    assert_ne!(m.cpu.rflags() & flags::VIF, 0);
}

#[test]
fn real_mode_interrupts_and_iret_go_by_the_vector_table() {
    let mut m = Machine::real16();
    m.cpu.arch.idtr = TableRegister { base: 0, limit: 0x3ff };
    m.cpu.wiring.ram.write::<u32>(0x80 * 4, 0x0900_0010);
    m.cpu.set_rflags(flags::IF | flags::CF);
    m.code(|a| a.int(0x80));
    m.step().unwrap();
    assert_eq!(m.cpu.code_linear(), 0x9010);
    assert_eq!(m.cpu.rflags(), 2 | flags::CF);
    assert_eq!(m.peek::<6>(0x7000 - 6), [2, 0x80, 0, 0, 3, 2]);
    m.poke(0x9010, &[0xcf]);
    m.step().unwrap();
    assert_eq!((m.cpu.code_linear(), m.cpu.rflags()), (0x8002, 2 | flags::IF | flags::CF));
}

#[test]
fn protected_mode_is_entered_and_left() {
    let mut m = Machine::real16();
    for (i, d) in [0, descriptor(rights::CODE | rights::DB, 0), descriptor(rights::DB, 0)].into_iter().enumerate() {
        m.cpu.wiring.ram.write::<u64>(GDT + 8 * i as u64, d);
    }
    m.cpu.arch.gdtr = TableRegister { base: GDT, limit: 0x17 };
    m.code(|a| {
        a.mov(eax, cr0)?;
        a.or(al, 1)?;
        a.mov(cr0, eax)?;
        a.db(&[0x66, 0xea, 0, 0, 0x10, 0, 8, 0])
    });
    for _ in 0..4 {
        m.step().unwrap();
    }
    assert_eq!((m.cpu.arch.rip, m.bits()), (CODE, 32));
    m.execute(|a| {
        a.mov(eax, 0x10)?;
        a.mov(ds, eax)
    })
    .unwrap();
    m.code(|a| {
        a.mov(eax, cr0)?;
        a.and(al, 0xfe)?;
        a.mov(cr0, eax)
    });
    for _ in 0..3 {
        m.step().unwrap();
    }
    assert!(!m.cpu.protected());
    m.cpu.arch.gpr[3] = 0x1234;
    m.execute(|a| a.mov(ds, ebx)).unwrap();
    let loaded = m.cpu.arch.seg[usize::from(seg::DS)];
    assert_eq!((loaded.base, loaded.limit), (0x1_2340, u32::MAX), "real mode keeps the limit");
}

#[test]
fn sysenter_and_sysexit_use_flat_segments() {
    let mut m = system(3);
    m.cpu.arch.msr.sysenter_cs = u64::from(CODE0);
    m.cpu.arch.msr.sysenter_esp = KERNEL_STACK;
    m.cpu.arch.msr.sysenter_eip = DATA;
    m.code(|a| a.sysenter());
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl, m.cpu.arch.gpr[4]), (DATA, 0, KERNEL_STACK));
    m.cpu.arch.gpr[1] = STACK;
    m.cpu.arch.gpr[2] = CODE + 2;
    m.poke(DATA, &[0x0f, 0x35]);
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl, m.cpu.arch.gpr[4]), (CODE + 2, 3, STACK));
    assert_eq!(m.cpu.arch.seg[usize::from(seg::CS)].selector, USER_CODE);
}

#[test]
fn repeated_outs_stops_at_each_access_and_goes_on() {
    let mut m = system(0);
    m.cpu.arch.gpr[1] = 3;
    m.cpu.arch.gpr[6] = DATA;
    m.code(|a| a.rep().outsb());
    for left in [2, 1, 0] {
        m.step().unwrap();
        assert_eq!((m.cpu.arch.gpr[1], m.cpu.arch.rip == CODE), (left, left != 0));
    }
    assert_eq!(m.cpu.arch.gpr[6], DATA + 3);
}

#[test]
fn code_of_16_bits_goes_on_beyond_64_kib_of_its_segment() {
    let mut m = system(0);
    let far = 0x12_fff8u32;
    m.code(|a| a.db(&[&[0xea][..], &far.to_le_bytes(), &CODE16.to_le_bytes()].concat()));
    // INC AX sixteen times, then HLT, beyond the end of 64 KiB: only 16-bit branches truncate EIP.
    m.poke(u64::from(far), &[[0x40; 16].as_slice(), &[0xf4]].concat());
    assert_eq!(m.run(100_000), Exit::Halt);
    assert_eq!((m.cpu.reg(reg::RAX) as u16, m.cpu.arch.rip), (16, u64::from(far) + 17));
}

#[test]
fn the_trap_of_a_data_breakpoint_comes_after_the_very_instruction() {
    let mut m = system(0);
    // Breakpoint 0 matches writes of four bytes.
    m.code(|a| {
        a.mov(eax, DATA as u32)?;
        a.mov(dr0, eax)?;
        a.mov(eax, 0x000d_0001)?;
        a.mov(dr7, eax)?;
        a.mov(dword_ptr(DATA), 7)?;
        a.inc(ecx)?;
        a.inc(ecx)?;
        a.hlt()
    });
    assert_eq!(m.run(100_000), Exit::Halt);
    assert_eq!(m.cpu.arch.rip, HANDLERS + 16 * u64::from(vector::DB) + 1);
    assert_eq!((m.cpu.reg(reg::RCX), m.cpu.arch.dr[6] & 0xf), (0, 1));
}
