//! Tests of instructions that exit, and of those that do not.

use super::super::Controls;
use super::{Guest, LONG, Mode};
use crate::Exit;
use crate::state::Cpu;
use crate::testing::DATA;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::sync::Arc;
use x86::control::*;
use x86::vmx::{pin, primary, reason, secondary};
use x86::{reg, vector};

type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;
type Change = fn(&mut Controls);
type Set = fn(&mut Cpu);

/// Expected outcome of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Exit: reason, qualification, length.
    Exits(u32, u64, u32),
    /// Completion; this register has this value then.
    Gives(u8, u64),
    /// Exception, which exits.
    Raises(u8),
}
use Outcome::*;

/// Tests one instruction in 64-bit mode, after three NOPs so that RIP is distinctive.
fn check(cpl: u8, name: &str, change: Change, set: Set, write: Write, expected: Outcome) {
    let mut guest = Guest::new(Mode::Long, cpl)
        .with(|c| c.exception_bitmap = u32::MAX)
        .with(change)
        .set(|cpu| cpu.arch.gpr[usize::from(reg::RAX)] = 0x1234_5678)
        .set(set)
        .code(|a| {
            a.nop()?;
            a.nop()?;
            a.nop()?;
            write(a)?;
            a.int3()
        });
    let before = guest.m.cpu.arch.gpr;
    let exit = guest.exit();
    match expected {
        Exits(reason, qualification, length) => {
            let found = (exit.reason, exit.qualification, exit.instruction_length);
            assert_eq!(found, (reason, qualification, length), "{name}: {exit:x?}");
            assert_eq!(guest.offset(), 3, "{name}: RIP");
            assert_eq!(guest.m.cpu.arch.gpr, before, "{name}: registers");
        }
        Gives(register, value) => {
            assert_eq!((exit.reason, exit.interruption & 0xff), (0, 3), "{name}: {exit:x?}");
            assert_eq!(guest.reg(register), value, "{name}");
        }
        Raises(vector) => {
            let found = (exit.reason, exit.interruption & 0xff);
            assert_eq!(found, (0, u32::from(vector)), "{name}: {exit:x?}");
            assert_eq!(guest.offset(), 3, "{name}: RIP");
        }
    }
}

const NO_CONTROLS: Change = |_| {};
const AS_IS: Set = |_| {};

#[test]
fn exits_whatever_the_controls() {
    check(0, "cpuid", NO_CONTROLS, AS_IS, |a| a.cpuid(), Exits(reason::CPUID, 0, 2));
    check(3, "cpuid", NO_CONTROLS, AS_IS, |a| a.cpuid(), Exits(reason::CPUID, 0, 2));
    check(0, "invd", NO_CONTROLS, AS_IS, |a| a.invd(), Exits(reason::INVD, 0, 2));
    check(3, "invd", NO_CONTROLS, AS_IS, |a| a.invd(), Raises(vector::GP));
    check(0, "xsetbv", NO_CONTROLS, AS_IS, |a| a.xsetbv(), Exits(reason::XSETBV, 0, 3));
    check(3, "xsetbv", NO_CONTROLS, AS_IS, |a| a.xsetbv(), Raises(vector::GP));
    check(0, "xsetbv", NO_CONTROLS, |cpu| cpu.arch.cr4 &= !CR4_OSXSAVE, |a| a.xsetbv(), Raises(vector::UD));
    check(0, "getsec", NO_CONTROLS, AS_IS, |a| a.getsec(), Raises(vector::UD));
}

