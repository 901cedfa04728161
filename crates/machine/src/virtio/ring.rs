//! The interface of a split or packed ring for devices: a device takes buffers and returns lengths.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use thiserror::Error;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::buffers::Buffers;
use super::packed::{Packed, Place, Places};
use crate::memory::GuestMap;

const AVAIL_NO_INTERRUPT: u16 = 1;

/// Error: the ring contradicts itself or lies outside memory, and the device needs a reset.
#[derive(Debug, Error)]
#[error("a virtqueue is broken")]
pub struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

/// Returns true if an index that moved from `old` to `new` has passed `event`, after which the other side wants a
/// notification.
pub(super) fn crosses(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A request with its buffers.
pub struct Chain<'a> {
    head: u16,
    /// Number of descriptors that the request uses in a packed ring.
    count: u16,
    /// Buffers with data from the driver.
    pub reader: Buffers<'a>,
    /// Buffers for data from the device.
    pub writer: Buffers<'a>,
}

impl Chain<'_> {
    /// Reads up to `buffer.len()` bytes.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.reader.read(buffer)
    }

    /// Writes up to `bytes.len()` bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.writer.write(bytes)
    }
}

enum Layout<'a> {
    Split(&'a mut Queue),
    Packed(Packed<'a>),
}

/// A position of the device in a ring, to which it can return.
#[derive(Clone, Copy)]
pub struct Mark {
    place: Place,
    budget: u32,
}

/// A queue while a device processes it.
pub struct Ring<'a> {
    layout: Layout<'a>,
    memory: &'a GuestMap,
    /// Number of requests that may still be taken: a ring that refills itself (because it overlaps another) is broken.
    budget: u32,
    /// True if the driver should be notified of returned requests.
    announced: bool,
    /// Number of returned entries of which the driver has not been notified.
    unannounced: &'a mut u16,
}

/// ID, number of descriptors, readable and writable buffers of a request.
type Request = (u16, u16, VecDeque<(u64, usize)>, VecDeque<(u64, usize)>);

impl<'a> Ring<'a> {
    pub(super) fn new(
        queue: &'a mut Queue,
        packed: Option<&'a mut Places>,
        unannounced: &'a mut u16,
        memory: &'a GuestMap,
    ) -> Self {
        let budget = 2 * u32::from(queue.size());
        let layout = match packed {
            Some(places) => Layout::Packed(Packed::new(queue, places, memory)),
            None => Layout::Split(queue),
        };
        Self { layout, memory, budget, announced: false, unannounced }
    }

    /// Takes the next request. A request whose buffers are not in memory is returned unused.
    pub fn pop(&mut self) -> Result<Option<Chain<'a>>, Broken> {
        loop {
            let Some((head, count, readable, writable)) = self.next()? else { return Ok(None) };
            self.budget = self.budget.checked_sub(1).ok_or(Broken)?;
            let buffers = Buffers::new(self.memory, readable).zip(Buffers::new(self.memory, writable));
            if let Some((reader, writer)) = buffers {
                return Ok(Some(Chain { head, count, reader, writer }));
            }
            self.give_back(head, count, 0)?;
        }
    }

    /// Takes the next request. After the last one the driver is asked to notify again, which may reveal more.
    fn next(&mut self) -> Result<Option<Request>, Broken> {
        let next = self.try_next()?;
        if next.is_none() && self.enable_notification()? {
            return self.try_next();
        }
        Ok(next)
    }

    fn enable_notification(&mut self) -> Result<bool, Broken> {
        match &mut self.layout {
            Layout::Split(queue) => Ok(queue.enable_notification(self.memory)?),
            Layout::Packed(ring) => ring.enable_notification(),
        }
    }

    fn try_next(&mut self) -> Result<Option<Request>, Broken> {
        match &mut self.layout {
            Layout::Split(queue) => {
                let Some(chain) = queue.iter(self.memory)?.next() else { return Ok(None) };
                let head = chain.head_index();
                let (mut readable, mut writable) = (VecDeque::new(), VecDeque::new());
                for descriptor in chain {
                    let parts = if descriptor.is_write_only() { &mut writable } else { &mut readable };
                    parts.push_back((descriptor.addr().0, descriptor.len() as usize));
                }
                Ok(Some((head, 1, readable, writable)))
            }
            Layout::Packed(ring) => {
                let request = ring.pop()?;
                Ok(request.map(|request| (request.id, request.count, request.readable, request.writable)))
            }
        }
    }

    /// Returns the current position.
    pub fn mark(&self) -> Mark {
        let place = match &self.layout {
            Layout::Split(queue) => Place { index: queue.next_avail(), wrap: false },
            Layout::Packed(ring) => ring.available(),
        };
        Mark { place, budget: self.budget }
    }

    /// Returns to a position: requests that were taken since then and not returned become available again.
    pub fn rewind(&mut self, mark: Mark) {
        match &mut self.layout {
            Layout::Split(queue) => queue.set_next_avail(mark.place.index),
            Layout::Packed(ring) => ring.set_available(mark.place),
        }
        self.budget = mark.budget;
    }

    /// Returns a request to the driver, with the number of bytes written to it.
    pub fn push(&mut self, chain: Chain, written: u32) -> Result<(), Broken> {
        self.give_back(chain.head, chain.count, written)
    }

    fn give_back(&mut self, head: u16, count: u16, written: u32) -> Result<(), Broken> {
        match &mut self.layout {
            Layout::Split(queue) => queue.add_used(self.memory, head, written)?,
            Layout::Packed(ring) => ring.push(head, count, written)?,
        }
        *self.unannounced = self.unannounced.saturating_add(count);
        self.announced = true;
        Ok(())
    }

    /// Defers the notification of the driver.
    pub fn hold(&mut self) {
        self.announced = false;
    }

    /// Requests the notification of the driver for all returned entries.
    pub fn announce(&mut self) {
        self.announced = *self.unannounced > 0;
    }

    /// Returns true if the driver wants an interrupt for the returned requests.
    pub(super) fn finish(self) -> Result<bool, Broken> {
        if !self.announced {
            return Ok(false);
        }
        let added = std::mem::take(self.unannounced);
        let memory = self.memory;
        match self.layout {
            Layout::Packed(ring) => ring.wants_interrupt(added),
            Layout::Split(queue) => {
                let load = |at: u64| {
                    memory.load::<u16>(GuestAddress(at), Ordering::Relaxed).map(u16::from_le).map_err(|_| Broken)
                };
                if !queue.event_idx_enabled() {
                    return Ok(load(queue.avail_ring())? & AVAIL_NO_INTERRUPT == 0);
                }
                // The index follows the ring's entries.
                let event = load(queue.avail_ring() + 4 + 2 * u64::from(queue.size()))?;
                let new = queue.next_used();
                Ok(crosses(event, new, new.wrapping_sub(added)))
            }
        }
    }
}
