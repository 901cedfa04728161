//! The results of experiments as comma-separated values: a row for each cell.

use crate::Experiment;
use crate::csv::{number, row};
use crate::layouts::Spread;
use crate::results::ExperimentResult;

/// Names of the columns.
const COLUMNS: [&str; 15] = [
    "experiment",
    "row",
    "column",
    "row_title",
    "column_title",
    "value",
    "unit",
    "published",
    "ratio",
    "ticks",
    "instructions",
    "failure",
    "layouts",
    "low",
    "high",
];

/// Returns the rows, in the order of the results. A cell that failed has its reason in place of figures. The ends of the interval are empty for a single layout.
pub fn csv(experiments: &[Experiment], results: &[ExperimentResult]) -> String {
    let mut out = String::new();
    row(&mut out, COLUMNS);
    for (experiment, result) in experiments.iter().zip(results) {
        for cell in &result.cells {
            let titled = experiment.rows.iter().find(|row| row.line.id == cell.row).map(|row| row.line.title.clone());
            let column = experiment.columns.iter().find(|column| column.id == cell.column);
            let mut cells = vec![experiment.name.clone(), cell.row.clone(), cell.column.clone()];
            cells.push(titled.unwrap_or_default());
            cells.push(column.map(|column| column.title.clone()).unwrap_or_default());
            let measured = cell.measured.as_ref();
            cells.push(number(measured.map(|measured| measured.value)));
            cells.push(measured.map(|measured| measured.unit.clone()).unwrap_or_default());
            cells.push(number(measured.and_then(|measured| measured.published)));
            cells.push(number(measured.and_then(|measured| measured.ratio)));
            let total = measured.map(|measured| measured.entries.total);
            cells.push(total.map(|total| total.ticks.to_string()).unwrap_or_default());
            cells.push(total.map(|total| total.count.to_string()).unwrap_or_default());
            cells.push(cell.failure.clone().unwrap_or_default());
            let layouts = measured.map(|measured| measured.layouts.as_slice()).unwrap_or_default();
            cells.push(measured.map(|_| layouts.len().max(1).to_string()).unwrap_or_default());
            let spread = Spread::of(layouts);
            cells.extend([number(spread.map(|spread| spread.low)), number(spread.map(|spread| spread.high))]);
            row(&mut out, cells);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn each_cell_is_a_row() {
        let (experiment, result) = testing::results(4);
        let cells = result.cells.len();
        let text = csv(&[experiment], &[result]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), cells + 1);
        assert!(text.contains(",,,,,,,was ended by signal 9,,,\n"), "a cell that failed has no figures: {text}");
    }
}
