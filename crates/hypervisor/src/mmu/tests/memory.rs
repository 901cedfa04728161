//! Memory slots, the dirty log, the guest's writes to its tables, and the limits of the hypervisor's own.

use super::units::{
    DATA, DIRECTORY, PDPT, RAM, ROOT, TABLE, USER_RW, config, legacy_guests, long_guest, read, write_table,
};
use super::*;
use ledger::Operation;

fn slot(gfn: u64, pages: u64, hpa: u64) -> SlotConfig {
    SlotConfig { gfn, pages, hpa, read_only: false, log_dirty: false }
}

fn unpaged() -> Guest {
    Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() }
}

#[test]
fn tables_have_as_many_pages_as_memory_needs() {
    let both = |nested, nested_ept| VmConfig { nested, nested_ept, ..config(MmuMode::Tdp) };
    let some = |mmu, mmu_pages| VmConfig { mmu_pages, nested: false, ..config(mmu) };
    // 4 GiB: for two roots 4096 page tables and 256 other pages; 20 per thousand are 20,971.
    let guest_pages = 1 << 20;
    for (config, expected) in [
        (both(false, false), 4352),
        (both(false, true), 4352),
        (both(true, false), 4352),
        (both(true, true), 4352 + 20_971),
        (some(MmuMode::Tdp, Some(100)), 100),
        (some(MmuMode::LegacyTdp, None), 20_971),
        (some(MmuMode::Shadow, Some(64)), 64),
    ] {
        assert_eq!(Mmu::pool_pages(&config, guest_pages, 3), expected + 4, "{config:?}");
    }
    assert_eq!(Mmu::pool_pages(&both(false, false), 1023, 0), 259);
    assert_eq!(Mmu::pool_pages(&both(true, true), u64::MAX, 3), u32::MAX);
    let new = |pages| Mmu::new(&config(MmuMode::Tdp), HOST, Ram::with_hidden(RAM, POOL, 1 << 20), POOL, pages, 0);
    assert_eq!(new(65).err(), Some(MmuError::PoolTooSmall { pages: 65, needed: 66 }));
    assert!(new(66).is_ok());
}

#[test]
fn a_frame_is_mapped_as_large_as_everything_permits() {
    let mut rig = Rig::with_slots(&config(MmuMode::LegacyTdp), &[slot(0, 1 << 19, 0), slot(1 << 19, 0x300, 1 << 31)]);
    let levels = |rig: &Rig, frames: [u64; 4]| frames.map(|gfn| rig.mmu.mapping_level(gfn, 3));
    let frames = [0x100, 0x4_0000, 0x8_0000, 0x8_0200];
    assert_eq!(levels(&rig, frames), [3, 3, 2, 1]);
    assert_eq!([1, 2, 3, 4].map(|max| rig.mmu.mapping_level(0, max)), [1, 2, 3, 3]);
    rig.mmu.tracks.keep_small(0x201, true);
    assert_eq!(levels(&rig, frames), [2, 3, 2, 1]);
    rig.mmu.tracks.keep_small(0x100, true);
    assert_eq!(levels(&rig, frames), [1, 3, 2, 1]);
    rig.mmu.host.gigabyte_pages = false;
    assert_eq!(levels(&rig, frames), [1, 2, 2, 1]);
    assert!(rig.mmu.log_dirty(1 << 19, true));
    assert_eq!(levels(&rig, frames), [1, 2, 1, 1]);
    rig.mmu.huge_pages = false;
    assert_eq!(levels(&rig, frames), [1; 4]);
    assert_eq!(rig.mmu.mapping_level(0x10_0000, 3), 1, "no memory");
}

/// Memory may be in two places of the guest's address space. The log of one place has nothing to do with the other, and
/// no write to it is lost.
#[test]
fn a_slot_has_its_own_log_though_another_has_the_same_memory() {
    for (mode, logged, linear) in MmuMode::ALL.iter().flat_map(|mode| [(*mode, 0, 0x5000), (*mode, 0x400, 0x6000)]) {
        for paged in [false, true] {
            let mut rig = Rig::with_slots(&config(mode), &[slot(0, 0x400, 0), slot(0x400, 0x400, 0)]);
            let guest = if paged { long_guest(&rig) } else { unpaged() };
            rig.ram().write(TABLE + 5 * 8, DATA | USER_RW);
            rig.ram().write(TABLE + 6 * 8, (DATA + 0x40_0000) | USER_RW);
            let linear = if paged { linear } else { (logged << 12) + DATA };
            let other = if paged { linear ^ 0x3000 } else { linear ^ 0x40_0000 };
            assert!(rig.mmu.log_dirty(logged, true));
            let mut written = |linear: u64| {
                let met = rig.access(&guest, linear, Access::Write, Privilege::Supervisor);
                assert_eq!(met, Met::Memory(DATA), "{mode}");
                let log = rig.mmu.take_dirty_log(logged).unwrap();
                rig.check();
                log[(DATA >> 18) as usize] >> (DATA >> 12 & 63) & 1 != 0
            };
            let sequence = [linear, linear, other, linear, other, linear].map(&mut written);
            let expected = [true, true, false, true, false, true];
            assert_eq!(sequence, expected, "{mode} {logged:#x} paged {paged}");
        }
    }
}

