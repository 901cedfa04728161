//! Tests of failing VM entries, by name.

use super::super::{Controls, EntryFailure};
use super::{Guest, Mode};
use crate::state::Cpu;
use x86::control::*;
use x86::vmx::{activity, entry, exit, interruptibility, interruption, pending_debug, pin, primary, reason, secondary};
use x86::{flags, seg};

const VALID: u32 = interruption::VALID;

type Change = fn(&mut Controls);
type Set = fn(&mut Cpu);

fn part(cpu: &mut Cpu, which: u8) -> &mut crate::arch::Segment {
    &mut cpu.arch.seg[usize::from(which)]
}

#[test]
fn controls() {
    let cases: &[(Change, &str)] = &[
        (|c| c.pin = 1 << 8, "pin-based controls"),
        (|c| c.primary |= 1, "primary processor-based controls"),
        (|c| c.secondary = 1 << 15, "secondary processor-based controls"),
        (|c| c.exit = 1, "VM-exit controls"),
        (|c| c.entry |= 1, "VM-entry controls"),
        (|c| c.cr3_target_count = 5, "CR3-target count"),
        (|c| c.pin = pin::VIRTUAL_NMIS, "virtual NMIs without NMI exiting"),
        (|c| c.primary |= primary::NMI_WINDOW, "NMI-window exiting without virtual NMIs"),
        (|c| c.secondary = secondary::VPID, "VPID 0"),
        (|c| c.secondary = secondary::UNRESTRICTED_GUEST, "control that needs EPT"),
        (|c| c.secondary = secondary::EPT, "EPT pointer"),
        (|c| c.exit = exit::SAVE_PREEMPTION_TIMER, "preemption timer saved but not activated"),
        (|c| c.entry_interruption = VALID | 1 << 8, "interruption type and vector"),
        (|c| c.entry_interruption = VALID | interruption::NMI | 3, "interruption type and vector"),
        (|c| c.entry_interruption = VALID | interruption::HARDWARE_EXCEPTION | 32, "interruption type and vector"),
        (|c| c.entry_interruption = VALID | 0x31 | 1 << 12, "reserved bits of the interruption information"),
        (|c| c.entry_interruption = VALID | interruption::HARDWARE_EXCEPTION | 14, "error code of the event"),
        (
            |c| c.entry_interruption = VALID | interruption::HARDWARE_EXCEPTION | interruption::ERROR_CODE | 6,
            "error code of the event",
        ),
        (
            |c| {
                c.entry_interruption = VALID | interruption::HARDWARE_EXCEPTION | interruption::ERROR_CODE | 14;
                c.entry_error_code = 1 << 16;
            },
            "reserved bits of the error code",
        ),
        (
            |c| {
                c.entry_interruption = VALID | interruption::SOFTWARE_INTERRUPT | 0x80;
                c.entry_instruction_length = 16;
            },
            "instruction length of a software event",
        ),
    ];
    for &(change, name) in cases {
        let mut guest = Guest::long().with(change);
        let clock = guest.m.cpu.micro.clock;
        assert_eq!(guest.enter(), Err(EntryFailure::Control(name)));
        assert_eq!((guest.m.cpu.non_root(), guest.m.cpu.micro.clock), (false, clock));
    }
    // Secondary controls that are not activated are ignored.
    let mut guest = Guest::long().with(|c| {
        c.primary &= !primary::SECONDARY;
        c.secondary = u32::MAX;
    });
    assert_eq!(guest.enter(), Ok(()));
}

/// Asserts that entry fails with this name, as an exit with reason 33.
fn fails(mut guest: Guest, name: &str) {
    match guest.enter() {
        Err(EntryFailure::GuestState(found)) => assert_eq!(found, name),
        other => panic!("{name}: {other:?}"),
    }
    assert_eq!(guest.m.cpu.arch.vm_exit.reason, reason::INVALID_GUEST_STATE | reason::ENTRY_FAILURE);
    assert!(!guest.m.cpu.non_root());
}

