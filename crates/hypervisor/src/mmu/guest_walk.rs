//! The hypervisor's walk of the guest's page tables, which follows the processor's, on the guest's view of memory.

use super::guest_ept::{EptExit, Level};
use super::role::Role;
use super::shadow_ept::Says;
use super::spte::{ALL, EXEC, USER, WRITE};
use super::{Guest, Mmu, NestedFault, PageFault};
use cpu::paging::{
    self, Entry, Layout, Layout32, Layout64, PagingRegisters, Path, ReadEntry, Root, Stop, Tables, UpdateEntry,
};
use cpu::permission::{PageRights, Rules};
use ledger::Operation;
use std::convert::Infallible;
use x86::control::CR0_PG;
use x86::page::*;
use x86::vmx::qualification::ept as qualification;
use x86::{ept, flags};

/// Entry that the walk read at one level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Frame of the table.
    pub gfn: u64,
    /// Combined permissions of the entries above.
    pub access: u8,
}

/// A translation that the guest's tables permit.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Entries that were read, indexed by level minus one. Entries above the top level are empty.
    pub steps: [Step; 5],
    /// Level of the entry that maps the page.
    pub level: u8,
    /// Frame of the address.
    pub gfn: u64,
    /// Combined permissions of all entries.
    pub access: u8,
    /// True if the entry that maps the page is dirty.
    pub dirty: bool,
    /// True if some table is outside of memory.
    pub unbacked: bool,
}

/// Returns the error-code bits W, U and I of an access.
pub fn wanted(code: u32) -> u32 {
    code & (code::WRITE | code::USER | code::FETCH)
}

/// Returns the permissions of an entry, or those common to several entries, whose denying bits are inverted.
fn access_of<L: Layout>(common: u64) -> u8 {
    let bit = |mask: u64, bit| if common & mask == mask { bit } else { 0 };
    bit(L::FORBIDS, EXEC) | bit(RW, WRITE) | bit(US, USER)
}

impl Guest {
    /// Returns the permission rules for an access of the guest. Implicit accesses are distinguished from explicit ones
    /// by the privilege level only; see [`Mmu::fault`] for the other cases.
    pub(super) fn rules(&self) -> Rules {
        let lifted = self.cpl != 3 && self.rflags & flags::AC != 0;
        Rules { cr0: self.cr0, cr4: self.cr4, efer: self.efer, pkru: self.pkru, pkrs: self.pkrs, lifted }
    }
}

impl Mmu {
    /// Reads an entry of a guest table. Returns the value, and true if there is memory; otherwise all bits are set.
    pub(super) fn read_guest(&self, gpa: u64, wide: bool) -> (u64, bool) {
        let value = self
            .slots
            .translate(gpa)
            .and_then(|hpa| if wide { self.ram.read::<u64>(hpa) } else { self.ram.read::<u32>(hpa).map(u64::from) });
        let ones = if wide { u64::MAX } else { u64::from(u32::MAX) };
        (value.unwrap_or(ones), value.is_some())
    }

