//! The ledger: event kinds, cost profiles, attribution and the recorder that every charge goes through.
//!
//! Time is kept in *ticks*: thousandths of a core cycle of the profiled processor, so that decimal costs in a profile are
//! exact and totals add up without rounding. See [`TICKS_PER_CYCLE`].

pub mod costs;
pub mod event;
pub mod names;
pub mod profile;
pub mod recorder;

pub use costs::{Costs, Geometry, Sets};
pub use event::{Class, Family, Kind};
pub use profile::Profile;
pub use recorder::{Origin, OriginId, Recorder, Shape, ShapeId};

/// Thousandths of a core cycle: the unit of the virtual clock.
pub type Ticks = u64;

/// Ticks in one core cycle.
pub const TICKS_PER_CYCLE: u64 = 1000;
