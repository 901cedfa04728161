//! Page walks: 32-bit, PAE, 4-level and 5-level paging (SDM vol. 3, chapter 4), combined with EPT in non-root mode.

pub use crate::access::{Access, Privilege};
use crate::fault::{Exec, Fault};
use crate::paging::{self, Layout, PagingRegisters, Path, ReadEntry, Root, Stop, Tables, UpdateEntry};
use crate::permission::{PageRights, Rules};
use crate::state::Cpu;
use crate::time::memory::LINE_SHIFT;
use crate::tlb::{Entry, Reading, perm};
use crate::vmx::{GuestView, NonRoot, Placed, Purpose};
use std::convert::Infallible;
use x86::control::*;
use x86::flags;
use x86::page::*;

/// Result of a successful page walk.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    /// The translation.
    pub entry: Entry,
    /// Number of paging-structure entries that were read, including those of EPT.
    pub references: u32,
}

impl Cpu {
    /// Returns the PCID with which translations are tagged.
    #[inline]
    pub fn pcid(&self) -> u16 {
        if self.arch.cr4 & CR4_PCIDE != 0 { (self.arch.cr3 & CR3_PCID) as u16 } else { 0 }
    }

    /// Returns the privilege of the current code's explicit accesses.
    #[inline]
    pub fn privilege(&self) -> Privilege {
        if self.arch.cpl == 3 { Privilege::User } else { Privilege::Supervisor }
    }

    /// Returns the permission rules for a privilege.
    #[inline(always)]
    fn rules(&self, privilege: Privilege) -> Rules {
        let arch = &self.arch;
        let lifted = privilege == Privilege::Supervisor && arch.flags & flags::AC != 0;
        Rules { cr0: arch.cr0, cr4: arch.cr4, efer: arch.msr.efer, pkru: arch.pkru, pkrs: arch.msr.pkrs as u32, lifted }
    }

    /// Returns true if the flags of a translation alone permit an access, the common case. Otherwise
    /// [`Self::permitted`] decides.
    #[inline]
    pub(crate) fn plainly_permitted(&self, entry: &Entry, access: Access, privilege: Privilege) -> bool {
        use perm::*;
        let (mask, wanted) = match access {
            Access::Read => (EPT_NO_READ, 0),
            Access::Write => (EPT_NO_WRITE | WRITE, WRITE),
            Access::Fetch => (EPT_NO_FETCH | NO_EXECUTE, 0),
            Access::ShadowRead | Access::ShadowWrite => return false,
        };
        // A supervisor access to a user page depends on other state too.
        let user = if privilege == Privilege::User { USER } else { 0 };
        entry.perms & (mask | USER) == wanted | user && (access == Access::Fetch || self.key_is_free(entry, privilege))
    }

    /// Returns true if the protection key of a page certainly denies nothing.
    #[inline]
    fn key_is_free(&self, entry: &Entry, privilege: Privilege) -> bool {
        match privilege {
            Privilege::User => self.arch.cr4 & CR4_PKE == 0 || self.arch.pkru >> (u32::from(entry.key) * 2) & 3 == 0,
            _ => self.arch.cr4 & CR4_PKS == 0,
        }
    }

    /// Checks that a translation permits an access; the error contains the error-code bits in addition to W, U and I.
    /// (If EPT denies it, another walk detects the EPT violation.)
    pub fn permitted(&self, entry: &Entry, access: Access, privilege: Privilege) -> Result<(), u32> {
        let ept = match access {
            Access::Read | Access::ShadowRead => perm::EPT_NO_READ,
            Access::Write | Access::ShadowWrite => perm::EPT_NO_WRITE,
            Access::Fetch => perm::EPT_NO_FETCH,
        };
        if entry.perms & ept != 0 {
            return Err(code::PRESENT);
        }
        let page = PageRights {
            writable: entry.perms & perm::WRITE != 0,
            user: entry.perms & perm::USER != 0,
            executable: entry.perms & perm::NO_EXECUTE == 0,
            shadow: entry.shadow,
            key: entry.key,
        };
        self.rules(privilege).denial(page, access.code(privilege)).map_or(Ok(()), Err)
    }

