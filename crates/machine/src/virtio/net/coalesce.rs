//! Notification coalescing (virtio 1.2, 5.1.6.5.9): the device notifies the driver after a number of frames, or after a
//! time.

use network::Time;
use network::time::SECOND;
use serde::{Deserialize, Serialize};

/// Coalescing parameters of one queue, and the frames that wait for a notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Maximum number of frames without a notification.
    pub packets: u32,
    /// Maximum delay in microseconds; 0 means that every frame is notified at once.
    pub usecs: u32,
    /// Number of frames without a notification, and the time of that notification.
    waiting: u32,
    due: Option<Time>,
}

impl Coalescing {
    /// Counts frames that were passed to the driver at time `now`. Returns true if the driver should be notified now.
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

    /// Returns the time at which the driver should be notified of waiting frames.
    pub fn due(&self) -> Option<Time> {
        self.due.filter(|_| self.waiting > 0)
    }

    /// Sets the parameters.
    pub fn set(&mut self, packets: u32, usecs: u32) {
        (self.packets, self.usecs) = (packets, usecs);
    }
}
