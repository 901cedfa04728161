//! Extended page tables: translation of guest-physical to host-physical addresses (SDM vol. 3, 28.3).

use crate::access::Access;
use crate::fault::{Exec, Fault};
use crate::paging::{self, Layout, LayoutEpt, Path, ReadEntry, Root, Stop, UpdateEntry};
use crate::state::Cpu;
use crate::tlb::perm;
use std::convert::Infallible;
use x86::ept::*;
use x86::page::{OFFSET, PAGE, SHIFT_PML4};
use x86::vmx::capability::ept_vpid as capability;
use x86::vmx::function::{EPTP_LIST_ENTRIES, EPTP_SWITCHING};
use x86::vmx::qualification::ept as qualification;
use x86::vmx::virtualization_exception as area;
use x86::vmx::{reason, secondary};
use x86::{reg, vector};

/// Purpose of a guest-physical access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An access to a linear address that the guest's tables map to this address.
    Data(Access),
    /// A read of a paging-structure entry of the guest.
    Table,
    /// An update of flags in such an entry.
    TableFlags,
    /// A load of the PDPTE registers.
    Pdpte,
}

/// Result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Host-physical address.
    pub address: u64,
    /// Log2 of the size of the page.
    pub shift: u8,
    /// Permitted reads, writes and fetches, in bits 2:0 as in an EPT entry.
    pub rights: u64,
    /// True if a write need not set the dirty flag.
    pub dirty: bool,
}

/// EPT paging structures as accessed by the processor, which sets flags.
struct EptTables<'a> {
    cpu: &'a mut Cpu,
    references: &'a mut u32,
    /// Guest-physical address that is translated.
    address: u64,
    /// Log2 of the number of bytes that the next entry maps.
    shift: u8,
    /// Last entry that was read.
    last: u64,
}

impl ReadEntry for EptTables<'_> {
    type Stop = Infallible;

    #[inline(always)]
    fn read(&mut self, address: u64, _: bool) -> Result<u64, Infallible> {
        *self.references += 1;
        self.cpu.note_reading(address, self.address, self.shift, true);
        self.shift = self.shift.saturating_sub(9);
        self.last = self.cpu.structure::<u64>(address).unwrap_or(u64::MAX);
        Ok(self.last)
    }
}

impl UpdateEntry for EptTables<'_> {
    fn update(&mut self, address: u64, _: bool, value: u64) -> Result<(), Infallible> {
        if let Some(emulating) = &mut self.cpu.engine.emulation {
            emulating.note_entry(address);
        }
        self.cpu.set_table(address, value);
        Ok(())
    }
}

/// EPT paging structures as inspected from outside.
struct SeenTables<'a>(&'a Cpu);

/// Error: an entry is not in RAM.
struct NoRam;

impl ReadEntry for SeenTables<'_> {
    type Stop = NoRam;

    fn read(&mut self, address: u64, _: bool) -> Result<u64, NoRam> {
        self.0.wiring.ram.read::<u64>(address).ok_or(NoRam)
    }
}

/// Returns the root of an EPT with this topmost table.
fn root_of(table: u64) -> Root {
    Root { table, shift: SHIFT_PML4 }
}

impl Cpu {
    /// Returns true if the EPT pointer enables accessed and dirty flags.
    fn ept_flags(&self) -> bool {
        self.arch.vmx.controls.eptp & EPTP_ACCESSED_DIRTY != 0
    }

    /// Returns true if an EPT pointer is valid (SDM vol. 3, 26.2.1.1).
    pub(super) fn valid_ept_pointer(&self, eptp: u64) -> bool {
        let offered = self.vmx_capabilities();
        let kind = match eptp & EPTP_TYPE {
            UNCACHEABLE => capability::UNCACHEABLE,
            WRITE_BACK => capability::WRITE_BACK,
            _ => return false,
        };
        let flags = eptp & EPTP_ACCESSED_DIRTY == 0 || offered.has_ept_vpid(capability::ACCESSED_DIRTY);
        offered.has_ept_vpid(kind)
            && flags
            && eptp & EPTP_LENGTH == EPTP_FOUR_LEVELS
            && eptp & (EPTP_RESERVED | self.beyond_physical()) == 0
    }

