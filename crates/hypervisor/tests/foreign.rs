//! Guests on a processor of another maker than that which their CPUID names.

use crate::common::*;
use hypervisor::config::{MmuMode, VmConfig};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ledger::Profile;

fn config(mmu: MmuMode) -> VmConfig {
    VmConfig { mmu, paravirt: true, unrestricted_guest: mmu.is_tdp(), ..VmConfig::default() }
}

/// Runs code on its own processor and on one of another maker, and checks that the results are the same.
fn same(first: &str, processor: &str, code: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Outcome {
    let own = Profile::named(first).unwrap();
    let other = Profile::named(processor).unwrap().for_guest_of(&own);
    let outcomes = [&own, &other].into_iter().flat_map(|profile| {
        [MmuMode::Shadow, MmuMode::Tdp].map(|mmu| {
            let mut guest = Guest::on(profile, Some(config(mmu)), Mode::Long);
            guest.code(64, &code);
            guest.finish();
            guest.outcome()
        })
    });
    let outcomes: Vec<Outcome> = outcomes.collect();
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{first} on {processor}: {outcomes:?}");
    outcomes.into_iter().next().unwrap()
}

fn wrmsr(a: &mut CodeAssembler, index: u32) -> Result<(), IcedError> {
    a.mov(ecx, index)?;
    a.xor(edx, edx)?;
    a.wrmsr()
}

#[test]
fn a_hypercall_of_the_other_maker_is_made() {
    let outcome = same("skx", "zen3", |a| {
        a.mov(eax, 2)?;
        a.vmcall()?;
        a.mov(rbx, rax)?;
        a.mov(eax, 77)?;
        a.vmcall()?;
        a.cli()?;
        a.hlt()
    });
    assert_eq!((outcome.registers[3], outcome.registers[0] as i64), (0, -1000));
    same("zen3", "spr", |a| {
        a.mov(eax, 77)?;
        a.vmmcall()?;
        a.cli()?;
        a.hlt()
    });
}

#[test]
fn sysenter_works_in_long_mode_as_on_the_maker_that_cpuid_names() {
    let outcome = same("skx", "zen3", |a| {
        let mut entered = a.create_label();
        a.mov(eax, 0x18)?;
        wrmsr(a, 0x174)?;
        a.mov(eax, STACK as u32)?;
        wrmsr(a, 0x175)?;
        a.lea(rax, ptr(entered))?;
        wrmsr(a, 0x176)?;
        a.sysenter()?;
        a.set_label(&mut entered)?;
        a.mov(edi, cs)?;
        a.mov(r12d, 1)?;
        a.cli()?;
        a.hlt()
    });
    assert_eq!((outcome.registers[7], outcome.registers[12]), (0x18, 1));
}

#[test]
fn an_undefined_instruction_raises_ud() {
    let outcome = same("skx", "zen3", |a| {
        a.xor(ebp, ebp)?;
        a.ud2()
    });
    assert_eq!(outcome.exceptions[4], 6);
}

#[test]
fn registers_and_cpuid_are_those_of_the_first_processor() {
    same("skx", "zen3", |a| {
        a.mov(r8, DATA)?;
        for (at, leaf) in [0u32, 1, 7, 0xd, 0x4000_0000, 0x8000_0001, 0x8000_0008, 0x5fff_ffff].into_iter().enumerate()
        {
            a.mov(eax, leaf)?;
            a.xor(ecx, ecx)?;
            a.cpuid()?;
            for (word, register) in [eax, ebx, ecx, edx].into_iter().enumerate() {
                // PKU needs two-dimensional paging.
                if leaf == 7 && word == 2 {
                    a.and(register, !0x18)?;
                }
                a.mov(dword_ptr(r8 + (16 * at + 4 * word) as i32), register)?;
            }
        }
        // IA32_MISC_ENABLE, which AMD's processors lack.
        a.mov(ecx, 0x1a0)?;
        a.rdmsr()?;
        a.mov(edi, eax)?;
        a.cli()?;
        a.hlt()
    });
}
