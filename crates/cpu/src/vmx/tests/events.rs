//! Tests of events in non-root mode: exits, injection, and exits during delivery.

use super::{Guest, HANDLERS, IDT, LONG, Mode};
use crate::Exit;
use crate::arch::attention;
use crate::bus::{Bus, Ident, NoDevices};
use crate::state::Cpu;
use crate::testing::{CODE, DATA, RAM, STACK};
use iced_x86::code_asm::*;
use std::sync::{Arc, Mutex};
use x86::control::*;
use x86::vmx::{interruptibility, interruption, pending_debug, pin, primary, reason};
use x86::{flags, reg, vector};

const VALID: u32 = interruption::VALID;
const HARDWARE: u32 = VALID | interruption::HARDWARE_EXCEPTION;
const WITH_CODE: u32 = HARDWARE | interruption::ERROR_CODE;

/// A board whose interrupt line has one pending vector.
struct Line(Option<u8>);

impl Bus for Line {
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64 {
        NoDevices.read(who, address, size)
    }
    fn write(&mut self, _: Ident, _: u64, _: u8, _: u64) {}
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32 {
        NoDevices.port_in(who, port, size)
    }
    fn port_out(&mut self, _: Ident, _: u16, _: u8, _: u32) {}
    fn msr_read(&mut self, _: Ident, _: u32) -> Option<u64> {
        None
    }
    fn msr_write(&mut self, _: Ident, _: u32, _: u64) -> bool {
        false
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        self.0.take()
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        0
    }
    fn set_cr8(&mut self, _: Ident, _: u8) {}
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}

pub(super) fn interrupt(cpu: &mut Cpu, vector: u8) {
    cpu.wiring.bus = Arc::new(Mutex::new(Line(Some(vector))));
    cpu.attend(attention::INTR);
}

#[test]
fn exceptions_exit_by_the_bitmap() {
    let mut guest = Guest::long().with(|c| c.exception_bitmap = 1 << vector::UD).code(|a| a.ud2());
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.interruption, exit.qualification), (0, HARDWARE | 6, 0));
    assert_eq!((guest.offset(), exit.instruction_length), (0, 0));
    // As the handler would have found it on its stack.
    assert_ne!(guest.m.cpu.arch.flags & flags::RF, 0);
    // Without its bit the exception goes to the guest's handler.
    let mut guest = Guest::long().with(|c| c.exception_bitmap = !(1 << vector::UD)).code(|a| a.ud2());
    assert_eq!(guest.go(), Exit::Halt);
    assert_eq!(guest.handler(), 6);
}

#[test]
fn general_protection_reports_its_code() {
    let mut guest = Guest::long().with(|c| c.exception_bitmap = 1 << vector::GP).code(|a| {
        a.mov(eax, 0x77)?;
        a.mov(ds, eax)
    });
    let exit = guest.exit();
    assert_eq!((exit.interruption, exit.interruption_error), (WITH_CODE | 13, 0x74));
    // Real-address mode has no error codes.
    let mut guest = Guest::new(Mode::Real, 0)
        .with(|c| c.exception_bitmap = 1 << vector::GP)
        .code(|a| a.mov(eax, dword_ptr(0xfffe)));
    assert_eq!(guest.exit().interruption, HARDWARE | 13);
}

