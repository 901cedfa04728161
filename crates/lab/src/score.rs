//! How far results are from the published figures: |ln| of ours over published, for cells and for factors.

use crate::difference;
use crate::experiment::Experiment;
use crate::results::ExperimentResult;
use crate::shown;
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
    /// Returns the score of a result: of the figures that its table shows, which are multiples of a cell if the source
    /// names no machine. Figures that are zero on one side have no ratio and are left out.
    pub fn of(experiment: &Experiment, result: &ExperimentResult) -> Self {
        let usable = |scored: &Scored| scored.distance().is_finite();
        let cells = result.cells.iter().filter_map(|cell| {
            let row = experiment.rows.iter().position(|row| row.line.id == cell.row)?;
            let column = experiment.columns.iter().position(|column| column.id == cell.column)?;
            // A cell that others are multiples of is 1 on both sides, which says nothing.
            if experiment.relative_to == Some((row, column)) {
                return None;
            }
            let [published, ours] = shown::cell(experiment, result, row, column).numbers;
            Some(Scored { name: cell.id(), published: published?, ours: ours? })
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
    use crate::results::{CellResult, Measured};

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

    #[test]
    fn cells_are_scored_as_the_table_shows_them() {
        let (mut experiment, result) = crate::testing::results(4);
        let scored = |experiment: &Experiment| Score::of(experiment, &result).cells;
        let plain = scored(&experiment);
        let measured = result.measured(&experiment, 0, 1).unwrap();
        assert!(plain.iter().any(|cell| cell.ours == measured.value && Some(cell.published) == measured.published));
        experiment.relative_to = Some((0, 1));
        let relative = scored(&experiment);
        let of_row = |cells: &[Scored]| {
            let row = format!("{}/", experiment.rows[0].line.id);
            cells.iter().filter(|cell| cell.name.starts_with(&row)).cloned().collect::<Vec<_>>()
        };
        // The cell that others are multiples of is left out, and the others are no times of an unknown machine.
        assert_eq!(of_row(&relative).len(), of_row(&plain).len() - 1);
        for (cell, before) in
            of_row(&relative).iter().zip(of_row(&plain).iter().filter(|cell| cell.ours != measured.value))
        {
            assert!((cell.ours - before.ours / measured.value).abs() < 1e-9, "{cell:?}");
            assert!((cell.published - before.published / measured.published.unwrap()).abs() < 1e-9, "{cell:?}");
        }
    }

    /// Returns a result with twice the published figure in every cell that has one.
    fn doubled(experiment: &Experiment) -> ExperimentResult {
        let cell = |row: usize, column: usize| {
            let published = *experiment.rows[row].published.get(&column)?;
            let measured = Measured {
                value: 2.0 * published,
                layouts: Vec::new(),
                unit: experiment.rows[row].metric.unit().to_owned(),
                published: Some(published),
                ratio: experiment.relative_to.is_none().then_some(2.0),
                tsc_hz: 2_000_000_000,
                entries: Default::default(),
                functions: Vec::new(),
                charges: Default::default(),
            };
            Some(CellResult {
                row: experiment.rows[row].line.id.clone(),
                column: experiment.columns[column].id.clone(),
                measured: Some(measured),
                ..CellResult::default()
            })
        };
        let places = (0..experiment.rows.len()).flat_map(|row| (0..experiment.columns.len()).map(move |c| (row, c)));
        let cells = places.filter_map(|(row, column)| cell(row, column)).collect();
        ExperimentResult { name: experiment.name.clone(), file: None, cells }
    }

    #[test]
    fn every_experiment_with_published_figures_is_scored() {
        let mut relative = 0;
        for name in crate::experiment::names() {
            let experiment = Experiment::named(name).unwrap();
            let result = doubled(&experiment);
            let score = Score::of(&experiment, &result);
            let zero = |cell: &&CellResult| cell.measured.as_ref().is_some_and(|measured| measured.value != 0.0);
            let expected = result.cells.iter().filter(zero).count() - usize::from(experiment.relative_to.is_some());
            assert_eq!(score.cells.len(), expected, "{name}");
            relative += usize::from(experiment.relative_to.is_some());
            for cell in &score.cells {
                // Rows of another unit than the cell's that others are multiples of are compared as they are.
                let multiples = cell.distance() < 1e-9 && experiment.relative_to.is_some();
                assert!(multiples || (cell.distance() - 2f64.ln()).abs() < 1e-9, "{name}: {cell:?}");
            }
            assert!(score.factors.iter().all(|factor| factor.distance() < 1e-9), "{name}");
        }
        assert!(relative > 0);
    }
}
