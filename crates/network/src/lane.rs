//! One direction of a link.

use crate::frame::Frame;
use crate::time::{Rate, Time};
use serde::{Deserialize, Serialize};

/// Bytes that may wait for a link behind a bridge or at the host's end; further frames are lost.
const BUFFER: u64 = 2 << 20;

/// One direction of a link: frames follow each other at its rate, and arrive later by its latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    rate: Rate,
    latency: Time,
    /// When the last bit of what was sent leaves the sender.
    busy: Time,
}

impl Lane {
    /// A link on which nothing is sent yet.
    pub fn new(rate: Rate, latency: Time) -> Self {
        Self { rate, latency, busy: 0 }
    }

    /// Bits per second.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// How long a frame takes beside the time for its bits.
    pub fn latency(&self) -> Time {
        self.latency
    }

    /// From when on the sender can send another frame.
    pub fn busy(&self) -> Time {
        self.busy
    }

    /// Whether a frame that is to be sent now finds room before the link.
    pub fn has_room(&self, now: Time) -> bool {
        self.busy.saturating_sub(now) <= self.rate.duration(BUFFER)
    }

    /// Sends a frame as soon as the link is free, but not before `now`. When it has arrived.
    pub fn send(&mut self, now: Time, frame: &Frame) -> Time {
        self.occupy(now, frame.occupies().0)
    }

    /// Likewise for a frame that occupies so many bytes.
    pub fn occupy(&mut self, now: Time, bytes: u64) -> Time {
        self.busy = self.busy.max(now).saturating_add(self.rate.duration(bytes));
        self.busy.saturating_add(self.latency)
    }

    /// When a frame that occupies so many bytes would have arrived if it was sent.
    pub fn arrival(&self, now: Time, bytes: u64) -> Time {
        self.clone().occupy(now, bytes)
    }

    /// Whether it can be the state of `current`.
    pub fn is_state_of(&self, current: &Self) -> bool {
        (self.rate, self.latency) == (current.rate, current.latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_each_other() {
        let mut lane = Lane::new(Rate::TEN_GIGABITS, 1000);
        let frame = Frame::new(vec![0; 60]).unwrap();
        assert_eq!(lane.send(5, &frame), 5 + 67_200 + 1000);
        assert_eq!(lane.send(5, &frame), 5 + 2 * 67_200 + 1000);
        assert_eq!((lane.send(1_000_000, &frame), lane.busy()), (1_068_200, 1_067_200));
        assert!(lane.has_room(0));
        while lane.has_room(0) {
            lane.occupy(0, 1 << 16);
        }
        assert_eq!(lane.busy() / Rate::TEN_GIGABITS.duration(1 << 16), 32);
    }
}
