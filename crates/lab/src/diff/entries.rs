//! Entries to the kernel on both sides: system calls, exceptions and interrupts, with everything below them.

use super::Paid;
use ledger::stays::Stays;
use ledger::{Gate, Ledger, Stay, TICKS_PER_CYCLE, Ticks};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The stays of an entry, with its name in a sentence that counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The kind of the entry.
    pub gate: Gate,
    /// The name in a sentence, such as "page faults".
    pub plural: String,
    /// The stays.
    pub stays: Stays,
}

/// Stays by the name of their entry.
pub type ByEntry = BTreeMap<String, Named>;

/// A number of stays whose mean is not that of a few.
const MANY: f64 = 100.0;
/// The factor from which on a number of stays is another one altogether.
const ALTOGETHER: f64 = 1.5;

/// Adds the stays of a part of a ledger.
pub fn add(to: &mut ByEntry, ledger: &Ledger, part: ledger::summary::Selection) {
    for (entry, stays) in part.entries() {
        let plural = ledger.entry_in_plural(entry);
        merge(to, ledger.describe_entry(entry), &Named { gate: entry.gate, plural, stays });
    }
}

/// Adds stays to those of the same entry.
pub fn merge(to: &mut ByEntry, name: String, more: &Named) {
    match to.get_mut(&name) {
        Some(known) => known.stays.merge(&more.stays),
        None => drop(to.insert(name, more.clone())),
    }
}

/// Figures of an entry on one side: the number and the sum are means over the runs, the others are of all stays. Times are in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Number of stays in a run.
    pub count: f64,
    /// Their sum in a run.
    pub total: f64,
    /// Mean of a stay.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// What 99 % of the stays do not exceed.
    pub p99: f64,
    /// The processor's way in, in the mean.
    pub enter: f64,
    /// Mitigations, in the mean.
    pub mitigation: f64,
    /// The rest, in the mean.
    pub handler: f64,
    /// The processor's way out, in the mean.
    pub leave: f64,
    /// The part of the sum that is within other entries.
    pub nested: f64,
}

impl Figures {
    fn new(stays: &Stays, runs: usize) -> Self {
        let cycles = |ticks: Ticks| ticks as f64 / TICKS_PER_CYCLE as f64;
        let (runs, count) = (runs.max(1) as f64, stays.count() as f64);
        let each = |ticks: Ticks| cycles(ticks) / count.max(1.0);
        let quantile = |part| stays.durations.quantile(part).unwrap_or_default() / TICKS_PER_CYCLE as f64;
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        Self {
            count: count / runs,
            total: cycles(ticks) / runs,
            mean: each(ticks),
            median: quantile(0.5),
            p99: quantile(0.99),
            enter: each(enter),
            mitigation: each(mitigation),
            handler: each(stays.sum.handler()),
            leave: each(leave),
            nested: cycles(stays.nested.ticks) / runs,
        }
    }
}

/// An entry on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryChange {
    /// The name.
    pub name: String,
    /// The kind of the entry.
    pub gate: &'static str,
    /// The name in a sentence that counts it.
    #[serde(skip)]
    pub plural: String,
    /// The first side.
    pub a: Figures,
    /// The second side.
    pub b: Figures,
}

impl EntryChange {
    /// Returns the change of the sum, in cycles.
    pub fn cycles(&self) -> f64 {
        self.b.total - self.a.total
    }

    /// Returns the part of the change that comes from another number of stays: the further ones, or those that are gone, at their side's mean or
    /// median, whichever is less. A few long stays make a mean that is no price of further ones, unless the mean is nearly the same where the number
    /// is another one altogether.
    pub fn of_count(&self) -> f64 {
        let more = self.b.count - self.a.count;
        let side = if more > 0.0 { &self.b } else { &self.a };
        let (least, most) = (self.a.count.min(self.b.count), self.a.count.max(self.b.count));
        let price = match least >= MANY && most >= least * ALTOGETHER {
            true => self.a.mean.min(self.b.mean),
            false => side.mean.min(side.median),
        };
        more * price
    }

    /// Returns the part of the change that comes from another price of the stays that both sides have.
    pub fn of_price(&self) -> f64 {
        (self.b.mean - self.a.mean) * self.a.count.min(self.b.count)
    }
}

/// Returns the entries that differ, the largest change first. Each side is the sum of a number of runs.
pub fn changes(sides: [(&Paid, usize); 2], of: impl Fn(&Paid) -> &ByEntry) -> Vec<EntryChange> {
    let [(before, _), (after, _)] = sides;
    let names: BTreeSet<&String> = of(before).keys().chain(of(after).keys()).collect();
    let none = Stays::default();
    let change = |name: &String| {
        let [a, b] = sides.map(|(paid, runs)| (of(paid).get(name), runs));
        let known = b.0.or(a.0)?;
        let [a, b] = [a, b].map(|(named, runs)| Figures::new(named.map_or(&none, |named| &named.stays), runs));
        let Named { gate, plural, .. } = known;
        Some(EntryChange { name: name.clone(), gate: gate.name(), plural: plural.clone(), a, b })
    };
    let mut all: Vec<EntryChange> =
        names.into_iter().filter_map(change).filter(|change| change.a != change.b).collect();
    let size = |change: &EntryChange| change.cycles().abs();
    all.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_by_number_and_one_by_price_are_told_apart() {
        let figures = |count: f64, mean: f64, median: f64| Figures {
            count,
            mean,
            median,
            total: count * mean,
            ..Figures::default()
        };
        let change = |a, b| EntryChange { name: String::new(), gate: "", plural: String::new(), a, b };
        // Twice as many, most of them short on both sides.
        let twice = change(figures(2_000.0, 4_000.0, 500.0), figures(4_000.0, 3_600.0, 500.0));
        assert_eq!((twice.of_count(), twice.of_price()), (7_200_000.0, -800_000.0));
        // Four more, while a few long ones make the mean.
        let few = change(figures(50.0, 9_000.0, 500.0), figures(54.0, 9_000.0, 500.0));
        assert_eq!((few.of_count(), few.of_price()), (2_000.0, 0.0));
    }
}