#[test]
fn page_faults_exit_by_mask_and_match() {
    const P: u32 = 1;
    const W: u32 = 2;
    // (bit 14 of the bitmap, mask, match, true if a write to a page that is not present exits)
    let cases = [
        (true, 0, 0, true),
        (false, 0, 0, false),
        (true, P, 0, true),
        (true, P, P, false),
        (false, P, P, true),
        (false, P, 0, false),
        (true, P | W, W, true),
        (true, W, 0, false),
        (false, 0, u32::MAX, true),
        (true, 0, u32::MAX, false),
    ];
    for (bit, mask, matched, exits) in cases {
        let mut guest = Guest::long()
            .with(|c| {
                c.exception_bitmap = u32::from(bit) << vector::PF;
                c.pf_error_mask = mask;
                c.pf_error_match = matched;
            })
            .set(|cpu| cpu.arch.cr2 = 0x77)
            .code(|a| a.mov(byte_ptr(RAM + 0x123), 1));
        let stopped = guest.go();
        let case = format!("{bit} {mask} {matched}");
        if exits {
            assert_eq!(stopped, Exit::Vm, "{case}");
            let exit = guest.m.cpu.arch.vm_exit;
            let found = (exit.reason, exit.interruption, exit.interruption_error, exit.qualification);
            assert_eq!(found, (0, WITH_CODE | 14, W, RAM + 0x123), "{case}");
            assert_eq!(guest.m.cpu.arch.cr2, 0x77, "{case}: CR2 is not written");
        } else {
            assert_eq!((stopped, guest.handler(), guest.m.cpu.arch.cr2), (Exit::Halt, 14, RAM + 0x123), "{case}");
        }
    }
}

#[test]
fn debug_exceptions_leave_the_debug_registers() {
    let mut guest =
        Guest::long().with(|c| c.exception_bitmap = 1 << vector::DB).set(|cpu| cpu.arch.flags |= flags::TF).code(|a| {
            a.inc(eax)?;
            a.inc(eax)
        });
    let before = guest.m.cpu.arch.dr[6];
    let exit = guest.exit();
    assert_eq!((exit.interruption, exit.qualification), (HARDWARE | 1, 1 << 14));
    assert_eq!((guest.reg(reg::RAX), guest.m.cpu.arch.dr[6]), (1, before));
    assert_eq!(guest.m.cpu.arch.flags & flags::RF, 0, "a trap");

    let mut guest = Guest::long()
        .with(|c| c.exception_bitmap = 1 << vector::DB)
        .set(|cpu| {
            cpu.arch.dr[0] = DATA;
            cpu.arch.dr[7] = 0x400 | 1 | 3 << 16;
        })
        .code(|a| {
            a.mov(al, byte_ptr(DATA))?;
            a.nop()
        });
    assert_eq!(guest.exit().qualification, 1);
}

#[test]
fn an_exit_for_a_debug_exception_leaves_none_pending() {
    // After STI an entry requires the single step to be pending: a hypervisor that drops the blocking steps once more.
    let mut guest = Guest::long()
        .with(|c| c.exception_bitmap = 1 << vector::DB)
        .set(|cpu| cpu.arch.flags |= flags::TF)
        .code(|a| a.sti());
    assert_eq!(guest.exit().qualification, pending_debug::BS);
    let controls = guest.m.cpu.controls();
    assert_eq!((controls.interruptibility, controls.pending_debug), (interruptibility::STI, 0));
}

#[test]
fn software_exceptions_are_subject_to_the_bitmap_and_int_n_is_not() {
    let mut guest = Guest::long().with(|c| c.exception_bitmap = u32::MAX).code(|a| {
        a.nop()?;
        a.int3()
    });
    let exit = guest.exit();
    let found = (exit.reason, exit.interruption, exit.instruction_length);
    assert_eq!(found, (0, VALID | interruption::SOFTWARE_EXCEPTION | 3, 1));
    assert_eq!(guest.offset(), 1, "on the instruction");

    let mut guest = Guest::long().with(|c| c.exception_bitmap = u32::MAX).code(|a| a.int1());
    let exit = guest.exit();
    let found = (exit.interruption, exit.instruction_length);
    assert_eq!(found, (VALID | interruption::PRIVILEGED_SOFTWARE_EXCEPTION | 1, 1));

    let mut guest = Guest::long().with(|c| c.exception_bitmap = u32::MAX).code(|a| a.int(6));
    assert_eq!((guest.go(), guest.handler()), (Exit::Halt, 6));
    assert_eq!(guest.stack::<1>(), [CODE + 2]);
}