#[test]
fn instructions_of_vmx_exit() {
    check(0, "vmcall", NO_CONTROLS, AS_IS, |a| a.vmcall(), Exits(reason::VMCALL, 0, 3));
    check(3, "vmcall", NO_CONTROLS, AS_IS, |a| a.vmcall(), Exits(reason::VMCALL, 0, 3));
    check(0, "vmmcall", NO_CONTROLS, AS_IS, |a| a.vmmcall(), Raises(vector::UD));
    check(0, "vmlaunch", NO_CONTROLS, AS_IS, |a| a.vmlaunch(), Exits(reason::VMLAUNCH, 0, 3));
    check(0, "vmresume", NO_CONTROLS, AS_IS, |a| a.vmresume(), Exits(reason::VMRESUME, 0, 3));
    check(0, "vmxoff", NO_CONTROLS, AS_IS, |a| a.vmxoff(), Exits(reason::VMXOFF, 0, 3));
    check(0, "vmxon", NO_CONTROLS, AS_IS, |a| a.vmxon(qword_ptr(rbx + 0x40)), Exits(reason::VMXON, 0x40, 5));
    check(0, "vmclear", NO_CONTROLS, AS_IS, |a| a.vmclear(qword_ptr(rbx)), Exits(reason::VMCLEAR, 0, 4));
    check(0, "vmptrld", NO_CONTROLS, AS_IS, |a| a.vmptrld(qword_ptr(rbx)), Exits(reason::VMPTRLD, 0, 3));
    check(0, "vmptrst", NO_CONTROLS, AS_IS, |a| a.vmptrst(qword_ptr(rbx)), Exits(reason::VMPTRST, 0, 3));
    check(0, "vmread", NO_CONTROLS, AS_IS, |a| a.vmread(rcx, rdx), Exits(reason::VMREAD, 0, 3));
    check(0, "vmwrite", NO_CONTROLS, AS_IS, |a| a.vmwrite(rcx, rdx), Exits(reason::VMWRITE, 0, 3));
    check(0, "invept", NO_CONTROLS, AS_IS, |a| a.invept(rcx, xmmword_ptr(rbx)), Exits(reason::INVEPT, 0, 5));
    check(0, "invvpid", NO_CONTROLS, AS_IS, |a| a.invvpid(rcx, xmmword_ptr(rbx)), Exits(reason::INVVPID, 0, 5));
}

#[test]
fn conditional_exits_without_operands() {
    let cases: &[(&str, Change, Write, u32, u32)] = &[
        ("hlt", |c| c.primary |= primary::HLT, |a| a.hlt(), reason::HLT, 1),
        ("rdtsc", |c| c.primary |= primary::RDTSC, |a| a.rdtsc(), reason::RDTSC, 2),
        ("rdpmc", |c| c.primary |= primary::RDPMC, |a| a.rdpmc(), reason::RDPMC, 2),
        ("pause", |c| c.primary |= primary::PAUSE, |a| a.pause(), reason::PAUSE, 2),
        ("monitor", |c| c.primary |= primary::MONITOR, |a| a.monitor(), reason::MONITOR, 3),
        ("mwait", |c| c.primary |= primary::MWAIT, |a| a.mwait(), reason::MWAIT, 3),
        ("wbinvd", |c| c.secondary |= secondary::WBINVD, |a| a.wbinvd(), reason::WBINVD, 2),
        (
            "rdtscp",
            |c| {
                c.primary |= primary::RDTSC;
                c.secondary |= secondary::RDTSCP;
            },
            |a| a.rdtscp(),
            reason::RDTSCP,
            3,
        ),
    ];
    for &(name, change, write, reason, length) in cases {
        check(0, name, change, AS_IS, write, Exits(reason, 0, length));
    }
    check(0, "rdtscp not enabled", NO_CONTROLS, AS_IS, |a| a.rdtscp(), Raises(vector::UD));
    check(0, "rdpmc", NO_CONTROLS, AS_IS, |a| a.rdpmc(), Raises(vector::GP));
    check(0, "wbinvd", NO_CONTROLS, AS_IS, |a| a.wbinvd(), Gives(reg::RAX, 0x1234_5678));
}

