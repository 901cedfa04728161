//! The statistics of pairs of runs: Wilcoxon's signed rank test, the Hodges-Lehmann estimate with its interval, and the looks at which a growing number of
//! pairs is judged.
//!
//! F. Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1, 1945; J. W. Tukey (the interval, in M. Hollander and D. A. Wolfe,
//! "Nonparametric Statistical Methods", section 3.3); C. Jennison and B. W. Turnbull, "Repeated confidence intervals", 1989 (intervals that hold at all looks
//! together). [Decision 28](../../../../docs/decisions/0028-answers.md) has the reasons.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};

/// The probability with which any interval of a diff may miss the true value, over all looks together.
const MISSED: f64 = 0.05;
/// Numbers of pairs at which the interval is computed, and the probability that each look spends. The first is the smallest number whose interval can have
/// 95% confidence: it is then the range of all differences, which six of one sign exceed by chance in two cases of 64. The other looks share the rest.
pub const LOOKS: [Look; 5] = [
    Look { pairs: 6, spends: 2.0 / 64.0 },
    Look { pairs: 9, spends: REST },
    Look { pairs: 13, spends: REST },
    Look { pairs: 19, spends: REST },
    Look { pairs: 28, spends: REST },
];
const REST: f64 = (MISSED - 2.0 / 64.0) / 4.0;
/// Number of pairs beyond which the distribution of the signed rank is taken as normal.
const MOST_EXACT: usize = 100;
/// The probability that a suggested number of pairs decides, if the difference is the estimated one.
const POWER: f64 = 0.8;
/// The pairs that a t test of normal differences needs, as a part of those that the signed rank needs: 3 / π.
const EFFICIENCY: f64 = 0.955;
/// The deviation of normal values, divided by their mean distance from the median: the root of π / 2.
const OF_NORMAL: f64 = 1.2533;
/// The largest number of pairs that is suggested: the most that `--layouts` takes.
const MOST_SUGGESTED: f64 = 1000.0;

/// A look at the pairs so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Number of pairs.
    pub pairs: usize,
    /// The probability with which the interval of this look may miss.
    pub spends: f64,
}

/// Statistics of one figure over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Number of runs.
    pub runs: usize,
    /// Median.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divisor n - 1); 0 for one value.
    pub deviation: f64,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
}

impl Sample {
    /// Computes the statistics of at least one value.
    pub fn of(values: &[f64]) -> Self {
        let runs = values.len();
        // Equal values have that value as their mean, without a rounding error.
        let first = values.first().copied().unwrap_or_default();
        let mean = first + values.iter().map(|value| value - first).sum::<f64>() / runs.max(1) as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if runs > 1 { (squares / (runs - 1) as f64).sqrt() } else { 0.0 };
        let least = values.iter().copied().fold(first, f64::min);
        let most = values.iter().copied().fold(first, f64::max);
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self { runs, median: median(&sorted), mean, deviation, least, most }
    }

    /// Returns the standard deviation as a fraction of the mean.
    pub fn spread(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { self.deviation / self.mean }
    }
}

/// Returns the median of sorted values; 0 if there is none.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.len() % 2) {
        (None, _) => 0.0,
        (Some(upper), 0) => (sorted[half - 1] + upper) / 2.0,
        (Some(middle), _) => *middle,
    }
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The probability with which an interval of this kind contains the true value, together with those of earlier looks.
    pub confidence: f64,
}

impl Interval {
    /// Returns true if the interval contains zero.
    pub fn has_zero(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    /// Returns true if the interval lies between `-margin` and `margin`, which are no part of that.
    pub fn is_within(&self, margin: f64) -> bool {
        -margin < self.low && self.high < margin
    }

    /// Returns the greatest distance from zero.
    pub fn reach(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// Returns the interval with other ends.
    pub fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self { low: of(self.low), high: of(self.high), ..self }
    }
}

/// When the number of pairs is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Before the first run: one look has the whole probability of a miss.
    Fixed,
    /// At [`LOOKS`]: the last look, also one that a time limit enforces, has the probability that those before it have left.
    Looks,
}

impl Plan {
    /// Returns the look after `pairs` pairs. With [`Plan::Looks`] all looks at fewer pairs have taken place.
    pub fn look(self, pairs: usize) -> Look {
        let scheduled = LOOKS.iter().find(|look| look.pairs == pairs).copied();
        match (self, scheduled) {
            (Self::Looks, Some(look)) => look,
            (Self::Looks, None) => {
                let spent: f64 = LOOKS.iter().filter(|look| look.pairs < pairs).map(|look| look.spends).sum();
                Look { pairs, spends: MISSED - spent }
            }
            (Self::Fixed, _) => Look { pairs, spends: MISSED },
        }
    }
}

