//! A series as comma-separated values: a row for each commit.

use super::{Mark, Series, Status};
use crate::csv::{number, row};
use crate::diff::Verdict;

/// Names of the columns.
const COLUMNS: [&str; 24] = [
    "commit",
    "name",
    "subject",
    "status",
    "mark",
    "layouts",
    "mean",
    "stddev",
    "median",
    "min",
    "max",
    "instructions",
    "previous",
    "difference",
    "interval_low",
    "interval_high",
    "confidence",
    "verdict",
    "from_first",
    "from_first_low",
    "from_first_high",
    "from_first_confidence",
    "from_first_verdict",
    "why",
];

/// Returns the difference, both ends of its interval with their confidence, and the verdict.
fn cells(verdict: Option<&Verdict>) -> [String; 5] {
    let interval = verdict.and_then(|verdict| verdict.interval);
    [
        number(verdict.map(|verdict| verdict.relative)),
        number(interval.map(|interval| interval.low)),
        number(interval.map(|interval| interval.high)),
        number(interval.map(|interval| interval.confidence)),
        verdict.map_or("", |verdict| verdict.answer.name()).to_owned(),
    ]
}

impl Series {
    /// Returns the rows.
    pub fn csv(&self) -> String {
        let mut out = String::new();
        row(&mut out, COLUMNS);
        for (at, line) in self.rows.iter().enumerate() {
            let status = match line.status {
                Status::Measured => "measured",
                Status::NotBuilt => "not-built",
                Status::NotMeasured => "not-measured",
                Status::Untried => "untried",
            };
            let mark = self.bisection.as_ref().and_then(|bisection| bisection.marks[at]);
            let mark = mark.map_or("", |mark| match mark {
                Mark::Below => "below",
                Mark::Above => "above",
                Mark::Skipped => "skipped",
            });
            let side = line.side.as_ref();
            let sample = side.map(|side| side.cycles);
            let commit = &line.commit;
            let mut all = [&commit.commit, &commit.name, &commit.subject].map(String::clone).to_vec();
            all.extend([status.to_owned(), mark.to_owned()]);
            all.push(sample.map_or_else(String::new, |sample| sample.runs.to_string()));
            all.extend(
                [
                    sample.map(|sample| sample.mean),
                    sample.map(|sample| sample.deviation),
                    sample.map(|sample| sample.median),
                    sample.map(|sample| sample.least),
                    sample.map(|sample| sample.most),
                    side.map(|side| side.mean(|run| run.instructions as f64)),
                ]
                .map(number),
            );
            all.push(line.previous.as_ref().map_or_else(String::new, |diff| diff.a.name.clone()));
            all.extend(cells(line.previous.as_ref().map(|diff| &diff.verdict)));
            all.extend(cells(line.first.as_ref()));
            all.push(line.broken.as_ref().map_or_else(String::new, |broken| broken.why.clone()));
            row(&mut out, all);
        }
        out
    }
}
