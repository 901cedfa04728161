//! The seam between a NIC and its network.

use crate::fabric::Network;
use crate::frame::{Frame, Offloads};
use crate::time::{Rate, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a NIC is plugged into. All times are the present, and never go back.
pub trait Port: Send {
    /// The rate of the link.
    fn rate(&self) -> Rate;
    /// The NIC's driver is ready to receive, or no longer is. Frames that come while it is not are lost. Unfinished frames that a NIC's driver
    /// does not take are finished before they come.
    fn listen(&mut self, now: Time, on: bool, offloads: Offloads);
    /// Sends a frame, behind those that are on their way to the link.
    fn send(&mut self, now: Time, frame: Frame);
    /// When the last bit of what was sent leaves the NIC.
    fn busy(&self) -> Time;
    /// When there is something to be done: a frame arrives, or may. Until then nothing changes unless the NIC sends.
    fn next_arrival(&self) -> Option<Time>;
    /// The next frame that has arrived.
    fn receive(&mut self, now: Time) -> Option<Frame>;
    /// Throws away all frames that have arrived; how many.
    fn discard(&mut self, now: Time) -> u64;
    /// Frames that were received are lost after all: the driver has no room for them.
    fn lost(&mut self, frames: u64);
}

/// A port of a network that several NICs share.
#[derive(Clone, Debug)]
pub struct Plug {
    network: Arc<Mutex<Network>>,
    port: usize,
}

impl Plug {
    /// The port of that number.
    pub fn new(network: &Arc<Mutex<Network>>, port: usize) -> Self {
        Self { network: network.clone(), port }
    }

    /// The network. Nobody panics while holding it, and if somebody did, it would be as good as before.
    fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for Plug {
    fn rate(&self) -> Rate {
        self.network().rate(self.port)
    }

    fn listen(&mut self, now: Time, on: bool, offloads: Offloads) {
        self.network().listen(self.port, now, on, offloads);
    }

    fn send(&mut self, now: Time, frame: Frame) {
        self.network().send(self.port, now, frame);
    }

    fn busy(&self) -> Time {
        self.network().busy(self.port)
    }

    fn next_arrival(&self) -> Option<Time> {
        self.network().next_arrival(self.port)
    }

    fn receive(&mut self, now: Time) -> Option<Frame> {
        self.network().receive(self.port, now)
    }

    fn discard(&mut self, now: Time) -> u64 {
        self.network().discard(self.port, now)
    }

    fn lost(&mut self, frames: u64) {
        self.network().lost(self.port, frames);
    }
}
