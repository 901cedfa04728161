//! A split ring as devices see it: buffers in, lengths out.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;

use thiserror::Error;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT, Reader, Writer};
use vm_memory::bitmap::MS;
use vm_memory::{Bytes, GuestAddress};

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

/// Buffers of one request.
pub struct Chain<'a> {
    head: u16,
    /// What the driver wrote for the device.
    pub reader: Reader<'a, MS<'a, GuestMap>>,
    /// What the device writes for the driver.
    pub writer: Writer<'a, MS<'a, GuestMap>>,
}

impl Chain<'_> {
    /// Reads up to `buffer.len()` bytes.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.reader.read(buffer).unwrap_or(0)
    }

    /// Writes up to `bytes.len()` bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.writer.write(bytes).unwrap_or(0)
    }
}

/// A queue while a device works on it.
pub struct Ring<'a> {
    queue: &'a mut Queue,
    memory: &'a GuestMap,
    /// Requests that may still be taken: a ring that refills itself (because it overlaps another) is broken.
    budget: u32,
    used: bool,
}

impl<'a> Ring<'a> {
    pub(super) fn new(queue: &'a mut Queue, memory: &'a GuestMap) -> Self {
        let budget = 2 * u32::from(queue.size());
        Self { queue, memory, budget, used: false }
    }

    /// Takes the next request. One whose buffers are not in memory is given back unused.
    pub fn pop(&mut self) -> Result<Option<Chain<'a>>, Broken> {
        loop {
            let Some(chain) = self.next()? else { return Ok(None) };
            self.budget = self.budget.checked_sub(1).ok_or(Broken)?;
            let head = chain.head_index();
            let buffers = (Reader::new(self.memory, chain.clone()), Writer::new(self.memory, chain));
            if let (Ok(reader), Ok(writer)) = buffers {
                return Ok(Some(Chain { head, reader, writer }));
            }
            self.give_back(head, 0)?;
        }
    }

    /// The next chain; after the last one the driver is asked to notify again, which may reveal more.
    fn next(&mut self) -> Result<Option<DescriptorChain<&'a GuestMap>>, Broken> {
        let memory = self.memory;
        let mut next = self.queue.iter(memory)?.next();
        if next.is_none() && self.queue.enable_notification(memory)? {
            next = self.queue.iter(memory)?.next();
        }
        Ok(next)
    }

    /// Gives a request back, with the number of bytes written into it.
    pub fn push(&mut self, chain: Chain, written: u32) -> Result<(), Broken> {
        self.give_back(chain.head, written)
    }

    fn give_back(&mut self, head: u16, written: u32) -> Result<(), Broken> {
        self.queue.add_used(self.memory, head, written)?;
        self.used = true;
        Ok(())
    }

    /// Whether the driver wants to be interrupted for what was given back.
    pub(super) fn finish(self) -> Result<bool, Broken> {
        if !self.used {
            return Ok(false);
        }
        if !self.queue.event_idx_enabled() {
            let flags = self.memory.load::<u16>(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
            if flags.map_err(|_| Broken)? & AVAIL_NO_INTERRUPT != 0 {
                return Ok(false);
            }
        }
        Ok(self.queue.needs_notification(self.memory)?)
    }
}
