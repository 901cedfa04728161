//! Results for a terminal: the table as its source has it, ours beside the published figures, factors, and what explains them.

use crate::Experiment;
use crate::difference::{self, Change, Difference, Pair};
use crate::experiment::Layout;
use crate::format::{
    Align::{Left, Right},
    WIDTH, change, factor, number, signed, table,
};
use crate::functions;
use crate::layouts::has_differences;
use crate::results::ExperimentResult;
use crate::shown;
use ledger::TICKS_PER_CYCLE;

fn optional<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// A paragraph, in lines.
fn paragraph(out: &mut String, text: &str) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let mut length = 0;
        for word in paragraph.split(' ') {
            let wide = word.chars().count();
            if length != 0 && length + 1 + wide > WIDTH {
                out.push('\n');
                length = 0;
            }
            if length != 0 {
                out.push(' ');
                length += 1;
            }
            out.push_str(word);
            length += wide;
        }
        out.push('\n');
    }
}

/// The text for a cell without a value.
pub fn absent(experiment: &Experiment, result: &ExperimentResult, row: usize, column: usize) -> &'static str {
    match (experiment.skipped(row, column), result.cell(experiment, row, column)) {
        (Some(_), _) => "n/a",
        (None, Some(_)) => "failed",
        (None, None) => "not run",
    }
}

/// The published figure in a cell, ours or why there is none, and their ratio.
fn figures(experiment: &Experiment, result: &ExperimentResult, row: usize, column: usize) -> [String; 3] {
    let shown = shown::cell(experiment, result, row, column);
    [
        optional(shown.published, |text| text),
        shown.ours.unwrap_or_else(|| absent(experiment, result, row, column).to_owned()),
        optional(shown.ratio, |ratio| format!("{ratio:.2}")),
    ]
}

/// Explains the reference of relative values and the frequency of times, and says what has no names.
fn note(out: &mut String, experiment: &Experiment, result: &ExperimentResult) {
    for note in shown::notes(experiment, result) {
        paragraph(out, &note);
    }
}

/// Returns the rows and the columns of which a cell has an outcome: the others were not asked for. Without any outcome all are there.
pub fn asked(experiment: &Experiment, result: &ExperimentResult) -> [Vec<usize>; 2] {
    let (rows, columns) = (0..experiment.rows.len(), 0..experiment.columns.len());
    let ran = |row: usize, column: usize| result.cells.is_empty() || result.cell(experiment, row, column).is_some();
    [
        rows.clone().filter(|row| columns.clone().any(|column| ran(*row, column))).collect(),
        columns.filter(|column| rows.clone().any(|row| ran(row, *column))).collect(),
    ]
}

/// One list per row: columns downwards, as announcements print it.
fn lists(out: &mut String, experiment: &Experiment, result: &ExperimentResult) {
    let [rows, columns] = asked(experiment, result);
    for (at, row) in rows.into_iter().map(|at| (at, &experiment.rows[at])) {
        out.push_str(&format!("\n{} ({})\n", row.line.title, shown::unit(experiment, at)));
        if let Some(scale) = &row.scale {
            out.push_str(&format!("ours: {scale}\n"));
        }
        let line = |column: &usize| {
            let title = format!("{}:", experiment.columns[*column].title);
            [vec![title], figures(experiment, result, at, *column).to_vec()].concat()
        };
        let lines: Vec<Vec<String>> = columns.iter().map(line).collect();
        out.push('\n');
        table(out, &[("", Left), ("published", Right), ("ours", Right), ("ours/published", Right)], &lines);
    }
    note(out, experiment, result);
}

/// One table: three lines per row.
fn matrix(out: &mut String, experiment: &Experiment, result: &ExperimentResult) {
    let mut headings = vec![("", Left), ("", Left)];
    let [rows, columns] = asked(experiment, result);
    headings.extend(columns.iter().map(|column| (experiment.columns[*column].title.as_str(), Right)));
    let mut lines = Vec::new();
    for (at, row) in rows.iter().map(|at| (*at, &experiment.rows[*at])) {
        let cells: Vec<[String; 3]> = columns.iter().map(|column| figures(experiment, result, at, *column)).collect();
        let mut name = Some(format!("{} ({})", row.line.title, shown::unit(experiment, at)));
        for (which, what) in ["published", "ours", "ours/published"].into_iter().enumerate() {
            if what == "ours" || !row.published.is_empty() {
                let values = cells.iter().map(|cell| cell[which].clone()).collect();
                lines.push([vec![name.take().unwrap_or_default(), what.to_owned()], values].concat());
            }
        }
    }
    out.push('\n');
    table(out, &headings, &lines);
    note(out, experiment, result);
    let mut scales: Vec<&str> = rows.iter().filter_map(|row| experiment.rows[*row].scale.as_deref()).collect();
    scales.dedup();
    for scale in scales {
        out.push_str(&format!("ours: {scale}\n"));
    }
    for skip in experiment.skips.iter().filter(|skip| rows.contains(&skip.row) && columns.contains(&skip.column)) {
        let (row, column) = (&experiment.rows[skip.row].line.title, &experiment.columns[skip.column].title);
        out.push_str(&format!("n/a, {row}, {column}: {}\n", skip.reason));
    }
}

