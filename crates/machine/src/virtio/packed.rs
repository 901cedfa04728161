//! A packed ring (virtio 1.2, 2.8): one table of descriptors, which driver and device write in turn.

use super::Broken;
use crate::memory::GuestMap;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Flags of a descriptor.
mod flag {
    pub const NEXT: u16 = 1 << 0;
    pub const WRITE: u16 = 1 << 1;
    pub const INDIRECT: u16 = 1 << 2;
    pub const AVAIL: u16 = 1 << 7;
    pub const USED: u16 = 1 << 15;
}

/// Size of a descriptor in bytes.
const DESCRIPTOR: u64 = 16;
/// Values of the flags in an event suppression structure.
const EVENTS_ON: u16 = 0;
const EVENTS_OFF: u16 = 1;
const EVENTS_AT: u16 = 2;

/// A position in the ring, with the wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub index: u16,
    pub wrap: bool,
}

impl Place {
    /// The start of the ring, where both sides begin.
    const START: Self = Self { index: 0, wrap: true };

    fn advanced(self, count: u16, size: u16) -> Self {
        let index = self.index + count;
        if index >= size { Self { index: index - size, wrap: !self.wrap } } else { Self { index, ..self } }
    }
}

/// Positions of driver and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Next descriptor that the driver makes available.
    pub available: Place,
    /// Next descriptor that the device returns as used.
    pub used: Place,
}

impl Places {
    /// Positions in an unused ring.
    pub const START: Self = Self { available: Place::START, used: Place::START };

    /// Returns true if the positions are possible in a ring of this size.
    pub fn are_in(self, size: u16) -> bool {
        self.available.index < size && self.used.index < size
    }
}

/// A descriptor.
struct Descriptor {
    address: u64,
    len: u32,
    id: u16,
    flags: u16,
}

/// A request: its buffer ID, the number of its descriptors in the ring, its readable and its writable buffers.
pub struct Request {
    pub id: u16,
    pub count: u16,
    pub readable: VecDeque<(u64, usize)>,
    pub writable: VecDeque<(u64, usize)>,
}

/// A packed ring in memory.
pub struct Packed<'a> {
    memory: &'a GuestMap,
    size: u16,
    ring: u64,
    driver_events: u64,
    device_events: u64,
    event_idx: bool,
    places: &'a mut Places,
}

impl<'a> Packed<'a> {
    pub fn new(queue: &Queue, places: &'a mut Places, memory: &'a GuestMap) -> Self {
        Self {
            memory,
            size: queue.size(),
            ring: queue.desc_table(),
            driver_events: queue.avail_ring(),
            device_events: queue.used_ring(),
            event_idx: queue.event_idx_enabled(),
            places,
        }
    }

    /// Returns true if all of the ring is in memory.
    pub fn is_valid(&self) -> bool {
        let inside = |at: u64, len: u64| self.memory.check_range(GuestAddress(at), len as usize);
        self.size > 0
            && inside(self.ring, DESCRIPTOR * u64::from(self.size))
            && inside(self.driver_events, 4)
            && inside(self.device_events, 4)
    }

    pub fn available(&self) -> Place {
        self.places.available
    }

    pub fn set_available(&mut self, place: Place) {
        self.places.available = place;
    }

    fn half(&self, at: u64) -> Result<u16, Broken> {
        self.memory.load::<u16>(GuestAddress(at), Ordering::Acquire).map(u16::from_le).map_err(|_| Broken)
    }

    fn set_half(&self, at: u64, value: u16) -> Result<(), Broken> {
        self.memory.store(value.to_le(), GuestAddress(at), Ordering::Release).map_err(|_| Broken)
    }

    fn descriptor(&self, at: u64) -> Result<Descriptor, Broken> {
        let mut bytes = [0; DESCRIPTOR as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).map_err(|_| Broken)?;
        let field = |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        Ok(Descriptor {
            address: field(0, 8),
            len: field(8, 4) as u32,
            id: field(12, 2) as u16,
            flags: field(14, 2) as u16,
        })
    }

