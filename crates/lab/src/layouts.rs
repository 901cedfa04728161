//! Cells in several layouts: each layout has a mebibyte of memory more than the one before, which moves what the guest's kernel places in memory. The mean of a figure over layouts
//! has an interval, and two cells are compared layout by layout.
//!
//! Student, "The probable error of a mean", Biometrika 6, 1908.

use crate::Experiment;
use crate::diff::statistics::Sample;
use crate::difference::Pair;
use crate::format::figure;
use crate::results::{CellResult, ExperimentResult};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The probability with which an interval misses the true value.
const MISSED: f64 = 0.05;

/// The mean of a figure over layouts, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Spread {
    /// Returns the mean of at least two figures with Student's interval.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Sample { mean, deviation, .. } = Sample::of(values);
        let count = values.len() as f64;
        let student = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
        let half = student.inverse_cdf(1.0 - MISSED / 2.0) * deviation / count.sqrt();
        Some(Self { mean, low: mean - half, high: mean + half })
    }

    /// Returns the geometric mean of factors with the interval of their logarithms.
    pub fn of_factors(factors: &[f64]) -> Option<Self> {
        let logarithms: Vec<f64> = factors.iter().map(|factor| factor.ln()).collect();
        let Self { mean, low, high } = Self::of(&logarithms).filter(|spread| spread.mean.is_finite())?;
        Some(Self { mean: mean.exp(), low: low.exp(), high: high.exp() })
    }

    /// Formats the mean with its interval: `548.2 (542.1 to 554.4)`.
    pub fn text(&self, figure: impl Fn(f64) -> String) -> String {
        format!("{} ({} to {})", figure(self.mean), figure(self.low), figure(self.high))
    }
}

/// The comparison of two cells in several layouts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The factor by which the second cell is faster.
    pub factor: Spread,
    /// The difference of the second cell from the first, in the unit of both.
    pub difference: Spread,
}

impl Compared {
    /// Formats the difference: `+12.50 (3.10 to 21.90) us`.
    pub fn difference(&self, unit: &str) -> String {
        let sign = if self.difference.mean > 0.0 { "+" } else { "" };
        format!("{sign}{} {unit}", self.difference.text(figure))
    }
}

impl Pair {
    /// Compares both cells layout by layout; `None` if they have no layouts.
    pub fn compared(&self, experiment: &Experiment, result: &ExperimentResult) -> Option<Compared> {
        let (before, after) = self.measured(experiment, result)?;
        let rate = experiment.rows[self.from.0].metric.is_rate();
        let pairs = || before.layouts.iter().zip(&after.layouts);
        let factors: Vec<f64> = pairs().map(|(a, b)| if rate { b / a } else { a / b }).collect();
        let differences: Vec<f64> = pairs().map(|(a, b)| b - a).collect();
        Some(Compared { factor: Spread::of_factors(&factors)?, difference: Spread::of(&differences)? })
    }
}

/// Returns true if a table of pairs has a column of differences: without layouts, a difference says no more than the factor.
pub fn has_differences(pairs: &[Pair], experiment: &Experiment, result: &ExperimentResult) -> bool {
    pairs.iter().any(|pair| pair.compared(experiment, result).is_some())
}