    /// Returns the physical address of a paging-structure entry: through EPT in non-root mode.
    fn entry_place(&mut self, address: u64, linear: u64, purpose: Purpose, references: &mut u32) -> Exec<u64> {
        if self.arch.vmx.ept {
            let placed = self.place(address, linear, purpose, None, references)?;
            return Ok(placed.address);
        }
        Ok(address)
    }

    /// Reads an entry. Outside of RAM it is all ones: a clear present bit would hide the error.
    fn read_table(&self, place: Option<u64>, wide: bool) -> u64 {
        let value = place.and_then(|at| match wide {
            true => self.wiring.ram.read::<u64>(at),
            false => self.wiring.ram.read::<u32>(at).map(u64::from),
        });
        value.unwrap_or(if wide { u64::MAX } else { u64::from(u32::MAX) })
    }

    /// Notes an entry that a walk reads: one that maps 2^`shift` bytes, and is used to translate `address`.
    #[inline]
    pub(crate) fn note_reading(&mut self, place: u64, address: u64, shift: u8, ept: bool) {
        if self.has_lines() {
            self.engine.readings.push(Reading { line: place >> LINE_SHIFT, address, shift, ept });
        }
    }

    /// Reads an entry for a load of the PDPTE registers.
    pub(crate) fn read_pdpte(&mut self, address: u64) -> Exec<u64> {
        let place = self.entry_place(address, 0, Purpose::Pdpte, &mut 0)?;
        Ok(self.read_table(self.backing(place), true))
    }

