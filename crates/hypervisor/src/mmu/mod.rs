//! The memory management units: translation of guest-linear or guest-physical addresses to host-physical ones, in each
//! of the ways that KVM has used.
//!
//! | mode | tables of the hypervisor | looked up | guest tables |
//! |---|---|---|---|
//! | `shadow-nocache` | one tree, freed at each load of CR3 | never | not watched: the tree is a large TLB |
//! | `shadow` | a page per guest table and role | by frame and role | write-protected, or unsync until the next flush |
//! | `legacy-tdp` | EPT | by frame and role | ignored |
//! | `tdp` | EPT, a tree per root | while the root is used | ignored |
//!
//! [`Mmu`] belongs to the machine and [`VcpuMmu`] to a virtual processor. The caller, which runs the processor, calls
//! [`Mmu::prepare`] before each entry, passes faults to [`Mmu::fault`], and reports the guest's changes to its control
//! registers, its TLB and (by emulated writes) its memory. [`Mmu::tolls`] accumulates the operations that a real host
//! would have executed.

mod check;
mod check_nested;
mod cr3_cache;
mod direct;
mod dirty;
mod error;
mod flushes;
mod guest;
mod guest_ept;
mod guest_walk;
mod mapping;
mod nested;
mod nocache;
mod pages;
mod pool;
mod rmap;
mod role;
mod roots;
mod shadow;
mod shadow_ept;
mod slots;
mod spte;
mod state;
mod tdp;
#[cfg(test)]
mod tests;
mod tolls;
mod unsync;
mod vcpu;
mod writes;

pub use error::{MmuError, RestoreError};
pub use flushes::Flushes;
pub use guest::{Fault, Guest, HostFeatures, NestedFault, PageFault, Resolution, Root};
pub use guest_ept::{EptExit, EptFormat, Nested, NestedInvept, Pml, TransitionTags};
pub use slots::{Slot, SlotConfig, Slots};
pub(crate) use state::COUNTER_END;
pub use state::SavedMmu;
pub use tolls::Tolls;
pub use vcpu::{Adopted, VcpuMmu};

use crate::config::{Cr0Wp, MmuMode, NestedRoots, VmConfig};
use cpu::Ram;
use guest_ept::{Level, Violation};
use pool::{Keeping, PageId, Pool};
use rmap::{Rmaps, Tracks};
use role::Role;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use spte::Format;
use x86::ept;
use x86::vmx::qualification::ept::RIGHTS_SHIFT;

