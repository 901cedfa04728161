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

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Time = SECOND / 1_000_000;

    #[test]
    fn a_notification_waits_for_frames_or_for_time() {
        // Maximum frames and microseconds; then frames passed, at a time, and the notification: now, or due later.
        type Passed = (u32, Time, bool, Option<Time>);
        let cases: [(u32, u32, &[Passed]); 4] = [
            (0, 0, &[(1, 5, true, None)]),
            (9, 0, &[(1, 5, true, None)]),
            (
                3,
                10,
                &[
                    (1, 2, false, Some(12)),
                    (1, 11, false, Some(12)),
                    (1, 11, true, None),
                    (2, 20, false, Some(30)),
                    (0, 29, false, Some(30)),
                    (0, 30, true, None),
                    (4, 40, true, None),
                ],
            ),
            (0, 10, &[(0, 0, false, None), (1000, 1, false, Some(10)), (1000, 10, true, None)]),
        ];
        for (packets, usecs, steps) in cases {
            let mut coalescing = Coalescing::default();
            coalescing.set(packets, usecs);
            assert_eq!((coalescing.packets, coalescing.usecs, coalescing.due()), (packets, usecs, None));
            for (frames, now, notified, due) in steps {
                assert_eq!(coalescing.passed(*frames, now * MICROSECOND), *notified, "{packets} {usecs} at {now}");
                assert_eq!(coalescing.due(), due.map(|due| due * MICROSECOND), "{packets} {usecs} at {now}");
            }
        }
    }
}
