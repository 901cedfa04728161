//! Tests of interrupts, privilege changes and system registers in 64-bit mode.

use crate::arch::{Segment, TableRegister};
use crate::op::SEG_FLAT;
use crate::run::Exit;
use crate::testing::{CODE, DATA, Machine, Raised, STACK};
use iced_x86::code_asm::*;
use x86::control::*;
use x86::{descriptor, flags, reg, rights, seg, vector};

/// Tables of the test's operating system.
const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const TSS: u64 = 0x6000;
/// Handlers: HLT at 16 bytes per vector.
pub(super) const HANDLERS: u64 = 0x30_0000;
/// RSP0.
const KERNEL_STACK: u64 = 0x70_0000;
/// IST1.
const IST_STACK: u64 = 0x68_0008;

pub(super) const CODE64: u16 = 0x08;
pub(super) const DATA0: u16 = 0x10;
pub(super) const USER_DATA: u16 = 0x23;
pub(super) const USER_CODE: u16 = 0x2b;
const TASK: u16 = 0x40;

fn descriptor(kind: u32, dpl: u32) -> u64 {
    let rights = kind | dpl << rights::DPL_SHIFT | rights::P | rights::S | rights::RW | rights::G;
    0x000f_0000_0000_ffff | u64::from(rights) << 40
}

pub(super) fn gate(offset: u64, selector: u16, kind: u8, dpl: u8, ist: u8) -> [u64; 2] {
    let low = (offset & 0xffff) | u64::from(selector) << 16 | u64::from(ist) << 32;
    let low = low | u64::from(0x80 | dpl << 5 | kind) << 40 | (offset >> 16 & 0xffff) << 48;
    [low, offset >> 32]
}

pub(super) fn set_gate(m: &mut Machine, vector: u8, gate: [u64; 2]) {
    for (i, half) in gate.into_iter().enumerate() {
        m.cpu.wiring.ram.write::<u64>(IDT + 16 * u64::from(vector) + 8 * i as u64, half);
    }
}

/// Returns a machine in 64-bit mode with descriptor tables, and handlers that halt.
pub(super) fn system(cpl: u8) -> Machine {
    let mut m = Machine::long64(cpl);
    let long = rights::CODE | rights::L;
    let gdt = [
        0,
        descriptor(long, 0),
        descriptor(rights::DB, 0),
        descriptor(rights::CODE | rights::DB, 3),
        descriptor(rights::DB, 3),
        descriptor(long, 3),
        descriptor(rights::CODE | rights::DB, 0),
    ];
    for (i, d) in gdt.into_iter().enumerate() {
        m.cpu.wiring.ram.write::<u64>(GDT + 8 * i as u64, d);
    }
    m.cpu.wiring.ram.write::<u64>(GDT + u64::from(TASK), 0x67 | TSS << 16 | 0x89 << 40);
    m.cpu.wiring.ram.write::<u64>(GDT + u64::from(TASK) + 8, 0);
    m.cpu.wiring.ram.write::<u64>(TSS + 4, KERNEL_STACK);
    m.cpu.wiring.ram.write::<u64>(TSS + 0x24, IST_STACK);
    m.cpu.wiring.ram.write::<u16>(TSS + 0x66, 0x68);
    m.cpu.arch.gdtr = TableRegister { base: GDT, limit: 0xff };
    m.cpu.arch.idtr = TableRegister { base: IDT, limit: 0xfff };
    m.cpu.arch.tr = Segment { base: TSS, limit: 0x67, rights: 0x8b, selector: TASK };
    for v in 0..=255u8 {
        let at = HANDLERS + 16 * u64::from(v);
        set_gate(&mut m, v, gate(at, CODE64, descriptor::INTERRUPT_GATE32, 0, 0));
        m.poke(at, &[0xf4]);
    }
    let (code, data) = if cpl == 0 { (CODE64, DATA0) } else { (USER_CODE, USER_DATA) };
    m.cpu.arch.seg[usize::from(seg::CS)].selector = code;
    m.cpu.arch.seg[usize::from(seg::SS)].selector = data;
    m
}

/// Runs to the HLT of a handler, and returns its vector.
pub(super) fn handled(m: &mut Machine) -> u8 {
    let exit = m.run(1 << 32);
    assert_eq!(exit, Exit::Halt, "stopped at {:#x}", m.cpu.arch.rip);
    ((m.cpu.arch.rip - 1 - HANDLERS) / 16) as u8
}

