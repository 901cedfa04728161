//! The local APIC's timer: one-shot, periodic and TSC-deadline.
//!
//! Instead of a counter the timer stores the time at which counting started and the number of timer clocks at which it
//! expires next. The current count is therefore exact at any time, and periods do not drift.

use crate::state::{StateError, require, same};
use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

use crate::devices::Clock;

/// LVT timer mode (bits 18:17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Counts down once.
    #[default]
    OneShot,
    /// Reloads the initial count.
    Periodic,
    /// Expires when the TSC reaches `IA32_TSC_DEADLINE`.
    Deadline,
}

impl Mode {
    /// Decodes the field; the reserved value is treated as one-shot.
    pub fn from_lvt(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            1 => Mode::Periodic,
            2 => Mode::Deadline,
            _ => Mode::OneShot,
        }
    }
}

/// A running counter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    origin: Ticks,
    /// Number of timer clocks after `origin` at which the counter expires.
    expires: u64,
}

/// The timer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timer {
    clock: Clock,
    hz: u64,
    mode: Mode,
    divide_bits: u32,
    initial: u32,
    run: Option<Run>,
    deadline: u64,
    tsc_offset: u64,
    due: Option<Ticks>,
}

impl Timer {
    /// Creates a stopped timer whose undivided clock runs at `hz`.
    pub fn new(clock: Clock, hz: u64) -> Self {
        Self {
            clock,
            hz: hz.max(1),
            mode: Mode::OneShot,
            divide_bits: 0,
            initial: 0,
            run: None,
            deadline: 0,
            tsc_offset: 0,
            due: None,
        }
    }

    /// Resets the timer. The TSC offset belongs to the processor and is kept.
    pub fn reset(&mut self) {
        *self = Self { tsc_offset: self.tsc_offset, ..Self::new(self.clock, self.hz) };
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the time of the next expiry.
    pub fn due(&self) -> Option<Ticks> {
        self.due
    }

    /// Returns the initial count register.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// Returns the divide configuration register.
    pub fn divide_bits(&self) -> u32 {
        self.divide_bits
    }

    /// Returns `IA32_TSC_DEADLINE`.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    fn divisor(&self) -> u64 {
        // Bits 3, 1 and 0 encode 2, 4, ... 128, and then 1.
        let exponent = (((self.divide_bits >> 1) & 4 | self.divide_bits & 3) + 1) & 7;
        1 << exponent
    }

    fn elapsed(&self, origin: Ticks, now: Ticks) -> u64 {
        self.clock.count(now.saturating_sub(origin), self.hz) / self.divisor()
    }

    fn reschedule(&mut self) {
        self.due = self.upcoming();
    }

    /// Computes the time of the next expiry.
    fn upcoming(&self) -> Option<Ticks> {
        match self.mode {
            Mode::Deadline => (self.deadline != 0).then(|| {
                // The offset is signed: it is negative if the guest has set its TSC back.
                let cycles = i128::from(self.deadline) - i128::from(self.tsc_offset as i64);
                u64::try_from(cycles.max(0)).unwrap_or(u64::MAX).saturating_mul(TICKS_PER_CYCLE)
            }),
            _ => self.run.map(|run| {
                let clocks = run.expires.saturating_mul(self.divisor());
                run.origin.saturating_add(self.clock.ticks(clocks, self.hz))
            }),
        }
    }

    /// Advances the timer to `now`. Returns true if it expired.
    pub fn advance(&mut self, now: Ticks) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        match (self.mode, self.run) {
            (Mode::Deadline, _) => self.deadline = 0,
            (Mode::Periodic, Some(run)) if self.initial > 0 => {
                let period = u64::from(self.initial);
                let late = self.elapsed(run.origin, now).saturating_sub(run.expires) / period;
                let expires = run.expires.saturating_add(late.saturating_add(1).saturating_mul(period));
                self.run = Some(Run { expires, ..run });
            }
            _ => self.run = None,
        }
        self.reschedule();
        true
    }

    /// Returns the current count register.
    pub fn current(&self, now: Ticks) -> u32 {
        let left = self.run.map_or(0, |run| run.expires.saturating_sub(self.elapsed(run.origin, now)));
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Sets the mode from a new LVT value. A change between one-shot and periodic keeps the current count; a change to
    /// or from TSC-deadline disarms the timer.
    pub fn set_mode(&mut self, mode: Mode) {
        if mode == self.mode {
            return;
        }
        if mode == Mode::Deadline || self.mode == Mode::Deadline {
            self.run = None;
            self.deadline = 0;
            self.initial = 0;
        }
        self.mode = mode;
        self.reschedule();
    }

    /// Writes the initial count register: starts counting, or stops if `count` is 0.
    pub fn set_initial(&mut self, count: u32, now: Ticks) {
        if self.mode == Mode::Deadline {
            return;
        }
        self.initial = count;
        self.run = (count > 0).then(|| Run { origin: now, expires: u64::from(count) });
        self.reschedule();
    }

    /// Writes the divide configuration register; a running counter continues from its current count.
    pub fn set_divide(&mut self, bits: u32, now: Ticks) {
        let left = self.current(now);
        self.divide_bits = bits & 0xb;
        if self.run.is_some() {
            self.run = Some(Run { origin: now, expires: u64::from(left) });
        }
        self.reschedule();
    }

    /// Writes `IA32_TSC_DEADLINE`; the write is ignored in the other modes.
    pub fn set_deadline(&mut self, deadline: u64) {
        if self.mode == Mode::Deadline {
            self.deadline = deadline;
            self.reschedule();
        }
    }

    /// Sets the difference between the guest's TSC and the virtual clock (two's complement).
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
        self.reschedule();
    }
}

