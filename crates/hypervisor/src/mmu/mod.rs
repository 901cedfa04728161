//! The memory management units: from guest-linear or guest-physical addresses to host-physical ones, in each of the ways that
//! KVM has had.
//!
//! | mode | tables of the hypervisor | found again | guest tables |
//! |---|---|---|---|
//! | `shadow-nocache` | one tree, freed at each load of CR3 | never | not watched: the tree is a large TLB |
//! | `shadow` | a page per guest table and role | by frame and role | write-protected, or unsync until the next flush |
//! | `legacy-tdp` | EPT | by frame and role | not looked at |
//! | `tdp` | EPT, a tree per root | while the root is used | not looked at |
//!
//! [`Mmu`] belongs to the machine and [`VcpuMmu`] to a virtual processor. Whoever runs the processor calls [`Mmu::prepare`]
//! before each entry, hands faults to [`Mmu::fault`], and tells of what the guest does to its control registers, its TLB and
//! (by emulated writes) its memory. What all that would cost on a real host collects in [`Mmu::tolls`].

mod check;
mod check_nested;
mod cr3_cache;
mod direct;
mod dirty;
mod flushes;
mod guest_walk;
mod mapping;
mod nested;
mod nocache;
mod pages;
mod pool;
mod refusal;
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

pub use cr3_cache::Adopted;
pub use flushes::Flushes;
pub use guest_walk::{NestedFault, PageFault};
pub use nested::{EptExit, EptFormat, Nested, NestedInvept, Pml, TransitionTags};
pub use refusal::RestoreError;
pub use slots::{Slot, SlotConfig, Slots};
pub(crate) use state::COUNTER_END;
pub use state::SavedMmu;
pub use tolls::Tolls;
pub use vcpu::VcpuMmu;

use crate::config::{Cr0Wp, MmuMode, NestedRoots, VmConfig};
use cpu::Ram;
use nested::Level;
use pool::{Keeping, PageId, Pool};
use rmap::{Rmaps, Tracks};
use role::Role;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shadow_ept::Violation;
use spte::Format;
use x86::ept;
use x86::vmx::qualification::ept::RIGHTS_SHIFT;

/// What goes wrong on the side of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MmuError {
    /// A slot that is empty, unaligned or beyond all addresses.
    #[error("memory slot at guest frame {gfn:#x}: empty, unaligned, or beyond the physical address space")]
    SlotRange {
        /// Its first frame.
        gfn: u64,
    },
    /// A slot where there is one already.
    #[error("memory slot at guest frame {gfn:#x} overlaps another")]
    SlotOverlap {
        /// Its first frame.
        gfn: u64,
    },
    /// A slot whose memory is not RAM for guests.
    #[error("memory slot at guest frame {gfn:#x} is not backed by RAM")]
    SlotNotRam {
        /// Its first frame.
        gfn: u64,
    },
    /// Too little memory for the tables.
    #[error("the hypervisor's {pages} table pages are too few: at least {needed} are needed")]
    PoolTooSmall {
        /// Pages there are.
        pages: u32,
        /// Pages that are needed.
        needed: u32,
    },
    /// A limit that even recycling everything could not keep.
    #[error("limit `{0}` reached: use a larger --mmu-pages")]
    Limit(&'static str),
}

/// What the host's processor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFeatures {
    /// Bits of physical addresses, of the guest's too.
    pub physical_bits: u8,
    /// EPT has accessed and dirty flags.
    pub ept_flags: bool,
    /// 1 GiB pages, in page tables or in EPT, whichever is used.
    pub gigabyte_pages: bool,
}

/// The guest's registers that translations depend on, as the guest sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// CR0.
    pub cr0: u64,
    /// CR3, with the PCID if there is one.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// The PDPTEs of PAE paging, loaded with CR3.
    pub pdpte: [u64; 4],
    /// RFLAGS.
    pub rflags: u64,
    /// Current privilege level.
    pub cpl: u8,
    /// PKRU.
    pub pkru: u32,
    /// IA32_PKRS.
    pub pkrs: u32,
    /// It is the guest's own guest (L2) that these registers are of; otherwise the guest itself.
    pub nested: Option<Nested>,
}

/// Why the guest was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A page fault (shadow MMUs).
    Page {
        /// The address (exit qualification).
        linear: u64,
        /// The error code.
        code: u32,
    },
    /// An EPT violation.
    Violation {
        /// The guest-physical address.
        gpa: u64,
        /// The guest-linear address, where the qualification says that it is valid.
        linear: u64,
        /// The exit qualification.
        qualification: u64,
    },
    /// An EPT misconfiguration.
    Misconfiguration {
        /// The guest-physical address.
        gpa: u64,
    },
}

/// What to do after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Run the instruction again.
    Fixed,
    /// The guest gets a page fault.
    Inject(PageFault),
    /// Emulate the instruction.
    Emulate {
        /// It accesses something without memory, or writes to read-only memory; otherwise a table that is watched.
        mmio: bool,
    },
    /// The guest gets a VM exit: its own guest has done what its EPT does not allow.
    Reflect(EptExit),
    /// A limit was reached that recycling could not help; the machine cannot go on.
    Limit(&'static str),
}

