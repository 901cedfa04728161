//! Fewer interrupts (virtio 1.2, 5.1.6.5.9): the driver hears of so many frames at once, or after so long.

use network::Time;
use network::time::SECOND;
use serde::{Deserialize, Serialize};

/// What a driver has asked for, of one queue, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Frames.
    pub packets: u32,
    /// Microseconds; 0: the driver hears of each frame at once.
    pub usecs: u32,
    /// Frames of which the driver has not heard, and when it will.
    waiting: u32,
    due: Option<Time>,
}

impl Coalescing {
    /// So many frames more have been passed at this time. Whether the driver is to hear of them now.
    pub fn passed(&mut self, frames: u32, now: Time) -> bool {
        self.waiting = self.waiting.saturating_add(frames);
        let deadline = || now.saturating_add(u64::from(self.usecs) * (SECOND / 1_000_000));
        let due = *self.due.get_or_insert_with(deadline);
        let enough = self.usecs == 0 || now >= due || self.packets != 0 && self.waiting >= self.packets;
        if enough {
            (self.waiting, self.due) = (0, None);
        }
        enough
    }

    /// When the driver is to hear of what waits.
    pub fn due(&self) -> Option<Time> {
        self.due.filter(|_| self.waiting > 0)
    }

    /// Takes what the driver asks for.
    pub fn set(&mut self, packets: u32, usecs: u32) {
        (self.packets, self.usecs) = (packets, usecs);
    }
}