#[test]
fn a_page_of_1_gib_is_split_to_the_last_level_for_the_log() {
    for mode in [MmuMode::LegacyTdp, MmuMode::Tdp] {
        let slots = [slot(0, 1 << 18, 0), slot(1 << 18, 1 << 18, 1 << 30)];
        let mut rig = Rig::with_slots(&config(mode), &slots);
        let guest = unpaged();
        let write = |rig: &mut Rig, linear| rig.access(&guest, linear, Access::Write, Privilege::Supervisor);
        write(&mut rig, 0x1234);
        write(&mut rig, 1 << 30);
        assert_eq!(rig.mmu.stats().large, 2);
        assert!(rig.mmu.log_dirty(0, true) && rig.mmu.log_dirty(0, true));
        // One page of 1 GiB, and 512 of 2 MiB, as long as there are pages for tables.
        assert_eq!(rig.mmu.stats().split, 513, "{mode}");
        rig.check();
        let faults = rig.mmu.stats().faults;
        assert_eq!(write(&mut rig, 0x3fff_f000), Met::Memory(0x3fff_f000));
        assert_eq!(write(&mut rig, (1 << 30) + 0x1234), Met::Memory((1 << 30) + 0x1234));
        assert_eq!(rig.mmu.stats().faults - faults, 1, "the other slot is as it was");
        let log = rig.mmu.take_dirty_log(0).unwrap();
        assert_eq!((log[4095], log.iter().map(|word| word.count_ones()).sum::<u32>()), (1 << 63, 1));
        assert!(!rig.mmu.log_dirty(1, true), "no slot begins there");
        // The log ends: memory is mapped by large pages again, and that of the other slot stays.
        assert!(rig.mmu.log_dirty(0, false));
        rig.check();
        write(&mut rig, 0x1234);
        assert_eq!(rig.mmu.stats().large, 3, "{mode}");
        let faults = rig.mmu.stats().faults;
        write(&mut rig, 1 << 30);
        assert_eq!(rig.mmu.stats().faults, faults);
        rig.check();
    }
}

/// Accessed flags that the hypervisor sets in the guest's tables, with the place of the tables in the host's memory.
#[test]
fn flags_in_the_guests_tables_are_writes() {
    const AT: u64 = RAM;
    for (pae, read_only, size) in [(false, false, 4), (true, false, 8), (false, true, 4), (true, true, 8)] {
        let config = config(MmuMode::Shadow);
        let slot = SlotConfig { read_only, log_dirty: !read_only, ..slot(0, RAM >> 12, AT) };
        let mut rig = Rig::with_slots(&config, &[slot]);
        let mut guest = Guest { cr0: CR0_PE | CR0_PG, cr3: ROOT, rflags: 2, cpl: 3, ..Guest::default() };
        if pae {
            guest.cr4 = CR4_PAE;
            guest.pdpte[0] = ROOT | 1;
        }
        let table = ROOT + 0x1000;
        // The entry of the directory has been used, that of the table has not.
        rig.ram().write(AT + ROOT, table | 0x27);
        rig.ram().write(AT + table + size, DATA | 7);
        rig.mmu.prepare(&mut rig.vcpu, &guest).unwrap();
        let fault = Fault::Page { linear: 0x1000, code: code::USER };
        assert_eq!(rig.mmu.fault(&mut rig.vcpu, &guest, fault), Resolution::Fixed);
        let (flags, written) = if read_only { (7, vec![]) } else { (0x27, vec![(AT + table + size, size)]) };
        assert_eq!(rig.mmu.take_written(), written);
        assert_eq!(rig.mmu.take_written(), []);
        assert_eq!(rig.ram().read::<u32>(AT + table + size), Some(DATA as u32 | flags));
        if !read_only {
            let log = rig.mmu.take_dirty_log(0).unwrap();
            assert_eq!(log[(table >> 18) as usize], 1 << (table >> 12 & 63), "the frame of the table");
        }
    }
}

