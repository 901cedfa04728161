//! Probes: addresses of guest code whose execution is reported to the board, similar to a kernel's kprobes.
//!
//! A probed address always begins a block, and that block is never translated, so that both tiers notice it. The
//! processor records the argument registers and returns [`Exit::Probe`](crate::Exit::Probe); when it runs again it
//! executes the instruction. A probe has no cost for the guest. If an interrupt or a fault intervenes, the probe is
//! reported again after it.

use rustc_hash::FxHashSet;

/// Report that the processor is about to execute the instruction at a probed address, with these registers.
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
    /// The guest of a hypervisor on the machine ([`ledger::Origin::guest`]) that executes it, if it is one's: its functions are not those of the machine.
    pub guest: Option<u64>,
}

/// The probed addresses of a machine.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    addresses: FxHashSet<u64>,
}

impl Probes {
    /// Returns true if there is a probe at `rip`.
    #[inline]
    pub(crate) fn contains(&self, rip: u64) -> bool {
        !self.addresses.is_empty() && self.addresses.contains(&rip)
    }

    /// Adds a probe. Returns true if it is new.
    pub(crate) fn insert(&mut self, rip: u64) -> bool {
        self.addresses.insert(rip)
    }

    /// Removes all probes and returns their addresses.
    pub(crate) fn take(&mut self) -> FxHashSet<u64> {
        std::mem::take(&mut self.addresses)
    }
}