#[test]
fn registers() {
    let cases: &[(Set, &str)] = &[
        (|cpu| cpu.arch.cr0 &= !CR0_NE, "fixed bits of CR0"),
        (|cpu| cpu.arch.cr0 &= !CR0_PG, "fixed bits of CR0"),
        (|cpu| cpu.arch.cr4 &= !CR4_VMXE, "CR4.VMXE clear"),
        (|cpu| cpu.arch.cr4 |= 1 << 63, "reserved bits of CR4"),
        (|cpu| cpu.arch.cr4 &= !CR4_PAE, "IA-32e mode guest without CR4.PAE"),
        (|cpu| cpu.arch.cr3 |= 1 << 50, "CR3 beyond physical addresses"),
        (|cpu| cpu.arch.dr[7] |= 1 << 40, "upper half of DR7"),
        (|cpu| cpu.arch.msr.sysenter_eip = 1 << 60, "IA32_SYSENTER_EIP not canonical"),
        (|cpu| cpu.arch.msr.efer &= !EFER_LMA, "IA-32e mode guest against EFER.LMA"),
        (|cpu| cpu.arch.msr.efer &= !EFER_LME, "EFER.LMA against EFER.LME"),
        (|cpu| cpu.arch.rip = 1 << 60, "RIP"),
        (|cpu| cpu.arch.gdtr.base = 1 << 60, "base of GDTR or IDTR"),
        (|cpu| part(cpu, seg::CS).base = 1 << 32, "base of CS"),
        (|cpu| part(cpu, seg::CS).rights &= !1, "type of CS"),
        (|cpu| part(cpu, seg::CS).rights |= 3 << 5, "DPL of CS"),
        (|cpu| part(cpu, seg::CS).rights |= 1 << 14, "CS.L with CS.D"),
        (|cpu| part(cpu, seg::CS).rights &= !0x80, "access rights of CS"),
        (|cpu| part(cpu, seg::CS).selector |= 3, "RPL of SS against that of CS"),
        (|cpu| part(cpu, seg::SS).rights &= !2, "type of SS"),
        (|cpu| part(cpu, seg::SS).limit = 0xf_ff00, "access rights of SS"),
        (|cpu| part(cpu, seg::DS).rights &= !0x10, "access rights of a data segment"),
        (|cpu| part(cpu, seg::DS).selector |= 3, "DPL of a data segment"),
        (|cpu| part(cpu, seg::GS).rights &= !1, "type of a data segment"),
        (|cpu| part(cpu, seg::FS).base = 1 << 60, "base of FS or GS"),
        (|cpu| cpu.arch.tr.rights = 0x89, "type of TR"),
        (|cpu| cpu.arch.tr.rights = 0x83, "type of TR"),
        (|cpu| cpu.arch.tr.rights |= 1 << 16, "access rights of TR"),
        (|cpu| cpu.arch.tr.selector |= 4, "TI of TR"),
        (|cpu| cpu.arch.ldtr.rights = 0x83, "type of LDTR"),
        (|cpu| cpu.arch.flags |= flags::VM, "segment of virtual-8086 mode"),
    ];
    for &(change, name) in cases {
        fails(Guest::long().set(change), name);
    }
    let mut guest = Guest::new(Mode::Paged, 0).set(|cpu| cpu.arch.tr.rights = 0x83);
    assert_eq!(guest.enter(), Ok(()), "16-bit TSS outside IA-32e mode");
    fails(Guest::new(Mode::Paged, 0).set(|cpu| cpu.arch.cr4 |= CR4_PCIDE), "CR4.PCIDE outside IA-32e mode");
    fails(Guest::new(Mode::Paged, 0).with(|c| c.entry |= entry::IA32E_GUEST), "IA-32e mode guest without CR4.PAE");
    let mut real = Guest::new(Mode::Real, 0);
    assert_eq!(real.enter(), Ok(()), "unrestricted guest");
    let restricted: Change = |c| c.secondary &= !secondary::UNRESTRICTED_GUEST;
    fails(Guest::new(Mode::Real, 0).with(restricted), "fixed bits of CR0");
}

#[test]
fn state_that_no_register_holds() {
    let cases: &[(Change, &str)] = &[
        (|c| c.activity = activity::WAIT_FOR_SIPI + 1, "activity state"),
        (|c| c.interruptibility = 1 << 2, "reserved bits of the interruptibility state"),
        (|c| c.interruptibility = 3, "blocking by STI and MOV SS"),
        (|c| c.interruptibility = interruptibility::STI, "blocking by STI with RFLAGS.IF clear"),
        (
            |c| {
                c.activity = activity::HLT;
                c.interruptibility = interruptibility::MOV_SS;
            },
            "blocking by STI or MOV SS of a processor that is not active",
        ),
        (|c| c.entry_interruption = VALID | 0x31, "external interrupt with RFLAGS.IF clear"),
        (
            |c| {
                c.entry_interruption = VALID | interruption::NMI | 2;
                c.interruptibility = interruptibility::MOV_SS;
            },
            "NMI with blocking by MOV SS",
        ),
        (
            |c| {
                c.entry_interruption = VALID | interruption::NMI | 2;
                c.pin = pin::NMI | pin::VIRTUAL_NMIS;
                c.interruptibility = interruptibility::NMI;
            },
            "NMI with virtual-NMI blocking",
        ),
        (
            |c| {
                c.entry_interruption = VALID | interruption::HARDWARE_EXCEPTION | 6;
                c.activity = activity::HLT;
            },
            "event that does not end the activity state",
        ),
        (|c| c.pending_debug = 1 << 5, "reserved bits of the pending debug exceptions"),
        (
            |c| {
                c.interruptibility = interruptibility::MOV_SS;
                c.pending_debug = pending_debug::BS;
            },
            "pending single step against RFLAGS.TF",
        ),
    ];
    for &(change, name) in cases {
        fails(Guest::long().with(change), name);
    }
    fails(Guest::new(Mode::Long, 3).with(|c| c.activity = activity::HLT), "HLT outside level 0");
}

#[test]
fn pdptes() {
    let pae: Set = |cpu| cpu.arch.cr4 |= CR4_PAE;
    // A page directory with 4 MiB pages has reserved bits set when it is read as PDPTEs.
    fails(Guest::new(Mode::Paged, 0).set(pae), "reserved bits of a PDPTE in memory");
    let mut guest = Guest::new(Mode::Paged, 0).set(pae);
    for i in 0..4u64 {
        guest.m.cpu.wiring.ram.write::<u64>(super::DIRECTORY + 8 * i, 0x5001 * (i & 1));
    }
    assert_eq!(guest.enter(), Ok(()));
    assert_eq!(guest.m.cpu.arch.pdpte, [0, 0x5001, 0, 0x5001]);
}
