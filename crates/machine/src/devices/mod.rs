//! The devices of the board: registers, time and interrupt lines. A device does not know its addresses on the board.
//!
//! The board accesses all devices through one trait, [`crate::device::Device`]. Each file implements the trait at its
//! end, in terms of the methods before it, which are the device itself and have these properties in common:
//!
//! * **Registers.** `read` and `write` take the register (a port or an offset) and, if time matters, `now`. Devices
//! with
//! 8-bit registers are accessed byte by byte ([`read_bytes`], [`write_bytes`] split wider accesses).
//! * **Time.** `next_event()` is the absolute time of the device's next event; the board calls `advance(now)` when it
//! is
//! due. Between events a device computes its registers from `now`: nothing ticks.
//! * **Interrupts.** A device with an interrupt output has a [`Line`], whose changes it reports to the board after each
//! access. For controllers, `set_irq` takes levels, and messages for local APICs are taken out one by one.
//!
//! No sequence of guest accesses makes a device panic, and the behaviour depends on nothing but the arguments.

use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

pub mod debug_exit;
pub mod fw_cfg;
pub mod i8042;
pub mod ioapic;
pub mod lapic;
pub mod marker;
pub mod network;
pub mod pic;
pub mod pit;
pub mod pm;
pub mod port80;
pub mod pvpanic;
pub mod reset;
pub mod rtc;
pub mod serial;
pub mod status;
pub mod testdev;
pub mod workload;

/// Nanoseconds in a second.
pub const NS_PER_SECOND: u64 = 1_000_000_000;

/// Relation of the virtual clock to real time. The TSC counts core cycles of the profiled processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    tsc_hz: u64,
}

impl Clock {
    /// Creates a clock whose TSC runs at `tsc_hz` (at least 1).
    pub const fn new(tsc_hz: u64) -> Self {
        Self { tsc_hz: if tsc_hz == 0 { 1 } else { tsc_hz } }
    }

    /// Returns the TSC frequency.
    pub const fn tsc_hz(self) -> u64 {
        self.tsc_hz
    }

    /// Returns the number of ticks in one second.
    pub const fn ticks_per_second(self) -> u128 {
        self.tsc_hz as u128 * TICKS_PER_CYCLE as u128
    }

    /// Returns the number of whole periods of a signal of `hz` in `ticks`.
    pub fn count(self, ticks: Ticks, hz: u64) -> u64 {
        saturate(u128::from(ticks) * u128::from(hz) / self.ticks_per_second())
    }

    /// Returns the shortest time that contains `count` periods of a signal of `hz`: the inverse of [`Clock::count`].
    pub fn ticks(self, count: u64, hz: u64) -> Ticks {
        let scaled = u128::from(count).saturating_mul(self.ticks_per_second());
        saturate(scaled.div_ceil(u128::from(hz.max(1))))
    }

    /// Converts ticks to nanoseconds, rounded down.
    pub fn to_ns(self, ticks: Ticks) -> u64 {
        self.count(ticks, NS_PER_SECOND)
    }

    /// Converts nanoseconds to ticks, rounded up.
    pub fn from_ns(self, ns: u64) -> Ticks {
        self.ticks(ns, NS_PER_SECOND)
    }
}

/// Converts to `u64` and saturates: times that far in the future never come.
fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// An interrupt output of a device: its level, and the changes that have not been reported to the board.
///
/// Several pulses between two drains collapse into one, as they would in an interrupt controller that nobody served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    level: bool,
    told: bool,
    rose: bool,
}

impl Line {
    /// Drives the line.
    pub fn set(&mut self, level: bool) {
        self.rose |= level && !self.level;
        self.level = level;
    }

    /// Pulses the line: low, then high; it stays high.
    pub fn strobe(&mut self) {
        self.set(false);
        self.set(true);
    }

    /// Returns the current level.
    pub fn level(&self) -> bool {
        self.level
    }

    /// Marks a high level as not reported: the next drain reports it again.
    pub fn forgotten(&mut self) {
        self.told = false;
    }

    /// Calls `sink` with each level to be reported, in order; at most three times.
    pub fn drain(&mut self, mut sink: impl FnMut(bool)) {
        if self.rose {
            if self.told {
                sink(false);
            }
            sink(true);
            if !self.level {
                sink(false);
            }
        } else if self.told != self.level {
            sink(self.level);
        }
        self.told = self.level;
        self.rose = false;
    }
}

/// Assembles a little-endian read of `size` bytes (at most 4) from byte registers.
pub fn read_bytes(port: u16, size: u8, mut byte: impl FnMut(u16) -> u8) -> u32 {
    (0..u16::from(size.min(4))).fold(0, |value, i| value | u32::from(byte(port.wrapping_add(i))) << (8 * i))
}

/// Splits a little-endian write of `size` bytes (at most 4) into byte registers.
pub fn write_bytes(port: u16, size: u8, value: u32, mut byte: impl FnMut(u16, u8)) {
    for i in 0..u16::from(size.min(4)) {
        byte(port.wrapping_add(i), (value >> (8 * i)) as u8);
    }
}

#[cfg(test)]
mod wiring_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_conversions_are_exact_inverses() {
        for tsc_hz in [1, 999_999_937, 2_100_000_000, 3_600_000_000] {
            let clock = Clock::new(tsc_hz);
            for hz in [1, 32_768, 1_193_182, 3_579_545, NS_PER_SECOND] {
                for count in [1, 2, 3, 1000, 65_536, 123_456_789] {
                    let ticks = clock.ticks(count, hz);
                    if ticks == u64::MAX {
                        continue;
                    }
                    assert!(clock.count(ticks, hz) >= count, "{tsc_hz} {hz} {count}");
                    assert!(clock.count(ticks - 1, hz) < count, "{tsc_hz} {hz} {count}");
                }
            }
        }
    }

    #[test]
    fn clock_saturates_far_away() {
        assert_eq!(Clock::new(u64::MAX).ticks(u64::MAX, 1), u64::MAX);
        assert_eq!(Clock::new(0).count(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn line_tells_each_change_once() {
        // (levels set by the device, levels reported to the board)
        let table: [(&[bool], &[bool]); 6] = [
            (&[true], &[true]),
            (&[true], &[]),
            (&[false, true], &[false, true]),
            (&[false], &[false]),
            (&[true, false], &[true, false]),
            (&[true, false, true, false], &[true, false]),
        ];
        let mut line = Line::default();
        for (levels, heard) in table {
            levels.iter().for_each(|&level| line.set(level));
            let mut out = Vec::new();
            line.drain(|level| out.push(level));
            assert_eq!(out, heard, "{levels:?}");
        }
    }

    #[test]
    fn wide_accesses_are_little_endian() {
        let mut out = Vec::new();
        write_bytes(0xffff, 4, 0x0403_0201, |port, value| out.push((port, value)));
        assert_eq!(out, [(0xffff, 1), (0, 2), (1, 3), (2, 4)]);
        assert_eq!(read_bytes(0x10, 2, |port| port as u8), 0x1110);
    }
}
