//! How far results are from the published figures: |ln| of ours over published, for cells and for factors.

use crate::difference;
use crate::experiment::Experiment;
use crate::results::ExperimentResult;
use serde::Serialize;

/// A published figure beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scored {
    /// Name: row/column, or the two sides of a factor.
    pub name: String,
    /// The published figure.
    pub published: f64,
    /// Our figure.
    pub ours: f64,
}

impl Scored {
    /// Returns the absolute value of the logarithm of the ratio.
    pub fn distance(&self) -> f64 {
        (self.ours / self.published).ln().abs()
    }
}

/// Quartiles of |ln| of the ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quartiles {
    /// Number of figures.
    pub count: usize,
    /// Lower quartile, median and upper quartile.
    pub quartiles: [f64; 3],
}

impl Quartiles {
    /// Returns the quartiles of figures, by linear interpolation; `None` of none.
    pub fn of(scored: &[Scored]) -> Option<Self> {
        let mut sorted: Vec<f64> = scored.iter().map(Scored::distance).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Some(Self { count: sorted.len(), quartiles: [0.25, 0.5, 0.75].map(at) })
    }
}

/// The published figures of an experiment beside ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// The cells.
    pub cells: Vec<Scored>,
    /// The factors between cells.
    pub factors: Vec<Scored>,
}

impl Score {
    /// Returns the score of a result. Figures that are zero on one side have no ratio and are left out.
    pub fn of(experiment: &Experiment, result: &ExperimentResult) -> Self {
        let usable = |scored: &Scored| scored.distance().is_finite();
        let cells = result.cells.iter().filter_map(|cell| {
            let measured = cell.measured.as_ref()?;
            Some(Scored { name: cell.id(), published: measured.published?, ours: measured.value })
        });
        let factors = difference::factors(experiment).into_iter().filter_map(|pair| {
            let (published, ours) = pair.factors(experiment, result)?;
            let (from, to, within) = pair.titles(experiment);
            Some(Scored { name: format!("{from} -> {to}, {within}"), published: published?, ours })
        });
        Self { cells: cells.filter(usable).collect(), factors: factors.filter(usable).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_the_distance_in_either_direction() {
        let scored = |ours: f64| Scored { name: String::new(), published: 2.0, ours };
        let one = std::f64::consts::E;
        // The distances are 0, 1 and 1.
        let quartiles = Quartiles::of(&[scored(2.0), scored(2.0 * one), scored(2.0 / one)]).unwrap();
        assert_eq!(quartiles.count, 3);
        for (got, expected) in quartiles.quartiles.into_iter().zip([0.5, 1.0, 1.0]) {
            assert!((got - expected).abs() < 1e-9, "{quartiles:?}");
        }
        assert_eq!(Quartiles::of(&[]), None);
    }
}