    /// Translates a guest-physical address through EPT, and sets accessed and dirty flags. `linear` is the address that
    /// the guest's code accesses, `page` gives its permissions if they are known; the number of entries read is added
    /// to `references`.
    pub(crate) fn place(
        &mut self,
        address: u64,
        linear: u64,
        purpose: Purpose,
        page: Option<u8>,
        references: &mut u32,
    ) -> Exec<Placed> {
        let flags = self.ept_flags();
        let wanted = match purpose {
            Purpose::Data(Access::Read | Access::ShadowRead) | Purpose::Pdpte => READ,
            Purpose::Data(Access::Write | Access::ShadowWrite) => WRITE,
            Purpose::Data(Access::Fetch) => EXECUTE,
            // With accessed and dirty flags, every access to the guest's tables is treated as a write.
            Purpose::Table if !flags => READ,
            Purpose::Table | Purpose::TableFlags => READ | WRITE,
        };
        let mut violation = Violation { address, linear, purpose, page, wanted, rights: 0, suppressed: true };
        if address >> ADDRESS_BITS != 0 {
            return Err(self.ept_violation(violation));
        }
        let by_mode = self.arch.vmx.controls.secondary(secondary::MODE_BASED_EXECUTE);
        let layout = LayoutEpt::new(self.beyond_physical()).mode_based(by_mode);
        let root = root_of(self.ept_table());
        let mut path = Path::default();
        let mut tables = EptTables { cpu: self, references, address, shift: root.shift as u8, last: 0 };
        let leaf = match paging::walk(&layout, root, address, &mut tables, &mut path) {
            Ok(leaf) => leaf,
            Err(Stop::Absent) => {
                violation.suppressed = tables.last & SUPPRESS_VE != 0;
                return Err(self.ept_violation(violation));
            }
            Err(Stop::Reserved) => return Err(self.ept_misconfiguration(address)),
            Err(Stop::Unreachable(never)) => match never {},
        };
        let all = path.common();
        let mut rights = all & RIGHTS;
        if by_mode && page.is_some_and(|perms| perms & perm::USER != 0) {
            rights = rights & !EXECUTE | if all & USER_EXECUTE != 0 { EXECUTE } else { 0 };
        }
        if rights & wanted != wanted {
            violation.rights = all & if by_mode { RIGHTS | USER_EXECUTE } else { RIGHTS };
            violation.suppressed = leaf.entry & SUPPRESS_VE != 0;
            return Err(self.ept_violation(violation));
        }
        let write = wanted & WRITE != 0;
        if flags {
            if write && leaf.entry & DIRTY == 0 {
                self.log_modification(address)?;
            }
            let Ok(()) =
                path.mark::<LayoutEpt, _>(&mut EptTables { cpu: self, references, address, shift: 0, last: 0 }, write);
        }
        let offset = address & ((1 << leaf.shift) - 1);
        let frame = layout.page(leaf.entry, leaf.shift);
        let dirty = !flags || write || leaf.entry & DIRTY != 0;
        Ok(Placed { address: frame | offset, shift: leaf.shift as u8, rights, dirty })
    }

    /// Returns the address of the topmost table of the EPT pointer.
    pub(crate) fn ept_table(&self) -> u64 {
        self.arch.vmx.controls.eptp & ADDRESS
    }

    /// Translates by the EPT with this topmost table for an inspection from outside: regardless of permissions, and
    /// without side effects. Returns `None` if not mapped.
    pub(crate) fn look_up_physical(&self, table: u64, address: u64) -> Option<u64> {
        if address >> ADDRESS_BITS != 0 {
            return None;
        }
        let layout = LayoutEpt::new(self.beyond_physical());
        let leaf = paging::walk(&layout, root_of(table), address, &mut SeenTables(self), &mut ()).ok()?;
        Some(layout.page(leaf.entry, leaf.shift) | address & ((1 << leaf.shift) - 1))
    }

    /// Logs a page that is about to be marked dirty (page-modification logging, SDM vol. 3, 28.3.6).
    fn log_modification(&mut self, address: u64) -> Exec {
        let controls = &self.arch.vmx.controls;
        if !controls.secondary(secondary::PML) {
            return Ok(());
        }
        let index = controls.pml_index;
        if u64::from(index) >= PAGE / 8 {
            return Err(self.exit_fault(reason::PML_FULL, 0));
        }
        let at = controls.pml_address + 8 * u64::from(index);
        self.set_structure(at, address & !OFFSET);
        self.arch.vmx.controls.pml_index = index.wrapping_sub(1);
        Ok(())
    }