#[test]
fn privilege_comes_before_an_exit() {
    let all: Change = |c| {
        c.primary |= primary::HLT | primary::RDTSC | primary::RDPMC | primary::INVLPG | primary::PAUSE;
        c.secondary |= secondary::WBINVD;
    };
    check(3, "hlt", all, AS_IS, |a| a.hlt(), Raises(vector::GP));
    check(3, "wbinvd", all, AS_IS, |a| a.wbinvd(), Raises(vector::GP));
    check(3, "rdpmc", all, AS_IS, |a| a.rdpmc(), Raises(vector::GP));
    check(3, "rdpmc", all, |cpu| cpu.arch.cr4 |= CR4_PCE, |a| a.rdpmc(), Exits(reason::RDPMC, 0, 2));
    check(3, "rdtsc", all, |cpu| cpu.arch.cr4 |= CR4_TSD, |a| a.rdtsc(), Raises(vector::GP));
    check(3, "rdtsc", all, AS_IS, |a| a.rdtsc(), Exits(reason::RDTSC, 0, 2));
    check(3, "pause", all, AS_IS, |a| a.pause(), Exits(reason::PAUSE, 0, 2));
    check(3, "rdmsr", all, AS_IS, |a| a.rdmsr(), Raises(vector::GP));
    check(3, "mov cr0", all, AS_IS, |a| a.mov(rax, cr0), Raises(vector::GP));
    check(3, "invlpg", all, AS_IS, |a| a.invlpg(ptr(rbx)), Raises(vector::GP));
    check(3, "in", |c| c.primary |= primary::UNCONDITIONAL_IO, AS_IS, |a| a.in_(al, 0x10), Raises(vector::GP));
}

#[test]
fn mwait_tells_whether_it_would_wait() {
    let mut guest = Guest::long()
        .with(|c| c.primary |= primary::MWAIT)
        .set(|cpu| cpu.arch.gpr[usize::from(reg::RAX)] = DATA)
        .code(|a| {
            a.monitor()?;
            a.mwait()
        });
    let exit = guest.exit();
    assert_eq!((exit.reason, exit.qualification), (reason::MWAIT, 1));
}

#[test]
fn invlpg_and_invpcid() {
    let on: Change = |c| c.primary |= primary::INVLPG;
    let base: Set = |cpu| cpu.arch.gpr[usize::from(reg::RBX)] = DATA;
    check(0, "invlpg", on, base, |a| a.invlpg(ptr(rbx + 0x123)), Exits(reason::INVLPG, DATA + 0x123, 7));
    check(0, "invlpg", NO_CONTROLS, base, |a| a.invlpg(ptr(rbx)), Gives(reg::RBX, DATA));
    let invpcid: Write = |a| a.invpcid(rcx, xmmword_ptr(rbx + 0x10));
    check(0, "invpcid", on, base, invpcid, Raises(vector::UD));
    let enabled: Change = |c| {
        c.primary |= primary::INVLPG;
        c.secondary |= secondary::INVPCID;
    };
    check(0, "invpcid", enabled, base, invpcid, Exits(reason::INVPCID, 0x10, 6));
    check(3, "invpcid", enabled, base, invpcid, Raises(vector::GP));
    check(0, "invpcid", |c| c.secondary |= secondary::INVPCID, base, invpcid, Gives(reg::RBX, DATA));
}

#[test]
fn control_register_zero() {
    let owned: Change = |c| {
        c.cr0_mask = !(CR0_TS | CR0_WP);
        c.cr0_shadow = CR0_PE | CR0_PG | CR0_NE | CR0_ET;
    };
    // Reads: the host's bits come from the shadow, the guest's from the register.
    let shadow = CR0_PE | CR0_PG | CR0_NE | CR0_ET | CR0_WP;
    check(0, "read", owned, AS_IS, |a| a.mov(rax, cr0), Gives(reg::RAX, shadow));
    check(0, "smsw", owned, AS_IS, |a| a.smsw(rax), Gives(reg::RAX, shadow));
    // Writes of the guest's own bits.
    check(
        0,
        "ts and no wp",
        owned,
        |cpu| cpu.arch.gpr[0] = CR0_PE | CR0_PG | CR0_NE | CR0_ET | CR0_TS,
        |a| {
            a.mov(cr0, rax)?;
            a.mov(rax, cr0)
        },
        Gives(reg::RAX, CR0_PE | CR0_PG | CR0_NE | CR0_ET | CR0_TS),
    );
    // A host bit that differs from the shadow.
    check(
        0,
        "mp",
        owned,
        |cpu| cpu.arch.gpr[3] = CR0_PE | CR0_PG | CR0_NE | CR0_ET | CR0_MP,
        |a| a.mov(cr0, rbx),
        Exits(reason::CONTROL_REGISTER, 0x300, 3),
    );
    // Without masks, clearing fixed bits raises #GP.
    check(0, "ne", NO_CONTROLS, |cpu| cpu.arch.gpr[0] = CR0_PE | CR0_PG, |a| a.mov(cr0, rax), Raises(vector::GP));
    check(0, "pg", NO_CONTROLS, |cpu| cpu.arch.gpr[0] = CR0_PE | CR0_NE, |a| a.mov(cr0, rax), Raises(vector::GP));
}