/// The estimate of the middle of paired differences.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The Hodges-Lehmann estimate: the median of the means of all pairs of differences.
    pub middle: f64,
    /// The deviation of a difference, from the mean distance to the median. It follows a single wild value less than a standard deviation does.
    deviation: f64,
    /// The interval of the signed rank. Its confidence is less than that of the look where there are fewer than six differences. None for one difference.
    pub interval: Option<Interval>,
}

impl Estimate {
    /// Estimates the middle of at least one difference.
    pub fn of(differences: &[f64], look: Look) -> Self {
        let mut walsh: Vec<f64> = (0..differences.len())
            .flat_map(|i| (i..differences.len()).map(move |j| (i, j)))
            // The mean of a value and itself is that value, without a rounding error.
            .map(|(i, j)| if i == j { differences[i] } else { f64::midpoint(differences[i], differences[j]) })
            .collect();
        walsh.sort_by(f64::total_cmp);
        let interval = (differences.len() > 1).then(|| {
            let (at, missed) = cut(differences.len(), look.spends);
            // What earlier looks have spent lies between the whole and what this look may spend.
            let confidence = 1.0 - if missed > look.spends { missed } else { MISSED };
            Interval { low: walsh[at], high: walsh[walsh.len() - 1 - at], confidence }
        });
        let mut sorted = differences.to_vec();
        sorted.sort_by(f64::total_cmp);
        let center = median(&sorted);
        let distance: f64 = sorted.iter().map(|value| (value - center).abs()).sum();
        let deviation = OF_NORMAL * distance / (differences.len() as f64 - 1.0).max(1.0);
        Self { middle: median(&walsh), deviation, interval }
    }

    /// Returns the number of pairs, more than `pairs`, whose interval would probably reach no further than `distance` from the estimate; None if that is more
    /// than `--layouts` takes. The width of an interval falls with the root of the number.
    pub fn suggested(&self, pairs: usize, distance: f64) -> Option<u16> {
        let normal = Normal::standard();
        let deviations = normal.inverse_cdf(1.0 - MISSED / 2.0) + normal.inverse_cdf(POWER);
        let needed = (deviations * self.deviation / distance).powi(2) / EFFICIENCY;
        let needed = needed.ceil().max(pairs as f64 + 1.0).max(LOOKS[0].pairs as f64);
        (needed <= MOST_SUGGESTED).then_some(needed as u16)
    }
}

