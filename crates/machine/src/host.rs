//! The outside world: what a run is connected to.

use ledger::Ticks;
use std::time::Duration;

/// The outside world, as a machine sees it.
pub trait Host {
    /// Prints what the guest wrote to its console.
    fn output(&mut self, bytes: &[u8]);
    /// Says what has happened since the last call; `now` is the virtual time. While the guest does not read what it was
    /// given before, input is not `wanted`: it had better wait outside.
    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll;
    /// Whether input may still come: idle time then passes as on the host's clock, not at once, or a guest would be days older
    /// when it does.
    fn attended(&self) -> bool {
        false
    }
    /// Nothing to do for up to this long, unless there is input.
    fn idle(&mut self, limit: Duration);
}

/// What a host has for a machine.
#[derive(Clone, Debug, Default)]
pub struct Poll {
    /// Console input.
    pub input: Vec<u8>,
    /// The run is to stop.
    pub stop: bool,
}
