//! Virtio devices (version 1.2, modern only): a PCI transport, split and packed rings, and the
//! block, console, entropy, network and file system devices.
//!
//! A request completes within the notification that announces it: no virtual time passes in the device itself, what a
//! crossing costs is charged to the access that made it. Descriptors come from the guest and are not trusted. A request
//! whose buffers make no sense is dropped or answered with an error; a ring that makes no sense breaks the device,
//! which then says so (DEVICE_NEEDS_RESET) and does nothing until it is reset.

mod block;
mod buffers;
mod channels;
mod console;
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
pub use channels::Channels;
pub use console::Console;
pub use disk::{Backing, Disk, DiskError};
pub use entropy::Entropy;
pub use files::Files;
pub use net::Net;
pub use ring::{Broken, Chain, Mark, Ring};
pub use transport::VirtioPci;

use crate::device::DeviceContext;
use crate::host::Piece;
use crate::pci::Inbox;
use crate::state::Saved;
use ledger::Ticks;

/// What a device adds to the transport.
pub trait Device: Saved + Send {
    /// What its state is called.
    fn name(&self) -> &'static str;
    /// Virtio device type.
    fn kind(&self) -> u16;
    /// PCI class code: class, subclass, programming interface.
    fn class(&self) -> u32;
    /// Feature bits of the device, without those of the transport and the rings.
    fn features(&self) -> u64;
    /// Largest size of each queue; powers of two.
    fn queues(&self) -> &[u16];
    /// Device-specific configuration space, which never changes.
    fn config(&self) -> &[u8];
    /// The driver has accepted these features, which stay until it resets the device.
    fn negotiated(&mut self, _features: u64) {}
    /// The driver is ready and has enabled a queue: from now on it may be worked on.
    fn started(&mut self, _queue: u16, _now: Ticks) {}
    /// A queue that was started is worked on no more: the driver has reset the device, or has broken it.
    fn stopped(&mut self, _queue: u16, _now: Ticks) {}
    /// Works on a queue: called when the driver notifies it, and by [`Device::has_input`].
    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken>;
    /// Whether a queue is to be worked on because there is something for the driver. Asked after notifications, input and time.
    fn has_input(&self, _queue: u16) -> bool {
        false
    }
    /// Takes input from outside.
    fn input(&mut self, _bytes: &[u8]) {}
    /// What becomes of input from outside.
    fn inbox(&self) -> Inbox {
        Inbox::default()
    }
    /// Takes a piece of input for one of its channels.
    fn piece(&mut self, _piece: &Piece) {}
    /// What becomes of input for a channel.
    fn channel_inbox(&self, _channel: u8) -> Inbox {
        Inbox::default()
    }
    /// When it does something by itself.
    fn next_event(&self) -> Option<Ticks> {
        None
    }
    /// Lets time pass.
    fn advance(&mut self, _now: Ticks) {}
    /// The driver has reset the device. Its queues have been stopped.
    fn reset(&mut self) {}
}
