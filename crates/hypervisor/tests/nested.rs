//! Tests of guest hypervisors: under every configuration, they and their nested guests must have the same results as on
//! bare hardware.

use crate::common::*;
use cpu::bus::lock;
use hypervisor::config::VmConfig;
use hypervisor::{Hypervisor, Vcpu};
use iced_x86::code_asm::*;
use ledger::Operation;
use testkit::assemble;
use x86::flags;
use x86::msr::{FEATURE_CONTROL_LOCKED, FEATURE_CONTROL_VMX};
use x86::vmx::{
    entry, exit, interruptibility, interruption, pending_debug, pin, primary, reason, region, secondary, vmcs,
};

/// Addresses of L1's VMXON region, a VMCS, the operands that point to them, the fields that it writes, and EPT tables.
const VMXON: u64 = 0x50_0000;
const VMCS: u64 = 0x50_1000;
pub const OPERANDS: u64 = 0x50_2000;
const FIELDS: u64 = 0x50_3000;
pub const EPT: u64 = 0x50_8000;
/// Address of L1's exit handler, and start address of L2.
pub const HANDLER: u64 = 0x11_0000;
pub const INNER: u64 = 0x12_0000;
const INNER_STACK: u64 = 0x70_0000;
/// First address that EPT does not map until it is accessed.
const ABSENT: u64 = 0x60_0000;

/// Fields that L1 records for each exit.
const NOTED: [u32; 10] = [
    vmcs::EXIT_REASON,
    vmcs::EXIT_QUALIFICATION,
    vmcs::GUEST_RIP,
    vmcs::EXIT_INSTRUCTION_LENGTH,
    vmcs::EXIT_INTERRUPTION_INFORMATION,
    vmcs::IDT_VECTORING_INFORMATION,
    vmcs::GUEST_INTERRUPTIBILITY_STATE,
    vmcs::GUEST_CR0,
    vmcs::GUEST_RFLAGS,
    vmcs::GUEST_PENDING_DEBUG_EXCEPTIONS,
];

/// Returns the configurations with VMX for the guest.
pub fn nested_configurations() -> Vec<VmConfig> {
    let hosts = configurations().into_iter().filter(|config| !config.paravirt);
    let offers = hosts.flat_map(|host| {
        let base = VmConfig { nested: true, nested_ept: host.mmu.is_tdp(), nested_vpid: host.vpid, ..host };
        [base.clone(), VmConfig { shadow_vmcs: false, nested_vpid: false, ..base }]
    });
    offers.collect()
}

/// Returns the fields of a VMCS whose guest begins at [`INNER`] in the same mode and memory as its hypervisor, with
/// more fields.
fn fields(guest: &Guest, more: &[(u32, u64)]) -> Vec<(u32, u64)> {
    let cpu = &guest.cpu.arch;
    let enabled = cpu.cr4 | x86::control::CR4_VMXE;
    let mut all = vec![
        (vmcs::PIN_BASED_CONTROLS, 0x16),
        (vmcs::PRIMARY_CONTROLS, u64::from(0x0401_e172 | primary::HLT)),
        (vmcs::EXIT_CONTROLS, u64::from(0x3_6dff | exit::HOST_64)),
        (vmcs::ENTRY_CONTROLS, u64::from(0x11ff | entry::IA32E_GUEST)),
        (vmcs::VMCS_LINK_POINTER, u64::MAX),
        (vmcs::HOST_CR0, cpu.cr0),
        (vmcs::HOST_CR3, cpu.cr3),
        (vmcs::HOST_CR4, enabled),
        (vmcs::HOST_RSP, STACK),
        (vmcs::HOST_RIP, HANDLER),
        (vmcs::HOST_GDTR_BASE, GDT),
        (vmcs::HOST_IDTR_BASE, IDT),
        (vmcs::HOST_TR_BASE, cpu.tr.base),
        (vmcs::HOST_TR_SELECTOR, 0x20),
        (vmcs::HOST_CS_SELECTOR, 0x18),
        (vmcs::HOST_SS_SELECTOR, 0x10),
        (vmcs::HOST_DS_SELECTOR, 0x10),
        (vmcs::HOST_ES_SELECTOR, 0x10),
        (vmcs::GUEST_CR0, cpu.cr0),
        (vmcs::GUEST_CR3, cpu.cr3),
        (vmcs::GUEST_CR4, enabled),
        (vmcs::GUEST_DR7, 0x400),
        (vmcs::GUEST_RFLAGS, 2),
        (vmcs::GUEST_RSP, INNER_STACK),
        (vmcs::GUEST_RIP, INNER),
        (vmcs::GUEST_GDTR_BASE, GDT),
        (vmcs::GUEST_GDTR_LIMIT, 31),
        (vmcs::GUEST_IDTR_BASE, IDT),
        (vmcs::GUEST_IDTR_LIMIT, 0xfff),
        (vmcs::GUEST_TR_BASE, cpu.tr.base),
        (vmcs::GUEST_TR_LIMIT, 0x67),
        (vmcs::GUEST_TR_RIGHTS, 0x8b),
        (vmcs::GUEST_TR_SELECTOR, 0x20),
        (vmcs::GUEST_LDTR_RIGHTS, 0x1_0000),
        (vmcs::GUEST_CS_SELECTOR, 0x18),
        (vmcs::GUEST_CS_RIGHTS, 0xa09b),
        (vmcs::GUEST_CS_LIMIT, 0xffff_ffff),
    ];
    for which in 0..6 {
        if which != 1 {
            all.push((vmcs::GUEST_ES_SELECTOR + 2 * which, 0x10));
            all.push((vmcs::GUEST_ES_RIGHTS + 2 * which, 0xc093));
            all.push((vmcs::GUEST_ES_LIMIT + 2 * which, 0xffff_ffff));
        }
    }
    all.extend(more);
    all
}

