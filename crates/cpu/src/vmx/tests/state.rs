//! Tests of the state after an exit: blocking, activity and pending traps, exits for memory during other operations,
//! and virtual-8086 mode.

use super::super::Controls;
use super::{EPT, Guest, Mode, unrestricted};
use crate::Exit;
use crate::arch::Segment;
use crate::testing::DATA;
use crate::translate::BlockCache;
use iced_x86::code_asm::*;
use x86::control::*;
use x86::vmx::{activity, interruptibility, interruption, pending_debug, pin, primary, reason, secondary};
use x86::{flags, reg, seg, vector};

const VALID: u32 = interruption::VALID;
/// Memory of the guest that EPT optionally does not map.
const HOLE: u64 = 0xc0_0000;

/// Returns a guest with EPT and a hole of 2 MiB at [`HOLE`].
fn under_ept(mode: Mode) -> Guest {
    let mut guest = Guest::new(mode, 0);
    if mode != Mode::Real {
        unrestricted(&mut guest.m, &mut guest.controls);
    }
    guest.m.cpu.wiring.ram.write::<u64>(EPT + 0x2000 + 8 * (HOLE >> 21), 0);
    guest
}

#[test]
fn a_halted_guest_can_be_entered() {
    let mut guest = Guest::long().with(|c| c.activity = activity::HLT).code(|a| a.ud2());
    assert_eq!(guest.go(), Exit::Halt);
    assert_eq!(guest.offset(), 0);
    // An event ends it.
    let mut guest = Guest::long()
        .with(|c| {
            c.activity = activity::HLT;
            c.entry_interruption = VALID | 0x31;
        })
        .set(|cpu| cpu.arch.flags |= flags::IF)
        .code(|a| a.ud2());
    assert_eq!((guest.go(), guest.handler()), (Exit::Halt, 0x31));
    // An interrupt window ends it too.
    let mut guest = Guest::long()
        .with(|c| {
            c.activity = activity::HLT;
            c.primary |= primary::INTERRUPT_WINDOW;
        })
        .set(|cpu| cpu.arch.flags |= flags::IF)
        .code(|a| a.ud2());
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
    assert_eq!(guest.m.cpu.controls().activity, activity::HLT);
}

#[test]
fn mov_ss_holds_traps_back_and_an_exit_keeps_them() {
    let program = |a: &mut CodeAssembler| {
        a.mov(ss, word_ptr(DATA))?;
        a.cpuid()?;
        a.nop()
    };
    let mut guest = Guest::long()
        .with(|c| c.exception_bitmap = 1 << vector::DB)
        .set(|cpu| {
            cpu.arch.dr[0] = DATA;
            cpu.arch.dr[7] = 0x400 | 1 | 3 << 16;
        })
        .code(program);
    guest.m.poke(DATA, &[0x10, 0]);
    assert_eq!(guest.exit().reason, reason::CPUID);
    let controls = guest.m.cpu.controls();
    assert_eq!(controls.interruptibility, interruptibility::MOV_SS);
    assert_eq!(controls.pending_debug, pending_debug::ENABLED_BREAKPOINT | 1);
    // Entry after the instruction, without blocking: the trap follows at once.
    let cpu = &mut guest.m.cpu;
    cpu.arch.rip += 2;
    cpu.controls_mut().interruptibility = 0;
    cpu.vm_reentry().expect("valid");
    assert_eq!(guest.m.run(super::LONG), Exit::Vm);
    assert_eq!((guest.m.cpu.arch.vm_exit.interruption & 0xff, guest.m.cpu.arch.vm_exit.qualification), (1, 1));
}

#[test]
fn missing_memory_exits_with_the_event_on_its_way() {
    for mode in [Mode::Long, Mode::Real] {
        let mut guest = under_ept(mode);
        guest.controls.entry_interruption = VALID | 0x44;
        guest = guest.set(|cpu| cpu.arch.flags |= flags::IF).code(|a| a.nop());
        if mode == Mode::Long {
            guest.m.cpu.arch.gpr[usize::from(reg::RSP)] = HOLE + 0x800;
        } else {
            guest.m.cpu.arch.seg[usize::from(seg::SS)] =
                Segment { base: HOLE, ..guest.m.cpu.arch.seg[usize::from(seg::SS)] };
        }
        let exit = guest.exit();
        assert_eq!(exit.reason, reason::EPT_VIOLATION, "{mode:?}");
        assert_eq!(exit.guest_physical >> 21, HOLE >> 21, "{mode:?}");
        assert_eq!(exit.vectoring, VALID | 0x44, "{mode:?}");
        assert_eq!((guest.offset(), guest.m.cpu.arch.flags & flags::RF), (0, 0), "{mode:?}");
    }
    // A pending trap of an instruction itself.
    let mut guest = under_ept(Mode::Long).code(|a| {
        a.nop()?;
        a.int(0x50)
    });
    guest.m.cpu.arch.gpr[usize::from(reg::RSP)] = HOLE + 0x800;
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.vectoring), (reason::EPT_VIOLATION, VALID | interruption::SOFTWARE_INTERRUPT | 0x50));
    assert_eq!((guest.offset(), exit.instruction_length), (1, 2));
}

