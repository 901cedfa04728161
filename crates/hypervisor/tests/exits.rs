//! Tests of the number of exits, their charges, and the repeatability of runs.

use crate::common::*;
use cpu::bus::lock;
use hypervisor::config::{Cr0Wp, Irqchip, MmuMode, VmConfig};
use hypervisor::mmu::SlotConfig;
use iced_x86::code_asm::*;
use ledger::Operation;
use x86::vmx::reason;

fn config(mmu: MmuMode) -> VmConfig {
    VmConfig { mmu, unrestricted_guest: mmu.is_tdp(), ..VmConfig::default() }
}

/// Toggles CR0.WP 50 times, with accesses that depend on it.
fn toggles(config: VmConfig) -> Guest {
    let mut guest = Guest::new("icx", Some(config), Mode::Long);
    guest.code(64, |a| {
        a.mov(ecx, 50)?;
        a.mov(rbx, DATA)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(rax, cr0)?;
        a.xor(rax, 1 << 16)?;
        a.mov(cr0, rax)?;
        a.inc(qword_ptr(rbx))?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    assert_eq!(guest.word(DATA), 50);
    guest
}

#[test]
fn write_protection_under_each_policy() {
    // MMU, policy, exits for control registers, roots loaded again.
    let table = [
        (MmuMode::Tdp, Cr0Wp::Role, 50, true),
        (MmuMode::Tdp, Cr0Wp::Unload, 50, true),
        (MmuMode::Tdp, Cr0Wp::Direct, 50, false),
        (MmuMode::Tdp, Cr0Wp::Tdp, 50, false),
        (MmuMode::Tdp, Cr0Wp::TdpOrPagingOff, 50, false),
        (MmuMode::Tdp, Cr0Wp::InPlace, 50, false),
        (MmuMode::Tdp, Cr0Wp::GuestOwned, 0, false),
        (MmuMode::LegacyTdp, Cr0Wp::Role, 50, true),
        (MmuMode::LegacyTdp, Cr0Wp::Unload, 50, true),
        (MmuMode::LegacyTdp, Cr0Wp::InPlace, 50, false),
        (MmuMode::LegacyTdp, Cr0Wp::GuestOwned, 0, false),
        (MmuMode::Shadow, Cr0Wp::Role, 50, true),
        (MmuMode::Shadow, Cr0Wp::Unload, 50, true),
        (MmuMode::Shadow, Cr0Wp::Direct, 50, true),
        (MmuMode::Shadow, Cr0Wp::Tdp, 50, true),
        (MmuMode::Shadow, Cr0Wp::TdpOrPagingOff, 50, true),
        (MmuMode::Shadow, Cr0Wp::InPlace, 50, true),
    ];
    for (mmu, cr0_wp, exits, reloaded) in table {
        let guest = toggles(VmConfig { cr0_wp, ..config(mmu) });
        assert_eq!(guest.exits(reason::CONTROL_REGISTER), exits, "{mmu} {cr0_wp}");
        assert_eq!(guest.operations(Operation::RootLoad) >= 50, reloaded, "{mmu} {cr0_wp}");
    }
}

/// Returns the INVEPTs and INVVPIDs of a guest that changes a bit of CR4 `changes` times. It begins with both bits
/// clear.
fn flushes(mmu: MmuMode, vpid: bool, bit: i32, changes: i32) -> (u64, u64) {
    let mut guest = Guest::new("icx", Some(VmConfig { vpid, ..config(mmu) }), Mode::Long);
    guest.code(64, |a| {
        for _ in 0..changes {
            a.mov(rax, cr4)?;
            a.xor(rax, bit)?;
            a.mov(cr4, rax)?;
        }
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    (guest.operations(Operation::Invept), guest.operations(Operation::Invvpid))
}

#[test]
fn a_flush_is_by_one_instruction() {
    const PSE: i32 = 1 << 4;
    const PCIDE: i32 = 1 << 17;
    // One for each change after the first: setting PCIDE flushes nothing, clearing it flushes the guest's TLB; a change
    // of PSE loads the root again, which flushes the current context.
    let table = [
        (MmuMode::Tdp, true, PCIDE, (0, 1)),
        (MmuMode::Tdp, true, PSE, (1, 0)),
        (MmuMode::Tdp, false, PCIDE, (0, 0)),
        (MmuMode::Tdp, false, PSE, (1, 0)),
        (MmuMode::LegacyTdp, true, PCIDE, (0, 1)),
        (MmuMode::LegacyTdp, true, PSE, (1, 0)),
        (MmuMode::Shadow, true, PCIDE, (0, 1)),
        (MmuMode::Shadow, true, PSE, (0, 1)),
        (MmuMode::Shadow, false, PSE, (0, 0)),
    ];
    for (mmu, vpid, bit, expected) in table {
        let (before, after) = (flushes(mmu, vpid, bit, 1), flushes(mmu, vpid, bit, 2));
        assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{mmu}, VPID {vpid}, bit {bit:#x}");
    }
}

#[test]
fn a_toggle_of_write_protection_flushes_once() {
    for mmu in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        for cr0_wp in [Cr0Wp::Role, Cr0Wp::Unload] {
            let (kept, unloaded) = (toggles(config(mmu)), toggles(VmConfig { cr0_wp, ..config(mmu) }));
            let more = |operation| unloaded.operations(operation) - kept.operations(operation);
            assert_eq!((more(Operation::Invept), more(Operation::Invvpid)), (50, 0), "{mmu} {cr0_wp}");
        }
    }
}

#[test]
fn a_virtual_cpu_whose_turn_is_over_holds_its_root() {
    let mut guest = Guest::new("icx", Some(VmConfig { cr0_wp: Cr0Wp::Unload, ..config(MmuMode::Tdp) }), Mode::Long);
    guest.code(64, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(rax, cr0)?;
        a.xor(rax, 1 << 16)?;
        a.mov(cr0, rax)?;
        a.jmp(again)
    });
    for turn in 0..2000 {
        guest.run(777_000).unwrap();
        let used = guest.hypervisor.as_ref().unwrap().mmu.pages_used().0;
        assert!(used != 0, "turn {turn}: the root is nobody's");
    }
}

#[test]
fn address_spaces_exit_with_shadow_tables_only() {
    for mmu in [MmuMode::Tdp, MmuMode::LegacyTdp, MmuMode::Shadow, MmuMode::ShadowNocache] {
        let mut guest = Guest::new("icx", Some(config(mmu)), Mode::Long);
        guest.code(64, |a| {
            for _ in 0..20 {
                a.mov(rax, cr3)?;
                a.mov(cr3, rax)?;
            }
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!(guest.exits(reason::CONTROL_REGISTER), if mmu.is_tdp() { 0 } else { 40 }, "{mmu}");
    }
}

#[test]
fn a_guest_that_uses_spec_ctrl_has_it_after_the_first_value() {
    let mut guest = Guest::new("icx", Some(config(MmuMode::Tdp)), Mode::Long);
    guest.code(64, |a| {
        a.mov(ecx, 0x48)?;
        a.xor(edx, edx)?;
        for value in [0, 0, 1, 0, 1] {
            a.mov(eax, value)?;
            a.wrmsr()?;
        }
        a.rdmsr()?;
        a.mov(rbx, rax)?;
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    assert_eq!(guest.cpu.arch.gpr[3], 1);
    assert_eq!((guest.exits(reason::WRMSR), guest.exits(reason::RDMSR)), (3, 0));
}

#[test]
fn devices_cost_what_their_place_costs() {
    for (irqchip, kernel, user) in [(Irqchip::Kernel, 2, 1), (Irqchip::User, 0, 4)] {
        let mut guest = Guest::new("icx", Some(VmConfig { irqchip, ..config(MmuMode::Tdp) }), Mode::Long);
        guest.code(64, |a| {
            a.in_(al, 0x21)?;
            a.out(0x43, al)?;
            a.mov(dx, 0x3f8)?;
            a.out(dx, al)?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        // In user space it also sleeps.
        let charged = (guest.operations(Operation::DeviceKernel), guest.operations(Operation::DeviceUser));
        assert_eq!(charged, (kernel, user));
        assert_eq!(
            guest.operations(Operation::RunLoop),
            guest.exits(reason::IO) + guest.exits(reason::HLT) + guest.exits(reason::EPT_VIOLATION)
        );
    }
}

#[test]
fn an_interrupt_that_is_shut_out_asks_for_a_window() {
    let mut guest = Guest::new("icx", Some(config(MmuMode::Tdp)), Mode::Long);
    guest.code(64, |a| {
        a.mov(ecx, 100_000)?;
        let mut wait = a.create_label();
        a.set_label(&mut wait)?;
        a.dec(ecx)?;
        a.jnz(wait)?;
        a.sti()?;
        a.nop()?;
        a.nop()?;
        a.cli()?;
        a.hlt()
    });
    // It runs before the interrupt arrives.
    while !guest.cpu.non_root() {
        guest.run(10_000).unwrap();
    }
    lock(&guest.bus).interrupts.push_back(0x40);
    guest.finish();
    assert_eq!(guest.cpu.arch.gpr[15], 1);
    assert_eq!((guest.exits(reason::EXTERNAL_INTERRUPT), guest.exits(reason::INTERRUPT_WINDOW)), (1, 1));
    // One more for each table of the guest that the delivery was the first to access.
    assert!((1..=3).contains(&guest.operations(Operation::Inject)));
}

#[test]
fn nmis_are_injected_and_block_each_other() {
    for mmu in [MmuMode::Tdp, MmuMode::Shadow] {
        let mut guest = Guest::new("icx", Some(config(mmu)), Mode::Long);
        guest.code(64, |a| {
            let mut wait = a.create_label();
            let mut on = a.create_label();
            a.lea(rbp, ptr(on))?;
            a.set_label(&mut wait)?;
            a.jmp(wait)?;
            a.set_label(&mut on)?;
            a.cli()?;
            a.hlt()
        });
        guest.run(100_000).unwrap();
        guest.cpu.attend(cpu::arch::attention::NMI);
        guest.finish();
        assert_eq!((guest.word(LOG), guest.word(LOG + 32)), (1, 2), "{mmu}");
    }
}

#[test]
fn runs_repeat_to_the_tick() {
    for config in configurations() {
        let run = || {
            let guest = toggles(config.clone());
            let recorder = &guest.cpu.wiring.recorder;
            let events: Vec<_> = recorder.events().map(|e| (e.1, e.2, e.3.count, e.3.ticks)).collect();
            (guest.cpu.micro.clock, events)
        };
        assert_eq!(run(), run(), "under {config:?}");
    }
}

#[test]
fn memory_comes_goes_and_is_logged_while_the_guest_runs() {
    const FRAME: u64 = 0x10_0000;
    for config in configurations() {
        let mut guest = Guest::new("icx", Some(config.clone()), Mode::Long);
        let ram = guest.cpu.wiring.ram.clone();
        ram.write(0x2000 + 8, TABLES | 7);
        ram.write(TABLES, FRAME << 12 | 0x87);
        ram.write(0x40_0000, 0x1234_5678u64);
        guest.code(64, |a| {
            let mut again = a.create_label();
            a.mov(rbx, DATA)?;
            a.mov(rsi, 1u64 << 30)?;
            a.set_label(&mut again)?;
            a.mov(rax, qword_ptr(rsi))?;
            a.mov(qword_ptr(rbx), rax)?;
            a.inc(qword_ptr(rsi + 0x1008))?;
            a.jmp(again)
        });
        let run_until = |guest: &mut Guest, value: u64| {
            for _ in 0..1000 {
                guest.run(200_000).unwrap_or_else(|failure| panic!("{failure} under {config:?}"));
                if guest.word(DATA) == value {
                    return;
                }
            }
            panic!("the guest does not see {value:#x} under {config:?}");
        };
        run_until(&mut guest, u64::MAX);
        // The memory has no other user.
        let slot = |gfn, pages, hpa| SlotConfig { gfn, pages, hpa, read_only: false, log_dirty: false };
        let vm = guest.hypervisor.as_mut().unwrap();
        assert!(vm.remove_slot(0));
        vm.add_slot(slot(0, 0x400, 0)).unwrap();
        vm.add_slot(slot(0x600, (RAM >> 12) - 0x600, 0x60_0000)).unwrap();
        vm.add_slot(slot(FRAME, 0x200, 0x40_0000)).unwrap();
        run_until(&mut guest, 0x1234_5678);
        // Its writes are logged from now on, although it was in the middle of them.
        assert!(guest.hypervisor.as_mut().unwrap().mmu.log_dirty(FRAME, true));
        let before = guest.word(0x40_1008);
        while guest.word(0x40_1008) == before {
            guest.run(200_000).unwrap();
        }
        let log = guest.hypervisor.as_mut().unwrap().mmu.take_dirty_log(FRAME).unwrap();
        assert_eq!(log[0] & 2, 2, "under {config:?}");
        assert!(guest.hypervisor.as_mut().unwrap().remove_slot(FRAME));
        run_until(&mut guest, u64::MAX);
    }
}