fn stack(m: &Machine, slot: u64) -> u64 {
    u64::from_le_bytes(m.peek(m.cpu.arch.gpr[usize::from(reg::RSP)] + 8 * slot))
}

#[test]
fn an_exception_in_user_mode_switches_to_rsp0_and_pushes_its_frame() {
    let mut m = system(3);
    m.code(|a| a.ud2());
    m.cpu.arch.flags |= flags::IF;
    assert_eq!(handled(&mut m), vector::UD);
    assert_eq!(m.cpu.arch.cpl, 0);
    assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], KERNEL_STACK - 40);
    let frame: Vec<u64> = (0..5).map(|i| stack(&m, i)).collect();
    // The fault sets RF in the image.
    assert_eq!(frame, [CODE, u64::from(USER_CODE), 2 | flags::IF | flags::RF, STACK, u64::from(USER_DATA)]);
    assert_eq!(m.cpu.arch.flags & (flags::IF | flags::RF), 0);
    assert_eq!(m.cpu.arch.seg[usize::from(seg::SS)].selector, 0);
}

#[test]
fn a_page_fault_writes_cr2_and_pushes_its_code() {
    let mut m = system(3);
    m.code(|a| a.mov(dword_ptr(0x7000_0000u64), eax));
    assert_eq!(handled(&mut m), vector::PF);
    assert_eq!(m.cpu.arch.cr2, 0x7000_0000);
    assert_eq!(stack(&m, 0), 6);
    assert_eq!(stack(&m, 1), CODE);
}

#[test]
fn a_page_fault_of_a_fetch_gives_the_instructions_address() {
    let mut m = system(3);
    m.code(|a| {
        a.mov(rax, 0x7000_0123u64)?;
        a.jmp(rax)
    });
    assert_eq!(handled(&mut m), vector::PF);
    assert_eq!(m.cpu.arch.cr2, 0x7000_0123);
    assert_eq!(stack(&m, 1), 0x7000_0123);
}

#[test]
fn the_ist_is_used_and_aligned_without_a_privilege_change() {
    let mut m = system(0);
    set_gate(&mut m, 6, gate(HANDLERS + 96, CODE64, descriptor::TRAP_GATE32, 0, 1));
    m.cpu.arch.flags |= flags::IF;
    m.code(|a| a.ud2());
    assert_eq!(handled(&mut m), vector::UD);
    assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], (IST_STACK & !15) - 40);
    assert_eq!(stack(&m, 4), u64::from(DATA0), "SS is kept and pushed");
    assert_ne!(m.cpu.arch.flags & flags::IF, 0, "a trap gate leaves IF");
}

#[test]
fn iretq_returns_to_user_mode_and_to_compatibility_mode() {
    for (selector, bits) in [(USER_CODE, 64), (0x1b, 32)] {
        let mut m = system(0);
        let target = DATA + 0x100;
        m.code(|a| {
            a.push(i32::from(USER_DATA))?;
            a.push(0x12_3450)?;
            a.push(0x202 | flags::RF as i32)?;
            a.push(i32::from(selector))?;
            a.push(target as i32)?;
            a.iretq()
        });
        m.poke(target, &[0x0f, 0x0b]);
        for _ in 0..6 {
            m.step().unwrap();
        }
        assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl, m.bits()), (target, 3, bits));
        assert_eq!(m.cpu.arch.gpr[usize::from(reg::RSP)], 0x12_3450);
        assert_eq!(m.cpu.rflags() & (flags::IF | flags::RF), flags::IF | flags::RF);
        assert_eq!(handled(&mut m), vector::UD);
    }
}

#[test]
fn a_bad_gate_is_gp_then_double_fault_then_shutdown() {
    let mut m = system(0);
    set_gate(&mut m, 6, [0, 0]);
    m.code(|a| a.ud2());
    assert_eq!(handled(&mut m), vector::GP);
    assert_eq!(stack(&m, 0), 6 << 3 | 2 | 1, "IDT and EXT");
    let mut m = system(0);
    for v in [vector::GP, vector::DE] {
        set_gate(&mut m, v, [0, 0]);
    }
    m.code(|a| {
        a.xor(ecx, ecx)?;
        a.div(ecx)
    });
    assert_eq!(handled(&mut m), vector::DF);
    assert_eq!(stack(&m, 0), 0);
    set_gate(&mut m, vector::DF, [0, 0]);
    m.cpu.arch.rip = CODE;
    assert_eq!(m.run(1 << 32), Exit::Shutdown);
}

