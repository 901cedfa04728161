//! A virtual machine: state shared by its virtual CPUs.

use crate::config::{ConfigError, MmuMode, VmConfig};
use crate::controls::Shared;
use crate::mmu::{COUNTER_END, HostFeatures, Mmu, MmuError, RestoreError, SavedMmu, SlotConfig, Slots};
use crate::nested::ShadowFields;
use crate::registers::Ownership;
use crate::vcpu::Vcpu;
use cpu::Ram;
use cpu::vmx::{GuestPhysical, GuestVmx, Offer};
use ledger::Profile;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// 1 GiB pages: bit of CPUID.80000001H:EDX.
const GIGABYTE_PAGES: u32 = 1 << 26;

/// Reason for which a virtual machine cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The switches are inconsistent.
    #[error(transparent)]
    VmConfig(#[from] ConfigError),
    /// The memory does not satisfy the MMU's requirements.
    #[error(transparent)]
    Mmu(#[from] MmuError),
    /// There is no memory for the hypervisor's tables.
    #[error("there is no hidden memory for the hypervisor's tables")]
    NoPool,
}

/// Saved state of a virtual machine, without its virtual CPUs and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    mmu: SavedMmu,
    announced: Announcements,
}

/// A virtual machine.
pub struct Hypervisor {
    /// Switches.
    pub config: VmConfig,
    /// Guest memory and the tables that map it.
    pub mmu: Mmu,
    /// Map of guest memory, for emulation.
    pub(crate) memory: Arc<dyn GuestPhysical>,
    /// Ownership of control register bits.
    pub(crate) ownership: Ownership,
    /// Common part of all virtual CPUs' execution controls.
    pub(crate) shared: Shared,
    /// VMX features for the guest, if it may be a hypervisor.
    pub(crate) offer: Option<Offer>,
    /// Fields that such a guest accesses in the shadow VMCS.
    pub(crate) shadow_fields: ShadowFields,
    /// XCR0 of the host, if it has one.
    pub(crate) host_xcr0: Option<u64>,
    /// Announcements of page directories that will be freed.
    pub(crate) announced: Announcements,
}

impl Hypervisor {
    /// Creates a machine whose memory is all of `ram`, mapped one to one, on the processor of a profile. The hidden
    /// part of `ram` is for the hypervisor's tables, see [`Mmu::pool_pages`].
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
        let memory = Arc::new(Memory(mmu.slots().clone()));
        let ownership = Ownership::of(&config);
        let shared = Shared::new(&config, &features);
        let host_xcr0 = profile.host_xcr0.as_ref().map(|xcr0| xcr0.value);
        let offer = crate::nested::offer(&config, profile);
        let shadow_fields = offer.map_or_else(ShadowFields::default, |offer| ShadowFields::of(&offer.vmx));
        let announced = Announcements::default();
        Ok(Self { config, mmu, memory, ownership, shared, host_xcr0, offer, shadow_fields, announced })
    }

    /// Adds a slot of memory while the machine runs.
    pub fn add_slot(&mut self, slot: SlotConfig) -> Result<(), MmuError> {
        self.mmu.add_slot(slot)?;
        self.memory = Arc::new(Memory(self.mmu.slots().clone()));
        Ok(())
    }

    /// Removes the slot that begins at a frame. Returns false if there is no such slot.
    pub fn remove_slot(&mut self, gfn: u64) -> bool {
        let removed = self.mmu.remove_slot(gfn);
        self.memory = Arc::new(Memory(self.mmu.slots().clone()));
        removed
    }

    /// Returns the state to be saved. It does not include switches and derived state, nor memory; the hidden memory
    /// with the tables must be saved as well.
    pub fn save(&self) -> Saved {
        Saved { mmu: self.mmu.save(), announced: self.announced }
    }

    /// Restores a saved state. The machine must have been created with the same switches for the same memory, `vcpus`
    /// must be all virtual CPUs of the saved state, and memory, including the hidden part, must have been restored.
    /// After an error, the machine is unchanged.
    pub fn restore<'a>(&mut self, saved: Saved, vcpus: impl Iterator<Item = &'a Vcpu>) -> Result<(), RestoreError> {
        let Saved { mmu, announced } = saved;
        if announced.count >= COUNTER_END {
            return Err(RestoreError::Counter("announced page directories"));
        }
        let mut mmus = Vec::new();
        for (number, vcpu) in vcpus.enumerate() {
            let nested = self.offer.is_none() && vcpu.nested.vmx != GuestVmx::default();
            let foreign = nested.then_some("it is in VMX operation, which guests do not have");
            let wrong = vcpu.wrong(announced.count).or(foreign);
            wrong.map_or(Ok(()), |what| Err(RestoreError::Vcpu { vcpu: number, what }))?;
            mmus.extend(vcpu.mmu.as_ref().map(|mmu| (number, mmu)));
        }
        self.mmu.restore(mmu, &mmus)?;
        self.memory = Arc::new(Memory(self.mmu.slots().clone()));
        self.announced = announced;
        Ok(())
    }

    /// Returns the number of entries of a guest's CR3 cache.
    pub(crate) fn cr3_slots(&self) -> u32 {
        if self.caches_cr3() { self.shared.cr3_targets as u32 } else { 0 }
    }

    /// Returns true if guests get a CR3 cache.
    pub(crate) fn caches_cr3(&self) -> bool {
        self.config.paravirt
            && !self.config.nested
            && self.config.mmu == MmuMode::Shadow
            && self.shared.cr3_targets != 0
    }
}

