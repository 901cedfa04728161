//! Tests of individual properties of the MMUs.

use super::*;
use crate::config::{Cr0Wp, Cr0WpEffect};
use ledger::Operation;
use testkit::Random;

pub(super) const RAM: u64 = 8 << 20;
/// Tables of a 64-bit guest, or (directory and table) of a 32-bit guest.
pub(super) const ROOT: u64 = 0x10_0000;
pub(super) const PDPT: u64 = 0x10_1000;
pub(super) const DIRECTORY: u64 = 0x10_2000;
pub(super) const TABLE: u64 = 0x10_3000;
/// Table that maps the tables at [`WINDOW`].
pub(super) const WINDOW_TABLE: u64 = 0x10_4000;
pub(super) const WINDOW: u64 = 0x20_0000;
pub(super) const DATA: u64 = 0x30_0000;
pub(super) const USER_RW: u64 = 0x67;

pub(super) fn config(mmu: MmuMode) -> VmConfig {
    VmConfig { mmu, unrestricted_guest: false, ..VmConfig::default() }
}

pub(super) fn long(cr0: u64) -> Guest {
    Guest {
        cr0: CR0_PE | CR0_PG | cr0,
        cr3: ROOT,
        cr4: CR4_PAE,
        efer: EFER_LME | EFER_LMA,
        rflags: 2,
        ..Guest::default()
    }
}

/// Sets up a guest: pages 0 to 15 of linear memory are data, the tables are at [`WINDOW`].
pub(super) fn long_guest(rig: &Rig) -> Guest {
    for (gpa, value) in [
        (ROOT, PDPT | USER_RW),
        (PDPT, DIRECTORY | USER_RW),
        (DIRECTORY, TABLE | USER_RW),
        (DIRECTORY + 8, WINDOW_TABLE | USER_RW),
    ] {
        rig.ram().write(gpa, value);
    }
    for number in 0..16 {
        rig.ram().write(TABLE + number * 8, (DATA + number * 4096) | USER_RW);
        rig.ram().write(WINDOW_TABLE + number * 8, (ROOT + number * 4096) | USER_RW);
    }
    long(CR0_WP)
}

pub(super) fn write_table(rig: &mut Rig, guest: &Guest, gpa: u64, value: u64) {
    let met = rig.access(guest, WINDOW + gpa - ROOT, Access::Write, Privilege::Supervisor);
    assert_eq!(met, Met::Memory(gpa));
    rig.write(gpa, &value.to_le_bytes());
}

pub(super) fn read(rig: &mut Rig, guest: &Guest, linear: u64) -> Met {
    rig.access(guest, linear, Access::Read, Privilege::User)
}

#[test]
fn another_processor_forgets_that_a_table_could_be_written() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x1000));
    // This entry may write to the table from now on.
    write_table(&mut rig, &guest, TABLE + 8, (DATA + 0x1000) | USER_RW);
    assert!(!rig.emulated && rig.mmu.stats().unsynced == 1);
    rig.swap();
    rig.new_cr3(&guest);
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x1000));
    rig.check();
    rig.swap();
    write_table(&mut rig, &guest, TABLE + 8, (DATA + 0x6000) | USER_RW);
    rig.swap();
    rig.new_cr3(&guest);
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x6000));
    rig.check();
}

#[test]
fn another_processor_forgets_that_data_could_be_written_when_it_becomes_a_table() {
    for unsync in [false, true] {
        let mut rig = Rig::new(&VmConfig { unsync, ..config(MmuMode::Shadow) }, RAM);
        let guest = long_guest(&rig);
        let new_table = ROOT + 8 * 4096;
        write_table(&mut rig, &guest, new_table + 8, (DATA + 0x2000) | USER_RW);
        rig.swap();
        write_table(&mut rig, &guest, DIRECTORY + 16, new_table | USER_RW);
        let linear = 0x40_1000;
        assert_eq!(read(&mut rig, &guest, linear), Met::Memory(DATA + 0x2000));
        rig.swap();
        write_table(&mut rig, &guest, new_table + 8, DATA | USER_RW);
        rig.swap();
        rig.new_cr3(&guest);
        assert_eq!(read(&mut rig, &guest, linear), Met::Memory(DATA));
        rig.check();
    }
}