/// Returns the number of Walsh averages to leave out at each end, so that the interval misses with at most the given probability, and the probability with
/// which it does. For fewer than six differences no average is left out, and the interval misses more often.
fn cut(count: usize, missed: f64) -> (usize, f64) {
    if count > MOST_EXACT {
        let n = count as f64;
        let (mean, deviation) = (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt());
        let z = Normal::standard().inverse_cdf(1.0 - missed / 2.0);
        return ((mean - z * deviation).floor().max(0.0) as usize, missed);
    }
    // The probability of each sum of ranks, if every rank is added in half of the cases.
    let most = count * (count + 1) / 2;
    let mut sums = vec![0.0; most + 1];
    sums[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..=most).rev() {
            let without = sums[sum];
            sums[sum] = (without + if sum >= rank { sums[sum - rank] } else { 0.0 }) / 2.0;
        }
    }
    // The interval without `at` averages at each end excludes what the sums up to `at` speak against.
    let (mut at, mut below) = (0, sums[0]);
    while 2.0 * (below + sums[at + 1]) <= missed {
        at += 1;
        below += sums[at];
    }
    (at, 2.0 * below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1e-3)
    }

    #[test]
    fn median_mean_and_deviation_are_those_of_a_sample() {
        let sample = Sample::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!(near(sample.mean, 5.0) && near(sample.deviation, (32.0f64 / 7.0).sqrt()));
        assert_eq!((sample.median, sample.least, sample.most, sample.runs), (4.5, 2.0, 9.0, 8));
        let one = Sample::of(&[0.1]);
        assert_eq!((one.median, one.mean, one.deviation), (0.1, 0.1, 0.0));
        assert_eq!(Sample::of(&[0.1; 7]).deviation, 0.0);
        assert_eq!(Sample::of(&[3.0, 1.0, 2.0]).median, 2.0);
    }

    /// The values of R's `psignrank`: the largest sums for which twice the probability is at most 5%, in any table of the test.
    #[test]
    fn the_cut_is_that_of_tables() {
        let two_sided = |count| cut(count, 0.05).0;
        assert_eq!([6, 7, 8, 9, 10, 15, 20, 25, 50].map(two_sided), [0, 2, 3, 5, 8, 25, 52, 89, 434]);
        assert_eq!([8, 9, 10, 15, 20, 25, 50].map(|count| cut(count, 0.01).0), [0, 1, 3, 15, 37, 68, 373]);
        assert!(near(cut(6, 0.05).1, 2.0 / 64.0) && near(cut(9, REST).1, 2.0 / 512.0));
        assert!(near(cut(5, 0.05).1, 2.0 / 32.0), "no interval of five differences has 95%");
        // Where the distribution is taken as normal, it is.
        let exact = cut(MOST_EXACT, 0.05).0;
        let next = cut(MOST_EXACT + 1, 0.05).0;
        assert!((20..80).contains(&(next - exact)), "{exact} {next}");
    }

    /// Darwin's fifteen pairs of plants (R: `wilcox.test(d, conf.int = TRUE)` gives 3.14 and [0.5, 5.21] for ZeaMays$diff).
    #[test]
    fn the_interval_is_that_of_the_signed_rank() {
        let eighths = [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];
        let differences = eighths.map(|eighths: f64| eighths / 8.0);
        let found = Estimate::of(&differences, Plan::Fixed.look(15));
        let interval = found.interval.unwrap();
        assert!(near(found.middle, 3.125) && near(interval.low, 0.5) && near(interval.high, 5.1875), "{found:?}");
        assert_eq!(interval.confidence, 0.95);
    }

    #[test]
    fn one_wild_value_moves_neither_end_far() {
        let calm: Vec<f64> = (1..=15).map(f64::from).collect();
        let wild = [&calm[..14], &[9000.0]].concat();
        let [calm, wild] = [calm, wild].map(|values| Estimate::of(&values, Plan::Fixed.look(15)));
        assert_eq!((calm.middle, wild.middle), (8.0, 8.0));
        let [calm, wild] = [calm, wild].map(|estimate| estimate.interval.unwrap());
        assert!(wild.high <= calm.high + 1.0 && wild.low == calm.low, "{calm:?} {wild:?}");
    }

    #[test]
    fn few_differences_have_less_confidence_and_one_has_no_interval() {
        let two = Estimate::of(&[1.0, 2.0], Plan::Fixed.look(2)).interval.unwrap();
        assert_eq!(two, Interval { low: 1.0, high: 2.0, confidence: 0.5 });
        assert_eq!(Estimate::of(&[1.0; 5], Plan::Fixed.look(5)).interval.unwrap().confidence, 0.9375);
        let one = Estimate::of(&[3.0], Plan::Fixed.look(1));
        assert_eq!((one.middle, one.interval), (3.0, None));
    }

    #[test]
    fn all_looks_together_spend_what_one_may() {
        assert!(near(LOOKS.iter().map(|look| look.spends).sum::<f64>(), MISSED));
        // A look that a time limit enforces has what is left.
        assert!(near(Plan::Looks.look(8).spends, MISSED - 2.0 / 64.0));
        assert!(near(Plan::Looks.look(3).spends, MISSED));
        assert_eq!(Plan::Looks.look(9), LOOKS[1]);
        assert!(near(Plan::Fixed.look(9).spends, MISSED));
    }

    /// Sequences without a difference: in at most one of twenty does any look exclude zero.
    #[test]
    fn many_looks_do_not_find_more_differences_than_there_are() {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (mut found, mut found_by_last) = (0, 0);
        for _ in 0..4000 {
            // Heavy tails: a few layouts cost far more than others.
            let values: Vec<f64> = (0..28).map(|_| (uniform() - 0.5) / (uniform() + 0.05)).collect();
            let excludes = |look: &Look| !Estimate::of(&values[..look.pairs], *look).interval.unwrap().has_zero();
            found += i32::from(LOOKS.iter().any(excludes));
            found_by_last += i32::from(excludes(&LOOKS[4]));
        }
        assert!((100..200).contains(&found), "{found} of 4000 sequences");
        assert!(found_by_last < 40, "{found_by_last} of 4000 sequences");
    }

    #[test]
    fn a_suggested_number_is_one_that_does() {
        // A difference of 1 with a deviation of some 3 needs about eighty pairs.
        let estimate = Estimate::of(&[-3.0, 5.0, 0.0, 2.0, -4.0, 6.0, 1.0, -1.0, 3.0], LOOKS[1]);
        let pairs = estimate.suggested(9, 1.0).unwrap();
        assert!((60..150).contains(&pairs), "{pairs}");
        // A distance that is larger needs fewer, and more than there are.
        assert_eq!(estimate.suggested(9, 10.0), Some(10));
        // Nothing is suggested for what is far smaller than the spread.
        assert_eq!(estimate.suggested(9, 1e-9), None);
    }
}
