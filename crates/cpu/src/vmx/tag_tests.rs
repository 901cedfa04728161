//! Tests of translations tagged with VPID, EPT pointer and PCID: their invalidation, and the behavior of the fast path.

use super::{Controls, Flush, Invept, Invvpid};
use crate::Exit;
use crate::fault::Cause;
use crate::op::SEG_FLAT;
use crate::testing::{CODE, DATA, Machine};
use iced_x86::code_asm::*;
use x86::control::*;
use x86::vector;
use x86::vmx::{entry, primary, reason, secondary};

/// The guest's page table for the two megabytes of DATA, the directory for its GiB, and three pages with different
/// contents.
const TABLE: u64 = 0x4000;
const DIRECTORY: u64 = 0x3000;
const PAGES: [u64; 3] = [0x50_0000, 0x51_0000, 0x52_0000];
/// Two EPT hierarchies: four pages each.
const EPT: [u64; 2] = [0x60_0000, 0x61_0000];
const LARGE: u64 = 0x80;
const GLOBAL: u64 = 0x100;
const ALL: u64 = 0x37;

struct Guest {
    m: Machine,
    controls: Controls,
}

fn pointer(which: usize) -> u64 {
    EPT[which] | 3 << 3 | 6
}

impl Guest {
    /// Returns a 64-bit guest with EPT that maps everything to itself, and a VPID unless `vpid` is 0.
    fn new(vpid: u16) -> Self {
        let mut m = Machine::long64(0);
        m.cpu.arch.cr4 |= CR4_VMXE;
        let ram = m.cpu.wiring.ram.clone();
        ram.write(DIRECTORY + 8 * (DATA >> 21), TABLE | 0x27);
        for (i, page) in PAGES.iter().enumerate() {
            ram.write(*page, i as u64 + 1);
            ram.write(TABLE + 8 * i as u64, PAGES[0] | 0x67);
        }
        for ept in EPT {
            ram.write(ept, (ept + 0x1000) | 7);
            ram.write(ept + 0x1000, (ept + 0x2000) | 7);
            for i in 0..8u64 {
                ram.write(ept + 0x2000 + 8 * i, i << 21 | LARGE | ALL);
            }
            // The two megabytes of the pages, in 4 KiB pages.
            ram.write(ept + 0x2000 + 8 * 2, (ept + 0x3000) | 7);
            for i in 0..512u64 {
                ram.write(ept + 0x3000 + 8 * i, (0x40_0000 + (i << 12)) | ALL);
            }
        }
        let controls = Controls {
            primary: primary::SECONDARY | primary::HLT,
            secondary: secondary::EPT | if vpid != 0 { secondary::VPID } else { 0 },
            vpid,
            eptp: pointer(0),
            entry: entry::IA32E_GUEST,
            ..Controls::default()
        };
        let mut guest = Self { m, controls };
        guest.enter();
        guest
    }

    fn enter(&mut self) {
        self.m.cpu.vm_entry(self.controls.clone()).expect("valid controls and state");
    }

    /// Exits, executes `what` in the host, and enters again.
    fn host(&mut self, what: impl FnOnce(&mut Self)) {
        self.m.cpu.exit_fault(reason::VMCALL, 0);
        self.m.cpu.engine.fault = Cause::None;
        self.m.cpu.leave_guest();
        what(self);
        self.enter();
    }

    /// Returns the value that the guest reads at the start of page `n` of DATA.
    fn read(&mut self, n: u64) -> u64 {
        self.m.cpu.read_linear::<u64>(DATA + (n << 12), SEG_FLAT).expect("mapped")
    }

    /// Maps page `n` of DATA to one of the pages, in the guest's table.
    fn map(&self, n: u64, page: usize, flags: u64) {
        self.m.cpu.wiring.ram.write(TABLE + 8 * n, PAGES[page] | 0x67 | flags);
    }

