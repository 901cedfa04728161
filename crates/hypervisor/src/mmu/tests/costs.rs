//! What each event costs, by mode: operations that are charged, statistics, and flushes that are due. These are the
//! figures of ledgers: a change that does the same work in another way is seen here first.

use super::units::{DATA, DIRECTORY, RAM, ROOT, TABLE, USER_RW, WINDOW, config, long_guest};
use super::*;
use ledger::Operation;
use x86::page::{A, D};

/// Returns what an event adds.
fn spent(rig: &mut Rig, act: impl FnOnce(&mut Rig)) -> String {
    rig.mmu.tolls.drain(|_, _| {});
    let number = |stats: Stats| serde_json::to_value(stats).unwrap().as_object().unwrap().clone();
    let stats = rig.mmu.stats();
    let before = number(stats);
    act(rig);
    let mut all = Vec::new();
    let now = rig.mmu.stats();
    for (operation, counted) in [
        (Operation::Fault, now.faults - stats.faults),
        (Operation::PageAllocate, now.allocated - stats.allocated),
        (Operation::RootLoad, now.roots_loaded - stats.roots_loaded),
    ] {
        assert_eq!(rig.mmu.tolls.count(operation), counted, "{operation:?}");
    }
    assert!(now.peak_pages >= u64::from(rig.mmu.pages_used().0));
    rig.mmu.tolls.drain(|operation, count| all.push(format!("{operation:?} {count}")));
    for (name, after) in number(now) {
        let more = after.as_u64().unwrap() - before[&name].as_u64().unwrap();
        // The others are among the operations.
        if more != 0 && !matches!(&*name, "faults" | "allocated" | "peak_pages" | "roots_loaded") {
            all.push(format!("{name} {more}"));
        }
    }
    let due = rig.mmu.take_flushes(&mut rig.vcpu);
    if due.any() {
        rig.tlb.clear();
    }
    for (name, is_due) in [("all", due.all), ("current", due.current), ("guest", due.guest), ("loaded", due.loaded)] {
        if is_due {
            all.push(format!("flush {name}"));
        }
    }
    all.join(", ")
}

type Act = fn(&mut Rig, &mut Guest);

/// Page of the guest that has been used neither for reads nor for writes, and one that has not been written.
const UNUSED: u64 = 0x4000;
const CLEAN: u64 = 0x5000;
const DEVICE: u64 = 0xb000;

fn access(rig: &mut Rig, guest: &Guest, linear: u64, access: Access) {
    rig.access(guest, linear, access, Privilege::Supervisor);
}

/// Writes an entry of the guest's tables.
fn entry(rig: &mut Rig, guest: &Guest, gpa: u64, value: u64) {
    let linear = if guest.cr0 & CR0_PG != 0 { WINDOW + gpa - ROOT } else { gpa };
    access(rig, guest, linear, Access::Write);
    rig.write(gpa, &value.to_le_bytes());
}

#[rustfmt::skip]
const ACTS: &[(&str, Act)] = &[
    ("first read", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("read of a neighbour", |rig, guest| access(rig, guest, 0x2000, Access::Read)),
    ("read of an unused page", |rig, guest| access(rig, guest, UNUSED, Access::Read)),
    ("write to a clean page", |rig, guest| access(rig, guest, CLEAN, Access::Write)),
    ("read of a device", |rig, guest| access(rig, guest, DEVICE, Access::Read)),
    ("again", |rig, guest| access(rig, guest, DEVICE, Access::Read)),
    ("log on", |rig, _| assert!(rig.mmu.log_dirty(0, true))),
    ("logged write", |rig, guest| access(rig, guest, 0x1000, Access::Write)),
    ("log read", |rig, _| assert!(rig.mmu.take_dirty_log(0).is_some())),
    ("read while logged", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("log off", |rig, _| assert!(rig.mmu.log_dirty(0, false))),
    ("write without log", |rig, guest| access(rig, guest, 0x1000, Access::Write)),
    ("invlpg", |rig, _| rig.invlpg(0x1000)),
    ("read after it", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("write to a page table", |rig, guest| entry(rig, guest, TABLE + 8, (DATA + 0x7000) | USER_RW)),
    ("load of CR3", |rig, guest| { rig.new_cr3(guest); rig.enter(guest); }),
    ("read after it", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("write to a directory", |rig, guest| entry(rig, guest, DIRECTORY + 0x800, 0)),
    ("flush", |rig, guest| { rig.mmu.flush_guest(&mut rig.vcpu); rig.enter(guest); }),
    ("read after it", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("change of CR0.WP", |rig, guest| {
        guest.cr0 ^= CR0_WP;
        let old = guest.cr0 ^ CR0_WP;
        rig.mmu.cr0_changed(&mut rig.vcpu, guest, old);
        rig.enter(guest);
    }),
    ("read after it", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("a table becomes data", |rig, _| { rig.mmu.unprotect(TABLE >> 12); }),
    ("read after it", |rig, guest| access(rig, guest, 0x1000, Access::Read)),
    ("removal of memory", |rig, _| assert!(rig.mmu.remove_slot(0))),
];

/// Returns the lines of one configuration.
fn lines(config: &VmConfig, paged: bool) -> String {
    let mut rig = Rig::new(config, RAM);
    let mut guest = long_guest(&rig);
    rig.ram().write(TABLE + 4 * 8, (DATA + UNUSED) | USER_RW & !A & !D);
    rig.ram().write(TABLE + 5 * 8, (DATA + CLEAN) | USER_RW & !D);
    rig.ram().write(TABLE + 0xb * 8, 0xfee0_0000 | USER_RW);
    if !paged {
        guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
    }
    let line = |(name, act): &(&str, Act)| {
        let spent = spent(&mut rig, |rig| act(rig, &mut guest));
        rig.check();
        format!("{name}: {}\n", if spent.is_empty() { "nothing" } else { &spent })
    };
    ACTS.iter().map(line).collect()
}

#[test]
fn events_cost_what_they_did() {
    let unsync = VmConfig { unsync: false, ..config(MmuMode::Shadow) };
    let small = VmConfig { huge_pages: false, ..config(MmuMode::Tdp) };
    let mut all = String::new();
    for (title, config, paged) in [
        ("shadow-nocache", config(MmuMode::ShadowNocache), true),
        ("shadow", config(MmuMode::Shadow), true),
        ("shadow without unsynchronized tables", unsync, true),
        ("shadow of a guest without paging", config(MmuMode::Shadow), false),
        ("legacy-tdp", config(MmuMode::LegacyTdp), false),
        ("tdp", config(MmuMode::Tdp), false),
        ("tdp with small pages", small, false),
    ] {
        all += &format!("# {title}\n{}\n", lines(&config, paged));
    }
    let expected = include_str!("costs.txt");
    for (line, (found, expected)) in all.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of costs.txt", line + 1);
    }
    assert_eq!(all, expected, "the number of lines, of:\n{all}");
}
