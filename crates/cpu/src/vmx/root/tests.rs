//! Tests with a hypervisor of a few instructions, in the machine's own memory.

use super::super::capability::VmxCapabilities;
use super::super::vmcs::Vmcs;
use super::NO_VMCS;
use crate::pmu;
use crate::state::Cpu;
use crate::testing::{CODE, DATA, Machine, STACK};
use crate::{Exit, Model, Tier};
use iced_x86::code_asm::*;
use ledger::{Class, Costs, Entry, Family, Gate, Header, Kind, Ledger, Profile, Stay, Symbols, TICKS_PER_CYCLE};
use std::sync::Arc;
use x86::control::*;
use x86::msr::{self, FEATURE_CONTROL_LOCKED, FEATURE_CONTROL_VMX};
use x86::vmx::{activity, entry, error, exit, pin, primary, reason, region, secondary, vmcs};
use x86::{flags, reg, rights, seg, vector};

/// VMXON region, two VMCS regions, a shadow VMCS, a list of MSRs, a page of bitmaps; then pointers to them for
/// operands.
const VMXON: u64 = DATA;
const FIRST: u64 = DATA + 0x1000;
const SECOND: u64 = DATA + 0x2000;
const SHADOW: u64 = DATA + 0x3000;
const LIST: u64 = DATA + 0x4000;
const BITMAP: u64 = DATA + 0x5000;
const OPERANDS: u64 = DATA + 0x6000;
/// Address of the guest's code, and address at which the host continues after an exit.
const GUEST: u64 = CODE + 0x1000;
const HOST: u64 = CODE + 0x2000;
const LONG: u64 = 1 << 30;

/// Returns the operand that contains the address of a region.
fn operand(address: u64) -> AsmMemoryOperand {
    qword_ptr(OPERANDS + 8 * ((address - DATA) >> 12))
}

/// Returns a processor with all executed VMX features, before VMXON.
fn machine() -> Machine {
    let mut m = Machine::long64(0);
    Arc::make_mut(&mut m.cpu.wiring.model).vmx = Some(VmxCapabilities { revision: 7, ..VmxCapabilities::EXECUTED });
    m.cpu.arch.cr0 |= CR0_NE | CR0_ET;
    m.cpu.arch.cr4 |= CR4_VMXE;
    m.cpu.arch.msr.feature_control = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
    for page in 0..8 {
        m.poke(OPERANDS + 8 * page, &(DATA + (page << 12)).to_le_bytes());
    }
    m.poke(OPERANDS + 0x900, &(FIRST + 0x123).to_le_bytes());
    for region in [VMXON, FIRST, SECOND] {
        m.poke(region, &7u32.to_le_bytes());
    }
    m.poke(SHADOW, &(7 | region::SHADOW).to_le_bytes());
    m
}

/// Returns a processor in VMX operation with a current VMCS, whose guest state is like the host.
fn host() -> Machine {
    let mut m = machine();
    m.execute(|a| {
        a.vmxon(operand(VMXON))?;
        a.vmclear(operand(FIRST))?;
        a.vmptrld(operand(FIRST))
    })
    .expect("no exception");
    fill(&mut m.cpu);
    m
}

/// Sets guest and host state to the processor's current state, except for RIP and RSP.
fn fill(cpu: &mut Cpu) {
    let arch = cpu.arch.clone();
    let v = &mut cpu.arch.vmx.operation.vmcs;
    v.set(vmcs::EXIT_CONTROLS, exit::HOST_64.into());
    v.set(vmcs::ENTRY_CONTROLS, entry::IA32E_GUEST.into());
    v.set(vmcs::VMCS_LINK_POINTER, NO_VMCS);
    let busy = rights::P | 0xb;
    for number in 0..6 {
        let segment = arch.seg[number as usize];
        v.set_segment(number, &segment);
    }
    v.set(vmcs::GUEST_LDTR_RIGHTS, rights::UNUSABLE.into());
    v.set(vmcs::GUEST_TR_RIGHTS, busy.into());
    v.set(vmcs::GUEST_TR_LIMIT, 0x67);
    for (guest, host, value) in [
        (vmcs::GUEST_CR0, vmcs::HOST_CR0, arch.cr0),
        (vmcs::GUEST_CR3, vmcs::HOST_CR3, arch.cr3),
        (vmcs::GUEST_CR4, vmcs::HOST_CR4, arch.cr4),
        (vmcs::GUEST_RSP, vmcs::HOST_RSP, STACK),
    ] {
        v.set(guest, value);
        v.set(host, value);
    }
    v.set(vmcs::GUEST_RIP, GUEST);
    v.set(vmcs::HOST_RIP, HOST);
    v.set(vmcs::GUEST_RFLAGS, 2);
    v.set(vmcs::HOST_CS_SELECTOR, 8);
    v.set(vmcs::HOST_SS_SELECTOR, 16);
    v.set(vmcs::HOST_TR_SELECTOR, 24);
}