#[test]
fn software_interrupts_need_the_gates_privilege() {
    let mut m = system(3);
    m.code(|a| a.int(0x80));
    assert_eq!(handled(&mut m), vector::GP);
    assert_eq!((stack(&m, 0), stack(&m, 1)), (0x80 << 3 | 2, CODE));
    let mut m = system(3);
    set_gate(&mut m, 0x80, gate(HANDLERS + 0x800, CODE64, descriptor::INTERRUPT_GATE32, 3, 0));
    m.code(|a| a.int(0x80));
    assert_eq!(handled(&mut m), 0x80);
    assert_eq!(stack(&m, 0), CODE + 2, "the next instruction");
}

/// As specified by AMD's manual (vol. 3, INT n), and done by a Zen 4.
#[test]
fn the_resume_flag_is_not_in_the_image_that_a_software_interrupt_pushes() {
    for code in [&[0xcd, 0x03][..], &[0xcc], &[0xf1]] {
        let mut m = system(0);
        m.poke(CODE, code);
        m.cpu.set_rflags(2 | flags::RF);
        assert_eq!(handled(&mut m), if code == [0xf1] { vector::DB } else { vector::BP });
        assert_eq!((stack(&m, 0), stack(&m, 2)), (CODE + code.len() as u64, 2));
    }
    let mut m = system(0);
    m.code(|a| a.ud2());
    m.cpu.set_rflags(2 | flags::RF);
    assert_eq!((handled(&mut m), stack(&m, 2)), (vector::UD, 2 | flags::RF));
}

#[test]
fn syscall_and_sysret_exchange_rip_and_flags() {
    let mut m = system(3);
    m.cpu.arch.msr.star = u64::from(CODE64) << 32 | 0x18 << 48;
    m.cpu.arch.msr.lstar = DATA;
    m.cpu.arch.msr.fmask = flags::IF | flags::DF;
    m.cpu.set_rflags(flags::IF | flags::DF | flags::CF);
    m.code(|a| a.syscall());
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl, m.cpu.arch.gpr[1]), (DATA, 0, CODE + 2));
    assert_eq!(m.cpu.arch.gpr[11], 2 | flags::IF | flags::DF | flags::CF);
    assert_eq!(m.cpu.rflags(), 2 | flags::CF);
    m.poke(DATA, &[0x48, 0x0f, 0x07]);
    m.step().unwrap();
    assert_eq!((m.cpu.arch.rip, m.cpu.arch.cpl), (CODE + 2, 3));
    assert_eq!(m.cpu.arch.seg[usize::from(seg::CS)].selector, 0x2b);
    assert_eq!(m.cpu.rflags(), 2 | flags::IF | flags::DF | flags::CF);
}

#[test]
fn the_stack_segments_of_syscall_and_sysret() {
    // RPLs from STAR: SYSCALL clears the RPL of CS only; SYSRET sets 3, except for AMD's SS, of which only the selector
    // is loaded.
    for (amd, returned, dpl) in [(false, 0x1b, 3), (true, 0x19, 0)] {
        let mut m = system(3);
        m.cpu.wiring.capabilities.amd = amd;
        m.cpu.arch.msr.star = u64::from(CODE64 | 2) << 32 | 0x11 << 48;
        m.cpu.arch.msr.lstar = DATA;
        m.code(|a| a.syscall());
        m.step().unwrap();
        let part = |m: &Machine, which: u8| m.cpu.arch.seg[usize::from(which)];
        assert_eq!(part(&m, seg::CS).selector, CODE64, "amd: {amd}");
        assert_eq!(part(&m, seg::SS).selector, (CODE64 | 2) + 8, "amd: {amd}");
        m.poke(DATA, &[0x48, 0x0f, 0x07]);
        m.step().unwrap();
        assert_eq!(part(&m, seg::CS).selector, 0x23, "amd: {amd}");
        assert_eq!((part(&m, seg::SS).selector, part(&m, seg::SS).dpl()), (returned, dpl), "amd: {amd}");
    }
}

#[test]
fn a_trap_flag_loaded_by_sysret_traps_at_once_and_one_cleared_by_syscall_does_not() {
    let mut m = system(3);
    m.cpu.arch.msr.star = u64::from(CODE64) << 32 | 0x18 << 48;
    m.cpu.arch.msr.lstar = DATA;
    m.cpu.arch.msr.fmask = flags::TF;
    m.cpu.set_rflags(flags::TF);
    m.code(|a| a.syscall());
    m.poke(DATA, &[0x48, 0x0f, 0x07]);
    assert_eq!(handled(&mut m), vector::DB);
    assert_eq!((stack(&m, 0), stack(&m, 1)), (CODE + 2, u64::from(USER_CODE)));
}