    /// Writes an entry to set flags.
    fn write_table(&mut self, address: u64, linear: u64, wide: bool, value: u64) -> Exec {
        let place = self.entry_place(address, linear, Purpose::TableFlags, &mut 0)?;
        let Some(at) = self.backing(place) else { return Ok(()) };
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.note_entry(place);
        }
        self.code_written(at, if wide { 8 } else { 4 });
        if wide {
            self.wiring.ram.write(at, value);
        } else {
            self.wiring.ram.write(at, value as u32);
        }
        Ok(())
    }

    /// Translates the result of a guest-physical translation through EPT.
    fn under_ept(&mut self, mut entry: Entry, linear: u64, access: Access, references: &mut u32) -> Exec<Entry> {
        let address = entry.physical | (linear & ((1u64 << entry.shift) - 1));
        let Placed { address, shift, rights, dirty } =
            self.place(address, linear, Purpose::Data(access), Some(entry.perms), references)?;
        entry.shift = entry.shift.min(shift);
        let page = !((1u64 << entry.shift) - 1);
        entry.linear = linear & page;
        entry.physical = address & page;
        entry.perms |= (!rights as u8 & 7) * perm::EPT_NO_READ;
        if !dirty {
            entry.perms &= !perm::DIRTY;
        }
        Ok(self.keep_from_apic_page(entry, linear))
    }

    /// Ensures that each access to the APIC-access page causes a walk: its cached translation permits none, and no
    /// large page contains it.
    fn keep_from_apic_page(&self, mut entry: Entry, linear: u64) -> Entry {
        if !self.has_apic_access_page(entry.physical, entry.shift) {
            return entry;
        }
        let address = entry.physical | linear & ((1 << entry.shift) - 1);
        entry.linear = linear & !OFFSET;
        entry.physical = address & !OFFSET;
        entry.shift = SHIFT as u8;
        if self.is_apic_access_page(address) {
            entry.perms |= perm::EPT_NO_READ | perm::EPT_NO_WRITE | perm::EPT_NO_FETCH;
        }
        entry
    }

    /// Walks the paging structures for `linear`, checks the access, and sets accessed and dirty flags.
    ///
    /// With paging disabled the translation is the identity, in 4 KiB pages.
    pub fn walk(&mut self, linear: u64, access: Access, privilege: Privilege) -> Exec<Walked> {
        self.engine.readings.clear();
        if self.arch.cr0 & CR0_PG == 0 {
            let perms = perm::WRITE | perm::USER | perm::DIRTY;
            if self.arch.vmx.ept {
                let linear = linear & 0xffff_ffff;
                let giga = linear & !((1 << SHIFT_1G) - 1);
                let entry = Entry::new(giga, giga, SHIFT_1G as u8, perms, 0, self.pcid());
                let mut references = 0;
                let entry = self.under_ept(entry, linear, access, &mut references)?;
                return Ok(Walked { entry, references });
            }
            let page = linear & 0xffff_ffff & !OFFSET;
            let entry = Entry::new(linear & !OFFSET, page, SHIFT as u8, perms, 0, self.pcid());
            return Ok(Walked { entry: self.keep_from_apic_page(entry, linear), references: 0 });
        }
        let registers = PagingRegisters {
            cr3: self.arch.cr3,
            cr4: self.arch.cr4,
            efer: self.arch.msr.efer,
            pdpte: &self.arch.pdpte,
            physical_bits: u32::from(self.wiring.model.physical_bits),
        };
        match registers.tables(linear) {
            Some(Tables::Bits64(layout, root)) => self.walk_in(&layout, root, linear, access, privilege),
            Some(Tables::Bits32(layout, root)) => self.walk_in(&layout, root, linear, access, privilege),
            None => Err(self.walk_fault(linear, access, privilege, 0)),
        }
    }

    /// Raises the #PF of a walk, with the error-code bits in addition to W, U and I.
    #[cold]
    fn walk_fault(&mut self, linear: u64, access: Access, privilege: Privilege, bits: u32) -> Fault {
        self.micro.tlb.forget_tables(linear, self.pcid());
        let code = self.rules(privilege).error_code(access.code(privilege), bits);
        self.page_fault(linear, code)
    }

    /// Performs [`Self::walk`] with one layout.
    fn walk_in<L: Layout>(
        &mut self,
        layout: &L,
        root: Root,
        linear: u64,
        access: Access,
        privilege: Privilege,
    ) -> Exec<Walked> {
        let mut path = Path::default();
        let mut tables = OwnTables { cpu: self, linear, shift: root.shift as u8, references: 0 };
        let outcome = paging::walk(layout, root, linear, &mut tables, &mut path);
        let mut references = tables.references;
        let leaf = match outcome {
            Ok(leaf) => leaf,
            Err(Stop::Absent) => return Err(self.walk_fault(linear, access, privilege, 0)),
            Err(Stop::Reserved) => {
                return Err(self.walk_fault(linear, access, privilege, code::PRESENT | code::RESERVED));
            }
            Err(Stop::Unreachable(fault)) => return Err(fault),
        };
        // Both permissions are at the same positions as in the entries.
        const { assert!(RW >> 1 == perm::WRITE as u64 && US >> 1 == perm::USER as u64) };
        let mut perms = (path.common() >> 1) as u8 & (perm::WRITE | perm::USER);
        if L::FORBIDS & !path.common() != 0 {
            perms |= perm::NO_EXECUTE;
        }
        if leaf.entry & G != 0 && self.arch.cr4 & CR4_PGE != 0 {
            perms |= perm::GLOBAL;
        }
        let write = access.writes();
        if write || leaf.entry & D != 0 {
            perms |= perm::DIRTY;
        }
        // Outside long mode these bits are reserved, or the entry does not have them.
        let key = (leaf.entry >> KEY_SHIFT & KEY_MASK) as u8;
        let page = linear & !((1 << leaf.shift) - 1);
        let physical = layout.page(leaf.entry, leaf.shift);
        let mut entry = Entry::new(page, physical, leaf.shift as u8, perms, key, self.pcid());
        entry.shadow = leaf.entry & (RW | D) == D && path.above() & RW != 0;
        if let Err(bits) = self.permitted(&entry, access, privilege) {
            return Err(self.walk_fault(linear, access, privilege, bits));
        }
        let noted = self.engine.readings.len();
        path.mark::<L, _>(&mut OwnTables { cpu: self, linear, shift: 0, references: 0 }, write)?;
        // The walker knows the addresses of the entries whose flags it sets.
        self.engine.readings.truncate(noted);
        let entry = match self.arch.vmx.ept {
            true => self.under_ept(entry, linear, access, &mut references)?,
            false => self.keep_from_apic_page(entry, linear),
        };
        Ok(Walked { entry, references })
    }

    /// Translates a linear to a guest-physical address for inspection: regardless of permissions, and without an effect
    /// on the TLB, the tables or the ledger. Returns `None` if it is not mapped.
    ///
    /// The registers are those that the guest of a hypervisor sees, if these are set ([`NonRoot::visible`]).
    ///
    /// [`NonRoot::visible`]: crate::vmx::NonRoot::visible
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        self.look_up_in(&self.visible(), linear)
    }

    /// Translates as [`Self::look_up`] does, with these registers.
    pub fn look_up_in(&self, view: &GuestView, linear: u64) -> Option<u64> {
        self.look_up_tables(view, linear, self.arch.vmx.ept.then(|| self.ept_table()))
    }

    /// Translates a linear address of a nested guest to its guest-physical address. Returns `None` if it is not mapped,
    /// or if no nested guest runs whose hypervisor defines its memory by EPT.
    pub fn look_up_in_nested_guest(&self, linear: u64) -> Option<u64> {
        self.look_up_tables(&self.visible(), linear, Some(self.nested_ept()?))
    }

    /// Translates a linear address to an address in the board's memory, with another value of CR3 (which PAE paging
    /// outside long mode does not read). The addresses of a guest of the board's own hypervisor are the board's: memory
    /// that the hypervisor has not mapped for it yet is found too. The EPT of a hypervisor that runs on the machine
    /// applies.
    pub fn look_up_on_board(&self, cr3: u64, linear: u64) -> Option<u64> {
        let view = GuestView { cr3, ..self.visible() };
        self.look_up_tables(&view, linear, self.nested_ept()).and_then(|address| self.on_board(address))
    }

    /// Translates a physical address of the running code to an address in the board's memory, as
    /// [`Self::look_up_on_board`] does.
    pub fn on_board(&self, physical: u64) -> Option<u64> {
        match self.nested_ept() {
            Some(table) => self.look_up_physical(table, physical),
            None => Some(physical),
        }
    }

    /// Returns the topmost table of the EPT of the hypervisor on the machine, while a guest runs whose memory that
    /// hypervisor defines by EPT. (The board's hypervisor derives its own tables from it, but has only the pages that
    /// the guest has accessed.)
    fn nested_ept(&self) -> Option<u64> {
        let NonRoot { ept, operation, inner, .. } = &*self.arch.vmx;
        match inner {
            Some(inner) => inner.ept.then_some(inner.name),
            None => (*ept && operation.is_on()).then(|| self.ept_table()),
        }
    }

    /// Translates as [`Self::look_up_on_board`] does, with the registers of the hypervisor on the machine to which the
    /// next VM exit leads. Also returns `None` if the processor runs no guest of one.
    pub fn look_up_in_host(&self, cr3: u64, linear: u64) -> Option<u64> {
        self.look_up_tables(&GuestView { cr3, ..self.host_registers()? }, linear, None)
    }

    /// Returns the registers that control the translation of linear addresses, as seen by the guest of a hypervisor if
    /// there is one.
    pub fn visible(&self) -> GuestView {
        self.arch.vmx.visible.unwrap_or_else(|| GuestView::of(self))
    }

    /// Translates as [`Self::look_up_on_board`] does, with the processor's own CR3. Calls `seen` for each entry on the
    /// path: the number of address bits that it leaves open, its address, and its value.
    pub fn look_up_path(&self, linear: u64, seen: &mut dyn FnMut(u8, u64, u64)) -> Option<u64> {
        self.look_up_seeing(&self.visible(), linear, self.nested_ept(), seen)
    }

    /// Translates as [`Self::look_up_in`] does, through the EPT with this topmost table if there is one.
    fn look_up_tables(&self, view: &GuestView, linear: u64, ept: Option<u64>) -> Option<u64> {
        self.look_up_seeing(view, linear, ept, |_, _, _| {})
    }

    fn look_up_seeing(
        &self,
        view: &GuestView,
        linear: u64,
        ept: Option<u64>,
        seen: impl FnMut(u8, u64, u64),
    ) -> Option<u64> {
        if view.cr0 & CR0_PG == 0 {
            return Some(linear & 0xffff_ffff);
        }
        let registers = PagingRegisters {
            cr3: view.cr3,
            cr4: view.cr4,
            efer: view.efer,
            pdpte: &view.pdpte,
            physical_bits: u32::from(self.wiring.model.physical_bits),
        };
        // Number of address bits that an entry of the topmost table leaves open.
        let shift = match (view.efer & EFER_LMA != 0, view.cr4 & CR4_PAE != 0) {
            (true, _) if view.cr4 & CR4_LA57 != 0 => 48,
            (true, _) => 39,
            (false, true) => 21,
            (false, false) => 22,
        };
        match (registers.tables(linear)?, ept) {
            (Tables::Bits64(layout, root), None) => {
                look_up_by(&layout, root, linear, &mut Noting { tables: BoardTables(self), shift, seen })
            }
            (Tables::Bits32(layout, root), None) => {
                look_up_by(&layout, root, linear, &mut Noting { tables: BoardTables(self), shift, seen })
            }
            (Tables::Bits64(layout, root), Some(ept)) => {
                look_up_by(&layout, root, linear, &mut Noting { tables: NestedTables { cpu: self, ept }, shift, seen })
            }
            (Tables::Bits32(layout, root), Some(ept)) => {
                look_up_by(&layout, root, linear, &mut Noting { tables: NestedTables { cpu: self, ept }, shift, seen })
            }
        }
    }
}

