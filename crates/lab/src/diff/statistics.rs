//! Means, standard deviations, and the confidence interval of a difference of two means.
//!
//! The interval is Welch's, for two samples with unequal variances: Student's t with the degrees of freedom of Welch and Satterthwaite
//! (B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved", Biometrika 34, 1947).

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The confidence level of intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Statistics of one figure over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Number of runs.
    pub runs: usize,
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
        Self { runs, mean, deviation, least, most }
    }

    /// Returns the standard deviation as a fraction of the mean.
    pub fn spread(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { self.deviation / self.mean }
    }

    /// Returns the variance of the mean.
    fn uncertainty(&self) -> f64 {
        self.deviation.powi(2) / self.runs as f64
    }
}

/// A confidence interval of a difference, at the level [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns the interval of the difference between the means of two samples. None if a sample has fewer than two values.
    pub fn of_difference(before: &Sample, after: &Sample) -> Option<Self> {
        if before.runs < 2 || after.runs < 2 {
            return None;
        }
        let difference = after.mean - before.mean;
        let (first, second) = (before.uncertainty(), after.uncertainty());
        let both = first + second;
        if both == 0.0 {
            return Some(Self { low: difference, high: difference });
        }
        let part = |uncertainty: f64, sample: &Sample| uncertainty.powi(2) / (sample.runs - 1) as f64;
        let freedom = both.powi(2) / (part(first, before) + part(second, after));
        let t = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(0.5 + CONFIDENCE / 2.0);
        let half = t * both.sqrt();
        Some(Self { low: difference - half, high: difference + half })
    }

    /// Returns true if the interval contains zero.
    pub fn has_zero(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    /// Returns the interval as fractions of `whole`.
    pub fn relative_to(&self, whole: f64) -> Self {
        Self { low: self.low / whole, high: self.high / whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4 * b.abs().max(1e-3)
    }

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let sample = Sample::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!(near(sample.mean, 5.0) && near(sample.deviation, (32.0f64 / 7.0).sqrt()));
        assert_eq!((sample.least, sample.most, sample.runs), (2.0, 9.0, 8));
        let one = Sample::of(&[0.1]);
        assert_eq!((one.mean, one.deviation), (0.1, 0.0));
        assert_eq!(Sample::of(&[0.1; 7]).deviation, 0.0);
    }

    /// The expected values are those of R's `t.test(b, a)`.
    #[test]
    fn the_interval_is_welchs() {
        // Two of three values each with equal deviations have four degrees of freedom, where t is 2.776445.
        let (a, b) = (Sample::of(&[1.0, 2.0, 3.0]), Sample::of(&[5.0, 6.0, 7.0]));
        let interval = Interval::of_difference(&a, &b).unwrap();
        let half = 2.776_445 * (2.0f64 / 3.0).sqrt();
        assert!(near(interval.low, 4.0 - half) && near(interval.high, 4.0 + half), "{interval:?}");
        assert!(!interval.has_zero());
        // If only one sample varies, it alone contributes degrees of freedom: one, for which t is 12.7062.
        let (a, b) = (Sample::of(&[10.0, 10.0]), Sample::of(&[11.0, 13.0]));
        let interval = Interval::of_difference(&a, &b).unwrap();
        assert!(near(interval.high, 2.0 + 12.7062), "{interval:?}");
        assert!(interval.has_zero());
        assert!(near(interval.relative_to(10.0).high, 1.47062));
    }

    #[test]
    fn values_that_do_not_vary_are_sure() {
        let (a, b) = (Sample::of(&[5.0; 3]), Sample::of(&[6.0; 3]));
        assert_eq!(Interval::of_difference(&a, &b), Some(Interval { low: 1.0, high: 1.0 }));
        assert!(Interval::of_difference(&a, &a).unwrap().has_zero());
        assert_eq!(Interval::of_difference(&Sample::of(&[5.0]), &Sample::of(&[6.0])), None);
    }
}