#[test]
fn sysret_to_a_non_canonical_address_faults_in_the_kernel() {
    let mut m = system(0);
    m.cpu.arch.gpr[1] = 1 << 47;
    m.code(|a| a.sysretq());
    assert_eq!(m.step(), Err(Raised { vector: vector::GP, code: Some(0) }));
    assert_eq!(m.cpu.arch.cpl, 0);
}

#[test]
fn segment_loads_check_and_mark_descriptors() {
    let mut m = system(0);
    m.cpu.arch.gpr[0] = u64::from(USER_DATA);
    m.execute(|a| a.mov(ds, eax)).unwrap();
    assert_eq!(m.cpu.arch.seg[usize::from(seg::DS)].limit, u32::MAX);
    assert_ne!(m.cpu.wiring.ram.read::<u8>(GDT + 0x25).unwrap() & 1, 0, "accessed");
    m.cpu.arch.gpr[0] = u64::from(CODE64);
    assert_eq!(m.execute(|a| a.mov(ss, eax)), Err(Raised { vector: vector::GP, code: Some(8) }));
    m.cpu.arch.gpr[0] = 0x200;
    assert_eq!(m.execute(|a| a.mov(es, eax)), Err(Raised { vector: vector::GP, code: Some(0x200) }));
    m.cpu.arch.gpr[0] = 0;
    m.cpu.arch.seg[usize::from(seg::FS)].base = 5;
    m.execute(|a| a.mov(fs, eax)).unwrap();
    assert_eq!(m.cpu.arch.seg[usize::from(seg::FS)].base, 0);
}

#[test]
fn far_returns_and_jumps_change_between_64_and_32_bits() {
    let mut m = system(0);
    m.code(|a| {
        a.push(0x30)?;
        a.push(DATA as i32)?;
        a.db(&[0x48, 0xcb])
    });
    for _ in 0..3 {
        m.step().unwrap();
    }
    assert_eq!((m.bits(), m.cpu.arch.rip), (32, DATA));
    m.code(|a| a.db(&[0xea, 0, 0, 0x30, 0, 8, 0]));
    m.step().unwrap();
    assert_eq!((m.bits(), m.cpu.arch.rip), (64, 0x30_0000));
}

#[test]
fn control_registers_refuse_what_they_must() {
    let mut m = system(0);
    let gp = Err(Raised { vector: vector::GP, code: Some(0) });
    m.cpu.arch.gpr[0] = m.cpu.arch.cr0 & !CR0_PG;
    assert_eq!(m.execute(|a| a.mov(cr0, rax)), gp, "PG cannot be cleared in 64-bit mode");
    m.cpu.arch.gpr[0] = m.cpu.arch.cr4 & !CR4_PAE;
    assert_eq!(m.execute(|a| a.mov(cr4, rax)), gp);
    m.cpu.arch.gpr[0] = m.cpu.arch.cr4 | CR4_LA57;
    assert_eq!(m.execute(|a| a.mov(cr4, rax)), gp);
    m.cpu.arch.gpr[0] = m.cpu.arch.cr4 | 1 << 30;
    assert_eq!(m.execute(|a| a.mov(cr4, rax)), gp);
    m.cpu.arch.gpr[0] = m.cpu.arch.cr3 | 1 << 63;
    assert_eq!(m.execute(|a| a.mov(cr3, rax)), gp, "without PCIDE");
    m.cpu.arch.gpr[0] = m.cpu.arch.cr4 | CR4_PCIDE;
    m.execute(|a| a.mov(cr4, rax)).unwrap();
    m.cpu.arch.gpr[0] = m.cpu.arch.cr3 | 1 << 63 | 5;
    m.execute(|a| a.mov(cr3, rax)).unwrap();
    assert_eq!(m.cpu.arch.cr3 >> 63, 0);
    assert_eq!(m.cpu.pcid(), 5);
    let mut m = system(3);
    assert_eq!(m.execute(|a| a.mov(rax, cr0)), gp);
}

