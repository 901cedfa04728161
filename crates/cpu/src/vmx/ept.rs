//! Extended page tables: from guest-physical to host-physical addresses (SDM vol. 3, 28.3).

use crate::fault::{Exec, Fault};
use crate::paging::{self, Layout, LayoutEpt, Path, ReadEntry, Root, Stop, UpdateEntry};
use crate::state::Cpu;
use crate::walk::Access;
use std::convert::Infallible;
use x86::ept::*;
use x86::page::SHIFT_PML4;
use x86::vmx::qualification::ept as qualification;
use x86::vmx::reason;

/// What a guest-physical address is translated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An access to a linear address that the guest's tables map there.
    Data(Access),
    /// A read of an entry of the guest's tables.
    Table,
    /// Setting flags in such an entry.
    TableFlags,
    /// Loading the PDPTE registers.
    Pdpte,
}

/// Where a guest-physical address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Host-physical address.
    pub address: u64,
    /// Log2 of the size of the page.
    pub shift: u8,
    /// Reads, writes and fetches that are allowed, as bits 2:0 of an EPT entry have them.
    pub rights: u64,
    /// The dirty flag need not be set any more on a write.
    pub dirty: bool,
}

/// Whether an EPT pointer is valid (SDM vol. 3, 26.2.1.1).
pub(super) fn valid_pointer(eptp: u64, physical_bits: u8) -> bool {
    matches!(eptp & EPTP_TYPE, UNCACHEABLE | WRITE_BACK)
        && eptp & EPTP_LENGTH == EPTP_FOUR_LEVELS
        && eptp & EPTP_RESERVED == 0
        && eptp >> u32::from(physical_bits).min(52) == 0
}

/// The tables of EPT, as the processor walks them and sets flags in them.
struct EptTables<'a> {
    cpu: &'a mut Cpu,
    references: &'a mut u32,
}

impl ReadEntry for EptTables<'_> {
    type Stop = Infallible;

    #[inline(always)]
    fn read(&mut self, address: u64, _: bool) -> Result<u64, Infallible> {
        *self.references += 1;
        Ok(self.cpu.wiring.ram.read::<u64>(address).unwrap_or(u64::MAX))
    }
}

impl UpdateEntry for EptTables<'_> {
    fn update(&mut self, address: u64, _: bool, value: u64) -> Result<(), Infallible> {
        self.cpu.code_written(address, 8);
        self.cpu.wiring.ram.write(address, value);
        Ok(())
    }
}

/// The tables of EPT, as a look from outside sees them.
struct SeenTables<'a>(&'a Cpu);

/// An entry lies where there is no RAM.
struct NoRam;

impl ReadEntry for SeenTables<'_> {
    type Stop = NoRam;

    fn read(&mut self, address: u64, _: bool) -> Result<u64, NoRam> {
        self.0.wiring.ram.read::<u64>(address).ok_or(NoRam)
    }
}

impl Cpu {
    /// Whether the EPT pointer enables accessed and dirty flags.
    fn ept_flags(&self) -> bool {
        self.arch.vmx.controls.eptp & EPTP_ACCESSED_DIRTY != 0
    }

    /// Translates a guest-physical address through EPT, and sets accessed and dirty flags. `linear` is the address that the
    /// guest's code wants; entries read are added to `references`.
    pub(crate) fn place(&mut self, address: u64, linear: u64, purpose: Purpose, references: &mut u32) -> Exec<Placed> {
        let flags = self.ept_flags();
        let wanted = match purpose {
            Purpose::Data(Access::Read) | Purpose::Pdpte => READ,
            Purpose::Data(Access::Write) => WRITE,
            Purpose::Data(Access::Fetch) => EXECUTE,
            // With accessed and dirty flags, every access to the guest's tables counts as a write.
            Purpose::Table if !flags => READ,
            Purpose::Table | Purpose::TableFlags => READ | WRITE,
        };
        if address >> ADDRESS_BITS != 0 {
            return Err(self.ept_violation(address, linear, purpose, wanted, 0));
        }
        let layout = LayoutEpt::new(self.beyond_physical());
        let root = self.ept_root();
        let mut path = Path::default();
        let mut tables = EptTables { cpu: self, references };
        let leaf = match paging::walk(&layout, root, address, &mut tables, &mut path) {
            Ok(leaf) => leaf,
            Err(Stop::Absent) => return Err(self.ept_violation(address, linear, purpose, wanted, 0)),
            Err(Stop::Reserved) => return Err(self.ept_misconfiguration(address)),
            Err(Stop::Unreachable(never)) => match never {},
        };
        let rights = path.common() & RIGHTS;
        if rights & wanted != wanted {
            return Err(self.ept_violation(address, linear, purpose, wanted, rights));
        }
        let write = wanted & WRITE != 0;
        if flags {
            let Ok(()) = path.mark::<LayoutEpt, _>(&mut EptTables { cpu: self, references }, write);
        }
        let offset = address & ((1 << leaf.shift) - 1);
        let page = layout.page(leaf.entry, leaf.shift);
        let dirty = !flags || write || leaf.entry & DIRTY != 0;
        Ok(Placed { address: page | offset, shift: leaf.shift as u8, rights, dirty })
    }

    /// The topmost table of the EPT pointer.
    fn ept_root(&self) -> Root {
        Root { table: self.arch.vmx.controls.eptp & ADDRESS, shift: SHIFT_PML4 }
    }

    /// Likewise for a look from outside: whatever the rights, and without a trace. `None`: not mapped.
    pub(crate) fn look_up_physical(&self, address: u64) -> Option<u64> {
        if address >> ADDRESS_BITS != 0 {
            return None;
        }
        let layout = LayoutEpt::new(self.beyond_physical());
        let leaf = paging::walk(&layout, self.ept_root(), address, &mut SeenTables(self), &mut ()).ok()?;
        Some(layout.page(leaf.entry, leaf.shift) | address & ((1 << leaf.shift) - 1))
    }

    #[cold]
    fn ept_violation(&mut self, address: u64, linear: u64, purpose: Purpose, wanted: u64, rights: u64) -> Fault {
        use qualification::*;
        let place = match purpose {
            Purpose::Data(_) => LINEAR_VALID | FINAL,
            Purpose::Table | Purpose::TableFlags => LINEAR_VALID,
            Purpose::Pdpte => 0,
        };
        let fault = self.exit_fault(reason::EPT_VIOLATION, wanted | (rights & RIGHTS) << RIGHTS_SHIFT | place);
        self.arch.vm_exit.guest_physical = address;
        self.arch.vm_exit.guest_linear = if place & LINEAR_VALID != 0 { linear } else { 0 };
        fault
    }

    #[cold]
    fn ept_misconfiguration(&mut self, address: u64) -> Fault {
        let fault = self.exit_fault(reason::EPT_MISCONFIGURATION, 0);
        self.arch.vm_exit.guest_physical = address;
        fault
    }
}