#[test]
fn missing_memory_of_an_instruction() {
    let mut guest = under_ept(Mode::Long).code(|a| {
        a.nop()?;
        a.inc(dword_ptr(HOLE + 0x10))
    });
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.vectoring, guest.offset()), (reason::EPT_VIOLATION, 0, 1));
    assert_ne!(guest.m.cpu.arch.flags & flags::RF, 0);
    // IRET that has unblocked NMIs before its stack turns out to be missing.
    let mut guest = under_ept(Mode::Long)
        .with(|c| {
            c.pin = pin::NMI | pin::VIRTUAL_NMIS;
            c.interruptibility = interruptibility::NMI;
        })
        .code(|a| a.iretq());
    guest.m.cpu.arch.gpr[usize::from(reg::RSP)] = HOLE + 0x800;
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.qualification >> 12 & 1), (reason::EPT_VIOLATION, 1));
    assert_eq!(guest.m.cpu.controls().interruptibility, 0);
    // Code that is not present.
    let mut guest = under_ept(Mode::Long).code(|a| {
        a.mov(rax, HOLE + 0x30)?;
        a.jmp(rax)
    });
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.qualification & 7), (reason::EPT_VIOLATION, 4));
    assert_eq!(guest.m.cpu.arch.rip, HOLE + 0x30);
}

/// Returns virtual-8086 code at [`DATA`] with the given IOPL.
fn virtual_8086(iopl: u64) -> Guest {
    let mut guest = Guest::new(Mode::Paged, 3);
    let cpu = &mut guest.m.cpu;
    let low = 0x9000;
    for s in &mut cpu.arch.seg[..6] {
        *s = Segment { base: low, limit: 0xffff, rights: 0xf3, selector: (low >> 4) as u16 };
    }
    cpu.set_rflags(flags::VM | iopl << 12 | 2);
    cpu.arch.rip = 0;
    cpu.arch.gpr[usize::from(reg::RSP)] = 0x1000;
    cpu.mode_changed();
    guest
}

#[test]
fn events_for_virtual_8086_mode() {
    let inject: fn(&mut Controls) = |c| {
        c.entry_interruption = VALID | interruption::SOFTWARE_INTERRUPT | 0x21;
        c.entry_instruction_length = 2;
    };
    // The host has checked IOPL.
    let mut guest = virtual_8086(0).with(inject);
    assert_eq!((guest.go(), guest.handler(), guest.m.cpu.arch.cpl), (Exit::Halt, 0x21, 0));
    assert_eq!(guest.stack::<1>()[0] as u32, 2);
    // An executed one raises #GP.
    let mut guest = virtual_8086(0);
    guest.m.poke(0x9000, &[0xcd, 0x21]);
    assert_eq!((guest.go(), guest.handler()), (Exit::Halt, 13));
    // With the extensions, the program's own handler: vector 0x21 of the table at 0.
    let own = |clear: bool, iopl: u64| {
        let mut guest = virtual_8086(iopl).with(inject).with(|c| c.exception_bitmap = 1 << vector::GP).set(|cpu| {
            cpu.arch.cr4 |= CR4_VME;
            cpu.arch.tr.limit = 0x1ff;
        });
        let map = super::TSS + 0x88;
        guest.m.poke(super::TSS + 0x66, &0xa8u16.to_le_bytes());
        guest.m.poke(map, &[if clear { 0 } else { 0xff }; 32]);
        guest.m.poke(4 * 0x21, &[0x40, 0, 0, 0x09]);
        guest.m.poke(0x9040, &[0xf4]);
        guest
    };
    let mut guest = own(true, 0);
    // HLT at privilege level 3.
    assert_eq!(guest.exit().interruption & 0xff, 13);
    assert_eq!((guest.m.cpu.arch.rip, guest.m.cpu.arch.seg[usize::from(seg::CS)].base), (0x40, 0x9000));
    let top = guest.reg(reg::RSP) & 0xffff;
    assert_eq!(top, 0x1000 - 6);
    let frame: [u8; 6] = guest.m.peek(0x9000 + top);
    assert_eq!(frame[..4], [2, 0, 0, 9]);
    assert_eq!(frame[5] >> 4 & 3, 3, "IOPL as the program sees it");
    // Without redirection IOPL applies again.
    let mut guest = own(false, 0);
    let exit = guest.exit();
    assert_eq!((exit.interruption & 0xff, exit.vectoring), (13, VALID | interruption::SOFTWARE_INTERRUPT | 0x21));
    assert_eq!(guest.m.cpu.arch.rip, 0);
}