fn vmcs_of(m: &mut Machine) -> &mut Vmcs {
    &mut m.cpu.arch.vmx.operation.vmcs
}

/// Places code at an address.
fn place(m: &mut Machine, at: u64, write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) {
    let bytes = crate::testing::assemble(64, at, write);
    m.poke(at, &bytes);
}

/// Executes VMLAUNCH into the guest's code; the host halts after the exit. Returns the exit reason.
fn launch(m: &mut Machine, write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> u32 {
    place(m, GUEST, write);
    place(m, HOST, |a| a.hlt());
    m.code(|a| a.vmlaunch());
    assert_eq!(m.run(LONG), Exit::Halt);
    assert!(!m.cpu.non_root());
    assert_eq!(m.cpu.arch.rip, HOST + 1, "the host goes on where the VMCS says");
    vmcs_of(m).get32(vmcs::EXIT_REASON)
}

/// Returns the number of a failed instruction's error, or `None` if it succeeded.
fn failure(m: &Machine) -> Option<u32> {
    match m.cpu.rflags() & (flags::CF | flags::ZF) {
        0 => None,
        flags::CF => Some(0),
        _ => Some(m.cpu.arch.vmx.operation.vmcs.get32(vmcs::INSTRUCTION_ERROR)),
    }
}

#[test]
fn vmxon_wants_what_the_manual_says() {
    type Change = fn(&mut Cpu);
    let faults: &[(Change, u8)] = &[
        (|cpu| cpu.arch.cr4 &= !CR4_VMXE, vector::UD),
        (|cpu| cpu.arch.cr0 &= !CR0_NE, vector::GP),
        (|cpu| cpu.arch.msr.feature_control = FEATURE_CONTROL_LOCKED, vector::GP),
        (|cpu| cpu.arch.msr.feature_control = FEATURE_CONTROL_VMX, vector::GP),
        (|cpu| cpu.arch.cpl = 3, vector::GP),
    ];
    for (change, vector) in faults {
        let mut m = machine();
        change(&mut m.cpu);
        let raised = m.execute(|a| a.vmxon(operand(VMXON))).expect_err("a fault");
        assert_eq!(raised.vector, *vector);
        assert!(!m.cpu.arch.vmx.operation.is_on());
    }
    for bad in [VMXON + 1, 1 << 60, SHADOW, BITMAP] {
        let mut m = machine();
        m.poke(OPERANDS, &bad.to_le_bytes());
        m.execute(|a| a.vmxon(operand(VMXON))).expect("no exception");
        assert_eq!((failure(&m), m.cpu.arch.vmx.operation.is_on()), (Some(0), false), "{bad:#x}");
    }
    // Outside VMX operation only VMXON exists.
    let mut m = machine();
    let raised = m.execute(|a| a.vmptrld(operand(FIRST))).expect_err("a fault");
    assert_eq!(raised.vector, vector::UD);
}

#[test]
fn failures_have_their_numbers() {
    type Code = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    let cases: &[(Code, Option<u32>)] = &[
        (|a| a.vmxon(operand(VMXON)), Some(error::VMXON_IN_ROOT)),
        (|a| a.vmclear(operand(VMXON)), Some(error::VMCLEAR_VMXON_POINTER)),
        (|a| a.vmptrld(operand(VMXON)), Some(error::VMPTRLD_VMXON_POINTER)),
        (|a| a.vmptrld(operand(BITMAP)), Some(error::VMPTRLD_REVISION)),
        (|a| a.vmclear(qword_ptr(OPERANDS + 0x900)), Some(error::VMCLEAR_ADDRESS)),
        (|a| a.vmptrld(qword_ptr(OPERANDS + 0x900)), Some(error::VMPTRLD_ADDRESS)),
        (|a| a.vmresume(), Some(error::VMRESUME_NOT_LAUNCHED)),
        (|a| a.vmcall(), Some(error::VMCALL_IN_ROOT)),
        (|a| a.vmptrld(operand(SHADOW)), None),
        (|a| a.vmclear(operand(SECOND)), None),
    ];
    for (number, (code, expected)) in cases.iter().enumerate() {
        let mut m = host();
        m.execute(code).expect("no exception");
        assert_eq!(failure(&m), *expected, "case {number}");
    }
    // Without a current VMCS there is no field for the error number.
    let mut m = host();
    m.execute(|a| {
        a.vmclear(operand(FIRST))?;
        a.vmlaunch()
    })
    .expect("no exception");
    assert_eq!(failure(&m), Some(0));
}

#[test]
fn fields_are_read_and_written_by_encoding() {
    let mut m = host();
    let all = u64::MAX;
    for (field, stored) in [
        (vmcs::GUEST_CS_SELECTOR, 0xffff),
        (vmcs::GUEST_CS_LIMIT, 0xffff_ffff),
        (vmcs::TSC_OFFSET, all),
        (vmcs::GUEST_RSP, all),
    ] {
        m.cpu.arch.rip = CODE;
        m.execute(|a| {
            a.mov(rax, all)?;
            a.mov(edx, field)?;
            a.vmwrite(rdx, rax)?;
            a.vmread(rbx, rdx)
        })
        .expect("no exception");
        assert_eq!((failure(&m), m.cpu.reg(reg::RBX)), (None, stored), "{field:#x}");
    }
    // The upper half of a 64-bit field is accessible separately; other fields have none.
    m.cpu.arch.rip = CODE;
    m.execute(|a| {
        a.mov(eax, 5)?;
        a.mov(edx, vmcs::TSC_OFFSET | vmcs::HIGH)?;
        a.vmwrite(rdx, rax)
    })
    .expect("no exception");
    assert_eq!(vmcs_of(&mut m).get(vmcs::TSC_OFFSET), 5 << 32 | 0xffff_ffff);
    for unknown in [vmcs::GUEST_RSP | vmcs::HIGH, 0x7e00, 1 << 15, vmcs::HOST_PKRS] {
        m.cpu.arch.rip = CODE;
        m.execute(|a| {
            a.mov(edx, unknown)?;
            a.vmread(rbx, rdx)
        })
        .expect("no exception");
        assert_eq!(failure(&m), Some(error::UNSUPPORTED_FIELD), "{unknown:#x}");
    }
    // Exit information fields can't be written unless IA32_VMX_MISC permits it.
    m.cpu.arch.rip = CODE;
    m.execute(|a| {
        a.mov(edx, vmcs::EXIT_REASON)?;
        a.vmwrite(rdx, rax)
    })
    .expect("no exception");
    assert_eq!(failure(&m), Some(error::VMWRITE_READ_ONLY));
}

#[test]
fn a_vmcs_goes_to_its_region_when_another_becomes_current() {
    let mut m = host();
    vmcs_of(&mut m).set(vmcs::GUEST_RSP, 0x1234);
    m.execute(|a| {
        a.vmptrld(operand(SECOND))?;
        a.vmptrst(qword_ptr(OPERANDS + 0x800))?;
        a.mov(edx, vmcs::GUEST_RSP)?;
        a.vmread(rbx, rdx)?;
        a.vmptrld(operand(FIRST))?;
        a.vmread(rcx, rdx)
    })
    .expect("no exception");
    assert_eq!(u64::from_le_bytes(m.peek(OPERANDS + 0x800)), SECOND);
    assert_eq!((m.cpu.reg(reg::RBX), m.cpu.reg(reg::RCX)), (0, 0x1234));
    m.execute(|a| a.vmxoff()).expect("no exception");
    assert!(!m.cpu.arch.vmx.operation.is_on());
    assert_eq!(Vmcs::load(&m.cpu.wiring.ram, Some(FIRST)).get(vmcs::GUEST_RSP), 0x1234);
}

#[test]
fn a_guest_is_entered_and_left_with_the_state_of_each() {
    let mut m = host();
    m.cpu.arch.gpr[usize::from(reg::RBX)] = 77;
    let reason = launch(&mut m, |a| {
        a.mov(rsp, 0x1000u64)?;
        a.stc()?;
        a.cpuid()
    });
    assert_eq!(reason, reason::CPUID);
    assert_eq!(m.cpu.reg(reg::RBX), 77, "general registers are nobody's");
    assert_eq!(m.cpu.reg(reg::RSP), STACK);
    assert_eq!(m.cpu.rflags() & flags::CF, 0);
    let length = vmcs_of(&mut m).get(vmcs::EXIT_INSTRUCTION_LENGTH);
    assert_eq!(length, 2);
    let v = vmcs_of(&mut m);
    assert_eq!((v.get(vmcs::GUEST_RSP), v.get(vmcs::GUEST_RFLAGS) & flags::CF), (0x1000, flags::CF));
    // Continue after CPUID.
    let next = v.get(vmcs::GUEST_RIP) + length;
    v.set(vmcs::GUEST_RIP, next);
    place(&mut m, next, |a| a.vmcall());
    m.cpu.arch.rip = CODE;
    m.code(|a| a.vmresume());
    assert_eq!(m.run(LONG), Exit::Halt);
    assert_eq!(vmcs_of(&mut m).get32(vmcs::EXIT_REASON), reason::VMCALL);
    assert_eq!(m.cpu.micro.level, 0);
}

#[test]
fn what_is_enforced_is_the_guests_and_the_hosts() {
    let with_cet = |change: (u32, u64)| {
        let mut m = host();
        m.cpu.arch.cr4 |= CR4_CET;
        let enabled = m.cpu.arch.cr4;
        let v = vmcs_of(&mut m);
        for (field, value) in [
            (vmcs::GUEST_CR4, enabled),
            (vmcs::HOST_CR4, enabled),
            (vmcs::ENTRY_CONTROLS, u64::from(entry::IA32E_GUEST | entry::LOAD_CET)),
            (vmcs::EXIT_CONTROLS, u64::from(exit::HOST_64 | exit::LOAD_CET)),
            (vmcs::GUEST_S_CET, x86::cet::ENDBRANCH),
            (vmcs::GUEST_SSP, 0x2004),
            (vmcs::GUEST_INTERRUPT_SSP_TABLE_ADDRESS, 0x3000),
            (vmcs::HOST_SSP, 0x5000),
            (vmcs::HOST_INTERRUPT_SSP_TABLE_ADDRESS, 0x6000),
            change,
        ] {
            v.set(field, value);
        }
        m
    };
    let state = |m: &Machine| (m.cpu.arch.msr.s_cet, m.cpu.arch.ssp, m.cpu.arch.msr.interrupt_ssp_table);
    let mut m = with_cet((vmcs::GUEST_SSP, 0x2004));
    let reason = launch(&mut m, |a| {
        a.mov(rax, GUEST + 0x40)?;
        a.jmp(rax)
    });
    // A branch to an instruction other than ENDBRANCH; there is no interrupt table.
    assert_eq!(reason, reason::TRIPLE_FAULT);
    assert_eq!(state(&m), (0, 0x5000, 0x6000));
    let v = vmcs_of(&mut m);
    let stored =
        [vmcs::GUEST_S_CET, vmcs::GUEST_SSP, vmcs::GUEST_INTERRUPT_SSP_TABLE_ADDRESS].map(|field| v.get(field));
    assert_eq!(stored, [x86::cet::ENDBRANCH | x86::cet::WAITS, 0x2004, 0x3000]);
    for change in [
        (vmcs::GUEST_S_CET, 0x40),
        (vmcs::GUEST_SSP, 2),
        (vmcs::GUEST_SSP, 1 << 62),
        (vmcs::GUEST_CR0, CR0_PE | CR0_NE | CR0_PG),
    ] {
        let mut m = with_cet(change);
        let reason = launch(&mut m, |a| a.cpuid());
        assert_eq!(reason, reason::INVALID_GUEST_STATE | reason::ENTRY_FAILURE, "{change:x?}");
        assert_eq!(state(&m), (0, 0x5000, 0x6000));
    }
    for change in [(vmcs::HOST_S_CET, 0xc00), (vmcs::HOST_SSP, 2), (vmcs::HOST_INTERRUPT_SSP_TABLE_ADDRESS, 1 << 62)] {
        let mut m = with_cet(change);
        m.execute(|a| a.vmlaunch()).expect("no exception");
        assert_eq!(failure(&m), Some(error::ENTRY_HOST_STATE), "{change:x?}");
    }
}

#[test]
fn entries_fail_by_the_part_that_is_wrong() {
    type Change = fn(&mut Vmcs);
    let before: &[(Change, u32)] = &[
        (|v| v.set(vmcs::PIN_BASED_CONTROLS, pin::VIRTUAL_NMIS.into()), error::ENTRY_CONTROLS),
        (|v| v.set(vmcs::CR3_TARGET_COUNT, 5), error::ENTRY_CONTROLS),
        (|v| v.set(vmcs::HOST_CR3, 1 << 60), error::ENTRY_HOST_STATE),
        (|v| v.set(vmcs::HOST_CS_SELECTOR, 0), error::ENTRY_HOST_STATE),
        (|v| v.set(vmcs::HOST_TR_SELECTOR, 4), error::ENTRY_HOST_STATE),
        (|v| v.set(vmcs::EXIT_CONTROLS, 0), error::ENTRY_HOST_STATE),
        (|v| v.set(vmcs::HOST_RIP, 1 << 60), error::ENTRY_HOST_STATE),
    ];
    for (number, (change, expected)) in before.iter().enumerate() {
        let mut m = host();
        change(vmcs_of(&mut m));
        m.execute(|a| a.vmlaunch()).expect("no exception");
        assert_eq!(failure(&m), Some(*expected), "case {number}");
        assert!(!m.cpu.arch.vmx.operation.vmcs.launched);
    }
    let guest: &[(Change, u64)] = &[
        (|v| v.set(vmcs::GUEST_RFLAGS, 0), 0),
        (|v| v.set(vmcs::GUEST_CR0, 1 << 40), 0),
        (|v| v.set(vmcs::GUEST_GDTR_LIMIT, 1 << 16), 0),
        (|v| v.set(vmcs::GUEST_ACTIVITY_STATE, 1 + u64::from(activity::WAIT_FOR_SIPI)), 0),
        (|v| v.set(vmcs::VMCS_LINK_POINTER, 0x123), 4),
        (|v| v.set(vmcs::VMCS_LINK_POINTER, SHADOW), 4),
    ];
    for (number, (change, qualification)) in guest.iter().enumerate() {
        let mut m = host();
        change(vmcs_of(&mut m));
        let reason = launch(&mut m, |a| a.hlt());
        assert_eq!(reason, reason::INVALID_GUEST_STATE | reason::ENTRY_FAILURE, "case {number}");
        assert_eq!(vmcs_of(&mut m).get(vmcs::EXIT_QUALIFICATION), *qualification, "case {number}");
        assert!(!m.cpu.arch.vmx.operation.vmcs.launched);
    }
}

#[test]
fn lists_of_msrs_are_stored_and_loaded() {
    let mut m = host();
    let entry = |index: u32, value: u64| [u64::from(index).to_le_bytes(), value.to_le_bytes()].concat();
    m.poke(LIST, &entry(msr::KERNEL_GS_BASE, 5));
    m.poke(LIST + 0x100, &entry(msr::KERNEL_GS_BASE, 0));
    m.poke(LIST + 0x200, &entry(msr::KERNEL_GS_BASE, 9));
    let v = vmcs_of(&mut m);
    for (address, count, at) in [
        (vmcs::ENTRY_MSR_LOAD_ADDRESS, vmcs::ENTRY_MSR_LOAD_COUNT, LIST),
        (vmcs::EXIT_MSR_STORE_ADDRESS, vmcs::EXIT_MSR_STORE_COUNT, LIST + 0x100),
        (vmcs::EXIT_MSR_LOAD_ADDRESS, vmcs::EXIT_MSR_LOAD_COUNT, LIST + 0x200),
    ] {
        v.set(address, at);
        v.set(count, 1);
    }
    launch(&mut m, |a| a.vmcall());
    assert_eq!(u64::from_le_bytes(m.peek(LIST + 0x108)), 5, "the guest's, as the entry had loaded it");
    assert_eq!(m.cpu.arch.msr.kernel_gs_base, 9);
    // A register that no list may contain: its number is reported, and the host continues.
    let mut m = host();
    m.poke(LIST, &entry(msr::KERNEL_GS_BASE, 5));
    m.poke(LIST + 16, &entry(msr::GS_BASE, 5));
    let v = vmcs_of(&mut m);
    v.set(vmcs::ENTRY_MSR_LOAD_ADDRESS, LIST);
    v.set(vmcs::ENTRY_MSR_LOAD_COUNT, 2);
    let reason = launch(&mut m, |a| a.hlt());
    assert_eq!(reason, reason::MSR_LOADING | reason::ENTRY_FAILURE);
    assert_eq!(vmcs_of(&mut m).get(vmcs::EXIT_QUALIFICATION), 2);
}

/// Lists enable a counter at the entry, store it at the exit, and disable it again: it counts the guest alone, on both tiers.
#[test]
fn lists_of_msrs_switch_performance_counters() {
    let counted = [Tier::Interpreter, Tier::Translator].map(|tier| {
        let mut m = host();
        m.cache.code.tier = tier;
        let profile = Profile::find("skx,pmu").unwrap();
        m.cpu.wiring.pmu = pmu::Layout::of(&Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid()));
        let entry = |index: u32, value: u64| [u64::from(index).to_le_bytes(), value.to_le_bytes()].concat();
        m.poke(LIST, &entry(msr::FIXED_CTR_CTRL, 3));
        m.poke(LIST + 16, &entry(msr::PERF_GLOBAL_CTRL, 1 << 32));
        m.poke(LIST + 0x100, &entry(msr::FIXED_CTR0, 0));
        m.poke(LIST + 0x200, &entry(msr::PERF_GLOBAL_CTRL, 0));
        let v = vmcs_of(&mut m);
        for (address, count, at, entries) in [
            (vmcs::ENTRY_MSR_LOAD_ADDRESS, vmcs::ENTRY_MSR_LOAD_COUNT, LIST, 2),
            (vmcs::EXIT_MSR_STORE_ADDRESS, vmcs::EXIT_MSR_STORE_COUNT, LIST + 0x100, 1),
            (vmcs::EXIT_MSR_LOAD_ADDRESS, vmcs::EXIT_MSR_LOAD_COUNT, LIST + 0x200, 1),
        ] {
            v.set(address, at);
            v.set(count, entries);
        }
        let reason = launch(&mut m, |a| {
            let mut again = a.create_label();
            a.mov(ebp, 100)?;
            a.set_label(&mut again)?;
            a.dec(ebp)?;
            a.jnz(again)?;
            a.vmcall()
        });
        assert_eq!(reason, reason::VMCALL);
        assert_eq!(
            m.cpu.arch.pmu.counter(0, true),
            u64::from_le_bytes(m.peek(LIST + 0x108)),
            "the host is not counted"
        );
        m.cpu.arch.pmu.counter(0, true)
    });
    // VMLAUNCH completes when the list has been loaded, and VMCALL does not.
    assert_eq!(counted, [1 + 201; 2]);
}