/// The factors between columns or rows.
fn factors(out: &mut String, experiment: &Experiment, result: &ExperimentResult, pairs: &[Pair]) {
    let with_differences = has_differences(pairs, experiment, result);
    let lines: Vec<Vec<String>> = pairs
        .iter()
        .filter_map(|pair| {
            let (published, ours) = pair.factors(experiment, result)?;
            let (from, to, within) = pair.titles(experiment);
            let compared = pair.compared(experiment, result);
            let ours = compared.map_or_else(|| factor(ours), |compared| compared.factor.text(factor));
            let unit = experiment.rows[pair.from.0].metric.unit();
            let difference = with_differences.then(|| optional(compared, |compared| compared.difference(unit)));
            let cells = [optional(published, factor), ours].into_iter().chain(difference);
            Some(cells.chain([format!("{from} -> {to}, {within}")]).collect())
        })
        .collect();
    let difference = with_differences.then_some(("difference", Right));
    let headings = [("published", Right), ("ours", Right)].into_iter().chain(difference).chain([("", Left)]);
    let headings: Vec<_> = headings.collect();
    if !lines.is_empty() {
        out.push_str("\nTimes faster\n\n");
        table(out, &headings, &lines);
    }
}

fn cycles(ticks: i128) -> String {
    let half = i128::from(TICKS_PER_CYCLE / 2) * ticks.signum();
    signed((ticks + half) / i128::from(TICKS_PER_CYCLE))
}

/// The lines of a table of changes, with each one's part in the whole difference.
fn explained(changes: &[Change], total: &Change, top: usize) -> Vec<Vec<String>> {
    changes
        .iter()
        .take(top)
        .map(|change| {
            let part = match total.ticks() {
                0 => "-".to_owned(),
                all => format!("{:.1}%", change.ticks() as f64 / all as f64 * 100.0),
            };
            vec![
                part,
                cycles(change.ticks()),
                number(change.before.count),
                number(change.after.count),
                change.name.clone(),
            ]
        })
        .collect()
}

/// The explanation of the difference between two cells.
fn differences(out: &mut String, experiment: &Experiment, result: &ExperimentResult, pairs: &[Pair], top: usize) {
    for pair in pairs {
        let Some((before, after)) = pair.measured(experiment, result) else { continue };
        let difference = Difference::new(before, after);
        let (from, to, within) = pair.titles(experiment);
        let total = &difference.total;
        let percent = change(total.before.ticks, total.after.ticks);
        let percent = if percent.is_empty() { "no change".to_owned() } else { percent };
        out.push_str(&format!(
            "\n{from} -> {to}, {within}: {} cycles ({percent}); the largest causes\n\n",
            cycles(total.ticks())
        ));
        let section = |out: &mut String, title: &str, changes: &[Change]| {
            let headings =
                [("share", Right), ("cycles", Right), ("count before", Right), ("count after", Right), (title, Left)];
            table(out, &headings, &explained(changes, total, top));
        };
        section(out, "cause", &difference.causes);
        if let Some(exits) = difference.sections.iter().find(|section| section.title == "VM exits by guest function") {
            out.push('\n');
            section(out, "VM exits of the guest's function", &exits.changes);
        }
    }
}

/// The functions of each pair of cells whose names match patterns: their sum, and the `top` ones with the largest differences.
fn functions(
    out: &mut String,
    experiment: &Experiment,
    result: &ExperimentResult,
    pairs: &[Pair],
    patterns: &[String],
    top: usize,
) {
    let headings = [
        ("difference", Right),
        ("cycles before", Right),
        ("cycles after", Right),
        ("instructions before", Right),
        ("instructions after", Right),
        ("function", Left),
    ];
    for pair in pairs {
        let Some((before, after)) = pair.measured(experiment, result) else { continue };
        let (from, to, within) = pair.titles(experiment);
        out.push_str(&format!("\n{from} -> {to}, {within}: functions {}\n\n", patterns.join(", ")));
        let found = functions::between(before, after, patterns);
        if found.is_empty() {
            out.push_str("no function of either has such a name\n");
            continue;
        }
        let lines: Vec<Vec<String>> = found.iter().take(1 + top).map(functions::Function::cells).collect();
        table(out, &headings, &lines);
    }
}

