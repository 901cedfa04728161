//! Tests of shadow EPT against changes of the guest's EPT that it has not been told of, and of its entries for devices.

use super::super::guest_ept::{EptExit, Nested, NestedInvept};
use super::super::pool::{EntryRef, Page};
use super::nested::{FORMAT, Found};
use super::units::{DATA, DIRECTORY, PDPT, RAM, ROOT, TABLE, config};
use super::*;
use ept::{LARGE, READ, RIGHTS, WRITE};
use x86::page;

/// Memory type of entries that map pages.
const WB: u64 = ept::WRITE_BACK << ept::TYPE_SHIFT;
const DEVICE: u64 = 0xfee0_0000;
/// Addresses of the nested guest: of a small page, a device, a page of 2 MiB, and one of 1 GiB.
const ADDRESSES: [u64; 4] = [0x1000, 0x2000, 0x20_0000, 0x4000_0000];

fn outer() -> Guest {
    Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() }
}

fn nested() -> Guest {
    let eptp = ROOT | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK;
    Guest { nested: Some(Nested { eptp: Some(eptp), ept: FORMAT, pml: None }), ..outer() }
}

fn access(rig: &mut Rig, linear: u64, access: Access) -> Found {
    rig.nested_access(&mut nested(), linear, access, Privilege::Supervisor)
}

/// A nested guest that has written to all of [`ADDRESSES`].
fn used(mode: MmuMode) -> Rig {
    let mut rig = Rig::new(&VmConfig { huge_pages: false, ..config(mode) }, RAM);
    for (gpa, value) in [
        (ROOT, PDPT | RIGHTS),
        (PDPT, DIRECTORY | RIGHTS),
        (PDPT + 8, LARGE | RIGHTS | WB),
        (DIRECTORY, TABLE | RIGHTS),
        (DIRECTORY + 8, 0x40_0000 | LARGE | RIGHTS | WB),
        (TABLE + 8, DATA | RIGHTS | WB),
        (TABLE + 16, DEVICE | RIGHTS | WB),
    ] {
        rig.ram().write(gpa, value);
    }
    let found = ADDRESSES.map(|linear| access(&mut rig, linear, Access::Write));
    assert_eq!(found, [DATA, DEVICE, 0x40_0000, 0].map(Found::Place), "{mode}");
    rig.check();
    rig
}

/// Entries that the guest changes without an exit, in a table that is not unsynchronized: what allows less, or something
/// else, contradicts shadow EPT.
#[test]
fn what_the_guests_ept_takes_away_is_missed() {
    let new_rights = |value: u64, rights: u64| value & !RIGHTS | rights;
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        for (at, change, consistent) in [
            (TABLE + 8, DATA | RIGHTS | WB, true),
            (TABLE + 8, (DATA + 0x1000) | RIGHTS | WB, false),
            (TABLE + 8, DATA | READ | WB, false),
            (TABLE + 8, 0, false),
            (TABLE + 8, DATA | RIGHTS | 7 << ept::TYPE_SHIFT, false),
            (TABLE + 16, (DEVICE + 0x1000) | RIGHTS | WB, false),
            (TABLE + 16, DEVICE | READ | WB, true),
            (TABLE + 16, DATA | RIGHTS | WB, false),
            (TABLE + 24, DATA | RIGHTS | WB, true),
            (DIRECTORY, (TABLE + 0x1000) | RIGHTS, false),
            (DIRECTORY, TABLE | READ, false),
            (DIRECTORY, LARGE | RIGHTS | WB, false),
            (DIRECTORY + 8, 0x60_0000 | LARGE | RIGHTS | WB, false),
            (DIRECTORY + 8, 0x40_0000 | LARGE | READ | WRITE | WB, false),
            (DIRECTORY + 8, 0x40_0000 | RIGHTS, false),
            (PDPT + 8, LARGE | READ | WB, false),
            (ROOT, 0, false),
        ] {
            let mut rig = used(mode);
            rig.ram().write(at, change);
            let outcome = rig.mmu.check(&[&rig.vcpu, &rig.other.0]);
            assert_eq!(outcome.is_ok(), consistent, "{mode}: {at:#x} {change:#x} {outcome:?}");
            if let Err(wrong) = outcome {
                assert!(wrong.contains("where the guest's EPT has"), "{wrong}");
                // It is found out by INVEPT after a write that the hypervisor sees.
                rig.mmu.page_written(at, 8);
                rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::All);
                rig.enter(&nested());
                rig.check();
            }
        }
        // More than shadow EPT allows is no contradiction.
        let mut rig = used(mode);
        rig.ram().write(TABLE + 32, DATA | READ | WB);
        assert_eq!(access(&mut rig, 0x4000, Access::Read), Found::Place(DATA));
        rig.ram().write(TABLE + 32, new_rights(DATA | WB, RIGHTS));
        rig.check();
    }
}