    /// Sets flags in an entry of a guest table, as the processor does: shadow pages are not informed.
    pub(super) fn set_guest_flags(&mut self, gpa: u64, wide: bool, value: u64) {
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
    /// Paging must be enabled.
    pub(super) fn walk_guest(&mut self, guest: &Guest, linear: u64, want: u32) -> Result<Walk, PageFault> {
        let mut tables = GuestTables { mmu: self, unbacked: false };
        let walk = walk_in(&mut tables, guest, linear, want).map_err(|denied| match denied {
            Denied::Fault(fault) => fault,
            Denied::Stop(never) => match never {},
        })?;
        Ok(Walk { unbacked: tables.unbacked, ..walk })
    }

    /// Walks the tables of a nested guest, which has these registers, for an access of an emulated instruction. Sets
    /// flags as the processor does: in those tables, and in the guest's EPT on the way to them and to the page. Returns
    /// the address of the page in the guest's memory.
    pub fn nested_walk(&mut self, guest: &Guest, linear: u64, want: u32) -> Result<u64, NestedFault> {
        let gpa = match guest.cr0 & CR0_PG {
            0 => linear & 0xffff_ffff,
            _ => {
                let mut tables = NestedTables { mmu: self, guest, linear };
                let walk = walk_in(&mut tables, guest, linear, wanted(want)).map_err(|denied| match denied {
                    Denied::Fault(fault) => NestedFault::Page(fault),
                    Denied::Stop(exit) => NestedFault::Exit(exit),
                })?;
                walk.gfn << SHIFT | linear & OFFSET
            }
        };
        let access = match (want & code::FETCH != 0, want & code::WRITE != 0) {
            (true, _) => ept::EXECUTE,
            (false, true) => ept::WRITE,
            (false, false) => ept::READ,
        };
        let qualification = access | qualification::LINEAR_VALID | qualification::FINAL;
        self.nested_gpa(guest, gpa, linear, qualification).map_err(NestedFault::Exit)
    }

    /// Returns true if the tables of a nested guest give an address to user mode, which is always the case with paging
    /// disabled. This inspection has no side effects.
    pub(super) fn is_user_page(&mut self, guest: &Guest, linear: u64) -> bool {
        if guest.cr0 & CR0_PG == 0 {
            return true;
        }
        let registers = self.registers(guest);
        let mut tables = SeenTables { mmu: self, guest };
        match registers.tables(linear) {
            Some(Tables::Bits64(layout, root)) => is_user(&layout, root, linear, &mut tables),
            Some(Tables::Bits32(layout, root)) => is_user(&layout, root, linear, &mut tables),
            None => false,
        }
    }

    fn registers<'a>(&self, guest: &'a Guest) -> PagingRegisters<'a> {
        PagingRegisters {
            cr3: guest.cr3,
            cr4: guest.cr4,
            efer: guest.efer,
            pdpte: &guest.pdpte,
            physical_bits: u32::from(self.host.physical_bits),
        }
    }

    /// Returns the frame and permissions that an entry of a last-level guest table grants to a shadow page of `role`,
    /// for shadow entries created before the first access. Returns `None` if it maps nothing, or has not been used by
    /// the guest yet.
    pub(super) fn used_entry(&self, role: Role, value: u64) -> Option<(u64, u8)> {
        if let Some(format) = role.ept {
            return match self.ept_entry(role, format, value) {
                Some(Says::Page(gfn, access)) => Some((gfn, access)),
                _ => None,
            };
        }
        let (guest, above) = (role.paging(), role.access);
        let physical_bits = u32::from(self.host.physical_bits);
        match guest.pae {
            true => used_in(&Layout64::new(guest.long, guest.nxe, physical_bits), value, above),
            false => used_in(&Layout32::new(guest.pse, physical_bits), value, above),
        }
    }
}

/// Reason for which tables deny an access.
enum Denied<S> {
    /// Their permissions deny it.
    Fault(PageFault),
    /// A table is not accessible.
    Stop(S),
}

/// Paging structures with an abstract access method.
trait Reached: UpdateEntry {
    fn mmu(&self) -> &Mmu;
}

/// Walks tables for an access with the error-code bits `want`, and sets accessed and dirty flags.
fn walk_in<T: Reached>(tables: &mut T, guest: &Guest, linear: u64, want: u32) -> Result<Walk, Denied<T::Stop>> {
    let outcome = match tables.mmu().registers(guest).tables(linear) {
        Some(Tables::Bits64(layout, root)) => walk_by(tables, &layout, root, guest, linear, want),
        Some(Tables::Bits32(layout, root)) => walk_by(tables, &layout, root, guest, linear, want),
        None => Err(Stopped::Bits(0)),
    };
    outcome.map_err(|stopped| match stopped {
        Stopped::Bits(bits) => Denied::Fault(PageFault { linear, code: guest.rules().error_code(want, bits) }),
        Stopped::Unreachable(stop) => Denied::Stop(stop),
    })
}

/// Reason for which [`walk_by`] failed.
enum Stopped<S> {
    /// Error-code bits in addition to W, U and I.
    Bits(u32),
    Unreachable(S),
}