/// Makes the guest a hypervisor with these fields in its VMCS, and with the code of `inner` as its nested guest.
///
/// L1 records each exit at [`DATA`]. It continues its guest after the instruction that exited, or after an exception at
/// the address in RBP; after an EPT violation it maps the page at [`ABSENT`]; VMCALL ends the test.
pub fn hypervisor(
    guest: &mut Guest,
    more: &[(u32, u64)],
    inner: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) {
    guest.cpu.arch.msr.feature_control = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
    let revision = guest.cpu.wiring.model.vmx.unwrap().revision;
    let ram = guest.cpu.wiring.ram.clone();
    ram.write(VMXON, revision);
    ram.write(VMCS, revision);
    ram.write(OPERANDS, VMXON);
    ram.write(OPERANDS + 8, VMCS);
    let mut at = FIELDS;
    for (encoding, value) in fields(guest, more) {
        ram.write(at, u64::from(encoding));
        ram.write(at + 8, value);
        at += 16;
    }
    ram.write(at, u64::MAX);
    guest.code(64, |a| {
        a.mov(rax, cr4)?;
        a.or(rax, x86::control::CR4_VMXE as i32)?;
        a.mov(cr4, rax)?;
        a.mov(rbx, OPERANDS)?;
        a.vmxon(qword_ptr(rbx))?;
        a.vmclear(qword_ptr(rbx + 8))?;
        a.vmptrld(qword_ptr(rbx + 8))?;
        a.vmptrst(qword_ptr(rbx + 16))?;
        a.mov(rsi, FIELDS)?;
        a.mov(r15, DATA)?;
        let (mut next, mut launch) = (a.create_label(), a.create_label());
        a.set_label(&mut next)?;
        a.mov(rax, qword_ptr(rsi))?;
        a.cmp(rax, -1)?;
        a.je(launch)?;
        a.mov(rdx, qword_ptr(rsi + 8))?;
        a.vmwrite(rax, rdx)?;
        a.add(rsi, 16)?;
        a.jmp(next)?;
        a.set_label(&mut launch)?;
        a.vmlaunch()?;
        // It has failed.
        a.mov(eax, vmcs::INSTRUCTION_ERROR)?;
        a.vmread(qword_ptr(r15), rax)?;
        a.cli()?;
        a.hlt()
    });
    let handler = assemble(64, HANDLER, |a| {
        let [mut end, mut fault, mut missed, mut resume] = std::array::from_fn(|_| a.create_label());
        for field in NOTED {
            a.mov(r8d, field)?;
            a.vmread(qword_ptr(r15), r8)?;
            a.add(r15, 8)?;
        }
        a.mov(r8d, vmcs::EXIT_REASON)?;
        a.vmread(r9, r8)?;
        for (reason, label) in [
            (reason::VMCALL, end),
            (reason::TRIPLE_FAULT, end),
            (reason::EXCEPTION_NMI, fault),
            (reason::EPT_VIOLATION, missed),
            (reason::EXTERNAL_INTERRUPT, resume),
        ] {
            a.cmp(r9d, reason as i32)?;
            a.je(label)?;
        }
        a.mov(r8d, vmcs::EXIT_INSTRUCTION_LENGTH)?;
        a.vmread(r9, r8)?;
        a.mov(r8d, vmcs::GUEST_RIP)?;
        a.vmread(r10, r8)?;
        a.add(r10, r9)?;
        a.vmwrite(r8, r10)?;
        a.jmp(resume)?;
        a.set_label(&mut fault)?;
        a.mov(r8d, vmcs::GUEST_RIP)?;
        a.vmwrite(r8, rbp)?;
        a.jmp(resume)?;
        a.set_label(&mut missed)?;
        a.mov(r8, EPT + 0x2000 + 8 * (ABSENT >> 21))?;
        a.mov(r9, ABSENT | 0xb7)?;
        a.mov(qword_ptr(r8), r9)?;
        a.set_label(&mut resume)?;
        a.vmresume()?;
        a.set_label(&mut end)?;
        a.cli()?;
        a.hlt()
    });
    assert!(ram.write_bytes(HANDLER, &handler));
    assert!(ram.write_bytes(INNER, &assemble(64, INNER, inner)));
}

