//! The engine: caches that make execution fast, and the state of the current instruction. A restored processor begins
//! with a new engine, which has no effect on the ledger.

use crate::fault::Cause;
use crate::front::{Exposure, Fetch, Front, PAGES};
use crate::known_code::KnownCode;
use crate::micro::LATEST;
use crate::probe::Hit;
use crate::returns::Returns;
use crate::stops::Stopping;
use crate::time::memory::LINE_SHIFT;
use crate::time::resolution::Resolutions;
use crate::tlb::Reading;
use crate::translate::{Jumps, Running};
use crate::vmx::Emulating;
use ledger::{Class, OriginId, Ticks};

/// State of the execution engine.
#[repr(C)]
pub struct Engine {
    /// Addresses in translated code at which returns continue. Translated code contains the distance from the modelled
    /// stack, which other fields do not change.
    pub(crate) returns: Returns,
    /// Time at which the interpreter leaves its fast path, at the next block boundary.
    pub stop_at: Ticks,
    /// Time at which [`Cpu::run`](crate::Cpu::run) must return.
    pub deadline: Ticks,
    /// Length of the instruction whose handler runs; 0 between instructions.
    pub ilen: u8,
    /// True in 64-bit mode: CS.L and EFER.LMA.
    pub long64: bool,
    /// Decoding mode, see [`crate::mode`].
    pub mode: u8,
    /// True if translated code must track indirect branches, below CPL 3 and at CPL 3.
    pub tracked: [bool; 2],
    /// Address translations for data accesses on the fast path.
    pub front: Front<Running>,
    /// Where [`Engine::front`] has each line of the modelled cache.
    pub(crate) exposed: Vec<Exposure>,
    /// Time that has been charged since the run began, for all instructions up to the end of the block: see
    /// [`crate::lines`].
    pub(crate) ahead: Ticks,
    /// Time that has been charged for the current instruction and those behind it in its block.
    pub(crate) rest: Ticks,
    /// True if the current instruction is locked.
    pub(crate) locked: bool,
    /// True if the current instruction is a non-temporal store.
    pub(crate) streams: bool,
    /// Time of the current instruction that has not been charged yet, because the instruction is executed alone.
    pub(crate) late: Ticks,
    /// True if the last near return was predicted.
    pub(crate) returned: bool,
    /// Cache of the times for which conditions of mispredicted branches are not known.
    pub(crate) resolutions: Resolutions,
    /// A part of the code that the modelled caches have.
    pub(crate) known_code: KnownCode,
    /// Targets of indirect branches in translated code.
    pub(crate) jumps: Jumps,
    /// Address translations for instruction fetch.
    pub fetch: Fetch,
    /// Reason for which the last instruction stopped.
    pub fault: Cause,
    /// Linear address of a #PF.
    pub fault_address: u64,
    /// DR6 bits of a #DB.
    pub fault_dr6: u64,
    /// Probe that has been reached; see [`crate::probe`].
    pub probe: Option<Hit>,
    /// Current origin of charges; follows level, CPL and CR3.
    pub origin: OriginId,
    /// Origin for the activity of a hypervisor on behalf of the current code; the same as `origin` at level 0.
    pub host_origin: OriginId,
    /// True while the instruction that caused [`Cause::CodeWrite`] restarts.
    pub code_write_allowed: bool,
    /// Class of the last instruction that was executed alone.
    pub stepped: Class,
    /// True while an event is delivered.
    pub delivering: bool,
    /// Written guest-physical addresses of decoded or monitored bytes: page, and mask of 64-byte lines.
    pub code_writes: Vec<(u64, u64)>,
    /// Emulation in progress, in root mode.
    pub emulation: Option<Box<Emulating>>,
    /// Stops of a debugger; see [`crate::stops`].
    pub stopping: Stopping,
    /// The entries that the last page walk has read, if caches are modelled.
    pub readings: Vec<Reading>,
    /// Latest time at which the time-stamp counter may be read in this turn, with the price of RDTSC; see
    /// [`Cpu::set_time_limit`](crate::Cpu::set_time_limit).
    pub time_limit: Ticks,
    /// Time of the next sample; see [`crate::sampling`].
    pub sample_at: Ticks,
    /// Origins that have been charged since the performance counters were completed, see [`crate::pmu`].
    pub(crate) charged: Vec<OriginId>,
    /// True while an instruction restarts for which the performance counters have been brought up to date.
    pub(crate) settled: bool,
}

impl Engine {
    /// Creates an engine with empty caches that charges `origin`. `lines` is the number of lines of the modelled
    /// first-level data cache, if there is one; `recorded` is true if events are recorded.
    pub(crate) fn new(origin: OriginId, lines: Option<usize>, recorded: bool) -> Self {
        Self {
            stop_at: 0,
            deadline: 0,
            ilen: 0,
            long64: false,
            mode: 0,
            tracked: [false; 2],
            front: Front::new(if lines.is_some() { LINE_SHIFT } else { PAGES }),
            exposed: vec![Exposure::default(); lines.unwrap_or(0)],
            ahead: 0,
            rest: 0,
            locked: false,
            streams: false,
            late: 0,
            returned: false,
            resolutions: Resolutions::default(),
            known_code: KnownCode::new(lines.is_some() && recorded),
            jumps: Jumps::new(),
            returns: Returns::new(),
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
            readings: Vec::new(),
            time_limit: LATEST,
            sample_at: Ticks::MAX,
            charged: Vec::new(),
            settled: false,
        }
    }
}
