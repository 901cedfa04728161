//! Tests of [`Mmu::check`] itself: each inconsistency that it looks for is made, and must be named. Restored states and
//! all other tests of the MMUs rely on it.

use super::super::pool::{EntryRef, Keeping, Page, PageId};
use super::super::role::Role;
use super::units::{DIRECTORY, RAM, ROOT, TABLE, USER_RW, config, long_guest, read, write_table};
use super::*;
use x86::page::A;

/// Address whose entry in the page directory is not among the first 64.
const FAR: u64 = 70 << 21;

/// Returns the first page with a property.
fn find(rig: &Rig, fits: impl Fn(&Page) -> bool) -> PageId {
    rig.mmu.pool.iter().find(|(_, page)| fits(page)).expect("a page").0
}

/// Returns the first entry of a table of `level` with a property.
fn entry(rig: &Rig, level: u8, fits: impl Fn(EntryRef) -> bool) -> EntryRef {
    let tables = rig.mmu.pool.iter().filter(|(_, page)| page.keeping != Keeping::Free && page.role.level == level);
    let entries = tables.flat_map(|(page, _)| (0..512).map(move |index| EntryRef { page, index }));
    entries.into_iter().find(|at| fits(*at)).expect("an entry")
}

/// Returns the first entry at `level` that maps a page.
fn mapping(rig: &Rig, level: u8) -> EntryRef {
    entry(rig, level, |at| rig.mmu.format.is_leaf(rig.mmu.pool.entry(at), level))
}

/// Returns the first entry at `level` that points to a table.
fn pointer(rig: &Rig, level: u8) -> EntryRef {
    entry(rig, level, |at| rig.mmu.child(at).is_some())
}

/// Returns the first empty entry at `level`.
fn empty(rig: &Rig, level: u8) -> EntryRef {
    entry(rig, level, |at| rig.mmu.pool.entry(at) == 0)
}

fn child(rig: &mut Rig, at: EntryRef) -> &mut Page {
    let child = rig.mmu.child(at).expect("a table");
    rig.mmu.pool.page_mut(child)
}

/// Returns the number of the frame that an entry maps.
fn frame(rig: &Rig, at: EntryRef) -> u64 {
    rig.mmu.pool.page(at.page).frame(usize::from(at.index))
}

/// Makes the root invalid and lets it keep its entries.
fn invalid_root(rig: &mut Rig) -> &mut Page {
    let root = find(rig, |page| page.roots == 1);
    let gfn = rig.mmu.pool.page(root).gfn;
    rig.mmu.hash.get_mut(&gfn).unwrap().retain(|page| *page != root);
    let page = rig.mmu.pool.page_mut(root);
    page.invalid = true;
    page
}

/// Adds a table that nothing knows.
fn stray(rig: &mut Rig, keeping: Keeping, gfn: u64, level: u8, direct: bool) -> PageId {
    let role = Role { level, direct, ..Role::tdp_root(true, false) };
    rig.mmu.pool.allocate(keeping, gfn, role).unwrap()
}

/// Changes the address in an entry.
fn move_entry(rig: &mut Rig, at: EntryRef, by: u64) {
    let value = rig.mmu.pool.entry(at);
    rig.mmu.pool.set_entry(at, value + by);
}

/// A guest in `mode` that has used some memory, by small and by large pages.
fn used(mode: MmuMode) -> (Rig, Guest) {
    let mut rig = Rig::new(&config(mode), RAM);
    let long = long_guest(&rig);
    rig.ram().write(DIRECTORY + 70 * 8, TABLE | USER_RW);
    let unpaged = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
    let guest = if mode.is_tdp() { unpaged } else { long };
    if mode.is_tdp() {
        // One block is logged, and therefore mapped by small pages.
        assert!(rig.mmu.remove_slot(0));
        for (gfn, pages, log_dirty) in [(0, 0x400, true), (0x400, 0x3c0, false)] {
            rig.mmu.add_slot(SlotConfig { gfn, pages, hpa: gfn << 12, read_only: false, log_dirty }).unwrap();
        }
        rig.access(&guest, 0x40_0000, Access::Write, Privilege::Supervisor);
    }
    rig.access(&guest, FAR % RAM, Access::Read, Privilege::Supervisor);
    rig.access(&guest, if mode.is_tdp() { 0x1000 } else { FAR }, Access::Write, Privilege::Supervisor);
    rig.check();
    (rig, guest)
}

type Harm = fn(&mut Rig);

