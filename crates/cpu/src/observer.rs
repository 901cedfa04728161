//! Observers of crossings.

use ledger::{Kind, OriginId, Ticks};

/// A charged crossing, or charged halted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The charged origin.
    pub origin: OriginId,
    /// Address of the instruction.
    pub rip: u64,
    /// Kind of the event.
    pub kind: Kind,
    /// Number of events.
    pub count: u64,
    /// Price; the clock already includes it.
    pub ticks: Ticks,
}

/// Observer of charged crossings and of halted time of a processor. The processor is a parameter, because its wiring, which
/// holds the observer, does not name the whole that it is a part of.
pub trait Observer<P>: Send + Sync {
    /// Is called with the registers of the instruction that causes the crossing, but RIP may be the next instruction's.
    fn charged(&self, processor: &mut P, charged: Charged);
}
