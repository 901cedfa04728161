//! State of the processor model in addition to the architectural state: time, cached translations, predictions, and the
//! origin of charges.

use crate::charged::Charged;
use crate::stays::Stays;
use crate::tally::Tally;
use crate::time::memory::Memory;
use crate::time::predictor::Predictor;
use crate::time::recent::Recent;
use crate::time::{Place, START};
use crate::tlb::Tlb;
use ledger::{Geometry, Ticks};
use serde::{Deserialize, Serialize};

/// Limit of the clock, so that no future event overflows.
pub(crate) const LATEST: Ticks = 1 << 62;

/// State of the modelled processor that no instruction can read: plain data.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[repr(C)]
pub struct Micro {
    /// Virtual time.
    pub clock: Ticks,
    /// Context in which the next instruction is priced: see [`crate::time`].
    pub run: Place,
    /// Ring of the addresses at which the last runs began; empty if directions are not predicted.
    pub recent: Recent,
    /// State of the seeded generator of RDRAND and RDSEED.
    pub random: u64,
    /// Modelled TLB.
    pub tlb: Tlb,
    /// Modelled branch predictor.
    pub predictor: Predictor,
    /// Modelled caches, if there are any.
    pub memory: Option<Memory>,
    /// Virtualization level of the current code: 0 on the machine itself, 1 in a guest of a hypervisor on it.
    pub level: u8,
    /// Address space that is charged if CR3 is not the guest's own, as under shadow paging; set before
    /// `Cpu::origin_changed`.
    pub charged_space: Option<u64>,
    /// Other parts of the charged origin; set by [`Cpu::set_charged`](crate::Cpu::set_charged).
    pub charged: Charged,
    /// Stays in the kernel that have not ended.
    pub stays: Stays,
    /// True if PAUSE has been executed since this was last cleared: software waits for another processor.
    pub spins: bool,
    /// True if the board has handled the probe at the next instruction.
    pub probe_passed: bool,
    /// Sums for the performance counters.
    pub tally: Tally,
}

impl Micro {
    /// Creates the state of processor number `index`, with empty tables of these sizes.
    pub(crate) fn new(index: usize, geometry: &Geometry) -> Self {
        Self {
            clock: 0,
            run: START,
            recent: Recent::default(),
            random: 0x9e37_79b9_7f4a_7c15 ^ index as u64,
            tlb: Tlb::new(geometry),
            predictor: Predictor::new(geometry),
            memory: geometry.caches.as_ref().map(|caches| Memory::new(caches, index)),
            level: 0,
            charged_space: None,
            charged: Charged::default(),
            stays: Stays::default(),
            spins: false,
            probe_passed: false,
            tally: Tally::default(),
        }
    }

    /// Returns true if a state, which may come from a file, is possible for a processor of these sizes, as far as that
    /// can be checked.
    pub fn fits(&self, geometry: &Geometry, index: usize, processors: usize) -> bool {
        let memory = match (&self.memory, &geometry.caches) {
            (Some(memory), Some(caches)) => memory.fits(caches, self.clock, index, processors),
            (None, None) => true,
            _ => false,
        };
        memory && self.stays.fits(self.clock) && self.tlb.fits(geometry) && self.predictor.fits(geometry)
    }
}