#[test]
fn a_table_that_is_written_to_again_and_again_is_no_longer_watched() {
    for unsync in [false, true] {
        let mut rig = Rig::new(&VmConfig { unsync, ..config(MmuMode::Shadow) }, RAM);
        let guest = long_guest(&rig);
        // A directory that is not used for its own mapping.
        let directory = ROOT + 8 * 4096;
        rig.ram().write(PDPT + 8, directory | USER_RW);
        rig.ram().write(directory, TABLE | USER_RW);
        read(&mut rig, &guest, 1 << 30);
        let mut emulated = 0;
        for number in 0..8 {
            write_table(&mut rig, &guest, directory + 0x800 + number * 8, 0);
            emulated += u32::from(rig.emulated);
        }
        assert!((1..=4).contains(&emulated), "{emulated} with unsync {unsync}");
        assert_eq!(rig.mmu.stats().flooded, 1);
        rig.check();
    }
}

#[test]
fn only_without_unsync_writes_to_last_level_tables_are_emulated() {
    for unsync in [false, true] {
        let mut rig = Rig::new(&VmConfig { unsync, ..config(MmuMode::Shadow) }, RAM);
        let guest = long_guest(&rig);
        read(&mut rig, &guest, 0);
        write_table(&mut rig, &guest, TABLE + 8, DATA | USER_RW);
        assert_eq!(rig.emulated, !unsync);
        // The written entry is mapped at once, or when the guest flushes.
        let faults = rig.mmu.stats().faults;
        rig.invlpg(0x1000);
        assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA));
        assert_eq!(rig.mmu.stats().faults, faults);
    }
}

#[test]
fn a_root_is_found_again_in_the_hash_but_not_the_tree_of_the_tdp_mmu() {
    for (mode, again) in [(MmuMode::LegacyTdp, 0), (MmuMode::Tdp, 4), (MmuMode::Shadow, 0), (MmuMode::ShadowNocache, 4)]
    {
        let mut rig = Rig::new(&config(mode), RAM);
        let guest = long_guest(&rig);
        read(&mut rig, &guest, 0);
        let before = rig.mmu.tolls.count(Operation::PageAllocate);
        rig.mmu.unload(&mut rig.vcpu);
        read(&mut rig, &guest, 0);
        let pages = rig.mmu.tolls.count(Operation::PageAllocate) - before;
        match again {
            0 => assert_eq!(pages, 0, "{mode}"),
            _ => assert!(pages >= 3, "{mode}: {pages}"),
        }
        rig.check();
    }
}

#[test]
fn a_toggle_of_write_protection_unloads_roots_or_not() {
    let loads = |mode, policy| {
        let mut rig = Rig::new(&VmConfig { cr0_wp: policy, ..config(mode) }, RAM);
        let guest = long_guest(&rig);
        read(&mut rig, &guest, 0);
        let before = rig.mmu.stats().roots_loaded;
        let toggled = Guest { cr0: guest.cr0 ^ CR0_WP, ..guest };
        rig.mmu.cr0_changed(&mut rig.vcpu, &toggled, guest.cr0);
        read(&mut rig, &toggled, 0);
        rig.mmu.cr0_changed(&mut rig.vcpu, &guest, toggled.cr0);
        read(&mut rig, &guest, 0);
        rig.check();
        rig.mmu.stats().roots_loaded - before
    };
    assert_eq!(loads(MmuMode::Tdp, Cr0Wp::Unload), 2);
    assert_eq!(loads(MmuMode::Tdp, Cr0Wp::InPlace), 0);
    assert_eq!(loads(MmuMode::LegacyTdp, Cr0Wp::Unload), 2);
    assert_eq!(loads(MmuMode::LegacyTdp, Cr0Wp::InPlace), 0);
    assert_eq!(loads(MmuMode::Shadow, Cr0Wp::Unload), 2);
    assert_eq!(loads(MmuMode::Shadow, Cr0Wp::InPlace), 2);
}