/// Bits of an EPT violation's exit qualification with more details of the page, which guests are not offered.
const ADVANCED: u64 = 7 << 9;

/// Returns the results of a hypervisor and its guest: registers, records, writes to devices.
fn computed(guest: &mut Guest) -> (Outcome, Vec<u64>) {
    for exit in 0..64 {
        let at = DATA + 8 * NOTED.len() as u64 * exit;
        if guest.word(at) == u64::from(reason::EPT_VIOLATION) {
            let qualification = guest.word(at + 8) & !ADVANCED;
            guest.cpu.wiring.ram.write(at + 8, qualification);
        }
    }
    (guest.outcome(), (0..512).map(|i| guest.word(DATA + 8 * i)).collect())
}

/// Runs a guest on bare hardware and under every configuration, and compares the results.
fn same_everywhere(configurations: &[VmConfig], prepare: impl Fn(&mut Guest)) -> Vec<u64> {
    let run = |config: Option<VmConfig>| {
        let mut guest = Guest::new("skx", config, Mode::Long);
        prepare(&mut guest);
        guest.finish();
        computed(&mut guest)
    };
    let bare = run(None);
    for config in configurations {
        assert_eq!(run(Some(config.clone())), bare, "under {config:?}");
    }
    bare.1
}

/// Returns the recorded exits with these reasons, in order.
fn exits(noted: &[u64]) -> Vec<u32> {
    let each = noted.chunks(NOTED.len()).map(|exit| exit[0] as u32);
    each.scan(false, |ended, reason| {
        let more = !std::mem::replace(ended, reason == reason::VMCALL);
        more.then_some(reason)
    })
    .collect()
}

/// Assembles code with most kinds of exits, to L0 or to L1.
fn busy(a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    a.xor(eax, eax)?;
    a.cpuid()?;
    // A device in memory and one at a port belong to L0, and so do CR0 and CR4 where L1 permits L2 to change them.
    a.mov(rsi, DEVICE)?;
    a.mov(eax, dword_ptr(rsi))?;
    a.add(dword_ptr(rsi + 4), eax)?;
    a.mov(dx, i32::from(PORT))?;
    a.in_(eax, dx)?;
    a.out(dx, al)?;
    a.mov(rax, cr0)?;
    a.xor(rax, 1 << 18 | 1 << 3)?;
    a.mov(cr0, rax)?;
    a.mov(rbx, cr0)?;
    a.clts()?;
    a.mov(rax, cr4)?;
    a.xor(rax, 1 << 7)?;
    a.mov(cr4, rax)?;
    a.mov(rcx, cr4)?;
    a.mov(rax, cr3)?;
    a.mov(cr3, rax)?;
    a.mov(ecx, 0xc000_0080u32)?;
    a.rdmsr()?;
    a.wbinvd()?;
    // Exceptions: one that L1 intercepts, one that it does not.
    let [mut divided, mut undefined, mut faulted] = std::array::from_fn(|_| a.create_label());
    a.lea(rbp, ptr(divided))?;
    a.xor(ecx, ecx)?;
    a.div(ecx)?;
    a.set_label(&mut divided)?;
    a.lea(rbp, ptr(undefined))?;
    a.ud2()?;
    a.set_label(&mut undefined)?;
    a.lea(rbp, ptr(faulted))?;
    a.mov(rax, qword_ptr(0x7000_0000u64))?;
    a.set_label(&mut faulted)?;
    a.mov(rdi, cr2)?;
    // L2 has no VMX.
    a.vmread(rax, rdi)?;
    a.hlt()?;
    a.mov(qword_ptr(ABSENT + 8), rdi)?;
    a.mov(rsi, qword_ptr(ABSENT + 8))?;
    a.vmcall()
}