    /// Replaces the backing of the guest's page `from`, in an EPT.
    fn back(&self, ept: usize, from: usize, to: usize, flags: u64) {
        let at = EPT[ept] + 0x3000 + 8 * (PAGES[from] >> 12 & 0x1ff);
        self.m.cpu.wiring.ram.write(at, PAGES[to] | flags);
    }

    /// Returns the EPT entry of a page.
    fn backing(&self, ept: usize, page: usize) -> u64 {
        self.m.cpu.wiring.ram.read(EPT[ept] + 0x3000 + 8 * (PAGES[page] >> 12 & 0x1ff)).expect("RAM")
    }
}

#[test]
fn a_vpid_keeps_its_translations_across_exits() {
    let mut g = Guest::new(1);
    assert_eq!(g.read(0), 1);
    g.map(0, 1, 0);
    assert_eq!(g.read(0), 1);
    g.host(|_| {});
    assert_eq!(g.read(0), 1);
    g.host(|g| g.controls.vpid = 2);
    assert_eq!(g.read(0), 2);
    g.map(0, 2, 0);
    g.host(|g| g.controls.vpid = 1);
    assert_eq!(g.read(0), 1);
    g.host(|g| g.controls.vpid = 2);
    assert_eq!(g.read(0), 2);
    // An invalidation of the guest affects only its own translations.
    g.m.cpu.flush_tlb(Flush::All);
    g.m.cpu.mapping_changed();
    assert_eq!(g.read(0), 3);
    g.host(|g| g.controls.vpid = 1);
    assert_eq!(g.read(0), 1);
}

#[test]
fn without_a_vpid_nothing_survives_a_transition() {
    let mut g = Guest::new(0);
    assert_eq!(g.read(0), 1);
    g.map(0, 1, GLOBAL);
    g.host(|_| {});
    assert_eq!(g.read(0), 2);
    g.map(0, 2, 0);
    assert_eq!(g.read(0), 2);
    g.host(|_| {});
    assert_eq!(g.read(0), 3);
}

#[test]
fn invvpid_does_what_its_type_says() {
    let fill = |g: &mut Guest| {
        for vpid in [2, 1] {
            g.host(|g| g.controls.vpid = vpid);
            g.m.cpu.flush_tlb(Flush::All);
            g.m.cpu.mapping_changed();
            g.map(0, 0, 0);
            g.map(1, 0, GLOBAL);
            assert_eq!((g.read(0), g.read(1)), (1, 1));
        }
        g.map(0, 1, 0);
        g.map(1, 1, GLOBAL);
        assert_eq!((g.read(0), g.read(1)), (1, 1));
    };
    let both = |g: &mut Guest| {
        let first = (g.read(0), g.read(1));
        g.host(|g| g.controls.vpid = 2);
        (first, (g.read(0), g.read(1)))
    };
    let mut g = Guest::new(1);
    for (what, expected) in [
        (Invvpid::Address { vpid: 1, linear: DATA }, ((2, 1), (1, 1))),
        (Invvpid::Address { vpid: 1, linear: DATA + 0x1fff }, ((1, 2), (1, 1))),
        (Invvpid::Single(1), ((2, 2), (1, 1))),
        (Invvpid::Single(2), ((1, 1), (2, 2))),
        (Invvpid::Single(3), ((1, 1), (1, 1))),
        (Invvpid::RetainGlobals(1), ((2, 1), (1, 1))),
        (Invvpid::All, ((2, 2), (2, 2))),
    ] {
        fill(&mut g);
        g.host(|g| g.m.cpu.invvpid(what));
        assert_eq!(both(&mut g), expected, "{what:?}");
    }
}