#[test]
fn instructions_of_vmx_need_protected_mode() {
    let mut guest = Guest::new(Mode::Real, 0).with(|c| c.exception_bitmap = 1 << vector::UD).code(|a| a.vmxoff());
    assert_eq!(guest.exit().interruption & 0xff, 6);
    let mut guest = Guest::new(Mode::Real, 0).code(|a| a.vmcall());
    assert_eq!(guest.exit().reason, reason::VMCALL);
    // Outside non-root mode the instruction does not exist.
    let mut guest = Guest::long().code(|a| a.vmcall());
    assert_eq!(guest.m.run(super::LONG), Exit::Halt);
    assert_eq!(guest.handler(), 6);
}

#[test]
fn an_unrestricted_guest_enters_and_leaves_protected_mode() {
    // From real mode to 32-bit protected mode, up to the fixed bit that stays set.
    let mut guest = Guest::new(Mode::Real, 0).with(|c| c.exception_bitmap = 1 << vector::GP).code(|a| {
        a.mov(eax, cr0)?;
        a.or(eax, 1)?;
        a.mov(cr0, eax)?;
        a.and(eax, !0x20)?;
        a.mov(cr0, eax)
    });
    let exit = guest.exit();
    assert_eq!((exit.interruption & 0xff, guest.m.cpu.arch.cr0 & (CR0_PE | CR0_NE)), (13, CR0_PE | CR0_NE));
    let mut guest = Guest::new(Mode::Real, 0).with(|c| c.secondary |= secondary::DESCRIPTOR_TABLE).code(|a| {
        a.mov(eax, cr0)?;
        a.xor(eax, 1)?;
        a.mov(cr0, eax)?;
        a.xor(eax, 1)?;
        a.mov(cr0, eax)?;
        a.lidt(ptr(bx))
    });
    assert_eq!((guest.exit().reason, guest.m.cpu.arch.cr0 & CR0_PE), (reason::GDTR_IDTR, 0));
}

#[test]
fn long_mode_guests_switch_it_on_themselves() {
    // With EPT: 32-bit paging off, PAE, LME, paging on. The next exit reports an IA-32e mode guest.
    let mut guest = under_ept(Mode::Paged);
    for (at, entry) in [(0xa000u64, 0xb007u64), (0xb000, 0x87)] {
        guest.m.cpu.wiring.ram.write::<u64>(at, entry);
    }
    guest.m.cpu.wiring.ram.write::<u64>(0xb000, 0xc007);
    for i in 0..8u64 {
        guest.m.cpu.wiring.ram.write::<u64>(0xc000 + 8 * i, i << 21 | 0x87);
    }
    guest.controls.primary |= primary::MSR_BITMAPS;
    guest.controls.msr_bitmap = Some(std::sync::Arc::new([0; 4096]));
    let mut guest = guest.code(|a| {
        a.mov(eax, cr0)?;
        a.and(eax, 0x7fff_ffff)?;
        a.mov(cr0, eax)?;
        a.mov(ebx, cr4)?;
        a.or(ebx, 0x20)?;
        a.mov(cr4, ebx)?;
        a.mov(ecx, 0xa000)?;
        a.mov(cr3, ecx)?;
        a.mov(ecx, 0xc000_0080u32)?;
        a.mov(esi, eax)?;
        a.rdmsr()?;
        a.or(eax, 0x100)?;
        a.wrmsr()?;
        a.or(esi, 0x8000_0000u32)?;
        a.mov(cr0, esi)?;
        a.cpuid()
    });
    let exit = guest.exit();
    assert_eq!(exit.reason, reason::CPUID, "{exit:x?}");
    assert!(guest.m.cpu.long_mode());
    assert_eq!(guest.m.cpu.controls().entry, super::entry::IA32E_GUEST);
    assert_eq!(guest.m.cpu.vm_reentry(), Ok(()));
}