#[test]
fn with_write_protection_in_the_role_each_value_has_a_root() {
    let pages = |mode, policy, held: bool| {
        let mut rig = Rig::new(&VmConfig { cr0_wp: policy, ..config(mode) }, RAM);
        let guest = long_guest(&rig);
        if held {
            // The other virtual processor permanently uses a root with CR0.WP set.
            rig.swap();
            rig.mmu.reset_context(&mut rig.vcpu, &guest);
            read(&mut rig, &guest, 0);
            rig.swap();
        }
        rig.mmu.reset_context(&mut rig.vcpu, &guest);
        let clear = Guest { cr0: guest.cr0 ^ CR0_WP, ..guest };
        let mut counts = Vec::new();
        read(&mut rig, &guest, 0);
        for (now, before) in [(clear, guest), (guest, clear), (clear, guest)] {
            let pages = rig.mmu.tolls.count(Operation::PageAllocate);
            rig.mmu.cr0_changed(&mut rig.vcpu, &now, before.cr0);
            read(&mut rig, &now, 0);
            counts.push(rig.mmu.tolls.count(Operation::PageAllocate) - pages);
        }
        rig.check();
        counts.iter().map(|pages| *pages != 0).collect::<Vec<_>>()
    };
    // Pages created by changes: clearing the bit, setting it, clearing it again.
    assert_eq!(pages(MmuMode::Tdp, Cr0Wp::Role, false), [true, true, true]);
    assert_eq!(pages(MmuMode::Tdp, Cr0Wp::Unload, false), [true, true, true]);
    // One root in use by another is sufficient, unless the bit distinguishes roots.
    assert_eq!(pages(MmuMode::Tdp, Cr0Wp::Role, true), [true, false, true]);
    assert_eq!(pages(MmuMode::Tdp, Cr0Wp::Unload, true), [false, false, false]);
    // In the hash both are found again.
    assert_eq!(pages(MmuMode::LegacyTdp, Cr0Wp::Role, false), [true, false, false]);
    assert_eq!(pages(MmuMode::LegacyTdp, Cr0Wp::Unload, false), [false, false, false]);
}

