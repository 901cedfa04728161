//! The contents of a table's cell: values, or, where the source names no machine, multiples of one cell's value.
//!
//! Seconds of an unknown machine say nothing beside those of another. Factors between cells do: with `relative-to`, published
//! figures are divided by the published one of a cell, and ours by ours of the same cell.

use crate::Experiment;
use crate::experiment::TimeUnit;
use crate::format::{factor, figure, gigahertz};
use crate::layouts::Spread;
use crate::results::{CellResult, ExperimentResult};
use std::collections::{BTreeMap, BTreeSet};

/// A cell of a table, as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// The published figure.
    pub published: Option<String>,
    /// Ours, if there is a result.
    pub ours: Option<String>,
    /// Ours over the published one; both as they are shown.
    pub ratio: Option<f64>,
    /// Both as numbers, for charts.
    pub numbers: [Option<f64>; 2],
}

/// The cell that a row is relative to: rows of another unit than its are not.
fn reference(experiment: &Experiment, row: usize) -> Option<(usize, usize)> {
    let unit = |row: usize| experiment.rows[row].metric.unit();
    experiment.relative_to.filter(|(reference, _)| unit(*reference) == unit(row))
}

/// The kind of a row's values, for its heading: their unit, or that they are relative.
pub fn unit(experiment: &Experiment, row: usize) -> &str {
    reference(experiment, row).map_or(experiment.rows[row].metric.unit(), |_| "relative")
}

/// The line that says what relative values are relative to.
pub fn note(experiment: &Experiment, result: &ExperimentResult) -> Option<String> {
    let (row, column) = experiment.relative_to?;
    let (line, title) = (&experiment.rows[row], &experiment.columns[column].title);
    let place = format!("{}, {title}", line.line.title);
    let ours = match result.measured(experiment, row, column) {
        Some(measured) => format!("is {} {} here", measured.figure(), measured.unit),
        None => "was not measured here".to_owned(),
    };
    Some(format!(
        "\"relative\" means multiples of {place}, which {ours}. The source names no machine, so only factors are compared."
    ))
}

/// The line that says which frequencies our times assume, if there are times.
pub fn frequencies(result: &ExperimentResult) -> Option<String> {
    let measured = result.cells.iter().filter_map(|cell| cell.measured.as_ref());
    let times = measured.filter(|measured| TimeUnit::from_symbol(&measured.unit).is_some());
    let assumed: BTreeSet<u64> = times.map(|measured| measured.tsc_hz).collect();
    let assumed: Vec<String> = assumed.into_iter().map(gigahertz).collect();
    (!assumed.is_empty()).then(|| format!("Our times assume cores at {}.", assumed.join(", ")))
}

/// The line that says what the intervals are, if there are several layouts.
pub fn layouts(result: &ExperimentResult) -> Option<String> {
    let measured = result.cells.iter().filter_map(|cell| Some((cell.id(), cell.measured.as_ref()?.layouts.len())));
    let measured: Vec<(String, usize)> = measured.map(|(id, layouts)| (id, layouts.max(1))).collect();
    let count = measured.iter().map(|(_, layouts)| *layouts).max()?;
    let fewer = measured.iter().filter(|(_, layouts)| *layouts < count);
    let fewer: Vec<String> = fewer.map(|(id, layouts)| format!("{id} has {layouts} of these layouts")).collect();
    (count > 1).then(|| {
        let fewer = if fewer.is_empty() { String::new() } else { format!(" {}: the run was interrupted.", fewer.join(", ")) };
        format!(
            "Figures are means of {count} layouts, each with 1 MiB of memory more than the one before, with the 95 % interval of Student's t. Factors and differences are those of pairs in \
             one layout: of factors the geometric mean. Causes are those of the first layout.{fewer}"
        )
    })
}

/// The lines that say which code of kernels, of modules and of tasks has no names: each code and reason once, with the cell that has most of it.
pub fn nameless(experiment: &Experiment, result: &ExperimentResult) -> Vec<String> {
    let mut most: BTreeMap<&str, (f64, &CellResult, usize)> = BTreeMap::new();
    for cell in &result.cells {
        for part in &cell.nameless {
            let (share, of, count) = most.entry(&part.code).or_insert((part.share, cell, 0));
            *count += 1;
            if part.share > *share {
                (*share, *of) = (part.share, cell);
            }
        }
    }
    let line = |(code, (share, cell, count)): (&str, (f64, &CellResult, usize))| {
        let cells = if count == 1 { String::new() } else { format!(", the most of {count} cells") };
        format!("{}{cells}: {:.1}% of the time is spent in {code}", cell.title(experiment), share * 100.0)
    };
    most.into_iter().map(line).collect()
}

/// The lines below a table.
pub fn notes(experiment: &Experiment, result: &ExperimentResult) -> Vec<String> {
    let about = [note(experiment, result), frequencies(result), layouts(result)];
    about.into_iter().flatten().chain(nameless(experiment, result)).collect()
}

