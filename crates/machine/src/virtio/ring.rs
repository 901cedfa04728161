//! A ring, split or packed, as devices see it: buffers in, lengths out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use thiserror::Error;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::buffers::Buffers;
use super::packed::{Packed, Place, Places};
use crate::memory::GuestMap;

const AVAIL_NO_INTERRUPT: u16 = 1;

/// The ring contradicts itself or lies outside memory: the device needs a reset.
#[derive(Debug, Error)]
#[error("a virtqueue is broken")]
pub struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

/// Whether an index that was at `old` and is at `new` has passed the one at which the other side wants to hear of it.
pub(super) fn crosses(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Buffers of one request.
pub struct Chain<'a> {
    head: u16,
    /// Descriptors of a packed ring that it takes.
    count: u16,
    /// What the driver wrote for the device.
    pub reader: Buffers<'a>,
    /// What the device writes for the driver.
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

/// Where a device is in a ring, to go back to.
#[derive(Clone, Copy)]
pub struct Mark {
    place: Place,
    budget: u32,
}

/// A queue while a device works on it.
pub struct Ring<'a> {
    layout: Layout<'a>,
    memory: &'a GuestMap,
    /// Requests that may still be taken: a ring that refills itself (because it overlaps another) is broken.
    budget: u32,
    /// The driver is to hear of what was given back.
    announced: bool,
    /// Entries given back of which the driver has not heard.
    unannounced: &'a mut u16,
}

/// The identity, the descriptors, the readable and the writable buffers of a request.
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

    /// Takes the next request. One whose buffers are not in memory is given back unused.
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

    /// The next request; after the last one the driver is asked to notify again, which may reveal more.
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

    /// Where the device is now.
    pub fn mark(&self) -> Mark {
        let place = match &self.layout {
            Layout::Split(queue) => Place { index: queue.next_avail(), wrap: false },
            Layout::Packed(ring) => ring.available(),
        };
        Mark { place, budget: self.budget }
    }

    /// Goes back: what was taken since, and not given back, has not been taken.
    pub fn rewind(&mut self, mark: Mark) {
        match &mut self.layout {
            Layout::Split(queue) => queue.set_next_avail(mark.place.index),
            Layout::Packed(ring) => ring.set_available(mark.place),
        }
        self.budget = mark.budget;
    }

    /// Gives a request back, with the number of bytes written into it.
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

    /// The driver is not to hear yet of what was given back.
    pub fn hold(&mut self) {
        self.announced = false;
    }

    /// The driver is to hear of what it has not heard of.
    pub fn announce(&mut self) {
        self.announced = *self.unannounced > 0;
    }

    /// Whether the driver wants to be interrupted for what was given back.
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
                // The index is behind the ring's entries.
                let event = load(queue.avail_ring() + 4 + 2 * u64::from(queue.size()))?;
                let new = queue.next_used();
                Ok(crosses(event, new, new.wrapping_sub(added)))
            }
        }
    }
}