#[test]
fn bitmaps_in_memory_decide() {
    let mut m = host();
    let v = vmcs_of(&mut m);
    v.set(vmcs::PRIMARY_CONTROLS, u64::from(primary::MSR_BITMAPS));
    v.set(vmcs::MSR_BITMAP, BITMAP);
    // RDMSR of LSTAR exits, RDMSR of STAR does not.
    let bit = msr::LSTAR - msr::BITMAP_HIGH;
    m.poke(BITMAP + msr::BITMAP_PART as u64 + u64::from(bit >> 3), &[1 << (bit & 7)]);
    let reason = launch(&mut m, |a| {
        a.mov(ecx, msr::STAR)?;
        a.rdmsr()?;
        a.mov(ecx, msr::LSTAR)?;
        a.rdmsr()
    });
    assert_eq!((reason, m.cpu.reg(reg::RCX) as u32), (reason::RDMSR, msr::LSTAR));
}

#[test]
fn a_shadow_vmcs_is_read_without_an_exit() {
    let mut m = host();
    let v = vmcs_of(&mut m);
    v.set(vmcs::PRIMARY_CONTROLS, u64::from(primary::SECONDARY));
    v.set(vmcs::SECONDARY_CONTROLS, u64::from(secondary::VMCS_SHADOWING));
    v.set(vmcs::VMREAD_BITMAP, BITMAP);
    v.set(vmcs::VMWRITE_BITMAP, BITMAP);
    v.set(vmcs::VMCS_LINK_POINTER, SHADOW);
    let place = super::super::fields::place(vmcs::GUEST_RIP).expect("a field");
    m.poke(super::super::vmcs::field_address(SHADOW, place), &0x4711u64.to_le_bytes());
    m.poke(BITMAP + u64::from(vmcs::EXIT_REASON >> 3), &[1 << (vmcs::EXIT_REASON & 7)]);
    let reason = launch(&mut m, |a| {
        a.mov(edx, vmcs::GUEST_RIP)?;
        a.vmread(rbx, rdx)?;
        a.mov(edx, vmcs::EXIT_REASON)?;
        a.vmread(rcx, rdx)
    });
    assert_eq!((reason, m.cpu.reg(reg::RBX)), (reason::VMREAD, 0x4711));
    // Reg1 is RCX, Reg2 is RDX, no memory operand.
    assert_eq!(vmcs_of(&mut m).get(vmcs::EXIT_INSTRUCTION_INFORMATION), 1 << 3 | 1 << 10 | 2 << 28);
}