#[test]
fn a_triple_fault_exits() {
    let mut guest = Guest::long().set(|cpu| cpu.arch.idtr.limit = 0).code(|a| {
        a.nop()?;
        a.ud2()
    });
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.vectoring), (reason::TRIPLE_FAULT, 0));
    assert_eq!(guest.offset(), 1);
}

#[test]
fn external_interrupts_exit_whatever_the_flag() {
    for open in [false, true] {
        let mut guest = Guest::long().with(|c| c.pin = pin::EXTERNAL_INTERRUPT).code(|a| a.nop()).set(|cpu| {
            cpu.arch.flags |= if open { flags::IF } else { 0 };
            interrupt(cpu, 0x31);
        });
        let exit = guest.exit();
        assert_eq!((exit.reason, exit.interruption), (reason::EXTERNAL_INTERRUPT, 0));
        assert_eq!(guest.offset(), 0);
        assert_eq!(guest.m.cpu.wiring.bus().acknowledge(guest.m.cpu.ident()), Some(0x31), "still there");
    }
    let mut guest = Guest::long()
        .with(|c| {
            c.pin = pin::EXTERNAL_INTERRUPT;
            c.exit = x86::vmx::exit::ACKNOWLEDGE_INTERRUPT;
        })
        .set(|cpu| interrupt(cpu, 0x31))
        .code(|a| a.nop());
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.interruption), (reason::EXTERNAL_INTERRUPT, VALID | 0x31));
    assert_eq!(guest.m.cpu.wiring.bus().acknowledge(guest.m.cpu.ident()), None);
}

#[test]
fn without_the_control_interrupts_are_the_guests() {
    let mut guest = Guest::long().set(|cpu| interrupt(cpu, 0x31)).code(|a| {
        a.nop()?;
        a.sti()?;
        a.nop()?;
        a.nop()
    });
    let mut exit = guest.go();
    while exit == Exit::Bus {
        exit = guest.m.run(LONG);
    }
    assert_eq!((exit, guest.handler()), (Exit::Halt, 0x31));
    assert_eq!(guest.stack::<1>(), [CODE + 3], "after the instruction that follows STI");
}

#[test]
fn interrupt_window() {
    let window = |c: &mut super::Controls| c.primary |= primary::INTERRUPT_WINDOW;
    let mut guest = Guest::long().with(window).set(|cpu| cpu.arch.flags |= flags::IF).code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
    assert_eq!(guest.offset(), 0);
    // Closed until one instruction after STI.
    let mut guest = Guest::long().with(window).code(|a| {
        a.nop()?;
        a.sti()?;
        a.inc(eax)?;
        a.inc(eax)
    });
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
    assert_eq!((guest.offset(), guest.reg(reg::RAX)), (4, 1));
    // POPF opens it at once.
    let mut guest = Guest::long().with(window).set(|cpu| cpu.arch.gpr[0] = 0x202).code(|a| {
        a.push(rax)?;
        a.popfq()?;
        a.inc(eax)
    });
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
    assert_eq!(guest.offset(), 2);
    // Blocking at entry has the same effect.
    let mut guest = Guest::long()
        .with(window)
        .with(|c| c.interruptibility = interruptibility::STI)
        .set(|cpu| cpu.arch.flags |= flags::IF)
        .code(|a| {
            a.nop()?;
            a.nop()
        });
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
    assert_eq!(guest.offset(), 1);
    // The window has priority over an external interrupt.
    let mut guest = Guest::long()
        .with(window)
        .with(|c| c.pin = pin::EXTERNAL_INTERRUPT)
        .set(|cpu| {
            cpu.arch.flags |= flags::IF;
            interrupt(cpu, 0x31);
        })
        .code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::INTERRUPT_WINDOW);
}

#[test]
fn an_exit_tells_the_blocking_that_it_met() {
    let mut guest = Guest::long().with(|c| c.primary |= primary::HLT).code(|a| {
        a.sti()?;
        a.hlt()
    });
    assert_eq!(guest.exit().reason, reason::HLT);
    assert_eq!(guest.m.cpu.controls().interruptibility, interruptibility::STI);
    assert_eq!(guest.offset(), 1);
}

