//! The cycles of both sides as top-down analysis splits them.

use super::rests::Priced;
use super::{Paid, Runs};
use crate::charges::Tally;
use crate::difference::Change;
use crate::slots::{slot, width};
use ledger::profile::Clock;
use ledger::summary::{Bound, TopDown};

/// Returns the parts of the mean run of a side, whose runs have these costs together.
fn parts(side: &Runs, sum: &Paid) -> TopDown {
    let runs = side.runs.len().max(1) as u64;
    let sums = sum.priced.iter().map(|(what, ticks)| match what {
        Priced::Class(_) => (None, ticks / runs),
        Priced::Kind(kind) => (Some(*kind), ticks / runs),
    });
    TopDown::of_sums(sums, sum.total().count / runs, slot(width(&side.origin.profile)))
}

/// Returns the parts of two sides, each with the sum of its runs' costs, without parts that neither has.
pub(super) fn changes(a: (&Runs, &Paid), b: (&Runs, &Paid)) -> Vec<Change> {
    if [a, b].iter().any(|(side, _)| side.clock != Clock::Core) {
        return Vec::new();
    }
    let [before, after] = [a, b].map(|(side, sum)| parts(side, sum));
    let tally = |parts: &TopDown, bound| Tally { count: 0, ticks: parts.of(bound) };
    let change = |bound: Bound| Change {
        name: bound.name().to_owned(),
        before: tally(&before, bound),
        after: tally(&after, bound),
        trust: None,
    };
    Bound::ALL
        .into_iter()
        .map(change)
        .filter(|change| change.before != change.after || change.after.ticks != 0)
        .collect()
}
