//! The host's time beside the guest's.

use std::time::{Duration, Instant};

/// Keeps an idle guest's clock beside the host's.
#[derive(Debug, Default)]
pub struct Pace {
    /// The host's time and the guest's from which on both pass alike.
    since: Option<(Instant, Duration)>,
}

impl Pace {
    /// How far the guest may be behind the host: so much is made up for the time that a sleep takes too long.
    const SLACK: Duration = Duration::from_millis(100);

    /// The guest has done something, which takes another time on the host.
    pub fn worked(&mut self) {
        self.since = None;
    }

    /// How long the host must wait until the idle guest's time has come.
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

/// The host's time that a run takes.
#[derive(Debug, Default)]
pub struct HostClock {
    /// Up to when the run last went on.
    before: Duration,
    /// Since when it has been going on.
    since: Option<Instant>,
}

impl HostClock {
    /// The run goes on.
    pub fn start(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// The run stands still.
    pub fn stop(&mut self) {
        self.before = self.elapsed();
        self.since = None;
    }

    /// How long it has been going on so far.
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