/// Inconsistencies, each with the modes in which it is possible, and a part of its name.
#[rustfmt::skip]
const HARMS: &[(&[MmuMode], &str, Harm)] = {
    use MmuMode::{LegacyTdp, Shadow, Tdp};
    &[
        (&[Shadow, LegacyTdp, Tdp], "is not in use", |rig| {
            let free = find(rig, |page| page.keeping == Keeping::Free);
            rig.vcpu.own.as_mut().unwrap().pages[0] = Some(free);
        }),
        (&[Shadow, Tdp], "its place in the free list says otherwise", |rig| {
            let free = find(rig, |page| page.keeping == Keeping::Free);
            rig.mmu.pool.page_mut(free).keeping = Keeping::Special;
        }),
        (&[Shadow, LegacyTdp], "was not freed", |rig| {
            let at = pointer(rig, 3);
            child(rig, at).invalid = true;
        }),
        (&[Shadow, LegacyTdp], "of an invalid page is", |rig| {
            invalid_root(rig);
        }),
        (&[Shadow, LegacyTdp], "is invalid, and counts as a part of the tables", |rig| {
            invalid_root(rig).unsync_below[0] = 1;
        }),
        (&[Shadow, LegacyTdp, Tdp], "counts 2 roots of 1", |rig| {
            let root = find(rig, |page| page.roots == 1);
            rig.mmu.pool.page_mut(root).roots = 2;
        }),
        (&[Shadow, Tdp], "are counted", |rig| {
            let page = stray(rig, Keeping::Tree, 0, 1, true);
            rig.mmu.pool.page_mut(page).keeping = Keeping::Special;
        }),
        (&[Shadow, LegacyTdp], "has a parent", |rig| {
            let (at, other) = (pointer(rig, 3), empty(rig, 3));
            child(rig, at).parents.push(other);
        }),
        (&[Shadow, LegacyTdp], "has a parent", |rig| {
            let at = pointer(rig, 3);
            child(rig, at).parents.push(at);
        }),
        (&[Shadow, LegacyTdp], "which does not know", |rig| {
            let at = pointer(rig, 3);
            child(rig, at).parents.clear();
        }),
        (&[LegacyTdp], "has a reverse map", |rig| {
            let at = empty(rig, 2);
            rig.mmu.rmaps.add(frame(rig, at), 2, at);
        }),
        (&[Shadow, LegacyTdp], "has a reverse map", |rig| {
            let at = mapping(rig, 1);
            rig.mmu.rmaps.add(frame(rig, at), 1, at);
        }),
        (&[Shadow, LegacyTdp], "has a reverse map", |rig| {
            let at = mapping(rig, 1);
            rig.mmu.rmaps.add(frame(rig, at) + 1, 1, at);
        }),
        (&[Shadow, LegacyTdp], "without a reverse map", |rig| {
            let at = mapping(rig, 1);
            assert!(rig.mmu.rmaps.remove(frame(rig, at), 1, at));
        }),
        (&[Shadow, LegacyTdp], "and the hash disagree", |rig| {
            let gfn = find(rig, |page| page.role.level == 1 && page.keeping == Keeping::Hashed);
            let gfn = rig.mmu.pool.page(gfn).gfn;
            rig.mmu.hash.remove(&gfn);
        }),
        (&[Tdp], "and the hash disagree", |rig| {
            let root = find(rig, |page| page.roots == 1);
            rig.mmu.hash.insert(0, vec![root]);
        }),
        (&[Shadow, LegacyTdp], "of level 1", |rig| {
            let (at, page) = (empty(rig, 4), stray(rig, Keeping::Hashed, 0, 1, true));
            rig.mmu.link(at, page);
        }),
        (&[Shadow, LegacyTdp], "of level 3", |rig| {
            let (at, page) = (empty(rig, 4), stray(rig, Keeping::Tree, 0, 3, true));
            rig.mmu.link(at, page);
        }),
        (&[Tdp], "of level 3", |rig| {
            let (at, page) = (empty(rig, 4), stray(rig, Keeping::Hashed, 0, 3, true));
            rig.mmu.link(at, page);
        }),
        (&[Shadow, LegacyTdp, Tdp], "which is nothing", |rig| {
            let at = empty(rig, 2);
            // An address without permissions.
            rig.mmu.pool.set_entry(at, 0x1000);
        }),
        (&[Shadow, LegacyTdp, Tdp], "maps a page at level 4", |rig| {
            let at = empty(rig, 4);
            rig.mmu.pool.set_entry(at, rig.mmu.format.leaf(0, 3, spte::ALL, true));
        }),
        (&[Shadow, LegacyTdp], "which is elsewhere", |rig| {
            let at = mapping(rig, 1);
            move_entry(rig, at, 0x1000);
        }),
        (&[LegacyTdp], "which is elsewhere", |rig| {
            // The second slot ends within the block.
            let at = mapping(rig, 2);
            rig.mmu.pool.set_entry(EntryRef { index: 3, ..at }, rig.mmu.format.leaf(0x60_0000, 2, spte::ALL, true));
        }),
        (&[Tdp], "which is in no slot", |rig| {
            let at = mapping(rig, 1);
            move_entry(rig, at, RAM);
        }),
        (&[Tdp], "which is in no slot", |rig| {
            let at = mapping(rig, 2);
            move_entry(rig, at, 0x20_0000);
        }),
        (&[LegacyTdp, Tdp], "to all of a block with watched frames", |rig| {
            // The frame after the one that is mapped.
            rig.mmu.tracks.keep_small(0x401, true);
        }),
        (&[Shadow, LegacyTdp, Tdp], "to the watched frame", |rig| {
            let at = entry(rig, 1, |at| rig.mmu.format.is_writable(rig.mmu.pool.entry(at)));
            let hpa = spte::address(rig.mmu.pool.entry(at));
            rig.mmu.tracks.see_writes(hpa >> 12, true);
        }),
        (&[Shadow, LegacyTdp, Tdp], "which counts as synchronized", |rig| {
            let at = entry(rig, 1, |at| rig.mmu.format.is_writable(rig.mmu.pool.entry(at)));
            let gfn = spte::address(rig.mmu.pool.entry(at)) >> 12;
            let page = stray(rig, Keeping::Hashed, gfn, 1, false);
            rig.mmu.hash.insert(gfn, vec![page]);
            rig.mmu.tracks.keep_small(gfn, true);
        }),
        (&[Tdp], "of a tree is pointed to by 0 entries, not 1", |rig| {
            stray(rig, Keeping::Tree, 0, 3, true);
        }),
        (&[Tdp], "of a tree is pointed to by 2 entries, not 1", |rig| {
            let (at, other) = (pointer(rig, 4), empty(rig, 4));
            rig.mmu.pool.set_entry(other, rig.mmu.pool.entry(at));
        }),
    ]
};

