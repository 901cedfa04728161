//! The table of entries to the kernel in reports.

use crate::table::{
    Align::{Left, Right},
    cycles, number, share, table,
};
use ledger::stays::Stays;
use ledger::summary::Selection;
use ledger::{Entry, Ledger, Stay};
use serde_json::{Value, json};

/// The parts of stays that reports show: the median, and what all but one of a hundred do not exceed.
const MEDIAN: f64 = 0.5;
const P99: f64 = 0.99;

/// Returns entries by their time, the largest first.
fn sorted(selection: Selection) -> Vec<(Entry, Stays)> {
    let mut all: Vec<(Entry, Stays)> = selection.entries().into_iter().collect();
    all.sort_by(|a, b| b.1.sum.ticks.cmp(&a.1.sum.ticks).then(a.0.cmp(&b.0)));
    all
}

fn rounded(ticks: f64) -> u64 {
    ticks.round() as u64
}

/// Appends the table, with the `top` first entries.
pub fn text(out: &mut String, ledger: &Ledger, selection: Selection, busy: u64, top: usize) {
    let all = sorted(selection);
    if all.is_empty() {
        return;
    }
    let row = |(entry, stays): &(Entry, Stays)| {
        let count = stays.count().max(1);
        let mean = |ticks: u64| cycles((ticks + count / 2) / count);
        let quantile = |part| cycles(rounded(stays.durations.quantile(part).unwrap_or_default()));
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        vec![
            share(ticks, busy),
            cycles(ticks),
            number(stays.count()),
            mean(ticks),
            quantile(MEDIAN),
            quantile(P99),
            mean(enter),
            mean(mitigation),
            mean(stays.sum.handler()),
            mean(leave),
            ledger.describe_entry(*entry),
        ]
    };
    let rows: Vec<_> = all.iter().take(top).map(row).collect();
    let more = if rows.len() < all.len() { format!(" ({} of {})", rows.len(), all.len()) } else { String::new() };
    out.push_str(&format!("\nEntries to the kernel, with everything below them{more}\n\n"));
    let headings = ["share", "cycles", "count", "mean", "median", "p99", "enter", "mitigation", "handler", "leave"];
    let mut headings: Vec<_> = headings.map(|heading| (heading, Right)).to_vec();
    headings.push(("entry", Left));
    table(out, &headings, &rows);
}

/// Returns the entries for programs, the `top` first ones.
pub fn values(ledger: &Ledger, selection: Selection, top: Option<usize>) -> Vec<Value> {
    let value = |(entry, stays): (Entry, Stays)| {
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        let quantile = |part| rounded(stays.durations.quantile(part).unwrap_or_default());
        json!({
            "gate": entry.gate.name(), "number": entry.number, "name": ledger.describe_entry(entry),
            "count": stays.count(), "ticks": ticks, "mean": ticks / stays.count().max(1),
            "median": quantile(MEDIAN), "p99": quantile(P99),
            "enter": enter, "mitigation": mitigation, "handler": stays.sum.handler(), "leave": leave,
            "nested": { "count": stays.nested.count, "ticks": stays.nested.ticks },
        })
    };
    sorted(selection).into_iter().take(top.unwrap_or(usize::MAX)).map(value).collect()
}