#[test]
fn clts_and_lmsw() {
    let exits: Change = |c| {
        c.cr0_mask = CR0_TS | CR0_MP;
        c.cr0_shadow = CR0_TS;
    };
    check(0, "clts", exits, AS_IS, |a| a.clts(), Exits(reason::CONTROL_REGISTER, 0x20, 2));
    let clear: Change = |c| c.cr0_mask = CR0_TS;
    let ts: Set = |cpu| cpu.arch.cr0 |= CR0_TS;
    let clts_then_read: Write = |a| {
        a.clts()?;
        a.xor(eax, eax)?;
        a.mov(rax, cr0)
    };
    // The guest reads it as clear, and the register keeps it.
    check(0, "clts", clear, ts, clts_then_read, Gives(reg::RAX, 0x8001_0033 & !CR0_TS));
    let mut guest = Guest::long().with(clear).set(ts).code(|a| {
        a.clts()?;
        a.cpuid()
    });
    guest.exit();
    assert_ne!(guest.m.cpu.arch.cr0 & CR0_TS, 0);

    // TS clear in the source differs from the shadow.
    let source: Set = |cpu| cpu.arch.gpr[0] = 0x33;
    let lmsw = Exits(reason::CONTROL_REGISTER, 0x0033_0030, 4);
    check(0, "lmsw", exits, source, |a| a.lmsw(ax), lmsw);
    // TS set and MP clear, as in the shadow.
    check(0, "lmsw", exits, |cpu| cpu.arch.gpr[0] = 8, |a| a.lmsw(ax), Gives(reg::RAX, 8));
    // PE already set in the shadow: no exit, and it is never cleared.
    let pe: Change = |c| {
        c.cr0_mask = CR0_PE;
        c.cr0_shadow = CR0_PE;
    };
    check(0, "lmsw", pe, |cpu| cpu.arch.gpr[0] = 0, |a| a.lmsw(ax), Gives(reg::RAX, 0));
    let hidden_pe: Change = |c| c.cr0_mask = CR0_PE;
    let pe_source: Set = |cpu| cpu.arch.gpr[0] = 1;
    check(0, "lmsw", hidden_pe, pe_source, |a| a.lmsw(ax), Exits(reason::CONTROL_REGISTER, 0x0001_0030, 4));

    let mut guest = Guest::long().with(exits).code(|a| a.lmsw(word_ptr(DATA)));
    guest.m.poke(DATA, &[0x30, 0]);
    let exit = guest.exit();
    assert_eq!((exit.qualification, exit.guest_linear), (0x0030_0070, DATA));
}

#[test]
fn control_register_three() {
    let load: Change = |c| c.primary |= primary::CR3_LOAD;
    let same: Set = |cpu| cpu.arch.gpr[0] = cpu.arch.cr3;
    check(0, "load", load, same, |a| a.mov(cr3, rax), Exits(reason::CONTROL_REGISTER, 3, 3));
    check(0, "load", NO_CONTROLS, same, |a| a.mov(cr3, rax), Gives(reg::RAX, 0x1000));
    let store: Change = |c| c.primary |= primary::CR3_STORE;
    check(0, "store", store, AS_IS, |a| a.mov(rdi, cr3), Exits(reason::CONTROL_REGISTER, 0x713, 3));
    check(0, "store", NO_CONTROLS, AS_IS, |a| a.mov(rdi, cr3), Gives(reg::RDI, 0x1000));
    // Targets beyond the count are ignored.
    let targets: Change = |c| {
        c.primary |= primary::CR3_LOAD;
        c.cr3_targets = [5, 0x1000, 6, 7];
        c.cr3_target_count = 2;
    };
    check(0, "target", targets, same, |a| a.mov(cr3, rax), Gives(reg::RAX, 0x1000));
    let fewer: Change = |c| {
        c.primary |= primary::CR3_LOAD;
        c.cr3_targets = [5, 0x1000, 6, 7];
        c.cr3_target_count = 1;
    };
    check(0, "no target", fewer, same, |a| a.mov(cr3, rax), Exits(reason::CONTROL_REGISTER, 3, 3));
    let charged: Change = |c| {
        c.primary |= primary::CR3_LOAD;
        c.cr3_targets[0] = 0x1000;
        c.target_spaces[0] = Some(0x5_5000);
        c.cr3_target_count = 1;
    };
    let mut guest = Guest::long().with(charged).set(same).code(|a| {
        a.mov(cr3, rax)?;
        a.cpuid()
    });
    guest.exit();
    assert_eq!(guest.m.cpu.micro.charged_space, Some(0x5_5000));
}

