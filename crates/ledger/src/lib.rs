//! The ledger: event kinds, cost profiles, attribution and the recorder that every charge goes through.
//!
//! Time is kept in *ticks*: thousandths of a core cycle of the profiled processor, so that decimal costs in a profile are
//! exact and totals add up without rounding. See [`TICKS_PER_CYCLE`].

#![forbid(unsafe_code)]

pub mod branch;
pub mod caches;
pub mod charge;
pub mod coarse;
pub mod costs;
mod entry;
pub mod event;
mod file;
mod fold;
mod ledger;
pub mod names;
pub mod operation;
pub mod pattern;
pub mod profile;
pub mod recorder;
pub mod stack;
pub mod stays;
pub mod summary;
pub mod symbols;
pub mod task;
mod unreadable;
mod wire;

pub use branch::{Branch, BranchRuns, Taken, Way};
pub use caches::Caches;
pub use charge::{AddressSpace, Amount, Origin, OriginId, RegionId, Shape, ShapeId, evenly_priced};
pub use coarse::{Coarseness, Range};
pub use costs::{Costs, Geometry, Sets};
pub use entry::{BlockRuns, EventCharge, SavedSymbol};
pub use event::{Class, Family, Kind};
pub use fold::{Folded, FoldedPlace, MOST_ENTRIES};
pub use ledger::{Header, Ledger, Totals, VerifyError};
pub use operation::Operation;
pub use profile::Profile;
pub use recorder::{Names, Recorder, Region};
pub use stays::{Entry, Gate, Stay};
pub use symbols::{Symbol, Symbols};
pub use task::{Context, Task, TaskId, TaskKind};
pub use unreadable::{LedgerError, VERSION};

/// Thousandths of a core cycle: the unit of the virtual clock.
pub type Ticks = u64;

/// Ticks in one core cycle.
pub const TICKS_PER_CYCLE: u64 = 1000;
