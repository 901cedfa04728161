//! The surroundings of a processor: memory, bus, recorder; and its identity: model, index, APIC id.

use crate::bus::Bus;
use crate::capability::Capabilities;
use crate::features::Features;
use crate::model::Model;
use crate::ram::Ram;
use crate::sampling::Observer;
use crate::xstate::Layout;
use ledger::{Recorder, Ticks};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The surroundings of a processor, which stay the same while it runs.
pub struct Wiring {
    /// Guest-physical RAM.
    pub ram: Ram,
    /// Processor model.
    pub model: Arc<Model>,
    /// Extensions the model has.
    pub features: Features,
    /// What the model's CPUID has.
    pub capabilities: Capabilities,
    /// Which state components the model has, and where they are saved.
    pub xstate: Layout,
    /// The board.
    pub bus: Rc<RefCell<dyn Bus>>,
    /// Where charges go.
    pub recorder: Rc<RefCell<Recorder>>,
    /// Who is told of each crossing, if anybody.
    pub observer: Option<Rc<dyn Observer>>,
    /// Ticks between two samples; 0 if there are none.
    pub sample_every: Ticks,
    /// Index on the board.
    pub index: usize,
    /// APIC id, as CPUID reports it.
    pub apic_id: u32,
    /// Processors of the machine, as CPUID reports them.
    pub processors: u32,
    /// The x87 data pointer is only updated by unmasked exceptions (CPUID.7.0:EBX\[6\]).
    pub fdp_on_exception: bool,
    /// The x87 CS and DS are saved as 0 (CPUID.7.0:EBX\[13\]).
    pub fcs_deprecated: bool,
}