#[test]
fn a_saved_processor_goes_on_in_its_guest() {
    let mut m = host();
    place(&mut m, GUEST, |a| {
        a.nop()?;
        a.vmcall()
    });
    place(&mut m, HOST, |a| a.hlt());
    vmcs_of(&mut m).set(vmcs::GUEST_INTERRUPTIBILITY_STATE, 0);
    m.execute(|a| a.vmlaunch()).expect("no exception");
    assert!(m.cpu.non_root());
    let saved = serde_json::to_string(&(&m.cpu.arch, &m.cpu.micro)).expect("plain data");
    let (arch, micro) = serde_json::from_str(&saved).expect("what was written");
    let mut restored = machine();
    let mut memory = vec![0; crate::testing::RAM as usize];
    assert!(m.cpu.wiring.ram.read_bytes(0, &mut memory));
    restored.poke(0, &memory);
    restored.cpu.restore(arch, micro).expect("a state that there can be");
    for machine in [&mut m, &mut restored] {
        assert_eq!(machine.run(LONG), Exit::Halt);
        assert_eq!(vmcs_of(machine).get32(vmcs::EXIT_REASON), reason::VMCALL);
    }
    assert_eq!(m.cpu.arch, restored.cpu.arch);
}

#[test]
fn an_unusable_segment_register_of_the_host_is_one_with_selector_0() {
    let mut m = host();
    launch(&mut m, |a| a.vmcall());
    let [code, data] = [seg::CS, seg::DS].map(|which| m.cpu.arch.seg[usize::from(which)]);
    assert!(!data.usable());
    assert_eq!((code.selector, code.rights & rights::L), (8, rights::L));
}

