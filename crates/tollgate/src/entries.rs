//! The tables of entries in reports: those to the kernel, and the exits to hypervisors.

use crate::table::{
    Align::{Left, Right},
    cycles, number, share, table,
};
use ledger::stays::Stays;
use ledger::summary::Selection;
use ledger::{Entry, Gate, Ledger, Stay};
use serde_json::{Value, json};
use std::cmp::Reverse;

/// The parts of stays that reports show: the median, and what all but one of a hundred do not exceed.
const MEDIAN: f64 = 0.5;
const P99: f64 = 0.99;
/// The longest stays.
const MOST: f64 = 1.0;

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

/// Adds the parts of one stay to a line: their means, as `mean` is one, and the sums over all stays below a name of their own.
fn add_parts(line: &mut Value, count: u64, parts: &[(&str, u64)]) {
    for (name, ticks) in parts {
        line[*name] = json!(ticks / count.max(1));
    }
    line["sums"] = parts.iter().map(|(name, ticks)| ((*name).to_owned(), json!(ticks))).collect();
}

/// Returns the entries for programs, the `top` first ones.
pub fn values(ledger: &Ledger, selection: Selection, top: Option<usize>) -> Vec<Value> {
    let value = |(entry, stays): (Entry, Stays)| {
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        let quantile = |part| rounded(stays.durations.quantile(part).unwrap_or_default());
        let mut line = json!({
            "gate": entry.gate.name(), "number": entry.number, "name": ledger.describe_entry(entry),
            "count": stays.count(), "ticks": ticks, "mean": ticks / stays.count().max(1),
            "median": quantile(MEDIAN), "p99": quantile(P99),
            "nested": { "count": stays.nested.count, "ticks": stays.nested.ticks },
        });
        let parts = [("enter", enter), ("mitigation", mitigation), ("handler", stays.sum.handler()), ("leave", leave)];
        add_parts(&mut line, stays.count(), &parts);
        line
    };
    sorted(selection).into_iter().take(top.unwrap_or(usize::MAX)).map(value).collect()
}

/// An exit: the level of the hypervisor, and the exit itself.
type Exit = (u8, Entry);

/// Returns VM exits by their time, the largest first.
fn sorted_exits(selection: Selection) -> Vec<(Exit, Stays)> {
    let mut all: Vec<(Exit, Stays)> = selection.exits().into_iter().collect();
    all.sort_by_key(|(exit, stays)| (Reverse(stays.sum.ticks), *exit));
    all
}

/// Returns the guest that exits, and its hypervisor: the board's, or one on the machine.
fn parties((level, entry): Exit, ledger: &Ledger) -> [&'static str; 2] {
    let of_board = ledger.header.metadata.get("platform").is_some_and(|platform| platform == "hvm");
    match (level, entry.gate) {
        (0, Gate::NestedExit) => ["nested guest", "hypervisor"],
        (0, _) if of_board => ["guest", "hypervisor"],
        (0, _) => ["guest", "host"],
        _ => ["nested guest", "guest"],
    }
}

/// Appends the table of VM exits, with the `top` first ones.
pub fn exits_text(out: &mut String, ledger: &Ledger, selection: Selection, busy: u64, top: usize) {
    let all = sorted_exits(selection);
    if all.is_empty() {
        return;
    }
    let row = |(exit, stays): &(Exit, Stays)| {
        let count = stays.count().max(1);
        let mean = |ticks: u64| cycles((ticks + count / 2) / count);
        let quantile = |part| cycles(rounded(stays.durations.quantile(part).unwrap_or_default()));
        let Stay { ticks, enter, leave, .. } = stays.sum;
        let [guest, to] = parties(*exit, ledger);
        vec![
            share(ticks, busy),
            cycles(ticks),
            number(stays.count()),
            mean(ticks),
            quantile(MEDIAN),
            quantile(P99),
            quantile(MOST),
            mean(enter + leave),
            mean(ticks.saturating_sub(enter + leave)),
            format!("{guest} to {to}"),
            ledger.describe_entry(exit.1),
        ]
    };
    let rows: Vec<_> = all.iter().take(top).map(row).collect();
    let more = if rows.len() < all.len() { format!(" ({} of {})", rows.len(), all.len()) } else { String::new() };
    out.push_str(&format!("\nFrom VM exit to entry{more}\n\n"));
    let headings = ["share", "cycles", "count", "mean", "median", "p99", "max", "processor", "software"];
    let mut headings: Vec<_> = headings.map(|heading| (heading, Right)).to_vec();
    headings.extend([("from", Left), ("exit", Left)]);
    table(out, &headings, &rows);
}

/// Returns the VM exits for programs, the `top` first ones.
pub fn exit_values(ledger: &Ledger, selection: Selection, top: Option<usize>) -> Vec<Value> {
    let value = |(exit, stays): (Exit, Stays)| {
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        let quantile = |part| rounded(stays.durations.quantile(part).unwrap_or_default());
        let [guest, to] = parties(exit, ledger);
        let mut line = json!({
            "level": exit.0, "guest": guest, "hypervisor": to,
            "reason": exit.1.number, "name": ledger.describe_entry(exit.1),
            "count": stays.count(), "ticks": ticks, "mean": ticks / stays.count().max(1),
            "median": quantile(MEDIAN), "p99": quantile(P99), "max": quantile(MOST),
        });
        let (processor, software) = (enter + leave, ticks.saturating_sub(enter + leave));
        let parts = [
            ("enter", enter),
            ("leave", leave),
            ("mitigation", mitigation),
            ("processor", processor),
            ("software", software),
        ];
        add_parts(&mut line, stays.count(), &parts);
        line
    };
    sorted_exits(selection).into_iter().take(top.unwrap_or(usize::MAX)).map(value).collect()
}
