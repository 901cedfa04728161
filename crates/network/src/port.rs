//! The interface between a NIC and its network.

use crate::fabric::Network;
use crate::frame::{Frame, Offloads};
use crate::time::{Rate, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The port of a NIC. All times are the current time, and never go back.
pub trait Port: Send {
    /// Returns the rate of the link.
    fn rate(&self) -> Rate;
    /// Sets the readiness of the NIC's driver. Frames are lost while it is not ready. Offloads that the driver does not
    /// accept are completed before a frame arrives.
    fn listen(&mut self, now: Time, on: bool, offloads: Offloads);
    /// Sends a frame, after those that are on their way to the link.
    fn send(&mut self, now: Time, frame: Frame);
    /// Returns the time at which the last bit sent so far leaves the NIC.
    fn busy(&self) -> Time;
    /// Returns the time of the next event: a frame arrives, or may arrive. Nothing changes before unless the NIC sends.
    fn next_arrival(&self) -> Option<Time>;
    /// Returns the next frame that has arrived.
    fn receive(&mut self, now: Time) -> Option<Frame>;
    /// Discards all frames that have arrived, and returns their number.
    fn discard(&mut self, now: Time) -> u64;
    /// Counts received frames as lost, because the driver has no room for them.
    fn lost(&mut self, frames: u64);
}

/// A port of a network that several NICs share.
#[derive(Clone, Debug)]
pub struct Plug {
    network: Arc<Mutex<Network>>,
    port: usize,
}

impl Plug {
    /// Creates the port with this number.
    pub fn new(network: &Arc<Mutex<Network>>, port: usize) -> Self {
        Self { network: network.clone(), port }
    }

    /// Locks the network. A panic while the lock is held would leave the network valid.
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
