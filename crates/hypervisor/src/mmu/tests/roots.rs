//! Roots that are kept for other address spaces, for the guest or its nested guest, and how long.

use super::super::guest_ept::{EptFormat, Nested, NestedInvept};
use super::units::{DATA, RAM, ROOT, USER_RW, config, legacy_guests, long_guest, read, write_table};
use super::*;
use crate::config::NestedRoots;

/// Enters the guest in each of these address spaces in turn; returns the number of loads of roots.
fn loads(rig: &mut Rig, guests: &[Guest], turns: &[usize]) -> u64 {
    let before = rig.mmu.stats().roots_loaded;
    for number in turns {
        rig.mmu.new_cr3(&mut rig.vcpu, &guests[*number], false);
        rig.enter(&guests[*number]);
    }
    rig.mmu.stats().roots_loaded - before
}

#[test]
fn three_roots_are_kept_beside_the_current_one() {
    for (mode, unsync, turns, expected) in [
        (MmuMode::Shadow, true, &[0, 1, 0, 1, 0][..], 2),
        (MmuMode::Shadow, true, &[0, 1, 2, 3, 0, 1, 2, 3], 4),
        (MmuMode::Shadow, true, &[0, 1, 2, 3, 4, 1, 2, 3, 4], 5),
        (MmuMode::Shadow, true, &[0, 1, 2, 3, 4, 0], 6),
        (MmuMode::Shadow, false, &[0, 1, 0, 1], 4),
        (MmuMode::ShadowNocache, true, &[0, 1, 0, 0], 4),
        (MmuMode::LegacyTdp, true, &[0, 1, 0, 1], 1),
        (MmuMode::Tdp, true, &[0, 1, 0, 1], 1),
    ] {
        let mut rig = Rig::new(&VmConfig { unsync, ..config(mode) }, RAM);
        let guest = long_guest(&rig);
        let guests: Vec<Guest> = (0..5).map(|number| Guest { cr3: ROOT + number * 0x1000, ..guest }).collect();
        assert_eq!(loads(&mut rig, &guests, turns), expected, "{mode} {turns:?}");
        rig.check();
        // A flush of the guest's TLB leaves none but the current one.
        rig.mmu.flush_guest(&mut rig.vcpu);
        assert!(rig.vcpu.kept.is_empty(), "{mode}");
        rig.check();
    }
}

#[test]
fn roots_of_32_bit_guests_are_not_kept() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guests = legacy_guests(&rig, 2);
    assert_eq!(loads(&mut rig, &guests, &[0, 1, 0, 1]), 4);
}

/// A load of CR3 that flushes, and INVPCID, forget the kept roots of their PCID, whose tables would have to be
/// synchronized.
#[test]
fn kept_roots_have_a_pcid() {
    let kept = |act: fn(&mut Rig, &[Guest])| {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let guest = long_guest(&rig);
        let guest = |number: u64, pcid: u64| Guest {
            cr3: (ROOT + number * 0x1000) | pcid,
            cr4: guest.cr4 | CR4_PCIDE,
            ..guest
        };
        // The current one is the last; the last two have the same PCID.
        let guests = [guest(0, 1), guest(1, 2), guest(2, 3), guest(3, 3)];
        loads(&mut rig, &guests, &[0, 1, 2, 3]);
        act(&mut rig, &guests);
        rig.check();
        rig.vcpu.kept.iter().map(|set| set.cr3 & CR3_PCID).collect::<Vec<_>>()
    };
    assert_eq!(kept(|_, _| {}), [3, 2, 1]);
    assert_eq!(kept(|rig, of| rig.mmu.invpcid(&mut rig.vcpu, &of[3], Some(1))), [3, 2]);
    assert_eq!(kept(|rig, of| rig.mmu.invpcid(&mut rig.vcpu, &of[3], Some(3))), [2, 1]);
    assert_eq!(kept(|rig, of| rig.mmu.invpcid(&mut rig.vcpu, &of[3], None)), [0u64; 0]);
    // To an address space that is kept, and to a new one.
    assert_eq!(kept(|rig, of| rig.mmu.new_cr3(&mut rig.vcpu, &of[0], false)), [3, 3, 2]);
    assert_eq!(kept(|rig, of| rig.mmu.new_cr3(&mut rig.vcpu, &of[0], true)), [3, 3, 2]);
    let elsewhere = |rig: &mut Rig, of: &[Guest]| {
        rig.mmu.new_cr3(&mut rig.vcpu, &Guest { cr3: (ROOT + 0x4000) | 3, ..of[0] }, true);
    };
    assert_eq!(kept(elsewhere), [2, 1]);
}

