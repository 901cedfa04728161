//! The paravirtual interface: features for a guest that knows its hypervisor (the proposal of 2007, with the changes
//! requested in its review). Shared data is identified by guest-physical address, and data that the guest can write is
//! never trusted: a guest that lies harms only itself.

mod access;
pub mod cr3_cache;
pub mod hypercall;
pub mod page;
pub mod rom;

pub(crate) use rom::hypercall_page;
pub use rom::{hypercall_code, option_rom};

use cr3_cache::Cr3Cache;
use page::StatePage;
use serde::{Deserialize, Serialize};

/// First CPUID leaf of the interface.
pub const CPUID_SIGNATURE: u32 = 0x4000_0000;
/// CPUID leaf of the features.
pub const CPUID_FEATURES: u32 = 0x4000_0001;
/// "TollgatePV" in EBX, ECX, EDX.
pub const SIGNATURE: [u32; 3] = [0x6c6c_6f54, 0x6574_6167, 0x0000_5650];
/// MSR: guest-physical address of the hypercall page, bit 0 enables.
pub const MSR_HYPERCALL_PAGE: u32 = 0x5447_4c00;
/// MSR: guest-physical address of the state page, bit 0 registers.
pub const MSR_STATE_PAGE: u32 = 0x5447_4c01;

/// Bits of EAX of [`CPUID_FEATURES`].
pub mod feature {
    /// [`super::MSR_HYPERCALL_PAGE`].
    pub const HYPERCALL_PAGE: u32 = 1 << 0;
    /// [`super::MSR_STATE_PAGE`].
    pub const STATE_PAGE: u32 = 1 << 1;
    /// The state page contains a CR3 cache.
    pub const CR3_CACHE: u32 = 1 << 2;
    /// Writes to port 0x80 do not exit.
    pub const IO_DELAY: u32 = 1 << 3;
    /// The interrupt controllers may be accessed with the short sequence.
    pub const PIC_SHORT: u32 = 1 << 4;
    /// The cached load of the current page directory flushes, and there is a hypercall that flushes.
    pub const TLB_FLUSH: u32 = 1 << 5;
}

/// State of the interface on a virtual CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paravirt {
    /// Value of the hypercall-page MSR.
    pub hypercall_page: u64,
    /// The registered state page.
    pub state: Option<StatePage>,
    /// CR3 cache of the state page.
    pub cr3: Cr3Cache,
}

impl Paravirt {
    /// Returns the value of the state-page MSR.
    pub fn state_msr(&self) -> u64 {
        self.state.map_or(0, |page| page.address() | 1)
    }
}