/// Makes one result of those of several layouts. A cell that failed in one layout has failed. A cell that was not run in all layouts, because the run was interrupted, has those up to
/// the first in which it was not run, so that the layouts of two cells are the same as far as both have them. All but the values are those of the first layout.
pub fn joined(layouts: &[ExperimentResult]) -> Option<ExperimentResult> {
    let (first, others) = layouts.split_first()?;
    if others.is_empty() {
        return Some(first.clone());
    }
    let cells = first.cells.iter().map(|cell| {
        let found = layouts.iter().map(|result| result.cells.iter().find(|other| other.id() == cell.id()));
        let all: Vec<&CellResult> = found.map_while(|cell| cell).collect();
        let mut cell = cell.clone();
        if let Some(failed) = all.iter().find(|cell| cell.measured.is_none()) {
            cell.failure.clone_from(&failed.failure);
            cell.measured = None;
            return cell;
        }
        let measured = || all.iter().filter_map(|cell| cell.measured.as_ref());
        let values: Vec<f64> = measured().map(|measured| measured.value).collect();
        let functions = measured().map(|measured| measured.entries.symbols.clone()).collect();
        if let (Some(measured), Some(spread)) = (&mut cell.measured, Spread::of(&values)) {
            measured.ratio = measured.ratio.and(measured.published).map(|published| spread.mean / published);
            measured.value = spread.mean;
            measured.layouts = values;
            measured.functions = functions;
        }
        cell
    });
    Some(ExperimentResult { cells: cells.collect(), ..first.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{difference, shown, testing};

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1e-3)
    }

    /// R: `t.test(c(1.83, 0.5, 1.62, 2.48, 1.68, 1.88))` gives 1.665 and [0.9853, 2.3447].
    #[test]
    fn the_interval_is_that_of_student() {
        let found = Spread::of(&[1.83, 0.5, 1.62, 2.48, 1.68, 1.88]).unwrap();
        assert!(near(found.mean, 1.665), "{found:?}");
        assert!((found.low - 0.985350).abs() < 1e-5 && (found.high - 2.344650).abs() < 1e-5, "{found:?}");
        assert_eq!(Spread::of(&[0.1; 7]), Some(Spread { mean: 0.1, low: 0.1, high: 0.1 }));
        assert_eq!((Spread::of(&[1.0]), Spread::of(&[])), (None, None));
    }

    #[test]
    fn a_factor_and_its_reciprocal_are_one_statement() {
        let factors = [1.5, 2.0, 1.25];
        let [there, back] = [factors, factors.map(f64::recip)].map(|factors| Spread::of_factors(&factors).unwrap());
        assert!(near(there.mean * back.mean, 1.0) && near(there.low * back.high, 1.0), "{there:?} {back:?}");
        assert_eq!(Spread::of_factors(&[1.0, 0.0]), None);
    }

    #[test]
    fn a_result_has_the_mean_of_its_layouts_and_a_pair_those_of_the_pairs() {
        let (experiment, first) = testing::results(4);
        let mut second = first.clone();
        for measured in second.cells.iter_mut().filter_map(|cell| cell.measured.as_mut()) {
            measured.value *= 1.5;
        }
        let both = joined(&[first.clone(), second.clone()]).unwrap();
        let (before, after) = (first.measured(&experiment, 0, 1).unwrap(), both.measured(&experiment, 0, 1).unwrap());
        assert!(near(after.value, before.value * 1.25) && near(after.ratio.unwrap(), before.ratio.unwrap() * 1.25));
        assert_eq!(after.entries, before.entries);
        let text = shown::cell(&experiment, &both, 0, 1).ours.unwrap();
        assert!(text.contains(" to "), "{text}");
        let pair = difference::factors(&experiment)[0];
        let compared = pair.compared(&experiment, &both).unwrap();
        let (_, factor) = pair.factors(&experiment, &first).unwrap();
        assert!(
            near(compared.factor.mean, factor) && near(compared.factor.low, factor),
            "both layouts have one factor"
        );
        assert_eq!(pair.compared(&experiment, &first), None);
        // The cell that failed has failed, and one that is missing in a layout has the layouts before that one.
        assert!(both.cells.iter().any(|cell| cell.failure.is_some()));
        let (third, kept) = (second.clone(), first.cells.len());
        second.cells.retain(|cell| cell.column != "after");
        let all = joined(&[first.clone(), second, third]).unwrap();
        assert_eq!(all.cells.len(), kept);
        let counts: Vec<usize> =
            [1, 2].iter().map(|column| all.measured(&experiment, 0, *column).unwrap().layouts.len()).collect();
        assert_eq!(counts, [3, 0]);
        assert_eq!(all.measured(&experiment, 0, 2), first.measured(&experiment, 0, 2));
        let note = shown::layouts(&all).unwrap();
        assert!(note.ends_with("has 1 of these layouts: the run was interrupted."), "{note}");
    }
}