#[test]
fn flushes_are_told_apart() {
    let due = |mode: MmuMode, act: fn(&mut Mmu, &mut VcpuMmu, &Guest)| {
        let mut rig = Rig::new(&config(mode), RAM);
        let guest = long_guest(&rig);
        rig.enter(&guest);
        act(&mut rig.mmu, &mut rig.vcpu, &guest);
        rig.mmu.prepare(&mut rig.vcpu, &guest).unwrap();
        let due = rig.mmu.take_flushes(&mut rig.vcpu);
        (due.all, due.of_current(), due.guest)
    };
    let nothing = (false, false, false);
    let (all, current, guest) = ((true, false, false), (false, true, false), (false, false, true));
    for (tdp, mode) in [(true, MmuMode::Tdp), (true, MmuMode::LegacyTdp), (false, MmuMode::Shadow)] {
        assert_eq!(due(mode, |_, _, _| {}), nothing, "{mode}");
        assert_eq!(due(mode, |mmu, vcpu, _| mmu.flush_guest(vcpu)), guest, "{mode}");
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.new_cr3(vcpu, now, false)), nothing, "{mode}");
        let own = if tdp { guest } else { current };
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.new_cr3(vcpu, now, true)), own, "{mode}");
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.invpcid(vcpu, now, Some(0))), own, "{mode}");
        // Another PCID: with EPT the processor's translations of it are unknown, in shadow tables there are none.
        let other = if tdp { guest } else { nothing };
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.invpcid(vcpu, now, Some(7))), other, "{mode}");
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.invpcid(vcpu, now, None)), guest, "{mode}");
        assert_eq!(due(mode, |mmu, vcpu, now| mmu.reset_context(vcpu, now)), current, "{mode}");
        assert_eq!(due(mode, |mmu, _, _| assert!(mmu.log_dirty(0, true))), all, "{mode}");
        let cr4 = |set: u64, clear: u64| (CR4_PAE | set, CR4_PAE | clear);
        let changes: [((u64, u64), _); 7] = [
            (cr4(0, CR4_PGE), guest),
            (cr4(CR4_PGE, 0), guest),
            (cr4(CR4_PCIDE, 0), guest),
            // Shadow roots are unloaded, the processor's translations need not be flushed.
            (cr4(0, CR4_PCIDE), if tdp { nothing } else { current }),
            (cr4(0, CR4_SMEP), current),
            (cr4(CR4_SMEP, 0), current),
            (cr4(0, CR4_FSGSBASE), nothing),
        ];
        for ((old, new), expected) in changes {
            let mut rig = Rig::new(&config(mode), RAM);
            let before = Guest { cr4: old, ..long_guest(&rig) };
            rig.enter(&before);
            let now = Guest { cr4: new, ..before };
            rig.mmu.cr4_changed(&mut rig.vcpu, &now, old);
            rig.mmu.prepare(&mut rig.vcpu, &now).unwrap();
            let due = rig.mmu.take_flushes(&mut rig.vcpu);
            assert_eq!((due.all, due.of_current(), due.guest), expected, "{mode} {old:#x} {new:#x}");
        }
        // Disabling paging flushes the guest's TLB; a root is loaded in either case.
        for (old, new, flushed) in [(CR0_PG, 0, true), (0, CR0_PG, false)] {
            let mut rig = Rig::new(&config(mode), RAM);
            let guest = Guest { cr4: CR4_PAE, efer: 0, ..long_guest(&rig) };
            let with = |pg| Guest { cr0: CR0_PE | pg, ..guest };
            rig.enter(&with(old));
            rig.mmu.cr0_changed(&mut rig.vcpu, &with(new), CR0_PE | old);
            rig.mmu.prepare(&mut rig.vcpu, &with(new)).unwrap();
            let due = rig.mmu.take_flushes(&mut rig.vcpu);
            assert_eq!((due.all, due.of_current(), due.guest), (false, true, flushed), "{mode}");
        }
    }
}

#[test]
fn with_paging_off_write_protection_means_nothing() {
    // Policy, roots loaded again, and whether the metadata is updated.
    let table = [
        (Cr0Wp::Unload, 1, true),
        (Cr0Wp::Tdp, 1, true),
        (Cr0Wp::Direct, 0, true),
        (Cr0Wp::TdpOrPagingOff, 0, true),
        (Cr0Wp::InPlace, 0, false),
    ];
    for (policy, loads, updated) in table {
        let effect = policy.effect(false, false, true);
        assert_eq!(effect != Cr0WpEffect::Nothing, updated, "{policy}");
        let mut rig = Rig::new(&VmConfig { cr0_wp: policy, ..config(MmuMode::Shadow) }, RAM);
        let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
        read(&mut rig, &guest, DATA);
        let before = rig.mmu.stats().roots_loaded;
        let toggled = Guest { cr0: CR0_PE | CR0_WP, ..guest };
        rig.mmu.cr0_changed(&mut rig.vcpu, &toggled, guest.cr0);
        read(&mut rig, &toggled, DATA);
        assert_eq!(rig.mmu.stats().roots_loaded - before, loads, "{policy}");
    }
}

#[test]
fn the_forms_of_the_patch_differ_by_the_roots_and_by_paging() {
    use Cr0WpEffect::{Metadata, Nothing, Unload};
    // Two-dimensional paging, paging, direct roots: a guest under EPT with and without paging, its guest on a shadow of its EPT, and a guest on shadow tables with and without paging.
    let places =
        [(true, true, true), (true, false, true), (true, true, false), (false, true, false), (false, false, true)];
    let effects = |policy: Cr0Wp| places.map(|(tdp, paging, direct)| policy.effect(tdp, paging, direct));
    assert_eq!(effects(Cr0Wp::Unload), [Unload; 5]);
    assert_eq!(effects(Cr0Wp::Direct), [Metadata, Metadata, Unload, Unload, Metadata]);
    assert_eq!(effects(Cr0Wp::Tdp), [Metadata, Metadata, Metadata, Unload, Unload]);
    assert_eq!(effects(Cr0Wp::TdpOrPagingOff), [Metadata, Metadata, Metadata, Unload, Metadata]);
    assert_eq!(effects(Cr0Wp::InPlace), [Metadata, Nothing, Metadata, Unload, Nothing]);
}

