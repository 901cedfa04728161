//! Virtual time and the rates of links.

use serde::{Deserialize, Serialize};

/// A point in virtual time, or a duration, in picoseconds: one bit at 10 Gb/s takes 100 of them, at 100 Gb/s 10.
pub type Time = u64;

/// Picoseconds in a nanosecond.
pub const NANOSECOND: Time = 1_000;
/// Picoseconds in a second.
pub const SECOND: Time = 1_000_000_000_000;

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rate(u64);

impl Rate {
    /// 10 Gb/s.
    pub const TEN_GIGABITS: Self = Self(10_000_000_000);
    /// The slowest and the fastest link.
    pub const LIMITS: (Self, Self) = (Self(1_000), Self(1_000_000_000_000));

    /// So many bits per second, within [`Rate::LIMITS`].
    pub fn new(bits: u64) -> Option<Self> {
        (Self::LIMITS.0..=Self::LIMITS.1).contains(&Self(bits)).then_some(Self(bits))
    }

    /// Bits per second.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whole megabits per second.
    pub fn megabits(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// How long bytes take, rounded up.
    pub fn duration(self, bytes: u64) -> Time {
        let bits = u128::from(bytes) * 8;
        u64::try_from((bits * u128::from(SECOND)).div_ceil(u128::from(self.0.max(1)))).unwrap_or(Time::MAX)
    }

    /// Whether it is a rate that [`Rate::new`] makes.
    pub fn is_valid(self) -> bool {
        Self::new(self.0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_frame_takes_what_is_published() {
        // 64 bytes and 20 of preamble and gap, at line rate.
        for (gigabits, picoseconds) in [(10, 67_200), (25, 26_880), (40, 16_800), (100, 6_720)] {
            let rate = Rate::new(gigabits * 1_000_000_000).unwrap();
            assert_eq!(rate.duration(84), picoseconds, "{gigabits} Gb/s");
        }
        assert_eq!(SECOND / Rate::TEN_GIGABITS.duration(84), 14_880_952);
        assert_eq!(SECOND / Rate::TEN_GIGABITS.duration(1538), 812_743);
        assert_eq!(Rate::new(999), None);
    }
}