impl Timer {
    /// Checks that this can be a state of `current`.
    pub fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&(self.clock, self.hz), &(current.clock, current.hz), "TSC frequency")?;
        require(self.divide_bits & !0xb == 0 && self.due == self.upcoming(), "an APIC timer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock::new(2_000_000_000);
    /// Number of ticks per timer clock.
    const STEP: u64 = 2000;

    fn timer() -> Timer {
        let mut timer = Timer::new(CLOCK, 1_000_000_000);
        timer.set_divide(0xb, 0);
        timer
    }

    #[test]
    fn divisors() {
        for (bits, divisor) in [(0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (0xa, 128), (0xb, 1)] {
            let mut timer = timer();
            timer.set_divide(bits, 0);
            assert_eq!(timer.divisor(), divisor, "{bits:#x}");
        }
    }

    #[test]
    fn one_shot_expires_once_at_zero() {
        let mut timer = timer();
        timer.set_initial(100, 0);
        assert_eq!(timer.current(40 * STEP), 60);
        assert!(!timer.advance(100 * STEP - 1));
        assert!(timer.advance(100 * STEP));
        assert_eq!((timer.current(100 * STEP), timer.due()), (0, None));
        assert!(!timer.advance(1000 * STEP));
    }

    #[test]
    fn periodic_keeps_phase_when_served_late() {
        let mut timer = timer();
        timer.set_mode(Mode::Periodic);
        timer.set_initial(100, 0);
        assert!(timer.advance(350 * STEP));
        assert_eq!(timer.due(), Some(400 * STEP));
        assert_eq!(timer.current(350 * STEP), 50);
    }

    #[test]
    fn mode_change_keeps_counting() {
        let mut timer = timer();
        timer.set_initial(100, 0);
        timer.set_mode(Mode::Periodic);
        assert_eq!(timer.current(70 * STEP), 30);
        assert!(timer.advance(100 * STEP));
        timer.set_mode(Mode::OneShot);
        assert!(timer.advance(200 * STEP));
        timer.set_mode(Mode::Periodic);
        assert_eq!((timer.current(200 * STEP), timer.due()), (0, None), "a counter at zero stays there");
    }

    #[test]
    fn deadline_arms_in_tsc_units_and_clears() {
        let mut timer = timer();
        timer.set_deadline(5);
        assert_eq!(timer.deadline(), 0, "ignored in one-shot mode");
        timer.set_mode(Mode::Deadline);
        timer.set_tsc_offset(1000);
        timer.set_deadline(1500);
        assert_eq!(timer.due(), Some(500_000));
        assert!(timer.advance(500_000));
        assert_eq!(timer.deadline(), 0);
        timer.set_deadline(10);
        assert!(timer.advance(500_000), "a past deadline expires at once");
        timer.set_tsc_offset(1000u64.wrapping_neg());
        timer.set_deadline(1500);
        assert_eq!(timer.due(), Some(2_500_000), "a TSC that was set back");
        timer.set_deadline(u64::MAX);
        assert_eq!(timer.due(), Some(u64::MAX), "the far future is not the past");
        timer.set_deadline(0);
        assert_eq!(timer.due(), None);
        timer.set_deadline(9999);
        timer.set_mode(Mode::OneShot);
        assert_eq!((timer.deadline(), timer.due()), (0, None));
    }

    #[test]
    fn divide_change_goes_on_from_the_current_count() {
        let mut timer = timer();
        timer.set_initial(100, 0);
        timer.set_divide(0, 50 * STEP);
        assert_eq!(timer.due(), Some(150 * STEP));
    }
}