#[test]
fn exits_of_an_inner_guest() {
    let noted = same_everywhere(&nested_configurations(), |guest| {
        // L1 intercepts #DE and #PF, and owns TS.
        let more =
            [(vmcs::EXCEPTION_BITMAP, 1 | 1 << 14), (vmcs::CR0_GUEST_HOST_MASK, 1 << 3), (vmcs::CR0_READ_SHADOW, 0)];
        hypervisor(guest, &more, busy);
    });
    use reason::*;
    let wanted = [
        CPUID,
        CONTROL_REGISTER,
        CONTROL_REGISTER,
        CONTROL_REGISTER,
        RDMSR,
        EXCEPTION_NMI,
        EXCEPTION_NMI,
        VMREAD,
        HLT,
        VMCALL,
    ];
    assert_eq!(exits(&noted), wanted);
}

/// Maps everything one to one with EPT, except the page at [`ABSENT`].
pub fn with_ept(guest: &mut Guest) -> [(u32, u64); 3] {
    let ram = &guest.cpu.wiring.ram;
    ram.write(EPT, (EPT + 0x1000) | 7);
    for gigabyte in 0..4u64 {
        ram.write(EPT + 0x1000 + 8 * gigabyte, (EPT + 0x2000 + 0x1000 * gigabyte) | 7);
        for i in 0..512 {
            let page = gigabyte << 30 | i << 21;
            if page != ABSENT {
                ram.write(EPT + 0x2000 + 0x1000 * gigabyte + 8 * i, page | 0xb7);
            }
        }
    }
    [
        (
            vmcs::PRIMARY_CONTROLS,
            u64::from((0x0401_e172 | primary::HLT | primary::SECONDARY) & !(primary::CR3_LOAD | primary::CR3_STORE)),
        ),
        (vmcs::SECONDARY_CONTROLS, u64::from(secondary::EPT | secondary::VPID)),
        (vmcs::EPT_POINTER, EPT | 3 << 3 | 6 | 1 << 6),
    ]
}

#[test]
fn an_inner_guest_under_ept() {
    let offered: Vec<_> =
        nested_configurations().into_iter().filter(|config| config.nested_ept && config.vpid).collect();
    assert!(!offered.is_empty());
    let noted = same_everywhere(&offered, |guest| {
        let mut more = with_ept(guest).to_vec();
        more.extend([(vmcs::VPID, 7), (vmcs::EXCEPTION_BITMAP, 1 | 1 << 14)]);
        hypervisor(guest, &more, busy);
    });
    use reason::*;
    // The first access to the unmapped page is the delivery of #UD, which pushes onto the stack there.
    let wanted = [CPUID, RDMSR, EXCEPTION_NMI, EPT_VIOLATION, EXCEPTION_NMI, VMREAD, HLT, VMCALL];
    assert_eq!(exits(&noted), wanted);
}

