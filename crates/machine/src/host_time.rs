//! Host time in relation to guest time.

use std::time::{Duration, Instant};

/// Keeps the clock of an idle guest in step with the host's clock.
#[derive(Debug, Default)]
pub struct Pace {
    /// Host time and guest time from which on both pass at the same rate.
    since: Option<(Instant, Duration)>,
}

impl Pace {
    /// Maximum lag of the guest behind the host that is made up for after a sleep that took too long.
    const SLACK: Duration = Duration::from_millis(100);

    /// Restarts the measurement after the guest has executed, which takes a different time on the host.
    pub fn worked(&mut self) {
        self.since = None;
    }

    /// Returns the time that the host must wait until the idle guest's time has come.
    pub fn ahead(&mut self, guest: Duration) -> Option<Duration> {
        let now = Instant::now();
        let (host, start) = *self.since.get_or_insert((now, guest));
        let due = host + guest.saturating_sub(start);
        if now > due + Self::SLACK {
            self.since = Some((now, guest));
        }
        due.checked_duration_since(now)
    }
}

/// Stopwatch for the host time of a run.
#[derive(Debug, Default)]
pub struct HostClock {
    /// Time up to the last stop.
    before: Duration,
    /// Time of the last start, while the stopwatch runs.
    since: Option<Instant>,
}

impl HostClock {
    /// Starts the stopwatch.
    pub fn start(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Stops the stopwatch.
    pub fn stop(&mut self) {
        self.before = self.elapsed();
        self.since = None;
    }

    /// Returns the elapsed time.
    pub fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_passes_while_the_run_stands_still() {
        let mut clock = HostClock::default();
        assert_eq!(clock.elapsed(), Duration::ZERO);
        clock.start();
        std::thread::sleep(Duration::from_millis(2));
        clock.stop();
        let then = clock.elapsed();
        assert!(then >= Duration::from_millis(2));
        std::thread::sleep(Duration::from_millis(2));
        clock.stop();
        assert_eq!(clock.elapsed(), then);
        clock.start();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.elapsed() >= then + Duration::from_millis(2));
    }
}