    fn at(&self, place: Place) -> u64 {
        self.ring + DESCRIPTOR * u64::from(place.index)
    }

    fn is_available(&self, place: Place) -> Result<bool, Broken> {
        let flags = self.half(self.at(place) + 14)?;
        Ok((flags & flag::AVAIL != 0) == place.wrap && (flags & flag::USED != 0) != place.wrap)
    }

    /// Takes the next request.
    pub fn pop(&mut self) -> Result<Option<Request>, Broken> {
        let mut place = self.places.available;
        if !self.is_available(place)? {
            return Ok(None);
        }
        let mut request = Request { id: 0, count: 0, readable: VecDeque::new(), writable: VecDeque::new() };
        loop {
            let descriptor = self.descriptor(self.at(place))?;
            request.count += 1;
            request.id = descriptor.id;
            place = place.advanced(1, self.size);
            if descriptor.flags & flag::INDIRECT != 0 {
                self.indirect(&descriptor, &mut request)?;
            } else {
                request.add(&descriptor);
            }
            // A driver makes a whole chain available at once, so a chain as long as the ring must end.
            if descriptor.flags & flag::NEXT == 0 {
                break;
            }
            if request.count == self.size {
                return Err(Broken);
            }
        }
        self.places.available = place;
        Ok(Some(request))
    }

    /// Adds the buffers of an indirect table.
    fn indirect(&self, table: &Descriptor, request: &mut Request) -> Result<(), Broken> {
        let count = u64::from(table.len) / DESCRIPTOR;
        if !u64::from(table.len).is_multiple_of(DESCRIPTOR) || count > u64::from(self.size) {
            return Err(Broken);
        }
        for number in 0..count {
            let at = table.address.checked_add(DESCRIPTOR * number).ok_or(Broken)?;
            request.add(&self.descriptor(at)?);
        }
        Ok(())
    }

    /// Asks the driver to notify the device of the next request. Returns true if there is a request already.
    pub fn enable_notification(&mut self) -> Result<bool, Broken> {
        let next = self.places.available;
        if self.event_idx {
            self.set_half(self.device_events, next.index | u16::from(next.wrap) << 15)?;
        }
        self.set_half(self.device_events + 2, if self.event_idx { EVENTS_AT } else { EVENTS_ON })?;
        self.is_available(next)
    }

    /// Returns a request with `count` descriptors to the driver.
    pub fn push(&mut self, id: u16, count: u16, written: u32) -> Result<(), Broken> {
        let place = self.places.used;
        let at = self.at(place);
        let mut bytes = written.to_le_bytes().to_vec();
        bytes.extend(id.to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(at + 8)).map_err(|_| Broken)?;
        let owner = if place.wrap { flag::AVAIL | flag::USED } else { 0 };
        let flags = owner | if written > 0 { flag::WRITE } else { 0 };
        self.set_half(at + 14, flags)?;
        self.places.used = place.advanced(count, self.size);
        Ok(())
    }

    /// Returns true if the driver wants an interrupt after the last `added` returned descriptors.
    pub fn wants_interrupt(&self, added: u16) -> Result<bool, Broken> {
        let (place, flags) = (self.half(self.driver_events)?, self.half(self.driver_events + 2)?);
        match flags & 3 {
            EVENTS_OFF => Ok(false),
            EVENTS_AT if self.event_idx => {
                let used = self.places.used;
                let mut event = place & 0x7fff;
                if (place >> 15 != 0) != used.wrap {
                    event = event.wrapping_sub(self.size);
                }
                let new = used.index;
                Ok(super::ring::crosses(event, new, new.wrapping_sub(added)))
            }
            _ => Ok(true),
        }
    }
}

impl Request {
    fn add(&mut self, descriptor: &Descriptor) {
        let part = (descriptor.address, descriptor.len as usize);
        if descriptor.flags & flag::WRITE != 0 {
            self.writable.push_back(part);
        } else {
            self.readable.push_back(part);
        }
    }
}