#[test]
fn events_go_to_the_level_that_wants_them() {
    for acknowledged in [false, true] {
        let noted = same_everywhere(&nested_configurations(), |guest| {
            // L1 injects #UD, which L2 handles; then an interrupt arrives for L1.
            let information = 6 | interruption::HARDWARE_EXCEPTION | interruption::VALID;
            let acknowledge = if acknowledged { exit::ACKNOWLEDGE_INTERRUPT } else { 0 };
            let more = [
                (vmcs::PIN_BASED_CONTROLS, u64::from(0x16 | pin::EXTERNAL_INTERRUPT)),
                (vmcs::EXIT_CONTROLS, u64::from(0x3_6dff | exit::HOST_64 | acknowledge)),
                (vmcs::ENTRY_INTERRUPTION_INFORMATION, information.into()),
            ];
            hypervisor(guest, &more, |a| {
                let mut after = a.create_label();
                a.lea(rbp, ptr(after))?;
                a.nop()?;
                a.set_label(&mut after)?;
                a.cpuid()?;
                a.vmcall()
            });
            guest.cpu.arch.gpr[5] = INNER + 0x8;
            if acknowledged {
                lock(&guest.bus).interrupts.push_back(0x51);
            }
        });
        let reasons = exits(&noted);
        assert!(reasons.ends_with(&[reason::CPUID, reason::VMCALL]), "{reasons:?}");
        if acknowledged {
            assert_eq!(reasons[0], reason::EXTERNAL_INTERRUPT);
            assert_eq!(noted[4], u64::from(0x51 | interruption::VALID));
        }
    }
}

/// An exception with an error code, injected by L1.
const INJECTED_GP: u64 =
    (13 | interruption::HARDWARE_EXCEPTION | interruption::ERROR_CODE | interruption::VALID) as u64;

#[test]
fn the_resume_flag_that_handlers_find_is_what_l1_wants() {
    for resume in [0, flags::RF] {
        let noted = same_everywhere(&nested_configurations(), |guest| {
            let more = [(vmcs::ENTRY_INTERRUPTION_INFORMATION, INJECTED_GP), (vmcs::GUEST_RFLAGS, 2 | resume)];
            hypervisor(guest, &more, |a| {
                // The flags to which the handler has returned.
                a.mov(rax, qword_ptr(INNER_STACK - 24))?;
                a.mov(qword_ptr(DATA + 0xf00), rax)?;
                a.vmcall()
            });
            guest.cpu.arch.gpr[5] = INNER;
        });
        assert_eq!(noted[0xf00 / 8], 2 | resume);
    }
}

#[test]
fn what_l1_injects_may_meet_faults_on_its_way() {
    use interruption::{HARDWARE_EXCEPTION, SOFTWARE_EXCEPTION, SOFTWARE_INTERRUPT, VALID};
    // Vectors inside and outside of L2's table, whose page no shadow table maps yet; faults belong to L2, to L1, or end
    // the guest.
    for (kind, vector) in
        [(SOFTWARE_INTERRUPT, 0x2a), (SOFTWARE_EXCEPTION, 3), (HARDWARE_EXCEPTION, 19), (HARDWARE_EXCEPTION, 5)]
    {
        for (length, limit, bitmap) in [(0, 0x7ff, 1 << 13), (2, 0x1f, 1 << 8), (1, 0x1f, 0)] {
            same_everywhere(&nested_configurations(), |guest| {
                let more = [
                    (vmcs::ENTRY_INTERRUPTION_INFORMATION, u64::from(kind | VALID | vector)),
                    (vmcs::ENTRY_INSTRUCTION_LENGTH, length),
                    (vmcs::GUEST_IDTR_LIMIT, limit),
                    (vmcs::EXCEPTION_BITMAP, bitmap),
                ];
                hypervisor(guest, &more, |a| {
                    a.nop()?;
                    a.nop()?;
                    a.vmcall()
                });
                guest.cpu.arch.gpr[5] = INNER + 2;
            });
        }
    }
}

#[test]
fn a_double_fault_that_l1_wants_has_no_event_before_it() {
    let noted = same_everywhere(&nested_configurations(), |guest| {
        // #PF, whose handler's stack is not writable either.
        let more = [(vmcs::EXCEPTION_BITMAP, 1 << 8), (vmcs::GUEST_RSP, 0x7000_0000)];
        hypervisor(guest, &more, |a| {
            let mut after = a.create_label();
            a.lea(rbp, ptr(after))?;
            a.mov(rax, qword_ptr(0x7100_0000u64))?;
            a.set_label(&mut after)?;
            a.vmcall()
        });
    });
    assert_eq!((noted[0], noted[4] as u8, noted[5], noted[8]), (reason::EXCEPTION_NMI.into(), 8, 0, 2));
}