/// What the guest expects to be flushed when its nested guest starts or stops, by the tags that both hypervisors use:
/// the guest's TLB, or the current context; and the last VPID of the nested guest afterwards (5 before).
#[test]
fn transitions_flush_what_their_tags_do_not_separate() {
    let none = (false, false, 5);
    for (mode, vpid12, vpid02, entry, expected) in [
        (MmuMode::Tdp, None, true, true, (true, false, 5)),
        (MmuMode::Shadow, None, true, false, (true, false, 5)),
        (MmuMode::Tdp, Some(5), true, true, none),
        (MmuMode::Tdp, Some(5), false, true, none),
        (MmuMode::Shadow, Some(5), true, true, none),
        (MmuMode::Shadow, Some(5), false, true, (false, true, 5)),
        (MmuMode::Shadow, Some(5), false, false, (false, true, 5)),
        (MmuMode::Tdp, Some(6), true, true, (true, false, 6)),
        (MmuMode::Shadow, Some(6), true, true, (true, false, 6)),
        (MmuMode::Tdp, Some(6), true, false, none),
        (MmuMode::Shadow, Some(6), true, false, none),
    ] {
        let mut rig = Rig::new(&config(mode), RAM);
        let guest = long_guest(&rig);
        rig.enter(&guest);
        let last = rig.mmu.nested_transition_flush(&mut rig.vcpu, TransitionTags { entry, vpid12, vpid02 }, 5);
        let due = rig.mmu.take_flushes(&mut rig.vcpu);
        assert_eq!((due.guest, due.current, last), expected, "{mode} {vpid12:?} {vpid02} {entry}");
        assert!(!due.all && !due.loaded);
    }
}

/// A flush of everything at a transition also synchronizes the tables of kept roots.
#[test]
fn a_transition_without_tags_synchronizes_kept_roots() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    // Another address space with the same tables below its top.
    let other = Guest { cr3: ROOT + 0x8000, ..guest };
    rig.ram().write(other.cr3, rig.ram().read::<u64>(ROOT).unwrap());
    assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x1000));
    write_table(&mut rig, &guest, super::units::TABLE + 8, (DATA + 0x6000) | USER_RW);
    assert_eq!(rig.mmu.stats().unsynced, 1);
    rig.mmu.new_cr3(&mut rig.vcpu, &other, false);
    rig.enter(&other);
    write_table(&mut rig, &other, super::units::TABLE + 8, (DATA + 0x7000) | USER_RW);
    rig.mmu.nested_transition_flush(&mut rig.vcpu, TransitionTags { entry: true, vpid12: None, vpid02: true }, 0);
    let unsync = |rig: &Rig| rig.mmu.pool.iter().filter(|(_, page)| page.unsync).count();
    assert_eq!(unsync(&rig), 0);
    rig.check();
}

/// Returns a nested guest with an EPT pointer of the guest.
fn nested(number: u64) -> Guest {
    let format = EptFormat { execute_only: true, flags: true, pages_2m: true, pages_1g: true, mode_based: false };
    let eptp = (ROOT + number * 0x1000) | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK;
    let nested = Nested { eptp: Some(eptp), ept: format, pml: None };
    Guest { cr0: CR0_PE, rflags: 2, nested: Some(nested), ..Guest::default() }
}