#[test]
fn non_maskable_interrupts() {
    let nmi = |cpu: &mut Cpu| cpu.attend(attention::NMI);
    let mut guest = Guest::long().with(|c| c.pin = pin::NMI).set(nmi).code(|a| a.nop());
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.interruption), (0, VALID | interruption::NMI | 2));
    // Without the exit it is delivered, and NMIs are blocked until IRET.
    let mut guest = Guest::long().set(nmi).code(|a| a.nop());
    assert_eq!((guest.go(), guest.handler()), (Exit::Halt, 2));
    assert!(guest.m.cpu.arch.nmi_blocked);
    // Virtual NMIs: an NMI exits even while the guest handles a virtual one, whose window opens with IRET.
    let virtual_nmis = |c: &mut super::Controls| {
        c.pin = pin::NMI | pin::VIRTUAL_NMIS;
        c.interruptibility = interruptibility::NMI;
        c.primary |= primary::NMI_WINDOW;
    };
    let mut guest = Guest::long().with(virtual_nmis).set(nmi).code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::EXCEPTION_NMI);
    assert_eq!(guest.m.cpu.controls().interruptibility, interruptibility::NMI);
    let mut guest = Guest::long().with(virtual_nmis).code(|a| {
        a.mov(rax, CODE + 0x40)?;
        a.mov(rbx, rsp)?;
        a.push(0x10)?;
        a.push(rbx)?;
        a.pushfq()?;
        a.push(8)?;
        a.push(rax)?;
        a.iretq()
    });
    guest.m.poke(CODE + 0x40, &[0x90, 0x90]);
    assert_eq!(guest.exit().reason, reason::NMI_WINDOW);
    assert_eq!((guest.offset(), guest.m.cpu.controls().interruptibility), (0x40, 0));
}

#[test]
fn iret_that_faults_tells_that_it_unblocked() {
    let mut guest = Guest::long()
        .with(|c| {
            c.pin = pin::NMI | pin::VIRTUAL_NMIS;
            c.interruptibility = interruptibility::NMI;
            c.exception_bitmap = 1 << vector::PF;
        })
        .set(|cpu| cpu.arch.gpr[usize::from(reg::RSP)] = RAM)
        .code(|a| a.iretq());
    let exit = guest.exit();
    assert_eq!(exit.interruption, WITH_CODE | interruption::NMI_UNBLOCKED | 14);
    assert_eq!(guest.m.cpu.controls().interruptibility, 0);
}

/// Injects an event into 64-bit code at `cpl`; returns the guest, halted in the handler.
fn injected(mode: Mode, cpl: u8, info: u32, code: u32, length: u32) -> Guest {
    let mut guest = Guest::new(mode, cpl)
        .with(|c| {
            c.entry_interruption = VALID | info;
            c.entry_error_code = code;
            c.entry_instruction_length = length;
            // An injected event never exits itself.
            c.exception_bitmap = u32::MAX;
            c.pin = pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS;
        })
        .set(|cpu| {
            cpu.arch.flags |= flags::IF;
            cpu.arch.cr2 = 0x55;
        })
        .code(|a| a.nop());
    assert_eq!(guest.go(), Exit::Halt);
    guest
}