/// A table that the guest may write to without an exit says nothing until the guest executes INVEPT.
#[test]
fn an_unsynchronized_table_may_say_something_else() {
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        let mut rig = used(mode);
        rig.mmu.nested_transition(&mut rig.vcpu, &outer());
        assert_eq!(rig.access(&outer(), TABLE + 8, Access::Write, Privilege::Supervisor), Met::Memory(TABLE + 8));
        assert_eq!((rig.emulated, rig.mmu.stats().unsynced), (false, 1), "{mode}");
        rig.ram().write(TABLE + 8, (DATA + 0x5000) | RIGHTS | WB);
        rig.check();
        rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::All);
        assert_eq!(access(&mut rig, 0x1000, Access::Read), Found::Place(DATA + 0x5000));
        rig.check();
    }
}

/// Of a page of 1 GiB only pieces are mapped: each continues the one before.
#[test]
fn pieces_of_a_large_page_lie_side_by_side() {
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        for (moved, wrong) in [(0x200, true), (0, false)] {
            let mut rig = used(mode);
            let is_piece =
                |page: &Page| page.role.ept.is_some() && page.role.direct && page.role.level == 1 && page.gfn == 0;
            let piece = rig.mmu.pool.iter().find(|(_, page)| is_piece(page)).expect("a piece").0;
            // Without entries, reverse maps say nothing about it.
            for index in 0..512 {
                rig.mmu.drop_entry(EntryRef { page: piece, index });
            }
            rig.mmu.pool.page_mut(piece).gfn += moved;
            let outcome = rig.mmu.check(&[&rig.vcpu, &rig.other.0]);
            assert_eq!(outcome.is_err_and(|text| text.contains("points to a page for frame 0x200, not 0x0")), wrong);
        }
    }
}

/// An access to a device ends in a misconfiguration from the second one on, without a walk of the guest's EPT for its
/// permissions; if the guest has mapped memory there, the entry is dropped.
#[test]
fn devices_of_a_nested_guest_are_marked() {
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        let mut rig = used(mode);
        let fault = Fault::Misconfiguration { gpa: 0x2000 };
        let guest = nested();
        assert_eq!(rig.mmu.stats().mmio, 1);
        assert_eq!(rig.mmu.fault(&mut rig.vcpu, &guest, fault), Resolution::Emulate { mmio: true });
        assert_eq!(access(&mut rig, 0x2010, Access::Read), Found::Place(DEVICE + 0x10));
        assert_eq!(rig.mmu.stats().mmio, 1);
        rig.ram().write(TABLE + 16, DATA | RIGHTS | WB);
        assert_eq!(rig.mmu.fault(&mut rig.vcpu, &guest, fault), Resolution::Fixed);
        assert_eq!(access(&mut rig, 0x2010, Access::Read), Found::Place(DATA + 0x10));
        rig.check();
    }
}

/// The accessed flag in a page table of the nested guest is a write to the table, which the guest's EPT has to permit: without flags of its own, EPT
/// permits a walk of tables that are only readable, as long as no flag changes.
#[test]
fn a_flag_is_set_only_in_a_table_that_the_guests_ept_lets_be_written() {
    const PRESENT: u64 = 3;
    const LARGE_PAGE: u64 = 1 << 7;
    let tables = DATA + 0x1000;
    let guest = Guest { cr0: CR0_PE | CR0_PG, cr3: 0x3000, cr4: CR4_PSE, ..nested() };
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        let mut rig = used(mode);
        let walk = |rig: &mut Rig, linear: u64| rig.mmu.nested_walk(&guest, linear, 0);
        rig.ram().write(tables, (PRESENT | LARGE_PAGE) as u32);
        for (rights, flag) in [(READ, false), (RIGHTS, true)] {
            rig.ram().write(TABLE + 24, tables | rights | WB);
            match walk(&mut rig, 0x1000) {
                Ok(place) => assert!(flag && place == DATA, "{mode}: {place:#x}"),
                Err(NestedFault::Exit(EptExit::Violation { gpa: 0x3000, linear: 0x1000, qualification })) => {
                    assert!(!flag && qualification & WRITE != 0, "{mode}: {qualification:#x}");
                }
                Err(other) => panic!("{mode}: {other:?}"),
            }
            assert_eq!(rig.ram().read::<u32>(tables).unwrap() & page::A as u32 != 0, flag, "{mode}");
        }
        // A flag that is set needs no write.
        rig.ram().write(TABLE + 24, tables | READ | WB);
        assert_eq!(walk(&mut rig, 0x1000).ok(), Some(DATA), "{mode}");
    }
}