#[test]
fn shutdown_leaves_the_resume_flag_alone() {
    // Injected by L1: #PF, #UD and INT1, which the hypervisor examines first, and #GP of an instruction that it
    // emulates.
    for (resume, injected) in [(0, 0), (0, INJECTED_GP), (flags::RF, INJECTED_GP)] {
        for which in 0..4 {
            let noted = same_everywhere(&nested_configurations(), |guest| {
                let more = [
                    (vmcs::GUEST_IDTR_LIMIT, 0),
                    (vmcs::GUEST_RFLAGS, 2 | resume),
                    (vmcs::ENTRY_INTERRUPTION_INFORMATION, injected),
                ];
                hypervisor(guest, &more, |a| match which {
                    0 => a.mov(rax, qword_ptr(0x7000_0000u64)),
                    1 => a.ud2(),
                    2 => a.int1(),
                    _ => {
                        a.mov(rax, u64::MAX)?;
                        a.mov(cr4, rax)
                    }
                });
            });
            assert_eq!(noted[0], u64::from(reason::TRIPLE_FAULT));
            assert_eq!(noted[8], 2 | resume, "{which}");
        }
    }
}

#[test]
fn a_fault_that_l1_wants_sets_the_resume_flag() {
    let noted = same_everywhere(&nested_configurations(), |guest| {
        hypervisor(guest, &[(vmcs::EXCEPTION_BITMAP, 1 << 13)], |a| {
            let mut after = a.create_label();
            a.lea(rbp, ptr(after))?;
            a.mov(rax, u64::MAX)?;
            a.mov(cr4, rax)?;
            a.set_label(&mut after)?;
            a.vmcall()
        });
    });
    assert_eq!((noted[0], noted[8]), (reason::EXCEPTION_NMI.into(), 2 | flags::RF));
}

#[test]
fn breakpoints_that_mov_ss_has_held_back_come_with_the_single_step() {
    for traced in [false, true] {
        let noted = same_everywhere(&nested_configurations(), |guest| {
            let (flag, step) = if traced { (flags::TF, pending_debug::BS) } else { (0, 0) };
            let more = [
                (vmcs::EXCEPTION_BITMAP, 1 << 1),
                (vmcs::GUEST_RFLAGS, 2 | flag),
                (vmcs::GUEST_INTERRUPTIBILITY_STATE, interruptibility::MOV_SS.into()),
                (vmcs::GUEST_PENDING_DEBUG_EXCEPTIONS, step | pending_debug::ENABLED_BREAKPOINT | 1),
            ];
            hypervisor(guest, &more, |a| {
                // An instruction that the hypervisor completes.
                a.wbinvd()?;
                a.nop()?;
                a.vmcall()
            });
            guest.cpu.arch.gpr[5] = INNER + 3;
        });
        let step = if traced { pending_debug::BS } else { 0 };
        assert_eq!((noted[0], noted[1]), (reason::EXCEPTION_NMI.into(), step | 1));
    }
}

#[test]
fn a_shadow_vmcs_has_no_fields_that_are_not_offered() {
    for shadow_vmcs in [false, true] {
        let config = VmConfig { nested: true, nested_ept: false, shadow_vmcs, ..VmConfig::default() };
        let mut guest = Guest::new("skx", Some(config), Mode::Long);
        hypervisor(&mut guest, &[], |a| a.vmcall());
        let handler = assemble(64, HANDLER, |a| {
            for (at, field) in [vmcs::GUEST_PHYSICAL_ADDRESS, vmcs::PML_INDEX, vmcs::GUEST_RIP].into_iter().enumerate()
            {
                a.mov(eax, field)?;
                a.vmread(rdx, rax)?;
                a.setnz(byte_ptr(DATA + at as u64))?;
            }
            a.cli()?;
            a.hlt()
        });
        assert!(guest.cpu.wiring.ram.write_bytes(HANDLER, &handler));
        guest.finish();
        assert_eq!(guest.word(DATA), 0x01_0000, "shadow VMCS: {shadow_vmcs}");
    }
}

#[test]
fn an_entry_with_bad_state_fails_as_on_the_processor() {
    // A control, the host's state, the guest's state.
    for (field, value) in
        [(vmcs::PIN_BASED_CONTROLS, 0), (vmcs::HOST_CR0, 0), (vmcs::GUEST_RFLAGS, 0), (vmcs::GUEST_CR4, 0)]
    {
        same_everywhere(&nested_configurations(), |guest| hypervisor(guest, &[(field, value)], |a| a.vmcall()));
    }
}

