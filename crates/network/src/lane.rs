//! One direction of a link.

use crate::frame::Frame;
use crate::time::{Rate, Time};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes that wait for a link after a bridge or at the host's end; further frames are lost.
const BUFFER: u64 = 2 << 20;

/// One direction of a link: frames follow each other at its rate, and arrive after its latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    rate: Rate,
    latency: Time,
    /// Time at which the last bit sent so far leaves the sender.
    busy: Time,
}

impl Lane {
    /// Creates an idle link.
    pub fn new(rate: Rate, latency: Time) -> Self {
        Self { rate, latency, busy: 0 }
    }

    /// Returns the bit rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the latency of a frame in addition to its transmission time.
    pub fn latency(&self) -> Time {
        self.latency
    }

    /// Returns the time from which the sender can send another frame.
    pub fn busy(&self) -> Time {
        self.busy
    }

    /// Returns true if there is room before the link for a frame that is sent now.
    pub fn has_room(&self, now: Time) -> bool {
        self.busy.saturating_sub(now) <= self.rate.duration(BUFFER)
    }

    /// Sends a frame as soon as the link is free, but not before `now`. Returns its time of arrival.
    pub fn send(&mut self, now: Time, frame: &Frame) -> Time {
        self.occupy(now, frame.occupies().0)
    }

    /// Sends a frame that occupies `bytes` bytes. Returns its time of arrival.
    pub fn occupy(&mut self, now: Time, bytes: u64) -> Time {
        self.busy = self.busy.max(now).saturating_add(self.rate.duration(bytes));
        self.busy.saturating_add(self.latency)
    }

    /// Returns the time at which a frame that occupies `bytes` bytes would arrive.
    pub fn arrival(&self, now: Time, bytes: u64) -> Time {
        self.clone().occupy(now, bytes)
    }

    /// Returns true if it can be a state of `current`.
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