/// Structures that cross pages, and the controls that use them.
#[test]
fn a_saved_state_with_structures_across_pages_is_refused_if_they_are_used() {
    type Change = fn(&mut crate::vmx::NonRoot);
    let changes: &[(Change, Change)] = &[
        (|vmx| vmx.controls.virtual_apic = 0xffe, |vmx| vmx.controls.primary |= primary::TPR_SHADOW),
        (|vmx| vmx.controls.pml_address = 0xffe, |vmx| vmx.controls.secondary |= secondary::PML),
        (|vmx| vmx.controls.posted_descriptor = 0xff8, |vmx| vmx.controls.pin |= pin::POSTED_INTERRUPTS),
        (|vmx| vmx.controls.msr_lists.exit_load.address = 0xffc, |vmx| vmx.controls.msr_lists.exit_load.count = 1),
        (
            |vmx| vmx.controls.link_pointer = 0x1ffd,
            |vmx| {
                vmx.active = true;
                vmx.controls.secondary |= secondary::VMCS_SHADOWING;
            },
        ),
        (|_| (), |vmx| vmx.controls.msr_bitmap_address = Some(3)),
        (|_| (), |vmx| vmx.operation.current = 0x1004),
    ];
    for (number, (place, using)) in changes.iter().enumerate() {
        let mut m = host();
        let (mut arch, micro) = (m.cpu.arch.clone(), m.cpu.micro.clone());
        arch.vmx.controls.primary |= primary::SECONDARY;
        place(&mut arch.vmx);
        assert_eq!(m.cpu.restore(arch.clone(), micro.clone()), Ok(()), "case {number}: not used");
        using(&mut arch.vmx);
        assert!(m.cpu.restore(arch, micro).is_err(), "case {number}: used");
    }
}

