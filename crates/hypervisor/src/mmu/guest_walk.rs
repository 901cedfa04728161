//! The hypervisor's own walk of the guest's page tables: what the processor would do, on the guest's view of memory.

use super::role::Paging;
use super::spte::{ALL, EXEC, USER, WRITE};
use super::{Guest, Mmu};
use cpu::paging::{
    self, Entry, Layout, Layout32, Layout64, PagingRegisters, Path, ReadEntry, Root, Stop, Tables, UpdateEntry,
};
use cpu::permission::{PageRights, Rules};
use ledger::Operation;
use std::convert::Infallible;
use x86::flags;
use x86::page::*;

/// A page fault for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// For CR2.
    pub linear: u64,
    /// The error code.
    pub code: u32,
}

/// What the walk read at one level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Frame of the table.
    pub gfn: u64,
    /// What the entries above allow.
    pub access: u8,
}

/// A translation that the guest's tables allow.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// What was read, by level less one. Entries above the top level are empty.
    pub steps: [Step; 5],
    /// Level of the entry that maps the page.
    pub level: u8,
    /// Frame of the address.
    pub gfn: u64,
    /// What all entries together allow.
    pub access: u8,
    /// The entry that maps the page is dirty.
    pub dirty: bool,
    /// Some table lies where there is no memory.
    pub unbacked: bool,
}

/// What an access wants, as bits of an error code: W, U, I.
pub fn wanted(code: u32) -> u32 {
    code & (code::WRITE | code::USER | code::FETCH)
}

/// What an entry allows: a value, or what several have in common, with the bits that forbid something turned round.
fn access_of<L: Layout>(common: u64) -> u8 {
    let bit = |mask: u64, bit| if common & mask == mask { bit } else { 0 };
    bit(L::FORBIDS, EXEC) | bit(RW, WRITE) | bit(US, USER)
}

impl Guest {
    /// The rules for an access of the guest. Implicit accesses are told from explicit ones by the privilege level only; see
    /// [`Mmu::fault`] for the rest.
    pub(super) fn rules(&self) -> Rules {
        let lifted = self.cpl != 3 && self.rflags & flags::AC != 0;
        Rules { cr0: self.cr0, cr4: self.cr4, efer: self.efer, pkru: self.pkru, pkrs: self.pkrs, lifted }
    }
}

impl Mmu {
    /// Reads an entry of a guest table. Where there is no memory, all bits are set. The value, and whether there is memory.
    pub(super) fn read_guest(&self, gpa: u64, wide: bool) -> (u64, bool) {
        let value = self
            .slots
            .translate(gpa)
            .and_then(|hpa| if wide { self.ram.read::<u64>(hpa) } else { self.ram.read::<u32>(hpa).map(u64::from) });
        let ones = if wide { u64::MAX } else { u64::from(u32::MAX) };
        (value.unwrap_or(ones), value.is_some())
    }

    /// Sets flags in an entry of a guest table, as the processor does: no matter what shadows the table.
    fn set_guest_flags(&mut self, gpa: u64, wide: bool, value: u64) {
        let Some(slot) = self.slots.find_mut(gpa >> SHIFT) else { return };
        if slot.config.read_only {
            return;
        }
        let hpa = slot.hpa(gpa >> SHIFT) | gpa & OFFSET;
        if slot.mark_dirty(gpa >> SHIFT) {
            self.tolls.add(Operation::DirtyLog, 1);
        }
        if wide {
            self.ram.write(hpa, value);
        } else {
            self.ram.write(hpa, value as u32);
        }
        self.written.push((hpa, if wide { 8 } else { 4 }));
    }

    /// Walks the guest's tables for an access with the error-code bits `want`, and sets accessed and dirty flags.
    ///
    /// Only with paging on.
    pub(super) fn walk_guest(&mut self, guest: &Guest, linear: u64, want: u32) -> Result<Walk, PageFault> {
        let registers = PagingRegisters {
            cr3: guest.cr3,
            cr4: guest.cr4,
            efer: guest.efer,
            pdpte: &guest.pdpte,
            physical_bits: u32::from(self.host.physical_bits),
        };
        let outcome = match registers.tables(linear) {
            Some(Tables::Bits64(layout, root)) => self.walk_by(&layout, root, guest, linear, want),
            Some(Tables::Bits32(layout, root)) => self.walk_by(&layout, root, guest, linear, want),
            None => Err(0),
        };
        outcome.map_err(|bits| PageFault { linear, code: guest.rules().error_code(want, bits) })
    }

