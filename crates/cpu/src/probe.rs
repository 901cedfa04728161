//! Probes: addresses of guest code at which the board is told that they are reached, as a kernel's probes tell its tracers.
//!
//! A probed address always begins a block, and that block is never translated, so that both tiers notice it. The processor notes what a
//! function finds in its registers and returns [`Exit::Probe`](crate::Exit::Probe); when it runs again it executes the instruction. A probe costs the
//! guest nothing. Where an interrupt or a fault comes in between, the board is told once more after it.

use rustc_hash::FxHashSet;

/// The processor was about to execute the instruction at a probed address, with these registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The address (RIP).
    pub address: u64,
    /// RSP: at the entry of a function, the address of its return address.
    pub stack: u64,
    /// RDI: the first argument of a function (System V ABI).
    pub first: u64,
    /// RSI: the second argument of a function.
    pub second: u64,
}

/// The addresses at which the processors of a machine tell the board.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    addresses: FxHashSet<u64>,
}

impl Probes {
    /// Whether there is a probe at `rip`.
    #[inline]
    pub(crate) fn contains(&self, rip: u64) -> bool {
        !self.addresses.is_empty() && self.addresses.contains(&rip)
    }

    /// Adds a probe. Returns whether it is new.
    pub(crate) fn insert(&mut self, rip: u64) -> bool {
        self.addresses.insert(rip)
    }

    /// Drops all probes and returns their addresses.
    pub(crate) fn take(&mut self) -> FxHashSet<u64> {
        std::mem::take(&mut self.addresses)
    }
}
