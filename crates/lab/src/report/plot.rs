//! The results of one row: a table of published figures and our values, with plots in its cells.

use super::axis::{Axis, Mark};
use crate::Experiment;
use crate::results::ExperimentResult;
use crate::shown;
use crate::text::absent;
use serde::Serialize;

/// Ratios beyond this value, or below its inverse, are marked.
pub const FAR: f64 = 1.5;
/// Largest ratio between values on a linear axis; beyond it the plot uses dots on a logarithmic axis.
const LINEAR: f64 = 25.0;

/// A row of an experiment.
#[derive(Serialize)]
pub struct Plot {
    title: String,
    unit: String,
    scale: Option<String>,
    /// True if any figure was published.
    published: bool,
    /// True for dots, false for bars.
    dots: bool,
    /// Label of the axis.
    axis: String,
    marks: Vec<Mark>,
    /// Position of the published figure, if bars are multiples of it.
    one: Option<f64>,
    lines: Vec<Line>,
}

/// One configuration.
#[derive(Serialize)]
struct Line {
    title: String,
    published: Option<String>,
    ours: String,
    /// True if there is no value.
    absent: bool,
    ratio: Option<String>,
    /// True if the ratio is beyond [`FAR`].
    far: bool,
    /// Position of our value on the axis, in percent.
    at: Option<f64>,
    /// Position of the published figure on the axis, in percent.
    published_at: Option<f64>,
}

/// Returns the plot of a row with some columns, all by their positions.
pub fn plot(experiment: &Experiment, result: &ExperimentResult, row: usize, columns: &[usize]) -> Plot {
    let cells: Vec<_> = columns.iter().map(|column| shown::cell(experiment, result, row, *column)).collect();
    let unit = shown::unit(experiment, row);
    let positive = |value: &f64| value.is_finite() && *value > 0.0;
    let values: Vec<f64> = cells.iter().flat_map(|cell| cell.numbers).flatten().filter(positive).collect();
    let (least, most) = values
        .iter()
        .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| (least.min(*value), most.max(*value)));
    let published = cells.iter().any(|cell| cell.published.is_some());
    let dots = most > least * LINEAR;
    // Bars are multiples of the published figure if each of our values has one.
    let relative =
        published && !dots && cells.iter().all(|cell| cell.numbers[1].is_none() || cell.numbers[0].is_some());
    let ratio = |numbers: [Option<f64>; 2]| numbers[1].zip(numbers[0]).map(|(ours, published)| ours / published);
    let (axis, title) = match (dots, relative) {
        (true, _) => (Axis::logarithmic(least, most), format!("{unit}, logarithmic")),
        (false, true) => {
            let most = cells.iter().filter_map(|cell| ratio(cell.numbers)).filter(positive).fold(1.0, f64::max);
            (Axis::linear(most), "ours, in multiples of the published figure".to_owned())
        }
        (false, false) => (Axis::linear(most), unit.to_owned()),
    };
    let lines = cells.into_iter().zip(columns).map(|(cell, column)| {
        let [published, ours] = cell.numbers;
        let drawn = if relative { ratio(cell.numbers) } else { ours };
        Line {
            title: experiment.columns[*column].title.clone(),
            published: cell.published,
            absent: cell.ours.is_none(),
            ours: cell.ours.unwrap_or_else(|| absent(experiment, result, row, *column).to_owned()),
            ratio: cell.ratio.map(|ratio| format!("{ratio:.2}")),
            far: cell.ratio.is_some_and(|ratio| !(1.0 / FAR..=FAR).contains(&ratio)),
            at: drawn.filter(positive).map(|value| axis.at(value)),
            published_at: published.filter(|value| !relative && positive(value)).map(|value| axis.at(value)),
        }
    });
    Plot {
        title: experiment.rows[row].line.title.clone(),
        unit: unit.to_owned(),
        scale: experiment.rows[row].scale.clone(),
        published,
        dots,
        axis: title,
        one: relative.then(|| axis.at(1.0)),
        marks: if values.is_empty() { Vec::new() } else { axis.marks() },
        lines: lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn values_far_apart_are_dots_and_others_bars_of_the_published_figure() {
        let (mut experiment, result) = testing::results(4);
        let far = plot(&experiment, &result, 0, &[0, 1, 2]);
        assert!(far.dots && far.one.is_none(), "61.18 and 1.5 are far apart");
        assert!(far.lines.iter().all(|line| line.at.is_some() && line.published_at.is_some()));
        for column in 0..3 {
            let ours = result.measured(&experiment, 0, column).unwrap().value;
            experiment.rows[0].published.insert(column, ours * 2.0);
        }
        let mut near = plot(&experiment, &result, 0, &[0, 1, 2]);
        if near.dots {
            near = plot(&experiment, &result, 0, &[0]);
        }
        assert!(near.one.is_some() && near.axis.contains("multiples"));
        // No figure of exits was published, and a cell failed.
        let exits = plot(&experiment, &result, 1, &[0, 1, 2]);
        assert!(!exits.published && exits.lines[0].absent);
    }
}