#[test]
fn msrs_check_their_values() {
    let mut m = system(0);
    for (index, value, good) in [
        (0xc000_0082u32, 1u64 << 60, false),
        (0xc000_0082, 0xffff_8000_0000_0000, true),
        (0xc000_0101, 0x1234_5678, true),
        (0x277, 0x0007_0406_0007_0402, false),
        (0x277, 0x0007_0106_0007_0406, true),
        (0xc000_0080, 0x1_0d01, false),
        (0x174, 1 << 32, false),
        (0x1234, 0, false),
    ] {
        m.cpu.arch.gpr[0] = value & 0xffff_ffff;
        m.cpu.arch.gpr[2] = value >> 32;
        m.cpu.arch.gpr[1] = u64::from(index);
        m.cpu.arch.rip = CODE;
        assert_eq!(m.execute(|a| a.wrmsr()).is_ok(), good, "{index:#x} = {value:#x}");
        if good {
            m.execute(|a| a.rdmsr()).unwrap();
            assert_eq!(m.cpu.arch.gpr[2] << 32 | m.cpu.arch.gpr[0], value);
        }
    }
    assert_eq!(m.cpu.arch.seg[usize::from(seg::GS)].base, 0x1234_5678);
    assert_eq!(m.cpu.arch.seg[usize::from(SEG_FLAT)].base, 0);
}

#[test]
fn ports_of_user_mode_go_by_the_bitmap() {
    let mut m = system(3);
    m.cpu.arch.tr.limit = 0x67 + 0x40;
    m.cpu.wiring.ram.write::<u64>(TSS + 0x68, !(1 << 0x20));
    m.cpu.arch.gpr[2] = 0x20;
    m.execute(|a| a.in_(al, dx)).unwrap();
    assert_eq!(m.execute(|a| a.in_(ax, dx)), Err(Raised { vector: vector::GP, code: Some(0) }));
    m.cpu.arch.flags |= flags::IOPL;
    m.cpu.arch.rip = CODE;
    m.execute(|a| a.in_(ax, dx)).unwrap();
}

#[test]
fn single_step_traps_after_each_instruction_but_not_after_mov_ss() {
    let mut m = system(0);
    m.cpu.set_rflags(flags::TF);
    m.cpu.arch.gpr[0] = u64::from(DATA0);
    m.code(|a| {
        a.mov(ss, eax)?;
        a.nop()?;
        a.nop()
    });
    assert_eq!(handled(&mut m), vector::DB);
    assert_eq!(stack(&m, 0), CODE + 3, "after the instruction that follows MOV SS");
    assert_eq!(stack(&m, 2), 2 | flags::TF);
    assert_eq!(m.cpu.arch.dr[6], 0xffff_4ff0);
}

#[test]
fn mov_ss_holds_instruction_breakpoints_back_except_on_amd() {
    for (amd, stopped_at) in [(false, CODE + 4), (true, CODE + 2)] {
        let mut m = system(0);
        m.cpu.wiring.capabilities.amd = amd;
        m.cpu.arch.dr[0] = CODE + 2;
        m.cpu.arch.dr[1] = CODE + 4;
        m.cpu.arch.dr[7] |= 2 | 2 << 2;
        m.cpu.breakpoints_changed();
        m.cpu.arch.gpr[0] = u64::from(DATA0);
        m.code(|a| {
            a.mov(ss, eax)?;
            a.mov(ecx, eax)?;
            a.nop()
        });
        assert_eq!(handled(&mut m), vector::DB);
        assert_eq!(stack(&m, 0), stopped_at);
    }
}

#[test]
fn a_debug_register_access_under_gd_faults() {
    let mut m = system(0);
    m.cpu.arch.dr[7] |= 1 << 13;
    m.code(|a| a.mov(rax, dr0));
    assert_eq!(handled(&mut m), vector::DB);
    assert_eq!(stack(&m, 0), CODE);
    assert_eq!((m.cpu.arch.dr[6] >> 13 & 1, m.cpu.arch.dr[7] >> 13 & 1), (1, 0));
}

#[test]
fn privileged_instructions_fault_in_user_mode() {
    let gp = Err(Raised { vector: vector::GP, code: Some(0) });
    type Write = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    let write: [Write; 12] = [
        |a| a.hlt(),
        |a| a.cli(),
        |a| a.sti(),
        |a| a.clts(),
        |a| a.invd(),
        |a| a.wbinvd(),
        |a| a.swapgs(),
        |a| a.lgdt(ptr(DATA)),
        |a| a.ltr(ax),
        |a| a.rdmsr(),
        |a| a.invlpg(ptr(DATA)),
        |a| a.mov(dr7, rax),
    ];
    for (i, code) in write.into_iter().enumerate() {
        let mut m = system(3);
        assert_eq!(m.execute(code), gp, "instruction {i}");
    }
}
