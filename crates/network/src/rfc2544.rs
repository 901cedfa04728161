//! Throughput as defined by RFC 2544 (section 26.1): the maximum rate without frame loss, found by binary search over
//! trials.

use serde::{Deserialize, Serialize};

/// A trial at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Frames per second.
    pub rate: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
}

/// A binary search for the throughput.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// Maximum rate without loss so far.
    low: u64,
    /// Minimum rate with loss so far; initially the maximum rate to be tried.
    high: u64,
    /// Difference of the rates at which the search ends.
    precision: u64,
    /// Permitted loss, in frames per million.
    tolerance: u32,
    /// Rate of the next trial; 0 after the search.
    rate: u64,
    trials: Vec<Trial>,
}

impl Search {
    /// Creates a search up to a rate, which is tried first. The precision of the result is one part in `parts` of it.
    /// The permitted loss is `tolerance` frames per million; RFC 2544 permits none.
    pub fn new(fastest: u64, parts: u64, tolerance: u32) -> Self {
        let fastest = fastest.max(1);
        let precision = (fastest / parts.max(1)).max(1);
        Self { low: 0, high: fastest, precision, tolerance, rate: fastest, trials: Vec::new() }
    }

    /// Returns the rate of the next trial, or `None` after the search.
    pub fn rate(&self) -> Option<u64> {
        (self.rate != 0).then_some(self.rate)
    }

    /// Records the result of a trial.
    pub fn tried(&mut self, sent: u64, received: u64) {
        if self.rate == 0 {
            return;
        }
        self.trials.push(Trial { rate: self.rate, sent, received });
        let lost = sent.saturating_sub(received);
        let well = u128::from(lost) * 1_000_000 <= u128::from(sent) * u128::from(self.tolerance);
        if well {
            self.low = self.rate;
        } else {
            self.high = self.rate;
        }
        let over = self.high - self.low <= self.precision || self.low == self.high;
        self.rate = if over { 0 } else { self.low + (self.high - self.low) / 2 };
    }

    /// Returns the throughput after the search: 0 if frames were lost at every rate.
    pub fn throughput(&self) -> Option<u64> {
        (self.rate == 0).then_some(self.low)
    }

    /// Returns the trials.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Returns true if the state is possible.
    pub fn is_possible(&self) -> bool {
        self.low <= self.high && self.rate <= self.high && self.precision > 0 && self.trials.len() <= 128
    }
}

/// Searches for a throughput with a function that returns the number of frames sent and received at a rate.
pub fn throughput(mut search: Search, mut trial: impl FnMut(u64) -> (u64, u64)) -> Search {
    while let Some(rate) = search.rate() {
        let (sent, received) = trial(rate);
        search.tried(sent, received);
    }
    search
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_the_capacity() {
        for capacity in [0, 1, 100, 1_234_567, 14_880_951, 14_880_952, 20_000_000] {
            let search = throughput(Search::new(14_880_952, 1000, 0), |rate| (rate / 100, rate.min(capacity) / 100));
            let found = search.throughput().unwrap();
            let expected = capacity.min(14_880_952);
            assert!(found.abs_diff(expected) <= 14_880 + 100, "{capacity}: {found}");
            assert!(search.trials().len() <= 12);
            assert!(search.is_possible());
        }
    }

    #[test]
    fn loss_within_the_tolerance_is_none() {
        let trial = |rate| (rate, rate - rate / 2000);
        assert_eq!(throughput(Search::new(1_000_000, 100, 0), trial).throughput(), Some(0));
        assert_eq!(throughput(Search::new(1_000_000, 100, 500), trial).throughput(), Some(1_000_000));
    }
}