#[test]
fn control_registers_four_and_eight() {
    let owned: Change = |c| {
        c.cr4_mask = CR4_VMXE | CR4_MCE;
        c.cr4_shadow = 0;
    };
    let real: Set = |cpu| cpu.arch.cr4 |= CR4_MCE;
    let plain = CR4_PAE | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_FSGSBASE | CR4_OSXSAVE;
    check(0, "read", owned, real, |a| a.mov(rax, cr4), Gives(reg::RAX, plain));
    check(
        0,
        "own bit",
        owned,
        |cpu| cpu.arch.gpr[0] = CR4_PAE | CR4_TSD,
        |a| {
            a.mov(cr4, rax)?;
            a.mov(rax, cr4)
        },
        Gives(reg::RAX, CR4_PAE | CR4_TSD),
    );
    let mce: Set = |cpu| cpu.arch.gpr[1] = CR4_PAE | CR4_MCE;
    check(0, "host bit", owned, mce, |a| a.mov(cr4, rcx), Exits(reason::CONTROL_REGISTER, 0x104, 3));
    let no_vmxe: Set = |cpu| cpu.arch.gpr[0] = CR4_PAE;
    check(0, "vmxe", NO_CONTROLS, no_vmxe, |a| a.mov(cr4, rax), Raises(vector::GP));

    let load: Change = |c| c.primary |= primary::CR8_LOAD;
    let store: Change = |c| c.primary |= primary::CR8_STORE;
    check(0, "cr8", load, AS_IS, |a| a.mov(cr8, rax), Exits(reason::CONTROL_REGISTER, 0x8, 4));
    check(0, "cr8", store, AS_IS, |a| a.mov(rdx, cr8), Exits(reason::CONTROL_REGISTER, 0x218, 4));
    check(0, "cr8", NO_CONTROLS, |cpu| cpu.arch.gpr[0] = 0x10, |a| a.mov(cr8, rax), Raises(vector::GP));
}

#[test]
fn debug_registers() {
    let on: Change = |c| c.primary |= primary::MOV_DR;
    check(0, "to", on, AS_IS, |a| a.mov(dr7, rsi), Exits(reason::MOV_DR, 0x607, 3));
    check(0, "from", on, AS_IS, |a| a.mov(rdi, dr6), Exits(reason::MOV_DR, 0x716, 3));
    // Unlike other exits this one precedes faults.
    check(3, "from", on, AS_IS, |a| a.mov(rdi, dr6), Exits(reason::MOV_DR, 0x716, 3));
    check(0, "alias", on, |cpu| cpu.arch.cr4 |= CR4_DE, |a| a.mov(rdi, dr4), Exits(reason::MOV_DR, 0x714, 3));
    check(3, "from", NO_CONTROLS, AS_IS, |a| a.mov(rdi, dr6), Raises(vector::GP));
}