/// Paging structures that report each entry that is read.
struct Noting<T, F> {
    tables: T,
    /// Number of address bits that the next entry leaves open.
    shift: u8,
    seen: F,
}

impl<T: ReadEntry, F: FnMut(u8, u64, u64)> ReadEntry for Noting<T, F> {
    type Stop = T::Stop;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, T::Stop> {
        let value = self.tables.read(address, wide)?;
        (self.seen)(self.shift, address, value);
        self.shift = self.shift.saturating_sub(if wide { 9 } else { 10 });
        Ok(value)
    }
}

/// Performs [`Cpu::look_up`] with one layout.
#[inline(always)]
fn look_up_by<L: Layout>(layout: &L, root: Root, linear: u64, tables: &mut impl ReadEntry) -> Option<u64> {
    let leaf = paging::walk(layout, root, linear, tables, &mut ()).ok()?;
    Some(layout.page(leaf.entry, leaf.shift) | linear & ((1 << leaf.shift) - 1))
}

/// Paging structures as accessed by the processor, which sets flags.
struct OwnTables<'a> {
    cpu: &'a mut Cpu,
    linear: u64,
    /// Log2 of the number of bytes that the next entry maps.
    shift: u8,
    references: u32,
}

impl ReadEntry for OwnTables<'_> {
    type Stop = Fault;

    #[inline(always)]
    fn read(&mut self, address: u64, wide: bool) -> Exec<u64> {
        let place = self.cpu.entry_place(address, self.linear, Purpose::Table, &mut self.references)?;
        self.references += 1;
        self.cpu.note_reading(place, self.linear, self.shift, false);
        self.shift = self.shift.saturating_sub(if wide { 9 } else { 10 });
        Ok(self.cpu.read_table(self.cpu.backing(place), wide))
    }
}

impl UpdateEntry for OwnTables<'_> {
    fn update(&mut self, address: u64, wide: bool, value: u64) -> Exec {
        self.cpu.write_table(address, self.linear, wide, value)
    }
}

/// Paging structures as inspected from outside, with addresses in the board's memory.
struct BoardTables<'a>(&'a Cpu);

impl ReadEntry for BoardTables<'_> {
    type Stop = Infallible;

    #[inline(always)]
    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Infallible> {
        Ok(self.0.read_table(Some(address), wide))
    }
}

/// Paging structures as inspected from outside, with addresses that the EPT with this topmost table translates.
struct NestedTables<'a> {
    cpu: &'a Cpu,
    ept: u64,
}

/// Error: EPT does not map an entry.
struct Unmapped;

impl ReadEntry for NestedTables<'_> {
    type Stop = Unmapped;

    fn read(&mut self, address: u64, wide: bool) -> Result<u64, Unmapped> {
        let place = self.cpu.look_up_physical(self.ept, address).ok_or(Unmapped)?;
        Ok(self.cpu.read_table(Some(place), wide))
    }
}
