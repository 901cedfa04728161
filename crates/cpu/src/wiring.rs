//! Environment of a processor: memory, bus, recorder; and its identity: model, index, APIC ID.

use crate::bus::{self, Bus, SharedBus};
use crate::capability::Capabilities;
use crate::features::Features;
use crate::model::Model;
use crate::observer::Observer;
use crate::pmu::layout::Layout as Counters;
use crate::ram::Ram;
use crate::xstate::Layout;
use ledger::{Recorder, Ticks};
use std::sync::{Arc, MutexGuard};

/// Environment of a processor `P`, which is constant while it runs.
pub struct Wiring<P> {
    /// Guest-physical RAM.
    pub ram: Ram,
    /// Model of the processor.
    pub model: Arc<Model>,
    /// Instruction-set extensions of the model.
    pub features: Features,
    /// Capabilities according to the model's CPUID.
    pub capabilities: Capabilities,
    /// State components of the model, and their layout in save areas.
    pub xstate: Layout,
    /// Performance counters of the model, if it has any.
    pub pmu: Option<Counters>,
    /// Interface to the board.
    pub bus: SharedBus,
    /// Recorder of this processor's charges.
    pub recorder: Recorder,
    /// Observer of crossings, if there is one.
    pub observer: Option<Arc<dyn Observer<P>>>,
    /// Ticks between two samples; 0 if there are none.
    pub sample_every: Ticks,
    /// Index on the board.
    pub index: usize,
    /// APIC ID reported by CPUID.
    pub apic_id: u32,
    /// Number of processors of the machine, for CPUID.
    pub processors: u32,
    /// True if only unmasked exceptions update the x87 data pointer (CPUID.7.0:EBX\[6\]).
    pub fdp_on_exception: bool,
    /// True if the x87 CS and DS are saved as 0 (CPUID.7.0:EBX\[13\]).
    pub fcs_deprecated: bool,
}

impl<P> Wiring<P> {
    /// Returns the board, on which no other processor can act while the result lives.
    pub fn bus(&self) -> MutexGuard<'_, dyn Bus + Send + 'static> {
        bus::lock(&*self.bus)
    }
}