/// Defines a structure of 64-bit counters, and a function that returns all of them.
macro_rules! counters {
    ($(#[$of_all:meta])* $name:ident { $($(#[$of_one:meta])* $counter:ident,)* }) => {
        $(#[$of_all])*
        pub struct $name {
            $($(#[$of_one])* pub $counter: u64,)*
        }

        impl $name {
            /// Returns all counters.
            fn all(self) -> impl Iterator<Item = u64> {
                [$(self.$counter),*].into_iter()
            }
        }
    };
}

counters! {
    /// Event counters.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    Stats {
        /// Faults.
        faults,
        /// Faults that were injected into the guest.
        injected,
        /// Entries created before their first use.
        prefetched,
        /// Entries created to mark MMIO.
        mmio,
        /// Large pages mapped.
        large,
        /// Large pages split.
        split,
        /// Table pages allocated.
        allocated,
        /// Shadow pages dropped because the guest changed the table's use.
        zapped,
        /// Shadow pages dropped because of too many writes.
        flooded,
        /// Shadow pages dropped because of a misaligned write.
        misaligned,
        /// Shadow pages that became unsynchronized.
        unsynced,
        /// Shadow pages that were synchronized again.
        synced,
        /// Number of times that the limit `mmu-pages` caused recycling.
        limit_mmu_pages,
        /// Pages recycled because of that limit.
        recycled,
        /// Roots created or found.
        roots_loaded,
        /// Maximum number of table pages in use.
        peak_pages,
    }
}

/// The MMU of a machine.
pub struct Mmu {
    mode: MmuMode,
    cr0_wp: Cr0Wp,
    huge_pages: bool,
    unsync: bool,
    keep_nested_roots: bool,
    host: HostFeatures,
    format: Format,
    ram: Ram,
    slots: Slots,
    pool: Pool,
    /// Pages by frame: valid pages of [`Keeping::Hashed`].
    hash: FxHashMap<u64, Vec<PageId>>,
    rmaps: Rmaps,
    tracks: Tracks,
    /// Roots of the TDP MMU that may be shared.
    tdp_roots: Vec<PageId>,
    /// Root of guests whose CR3 is invalid.
    empty_root: PageId,
    /// Number of times that all roots became obsolete.
    generation: u64,
    /// Number of flushes that all virtual processors must perform.
    flushes: u64,
    /// The page last written by emulation, and the number of consecutive writes (the method of 2007 to detect that a
    /// page is no longer a table).
    last_write: (u64, u32),
    /// Page directory pointer tables of CR3 caches: number of users, and number of writes.
    pdpts: std::collections::BTreeMap<u64, vcpu::Pdpt>,
    /// Number of virtual processors that switch roots without an exit.
    cr3_caches: u32,
    /// Host-physical ranges of guest memory that were written in the process.
    written: Vec<(u64, u64)>,
    /// Number of pages of a nested guest that were logged in the process.
    logged: u16,
    stats: Stats,
    /// Operations since the last charge to the processor.
    pub tolls: Tolls,
}

impl Mmu {
    /// Minimum number of free pages before a fault is handled.
    const MIN_FREE: u32 = 12;
    /// Number of pages that are freed if there are too few.
    const REFILL: u32 = 25;

    /// Returns the pool size in pages that a machine with this number of guest pages needs.
    pub fn pool_pages(config: &VmConfig, guest_pages: u64, vcpus: u32) -> u32 {
        Self::limit(config, guest_pages).saturating_add(vcpus).saturating_add(1)
    }

    /// Returns the maximum number of table pages. KVM does not limit two-dimensional tables: this is enough for two
    /// roots with small pages, and MMIO; and for shadow EPT the number that KVM permits for shadow pages.
    fn limit(config: &VmConfig, guest_pages: u64) -> u32 {
        let shadow_ept = if config.nested && config.nested_ept { config.mmu_pages_for(guest_pages) } else { 0 };
        let tdp =
            u32::try_from(guest_pages / 512 * 2).unwrap_or(u32::MAX).saturating_add(256).saturating_add(shadow_ept);
        match (config.mmu, config.mmu_pages) {
            (MmuMode::Tdp, None) => tdp,
            _ => config.mmu_pages_for(guest_pages),
        }
    }

    /// Creates an MMU without slots. Its tables are in the `pages` pages of RAM from host-physical address `pool`,
    /// which is below 4 GiB.
    pub fn new(
        config: &VmConfig,
        host: HostFeatures,
        ram: Ram,
        pool: u64,
        pages: u32,
        guest_pages: u64,
    ) -> Result<Self, MmuError> {
        let needed = VmConfig::MIN_MMU_PAGES + 2;
        if pages < needed {
            return Err(MmuError::PoolTooSmall { pages, needed });
        }
        let mut pool = Pool::new(ram.clone(), pool, pages, Self::limit(config, guest_pages));
        let too_small = MmuError::PoolTooSmall { pages, needed };
        let empty_root = pool.allocate(Keeping::Special, 0, Role::default()).ok_or(too_small)?;
        let format = if config.mmu.is_tdp() {
            Format::Ept { flags: host.ept_flags }
        } else {
            Format::Paging { mmio: host.physical_bits < 52 }
        };
        Ok(Self {
            mode: config.mmu,
            cr0_wp: config.cr0_wp,
            huge_pages: config.huge_pages,
            unsync: config.unsync && config.mmu != MmuMode::ShadowNocache,
            keep_nested_roots: config.nested_roots == NestedRoots::Keep,
            host,
            format,
            ram,
            slots: Slots::default(),
            pool,
            hash: FxHashMap::default(),
            rmaps: Rmaps::default(),
            tracks: Tracks::default(),
            tdp_roots: Vec::new(),
            empty_root,
            generation: 0,
            flushes: 0,
            last_write: (u64::MAX, 0),
            pdpts: std::collections::BTreeMap::new(),
            cr3_caches: 0,
            written: Vec::new(),
            logged: 0,
            stats: Stats::default(),
            tolls: Tolls::default(),
        })
    }

    /// Returns the memory slots.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Adds a slot. Addresses that were MMIO become memory.
    pub fn add_slot(&mut self, config: SlotConfig) -> Result<(), MmuError> {
        self.slots.insert(config, &self.ram)?;
        self.zap_all();
        Ok(())
    }

    /// Removes the slot that begins at frame `gfn`, and all of its mappings. Returns false if there is no such slot.
    pub fn remove_slot(&mut self, gfn: u64) -> bool {
        // The tables are dropped first, while their frames still have a slot.
        self.zap_all();
        self.slots.remove(gfn).is_some()
    }

    /// Returns the event counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the number of table pages in use, and their limit.
    pub fn pages_used(&self) -> (u32, u32) {
        (self.pool.used(), self.pool.limit())
    }

    /// Takes the host-physical ranges of guest memory that the MMU has written since the last call (accessed and dirty
    /// flags): decoded code and armed monitors there must be informed.
    pub fn take_written(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.written)
    }

    /// Handles a fault of the guest.
    ///
    /// With SMAP the processor faults on implicit supervisor accesses to user pages even if RFLAGS.AC is set, and does
    /// not distinguish them from explicit ones. A fault that needs no change, twice in a row, must be one of those.
    pub fn fault(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, fault: Fault) -> Resolution {
        self.stats.faults += 1;
        self.tolls.add(ledger::Operation::Fault, 1);
        if vcpu.current().is_some_and(|set| self.is_obsolete(set)) {
            // Another virtual processor has dropped the roots in the meantime (KVM's is_page_fault_stale): the next
            // entry loads new ones.
            return Resolution::Fixed;
        }
        let resolution = match fault {
            Fault::Page { linear, code } => self.shadow_fault(vcpu, guest, linear, code),
            Fault::Violation { gpa, linear, qualification } => match vcpu.level {
                Level::Ept { .. } => self.ept_fault(vcpu, guest, Violation { gpa, linear, qualification }),
                Level::Guest | Level::Nested => {
                    let present = qualification & ept::RIGHTS << RIGHTS_SHIFT != 0;
                    self.direct_fault(vcpu, gpa, qualification & ept::WRITE != 0, present)
                }
            },
            Fault::Misconfiguration { gpa } => match vcpu.level {
                Level::Ept { .. } => self.ept_misconfiguration(vcpu, guest, gpa),
                Level::Guest | Level::Nested => Resolution::Emulate { mmio: true },
            },
        };
        if let Resolution::Inject(_) | Resolution::Reflect(_) = resolution {
            self.stats.injected += 1;
        }
        resolution
    }
}
