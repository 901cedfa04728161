//! The outside world: what a run is connected to.

use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The outside world, as a machine sees it.
pub trait Host {
    /// Prints what the guest wrote to its console.
    fn output(&mut self, bytes: &[u8]);
    /// Says what has happened since the last call; `now` is the virtual time. While the guest does not read what it was
    /// given before, input is not `wanted`: it had better wait outside.
    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll;
    /// Frames that have come for the machine's NICs since the last call. Those for a NIC that has no `room` had better wait outside.
    fn frames(&mut self, _room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        Vec::new()
    }
    /// Sends frames of the machine's NICs.
    fn send(&mut self, _frames: Vec<HostFrame>) {}
    /// Takes what the guest wrote to a channel.
    fn channel_output(&mut self, _channel: u8, _bytes: &[u8]) {}
    /// Pieces of input for channels since the last call. Those for a channel that has no `room` had better wait outside.
    fn pieces(&mut self, _room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        Vec::new()
    }
    /// Whether input may still come: idle time then passes as on the host's clock, not at once, or a guest would be days older
    /// when it does.
    fn attended(&self) -> bool {
        false
    }
    /// Nothing to do for up to this long, unless there is input.
    fn idle(&mut self, limit: Duration);
}

/// A frame between a NIC and the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFrame {
    /// The NIC's number.
    pub nic: u8,
    /// The frame, without its check sequence.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Input for a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The channel's number.
    pub channel: u8,
    /// What is read from it.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// There will be no more.
    pub last: bool,
}

/// What a host has for a machine.
#[derive(Clone, Debug, Default)]
pub struct Poll {
    /// Console input.
    pub input: Vec<u8>,
    /// Frames for NICs. A machine asks for them by [`Host::frames`].
    pub frames: Vec<HostFrame>,
    /// Input for channels. A machine asks for it by [`Host::pieces`].
    pub pieces: Vec<Piece>,
    /// The run is to stop.
    pub stop: bool,
}

impl Poll {
    /// Whether nothing has come that the guest will notice.
    pub fn is_quiet(&self) -> bool {
        self.input.is_empty() && self.frames.is_empty() && self.pieces.is_empty()
    }
}