/// One experiment's results; of each difference, the `top` lines that explain most, and the functions whose names match `patterns`.
pub fn report(experiment: &Experiment, result: &ExperimentResult, top: usize, patterns: &[String]) -> String {
    let mut out = format!("{}: {}\n", experiment.name, experiment.title);
    if let Some(source) = &experiment.source {
        paragraph(&mut out, &format!("published: {} {}", source.text, source.reference));
    }
    match experiment.layout {
        Layout::List => lists(&mut out, experiment, result),
        Layout::Table => matrix(&mut out, experiment, result),
    }
    let pairs = difference::factors(experiment);
    factors(&mut out, experiment, result, &pairs);
    if top != 0 {
        differences(&mut out, experiment, result, &pairs, top);
    }
    if !patterns.is_empty() {
        functions(&mut out, experiment, result, &pairs, patterns, top);
    }
    out
}

/// The description of an experiment, before it is run.
pub fn description(experiment: &Experiment) -> String {
    let mut out = format!("{}: {}\n\n", experiment.name, experiment.title);
    for part in experiment.about.split("\n\n").filter(|part| !part.is_empty()) {
        paragraph(&mut out, part);
        out.push('\n');
    }
    if let Some(source) = &experiment.source {
        paragraph(&mut out, &format!("Published: {} {}", source.text, source.reference));
    }
    let mut scales: Vec<String> = Vec::new();
    let rows: Vec<Vec<String>> = experiment
        .rows
        .iter()
        .map(|row| {
            if let Some(scale) = &row.scale {
                scales.push(format!("{}: {scale}", row.line.id));
            }
            let published = experiment
                .columns
                .iter()
                .enumerate()
                .filter_map(|(at, column)| Some(format!("{} {}", column.id, row.published.get(&at)?)));
            vec![
                row.line.id.clone(),
                row.line.title.clone(),
                row.metric.unit().to_owned(),
                published.collect::<Vec<_>>().join(", "),
            ]
        })
        .collect();
    out.push_str("\nRows\n\n");
    table(&mut out, &[("id", Left), ("title", Left), ("unit", Left), ("published", Left)], &rows);
    for scale in scales {
        out.push_str(&format!("{scale}\n"));
    }
    let columns: Vec<Vec<String>> =
        experiment.columns.iter().map(|column| vec![column.id.clone(), column.title.clone()]).collect();
    out.push_str("\nColumns\n\n");
    table(&mut out, &[("id", Left), ("title", Left)], &columns);
    out.push_str("\nCells\n\n");
    for cell in experiment.cells() {
        out.push_str(&format!("{}\n    {}\n", cell.id(), cell.command()));
    }
    for skip in &experiment.skips {
        let (row, column) = (&experiment.rows[skip.row].line.id, &experiment.columns[skip.column].id);
        out.push_str(&format!("{row}/{column} is left out: {}\n", skip.reason));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_report_reads_well() {
        let (experiment, result) = testing::results(4);
        insta::assert_snapshot!(report(&experiment, &result, 5, &["load_*".to_owned()]));
    }

    #[test]
    fn what_was_not_asked_for_has_no_lines() {
        let (mut experiment, mut result) = testing::results(4);
        let asked = (experiment.rows[0].line.id.clone(), experiment.columns[1].id.clone());
        result.cells.retain(|cell| (cell.row.clone(), cell.column.clone()) == asked);
        let forms = |experiment: &Experiment, result: &ExperimentResult| {
            [report(experiment, result, 5, &[]), crate::report::markdown(experiment, result, 5, &[])]
        };
        for layout in [Layout::Table, Layout::List] {
            experiment.layout = layout;
            for text in forms(&experiment, &result) {
                assert!(text.contains(&experiment.columns[1].title), "{text}");
                let others = [&experiment.rows[1].line.title, &experiment.columns[2].title];
                assert!(others.iter().all(|other| !text.contains(&***other)), "{text}");
            }
        }
        // Between cells that were run, one that was not is named as such.
        let (experiment, mut result) = testing::results(4);
        result.cells.retain(|cell| (cell.row.clone(), cell.column.clone()) != asked);
        assert!(forms(&experiment, &result).iter().all(|text| text.contains("not run")));
    }

    #[test]
    fn a_list_reads_well() {
        let (mut experiment, result) = testing::results(4);
        experiment.layout = Layout::List;
        insta::assert_snapshot!(report(&experiment, &result, 0, &[]));
    }

    #[test]
    fn the_description_reads_well() {
        insta::assert_snapshot!(description(&testing::experiment()));
    }
}