#[test]
fn invept_does_what_its_type_says() {
    let fill = |g: &mut Guest| {
        for which in [1, 0] {
            g.host(|g| g.controls.eptp = pointer(which));
            g.back(which, 0, which, ALL);
            g.m.cpu.invept(Invept::Global);
        }
        for which in [1, 0] {
            g.host(|g| g.controls.eptp = pointer(which));
            assert_eq!(g.read(0), which as u64 + 1);
            g.back(which, 0, 2, ALL);
            assert_eq!(g.read(0), which as u64 + 1);
        }
    };
    let both = |g: &mut Guest| {
        let first = g.read(0);
        g.host(|g| g.controls.eptp = pointer(1));
        (first, g.read(0))
    };
    let mut g = Guest::new(1);
    for (what, expected) in [
        (Invept::Single(pointer(0)), (3, 2)),
        (Invept::Single(pointer(1)), (1, 3)),
        (Invept::Single(0), (1, 2)),
        (Invept::Global, (3, 3)),
    ] {
        fill(&mut g);
        g.host(|g| g.m.cpu.invept(what));
        assert_eq!(both(&mut g), expected, "{what:?}");
    }
    // INVVPID affects translations of all EPT pointers.
    fill(&mut g);
    g.host(|g| g.m.cpu.invvpid(Invvpid::Address { vpid: 1, linear: DATA }));
    assert_eq!(both(&mut g), (3, 3));
}

#[test]
fn pcids_are_apart_within_a_vpid() {
    let mut g = Guest::new(1);
    g.m.cpu.arch.cr4 |= CR4_PCIDE;
    g.m.cpu.mapping_changed();
    assert_eq!(g.read(0), 1);
    g.map(0, 1, 0);
    g.m.cpu.load_cr3(0x1001 | 1 << 63).expect("valid");
    assert_eq!(g.read(0), 2);
    g.host(|_| {});
    assert_eq!(g.read(0), 2);
    g.m.cpu.load_cr3(0x1000 | 1 << 63).expect("valid");
    assert_eq!(g.read(0), 1);
    // INVVPID of an address affects all PCIDs.
    g.map(0, 2, 0);
    g.host(|g| g.m.cpu.invvpid(Invvpid::Address { vpid: 1, linear: DATA }));
    assert_eq!(g.read(0), 3);
    g.m.cpu.load_cr3(0x1001 | 1 << 63).expect("valid");
    assert_eq!(g.read(0), 3);
}

#[test]
fn more_vpids_and_pointers_than_are_told_apart_do_no_harm() {
    let mut g = Guest::new(1);
    assert_eq!(g.read(0), 1);
    for i in 0..600u64 {
        g.map(0, i as usize % 3, 0);
        g.host(|g| {
            g.controls.vpid = 1 + (i % 37) as u16;
            g.m.cpu.invvpid(Invvpid::Single(g.controls.vpid));
        });
        assert_eq!(g.read(0), i % 3 + 1);
    }
    // Each VPID has its own pages, with or without an invalidation before its index was reassigned.
    let mut g = Guest::new(1);
    for i in 0..600u64 {
        let vpid = 1 + (i % 37) as u16;
        let page = usize::from(vpid) % 3;
        g.map(0, page, 0);
        g.host(|g| g.controls.vpid = vpid);
        assert_eq!(g.read(0), page as u64 + 1, "VPID {vpid}");
    }
    let mut g = Guest::new(1);
    for i in 0..600u64 {
        // Roots with the same first entry.
        let root = 0x70_0000 + (i << 12);
        g.m.cpu.wiring.ram.write(root, (EPT[0] + 0x1000) | 7);
        g.map(0, i as usize % 3, 0);
        g.host(|g| g.controls.eptp = root | 3 << 3 | 6);
        assert_eq!(g.read(0), i % 3 + 1);
    }
}

#[test]
fn registers_that_the_host_changes_count_at_once() {
    let mut g = Guest::new(1);
    g.m.cpu.wiring.ram.write(TABLE, PAGES[0] | 0x65);
    g.m.cpu.arch.cr0 &= !CR0_WP;
    g.m.cpu.mapping_changed();
    for _ in 0..2 {
        g.m.cpu.write_linear::<u64>(DATA, SEG_FLAT, 9).expect("CR0.WP is clear");
    }
    g.host(|g| g.m.cpu.arch.cr0 |= CR0_WP);
    assert!(g.m.cpu.write_linear::<u64>(DATA, SEG_FLAT, 9).is_err());
    assert_eq!(g.m.cpu.engine.fault, Cause::Exception(vector::PF, Some(3)));
}