#[test]
fn an_exit_after_sysret_saves_the_privilege_level_in_ss_on_amd_too() {
    for amd in [false, true] {
        let mut guest = Guest::long()
            .with(|c| c.primary |= primary::UNCONDITIONAL_IO)
            .set(|cpu| {
                cpu.wiring.capabilities.amd = amd;
                cpu.arch.msr.efer |= EFER_SCE;
                cpu.arch.msr.star = 0x1b << 48;
                cpu.arch.gpr[usize::from(reg::RCX)] = DATA;
                cpu.arch.gpr[11] = 2 | flags::IOPL;
            })
            .code(|a| a.sysretq());
        // IN AL, 0x70; NOP; IN AL, 0x71
        guest.m.poke(DATA, &[0xe4, 0x70, 0x90, 0xe4, 0x71]);
        assert_eq!(guest.exit().reason, reason::IO, "amd: {amd}");
        let cpu = &mut guest.m.cpu;
        let stack = cpu.arch.seg[usize::from(seg::SS)];
        assert_eq!((cpu.arch.cpl, stack.dpl(), stack.selector), (3, 3, 0x23), "amd: {amd}");
        // The guest can be entered again at the same point.
        cpu.arch.rip += 2;
        cpu.vm_reentry().expect("valid");
        assert_eq!(guest.m.run(super::LONG), Exit::Vm);
        assert_eq!((guest.m.cpu.arch.vm_exit.qualification >> 16, guest.m.cpu.arch.cpl), (0x71, 3), "amd: {amd}");
    }
}

#[test]
fn a_sysret_in_software_leaves_a_guest_that_can_be_entered() {
    let mut guest = Guest::long().set(|cpu| {
        cpu.wiring.capabilities.amd = true;
        cpu.arch.msr.efer |= EFER_SCE;
        cpu.arch.msr.star = 0x1b << 48;
        cpu.arch.gpr[usize::from(reg::RCX)] = DATA;
        cpu.arch.gpr[11] = 2;
    });
    guest = guest.code(|a| a.sysretq());
    let view = crate::vmx::GuestView::of(&guest.m.cpu);
    let emulation = guest.m.cpu.emulate(&view, None, &mut BlockCache::new());
    assert_eq!(emulation.outcome, crate::vmx::Outcome::Completed);
    assert_eq!((guest.m.cpu.arch.cpl, guest.m.cpu.arch.seg[usize::from(seg::SS)].dpl()), (3, 3));
    let controls = guest.controls.clone();
    assert_eq!(guest.m.cpu.check_guest(&controls), Ok(()));
}

#[test]
fn what_only_amds_sysret_leaves_can_be_entered_again() {
    const FAR: u64 = 1 << 60;
    // A non-canonical target, which faults there on AMD processors only, and an RPL in STAR that is not 3.
    for (star, target, exception) in [(0x1b_u64, FAR, true), (0x18, DATA, false)] {
        let mut guest = Guest::long()
            .with(|c| {
                c.primary |= primary::UNCONDITIONAL_IO;
                c.exception_bitmap = 1 << vector::GP;
            })
            .set(|cpu| {
                cpu.wiring.capabilities.amd = true;
                cpu.arch.msr.efer |= EFER_SCE;
                cpu.arch.msr.star = star << 48;
                cpu.arch.gpr[usize::from(reg::RCX)] = target;
                cpu.arch.gpr[11] = 2 | flags::IOPL;
            })
            .code(|a| a.sysretq());
        // IN AL, 0x70
        guest.m.poke(DATA, &[0xe4, 0x70]);
        let reason = if exception { reason::EXCEPTION_NMI } else { reason::IO };
        assert_eq!(guest.exit().reason, reason);
        let cpu = &mut guest.m.cpu;
        assert_eq!((cpu.arch.rip, cpu.arch.cpl), (target, 3));
        cpu.vm_reentry().expect("valid");
        assert_eq!(guest.m.run(super::LONG), Exit::Vm);
        assert_eq!((guest.m.cpu.arch.vm_exit.reason, guest.m.cpu.arch.rip), (reason, target));
        // An Intel processor cannot be in such a state, and its VMX rejects it.
        guest.m.cpu.wiring.capabilities.amd = false;
        guest.m.cpu.vm_reentry().expect_err("refused");
    }
}
