//! Virtio devices (version 1.2, modern only): a PCI transport, split and packed rings, and the
//! block, console, entropy, network and file system devices.
//!
//! A request completes within the notification that announces it: the device itself takes no virtual time, and the cost
//! of a crossing is charged to the access that made it. Descriptors come from the guest and are not trusted. A request
//! with invalid buffers is dropped or answered with an error. An invalid ring breaks the device, which then sets
//! DEVICE_NEEDS_RESET and does nothing until it is reset.

mod block;
mod buffers;
mod control;
mod disk;
mod entropy;
mod files;
mod net;
mod overlay;
mod packed;
mod ports;
mod ring;
#[cfg(test)]
mod tests;
mod transport;

pub use block::Block;
pub use buffers::Buffers;
pub use disk::{Backing, Disk, DiskError};
pub use entropy::Entropy;
pub use files::Files;
pub use net::Net;
pub use ports::Ports;
pub use ring::{Broken, Chain, Mark, Ring};
pub use transport::VirtioPci;

use crate::device::DeviceContext;
use crate::host::Piece;
use crate::pci::Inbox;
use crate::state::Saved;
use ledger::Ticks;

/// The part of a virtio device behind the transport.
pub trait Device: Saved + Send {
    /// Returns the name of the device's state.
    fn name(&self) -> &'static str;
    /// Returns the virtio device type.
    fn kind(&self) -> u16;
    /// Returns the PCI class code: class, subclass, programming interface.
    fn class(&self) -> u32;
    /// Returns the feature bits of the device, without those of the transport and the rings.
    fn features(&self) -> u64;
    /// Returns the maximum size of each queue; all are powers of two.
    fn queues(&self) -> &[u16];
    /// Returns the device-specific configuration space.
    fn config(&self) -> &[u8];
    /// Called when the driver has accepted these features, which stay until it resets the device.
    fn negotiated(&mut self, _features: u64) {}
    /// Called when the driver is ready and has enabled a queue: the device may use the queue from now on.
    fn started(&mut self, _queue: u16, _now: Ticks) {}
    /// Called when a queue that was started is no longer in use: the driver has reset the device, or has broken it.
    fn stopped(&mut self, _queue: u16, _now: Ticks) {}
    /// Processes a queue: called when the driver notifies it, and if [`Device::has_input`] returns true.
    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken>;
    /// Returns true if a queue should be processed because there is data for the driver. Called after notifications,
    /// input, and the passing of time.
    fn has_input(&self, _queue: u16) -> bool {
        false
    }
    /// Accepts input from outside.
    fn input(&mut self, _bytes: &[u8]) {}
    /// Returns the state of the device's inbox.
    fn inbox(&self) -> Inbox {
        Inbox::default()
    }
    /// Accepts a piece of input for a channel.
    fn piece(&mut self, _piece: &Piece) {}
    /// Returns the state of a channel's inbox.
    fn channel_inbox(&self, _channel: u8) -> Inbox {
        Inbox::default()
    }
    /// Returns the time of the device's next event, if it has one.
    fn next_event(&self) -> Option<Ticks> {
        None
    }
    /// Advances the device to `now`.
    fn advance(&mut self, _now: Ticks) {}
    /// Called when the driver has reset the device. Its queues have been stopped.
    fn reset(&mut self) {}
}
