//! Comparison of results with an earlier run: finds entries whose counts or cycles have grown.

use crate::charges::Tally;
use crate::results::{CellResult, ExperimentResult, FORMAT, Interrupted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The results of one or several experiments, as `lab run --json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The version of the document.
    pub format: u32,
    /// Set if the run was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
    /// The experiments.
    pub experiments: Vec<ExperimentResult>,
}

/// The reason why a file is not a baseline.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The file is not text.
    #[error("is not what `tollgate lab run --json` prints: it is not text")]
    NotText,
    /// The text is not such a document.
    #[error("is not what `tollgate lab run --json` prints: {0}")]
    Malformed(String),
    /// The document has the format of another version.
    #[error("is a baseline of format version {found}; this program reads version {FORMAT}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The earlier run was interrupted, so that cells are missing.
    #[error("is no baseline: that run was {0}")]
    Interrupted(Interrupted),
}

impl Document {
    /// Parses a baseline.
    pub fn read(bytes: &[u8]) -> Result<Self, BaselineError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let text = std::str::from_utf8(bytes).map_err(|_| BaselineError::NotText)?;
        let malformed = |error: serde_json::Error| BaselineError::Malformed(crate::input::wrong_json(&error));
        let Version { format } = serde_json::from_str(text).map_err(malformed)?;
        if format != FORMAT {
            return Err(BaselineError::Version { found: format });
        }
        let document: Self = serde_json::from_str(text).map_err(malformed)?;
        document.interrupted.map_or(Ok(document), |early| Err(BaselineError::Interrupted(early)))
    }
}

/// Permitted growth, as a fraction of the earlier value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Permitted growth of counts.
    pub counts: f64,
    /// Permitted growth of cycles.
    pub cycles: f64,
}

/// The quantity that grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The count.
    Count,
    /// The cost in ticks.
    Cycles,
}

/// An entry that grew beyond the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// experiment/row/column.
    pub cell: String,
    /// Title of the entry's list.
    pub list: &'static str,
    /// Name of the entry.
    pub name: String,
    /// The quantity that grew.
    pub what: What,
    /// Earlier value.
    pub before: u64,
    /// Current value.
    pub after: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of cells compared.
    pub cells: usize,
    /// Number of entries compared.
    pub entries: usize,
    /// Entries that grew beyond the limits; within a cell the largest growth comes first.
    pub regressions: Vec<Regression>,
    /// Cells of the baseline that have no result now, each with the reason.
    pub missing: Vec<(String, String)>,
    /// Cells that failed in the baseline and are not compared.
    pub failed_before: Vec<String>,
    /// Number of entries whose counts or cycles fell.
    pub improved: usize,
}

fn beyond(before: u64, after: u64, limit: f64) -> bool {
    // A limit of zero is exact, whatever the size.
    after > before && (limit == 0.0 || after as f64 > before as f64 * (1.0 + limit))
}

fn compare(id: &str, before: &CellResult, after: &CellResult, limits: Limits, verdict: &mut Verdict) {
    let (Some(before), Some(after)) = (&before.measured, &after.measured) else { return };
    verdict.cells += 1;
    let mut found = Vec::new();
    let mut entry = |list: &'static str, name: &str, before: Tally, after: Tally| {
        verdict.entries += 1;
        verdict.improved += usize::from(after.count < before.count || after.ticks < before.ticks);
        let each = [
            (What::Count, before.count, after.count, limits.counts),
            (What::Cycles, before.ticks, after.ticks, limits.cycles),
        ];
        for (what, before, after, limit) in each {
            if beyond(before, after, limit) {
                found.push(Regression { cell: id.to_owned(), list, name: name.to_owned(), what, before, after });
            }
        }
    };
    entry("all", "everything", before.entries.total, after.entries.total);
    for ((title, old), (_, new)) in before.entries.lists().into_iter().zip(after.entries.lists()) {
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            entry(title, name, old.get(name).copied().unwrap_or_default(), new.get(name).copied().unwrap_or_default());
        }
    }
    // Cycles first, the largest growth first. Equal entries keep the order of the lists.
    found.sort_by_key(|r| (r.what == What::Count, std::cmp::Reverse(r.after - r.before)));
    verdict.regressions.extend(found);
}

/// Compares `now` with `baseline`, for the cells that `wanted` selects.
pub fn check(
    baseline: &[ExperimentResult],
    now: &[ExperimentResult],
    limits: Limits,
    wanted: impl Fn(&str) -> bool,
) -> Verdict {
    let mut verdict = Verdict::default();
    for before in baseline {
        let after = now.iter().find(|after| after.name == before.name);
        for cell in &before.cells {
            let id = format!("{}/{}", before.name, cell.id());
            if !wanted(&id) {
                continue;
            }
            if cell.measured.is_none() {
                verdict.failed_before.push(id);
                continue;
            }
            match after.and_then(|after| after.cells.iter().find(|found| found.id() == cell.id())) {
                Some(found) if found.measured.is_some() => compare(&id, cell, found, limits, &mut verdict),
                Some(found) => verdict.missing.push((id, found.failure.clone().unwrap_or_default())),
                None => verdict.missing.push((id, "the experiment has no such cell any more".to_owned())),
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charges::Charges;
    use crate::results::{Entries, Measured};

    fn result(exits: u64, ticks: u64) -> Vec<ExperimentResult> {
        let mut entries = Entries { total: Tally { count: 1000, ticks: 10_000 + ticks }, ..Entries::default() };
        entries.exits.insert("CR_ACCESS".to_owned(), Tally { count: exits, ticks });
        let charges = Charges::default();
        let unit = "us".to_owned();
        let measured = Measured {
            value: 1.0,
            layouts: Vec::new(),
            unit,
            published: None,
            ratio: None,
            tsc_hz: 1,
            entries,
            functions: Vec::new(),
            charges,
        };
        let cell = CellResult {
            row: "r".to_owned(),
            column: "c".to_owned(),
            measured: Some(measured),
            ..CellResult::default()
        };
        vec![ExperimentResult { name: "x".to_owned(), file: None, cells: vec![cell] }]
    }

    const STRICT: Limits = Limits { counts: 0.0, cycles: 0.01 };

    fn names(verdict: &Verdict) -> Vec<(&'static str, &str, What)> {
        verdict.regressions.iter().map(|r| (r.list, r.name.as_str(), r.what)).collect()
    }

    #[test]
    fn what_is_the_same_or_better_passes() {
        for now in [result(10, 500), result(9, 400)] {
            let verdict = check(&result(10, 500), &now, STRICT, |_| true);
            assert_eq!((verdict.cells, verdict.entries, verdict.regressions.len()), (1, 2, 0));
        }
    }

    #[test]
    fn what_improved_is_counted() {
        let improved = |exits, ticks| check(&result(10, 500), &result(exits, ticks), STRICT, |_| true).improved;
        // The total has the ticks as well.
        assert_eq!([improved(10, 500), improved(9, 500), improved(10, 400), improved(9, 400)], [0, 1, 2, 2]);
        assert_eq!([improved(11, 501), improved(9, 501)], [0, 1]);
    }

    #[test]
    fn a_limit_is_what_is_still_allowed() {
        let limits = Limits { counts: 0.5, cycles: 1e6 };
        let beyond = |exits| check(&result(100, 500), &result(exits, 500), limits, |_| true).regressions.len();
        assert_eq!([beyond(149), beyond(150), beyond(151)], [0, 0, 1]);
    }

    #[test]
    fn cycles_come_first_and_what_grew_most_of_each() {
        let both = |exits: u64, ticks: u64, misses: u64| {
            let mut results = result(exits, ticks);
            let entries = &mut results[0].cells[0].measured.as_mut().unwrap().entries;
            entries.events.insert("TLB miss".to_owned(), Tally { count: misses, ticks: 1000 + misses });
            results
        };
        let verdict = check(&both(10, 500, 700), &both(12, 600, 9000), STRICT, |_| true);
        let named: Vec<_> = verdict.regressions.iter().map(|r| (r.name.as_str(), r.what)).collect();
        assert_eq!(named[..1], [("TLB miss", What::Cycles)]);
        assert_eq!(named[named.len() - 2..], [("TLB miss", What::Count), ("CR_ACCESS", What::Count)]);
        assert!(verdict.regressions.iter().map(|r| r.what == What::Count).is_sorted());
        // A large value that grew little comes after a small value that grew much.
        let none = Limits { counts: 0.0, cycles: 0.0 };
        let verdict = check(&both(10, 500, 100_000), &both(10, 900, 100_050), none, |_| true);
        let named: Vec<_> = verdict.regressions.iter().map(|r| (r.name.as_str(), r.what)).collect();
        assert_eq!(named[1..3], [("CR_ACCESS", What::Cycles), ("TLB miss", What::Cycles)]);
    }

    #[test]
    fn one_exit_more_is_named() {
        let verdict = check(&result(10, 500), &result(11, 504), STRICT, |_| true);
        assert_eq!(names(&verdict), [("VM exits by reason", "CR_ACCESS", What::Count)]);
        assert_eq!(verdict.regressions[0].cell, "x/r/c");
        let lax = Limits { counts: 0.2, cycles: 0.2 };
        assert!(check(&result(10, 500), &result(11, 504), lax, |_| true).regressions.is_empty());
    }

    #[test]
    fn more_cycles_are_named_most_first() {
        let verdict = check(&result(10, 500), &result(10, 5000), STRICT, |_| true);
        assert_eq!(
            names(&verdict),
            [("all", "everything", What::Cycles), ("VM exits by reason", "CR_ACCESS", What::Cycles)]
        );
    }

    #[test]
    fn a_cell_that_failed_or_is_gone_is_named() {
        let mut failed = result(10, 500);
        failed[0].cells[0].measured = None;
        failed[0].cells[0].failure = Some("was ended by signal 9".to_owned());
        let verdict = check(&result(10, 500), &failed, STRICT, |_| true);
        assert_eq!(verdict.missing, [("x/r/c".to_owned(), "was ended by signal 9".to_owned())]);
        assert_eq!(check(&result(10, 500), &[], STRICT, |_| true).missing.len(), 1);
        assert_eq!(check(&result(10, 500), &[], STRICT, |id| id != "x/r/c").missing.len(), 0);
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let mut document = Document { format: FORMAT, interrupted: None, experiments: result(10, 500) };
        let text = serde_json::to_string(&document).unwrap();
        assert_eq!(Document::read(text.as_bytes()).unwrap(), document);
        let refused = |bytes: &[u8]| Document::read(bytes).unwrap_err().to_string();
        let newer = text.replacen("\"format\":1", "\"format\":9", 1);
        assert!(refused(newer.as_bytes()).contains("format version 9"));
        assert!(refused(b"[]").starts_with("is not what `tollgate lab run --json` prints: a part is missing"));
        assert_eq!(refused(b"\x89PNG\xff"), "is not what `tollgate lab run --json` prints: it is not text");
        document.interrupted = Some(Interrupted { done: 1, cells: 3, layouts: None });
        let early = serde_json::to_vec(&document).unwrap();
        assert_eq!(refused(&early), "is no baseline: that run was interrupted: 1 of 3 cells");
    }

    #[test]
    fn a_cell_that_failed_in_the_baseline_is_named() {
        let mut before = result(10, 500);
        before[0].cells[0].measured = None;
        let verdict = check(&before, &result(10, 500), STRICT, |_| true);
        assert_eq!((verdict.cells, verdict.missing.len()), (0, 0));
        assert_eq!(verdict.failed_before, ["x/r/c"]);
    }
}