    #[cold]
    fn ept_violation(&mut self, v: Violation) -> Fault {
        use qualification::*;
        let place = match v.purpose {
            Purpose::Data(_) => LINEAR_VALID | FINAL,
            Purpose::Table | Purpose::TableFlags => LINEAR_VALID,
            Purpose::Pdpte => 0,
        };
        let by_mode = if v.rights & x86::ept::USER_EXECUTE != 0 { USER_EXECUTE } else { 0 };
        let mut qualification = v.wanted | (v.rights & RIGHTS) << RIGHTS_SHIFT | by_mode | place;
        let advanced = self.vmx_capabilities().has_ept_vpid(capability::ADVANCED_INFORMATION);
        if let Some(perms) = v.page.filter(|_| advanced && place & FINAL != 0) {
            let bits = [(perm::USER, USER), (perm::WRITE, WRITABLE), (perm::NO_EXECUTE, NO_EXECUTE)];
            qualification |= bits.iter().filter(|(bit, _)| perms & bit != 0).fold(0, |all, (_, bit)| all | bit);
        }
        let linear = if place & LINEAR_VALID != 0 { v.linear } else { 0 };
        if !v.suppressed && self.raises_virtualization_exception() {
            return self.virtualization_exception(qualification, linear, v.address);
        }
        let fault = self.exit_fault(reason::EPT_VIOLATION, qualification);
        self.arch.vm_exit.guest_physical = v.address;
        self.arch.vm_exit.guest_linear = linear;
        fault
    }

    /// Returns true if an EPT violation may be a virtualization exception (25.5.7.1).
    fn raises_virtualization_exception(&self) -> bool {
        let controls = &self.arch.vmx.controls;
        let busy = controls.ve_address + area::BUSY;
        controls.secondary(secondary::EPT_VIOLATION_VE)
            && self.protected()
            && !self.engine.delivering
            && self.structure::<u32>(busy) == Some(0)
    }

    /// Raises #VE, with its information area (25.5.7.2).
    fn virtualization_exception(&mut self, qualification: u64, linear: u64, physical: u64) -> Fault {
        let at = self.arch.vmx.controls.ve_address;
        self.set_structure(at + area::REASON, reason::EPT_VIOLATION);
        self.set_structure(at + area::BUSY, u32::MAX);
        self.set_structure(at + area::QUALIFICATION, qualification);
        self.set_structure(at + area::LINEAR, linear);
        self.set_structure(at + area::PHYSICAL, physical);
        self.set_structure(at + area::EPTP_INDEX, self.arch.vmx.controls.eptp_index);
        self.raise(vector::VE)
    }

    #[cold]
    fn ept_misconfiguration(&mut self, address: u64) -> Fault {
        let fault = self.exit_fault(reason::EPT_MISCONFIGURATION, 0);
        self.arch.vm_exit.guest_physical = address;
        fault
    }

    /// Executes VMFUNC of the function in EAX (25.5.6). Returns false if it exits.
    pub(super) fn vm_function(&mut self) -> bool {
        let (function, argument) = (self.get::<u32>(reg::RAX), self.get::<u32>(reg::RCX));
        let controls = &self.arch.vmx.controls;
        let enabled = function < 64 && controls.vm_functions >> function & 1 != 0;
        if !enabled || function != EPTP_SWITCHING || u64::from(argument) >= EPTP_LIST_ENTRIES {
            return false;
        }
        let at = controls.eptp_list + 8 * u64::from(argument);
        let Some(eptp) = self.structure::<u64>(at).filter(|eptp| self.valid_ept_pointer(*eptp)) else {
            return false;
        };
        let controls = &mut self.arch.vmx.controls;
        controls.eptp = eptp;
        controls.eptp_index = argument as u16;
        let vpid = controls.tag();
        if self.engine.emulation.is_some() {
            // The emulating hypervisor finds the pointer in the controls.
            self.mapping_changed();
            return true;
        }
        // The fast paths have been flushed, so a reassignment of indices does not matter.
        let _ = self.micro.tlb.enter(vpid, Some(eptp));
        self.mapping_changed();
        self.origin_changed();
        true
    }
}

/// An access that EPT denies.
struct Violation {
    address: u64,
    linear: u64,
    purpose: Purpose,
    /// Permissions of the page in the guest's tables, in the format of [`perm`].
    page: Option<u8>,
    /// Requested access, as in [`RIGHTS`].
    wanted: u64,
    /// Granted permissions.
    rights: u64,
    /// True if the entry requests an exit instead of an exception.
    suppressed: bool,
}
