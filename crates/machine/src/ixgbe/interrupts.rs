//! Interrupts: causes, their allocation to vectors, masks, and throttling (82599 datasheet, 7.3).
//!
//! With MSI-X each vector has a cause bit, a mask bit and a throttle. The message clears the cause. Without, the first 16 bits of the cause
//! register are what the queues are allocated to, and the pin follows causes and masks.

use super::file::File;
use super::reg::{self, bit};
use crate::device::Msi;
use crate::pci::MsiX;
use crate::state::{StateError, require};
use network::Time;
use network::time::SECOND;
use serde::{Deserialize, Serialize};

/// Vectors of MSI-X.
pub const VECTORS: usize = 64;
/// Causes of queues in the cause register; the others are above.
const QUEUE_CAUSES: u32 = 0xffff;
/// A unit of a throttle's interval: 2 us at 10 Gb/s; the interval begins at bit 3 of its register.
const INTERVAL: Time = SECOND / 500_000;
const INTERVAL_SHIFT: u32 = 3;

/// Which way a queue goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Receive = 0,
    Transmit = 1,
}

/// Causes and masks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupts {
    /// By vector, or without MSI-X by bit of the cause register.
    pending: u64,
    mask: u64,
    /// Causes that are not of queues, in their places of the register.
    other: u32,
    other_mask: u32,
    /// The driver has not been told of some of these.
    other_is_new: bool,
    /// By vector: when it may interrupt again.
    ready: Vec<Time>,
    /// The pin.
    line: bool,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self { pending: 0, mask: 0, other: 0, other_mask: 0, other_is_new: false, ready: vec![0; VECTORS], line: false }
    }
}

/// An entry of the allocation table. `None`: the cause is not allocated.
fn allocated(entry: u32) -> Option<usize> {
    (entry & bit::IVAR_VALID != 0).then_some(entry as usize & (VECTORS - 1))
}

/// The vector of all causes that are not of queues.
fn other_vector(file: &File) -> Option<usize> {
    allocated(file.get(reg::IVAR_MISC) >> 8)
}

fn interval(file: &File, vector: usize) -> Time {
    let at = vector as u32 * 4;
    let register = if vector < 24 { reg::EITR + at } else { reg::EITR_HIGH + at - 24 * 4 };
    Time::from((file.get(register) & bit::EITR_INTERVAL) >> INTERVAL_SHIFT) * INTERVAL
}

impl Interrupts {
    /// A queue has something for the driver.
    pub fn queue(&mut self, file: &File, queue: usize, way: Way) {
        let shift = 16 * (queue % 2) + 8 * way as usize;
        let entry = file.get(reg::IVAR + queue as u32 / 2 * 4) >> shift;
        if let Some(vector) = allocated(entry) {
            self.pending |= 1 << vector;
        }
    }

    /// A cause that is not of a queue.
    pub fn cause(&mut self, causes: u32) {
        let causes = causes & !QUEUE_CAUSES;
        self.other |= causes;
        self.other_is_new |= causes != 0;
    }

    /// The cause register.
    pub fn causes(&self) -> u32 {
        self.pending as u32 & QUEUE_CAUSES | self.other
    }

    /// The mask register.
    pub fn masks(&self) -> u32 {
        self.mask as u32 & QUEUE_CAUSES | self.other_mask
    }

    /// The driver reads the cause register, which clears it. Without MSI-X some causes are masked by that.
    pub fn read_causes(&mut self, file: &File, msix: bool) -> u32 {
        let causes = self.causes();
        if !msix {
            self.disable(causes & file.get(reg::EIAM));
        }
        self.clear(causes);
        causes
    }

    /// The driver clears causes.
    pub fn clear(&mut self, causes: u32) {
        self.pending &= !u64::from(causes & QUEUE_CAUSES);
        self.other &= !causes;
    }

    /// The driver raises causes.
    pub fn raise(&mut self, causes: u32) {
        self.pending |= u64::from(causes & QUEUE_CAUSES);
        self.cause(causes);
    }