#[test]
fn injection_in_64_bit_mode() {
    for (info, code, length, vector, pushed) in [
        (interruption::EXTERNAL | 0x41, 0, 0, 0x41, CODE),
        (interruption::NMI | 2, 0, 0, 2, CODE),
        (interruption::HARDWARE_EXCEPTION | 6, 0, 0, 6, CODE),
        (interruption::SOFTWARE_INTERRUPT | 0x80, 0, 2, 0x80, CODE + 2),
        (interruption::SOFTWARE_EXCEPTION | 3, 0, 1, 3, CODE + 1),
        (interruption::PRIVILEGED_SOFTWARE_EXCEPTION | 1, 0, 1, 1, CODE + 1),
    ] {
        let guest = injected(Mode::Long, 0, info, code, length);
        assert_eq!(guest.handler(), vector, "{info:#x}");
        let frame = guest.stack::<5>();
        assert_eq!((frame[0], frame[1], frame[3], frame[4]), (pushed, 8, STACK, 0x10), "{info:#x}");
        assert_eq!(frame[2] & (flags::IF | flags::RF), flags::IF, "{info:#x}: RF as it was");
    }
    let guest = injected(Mode::Long, 0, interruption::HARDWARE_EXCEPTION | interruption::ERROR_CODE | 14, 7, 0);
    assert_eq!((guest.handler(), guest.m.cpu.arch.cr2), (14, 0x55));
    assert_eq!(guest.stack::<2>(), [7, CODE]);
    assert!(!guest.m.cpu.arch.nmi_blocked);
    assert!(injected(Mode::Long, 0, interruption::NMI | 2, 0, 0).m.cpu.arch.nmi_blocked, "virtual NMI blocking");
    // From user code the stack is that of the TSS.
    let guest = injected(Mode::Long, 3, interruption::EXTERNAL | 0x41, 0, 0);
    assert_eq!(guest.m.cpu.arch.cpl, 0);
    assert_eq!(guest.stack::<4>()[3], STACK);
    assert_eq!(guest.reg(reg::RSP), STACK - 0x1000 - 40);
}

#[test]
fn injection_in_protected_mode() {
    let guest = injected(Mode::Paged, 0, interruption::HARDWARE_EXCEPTION | interruption::ERROR_CODE | 13, 0x18, 0);
    let words = guest.stack::<2>();
    assert_eq!(
        (guest.handler(), words[0] as u32, (words[0] >> 32) as u32, words[1] as u32),
        (13, 0x18, CODE as u32, 8)
    );
    let guest = injected(Mode::Paged, 3, interruption::SOFTWARE_INTERRUPT | 0x80, 0, 2);
    assert_eq!((guest.handler(), guest.m.cpu.arch.cpl), (0x80, 0));
    assert_eq!(guest.stack::<1>()[0] as u32, CODE as u32 + 2);
}

#[test]
fn injection_in_real_address_mode() {
    let guest = injected(Mode::Real, 0, interruption::EXTERNAL | 0x10, 0, 0);
    assert_eq!(guest.handler(), 0x10);
    let frame = guest.stack::<1>()[0];
    assert_eq!((frame & 0xffff, frame >> 16 & 0xffff, frame >> 32 & 0x200), (0x8000, 0, 0x200));
    let guest = injected(Mode::Real, 0, interruption::SOFTWARE_INTERRUPT | 0x21, 0, 2);
    assert_eq!((guest.handler(), guest.stack::<1>()[0] & 0xffff), (0x21, 0x8002));
}