#[test]
fn an_implicit_access_under_smap_is_told_by_its_fault_that_comes_again() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    let guest = Guest { cr4: guest.cr4 | CR4_SMAP, rflags: 2 | x86::flags::AC, ..guest };
    assert_eq!(rig.access(&guest, 0, Access::Read, Privilege::Supervisor), Met::Memory(DATA));
    assert_eq!(rig.access(&guest, 0, Access::Read, Privilege::Implicit), Met::Fault(code::PRESENT));
    assert_eq!(rig.access(&guest, 0, Access::Write, Privilege::Supervisor), Met::Memory(DATA));
}

/// A root without links to the tables of an address finds them again: nothing else must be changed, and the guest gets
/// no fault.
#[test]
fn a_fault_that_only_links_tables_again_is_no_implicit_access() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    let guest = Guest { cr4: guest.cr4 | CR4_SMAP, rflags: 2 | x86::flags::AC, ..guest };
    assert_eq!(rig.access(&guest, 0, Access::Read, Privilege::Supervisor), Met::Memory(DATA));
    for _ in 0..3 {
        assert_eq!(rig.mmu.fault(&mut rig.vcpu, &guest, Fault::Page { linear: 0, code: 0 }), Resolution::Fixed);
    }
    // A fault on a present page comes from an implicit access if it is repeated without another fault in between.
    let implicit = Fault::Page { linear: 0, code: code::PRESENT };
    let elsewhere = Fault::Page { linear: 0, code: code::PRESENT | code::USER };
    for fault in [implicit, elsewhere, implicit] {
        assert_eq!(rig.mmu.fault(&mut rig.vcpu, &guest, fault), Resolution::Fixed);
    }
    assert!(matches!(rig.mmu.fault(&mut rig.vcpu, &guest, implicit), Resolution::Inject(_)));
}

#[test]
fn slots_may_be_anywhere_in_host_memory_and_read_only() {
    let slots = [
        SlotConfig { gfn: 0, pages: 0x200, hpa: 0x40_0000, read_only: false, log_dirty: false },
        SlotConfig { gfn: 0x400, pages: 0x10, hpa: 0x1000, read_only: true, log_dirty: false },
        SlotConfig { gfn: 0x1000, pages: 0x200, hpa: 0x20_0000, read_only: false, log_dirty: true },
    ];
    for mode in MmuMode::ALL {
        let mut rig = Rig::with_slots(&config(*mode), &slots);
        let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
        let write = |rig: &mut Rig, linear| rig.access(&guest, linear, Access::Write, Privilege::Supervisor);
        assert_eq!(write(&mut rig, 0x1234), Met::Memory(0x40_1234));
        assert_eq!(rig.mmu.stats().large, 1, "{mode}: alike on both sides");
        assert_eq!(write(&mut rig, 0x20_0000), Met::Device(0x20_0000));
        assert_eq!(read(&mut rig, &guest, 0x40_1008), Met::Memory(0x2008));
        assert_eq!(write(&mut rig, 0x40_1008), Met::Memory(0x2008));
        assert!(rig.emulated, "{mode}: the VMM decides what a write to ROM does");
        assert_eq!(write(&mut rig, 0x100_3000), Met::Memory(0x20_3000));
        assert_eq!(rig.mmu.take_dirty_log(0x1000).unwrap()[0], 8, "{mode}");
        assert_eq!(rig.mmu.take_dirty_log(0x1000).unwrap()[0], 0, "{mode}");
        assert_eq!(write(&mut rig, 0x100_3000), Met::Memory(0x20_3000));
        assert_eq!(rig.mmu.take_dirty_log(0x1000).unwrap()[0], 8, "{mode}");
        rig.check();
        assert!(rig.mmu.remove_slot(0x1000));
        assert_eq!(write(&mut rig, 0x100_3000), Met::Device(0x100_3000));
        rig.check();
        assert_eq!(rig.mmu.take_dirty_log(0), None);
    }
}