/// Memory slots, for emulation.
#[derive(Debug)]
struct Memory(Slots);

impl GuestPhysical for Memory {
    fn host(&self, guest_physical: u64) -> Option<u64> {
        self.0.translate(guest_physical)
    }
}

/// The latest page directories that guests have announced to be freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcements {
    /// Number of announcements.
    pub count: u64,
    /// The last announcements, the latest at `count - 1` modulo their number.
    pub latest: [u64; 16],
}

impl Announcements {
    /// Adds an announcement.
    pub fn announce(&mut self, address: u64) {
        let at = (self.count % self.latest.len() as u64) as usize;
        self.latest[at] = address;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmu::Guest;

    const RAM: u64 = 4 << 20;
    const POOL: u64 = 0xd000_0000;

    fn machine(config: &VmConfig) -> Hypervisor {
        let pages = Mmu::pool_pages(config, RAM >> 12, 2);
        let ram = Ram::with_hidden(RAM, POOL, u64::from(pages) << 12);
        Hypervisor::new(config.clone(), &ram, &Profile::named("icx").unwrap()).unwrap()
    }

    fn through_text<T: Serialize + for<'a> Deserialize<'a>>(value: &T) -> T {
        serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
    }

    #[test]
    fn a_machine_is_saved_with_its_virtual_cpus() {
        for mmu in MmuMode::ALL {
            let config = VmConfig { mmu: *mmu, unrestricted_guest: mmu.is_tdp(), ..VmConfig::default() };
            let mut vm = machine(&config);
            vm.announced.announce(0x5000);
            // The second one has not run yet.
            let mut vcpus = [Vcpu::new(), Vcpu::new()];
            let mut mmu = vm.mmu.add_vcpu().unwrap();
            vm.mmu.flush_guest(&mut mmu);
            vm.mmu.reset_context(&mut mmu, &Guest::default());
            (vcpus[0].mmu, vcpus[0].followed) = (Some(mmu), 1);
            let (saved, copies) = (vm.save(), through_text(&vcpus));
            assert_eq!(copies, vcpus);
            let mut other = machine(&config);
            other.remove_slot(0);
            assert!(other.memory.host(0x1000).is_none());
            other.restore(through_text(&saved), copies.iter()).unwrap();
            assert_eq!(other.save(), saved);
            assert_eq!(other.check(copies.iter()), Ok(()));
            // Emulation uses the restored memory.
            assert_eq!(other.memory.host(0x1000), Some(0x1000));
        }
    }

    #[test]
    fn a_virtual_cpu_of_another_machine_is_refused() {
        let mut vm = machine(&VmConfig::default());
        let saved = vm.save();
        let refused = |vm: &mut Hypervisor, vcpu: &Vcpu| {
            vm.restore(saved.clone(), [&Vcpu::new(), vcpu].into_iter()).unwrap_err().to_string()
        };
        let mut followed = Vcpu::new();
        followed.followed = 1;
        assert_eq!(refused(&mut vm, &followed), "virtual CPU 1: it has followed announcements that nobody made");
        let mut other = Vcpu::new();
        other.mmu = Some(vm.mmu.add_vcpu().unwrap());
        assert_eq!(refused(&mut vm, &other), "virtual CPU 1: it has no page of PDPTEs of its own");
        let announced = Announcements { count: u64::MAX, ..Announcements::default() };
        let overflowing = Saved { announced, ..saved.clone() };
        let error = vm.restore(overflowing, std::iter::empty()).unwrap_err();
        assert_eq!(error.to_string(), "the saved counter of announced page directories is out of range");
    }
}
