//! A diff as comma-separated values: a row for each side, or for each layout of each side.

use super::{Diff, Figures, Interrupted, Several, Side, TimeLimit, Verdict};
use crate::csv::{number, row};
use std::collections::BTreeMap;

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A side: its statistics, and the comparison with the reference.
    Sides,
    /// A run of a side.
    Layouts,
}

/// A side in rows. The reference has no comparison.
struct Line<'a> {
    side: &'a Side,
    command: &'a str,
    parameters: BTreeMap<&'a str, &'a str>,
    against: Option<&'a Diff>,
}

impl Line<'_> {
    fn verdict(&self) -> Option<&Verdict> {
        self.against.map(|diff| &diff.verdict)
    }

    /// Returns the difference of the pair with a run, as a part of the reference.
    fn difference(&self, run: &Figures) -> Option<f64> {
        let diff = self.against?;
        let at = diff.b.runs.iter().position(|known| known.seed == run.seed)?;
        diff.verdict.differences.get(at).copied()
    }
}

/// Returns the rows of a comparison of two sides.
pub fn two(diff: &Diff, rows: Rows) -> String {
    let line = |side, against| Line { side, command: &diff.command, parameters: BTreeMap::new(), against };
    let lines = [line(&diff.a, None), line(&diff.b, Some(diff))];
    document(&lines, ended_by(diff.interrupted, diff.time_limit), rows)
}

/// Returns the rows of several sides.
pub fn several(several: &Several, rows: Rows) -> String {
    let lines = several.columns.iter().map(|column| Line {
        side: &column.side,
        command: &column.command,
        parameters: column.parameters.iter().map(|(name, value)| (&**name, &**value)).collect(),
        against: column.against.as_ref(),
    });
    document(&lines.collect::<Vec<_>>(), ended_by(several.interrupted, several.time_limit), rows)
}

/// Returns what ended a measurement before it was complete: nothing, if it is complete.
fn ended_by(interrupted: Option<Interrupted>, time_limit: Option<TimeLimit>) -> &'static str {
    match (interrupted, time_limit) {
        (Some(_), _) => "interruption",
        (None, Some(_)) => "time-limit",
        (None, None) => "",
    }
}

fn document(lines: &[Line], ended_by: &str, rows: Rows) -> String {
    let mut parameters: Vec<&str> = lines.iter().flat_map(|line| line.parameters.keys().copied()).collect();
    parameters.sort_unstable();
    parameters.dedup();
    let headings = parameters.iter().map(|name| format!("parameter_{name}"));
    let names: &[&str] = match rows {
        Rows::Sides => &[
            "layouts",
            "mean",
            "stddev",
            "median",
            "min",
            "max",
            "instructions",
            "others",
            "seconds",
            "hertz",
            "difference",
            "interval_low",
            "interval_high",
            "confidence",
            "verdict",
            "ended_by",
        ],
        Rows::Layouts => &["seed", "cycles", "instructions", "others", "seconds", "settled_after", "difference"],
    };
    let first = ["side", "title", "command"].map(str::to_owned).into_iter();
    let mut out = String::new();
    row(&mut out, first.chain(headings).chain(names.iter().map(|name| (*name).to_owned())));
    for line in lines {
        let side = line.side;
        let mut start = vec![side.name.clone(), side.title.clone(), line.command.to_owned()];
        start.extend(parameters.iter().map(|name| line.parameters.get(name).copied().unwrap_or_default().to_owned()));
        let verdict = line.verdict();
        let some = |value: f64| number(Some(value));
        match rows {
            Rows::Sides => {
                let interval = verdict.and_then(|verdict| verdict.interval);
                let cycles = side.cycles;
                let cells = [
                    cycles.runs.to_string(),
                    some(cycles.mean),
                    some(cycles.deviation),
                    some(cycles.median),
                    some(cycles.least),
                    some(cycles.most),
                    some(side.mean(|run| run.instructions as f64)),
                    some(side.mean(|run| run.meanwhile)),
                    some(side.mean(|run| run.elapsed)),
                    side.tsc_hz.to_string(),
                    number(verdict.map(|verdict| verdict.relative)),
                    number(interval.map(|interval| interval.low)),
                    number(interval.map(|interval| interval.high)),
                    number(interval.map(|interval| interval.confidence)),
                    verdict.map_or("reference", |verdict| verdict.answer.name()).to_owned(),
                    ended_by.to_owned(),
                ];
                row(&mut out, start.into_iter().chain(cells));
            }
            Rows::Layouts => {
                for run in &side.runs {
                    let cells = [
                        run.seed.map_or_else(String::new, |seed| seed.to_string()),
                        some(run.cycles),
                        run.instructions.to_string(),
                        some(run.meanwhile),
                        some(run.elapsed),
                        number(run.settled_after),
                        number(line.difference(run)),
                    ];
                    row(&mut out, start.iter().cloned().chain(cells));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::several::tests::sample;

    #[test]
    fn each_side_has_a_row_and_each_layout_too() {
        let mut all = sample();
        all.columns[1].parameters = vec![("n".to_owned(), "a,b".to_owned())];
        let sides = several(&all, Rows::Sides);
        let lines: Vec<&str> = sides.lines().collect();
        assert!(lines[0].starts_with("side,title,command,parameter_n,layouts,mean,stddev,median,min,max,"), "{sides}");
        assert!(
            lines[1].starts_with("base,cloud,hackbench -l 10,,6,") && lines[1].ends_with(",,,,,reference,"),
            "{sides}"
        );
        assert!(lines[2].starts_with("off,cloud mitigations=off,hackbench -l 10,\"a,b\",6,1150"), "{sides}");
        assert!(lines[2].ends_with(",0.95,more,") && lines[3].ends_with(",same,") && lines.len() == 4, "{sides}");
        let layouts = several(&all, Rows::Layouts);
        let lines: Vec<&str> = layouts.lines().collect();
        assert_eq!((lines.len(), lines[1]), (19, "base,cloud,hackbench -l 10,,1,1100000,1000000,9000,0.001,0.012,"));
        let columns = lines[0].split(',').count();
        assert!(lines[13].ends_with(",0") && lines[13].split(',').count() == columns, "{layouts}");
    }

    #[test]
    fn two_sides_are_rows_too() {
        let rows = two(&crate::diff::tests::sample(), Rows::Sides);
        let lines: Vec<&str> = rows.lines().collect();
        assert!(lines[1].starts_with("A,cloud,") && lines[2].starts_with("B,cloud | <mitigations=off>,"), "{rows}");
    }
}