#[test]
fn writes_that_no_entry_has_end_the_use_as_a_table() {
    for (four_byte, offset, len, misaligned) in [
        (false, 0x10, 8, 0),
        (false, 0x10, 4, 0),
        (false, 0x14, 4, 0),
        (false, 0xff8, 8, 0),
        (false, 0x10, 2, 1),
        (false, 0x17, 1, 1),
        (false, 0x14, 8, 1),
        (false, 0x10, 16, 1),
        // Half of it is in the next page.
        (false, 0xffc, 8, 0),
        (true, 0x10, 4, 0),
        (true, 0x10, 8, 1),
        (true, 0x12, 4, 1),
        (true, 0x10, 3, 1),
    ] {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let guest = if four_byte { legacy_guests(&rig, 1)[0] } else { long_guest(&rig) };
        let table = if four_byte { ROOT + 0x1000 } else { TABLE };
        read(&mut rig, &guest, 0);
        assert!(rig.mmu.watches());
        rig.mmu.page_written(table + offset, len);
        assert_eq!(rig.mmu.stats().misaligned, misaligned, "{len} bytes at {offset:#x}");
        assert_eq!(rig.mmu.stats().zapped, misaligned);
        rig.check();
        assert_eq!(rig.mmu.unprotect(table >> 12), misaligned == 0, "only a table is dropped");
        assert!(!rig.mmu.unprotect(table >> 12) && !rig.mmu.unprotect(DATA >> 12));
        rig.check();
    }
}

/// After three writes without a use in between (with unsync: to one table; without: to one table in a row), a table is
/// assumed to be none.
#[test]
fn a_flood_of_writes_ends_the_use_as_a_table() {
    for (unsync, tables, flooded) in [
        (true, &[DIRECTORY, DIRECTORY][..], 0),
        (true, &[DIRECTORY, DIRECTORY, DIRECTORY], 1),
        (true, &[DIRECTORY, DIRECTORY, PDPT, DIRECTORY], 1),
        (true, &[TABLE, TABLE, TABLE, TABLE, TABLE], 0),
        (false, &[DIRECTORY, DIRECTORY], 0),
        (false, &[DIRECTORY, DIRECTORY, DIRECTORY], 1),
        (false, &[DIRECTORY, DIRECTORY, PDPT, DIRECTORY, DIRECTORY], 0),
        (false, &[TABLE, TABLE, DATA, TABLE], 1),
    ] {
        let mut rig = Rig::new(&VmConfig { unsync, ..config(MmuMode::Shadow) }, RAM);
        let guest = long_guest(&rig);
        read(&mut rig, &guest, 0);
        for (number, table) in tables.iter().enumerate() {
            rig.mmu.page_written(table + 0x800 + 8 * number as u64, 8);
            rig.check();
        }
        assert_eq!(rig.mmu.stats().flooded, flooded, "unsync {unsync} {tables:x?}");
    }
}

#[test]
fn writes_of_devices_are_logged_page_by_page() {
    let mut rig = Rig::new(&config(MmuMode::Tdp), RAM);
    assert!(rig.mmu.log_dirty(0, true));
    for (gpa, len, frames) in
        [(0x1ff8, 0x1010, 0b1110), (0x2000, 0x1000, 0b100), (0x2fff, 1, 0b100), (0x2fff, 2, 0b1100), (0x3000, 0, 0)]
    {
        rig.mmu.page_written(gpa, len);
        assert_eq!(rig.mmu.take_dirty_log(0).unwrap()[0], frames, "{len:#x} bytes at {gpa:#x}");
    }
    assert!(!rig.mmu.watches());
}

