//! Host time in relation to guest time. The callers say what time it is on the host, so that tests need no clock.

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
    pub fn ahead(&mut self, now: Instant, guest: Duration) -> Option<Duration> {
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
    pub fn start(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Stops the stopwatch.
    pub fn stop(&mut self, now: Instant) {
        self.before = self.elapsed(now);
        self.since = None;
    }

    /// Returns the elapsed time.
    pub fn elapsed(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn no_time_passes_while_the_run_stands_still() {
        let begin = Instant::now();
        let mut clock = HostClock::default();
        assert_eq!(clock.elapsed(begin + ms(1)), Duration::ZERO);
        clock.start(begin + ms(1));
        clock.start(begin + ms(2));
        assert_eq!(clock.elapsed(begin + ms(4)), ms(3));
        clock.stop(begin + ms(5));
        assert_eq!(clock.elapsed(begin + ms(100)), ms(4));
        clock.stop(begin + ms(200));
        assert_eq!(clock.elapsed(begin + ms(200)), ms(4));
        clock.start(begin + ms(300));
        assert_eq!(clock.elapsed(begin + ms(307)), ms(11));
    }

    #[test]
    fn an_idle_guest_waits_until_the_hosts_time_is_its_own() {
        let begin = Instant::now();
        let mut pace = Pace::default();
        // Both begin here, whatever either's time is.
        assert_eq!(pace.ahead(begin, ms(1000)), Some(ms(0)));
        assert_eq!(pace.ahead(begin + ms(10), ms(1030)), Some(ms(20)));
        assert_eq!(pace.ahead(begin + ms(30), ms(1030)), Some(ms(0)));
        // What a sleep that took too long was too long is made up for,
        assert_eq!(pace.ahead(begin + ms(120), ms(1040)), None);
        assert_eq!(pace.ahead(begin + ms(125), ms(1150)), Some(ms(25)));
        // but not more than the maximum: from here on both pass at the same rate.
        assert_eq!(pace.ahead(begin + ms(251), ms(1150)), None);
        assert_eq!(pace.ahead(begin + ms(251), ms(1160)), Some(ms(10)));
        // A guest that has worked begins anew.
        pace.worked();
        assert_eq!(pace.ahead(begin + ms(400), ms(1200)), Some(ms(0)));
    }
}