#[test]
fn exits_met_while_delivering_report_the_event() {
    // An injected software interrupt whose gate is beyond the table's limit.
    let mut guest = Guest::long()
        .with(|c| {
            c.entry_interruption = VALID | interruption::SOFTWARE_INTERRUPT | 0x80;
            c.entry_instruction_length = 2;
            c.exception_bitmap = 1 << vector::GP;
        })
        .set(|cpu| cpu.arch.idtr.limit = 0x7ff)
        .code(|a| a.nop());
    let exit = guest.exit();
    assert_eq!((exit.interruption, exit.interruption_error), (WITH_CODE | 13, 0x80 << 3 | 2));
    assert_eq!(exit.vectoring, VALID | interruption::SOFTWARE_INTERRUPT | 0x80);
    assert_eq!((guest.offset(), exit.instruction_length), (0, 2));
    assert_eq!(guest.m.cpu.controls().entry_interruption & VALID, 0);

    // The same interrupt, executed.
    let mut guest =
        Guest::long().with(|c| c.exception_bitmap = 1 << vector::GP).set(|cpu| cpu.arch.idtr.limit = 0x7ff).code(|a| {
            a.nop()?;
            a.int(0x80)
        });
    let exit = guest.exit();
    assert_eq!((exit.vectoring, exit.instruction_length), (VALID | interruption::SOFTWARE_INTERRUPT | 0x80, 2));
    assert_eq!((guest.offset(), exit.interruption_error), (1, 0x80 << 3 | 2));

    // A page fault during the delivery of a #GP to the guest's own handler.
    let mut guest = Guest::long()
        .with(|c| c.exception_bitmap = 1 << vector::PF)
        .set(|cpu| cpu.arch.gpr[usize::from(reg::RSP)] = RAM + 0x800)
        .code(|a| {
            a.mov(eax, 0x77)?;
            a.mov(ds, eax)
        });
    let exit = guest.exit();
    assert_eq!((exit.interruption & 0xff, exit.qualification >> 12), (14, RAM >> 12));
    assert_eq!((exit.vectoring, exit.vectoring_error), (WITH_CODE | 13, 0x74));
    assert_eq!(guest.offset(), 5);

    // An external interrupt for the guest itself.
    let mut guest = Guest::long()
        .with(|c| c.exception_bitmap = 1 << vector::PF)
        .set(|cpu| {
            cpu.arch.gpr[usize::from(reg::RSP)] = RAM + 0x800;
            cpu.arch.flags |= flags::IF;
            interrupt(cpu, 0x44);
        })
        .code(|a| a.nop());
    assert_eq!(guest.exit().vectoring, VALID | 0x44);
}

#[test]
fn double_faults() {
    // #PF during the delivery of #PF: the second one does not exit, the double fault does.
    let stack_gone = |cpu: &mut Cpu| cpu.arch.gpr[usize::from(reg::RSP)] = RAM + 0x800;
    let mut guest =
        Guest::long().with(|c| c.exception_bitmap = 1 << vector::DF).set(stack_gone).code(|a| a.mov(al, byte_ptr(RAM)));
    let exit = guest.exit();
    assert_eq!((exit.interruption, exit.interruption_error, exit.vectoring), (WITH_CODE | 8, 0, 0));
    assert_eq!(guest.m.cpu.arch.cr2 >> 12, RAM >> 12);
    // An injected double fault that cannot be delivered is a triple fault.
    let mut guest = Guest::long().with(|c| c.entry_interruption = WITH_CODE | 8).set(stack_gone).code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::TRIPLE_FAULT);
}

#[test]
fn task_switches_exit() {
    let tss = 0x38u16;
    let mut guest = Guest::new(Mode::Paged, 0).code(|a| {
        a.nop()?;
        a.db(&[0xea, 0, 0, 0, 0, 0x38, 0])
    });
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.qualification), (reason::TASK_SWITCH, u64::from(tss) | 2 << 30));
    assert_eq!((guest.offset(), exit.instruction_length), (1, 7));
    // Through a task gate, by an exception with a code.
    let mut guest = Guest::new(Mode::Paged, 0).code(|a| {
        a.mov(eax, 0x77)?;
        a.mov(ds, eax)
    });
    guest.m.poke(IDT + 8 * 13, &(u64::from(tss) << 16 | 0x8500 << 32).to_le_bytes());
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.qualification), (reason::TASK_SWITCH, u64::from(tss) | 3 << 30));
    assert_eq!((exit.vectoring, exit.vectoring_error), (WITH_CODE | 13, 0x74));
    assert_ne!(guest.m.cpu.arch.flags & flags::RF, 0, "as the old task would have been saved");
    // By INT n.
    let mut guest = Guest::new(Mode::Paged, 0).code(|a| a.int(0x50));
    guest.m.poke(IDT + 8 * 0x50, &(u64::from(tss) << 16 | 0x8500 << 32).to_le_bytes());
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.instruction_length), (reason::TASK_SWITCH, 2));
    assert_eq!(exit.vectoring, VALID | interruption::SOFTWARE_INTERRUPT | 0x50);
    // An invalid descriptor faults first.
    let mut guest = Guest::new(Mode::Paged, 0)
        .with(|c| c.exception_bitmap = 1 << vector::GP)
        .code(|a| a.db(&[0xea, 0, 0, 0, 0, 0x18, 0]));
    assert_eq!(guest.exit().interruption, WITH_CODE | 13);
}

