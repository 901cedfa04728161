//! Interrupts: causes, their allocation to vectors, masks, and throttling (82599 datasheet, 7.3).
//!
//! With MSI-X each vector has a cause bit, a mask bit and a throttle, and the message clears the cause. Without MSI-X
//! the queues are allocated to the first 16 bits of the cause register, and the INTx pin follows causes and masks.

use super::file::File;
use super::reg::{self, bit};
use crate::device::Msi;
use crate::pci::MsiX;
use crate::state::{StateError, require};
use network::Time;
use network::time::SECOND;
use serde::{Deserialize, Serialize};

/// Number of MSI-X vectors.
pub const VECTORS: usize = 64;
/// Bits of the cause register that belong to queues; the other causes are above them.
const QUEUE_CAUSES: u32 = 0xffff;
/// Unit of the throttling interval: 2 us at 10 Gb/s. The interval begins at bit 3 of EITR.
const INTERVAL: Time = SECOND / 500_000;
const INTERVAL_SHIFT: u32 = 3;

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Receive = 0,
    Transmit = 1,
}

/// Causes and masks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupts {
    /// Pending causes by vector or, without MSI-X, by bit of the cause register.
    pending: u64,
    mask: u64,
    /// Pending causes other than queues, at their bits of the cause register.
    other: u32,
    other_mask: u32,
    /// True if the driver has not been told of some of these causes.
    other_is_new: bool,
    /// Earliest time of the next interrupt, by vector.
    ready: Vec<Time>,
    /// Level of the INTx pin.
    line: bool,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self { pending: 0, mask: 0, other: 0, other_mask: 0, other_is_new: false, ready: vec![0; VECTORS], line: false }
    }
}

/// Decodes an entry of the allocation table. Returns `None` if the cause is not allocated.
fn allocated(entry: u32) -> Option<usize> {
    (entry & bit::IVAR_VALID != 0).then_some(entry as usize & (VECTORS - 1))
}

/// Returns the vector of all causes other than queues.
fn other_vector(file: &File) -> Option<usize> {
    allocated(file.get(reg::IVAR_MISC) >> 8)
}

fn interval(file: &File, vector: usize) -> Time {
    let at = vector as u32 * 4;
    let register = if vector < 24 { reg::EITR + at } else { reg::EITR_HIGH + at - 24 * 4 };
    Time::from((file.get(register) & bit::EITR_INTERVAL) >> INTERVAL_SHIFT) * INTERVAL
}

impl Interrupts {
    /// Records a cause of a queue.
    pub fn queue(&mut self, file: &File, queue: usize, way: Way) {
        let shift = 16 * (queue % 2) + 8 * way as usize;
        let entry = file.get(reg::IVAR + queue as u32 / 2 * 4) >> shift;
        if let Some(vector) = allocated(entry) {
            self.pending |= 1 << vector;
        }
    }

    /// Records causes other than queues.
    pub fn cause(&mut self, causes: u32) {
        let causes = causes & !QUEUE_CAUSES;
        self.other |= causes;
        self.other_is_new |= causes != 0;
    }

    /// Returns the value of the cause register.
    pub fn causes(&self) -> u32 {
        self.pending as u32 & QUEUE_CAUSES | self.other
    }

    /// Returns the value of the mask register.
    pub fn masks(&self) -> u32 {
        self.mask as u32 & QUEUE_CAUSES | self.other_mask
    }

    /// Handles a read of the cause register, which clears it. Without MSI-X the read also masks some causes.
    pub fn read_causes(&mut self, file: &File, msix: bool) -> u32 {
        let causes = self.causes();
        if !msix {
            self.disable(causes & file.get(reg::EIAM));
        }
        self.clear(causes);
        causes
    }

    /// Handles a write that clears causes.
    pub fn clear(&mut self, causes: u32) {
        self.pending &= !u64::from(causes & QUEUE_CAUSES);
        self.other &= !causes;
    }

    /// Handles a write that sets causes.
    pub fn raise(&mut self, causes: u32) {
        self.pending |= u64::from(causes & QUEUE_CAUSES);
        self.cause(causes);
    }

    /// Handles a write that unmasks causes.
    pub fn enable(&mut self, causes: u32) {
        self.mask |= u64::from(causes & QUEUE_CAUSES);
        self.other_mask |= causes & !QUEUE_CAUSES;
        self.other_is_new |= self.other & self.other_mask != 0;
    }

    /// Handles a write that masks causes.
    pub fn disable(&mut self, causes: u32) {
        self.mask &= !u64::from(causes & QUEUE_CAUSES);
        self.other_mask &= !causes;
    }

    /// Sets causes of 32 MSI-X vectors, of the lower or the upper half.
    pub fn raise_vectors(&mut self, half: u32, vectors: u32) {
        self.pending |= u64::from(vectors) << (32 * half);
    }

    pub fn enable_vectors(&mut self, half: u32, vectors: u32) {
        self.mask |= u64::from(vectors) << (32 * half);
    }

    pub fn disable_vectors(&mut self, half: u32, vectors: u32) {
        self.mask &= !(u64::from(vectors) << (32 * half));
    }

    /// Returns the masks of 32 vectors.
    pub fn vector_masks(&self, half: u32) -> u32 {
        (self.mask >> (32 * half)) as u32
    }

    /// Handles a write to a throttle register.
    pub fn throttle(&mut self, vector: usize, value: u32) {
        if value & bit::EITR_KEEP_COUNTER == 0
            && let Some(ready) = self.ready.get_mut(vector)
        {
            *ready = 0;
        }
    }

    /// Returns the vectors that have an unmasked cause, throttled or not.
    fn due(&self, file: &File) -> u64 {
        let other = if self.other_is_new && self.other & self.other_mask != 0 { other_vector(file) } else { None };
        self.pending & self.mask | other.map_or(0, |vector| 1 << vector)
    }

    /// Returns true if the INTx pin should be asserted.
    fn wants_line(&self) -> bool {
        self.causes() & self.masks() != 0
    }

    /// Sends the interrupts that are due.
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

    /// Returns the time at which a throttled interrupt is due.
    pub fn next_event(&self, now: Time, file: &File, msix: bool) -> Option<Time> {
        if !msix {
            return Some(self.ready[0]).filter(|ready| self.wants_line() && !self.line && *ready > now);
        }
        let due = self.due(file);
        let vectors = (0..VECTORS).filter(|vector| due >> vector & 1 != 0);
        vectors.map(|vector| self.ready[vector]).filter(|ready| *ready > now).min()
    }

    /// Returns true if the INTx pin is asserted.
    pub fn line(&self) -> bool {
        self.line
    }

    /// Checks restored causes and masks.
    pub fn check(&self) -> Result<(), StateError> {
        let places = (self.other | self.other_mask) & QUEUE_CAUSES == 0;
        require(places && self.ready.len() == VECTORS, "the interrupts of a network device")
    }
}