#[test]
fn roots_survive_transitions_if_they_are_kept() {
    let outer = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
    let turns = |rig: &mut Rig, guests: &[Guest]| {
        let before = rig.mmu.stats().roots_loaded;
        for guest in guests {
            rig.mmu.nested_transition(&mut rig.vcpu, guest);
            rig.enter(guest);
            rig.check();
        }
        rig.mmu.stats().roots_loaded - before
    };
    let of = |numbers: &[u64]| numbers.iter().map(|number| nested(*number)).collect::<Vec<_>>();
    for mode in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        let rig = |nested_roots| Rig::new(&VmConfig { nested_roots, ..config(mode) }, RAM);
        let back_and_forth = [outer, nested(0), outer, nested(0), outer];
        assert_eq!(turns(&mut rig(NestedRoots::Keep), &back_and_forth), 2, "{mode}");
        assert_eq!(turns(&mut rig(NestedRoots::Drop), &back_and_forth), 5, "{mode}");
        assert_eq!(turns(&mut rig(NestedRoots::Keep), &of(&[0, 1, 2, 3, 0, 1, 2, 3])), 4);
        assert_eq!(turns(&mut rig(NestedRoots::Keep), &of(&[0, 1, 2, 3, 4, 0])), 6);
        // With other features the tables have another meaning.
        let mut flags = nested(0);
        flags.nested.as_mut().unwrap().eptp = Some((ROOT | 0x1e) | ept::EPTP_ACCESSED_DIRTY);
        let mut by_mode = nested(0);
        by_mode.nested.as_mut().unwrap().ept.mode_based = true;
        assert_eq!(turns(&mut rig(NestedRoots::Keep), &[nested(0), flags, by_mode, nested(0), flags, by_mode]), 3);
        // INVEPT drops the roots of one pointer, whatever its flags, or of all.
        for (what, expected) in
            [(NestedInvept::Single(ROOT + 0x1000), 1), (NestedInvept::Single(ROOT + 0x1fff), 1), (NestedInvept::All, 3)]
        {
            let mut rig = rig(NestedRoots::Keep);
            turns(&mut rig, &of(&[0, 1, 2]));
            rig.mmu.nested_invept(&mut rig.vcpu, what);
            rig.check();
            assert_eq!(turns(&mut rig, &of(&[0, 1, 2])), expected, "{mode} {what:?}");
        }
        let mut rig = rig(NestedRoots::Keep);
        turns(&mut rig, &of(&[0, 1]));
        rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::Single(ROOT + 0x1000));
        assert!(rig.vcpu.ept_own.is_none() && rig.vcpu.ept_kept.len() == 1, "the current one, too");
        // INVVPID affects no EPT.
        rig.mmu.nested_invvpid(&mut rig.vcpu);
        assert_eq!(rig.vcpu.ept_kept.len(), 1);
    }
}

#[test]
fn invvpid_of_the_guest_drops_shadow_tables_of_its_nested_guest() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let outer = long_guest(&rig);
    let inner = Guest { nested: Some(Nested::default()), ..outer };
    for guest in [outer, inner] {
        rig.mmu.nested_transition(&mut rig.vcpu, &guest);
        rig.enter(&guest);
    }
    rig.mmu.nested_invvpid(&mut rig.vcpu);
    assert!(rig.vcpu.own.is_none() && rig.vcpu.kept.len() == 1);
    for (guest, loads) in [(inner, 1), (outer, 0)] {
        let before = rig.mmu.stats().roots_loaded;
        rig.mmu.nested_transition(&mut rig.vcpu, &guest);
        rig.enter(&guest);
        assert_eq!(rig.mmu.stats().roots_loaded - before, loads);
    }
    rig.mmu.nested_invvpid(&mut rig.vcpu);
    assert!(rig.vcpu.own.is_some() && rig.vcpu.kept.is_empty());
    rig.check();
}

/// The bits of each register with which the tables have another meaning.
#[test]
fn roots_are_unloaded_by_the_bits_that_roles_depend_on() {
    let reloaded = |change: &dyn Fn(&mut Guest), report: &dyn Fn(&mut Rig, &Guest, &Guest)| {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let old = long_guest(&rig);
        rig.enter(&old);
        let mut new = old;
        change(&mut new);
        report(&mut rig, &new, &old);
        rig.vcpu.own.is_none()
    };
    let in_cr4 = CR4_PSE | CR4_PAE | CR4_LA57 | CR4_SMEP | CR4_SMAP | CR4_PKE;
    for bit in (0..64).map(|number| 1u64 << number) {
        let cr4 = reloaded(&|new| new.cr4 ^= bit, &|rig, new, old| rig.mmu.cr4_changed(&mut rig.vcpu, new, old.cr4));
        // PCIDs that become enabled also change what CR3 says.
        assert_eq!(cr4, (in_cr4 | CR4_PCIDE) & bit != 0, "CR4 {bit:#x}");
        let efer =
            reloaded(&|new| new.efer ^= bit, &|rig, new, old| rig.mmu.efer_changed(&mut rig.vcpu, new, old.efer));
        assert_eq!(efer, (EFER_LME | EFER_LMA | EFER_NXE) & bit != 0, "EFER {bit:#x}");
        let cr0 = reloaded(&|new| new.cr0 ^= bit, &|rig, new, old| rig.mmu.cr0_changed(&mut rig.vcpu, new, old.cr0));
        assert_eq!(cr0, (CR0_PG | CR0_WP) & bit != 0, "CR0 {bit:#x}");
    }
    let both = reloaded(&|new| new.cr0 ^= CR0_PG | CR0_WP, &|rig, new, old| {
        rig.mmu.cr0_changed(&mut rig.vcpu, new, old.cr0);
    });
    assert!(both);
}

