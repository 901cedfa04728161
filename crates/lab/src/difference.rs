//! A comparison of two cells: the causes of the difference between their times.

use crate::charges::{Charges, Tallies, Tally};
use crate::experiment::{Experiment, Factor};
use crate::results::{ExperimentResult, Measured};
use crate::trust::Trust;
use ledger::Kind;
use serde::Serialize;
use std::collections::BTreeSet;

/// An entry that both cells may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Name of the entry.
    pub name: String,
    /// Tally in the first cell.
    pub before: Tally,
    /// Tally in the second cell.
    pub after: Tally,
    /// Confidence in the prices behind it.
    #[serde(skip)]
    pub trust: Option<Trust>,
}

impl Change {
    /// Returns the difference in ticks.
    pub fn ticks(&self) -> i128 {
        i128::from(self.after.ticks) - i128::from(self.before.ticks)
    }

    /// Returns the difference in counts.
    pub fn count(&self) -> i128 {
        i128::from(self.after.count) - i128::from(self.before.count)
    }
}

/// Returns the changes between two lists, the largest first.
pub(crate) fn changes(before: &Tallies, after: &Tallies) -> Vec<Change> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |list: &Tallies, name: &String| list.get(name).copied().unwrap_or_default();
    ordered(names.into_iter().map(|name| Change {
        name: name.clone(),
        before: of(before, name),
        after: of(after, name),
        trust: None,
    }))
}

/// Returns the changes by cause.
fn causes(before: &Charges, after: &Charges) -> Vec<Change> {
    let causes: BTreeSet<Option<Kind>> = before.causes().chain(after.causes()).collect();
    ordered(causes.into_iter().map(|cause| {
        // A cause absent from the first cell may have a name in the second.
        let name = if after.of(cause) == Tally::default() { before.name(cause) } else { after.name(cause) };
        let trust = before.trust(cause).and(after.trust(cause));
        Change { name, before: before.of(cause), after: after.of(cause), trust: trust.known() }
    }))
}

/// Sorts changes by size, then by name, and drops entries without a change.
fn ordered(changes: impl Iterator<Item = Change>) -> Vec<Change> {
    let mut changes: Vec<Change> = changes.filter(|change| change.before != change.after).collect();
    let size = |change: &Change| (change.ticks().unsigned_abs(), change.count().unsigned_abs());
    changes.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    changes
}

/// A titled list of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Title.
    pub title: &'static str,
    /// Changes, the largest first.
    pub changes: Vec<Change>,
}

/// The differential profile of two cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Change of the total.
    pub total: Change,
    /// Changes of exits, operations, events and instructions in one list. They add up to the change of the total.
    pub causes: Vec<Change>,
    /// The same, and functions, list by list.
    pub sections: Vec<Section>,
}

impl Difference {
    /// Computes the differential profile from one cell to another.
    pub fn new(before: &Measured, after: &Measured) -> Self {
        let lists = before.entries.lists().into_iter().zip(after.entries.lists());
        let sections = lists.map(|((title, before), (_, after))| Section { title, changes: changes(before, after) });
        Self {
            total: Change {
                name: "all".to_owned(),
                before: before.charges.total,
                after: after.charges.total,
                trust: before.charges.trust_of_all().and(after.charges.trust_of_all()).known(),
            },
            causes: causes(&before.charges, &after.charges),
            sections: sections.filter(|section| !section.changes.is_empty()).collect(),
        }
    }
}

/// A pair of cells in a result, by row and column positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The first: row, column.
    pub from: (usize, usize),
    /// The second: row, column.
    pub to: (usize, usize),
}

impl Pair {
    /// Returns the results of both cells, if both have one.
    pub fn measured<'a>(
        &self,
        experiment: &Experiment,
        result: &'a ExperimentResult,
    ) -> Option<(&'a Measured, &'a Measured)> {
        let of = |(row, column)| result.measured(experiment, row, column);
        Some((of(self.from)?, of(self.to)?))
    }

    /// Returns the titles of both cells, and of the row or column that they share.
    pub fn titles(&self, experiment: &Experiment) -> (String, String, String) {
        let row = |at: usize| experiment.rows[at].line.title.clone();
        let column = |at: usize| experiment.columns[at].title.clone();
        match self.from.0 == self.to.0 {
            true => (column(self.from.1), column(self.to.1), row(self.from.0)),
            false => (row(self.from.0), row(self.to.0), column(self.from.1)),
        }
    }

    /// Returns the factor by which the second cell is faster, by the published figures and by ours.
    pub fn factors(&self, experiment: &Experiment, result: &ExperimentResult) -> Option<(Option<f64>, f64)> {
        let (before, after) = self.measured(experiment, result)?;
        let rate = experiment.rows[self.from.0].metric.is_rate();
        let factor = |before: f64, after: f64| if rate { after / before } else { before / after };
        let published = before.published.zip(after.published).map(|(before, after)| factor(before, after));
        Some((published, factor(before.value, after.value)))
    }
}

/// Returns the rows that compare times, or all rows if none does. A count is not a time, and often comes from the same runs.
fn timed(experiment: &Experiment) -> Vec<usize> {
    let counts = |row: &usize| experiment.rows[*row].metric.is_count();
    let all = 0..experiment.rows.len();
    let timed: Vec<usize> = all.clone().filter(|row| !counts(row)).collect();
    if timed.is_empty() { all.collect() } else { timed }
}

/// Returns the pairs whose factors the experiment declares, or neighbouring columns by default.
pub fn factors(experiment: &Experiment) -> Vec<Pair> {
    let (rows, columns) = (timed(experiment), experiment.columns.len());
    let neighbours = (1..columns).map(|column| Factor::Columns(column - 1, column));
    let wanted = if experiment.factors.is_empty() { neighbours.collect() } else { experiment.factors.clone() };
    let pairs = |factor: Factor| -> Vec<Pair> {
        match factor {
            Factor::Columns(from, to) => rows.iter().map(|&row| Pair { from: (row, from), to: (row, to) }).collect(),
            Factor::Rows(from, to) => {
                (0..columns).map(|column| Pair { from: (from, column), to: (to, column) }).collect()
            }
        }
    };
    wanted.into_iter().flat_map(pairs).collect()
}

/// Returns every pair of columns in every row, after the pairs of rows that the experiment declares.
pub fn pairs(experiment: &Experiment) -> Vec<Pair> {
    let columns = experiment.columns.len();
    let mut pairs: Vec<Pair> = factors(experiment).into_iter().filter(|pair| pair.from.0 != pair.to.0).collect();
    for row in timed(experiment) {
        for from in 0..columns {
            pairs.extend((from + 1..columns).map(|to| Pair { from: (row, from), to: (row, to) }));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn of_changes_that_cost_the_same_the_more_frequent_comes_first() {
        let list = |counts: [(&str, u64); 3]| -> Tallies {
            counts.into_iter().map(|(name, count)| (name.to_owned(), Tally { count, ticks: 100 })).collect()
        };
        let changes = changes(&list([("a", 5), ("b", 5), ("c", 5)]), &list([("a", 6), ("b", 5), ("c", 2)]));
        let shown: Vec<_> = changes.iter().map(|change| (change.name.as_str(), change.count())).collect();
        assert_eq!(shown, [("c", -3), ("a", 1)]);
    }

    #[test]
    fn counts_are_compared_where_nothing_is_timed() {
        let mut experiment = testing::experiment();
        assert_eq!(timed(&experiment), [0]);
        experiment.rows[0].metric.measure = experiment.rows[1].metric.measure.clone();
        assert_eq!(timed(&experiment), [0, 1]);
    }
}