    /// The driver opens masks.
    pub fn enable(&mut self, causes: u32) {
        self.mask |= u64::from(causes & QUEUE_CAUSES);
        self.other_mask |= causes & !QUEUE_CAUSES;
        self.other_is_new |= self.other & self.other_mask != 0;
    }

    /// And closes them.
    pub fn disable(&mut self, causes: u32) {
        self.mask &= !u64::from(causes & QUEUE_CAUSES);
        self.other_mask &= !causes;
    }

    /// Likewise for 32 vectors of MSI-X, the first or the second.
    pub fn raise_vectors(&mut self, half: u32, vectors: u32) {
        self.pending |= u64::from(vectors) << (32 * half);
    }

    pub fn enable_vectors(&mut self, half: u32, vectors: u32) {
        self.mask |= u64::from(vectors) << (32 * half);
    }

    pub fn disable_vectors(&mut self, half: u32, vectors: u32) {
        self.mask &= !(u64::from(vectors) << (32 * half));
    }

    /// Masks of 32 vectors.
    pub fn vector_masks(&self, half: u32) -> u32 {
        (self.mask >> (32 * half)) as u32
    }

    /// The driver writes a throttle.
    pub fn throttle(&mut self, vector: usize, value: u32) {
        if value & bit::EITR_KEEP_COUNTER == 0
            && let Some(ready) = self.ready.get_mut(vector)
        {
            *ready = 0;
        }
    }

    /// Vectors that would interrupt if their throttles let them.
    fn due(&self, file: &File) -> u64 {
        let other = if self.other_is_new && self.other & self.other_mask != 0 { other_vector(file) } else { None };
        self.pending & self.mask | other.map_or(0, |vector| 1 << vector)
    }

    /// Whether the pin is to be high.
    fn wants_line(&self) -> bool {
        self.causes() & self.masks() != 0
    }

    /// Interrupts, as far as there is reason to.
    pub fn settle(&mut self, now: Time, file: &File, msix: &mut MsiX, out: &mut Vec<Msi>) {
        if !msix.enabled() {
            let wanted = self.wants_line();
            if wanted && !self.line && self.ready[0] <= now {
                self.line = true;
                self.ready[0] = now.saturating_add(interval(file, 0));
            }
            self.line &= wanted;
            return;
        }
        self.line = false;
        let mut due = self.due(file);
        while due != 0 {
            let vector = due.trailing_zeros() as usize;
            due &= due - 1;
            if self.ready[vector] > now {
                continue;
            }
            self.ready[vector] = now.saturating_add(interval(file, vector));
            let masks = file.wide(reg::EIAM_EX, reg::EIAM_EX + 4) & 1 << vector;
            if self.pending & self.mask & 1 << vector != 0 {
                self.pending &= !(1 << vector);
                if file.has(reg::GPIE, bit::GPIE_AUTO_MASK) {
                    self.mask &= !masks;
                }
            }
            if other_vector(file) == Some(vector) {
                self.other_is_new = false;
            }
            msix.raise(vector as u16, out);
        }
    }

    /// When it interrupts by itself.
    pub fn next_event(&self, now: Time, file: &File, msix: bool) -> Option<Time> {
        if !msix {
            return Some(self.ready[0]).filter(|ready| self.wants_line() && !self.line && *ready > now);
        }
        let due = self.due(file);
        let vectors = (0..VECTORS).filter(|vector| due >> vector & 1 != 0);
        vectors.map(|vector| self.ready[vector]).filter(|ready| *ready > now).min()
    }

    /// Whether the pin is asserted.
    pub fn line(&self) -> bool {
        self.line
    }

    /// Whether causes and masks can be these.
    pub fn check(&self) -> Result<(), StateError> {
        let places = (self.other | self.other_mask) & QUEUE_CAUSES == 0;
        require(places && self.ready.len() == VECTORS, "the interrupts of a network device")
    }
}