#[test]
fn ept_permissions_and_dirty_flags_hold_on_the_fast_path() {
    let mut g = Guest::new(1);
    g.controls.eptp |= 1 << 6;
    g.host(|_| {});
    g.map(0, 0, 0);
    g.back(0, 0, 0, ALL & !2);
    for _ in 0..2 {
        assert_eq!(g.read(0), 1);
        assert!(g.m.cpu.write_linear::<u64>(DATA + 8, SEG_FLAT, 5).is_err());
        assert_eq!(g.m.cpu.engine.fault, Cause::VmExit);
        let exit = g.m.cpu.arch.vm_exit;
        // A write to a page with read and fetch permission, at the end of a linear address's translation.
        assert_eq!((exit.reason, exit.qualification), (reason::EPT_VIOLATION, 2 | 5 << 3 | 3 << 7));
        assert_eq!((exit.guest_linear, exit.guest_physical), (DATA + 8, PAGES[0] + 8));
        g.m.cpu.engine.fault = Cause::None;
    }
    assert_eq!(g.backing(0, 0) & 0x300, 0x100);
    g.back(0, 0, 0, ALL | 0x100);
    assert_eq!(g.read(0), 1);
    assert_eq!(g.backing(0, 0) & 0x300, 0x100);
    for i in 0..2 {
        g.m.cpu.write_linear::<u64>(DATA + 8, SEG_FLAT, 5 + i).expect("writable now");
        assert_eq!(g.m.cpu.wiring.ram.read::<u64>(PAGES[0] + 8), Some(5 + i));
    }
    assert_eq!(g.backing(0, 0) & 0x300, 0x300);
    // After it is cleared and invalidated (dirty logging), the next write sets it.
    g.back(0, 0, 0, ALL | 0x100);
    g.host(|g| g.m.cpu.invept(Invept::Single(g.controls.eptp)));
    assert_eq!(g.read(0), 1);
    assert_eq!(g.backing(0, 0) & 0x300, 0x100);
    g.m.cpu.write_linear::<u64>(DATA + 8, SEG_FLAT, 7).expect("writable");
    assert_eq!(g.backing(0, 0) & 0x300, 0x300);
}

#[test]
fn violations_of_instructions_leave_the_guest_on_them() {
    let mut g = Guest::new(1);
    g.back(0, 0, 0, 4 | 0x30);
    g.m.code(|a| {
        a.mov(rax, qword_ptr(DATA + 0x10))?;
        a.hlt()
    });
    assert_eq!(g.m.run(1 << 30), Exit::Vm);
    let exit = g.m.cpu.arch.vm_exit;
    assert_eq!((exit.reason, exit.qualification), (reason::EPT_VIOLATION, 1 | 4 << 3 | 3 << 7));
    assert_eq!((exit.guest_physical, g.m.cpu.arch.rip), (PAGES[0] + 0x10, CODE));
    g.back(0, 0, 0, ALL);
    g.enter();
    assert_eq!(g.m.run(1 << 30), Exit::Vm);
    assert_eq!(g.m.cpu.arch.vm_exit.reason, reason::HLT);

    // Execute-only permits execution, no-execute exits.
    g.m.cpu.wiring.ram.write(PAGES[0] + 0x10, 0xf4u8);
    g.m.cpu.arch.rip = DATA + 0x10;
    g.back(0, 0, 0, 4 | 0x30);
    g.m.cpu.invept(Invept::Global);
    g.enter();
    assert_eq!(g.m.run(1 << 30), Exit::Vm);
    assert_eq!((g.m.cpu.arch.vm_exit.reason, g.m.cpu.arch.rip), (reason::HLT, DATA + 0x10));
    g.back(0, 0, 0, 3 | 0x30);
    g.m.cpu.invept(Invept::Global);
    g.enter();
    assert_eq!(g.m.run(1 << 30), Exit::Vm);
    let exit = g.m.cpu.arch.vm_exit;
    assert_eq!((exit.reason, exit.qualification), (reason::EPT_VIOLATION, 4 | 3 << 3 | 3 << 7));
    assert_eq!((exit.guest_linear, exit.guest_physical), (DATA + 0x10, PAGES[0] + 0x10));
}

