//! Tests of the parts of CPUID that depend on registers: the guest's view, and the hypervisor's costs.

use crate::common::*;
use hypervisor::config::{CpuidUpdate, VmConfig};
use iced_x86::code_asm::*;
use ledger::{Family, Operation};

/// XCR0 with the opmasks and both parts of the ZMM registers: with AVX, four components outside the legacy region.
const ZMM: i32 = 0xe7;
/// XCR0 with AVX only.
const YMM: i32 = 7;

fn write_xcr0(a: &mut CodeAssembler, value: i32) -> Result<(), IcedError> {
    a.xor(ecx, ecx)?;
    a.xor(edx, edx)?;
    a.mov(eax, value)?;
    a.xsetbv()
}

/// Stores OSXSAVE and the sizes of both formats at RSI, and advances it.
fn look(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, 1)?;
    a.cpuid()?;
    a.and(ecx, 1 << 27)?;
    a.mov(dword_ptr(rsi), ecx)?;
    for subleaf in 0..2 {
        a.mov(eax, 0xd)?;
        a.mov(ecx, subleaf)?;
        a.cpuid()?;
        a.mov(dword_ptr(rsi + 4 + 4 * subleaf), ebx)?;
    }
    a.add(rsi, 16)
}

/// Enables states in several steps. With `looks`, CPUID is executed after each.
fn program(guest: &mut Guest, looks: bool) {
    guest.code(64, |a| {
        a.mov(rsi, DATA)?;
        look(a)?;
        a.mov(rax, cr4)?;
        a.or(rax, 1 << 18)?;
        a.mov(cr4, rax)?;
        for value in [ZMM, YMM, ZMM] {
            if looks {
                look(a)?;
            }
            write_xcr0(a, value)?;
        }
        look(a)?;
        // IA32_XSS: no state, as before.
        a.mov(ecx, 0xda0)?;
        a.xor(eax, eax)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
        look(a)?;
        a.xor(ebx, ebx)?;
        a.mov(eax, 0)?;
        a.cli()?;
        a.hlt()
    });
}

fn run(config: Option<VmConfig>, looks: bool) -> Guest {
    let mut guest = Guest::new("icx", config, Mode::Long);
    program(&mut guest, looks);
    guest.finish();
    guest
}

fn config(cpuid_update: CpuidUpdate, cpuid_cache: bool) -> VmConfig {
    VmConfig { cpuid_update, cpuid_cache, ..VmConfig::default() }
}

#[test]
fn the_guest_reads_what_the_processor_would_say() {
    let bare = run(None, true).outcome();
    for update in [CpuidUpdate::Eager, CpuidUpdate::Deferred] {
        for cache in [true, false] {
            assert_eq!(run(Some(config(update, cache)), true).outcome(), bare, "{update}, cache {cache}");
        }
    }
}

#[test]
fn each_size_asks_for_each_component_unless_they_are_known() {
    use CpuidUpdate::{Deferred, Eager};
    // Policy, cache, CPUID after each step; updates, CPUIDs of 0xD.7 (in both ZMM steps) and of 0xD.2 (in all of XCR0).
    let table = [
        // CR4, three times XCR0, XSS.
        (Eager, true, true, 5, 0, 0),
        // ZMM, ZMM and XSS, two sizes each; 0xD.2 also at YMM.
        (Eager, false, true, 5, 6, 8),
        (Eager, false, false, 5, 6, 8),
        (Deferred, false, true, 5, 6, 8),
        // Only before the two CPUIDs at the end.
        (Deferred, false, false, 2, 4, 4),
        (Deferred, true, false, 2, 0, 0),
    ];
    for (update, cache, looks, updates, upper, ymm) in table {
        let guest = run(Some(config(update, cache)), looks);
        let found = (guest.operations(Operation::CpuidUpdate), guest.cpuids(0xd, 7), guest.cpuids(0xd, 2));
        assert_eq!(found, (updates, upper, ymm), "{update}, cache {cache}, looks {looks}");
        assert_eq!(guest.operations(Operation::XstateSize), 2 * updates, "two formats");
    }
}

/// Returns the cost of writes of XCR0 by a hypervisor around the exits of a guest that has this value and executes
/// CPUID `cpuids` times.
fn writes(xcr0: i32, cpuids: i32) -> u64 {
    let mut guest = Guest::new("icx", Some(VmConfig::default()), Mode::Long);
    guest.code(64, |a| {
        a.mov(rax, cr4)?;
        a.or(rax, 1 << 18)?;
        a.mov(cr4, rax)?;
        write_xcr0(a, xcr0)?;
        a.mov(ebp, cpuids)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.cpuid()?;
        a.dec(ebp)?;
        a.jnz(again)?;
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    guest.charged(|kind| kind.family == Family::Xsetbv)
}

#[test]
fn a_guest_with_another_xcr0_than_the_hosts_costs_two_writes_for_each_exit() {
    // The value of the profile's host.
    assert_eq!(writes(0x2e7, 50) - writes(0x2e7, 10), 0);
    assert_eq!(writes(YMM, 50) - writes(YMM, 10), 2 * 40);
}