/// Returns the mean over layouts with its interval, or the text of a single value.
fn with_interval(layouts: &[f64], text: impl Fn(f64) -> String, single: impl Fn() -> String) -> String {
    Spread::of(layouts).map_or_else(single, |spread| spread.text(text))
}

/// The contents of a cell.
pub fn cell(experiment: &Experiment, result: &ExperimentResult, row: usize, column: usize) -> Shown {
    let measured = result.measured(experiment, row, column);
    let published = experiment.rows[row].published.get(&column).copied();
    let Some((base_row, base_column)) = reference(experiment, row) else {
        return Shown {
            published: published.map(|value| value.to_string()),
            ours: measured.map(|measured| with_interval(&measured.layouts, figure, || measured.figure())),
            ratio: measured.and_then(|measured| measured.ratio),
            numbers: [published, measured.map(|measured| measured.value)],
        };
    };
    let base = experiment.rows[base_row].published.get(&base_column);
    let published = published.zip(base).map(|(value, base)| value / base);
    let base = result.measured(experiment, base_row, base_column);
    let ours = measured.zip(base).map(|(measured, base)| measured.value / base.value);
    let layouts = measured.zip(base).map(|(measured, base)| {
        measured.layouts.iter().zip(&base.layouts).map(|(value, base)| value / base).collect::<Vec<_>>()
    });
    let text = |ours: f64| with_interval(layouts.as_deref().unwrap_or_default(), factor, || factor(ours));
    Shown {
        published: published.map(factor),
        // Without the cell that it is relative to a value is shown as it is, with its unit.
        ours: ours.map(text).or_else(|| measured.map(|m| format!("{} {}", figure(m.value), m.unit))),
        ratio: ours.zip(published).map(|(ours, published)| ours / published),
        numbers: [published, ours],
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn times_state_the_frequencies_that_they_assume() {
        let (_, mut result) = testing::results(4);
        let times = |result: &mut crate::results::ExperimentResult, unit: &str| {
            for (at, measured) in result.cells.iter_mut().filter_map(|cell| cell.measured.as_mut()).enumerate() {
                measured.unit = unit.to_owned();
                measured.tsc_hz = if at == 0 { 2_100_000_000 } else { 2_000_000_000 };
            }
        };
        times(&mut result, "us");
        assert_eq!(super::frequencies(&result).as_deref(), Some("Our times assume cores at 2.000 GHz, 2.100 GHz."));
        times(&mut result, "exits");
        assert_eq!(super::frequencies(&result), None);
    }

    #[test]
    fn values_are_multiples_of_the_cell_that_they_are_relative_to() {
        let (mut experiment, mut result) = testing::results(4);
        let values = |experiment: &crate::Experiment, result: &_, column| {
            let shown = super::cell(experiment, result, 0, column);
            (shown.published, shown.ours, shown.ratio.map(|ratio| (ratio * 1000.0).round()))
        };
        experiment.relative_to = Some((0, 1));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(values(&experiment, &result, 1), (text("1.00x"), text("1.00x"), Some(1000.0)));
        let measured = |column| result.measured(&experiment, 0, column).unwrap().value;
        let (ours, published) = (measured(2) / measured(1), 2.0 / 61.18);
        let ratio = Some((ours / published * 1000.0_f64).round());
        assert_eq!(values(&experiment, &result, 2), (text("0.0327x"), Some(super::factor(ours)), ratio));
        assert_eq!(super::unit(&experiment, 0), "relative");
        // Exits are no times.
        assert_eq!(super::unit(&experiment, 1), "exits");
        assert!(
            super::note(&experiment, &result)
                .unwrap()
                .starts_with("\"relative\" means multiples of switch, KVM before, which is ")
        );
        // A run of other cells only.
        result.cells.retain(|cell| cell.column != "before");
        let (published, ours, ratio) = values(&experiment, &result, 2);
        assert_eq!((published, ratio), (text("0.0327x"), None));
        assert!(ours.unwrap().ends_with(" us"));
        assert!(super::note(&experiment, &result).unwrap().contains("was not measured here"));
    }

    #[test]
    fn code_without_names_is_one_line_for_each_reason() {
        let (experiment, mut result) = testing::results(4);
        assert_eq!(super::nameless(&experiment, &result), [""; 0]);
        let nameless = |share, code: &str| crate::results::Nameless { share, code: code.to_owned() };
        result.cells[0].nameless = vec![nameless(0.25, "code of kernel modules without names: none are known")];
        result.cells[1].nameless =
            vec![nameless(0.36, "code of kernel modules without names: none are known"), nameless(0.1, "the rest")];
        let expected = [
            "switch, KVM before, the most of 2 cells: 36.0% of the time is spent in code of kernel modules without names: none are known",
            "switch, KVM before: 10.0% of the time is spent in the rest",
        ];
        assert_eq!(super::nameless(&experiment, &result), expected);
        let forms =
            [crate::text::report(&experiment, &result, 0, &[]), crate::report::markdown(&experiment, &result, 0, &[])];
        for text in forms {
            assert!(text.contains("switch, KVM before: 10.0% of the time"), "{text}");
        }
    }
}
