//! Virtual time and bit rates of links.

use serde::{Deserialize, Serialize};

/// A point in virtual time, or a duration, in picoseconds: one bit takes 100 of them at 10 Gb/s, and 10 at 100 Gb/s.
pub type Time = u64;

/// Picoseconds in a nanosecond.
pub const NANOSECOND: Time = 1_000;
/// Picoseconds in a second.
pub const SECOND: Time = 1_000_000_000_000;

/// A bit rate, in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rate(u64);

impl Rate {
    /// 10 Gb/s.
    pub const TEN_GIGABITS: Self = Self(10_000_000_000);
    /// Minimum and maximum rate of a link.
    pub const LIMITS: (Self, Self) = (Self(1_000), Self(1_000_000_000_000));

    /// Creates a rate within [`Rate::LIMITS`].
    pub fn new(bits: u64) -> Option<Self> {
        (Self::LIMITS.0..=Self::LIMITS.1).contains(&Self(bits)).then_some(Self(bits))
    }

    /// Returns the rate in bits per second.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the rate in whole megabits per second.
    pub fn megabits(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// Returns the transmission time of a number of bytes, rounded up.
    pub fn duration(self, bytes: u64) -> Time {
        let bits = u128::from(bytes) * 8;
        u64::try_from((bits * u128::from(SECOND)).div_ceil(u128::from(self.0.max(1)))).unwrap_or(Time::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_frame_takes_what_is_published() {
        // 64 bytes, and 20 bytes of preamble and gap, at line rate.
        for (gigabits, picoseconds) in [(10, 67_200), (25, 26_880), (40, 16_800), (100, 6_720)] {
            let rate = Rate::new(gigabits * 1_000_000_000).unwrap();
            assert_eq!(rate.duration(84), picoseconds, "{gigabits} Gb/s");
        }
        assert_eq!(SECOND / Rate::TEN_GIGABITS.duration(84), 14_880_952);
        assert_eq!(SECOND / Rate::TEN_GIGABITS.duration(1538), 812_743);
    }

    #[test]
    fn rates_have_limits_and_durations_are_rounded_up() {
        let most = 1_000_000_000_000;
        assert_eq!([999, most + 1].map(Rate::new), [None; 2]);
        assert_eq!([1_000, most].map(|bits| Rate::new(bits).map(Rate::bits)), [Some(1_000), Some(most)]);
        assert_eq!(Rate::TEN_GIGABITS.megabits(), 10_000);
        assert_eq!(Rate::new(3_000_000_000).unwrap().duration(1), 2_667);
        assert_eq!(Rate::new(1_000).unwrap().duration(u64::MAX), Time::MAX);
    }
}
