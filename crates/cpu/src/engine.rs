//! The engine: shortcuts that make execution fast, and the instruction that is under way. A processor that is restored begins with a new
//! one, without a trace on the ledger.

use crate::fault::Cause;
use crate::front::{Fetch, Front};
use crate::probe::Hit;
use crate::stops::Stopping;
use crate::vmx::Emulating;
use ledger::{Class, OriginId, Ticks};

/// The state of the program that executes instructions.
#[repr(C)]
pub struct Engine {
    /// The interpreter leaves its fast path at the first block boundary at which `clock >= stop_at`.
    pub stop_at: Ticks,
    /// When [`Cpu::run`](crate::Cpu::run) must return.
    pub deadline: Ticks,
    /// Length of the instruction a handler runs for; 0 between instructions.
    pub ilen: u8,
    /// CS.L and EFER.LMA: 64-bit mode.
    pub long64: bool,
    /// How code is decoded, see [`crate::decode::mode`].
    pub mode: u8,
    /// Whether translated code is that of indirect branches that are tracked, below CPL 3 and at it.
    pub tracked: [bool; 2],
    /// Translations ready for the fast path.
    pub front: Front,
    /// Translations ready for instruction fetch.
    pub fetch: Fetch,
    /// What stopped the last instruction.
    pub fault: Cause,
    /// Linear address for #PF.
    pub fault_address: u64,
    /// DR6 bits for #DB.
    pub fault_dr6: u64,
    /// The probe that has been reached; see [`crate::probe`].
    pub probe: Option<Hit>,
    /// Who is charged now; follows level, CPL and CR3.
    pub origin: OriginId,
    /// Who is charged for what a hypervisor does for the code that runs now: the same at level 0.
    pub host_origin: OriginId,
    /// Set while the instruction that hit [`Cause::CodeWrite`] restarts.
    pub code_write_allowed: bool,
    /// The class of the instruction that was executed alone last.
    pub stepped: Class,
    /// An event is being delivered.
    pub delivering: bool,
    /// Guest-physical addresses of decoded or monitored bytes that were written: page and 64-byte-line mask.
    pub code_writes: Vec<(u64, u64)>,
    /// The emulation that is under way, in root mode.
    pub emulation: Option<Box<Emulating>>,
    /// What a debugger waits for; see [`crate::stops`].
    pub stopping: Stopping,
    /// When the next sample is due; see [`crate::sampling`].
    pub sample_at: Ticks,
}

impl Engine {
    /// Nothing is known, and `origin` is charged.
    pub(crate) fn new(origin: OriginId) -> Self {
        Self {
            stop_at: 0,
            deadline: 0,
            ilen: 0,
            long64: false,
            mode: 0,
            tracked: [false; 2],
            front: Front::new(),
            fetch: Fetch::new(),
            fault: Cause::None,
            fault_address: 0,
            fault_dr6: 0,
            probe: None,
            origin,
            host_origin: origin,
            code_write_allowed: false,
            stepped: Class::Nop,
            delivering: false,
            code_writes: Vec::new(),
            emulation: None,
            stopping: Stopping::default(),
            sample_at: Ticks::MAX,
        }
    }
}