#[test]
fn large_pages_are_split_for_the_log_and_come_back() {
    for mode in [MmuMode::LegacyTdp, MmuMode::Tdp] {
        let mut rig = Rig::new(&config(mode), RAM);
        let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
        let write = |rig: &mut Rig, linear| rig.access(&guest, linear, Access::Write, Privilege::Supervisor);
        write(&mut rig, 0x30_0000);
        assert_eq!((rig.mmu.stats().large, rig.mmu.stats().split), (1, 0));
        assert!(rig.mmu.log_dirty(0, true));
        assert_eq!(rig.mmu.stats().split, 1);
        rig.check();
        let faults = rig.mmu.stats().faults;
        write(&mut rig, 0x30_0000);
        write(&mut rig, 0x30_0008);
        assert_eq!(rig.mmu.stats().faults - faults, 1, "only the first write to a page is seen");
        assert_eq!(rig.mmu.take_dirty_log(0).unwrap()[0x300 / 64], 1);
        assert!(rig.mmu.log_dirty(0, false));
        write(&mut rig, 0x30_0000);
        assert_eq!(rig.mmu.stats().large, 2);
        rig.check();
    }
}

#[test]
fn hostile_guests_make_no_more_pages_than_the_limit() {
    for mode in MmuMode::ALL {
        let mut rig = Rig::new(&VmConfig { mmu_pages: Some(64), huge_pages: false, ..config(*mode) }, RAM);
        // A table that is its own child at all levels, and whose entries point everywhere.
        for index in 0..512u64 {
            let value = if index % 2 == 0 { ROOT } else { index << 21 & (RAM - 1) } | USER_RW;
            rig.ram().write(ROOT + index * 8, value);
        }
        let guest = long(0);
        let mut random = Random::new(1);
        for round in 0..2000 {
            let linear = ((random.next() & 0xfefd_fbf7_e000) << 16) as i64 >> 16;
            let access = if round % 3 == 0 { Access::Write } else { Access::Read };
            rig.access(&guest, linear as u64, access, Privilege::Supervisor);
            let (used, limit) = rig.mmu.pages_used();
            assert!(used <= limit && limit == 64);
        }
        // MMIO at as many addresses, with paging disabled.
        let guest = Guest { cr0: CR0_PE, ..Guest::default() };
        for number in 0..500 {
            rig.access(&guest, 0x8000_0000 + (number << 21), Access::Read, Privilege::Supervisor);
        }
        assert!(rig.mmu.stats().limit_mmu_pages > 0, "{mode}: the limit is named when it bites");
        rig.check();
    }
}

#[test]
fn a_root_without_memory_faults_as_reserved_bits_do() {
    for mode in MmuMode::ALL {
        let mut rig = Rig::new(&config(*mode), RAM);
        for cr3 in [RAM, 0xd000_0000, 0xfee0_0000, 0x3fff_ffff_f000] {
            let guest = Guest { cr3, ..long(CR0_WP) };
            rig.new_cr3(&guest);
            assert_eq!(read(&mut rig, &guest, 0), Met::Fault(code::PRESENT | code::RESERVED | code::USER), "{mode}");
        }
        rig.check();
    }
}

/// Returns a 32-bit guest with `count` page directories that map page 0 to different data.
pub(super) fn legacy_guests(rig: &Rig, count: u64) -> Vec<Guest> {
    let guest = |number: u64| {
        let (directory, table) = (ROOT + number * 0x2000, ROOT + number * 0x2000 + 0x1000);
        rig.ram().write(directory, (table | USER_RW) as u32);
        rig.ram().write(table, ((DATA + number * 4096) | USER_RW) as u32);
        Guest { cr0: CR0_PE | CR0_PG | CR0_WP, cr3: directory, rflags: 2, ..Guest::default() }
    };
    (0..count).map(guest).collect()
}