#[test]
fn each_inconsistency_is_named() {
    for (modes, expected, harm) in HARMS {
        for mode in *modes {
            let (mut rig, _) = used(*mode);
            harm(&mut rig);
            let wrong = rig.mmu.check(&[&rig.vcpu, &rig.other.0]).expect_err(expected);
            assert!(wrong.contains(expected), "{mode}: {wrong}");
        }
    }
}

#[test]
fn a_root_in_use_may_be_invalid_until_its_users_leave() {
    let (mut rig, guest) = used(MmuMode::Shadow);
    assert!(rig.mmu.unprotect(ROOT >> 12));
    rig.check();
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(super::units::DATA + 0x1000));
    rig.check();
}

#[test]
fn a_page_of_1_gib_is_consistent_in_every_mode() {
    for mode in MmuMode::ALL {
        let mut rig = Rig::new(&config(*mode), 1 << 30);
        let guest = long_guest(&rig);
        rig.ram().write(super::units::PDPT + 8, 0xe7u64);
        let linear = 1 << 30 | 0x1234;
        assert_eq!(read(&mut rig, &guest, linear), Met::Memory(0x1234));
        rig.check();
    }
}

/// Entries of all tables between the root and an unsynchronized table say so: without it, the table would not be
/// synchronized when the guest flushes.
#[test]
fn tables_above_an_unsynchronized_one_must_know_it() {
    let unsynchronized = || {
        let (mut rig, guest) = used(MmuMode::Shadow);
        write_table(&mut rig, &guest, TABLE + 0x80, super::units::DATA | A);
        assert_eq!(rig.mmu.stats().unsynced, 1);
        rig.check();
        rig
    };
    for level in [2, 3, 4] {
        let mut rig = unsynchronized();
        let above = find(&rig, |page| page.role.level == level && page.unsync_below != [0; 8]);
        rig.mmu.pool.page_mut(above).unsync_below = [0; 8];
        let wrong = rig.mmu.check(&[&rig.vcpu, &rig.other.0]).unwrap_err();
        assert!(wrong.contains("does not know of unsync pages below"), "{wrong}");
    }
    // The entries of a word are told apart, and so are the words.
    for (word, kept) in [(0, 1 << 1), (1, 1 << 5), (0, 1 << 6)] {
        let mut rig = unsynchronized();
        let directory = find(&rig, |page| page.role.level == 2 && page.unsync_below != [0; 8]);
        rig.mmu.pool.page_mut(directory).unsync_below = [0; 8];
        rig.mmu.pool.page_mut(directory).unsync_below[word] = kept;
        assert!(rig.mmu.check(&[&rig.vcpu, &rig.other.0]).is_err());
    }
}