#[test]
fn the_monitor_trap_flag_exits_after_each_instruction() {
    let trap = |c: &mut super::Controls| c.primary |= primary::MONITOR_TRAP;
    let mut guest = Guest::long().with(trap).code(|a| {
        a.inc(eax)?;
        a.inc(eax)
    });
    assert_eq!(guest.exit().reason, reason::MONITOR_TRAP);
    assert_eq!((guest.offset(), guest.reg(reg::RAX)), (2, 1));
    // After an injection: before the handler's first instruction.
    let mut guest = Guest::long().with(trap).with(|c| c.entry_interruption = HARDWARE | 6).code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::MONITOR_TRAP);
    assert_eq!(guest.m.cpu.arch.rip, HANDLERS + 16 * 6);
    // An injected one.
    let mut guest = Guest::long().with(|c| c.entry_interruption = VALID | interruption::OTHER_EVENT).code(|a| a.nop());
    assert_eq!(guest.exit().reason, reason::MONITOR_TRAP);
    assert_eq!(guest.offset(), 0);
}

#[test]
fn the_preemption_timer_exits() {
    let mut guest = Guest::long()
        .with(|c| {
            c.pin = pin::PREEMPTION_TIMER;
            c.exit = x86::vmx::exit::SAVE_PREEMPTION_TIMER;
            c.preemption_timer = 10;
        })
        .code(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            a.pause()?;
            a.jmp(again)
        });
    std::sync::Arc::make_mut(&mut guest.m.cpu.wiring.model).costs.class[ledger::Class::Pause as usize] =
        ledger::TICKS_PER_CYCLE as u32;
    let start = guest.m.cpu.micro.clock;
    assert_eq!(guest.exit().reason, reason::PREEMPTION_TIMER);
    let cycles = (guest.m.cpu.micro.clock - start) / ledger::TICKS_PER_CYCLE;
    assert!((320..340).contains(&cycles), "{cycles}");
    assert_eq!(guest.m.cpu.controls().preemption_timer, 0);
}

#[test]
fn pending_debug_exceptions_come_first() {
    let mut guest = Guest::long()
        .with(|c| {
            c.pending_debug = pending_debug::BS;
            c.exception_bitmap = 1 << vector::DB;
        })
        .set(|cpu| cpu.arch.flags |= flags::TF)
        .code(|a| a.nop());
    let exit = guest.exit();
    assert_eq!((exit.interruption, exit.qualification), (HARDWARE | 1, 1 << 14));
    assert_eq!(guest.offset(), 0);
}

#[test]
fn a_guest_of_its_own_page_tables_runs_on() {
    // Exits and entries in turn without loss: ten CPUIDs in a loop, which the host skips.
    let mut guest = Guest::new(Mode::Paged, 0).code(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 10)?;
        a.set_label(&mut again)?;
        a.push(ecx)?;
        a.cpuid()?;
        a.pop(ecx)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.hlt()
    });
    assert_eq!(guest.go(), Exit::Vm);
    let mut exits = 0;
    loop {
        exits += 1;
        let cpu = &mut guest.m.cpu;
        assert_eq!(cpu.arch.vm_exit.reason, reason::CPUID);
        cpu.arch.rip += u64::from(cpu.arch.vm_exit.instruction_length);
        cpu.vm_reentry().expect("valid");
        match guest.m.run(LONG) {
            Exit::Vm => {}
            other => {
                assert_eq!(other, Exit::Halt);
                break;
            }
        }
    }
    assert_eq!((exits, guest.reg(reg::RCX)), (10, 0));
    assert_eq!(guest.m.cpu.arch.cr4 & CR4_PSE, CR4_PSE);
}