#[test]
fn model_specific_registers() {
    fn index(cpu: &mut Cpu, value: u32) {
        cpu.arch.gpr[usize::from(reg::RCX)] = u64::from(value);
    }
    check(0, "no bitmap", NO_CONTROLS, |cpu| index(cpu, 0x10), |a| a.rdmsr(), Exits(reason::RDMSR, 0, 2));
    check(0, "no bitmap", NO_CONTROLS, |cpu| index(cpu, 0x10), |a| a.wrmsr(), Exits(reason::WRMSR, 0, 2));
    // One bit in each part: reads of 0x1fff and 0xc0000101, writes of 0x174 and 0xc0001fff.
    let bitmap: Change = |c| {
        let mut bits = [0u8; 4096];
        bits[0x1fff >> 3] |= 1 << 7;
        bits[1024 + (0x101 >> 3)] |= 1 << 1;
        bits[2048 + (0x174 >> 3)] |= 1 << 4;
        bits[3072 + (0x1fff >> 3)] |= 1 << 7;
        c.primary |= primary::MSR_BITMAPS;
        c.msr_bitmap = Some(Arc::new(bits));
    };
    check(0, "0x1fff", bitmap, |cpu| index(cpu, 0x1fff), |a| a.rdmsr(), Exits(reason::RDMSR, 0, 2));
    check(0, "0x1fff", bitmap, |cpu| index(cpu, 0x1fff), |a| a.wrmsr(), Raises(vector::GP));
    check(0, "gs", bitmap, |cpu| index(cpu, 0xc000_0101), |a| a.rdmsr(), Exits(reason::RDMSR, 0, 2));
    check(0, "gs", bitmap, |cpu| index(cpu, 0xc000_0101), |a| a.wrmsr(), Gives(reg::RAX, 0x1234_5678));
    check(0, "fs", bitmap, |cpu| index(cpu, 0xc000_0100), |a| a.rdmsr(), Gives(reg::RAX, 0));
    check(0, "sysenter", bitmap, |cpu| index(cpu, 0x174), |a| a.wrmsr(), Exits(reason::WRMSR, 0, 2));
    check(0, "sysenter", bitmap, |cpu| index(cpu, 0x174), |a| a.rdmsr(), Gives(reg::RAX, 0));
    check(0, "last high", bitmap, |cpu| index(cpu, 0xc000_1fff), |a| a.wrmsr(), Exits(reason::WRMSR, 0, 2));
    // Outside both ranges.
    for (name, set) in [
        ("0x2000", (|cpu| index(cpu, 0x2000)) as Set),
        ("0xc0002000", |cpu| index(cpu, 0xc000_2000)),
        ("0x40000000", |cpu| index(cpu, 0x4000_0000)),
        ("0xffffffff", |cpu| index(cpu, 0xffff_ffff)),
    ] {
        check(0, name, bitmap, set, |a| a.rdmsr(), Exits(reason::RDMSR, 0, 2));
        check(0, name, bitmap, set, |a| a.wrmsr(), Exits(reason::WRMSR, 0, 2));
    }
}

#[test]
fn ports() {
    let all: Change = |c| c.primary |= primary::UNCONDITIONAL_IO;
    check(0, "in al", all, AS_IS, |a| a.in_(al, 0x71), Exits(reason::IO, 0x0071_0048, 2));
    check(0, "in eax", all, |cpu| cpu.arch.gpr[2] = 0x1f0, |a| a.in_(eax, dx), Exits(reason::IO, 0x01f0_000b, 1));
    check(0, "out ax", all, |cpu| cpu.arch.gpr[2] = 0x3f8, |a| a.out(dx, ax), Exits(reason::IO, 0x03f8_0001, 2));
    check(0, "out al", all, AS_IS, |a| a.out(0x80, al), Exits(reason::IO, 0x0080_0040, 2));
    check(0, "none", NO_CONTROLS, AS_IS, |a| a.in_(al, 0x71), Gives(reg::RAX, 0x1234_56ff));
    let bitmap: Change = |c| {
        let mut bits = [0u8; 8192];
        bits[0x61 >> 3] |= 1 << 1;
        bits[0x8000 >> 3] |= 1;
        // With bitmaps, unconditional exiting has no effect.
        c.primary |= primary::IO_BITMAPS | primary::UNCONDITIONAL_IO;
        c.io_bitmap = Some(Arc::new(bits));
    };
    check(0, "0x60", bitmap, AS_IS, |a| a.in_(al, 0x60), Gives(reg::RAX, 0x1234_56ff));
    check(0, "0x60 and 0x61", bitmap, AS_IS, |a| a.in_(ax, 0x60), Exits(reason::IO, 0x0060_0049, 3));
    check(0, "0x61", bitmap, AS_IS, |a| a.in_(al, 0x61), Exits(reason::IO, 0x0061_0048, 2));
    check(0, "0x62", bitmap, AS_IS, |a| a.in_(al, 0x62), Gives(reg::RAX, 0x1234_56ff));
    let port_7ffe: Set = |cpu| cpu.arch.gpr[2] = 0x7ffe;
    check(0, "into bitmap B", bitmap, port_7ffe, |a| a.in_(eax, dx), Exits(reason::IO, 0x7ffe_000b, 1));
    check(0, "below bitmap B", bitmap, port_7ffe, |a| a.in_(ax, dx), Gives(reg::RAX, 0x1234_ffff));
    let last: Set = |cpu| cpu.arch.gpr[2] = 0xffff;
    check(0, "beyond the last", bitmap, last, |a| a.in_(ax, dx), Exits(reason::IO, 0xffff_0009, 2));
    check(0, "the last", bitmap, last, |a| a.in_(al, dx), Gives(reg::RAX, 0x1234_56ff));
}