#[test]
fn cached_roots_are_loaded_by_the_guest_and_replaced_in_turn() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guests = legacy_guests(&rig, 5);
    assert_eq!(rig.mmu.set_cr3_cache(&mut rig.vcpu, 4), 4);
    for (number, guest) in guests[..4].iter().enumerate() {
        rig.new_cr3(guest);
        assert_eq!(read(&mut rig, guest, 8), Met::Memory(DATA + number as u64 * 4096 + 8));
    }
    assert!(rig.vcpu.take_cr3_cache_changed());
    let cached = rig.mmu.cr3_cache(&rig.vcpu);
    let mut hosts: Vec<u64> = cached.iter().flatten().map(|pair| pair.1).collect();
    hosts.sort();
    hosts.dedup();
    assert_eq!(hosts.len(), 4);
    assert!(hosts.iter().all(|hpa| hpa >> 12 == hosts[0] >> 12 && hpa % 32 == 0), "all PDPTEs in one page");
    // The guest loads the second one without an exit.
    let pair = cached.iter().flatten().find(|pair| pair.0 == guests[1].cr3).unwrap();
    let adopted = rig.mmu.adopt_cr3(&mut rig.vcpu, pair.1).unwrap();
    assert_eq!(adopted.cr3, guests[1].cr3);
    rig.tlb.clear();
    assert_eq!(read(&mut rig, &guests[1], 8), Met::Memory(DATA + 4096 + 8));
    assert!(!rig.vcpu.take_cr3_cache_changed());
    assert_eq!(rig.mmu.adopt_cr3(&mut rig.vcpu, 0x1234_5000), None);
    // A fifth one replaces the first.
    rig.new_cr3(&guests[4]);
    read(&mut rig, &guests[4], 8);
    assert!(rig.vcpu.take_cr3_cache_changed());
    let now = rig.mmu.cr3_cache(&rig.vcpu);
    assert!(now.iter().flatten().all(|pair| pair.0 != guests[0].cr3));
    rig.check();
    // A freed page directory has no entry any more.
    rig.mmu.page_directory_freed(&mut rig.vcpu, guests[2].cr3 + 0x123);
    assert_eq!(rig.mmu.cr3_cache(&rig.vcpu).iter().flatten().count(), 3);
    // When the hypervisor drops a root, its entry is removed.
    rig.mmu.unprotect(guests[3].cr3 >> 12);
    read(&mut rig, &guests[4], 8);
    assert!(rig.vcpu.take_cr3_cache_changed());
    assert_eq!(rig.mmu.cr3_cache(&rig.vcpu).iter().flatten().count(), 2);
    rig.check();
    rig.mmu.set_cr3_cache(&mut rig.vcpu, 0);
    rig.check();
    rig.mmu.zap_all();
    assert_eq!(rig.mmu.pages_used().0, 0);
}

#[test]
fn changes_of_a_pdpt_behind_a_cached_root_are_seen() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    rig.ram().write(ROOT + 0x40, DIRECTORY | 1);
    rig.ram().write(DIRECTORY, TABLE | USER_RW);
    rig.ram().write(TABLE, DATA | USER_RW);
    rig.ram().write(TABLE + 8, ROOT | USER_RW);
    let mut guest =
        Guest { cr0: CR0_PE | CR0_PG | CR0_WP, cr3: ROOT + 0x40, cr4: CR4_PAE, rflags: 2, ..Guest::default() };
    guest.pdpte[0] = DIRECTORY | 1;
    rig.mmu.set_cr3_cache(&mut rig.vcpu, 4);
    rig.new_cr3(&guest);
    assert_eq!(read(&mut rig, &guest, 0), Met::Memory(DATA));
    rig.vcpu.take_cr3_cache_changed();
    // A write beside the table has no effect.
    rig.access(&guest, 0x1060, Access::Write, Privilege::Supervisor);
    assert!(rig.emulated, "the page is watched");
    rig.write(ROOT + 0x60, &[0; 8]);
    read(&mut rig, &guest, 0);
    assert!(!rig.vcpu.take_cr3_cache_changed());
    rig.access(&guest, 0x1048, Access::Write, Privilege::Supervisor);
    rig.write(ROOT + 0x48, &(DIRECTORY | 1).to_le_bytes());
    // The loaded root stays active, but the guest must not load it again without an exit.
    assert_eq!(read(&mut rig, &guest, 0), Met::Memory(DATA));
    assert!(rig.vcpu.take_cr3_cache_changed());
    assert_eq!(rig.mmu.cr3_cache(&rig.vcpu).iter().flatten().count(), 0);
    guest.pdpte[1] = DIRECTORY | 1;
    rig.new_cr3(&guest);
    assert_eq!(read(&mut rig, &guest, 1 << 30), Met::Memory(DATA));
    rig.check();
    rig.mmu.set_cr3_cache(&mut rig.vcpu, 0);
    rig.access(&guest, 0x1048, Access::Write, Privilege::Supervisor);
    assert!(!rig.emulated);
    rig.check();
}

