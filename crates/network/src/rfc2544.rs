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
    /// The search ends when `low` and `high` differ by one part in this number of `low`.
    parts: u64,
    /// Minimum rate that is tried.
    floor: u64,
    /// Permitted loss, in frames per million.
    tolerance: u32,
    /// Rate of the next trial; 0 after the search.
    rate: u64,
    trials: Vec<Trial>,
}

impl Search {
    /// Creates a search from a rate of `floor` up to a rate of `fastest`, which is tried first. The precision of the result is one
    /// part in `parts` of the result. The permitted loss is `tolerance` frames per million; RFC 2544 permits none.
    pub fn new(fastest: u64, floor: u64, parts: u64, tolerance: u32) -> Self {
        let fastest = fastest.max(1);
        let floor = floor.clamp(1, fastest);
        Self { low: 0, high: fastest, parts: parts.max(1), floor, tolerance, rate: fastest, trials: Vec::new() }
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
        // A trial without a frame shows nothing.
        if well && sent > 0 {
            self.low = self.rate;
        } else {
            self.high = self.rate;
        }
        self.rate = match self.low {
            0 if self.high <= self.floor => 0,
            0 => (self.high / 2).max(self.floor),
            low if self.high - low <= (low / self.parts).max(1) => 0,
            low => low + (self.high - low) / 2,
        };
    }

    /// Returns the minimum rate that is tried.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the throughput after the search: 0 if frames were lost at every rate, also at the floor.
    pub fn throughput(&self) -> Option<u64> {
        (self.rate == 0).then_some(self.low)
    }

    /// Returns the trials.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Returns true if the state is possible.
    pub fn is_possible(&self) -> bool {
        let ordered = self.low <= self.high && self.rate <= self.high && (1..=self.high).contains(&self.floor);
        ordered && self.parts > 0 && self.trials.len() <= 128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches for a throughput with a function that returns the number of frames sent and received at a rate.
    fn throughput(mut search: Search, mut trial: impl FnMut(u64) -> (u64, u64)) -> Search {
        while let Some(rate) = search.rate() {
            let (sent, received) = trial(rate);
            search.tried(sent, received);
        }
        search
    }

    #[test]
    fn the_search_finds_the_capacity_to_one_percent_of_itself() {
        for capacity in [1_000, 29_700, 58_100, 1_234_567, 14_880_951, 14_880_952, 20_000_000] {
            // Trials of a second.
            let search = throughput(Search::new(14_880_952, 1, 100, 0), |rate| (rate, rate.min(capacity)));
            let found = search.throughput().unwrap();
            let expected = capacity.min(14_880_952);
            assert!((expected - expected / 100..=expected).contains(&found), "{capacity}: {found}");
            assert!(search.trials().len() <= 24);
            assert!(search.is_possible());
        }
    }

    #[test]
    fn a_search_without_a_good_trial_ends_at_its_floor() {
        let search = throughput(Search::new(14_880_952, 100, 100, 0), |rate| (rate / 100, 0));
        assert_eq!((search.throughput(), search.floor()), (Some(0), 100));
        assert_eq!(search.trials().last().map(|trial| (trial.rate, trial.sent)), Some((100, 1)));
        // The floor itself may be the throughput.
        let search = throughput(Search::new(14_880_952, 100, 100, 0), |rate| (rate / 100, 1));
        assert_eq!(search.throughput().map(|rate| rate / 100), Some(1));
        // A link that is slower than the floor, and a trial that sends nothing.
        assert_eq!(throughput(Search::new(7, 100, 100, 0), |_| (1, 1)).throughput(), Some(7));
        assert_eq!(throughput(Search::new(7, 1, 100, 0), |_| (0, 0)).throughput(), Some(0));
        assert!(throughput(Search::new(u64::MAX, 1, 100, 0), |rate| (rate, rate.min(1))).is_possible());
    }

    #[test]
    fn a_search_halves_what_is_left_and_then_stands() {
        let mut search = throughput(Search::new(1_000, 10, 100, 0), |rate| (rate, rate.min(600)));
        let rates: Vec<u64> = search.trials().iter().map(|trial| trial.rate).collect();
        assert_eq!(rates, [1_000, 500, 750, 625, 562, 593, 609, 601, 597]);
        assert_eq!((search.rate(), search.throughput()), (None, Some(597)));
        let end = search.clone();
        search.tried(5, 5);
        assert_eq!(search, end);
        assert_eq!(Search::new(1_000, 10, 100, 0).throughput(), None, "it has not ended");
    }

    #[test]
    fn forged_states_of_a_search_are_impossible() {
        let trial = Trial { rate: 5, sent: 5, received: 5 };
        let search = Search { low: 5, high: 9, parts: 100, floor: 9, tolerance: 0, rate: 9, trials: vec![trial; 128] };
        assert!(search.is_possible());
        assert!(Search { low: 9, parts: 1, ..search.clone() }.is_possible());
        for forged in [
            Search { low: 10, ..search.clone() },
            Search { rate: 10, ..search.clone() },
            Search { floor: 0, ..search.clone() },
            Search { floor: 10, ..search.clone() },
            Search { parts: 0, ..search.clone() },
            Search { trials: vec![trial; 129], ..search.clone() },
        ] {
            assert!(!forged.is_possible(), "{forged:?}");
        }
    }

    #[test]
    fn loss_within_the_tolerance_is_none() {
        for (sent, lost, tolerance, well) in [
            (1_000, 0, 0, true),
            (1_000, 1, 999, false),
            (1_000, 1, 1_000, true),
            (1_000, 2, 1_999, false),
            (4, 4, 1_000_000, true),
        ] {
            let mut search = Search::new(9, 1, 100, tolerance);
            search.tried(sent, sent - lost);
            assert_eq!(search.throughput(), well.then_some(9), "{lost} of {sent} with {tolerance}");
        }
        let trial = |rate: u64| (rate, rate - rate.div_ceil(2000));
        assert_eq!(throughput(Search::new(1_000_000, 1, 100, 0), trial).throughput(), Some(0));
        assert_eq!(throughput(Search::new(1_000_000, 1, 100, 500), trial).throughput(), Some(1_000_000));
    }
}