#[test]
fn strings_of_ports() {
    let run = |write: Write| {
        let mut guest = Guest::long()
            .with(|c| c.primary |= primary::UNCONDITIONAL_IO)
            .set(|cpu| {
                cpu.arch.gpr[usize::from(reg::RDX)] = 0x1f0;
                cpu.arch.gpr[usize::from(reg::RCX)] = 5;
                cpu.arch.gpr[usize::from(reg::RSI)] = DATA;
                cpu.arch.gpr[usize::from(reg::RDI)] = DATA + 0x100;
                cpu.arch.seg[usize::from(x86::seg::FS)].base = 0x1000;
            })
            .code(write);
        let exit = guest.exit();
        assert_eq!(exit.reason, reason::IO);
        (exit.qualification, exit.guest_linear, exit.instruction_information)
    };
    assert_eq!(run(|a| a.insb()), (0x01f0_0018, DATA + 0x100, 2 << 7));
    assert_eq!(run(|a| a.rep().insd()), (0x01f0_003b, DATA + 0x100, 2 << 7));
    assert_eq!(run(|a| a.outsw()), (0x01f0_0011, DATA, 2 << 7 | 3 << 15));
    assert_eq!(run(|a| a.rep().outsb()), (0x01f0_0030, DATA, 2 << 7 | 3 << 15));
}

#[test]
fn descriptor_tables() {
    let on: Change = |c| c.secondary |= secondary::DESCRIPTOR_TABLE;
    let cases: &[(&str, Write, u32, u64, u32, u32)] = &[
        // Base RBX, no index, 64-bit addresses, DS.
        ("sgdt", |a| a.sgdt(ptr(rbx + 8)), reason::GDTR_IDTR, 8, 4, 0x01c1_8100),
        ("sidt", |a| a.sidt(ptr(rbx)), reason::GDTR_IDTR, 0, 3, 0x11c1_8100),
        ("lgdt", |a| a.lgdt(ptr(rbx + rcx * 4)), reason::GDTR_IDTR, 0, 4, 0x2185_8102),
        ("lidt", |a| a.lidt(ptr(rbx)), reason::GDTR_IDTR, 0, 3, 0x31c1_8100),
        ("sldt", |a| a.sldt(rdx), reason::LDTR_TR, 0, 4, 1 << 10 | 2 << 3),
        ("str", |a| a.str(ecx), reason::LDTR_TR, 0, 3, 1 << 28 | 1 << 10 | 1 << 3),
        ("lldt", |a| a.lldt(ax), reason::LDTR_TR, 0, 4, 2 << 28 | 1 << 10),
        ("ltr", |a| a.ltr(word_ptr(rbx)), reason::LDTR_TR, 0, 3, 0x31c1_8100),
    ];
    for &(name, write, reason, qualification, length, information) in cases {
        let mut guest = Guest::long().with(on).set(|cpu| cpu.arch.gpr[3] = DATA).code(write);
        let exit = guest.exit();
        let found = (exit.reason, exit.qualification, exit.instruction_length);
        assert_eq!(found, (reason, qualification, length), "{name}");
        assert_eq!(exit.instruction_information, information, "{name}: {:#x}", exit.instruction_information);
    }
    check(3, "lgdt", on, AS_IS, |a| a.lgdt(ptr(rbx)), Raises(vector::GP));
    check(3, "umip", on, |cpu| cpu.arch.cr4 |= CR4_UMIP, |a| a.sgdt(ptr(rbx)), Raises(vector::GP));
    check(0, "str", NO_CONTROLS, AS_IS, |a| a.str(rax), Gives(reg::RAX, 0x18));
}

