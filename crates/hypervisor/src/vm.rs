//! A virtual machine: what its virtual CPUs share.

use crate::config::{ConfigError, MmuMode, VmConfig};
use crate::controls::Shared;
use crate::mmu::{HostFeatures, Mmu, MmuError, SlotConfig, Slots};
use crate::registers::Ownership;
use cpu::Ram;
use cpu::vmx::GuestPhysical;
use ledger::Profile;
use std::rc::Rc;

/// Bit of CPUID.80000001H:EDX: 1 GiB pages.
const GIGABYTE_PAGES: u32 = 1 << 26;

/// Why a virtual machine cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The switches do not fit together.
    #[error(transparent)]
    VmConfig(#[from] ConfigError),
    /// Memory is not what an MMU needs.
    #[error(transparent)]
    Mmu(#[from] MmuError),
    /// There is no place for the hypervisor's tables.
    #[error("there is no hidden memory for the hypervisor's tables")]
    NoPool,
}

/// A virtual machine.
pub struct Hypervisor {
    /// Its switches.
    pub config: VmConfig,
    /// Guest memory and the tables that map it.
    pub mmu: Mmu,
    /// Where guest memory is, for emulation.
    pub(crate) memory: Rc<dyn GuestPhysical>,
    /// Which control-register bits are the guest's.
    pub(crate) ownership: Ownership,
    /// What the execution controls of all virtual CPUs have in common.
    pub(crate) shared: Shared,
    /// Page directories that virtual CPUs have announced to be freed.
    pub(crate) announced: Announcements,
}

impl Hypervisor {
    /// A machine whose memory is all of `ram`, each guest-physical address at the same host-physical one, on the processor of
    /// a profile. The hidden part of `ram` is for the hypervisor's tables, see [`Mmu::pool_pages`].
    pub fn new(config: VmConfig, ram: &Ram, profile: &Profile) -> Result<Self, SetupError> {
        config.validate()?;
        let pool = ram.regions().iter().find(|region| region.hidden).ok_or(SetupError::NoPool)?;
        let features = profile.virtualization.value;
        let extended = profile.cpuid().iter().find(|leaf| leaf.leaf == 0x8000_0001).map_or(0, |leaf| leaf.edx);
        let host = HostFeatures {
            physical_bits: profile.physical_bits.value,
            ept_flags: features.ept_ad,
            gigabyte_pages: if config.mmu.is_tdp() { features.ept_1g } else { extended & GIGABYTE_PAGES != 0 },
        };
        let slots = || ram.regions().iter().filter(|region| !region.hidden);
        let guest_pages = slots().map(|region| region.len >> 12).sum();
        let pages = u32::try_from(pool.len >> 12).unwrap_or(u32::MAX);
        let mut mmu = Mmu::new(&config, host, ram.clone(), pool.start, pages, guest_pages)?;
        for region in slots() {
            mmu.add_slot(SlotConfig {
                gfn: region.start >> 12,
                pages: region.len >> 12,
                hpa: region.start,
                read_only: region.read_only,
                log_dirty: false,
            })?;
        }
        let memory = Rc::new(Memory(mmu.slots().clone()));
        let ownership = Ownership::of(&config);
        let shared = Shared::new(&config, &features);
        Ok(Self { config, mmu, memory, ownership, shared, announced: Announcements::default() })
    }

    /// Adds a slot of memory while the machine runs.
    pub fn add_slot(&mut self, slot: SlotConfig) -> Result<(), MmuError> {
        self.mmu.add_slot(slot)?;
        self.memory = Rc::new(Memory(self.mmu.slots().clone()));
        Ok(())
    }

    /// Removes the slot that begins at a frame. Whether there was one.
    pub fn remove_slot(&mut self, gfn: u64) -> bool {
        let removed = self.mmu.remove_slot(gfn);
        self.memory = Rc::new(Memory(self.mmu.slots().clone()));
        removed
    }

    /// Whether guests get a CR3 cache.
    pub(crate) fn caches_cr3(&self) -> bool {
        self.config.paravirt && self.config.mmu == MmuMode::Shadow && self.shared.cr3_targets != 0
    }
}

/// The slots, as emulation wants them.
#[derive(Debug)]
struct Memory(Slots);

impl GuestPhysical for Memory {
    fn host(&self, guest_physical: u64) -> Option<u64> {
        self.0.translate(guest_physical)
    }
}

/// The latest page directories that guests have announced to be freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Announcements {
    /// How many there have been.
    pub count: u64,
    /// The last few, the latest at `count - 1` modulo their number.
    pub latest: [u64; 16],
}

impl Announcements {
    /// Notes one.
    pub fn announce(&mut self, address: u64) {
        let at = (self.count % self.latest.len() as u64) as usize;
        self.latest[at] = address;
        self.count += 1;
    }
}