    /// [`Self::walk_guest`] in one layout. The error is the bits of the error code beyond W, U and I.
    fn walk_by<L: Layout>(
        &mut self,
        layout: &L,
        root: Root,
        guest: &Guest,
        linear: u64,
        want: u32,
    ) -> Result<Walk, u32> {
        let mut path = Path::default();
        let mut tables = GuestTables { mmu: self, unbacked: false };
        let leaf = match paging::walk(layout, root, linear, &mut tables, &mut path) {
            Ok(leaf) => leaf,
            Err(Stop::Absent) => return Err(0),
            Err(Stop::Reserved) => return Err(code::PRESENT | code::RESERVED),
            Err(Stop::Unreachable(never)) => match never {},
        };
        let access = access_of::<L>(path.common());
        let page = PageRights {
            shadow: false,
            writable: access & WRITE != 0,
            user: access & USER != 0,
            executable: access & EXEC != 0,
            key: (leaf.entry >> KEY_SHIFT & KEY_MASK) as u8,
        };
        if let Some(bits) = guest.rules().denial(page, want) {
            return Err(bits);
        }
        let Ok(()) = path.mark::<L, _>(&mut tables, want & code::WRITE != 0);
        let unbacked = tables.unbacked;
        let offset = linear & ((1 << leaf.shift) - 1);
        let gfn = (layout.page(leaf.entry, leaf.shift) | offset) >> SHIFT;
        let level = paging::level::<L>(leaf.shift);
        let mut walk = Walk { steps: [Step::default(); 5], level, gfn, access, dirty: false, unbacked };
        let mut above = ALL;
        for (entry, level) in path.entries().iter().zip((1..=paging::level::<L>(root.shift)).rev()) {
            let Entry { address, value } = *entry;
            walk.steps[usize::from(level) - 1] = Step { gfn: address >> SHIFT, access: above };
            above &= access_of::<L>(value ^ L::FORBIDS);
            walk.dirty = value & D != 0;
        }
        Ok(walk)
    }

    /// What an entry of a last-level guest table says, for shadow entries made ahead of the first access: the frame and what
    /// may be done with it. `None`: it maps nothing, or has not been used by the guest yet.
    pub(super) fn used_entry(&self, guest: &Paging, value: u64, above: u8) -> Option<(u64, u8)> {
        let physical_bits = u32::from(self.host.physical_bits);
        match guest.pae {
            true => used_in(&Layout64::new(guest.long, guest.nxe, physical_bits), value, above),
            false => used_in(&Layout32::new(guest.pse, physical_bits), value, above),
        }
    }
}

/// [`Mmu::used_entry`] in one layout.
fn used_in<L: Layout>(layout: &L, value: u64, above: u8) -> Option<(u64, u8)> {
    let fine = value & (P | A) == P | A && !layout.is_reserved(value, SHIFT, true);
    fine.then(|| {
        let access = above & access_of::<L>(value ^ L::FORBIDS) & if value & D == 0 { !WRITE } else { ALL };
        (layout.page(value, SHIFT) >> SHIFT, access)
    })
}

/// The guest's tables as the hypervisor walks them, and sets flags in them.
struct GuestTables<'a> {
    mmu: &'a mut Mmu,
    /// Some table lies where there is no memory.
    unbacked: bool,
}

impl ReadEntry for GuestTables<'_> {
    type Stop = Infallible;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Infallible> {
        self.mmu.tolls.add(Operation::GuestWalk, 1);
        let (value, backed) = self.mmu.read_guest(address, wide);
        self.unbacked |= !backed;
        Ok(value)
    }
}

impl UpdateEntry for GuestTables<'_> {
    fn update(&mut self, address: u64, wide: bool, value: u64) -> Result<(), Infallible> {
        self.mmu.set_guest_flags(address, wide, value);
        Ok(())
    }
}