#[test]
fn prices_follow_what_is_done() {
    let mut rig = Rig::new(&config(MmuMode::LegacyTdp), RAM);
    let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
    read(&mut rig, &guest, DATA);
    let mut charged = Vec::new();
    rig.mmu.tolls.drain(|operation, count| charged.push((operation, count)));
    assert!(rig.mmu.tolls.is_empty());
    let count = |wanted| charged.iter().find(|(operation, _)| *operation == wanted).map_or(0, |(_, count)| *count);
    // Root, then two tables, then one 2 MiB page.
    assert_eq!((count(Operation::PageAllocate), count(Operation::PageZero), count(Operation::HashLookup)), (3, 3, 3));
    assert_eq!((count(Operation::TableWrite), count(Operation::RmapAdd), count(Operation::Fault)), (3, 1, 1));
    assert_eq!((count(Operation::SlotLookup), count(Operation::RootLoad)), (1, 1));
}

#[test]
fn both_halves_of_a_4_mib_page_are_flushed_together() {
    for mode in [MmuMode::ShadowNocache, MmuMode::Shadow] {
        for huge_pages in [false, true] {
            let mut rig = Rig::new(&VmConfig { huge_pages, ..config(mode) }, RAM);
            let guest = legacy_guests(&rig, 1)[0];
            let guest = Guest { cr4: CR4_PSE, ..guest };
            rig.ram().write(ROOT + 4, 0x40_00e7u32);
            rig.ram().write(ROOT + 0x1004, (ROOT | USER_RW) as u32);
            for linear in [0x40_0000, 0x60_0000, 0x7f_f000] {
                assert_eq!(read(&mut rig, &guest, linear), Met::Memory(linear));
            }
            assert_eq!(rig.access(&guest, 0x1004, Access::Write, Privilege::Supervisor), Met::Memory(ROOT + 4));
            rig.write(ROOT + 4, &0u32.to_le_bytes());
            rig.invlpg(0x40_0000);
            for linear in [0x60_0000, 0x7f_f000, 0x40_0000] {
                assert_eq!(read(&mut rig, &guest, linear), Met::Fault(code::USER), "{mode} {linear:#x}");
            }
            rig.check();
        }
    }
}

#[test]
fn page_directory_pointers_count_as_they_were_last_loaded() {
    for mode in [MmuMode::ShadowNocache, MmuMode::Shadow] {
        let mut rig = Rig::new(&config(mode), RAM);
        rig.ram().write(DIRECTORY, TABLE | USER_RW);
        rig.ram().write(TABLE, DATA | USER_RW);
        let mut guest = Guest { cr0: CR0_PE | CR0_PG, cr3: ROOT, cr4: CR4_PAE, rflags: 2, ..Guest::default() };
        guest.pdpte[0] = DIRECTORY | 1;
        assert_eq!(read(&mut rig, &guest, 0), Met::Memory(DATA));
        assert_eq!(read(&mut rig, &guest, 1 << 30), Met::Fault(code::USER));
        // A change of CR4.PGE loads them too.
        guest.pdpte = [0, DIRECTORY | 1, 0, 0];
        assert_eq!(read(&mut rig, &guest, 1 << 30), Met::Memory(DATA));
        assert_eq!(read(&mut rig, &guest, 0), Met::Fault(code::USER));
        rig.check();
    }
}