#[test]
fn without_the_switch_there_is_no_vmx() {
    let mut guest = Guest::new("skx", Some(VmConfig::default()), Mode::Long);
    guest.cpu.arch.msr.feature_control = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
    guest.code(64, |a| {
        let mut after = a.create_label();
        a.lea(rbp, ptr(after))?;
        a.mov(rax, cr4)?;
        a.or(rax, x86::control::CR4_VMXE as i32)?;
        a.mov(cr4, rax)?;
        a.set_label(&mut after)?;
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    assert_eq!(guest.word(LOG), 1);
    assert_eq!(guest.word(LOG + 32), 13);
}

/// Runs a guest hypervisor in steps of `ticks`, with `between` after each.
fn in_steps(config: &VmConfig, ticks: u64, mut between: impl FnMut(&mut Guest)) -> (Outcome, Vec<u64>) {
    let mut guest = Guest::new("skx", Some(config.clone()), Mode::Long);
    let mut more = vec![(vmcs::EXCEPTION_BITMAP, 1 | 1 << 14)];
    if config.nested_ept {
        more.extend(with_ept(&mut guest));
        // Without it, the entry fails.
        more.push((vmcs::VPID, 7));
    }
    hypervisor(&mut guest, &more, busy);
    loop {
        let exit = guest.run(ticks).unwrap_or_else(|failure| panic!("{failure}"));
        if exit == cpu::Exit::Halt {
            return computed(&mut guest);
        }
        between(&mut guest);
    }
}

#[test]
fn a_nested_guest_goes_on_from_what_was_saved() {
    for config in nested_configurations().iter().filter(|config| config.shadow_vmcs && config.vpid) {
        let whole = in_steps(config, 1_000_000_000, |_| {});
        let saved = in_steps(config, 5_000, |guest| {
            let text = serde_json::to_string(&guest.vcpu).unwrap();
            let copy: Vcpu = serde_json::from_str(&text).unwrap();
            assert_eq!(copy, guest.vcpu);
            guest.vcpu = copy;
            let vm: &mut Hypervisor = guest.hypervisor.as_mut().unwrap();
            let state = vm.save();
            vm.restore(state, [&guest.vcpu].into_iter()).unwrap();
            assert_eq!(vm.check([&guest.vcpu].into_iter()), Ok(()));
            let (arch, micro) = (guest.cpu.arch.clone(), guest.cpu.micro.clone());
            guest.cpu.restore(arch, micro).unwrap();
        });
        assert_eq!(saved, whole, "under {config:?}");
    }
}

/// The memory of L1 and L2 as seen from outside does not depend on the pages that L0 has mapped.
#[test]
fn the_memory_of_a_nested_guest_and_its_hypervisor_is_known_from_outside() {
    /// A page that L2 never accesses, and its place by L1's EPT.
    const ASIDE: u64 = 0x80_0000;
    const PLACE: u64 = 0x20_0000;
    // L1 uses VPIDs with EPT.
    for config in nested_configurations().into_iter().filter(|config| config.vpid || !config.nested_ept) {
        let mut root = None;
        let mut seen = 0;
        in_steps(&config, 5_000, |guest| {
            let cpu = &guest.cpu;
            let Some(name) = cpu.guest_of_software() else {
                assert_eq!(cpu.host_registers(), None, "under {config:?}");
                root = Some(cpu.visible().cr3);
                return;
            };
            cpu.wiring.ram.write(EPT + 0x2000 + 8 * (ASIDE >> 21), PLACE | 0xb7);
            let root = root.unwrap_or_else(|| cpu.visible().cr3);
            let own = cpu.visible().cr3;
            let (physical, place) = if config.nested_ept { (Some(ASIDE + 5), PLACE) } else { (None, ASIDE) };
            assert_eq!(name, if config.nested_ept { EPT } else { VMCS }, "under {config:?}");
            assert_eq!(cpu.host_registers().map(|host| host.cr3), Some(root), "under {config:?}");
            assert_eq!(cpu.look_up_in_host(root, ASIDE), Some(ASIDE), "under {config:?}");
            assert_eq!(cpu.look_up_in_nested_guest(ASIDE + 5), physical, "under {config:?}");
            assert_eq!(cpu.look_up_on_board(own, ASIDE + 5), Some(place + 5), "under {config:?}");
            seen += 1;
        });
        assert!(seen > 10, "L2 was seen {seen} times under {config:?}");
    }
}

#[test]
fn a_shadow_vmcs_spares_exits() {
    let run = |shadow_vmcs| {
        let config = VmConfig { nested: true, shadow_vmcs, ..VmConfig::default() };
        let mut guest = Guest::new("skx", Some(config), Mode::Long);
        hypervisor(&mut guest, &[], busy);
        guest.finish();
        let accesses = guest.exits(reason::VMREAD) + guest.exits(reason::VMWRITE);
        (accesses, guest.operations(Operation::NestedEntry), guest.operations(Operation::NestedExit))
    };
    let (with, entries, exits) = run(true);
    let (without, ..) = run(false);
    assert!(with * 2 < without, "{with} against {without}");
    assert!(entries > 5 && entries == exits, "{entries} entries, {exits} exits");
}

#[test]
fn regions_are_where_they_are_said_to_be() {
    assert_eq!(region::SIZE, 4096);
    same_everywhere(&nested_configurations(), |guest| {
        hypervisor(guest, &[], |a| a.vmcall());
        // VMPTRST has stored the pointer; the region has the fields after VMCLEAR.
        let extra = assemble(64, HANDLER, |a| {
            a.mov(rbx, OPERANDS)?;
            a.vmclear(qword_ptr(rbx + 8))?;
            a.mov(rax, qword_ptr(rbx + 16))?;
            a.mov(qword_ptr(r15), rax)?;
            a.mov(rsi, VMCS)?;
            a.lea(rdi, qword_ptr(r15 + 8))?;
            a.mov(ecx, 200)?;
            a.rep().movsq()?;
            a.vmxoff()?;
            a.cli()?;
            a.hlt()
        });
        assert!(guest.cpu.wiring.ram.write_bytes(HANDLER, &extra));
    });
}

/// A simple pseudo-random number generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16 ^ self.0 << 40
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 8) as usize % end
    }

    /// Returns a value that may be unexpected for a field.
    fn value(&mut self) -> u64 {
        let interesting = [
            0,
            u64::MAX,
            0x1000,
            EPT | 0x1e,
            EPT,
            VMCS,
            VMXON,
            DATA,
            ABSENT,
            DEVICE,
            POOL,
            RAM - 0x1000,
            RAM,
            0xfee0_0000,
            1 << 51,
        ];
        match self.below(3) {
            0 => self.next(),
            1 => 1 << self.below(64),
            _ => interesting[self.below(interesting.len())],
        }
    }
}