#[test]
fn the_guests_tables_are_behind_ept_too() {
    let mut g = Guest::new(1);
    // The directory's page is read-only: setting its accessed flag is a violation, and reading it is not.
    g.m.cpu.wiring.ram.write(DIRECTORY + 8 * (DATA >> 21), TABLE | 7);
    let at = EPT[0] + 0x2000;
    g.m.cpu.wiring.ram.write(at, LARGE | ALL & !2);
    assert!(g.m.cpu.read_linear::<u64>(DATA, SEG_FLAT).is_err());
    let exit = g.m.cpu.arch.vm_exit;
    assert_eq!((exit.reason, exit.qualification), (reason::EPT_VIOLATION, 3 | 5 << 3 | 1 << 7));
    assert_eq!((exit.guest_linear, exit.guest_physical), (DATA, DIRECTORY + 8 * (DATA >> 21)));
    g.m.cpu.engine.fault = Cause::None;
    g.m.cpu.wiring.ram.write(at, LARGE | ALL);
    assert_eq!(g.read(0), 1);
    assert_eq!(g.m.cpu.wiring.ram.read::<u64>(DIRECTORY + 8 * (DATA >> 21)), Some(TABLE | 0x27));
    assert_eq!(g.m.cpu.look_up(DATA + 0x123), Some(PAGES[0] + 0x123));
}

#[test]
fn pdptes_are_loaded_through_ept() {
    let mut g = Guest::new(1);
    g.m.cpu.arch.msr.efer = 0;
    g.m.cpu.arch.cr0 |= CR0_PG;
    g.m.cpu.mode_changed();
    g.m.cpu.wiring.ram.write(PAGES[1] + 0x20, 0x4001u64);
    g.back(0, 0, 1, ALL);
    g.m.cpu.load_cr3(PAGES[0] + 0x20).expect("readable");
    assert_eq!(g.m.cpu.arch.pdpte, [0x4001, 0, 0, 0]);
    g.back(0, 0, 1, 4 | 0x30);
    assert!(g.m.cpu.load_cr3(PAGES[0] + 0x20).is_err());
    let exit = g.m.cpu.arch.vm_exit;
    assert_eq!((exit.reason, exit.qualification), (reason::EPT_VIOLATION, 1 | 4 << 3));
    assert_eq!((exit.guest_physical, exit.guest_linear), (PAGES[0] + 0x20, 0));
}

#[test]
fn looks_from_outside_use_what_the_guest_sees() {
    let mut g = Guest::new(1);
    g.map(0, 1, 0);
    let view = super::GuestView::of(&g.m.cpu);
    g.host(|g| {
        // As with shadow paging: the real CR3 differs.
        g.m.cpu.arch.cr3 = 0x7000;
        assert_eq!(g.m.cpu.look_up(DATA), None);
        g.m.cpu.arch.vmx.visible = Some(view);
        assert_eq!(g.m.cpu.look_up(DATA + 5), Some(PAGES[1] + 5));
        assert_eq!(g.m.cpu.look_up_in(&super::GuestView { cr3: 0x7000, ..view }, DATA), None);
        g.m.cpu.arch.cr3 = view.cr3;
    });
}

#[test]
fn a_reset_ends_non_root_mode() {
    let mut g = Guest::new(1);
    assert_eq!(g.read(0), 1);
    g.m.cpu.reset(true);
    assert!(!g.m.cpu.non_root() && !g.m.cpu.arch.vmx.ept && g.m.cpu.micro.level == 0);
    // Physical addresses are the machine's own again.
    g.back(0, 0, 2, ALL);
    assert_eq!(g.m.cpu.read_linear::<u64>(PAGES[0], SEG_FLAT), Ok(1));
}
