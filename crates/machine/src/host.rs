//! The interface between a machine and the outside world.

use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The outside world, as seen by a machine.
pub trait Host {
    /// Prints the guest's console output.
    fn output(&mut self, bytes: &[u8]);
    /// Returns the events since the last call; `now` is the virtual time. `wanted` is false while the guest has not
    /// read earlier input: new input should then wait outside.
    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll;
    /// Returns the frames that have arrived for the machine's NICs since the last call. Frames for a NIC without `room`
    /// should wait outside.
    fn frames(&mut self, _room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        Vec::new()
    }
    /// Sends frames of the machine's NICs.
    fn send(&mut self, _frames: Vec<HostFrame>) {}
    /// Writes the guest's output on a channel.
    fn channel_output(&mut self, _channel: u8, _bytes: &[u8]) {}
    /// Returns the input for channels since the last call. Input for a channel without `room` should wait outside.
    fn pieces(&mut self, _room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        Vec::new()
    }
    /// Returns true if input may still come. Idle time then passes at the pace of the host's clock; otherwise it is
    /// skipped, and a guest could be days older when the input arrives.
    fn attended(&self) -> bool {
        false
    }
    /// Waits for input, no longer than `limit`.
    fn idle(&mut self, limit: Duration);
}

/// A frame between a NIC and the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFrame {
    /// Index of the NIC.
    pub nic: u8,
    /// The frame, without its check sequence.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Input for a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Number of the channel.
    pub channel: u8,
    /// Input data.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// True if no more input follows.
    pub last: bool,
}

/// Events that a host has for a machine.
#[derive(Clone, Debug, Default)]
pub struct Poll {
    /// Console input.
    pub input: Vec<u8>,
    /// Frames for NICs. A machine gets them from [`Host::frames`].
    pub frames: Vec<HostFrame>,
    /// Input for channels. A machine gets it from [`Host::pieces`].
    pub pieces: Vec<Piece>,
    /// True if the run should stop.
    pub stop: bool,
}

impl Poll {
    /// Returns true if there is no event that the guest could notice.
    pub fn is_quiet(&self) -> bool {
        self.input.is_empty() && self.frames.is_empty() && self.pieces.is_empty()
    }
}
