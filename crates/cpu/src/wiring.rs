//! Environment of a processor: memory, bus, recorder; and its identity: model, index, APIC ID.

use crate::bus::Bus;
use crate::capability::Capabilities;
use crate::features::Features;
use crate::model::Model;
use crate::ram::Ram;
use crate::xstate::Layout;
use ledger::Recorder;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Environment of a processor, which is constant while it runs.
pub struct Wiring {
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
    /// Interface to the board.
    pub bus: Rc<RefCell<dyn Bus>>,
    /// Recorder of charges.
    pub recorder: Rc<RefCell<Recorder>>,
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
