//! Extended page tables: from guest-physical to host-physical addresses (SDM vol. 3, 28.3).

use crate::fault::{Exec, Fault};
use crate::state::Cpu;
use crate::walk::Access;
use x86::ept::*;
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

/// Whether an entry that is present is misconfigured (SDM vol. 3, 28.3.3.1). Execute-only translations are supported.
fn misconfigured(entry: u64, shift: u8, leaf: bool, beyond: u64) -> bool {
    let reserved = match (shift, leaf) {
        (39, _) => 0xf8,
        (_, false) => 0x78,
        _ => ((1u64 << shift) - 1) & ADDRESS,
    };
    let kind = entry >> TYPE_SHIFT & 7;
    entry & (READ | WRITE) == WRITE
        || entry & (reserved | (beyond & ADDRESS)) != 0
        || (leaf && matches!(kind, 2 | 3 | 7))
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
        let beyond = self.beyond_physical();
        let mut rights = RIGHTS;
        let mut path = [(0u64, 0u64); 4];
        let mut depth = 0;
        let mut table = self.arch.vmx.controls.eptp & ADDRESS;
        let mut shift = 39u8;
        let leaf = loop {
            let at = table + 8 * (address >> shift & 0x1ff);
            let entry = self.wiring.ram.read::<u64>(at).unwrap_or(u64::MAX);
            *references += 1;
            rights &= entry;
            if entry & RIGHTS == 0 {
                return Err(self.ept_violation(address, linear, purpose, wanted, rights));
            }
            let leaf = shift == 12 || (entry & LARGE != 0 && shift <= 30);
            if misconfigured(entry, shift, leaf, beyond) {
                return Err(self.ept_misconfiguration(address));
            }
            path[depth] = (at, entry);
            depth += 1;
            if leaf {
                break entry;
            }
            table = entry & ADDRESS;
            shift -= 9;
        };
        if rights & wanted != wanted {
            return Err(self.ept_violation(address, linear, purpose, wanted, rights));
        }
        let write = wanted & WRITE != 0;
        if flags {
            for (i, &(at, entry)) in path[..depth].iter().enumerate() {
                let dirty = if write && i + 1 == depth { DIRTY } else { 0 };
                if entry & (ACCESSED | dirty) != ACCESSED | dirty {
                    self.code_written(at, 8);
                    self.wiring.ram.write(at, entry | ACCESSED | dirty);
                }
            }
        }
        let offset = address & ((1u64 << shift) - 1);
        let page = leaf & ADDRESS & !((1u64 << shift) - 1);
        Ok(Placed { address: page | offset, shift, rights, dirty: !flags || write || leaf & DIRTY != 0 })
    }

    /// Likewise for a look from outside: whatever the rights, and without a trace. `None`: not mapped.
    pub(crate) fn look_up_physical(&self, address: u64) -> Option<u64> {
        let mut table = self.arch.vmx.controls.eptp & ADDRESS;
        let mut shift = 39u8;
        if address >> ADDRESS_BITS != 0 {
            return None;
        }
        loop {
            let entry = self.wiring.ram.read::<u64>(table + 8 * (address >> shift & 0x1ff))?;
            let leaf = shift == 12 || (entry & LARGE != 0 && shift <= 30);
            if entry & RIGHTS == 0 || misconfigured(entry, shift, leaf, self.beyond_physical()) {
                return None;
            }
            if leaf {
                let mask = (1u64 << shift) - 1;
                return Some(entry & ADDRESS & !mask | address & mask);
            }
            table = entry & ADDRESS;
            shift -= 9;
        }
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