#[test]
fn the_guest_that_runs_is_known_from_outside() {
    let mut m = host();
    let root = m.cpu.arch.cr3;
    assert_eq!((m.cpu.guest_of_software(), m.cpu.host_registers()), (None, None));
    place(&mut m, GUEST, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.jmp(again)
    });
    m.code(|a| a.vmlaunch());
    m.run(1 << 16);
    assert!(m.cpu.non_root());
    assert_eq!(m.cpu.guest_of_software(), Some(FIRST), "without EPT, its VMCS");
    assert_eq!(m.cpu.host_registers().map(|host| host.cr3), Some(root));
    m.cpu.arch.cr3 = 0;
    assert_eq!(m.cpu.look_up_on_board(0, HOST), None);
    assert_eq!(m.cpu.look_up_in_host(root, HOST), Some(HOST));
}

#[test]
fn a_link_pointer_that_no_region_can_be_at_fails_the_entry() {
    // Across two pages, beyond all memory, and both.
    for link in [SHADOW + 0xffe, 0x1_0000_0000, 0xffff_ffff_fffe_ffff] {
        let mut m = host();
        vmcs_of(&mut m).set(vmcs::VMCS_LINK_POINTER, link);
        assert_eq!(launch(&mut m, |a| a.nop()), reason::INVALID_GUEST_STATE | reason::ENTRY_FAILURE, "{link:#x}");
        assert_eq!(vmcs_of(&mut m).get(vmcs::EXIT_QUALIFICATION), 4);
    }
}