/// Page directory pointers that the guest has loaded belong to a cached root, as CR3 does.
#[test]
fn a_cached_root_is_left_for_another_with_the_same_cr3() {
    for (pae, same) in [(false, true), (true, false)] {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let mut guest = legacy_guests(&rig, 1)[0];
        if pae {
            guest.cr4 = CR4_PAE;
            guest.pdpte[0] = ROOT | 1;
        }
        rig.mmu.set_cr3_cache(&mut rig.vcpu, 4);
        rig.enter(&guest);
        let before = rig.mmu.stats().roots_loaded;
        guest.pdpte[1] = (ROOT + 0x1000) | 1;
        rig.mmu.new_cr3(&mut rig.vcpu, &guest, true);
        rig.enter(&guest);
        assert_eq!(rig.mmu.stats().roots_loaded == before, same, "PAE {pae}");
        rig.check();
    }
    // In long mode there are no such pointers.
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    rig.mmu.set_cr3_cache(&mut rig.vcpu, 4);
    rig.enter(&guest);
    let guest = Guest { pdpte: [1; 4], ..guest };
    rig.mmu.new_cr3(&mut rig.vcpu, &guest, true);
    rig.enter(&guest);
    assert_eq!(rig.mmu.stats().roots_loaded, 1);
    rig.check();
}

/// While any virtual processor loads CR3 without an exit, no table may be unsynchronized.
#[test]
fn cached_roots_and_unsynchronized_tables_exclude_each_other() {
    let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
    let guest = long_guest(&rig);
    let mut emulated = |entries: [usize; 2]| {
        for entries in entries {
            rig.mmu.set_cr3_cache(&mut rig.vcpu, entries);
            rig.swap();
        }
        let unsync = rig.mmu.pool.iter().filter(|(_, page)| page.unsync).count();
        assert!(unsync == 0 || entries == [0, 0]);
        assert_eq!(read(&mut rig, &guest, 0x1000), Met::Memory(DATA + 0x1000));
        write_table(&mut rig, &guest, super::units::TABLE + 8, (DATA + 0x1000) | USER_RW);
        rig.check();
        rig.emulated
    };
    for (entries, expected) in [
        ([0, 0], false),
        ([4, 0], true),
        ([4, 2], true),
        ([0, 2], true),
        ([0, 0], false),
        ([0, 1], true),
        ([0, 0], false),
    ] {
        assert_eq!(emulated(entries), expected, "{entries:?}");
    }
}

/// Where the guest's writes change a page directory pointer table of 32 bytes behind a cached root, or do not.
#[test]
fn writes_to_a_table_of_pointers_are_told_from_those_beside_it() {
    let pdpt = ROOT + 0x8040;
    for (offset, len, stale) in [
        (-8i64, 8, false),
        (-4, 8, true),
        (-1, 1, false),
        (-1, 2, true),
        (0, 1, true),
        (31, 1, true),
        (24, 8, true),
        (32, 8, false),
        (-64, 256, true),
    ] {
        let mut rig = Rig::new(&config(MmuMode::Shadow), RAM);
        let mut guest = Guest { cr4: CR4_PAE, cr3: pdpt, ..legacy_guests(&rig, 1)[0] };
        guest.pdpte[0] = ROOT | 1;
        rig.mmu.set_cr3_cache(&mut rig.vcpu, 2);
        rig.enter(&guest);
        rig.vcpu.take_cr3_cache_changed();
        assert!(rig.mmu.watches());
        rig.mmu.page_written(pdpt.wrapping_add_signed(offset), len);
        rig.enter(&guest);
        assert_eq!(rig.vcpu.take_cr3_cache_changed(), stale, "{len} bytes at {offset}");
        rig.check();
        rig.mmu.set_cr3_cache(&mut rig.vcpu, 0);
        assert!(!rig.mmu.tracks.writes_seen(pdpt >> 12), "nobody watches the table any more");
    }
}