#[test]
fn random_numbers() {
    let on: Change = |c| c.secondary |= secondary::RDRAND | secondary::RDSEED;
    for (write, reason, information) in [
        ((|a| a.rdrand(ecx)) as Write, reason::RDRAND, 1 << 3 | 1 << 11),
        (|a| a.rdseed(r9), reason::RDSEED, 9 << 3 | 2 << 11),
        (|a| a.rdrand(dx), reason::RDRAND, 2 << 3),
    ] {
        let mut guest = Guest::long().with(on).code(write);
        let exit = guest.exit();
        assert_eq!((exit.reason, exit.instruction_information), (reason, information));
    }
}

#[test]
fn supervisor_state() {
    let area: Set = |cpu| {
        cpu.arch.gpr[usize::from(reg::RBX)] = DATA;
        cpu.arch.msr.xss = 1 << 8;
        cpu.arch.gpr[usize::from(reg::RAX)] = 0x107;
    };
    let save: Write = |a| a.xsaves(ptr(rbx));
    check(0, "xsaves", NO_CONTROLS, area, save, Raises(vector::UD));
    check(0, "xsaves", |c| c.secondary |= secondary::XSAVES, area, save, Gives(reg::RBX, DATA));
    let bitmap: Change = |c| {
        c.secondary |= secondary::XSAVES;
        c.xss_bitmap = 1 << 8;
    };
    check(0, "xsaves", bitmap, area, save, Exits(reason::XSAVES, 0, 3));
    check(0, "xrstors", bitmap, area, |a| a.xrstors(ptr(rbx)), Exits(reason::XRSTORS, 0, 3));
}

#[test]
fn the_time_stamp_counter_is_offset() {
    let offset: Change = |c| {
        c.primary |= primary::TSC_OFFSETTING | primary::MSR_BITMAPS;
        c.tsc_offset = 0x1000_0000;
        c.msr_bitmap = Some(Arc::new([0; 4096]));
    };
    let mut guest = Guest::long().with(offset).set(|cpu| cpu.arch.gpr[1] = 0x10).code(|a| {
        a.rdtsc()?;
        a.mov(rbx, rax)?;
        a.rdmsr()?;
        a.cpuid()
    });
    guest.exit();
    assert_eq!(guest.reg(reg::RBX) >> 28, 1);
    assert_eq!(guest.reg(reg::RAX) >> 28, 1);
    assert_eq!(guest.m.cpu.tsc() >> 28, 0);
}

#[test]
fn pause_loops_exit_after_the_window() {
    let loops: Change = |c| {
        c.secondary |= secondary::PAUSE_LOOP;
        c.ple_gap = 100;
        c.ple_window = 1000;
    };
    let mut guest = Guest::long().with(loops).code(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.inc(rax)?;
        a.pause()?;
        a.jmp(again)
    });
    std::sync::Arc::make_mut(&mut guest.m.cpu.wiring.model).costs.class[ledger::Class::Pause as usize] =
        10 * ledger::TICKS_PER_CYCLE as u32;
    assert_eq!(guest.exit().reason, reason::PAUSE);
    let turns = guest.reg(reg::RAX);
    assert!((50..110).contains(&turns), "{turns}");
}

#[test]
fn hlt_without_exit_waits_in_the_guest() {
    let mut guest = Guest::long().with(|c| c.pin |= pin::EXTERNAL_INTERRUPT).code(|a| a.hlt());
    assert_eq!(guest.go(), Exit::Halt);
    assert!(guest.m.cpu.non_root());
    // No write has occurred.
    assert_eq!(guest.m.run(LONG), Exit::Halt);
    guest.m.cpu.attend(crate::arch::attention::INTR);
    assert_eq!(guest.m.run(LONG), Exit::Vm);
    assert_eq!(guest.m.cpu.arch.vm_exit.reason, reason::EXTERNAL_INTERRUPT);
    assert_eq!(guest.m.cpu.controls().activity, x86::vmx::activity::HLT);
    assert_eq!(guest.offset(), 1);
}
