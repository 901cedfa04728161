//! The cycles of a run as top-down analysis splits them, for `tollgate report`.

use crate::table::{
    Align::{Left, Right},
    cycles, limit, share, shortened, table, title, whole_cycles,
};
use lab::slots::{self, slot};
use ledger::profile::Clock;
use ledger::summary::{Bound, By, Selection, TopDown};
use ledger::{Ledger, Ticks};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Returns true if a run had the model that charges for what top-down analysis tells apart.
pub fn applies(ledger: &Ledger) -> bool {
    ledger.header.metadata.iter().any(|(key, value)| key == "model" && value == Clock::Core.name())
}

/// Returns the instructions that the core of a run issues in a cycle, if its profile and the profile's core are built in.
fn width(ledger: &Ledger) -> Option<u32> {
    slots::width(&ledger.header.profile).filter(|_| applies(ledger))
}

/// Returns the time of the slot in which the core of a run issues an instruction, if it is known.
pub fn slot_of(ledger: &Ledger) -> Option<Ticks> {
    slot(width(ledger))
}

/// Returns the name of a part for people.
fn name(bound: Bound, width: Option<u32>) -> String {
    match (bound, width) {
        (Bound::Retiring, None) => "instructions".to_owned(),
        (Bound::Retiring, Some(width)) => format!("{}: a slot for each instruction, {width} a cycle", bound.name()),
        (Bound::Core, _) => format!("{}: ports, dividers, dependence", bound.name()),
        (Bound::FrontEnd, _) => format!("{}: lines of code, their translation, unknown branches", bound.name()),
        _ => bound.name().to_owned(),
    }
}

/// Writes the split of the total.
pub fn total(out: &mut String, ledger: &Ledger, selection: Selection) {
    let width = width(ledger);
    let parts = selection.top_down(slot(width));
    let all = parts.total();
    let rows: Vec<Vec<String>> = Bound::ALL
        .into_iter()
        .filter(|bound| parts.of(*bound) != 0)
        .map(|bound| vec![share(parts.of(bound), all), cycles(parts.of(bound)), name(bound, width)])
        .collect();
    title(out, "Top-down", rows.len(), rows.len());
    table(out, &[("share", Right), ("cycles", Right), ("part", Left)], &rows);
}

/// Returns the split of the total on one line, if the run's model has it: parts of at least a per cent.
pub fn line(ledger: &Ledger) -> Option<String> {
    let parts = applies(ledger).then(|| ledger.all().top_down(slot(width(ledger))))?;
    let all = parts.total();
    let large = Bound::ALL.into_iter().filter(|bound| parts.of(*bound) >= all.div_ceil(100).max(1));
    Some(large.map(|bound| format!("{} {}", bound.name(), share(parts.of(bound), all))).collect::<Vec<_>>().join(", "))
}

/// The columns of a table of lines: a heading, and the parts that are summed up under it.
const COLUMNS: [(&str, &[Bound]); 7] = [
    ("retiring", &[Bound::Retiring]),
    ("bad spec.", &[Bound::BadSpeculation]),
    ("front end", &[Bound::FrontEnd]),
    ("core", &[Bound::Core]),
    ("memory", &[Bound::SecondLevel, Bound::ThirdLevel, Bound::Memory, Bound::Contention]),
    ("TLB", &[Bound::Tlb]),
    ("crossings", &[Bound::Crossings]),
];

/// Writes the split of each line of a table.
pub fn lines(out: &mut String, ledger: &Ledger, selection: Selection, (by, what): (By, &str), top: usize) {
    let width = width(ledger);
    let all = selection.total().busy();
    let (lines, of) = selection.top_down_by(by, limit(top), slot(width));
    let cells = |parts: &TopDown| {
        COLUMNS.map(|(_, bounds)| {
            let ticks = bounds.iter().fold(0, |sum: Ticks, bound| sum.saturating_add(parts.of(*bound)));
            if ticks == 0 { String::new() } else { share(ticks, parts.total()) }
        })
    };
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|(name, parts)| {
            let first = [share(parts.total(), all), cycles(parts.total())];
            first.into_iter().chain(cells(parts)).chain([shortened(name)]).collect()
        })
        .collect();
    title(out, &format!("Top-down by {what}, shares of the line"), rows.len(), of);
    let first = match width {
        Some(_) => COLUMNS[0].0,
        None => "instructions",
    };
    let middle = std::iter::once(first).chain(COLUMNS[1..].iter().map(|column| column.0));
    let headings: Vec<_> = ["share", "cycles"].into_iter().chain(middle).map(|heading| (heading, Right)).collect();
    table(out, &headings.into_iter().chain([(what, Left)]).collect::<Vec<_>>(), &rows);
}

/// Returns the parts for programs.
fn parts_json(parts: &TopDown, width: Option<u32>) -> BTreeMap<&'static str, Value> {
    let name = |bound: Bound| if bound == Bound::Retiring && width.is_none() { "instructions" } else { bound.name() };
    let value = |bound| json!({ "ticks": parts.of(bound), "cycles": whole_cycles(parts.of(bound)) });
    let known = |bound: &Bound| width.is_some() || *bound != Bound::Core;
    Bound::ALL.into_iter().filter(known).map(|bound| (name(bound), value(bound))).collect()
}

/// Returns the split of the total for programs, with the number of slots in a cycle if it is known.
pub fn total_json(ledger: &Ledger, selection: Selection) -> Value {
    let width = width(ledger);
    json!({ "slots": width, "parts": parts_json(&selection.top_down(slot(width)), width) })
}

/// Returns the split of the lines of a table for programs.
pub fn lines_json(ledger: &Ledger, selection: Selection, by: By, top: usize) -> Vec<Value> {
    let width = width(ledger);
    let (lines, _) = selection.top_down_by(by, top, slot(width));
    let line = |(name, parts): (String, TopDown)| json!({ "name": name, "parts": parts_json(&parts, width) });
    lines.into_iter().map(line).collect()
}