/// A root to put into CR3 or the EPT pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Host-physical address, of 32 bytes of PDPTEs or of a table.
    pub hpa: u64,
    /// Levels of the tables; 3 means PAE paging.
    pub levels: u8,
    /// The EPT pointer enables accessed and dirty flags.
    pub flags: bool,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Faults in all.
    pub faults: u64,
    /// Faults that were the guest's own.
    pub injected: u64,
    /// Entries made ahead of their first use.
    pub prefetched: u64,
    /// Entries that mark MMIO made.
    pub mmio: u64,
    /// Large pages mapped as such.
    pub large: u64,
    /// Large pages split.
    pub split: u64,
    /// Table pages made.
    pub allocated: u64,
    /// Shadow pages dropped because of what the guest did to the table.
    pub zapped: u64,
    /// Shadow pages dropped because they were written to too often.
    pub flooded: u64,
    /// Shadow pages dropped because they were written to in a way that no table is.
    pub misaligned: u64,
    /// Shadow pages that went out of synchronization.
    pub unsynced: u64,
    /// Shadow pages that were synchronized again.
    pub synced: u64,
    /// Times that the limit `mmu-pages` made the hypervisor recycle pages.
    pub limit_mmu_pages: u64,
    /// Pages that were recycled then.
    pub recycled: u64,
    /// Roots made or found.
    pub roots_loaded: u64,
    /// Most table pages ever in use.
    pub peak_pages: u64,
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
    /// Pages kept by frame: [`Keeping::Hashed`] ones that are not invalid.
    hash: FxHashMap<u64, Vec<PageId>>,
    rmaps: Rmaps,
    tracks: Tracks,
    /// Roots of the TDP MMU that may be shared.
    tdp_roots: Vec<PageId>,
    /// The root of guests whose CR3 points nowhere.
    empty_root: PageId,
    /// Counts the times that all roots became obsolete.
    generation: u64,
    /// Counts the flushes that all virtual processors must make.
    flushes: u64,
    /// The page last written by emulation and how often in a row (2007's way to see that a page is no table any more).
    last_write: (u64, u32),
    /// Page directory pointer tables behind CR3 caches: users, and how often they were written.
    pdpts: std::collections::BTreeMap<u64, cr3_cache::Pdpt>,
    /// Virtual processors that switch roots by themselves.
    cr3_caches: u32,
    /// Host-physical ranges of guest memory that were written on the way.
    written: Vec<(u64, u64)>,
    /// Pages of the guest's own guest that were logged on the way.
    logged: u16,
    stats: Stats,
    /// What was done since the processor was last charged.
    pub tolls: Tolls,
}

impl Mmu {
    /// Pages below the limit that must be free before a fault is handled.
    const MIN_FREE: u32 = 12;
    /// Pages that are made free when there are too few.
    const REFILL: u32 = 25;

    /// How many pages the pool of a machine with this many guest pages needs.
    pub fn pool_pages(config: &VmConfig, guest_pages: u64, vcpus: u32) -> u32 {
        Self::limit(config, guest_pages).saturating_add(vcpus).saturating_add(1)
    }

    /// The limit of table pages. Two-dimensional tables have none in KVM: enough for two roots with small pages, and MMIO; and for
    /// shadow EPT what KVM lets shadow pages take.
    fn limit(config: &VmConfig, guest_pages: u64) -> u32 {
        let shadow_ept = if config.nested && config.nested_ept { config.mmu_pages_for(guest_pages) } else { 0 };
        let tdp =
            u32::try_from(guest_pages / 512 * 2).unwrap_or(u32::MAX).saturating_add(256).saturating_add(shadow_ept);
        match (config.mmu, config.mmu_pages) {
            (MmuMode::Tdp, None) => tdp,
            _ => config.mmu_pages_for(guest_pages),
        }
    }

    /// An MMU without slots. Its tables are kept in the `pages` pages of RAM from host-physical address `pool`, which is below
    /// 4 GiB.
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

    /// The memory slots.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Adds a slot. What was MMIO there no longer is.
    pub fn add_slot(&mut self, config: SlotConfig) -> Result<(), MmuError> {
        self.slots.insert(config, &self.ram)?;
        self.zap_all();
        Ok(())
    }

    /// Removes the slot that begins at frame `gfn`, and everything that maps it. Whether there was one.
    pub fn remove_slot(&mut self, gfn: u64) -> bool {
        // The tables go first, while their frames still have a slot.
        self.zap_all();
        self.slots.remove(gfn).is_some()
    }

    /// How often things happened.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Table pages in use, and their limit.
    pub fn pages_used(&self) -> (u32, u32) {
        (self.pool.used(), self.pool.limit())
    }

    /// Host-physical ranges of guest memory that the MMU has written since the last call (accessed and dirty flags): code
    /// decoded from there, or a monitor armed there, must be told.
    pub fn take_written(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.written)
    }

    /// Handles a fault of the guest.
    ///
    /// Under SMAP the processor faults on implicit supervisor accesses to user pages although RFLAGS.AC is set, and does not
    /// tell them from explicit ones. One that finds nothing to put right, twice in a row, must be one of those.
    pub fn fault(&mut self, vcpu: &mut VcpuMmu, guest: &Guest, fault: Fault) -> Resolution {
        self.stats.faults += 1;
        self.tolls.add(ledger::Operation::Fault, 1);
        if vcpu.current().is_some_and(|set| self.is_obsolete(set)) {
            // Another virtual processor has dropped the roots meanwhile (KVM's is_page_fault_stale): the next entry has new ones.
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