/// Performs [`walk_in`] with one layout.
fn walk_by<L: Layout, T: UpdateEntry>(
    tables: &mut T,
    layout: &L,
    root: Root,
    guest: &Guest,
    linear: u64,
    want: u32,
) -> Result<Walk, Stopped<T::Stop>> {
    let mut path = Path::default();
    let leaf = paging::walk(layout, root, linear, tables, &mut path).map_err(|stop| match stop {
        Stop::Absent => Stopped::Bits(0),
        Stop::Reserved => Stopped::Bits(code::PRESENT | code::RESERVED),
        Stop::Unreachable(stop) => Stopped::Unreachable(stop),
    })?;
    let access = access_of::<L>(path.common());
    let page = PageRights {
        shadow: false,
        writable: access & WRITE != 0,
        user: access & USER != 0,
        executable: access & EXEC != 0,
        key: (leaf.entry >> KEY_SHIFT & KEY_MASK) as u8,
    };
    if let Some(bits) = guest.rules().denial(page, want) {
        return Err(Stopped::Bits(bits));
    }
    path.mark::<L, _>(tables, want & code::WRITE != 0).map_err(Stopped::Unreachable)?;
    let offset = linear & ((1 << leaf.shift) - 1);
    let gfn = (layout.page(leaf.entry, leaf.shift) | offset) >> SHIFT;
    let level = paging::level::<L>(leaf.shift);
    let mut walk = Walk { steps: [Step::default(); 5], level, gfn, access, dirty: false, unbacked: false };
    let mut above = ALL;
    for (entry, level) in path.entries().iter().zip((1..=paging::level::<L>(root.shift)).rev()) {
        let Entry { address, value } = *entry;
        walk.steps[usize::from(level) - 1] = Step { gfn: address >> SHIFT, access: above };
        above &= access_of::<L>(value ^ L::FORBIDS);
        walk.dirty = value & D != 0;
    }
    Ok(walk)
}

/// Performs [`Mmu::is_user_page`] with one layout.
fn is_user<L: Layout>(layout: &L, root: Root, linear: u64, tables: &mut SeenTables) -> bool {
    let mut path = Path::default();
    paging::walk(layout, root, linear, tables, &mut path).is_ok() && access_of::<L>(path.common()) & USER != 0
}

/// Performs [`Mmu::used_entry`] with one layout.
fn used_in<L: Layout>(layout: &L, value: u64, above: u8) -> Option<(u64, u8)> {
    let fine = value & (P | A) == P | A && !layout.is_reserved(value, SHIFT, true);
    fine.then(|| {
        let access = above & access_of::<L>(value ^ L::FORBIDS) & if value & D == 0 { !WRITE } else { ALL };
        (layout.page(value, SHIFT) >> SHIFT, access)
    })
}

/// The guest's tables as walked by the hypervisor, which sets flags.
struct GuestTables<'a> {
    mmu: &'a mut Mmu,
    /// True if some table is outside of memory.
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

impl Reached for GuestTables<'_> {
    fn mmu(&self) -> &Mmu {
        self.mmu
    }
}

/// Tables of a nested guest, which are accessed through the guest's EPT.
struct NestedTables<'a> {
    mmu: &'a mut Mmu,
    guest: &'a Guest,
    linear: u64,
}

impl NestedTables<'_> {
    fn place(&mut self, address: u64, access: u64) -> Result<u64, EptExit> {
        self.mmu.nested_gpa(self.guest, address, self.linear, access | qualification::LINEAR_VALID)
    }
}

impl ReadEntry for NestedTables<'_> {
    type Stop = EptExit;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, EptExit> {
        // With accessed and dirty flags, every access to page tables is treated as a write.
        let flags = matches!(self.guest.level(), Level::Ept { format, .. } if format.flags);
        let place = self.place(address, if flags { ept::READ | ept::WRITE } else { ept::READ })?;
        self.mmu.tolls.add(Operation::GuestWalk, 1);
        Ok(self.mmu.read_guest(place, wide).0)
    }
}

impl UpdateEntry for NestedTables<'_> {
    fn update(&mut self, address: u64, wide: bool, value: u64) -> Result<(), EptExit> {
        let place = self.place(address, ept::READ | ept::WRITE)?;
        self.mmu.set_guest_flags(place, wide, value);
        self.mmu.entry_marked(place);
        Ok(())
    }
}

impl Reached for NestedTables<'_> {
    fn mmu(&self) -> &Mmu {
        self.mmu
    }
}

/// Tables of a nested guest as inspected without side effects.
struct SeenTables<'a> {
    mmu: &'a mut Mmu,
    guest: &'a Guest,
}

/// Error: EPT does not map an entry.
struct Unmapped;

impl ReadEntry for SeenTables<'_> {
    type Stop = Unmapped;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Unmapped> {
        let place = self.mmu.look_in_ept(self.guest, address).ok_or(Unmapped)?;
        self.mmu.tolls.add(Operation::GuestWalk, 1);
        Ok(self.mmu.read_guest(place, wide).0)
    }
}