#[test]
fn a_hypervisor_that_lies_ends_itself_only() {
    let configurations = nested_configurations();
    let names = vmcs::NAMES;
    for seed in 0..400 {
        let mut numbers = Numbers(seed);
        let config = configurations[numbers.below(configurations.len())].clone();
        let mut guest = Guest::new("max", Some(config.clone()), Mode::Long);
        let mut more = if config.nested_ept { with_ept(&mut guest).to_vec() } else { Vec::new() };
        for _ in 0..numbers.below(5) {
            more.push((names[numbers.below(names.len())].0, numbers.value()));
        }
        // Controls that are valid, if nothing else is wrong.
        for (field, allowed) in [
            (vmcs::PIN_BASED_CONTROLS, 0xffu64),
            (vmcs::SECONDARY_CONTROLS, 0xffff_ffff),
            (vmcs::EXCEPTION_BITMAP, 0xffff_ffff),
        ] {
            if numbers.below(2) == 0 {
                more.push((field, numbers.next() & numbers.next() & allowed | if allowed == 0xff { 0x16 } else { 0 }));
            }
        }
        hypervisor(&mut guest, &more, busy);
        for _ in 0..numbers.below(4) {
            let byte = numbers.next() as u8;
            guest.cpu.wiring.ram.write(INNER + numbers.below(120) as u64, byte);
        }
        lock(&guest.bus).interrupts.push_back(0x51);
        for _ in 0..20 {
            // The guest may end in any way; nothing else may.
            if guest.run(2_000_000).is_err() {
                break;
            }
            let vm = guest.hypervisor.as_ref().unwrap();
            assert_eq!(vm.check([&guest.vcpu].into_iter()), Ok(()), "seed {seed} under {config:?}");
        }
    }
}