/// INVLPG with a tree per processor: the processor itself drops its translation of the address; more must be flushed
/// only if more was dropped.
#[test]
fn invlpg_flushes_the_rest_of_a_large_page() {
    let large = |frame: u64| frame << 12 | 0xe7;
    for (four_byte, huge_pages, value, touched, invalidated, flushed, gone) in [
        (false, true, TABLE | USER_RW, 0x1000, 0x1000, false, true),
        (false, true, TABLE | USER_RW, 0x1000, 0x2000, false, false),
        (false, true, large(0x400), 0x1000, 0x1f_f000, true, true),
        (false, false, large(0x400), 0x1000, 0x1f_f000, true, true),
        (true, true, large(0x400), 0x1000, 0x3f_f000, true, true),
        (true, false, large(0x400), 0x1000, 0x3f_f000, true, true),
        (true, true, TABLE | USER_RW, 0x1000, 0x3f_f000, false, false),
        (true, true, TABLE | USER_RW, 0x1000, 0x1000, false, true),
        (true, true, TABLE | USER_RW, 0x1000, 0x40_0000, false, false),
    ] {
        let mut rig = Rig::new(&VmConfig { huge_pages, ..config(MmuMode::ShadowNocache) }, RAM);
        let guest = match four_byte {
            true => Guest { cr4: CR4_PSE, ..legacy_guests(&rig, 1)[0] },
            false => long_guest(&rig),
        };
        let directory = if four_byte { ROOT } else { DIRECTORY };
        rig.ram().write(directory, value as u32);
        rig.ram().write(TABLE + if four_byte { 4 } else { 8 }, (DATA | USER_RW) as u32);
        read(&mut rig, &guest, touched);
        rig.mmu.take_flushes(&mut rig.vcpu);
        rig.mmu.invlpg(&mut rig.vcpu, invalidated);
        let case = format!("{four_byte} {huge_pages} {value:#x} {invalidated:#x}");
        assert_eq!(rig.mmu.take_flushes(&mut rig.vcpu).all, flushed, "{case}");
        rig.check();
        let faults = rig.mmu.stats().faults;
        rig.tlb.clear();
        read(&mut rig, &guest, touched);
        assert_eq!(rig.mmu.stats().faults - faults, u64::from(gone), "{case}");
    }
}

#[test]
fn a_state_is_restored_without_a_file() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    read(&mut rig, &guest, 0x1000);
    write_table(&mut rig, &guest, TABLE + 0x80, 0);
    rig.mmu.unprotect(ROOT >> 12);
    for _ in 0..2 {
        let saved = rig.mmu.save();
        rig.mmu.restore(saved.clone(), &[(0, &rig.vcpu), (1, &rig.other.0)]).unwrap();
        assert_eq!(rig.mmu.save(), saved);
        rig.check();
    }
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x1000));
    rig.mmu.unload(&mut rig.vcpu);
    rig.mmu.zap_all();
    assert_eq!(rig.mmu.pages_used().0, 0);
}

/// Each page that the limit takes is counted, and so is each that is used, allocated and freed.
#[test]
fn pages_for_tables_are_counted_one_by_one() {
    for mode in MmuMode::ALL {
        let mut rig = Rig::new(&VmConfig { mmu_pages: Some(64), huge_pages: false, ..config(*mode) }, RAM);
        rig.enter(&unpaged());
        for number in 0..200 {
            let (used, before) = (u64::from(rig.mmu.pages_used().0), rig.mmu.stats());
            rig.mmu.tolls.drain(|_, _| {});
            // A device, which needs a table of its own.
            let linear = 0x8000_0000 + (number << 21);
            rig.access(&unpaged(), linear, Access::Read, Privilege::Supervisor);
            let now = rig.mmu.stats();
            let freed = rig.mmu.tolls.count(Operation::PageFree);
            let allocated = now.allocated - before.allocated;
            assert_eq!(u64::from(rig.mmu.pages_used().0), used + allocated - freed, "{mode} {number}");
            assert_eq!(now.recycled - before.recycled, freed, "{mode} {number}");
            let limited = u64::from(used > 64 - 12);
            assert_eq!(now.limit_mmu_pages - before.limit_mmu_pages, limited, "{mode} {number}");
            assert!(limited == 0 || used - freed <= 64 - 25, "{mode}: {freed} of {used} pages are freed");
            assert_eq!(now.peak_pages, before.peak_pages.max(used - freed + allocated), "{mode}");
        }
        assert!(rig.mmu.stats().limit_mmu_pages >= 3, "{mode}");
        rig.check();
    }
}

/// A table of the last level that is now used above it is no page table any more, and what the guest wrote to it
/// without an exit is no concern of its entries.
#[test]
fn an_unsynchronized_table_that_is_used_at_a_higher_level_is_dropped() {
    for (written, linear, zapped) in [(true, 2 << 30, 1), (false, 2 << 30, 0), (true, 0x60_0000, 0)] {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let guest = long_guest(&rig);
        // As a page directory, and as a page table with other permissions above it.
        rig.ram().write(PDPT + 16, TABLE | USER_RW);
        rig.ram().write(DIRECTORY + 24, TABLE | USER_RW & !4);
        rig.ram().write(TABLE, DIRECTORY | USER_RW);
        read(&mut rig, &guest, 0x1000);
        if written {
            write_table(&mut rig, &guest, TABLE + 0x80, 0);
        }
        assert_eq!(rig.mmu.stats().unsynced, u64::from(written));
        let before = rig.mmu.stats().zapped;
        rig.access(&guest, linear, Access::Read, Privilege::Supervisor);
        assert_eq!(rig.mmu.stats().zapped - before, zapped, "{written} {linear:#x}");
        rig.check();
    }
}