/// The stay of a VM exit has the hypervisor's time and the processor's, without other tasks, interrupts and halted time.
#[test]
fn the_stay_of_an_exit_lasts_until_the_next_entry() {
    const EXIT: u64 = 1000;
    const ENTRY: u64 = 500;
    let mut m = host();
    let price = |family| match family {
        Family::VmExit => EXIT * TICKS_PER_CYCLE,
        Family::VmEntry => ENTRY * TICKS_PER_CYCLE,
        _ => 0,
    };
    let costs = Costs::new([TICKS_PER_CYCLE as u32; Class::COUNT], Family::ALL.map(price), []);
    Arc::make_mut(&mut m.cpu.wiring.model).costs = costs;
    place(&mut m, GUEST, |a| a.cpuid());
    place(&mut m, HOST, |a| {
        a.hlt()?;
        a.nop()?;
        a.nop()?;
        a.vmresume()
    });
    m.code(|a| a.vmlaunch());
    for _ in 0..4 {
        assert_eq!(m.run(LONG), Exit::Halt);
        m.cpu.arch.attention &= !crate::arch::attention::HALT;
        // The host's time until a device has answered, in which another task runs and an interrupt arrives.
        m.cpu.charge_ticks(Kind::new(Family::Cpuid, 0), 1, 7 * TICKS_PER_CYCLE);
        let suspended = m.cpu.suspend_stays();
        m.cpu.charge_ticks(Kind::new(Family::Cpuid, 0), 1, 5_000_000);
        m.cpu.resume_stays(suspended);
        m.cpu.charge_halt(1, 7_000_000);
        m.cpu.soft_interrupts_begin();
        m.cpu.charge_ticks(Kind::new(Family::Cpuid, 0), 1, 9_000_000);
        m.cpu.soft_interrupts_end();
    }
    m.cpu.end_current_stays();
    m.cpu.record_counts(&mut m.cache);
    let header = Header::new(&Profile::named("skx").expect("is there"), vec![m.cpu.micro.clock]);
    let ledger = Ledger::new(header, &m.cpu.wiring.recorder, &Symbols::default());
    let exits = ledger.all().exits();
    let key = (0, Entry::new(Gate::VmExit, reason::CPUID));
    assert_eq!(exits.keys().copied().collect::<Vec<_>>(), [key], "the last exit has no entry");
    assert_eq!(exits[&key].count(), 3);
    let Stay { ticks, enter, mitigation, leave } = exits[&key].sum;
    // HLT, two NOPs, VMRESUME.
    let all = [ticks, enter, mitigation, leave].map(|ticks| ticks / TICKS_PER_CYCLE);
    assert_eq!(all, [3 * (EXIT + 7 + 4 + ENTRY), 3 * EXIT, 0, 3 * ENTRY]);
    assert!(ledger.all().entries().keys().all(|entry| !entry.is_exit()), "a kernel is not entered by it");
}
