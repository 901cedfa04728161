//! A comparison of two cells: headline, waterfall, flame graph and the table of all differences; and the data from which the page's
//! script builds the same comparison for any two cells.

use super::flame::{Flame, flame};
use super::headline::{Headline, headline};
use super::waterfall::{Waterfall, cycles, share, waterfall};
use crate::Experiment;
use crate::charges::Tallies;
use crate::difference::{Change, Difference, Pair};
use crate::flame::parsed;
use crate::format::{number, whole_cycles};
use crate::results::{CellResult, ExperimentResult, Measured};
use crate::trust::Trust;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Folded lines below this fraction (1/n) of the total are merged.
const SMALLEST: u64 = 5000;

/// A comparison for the page.
#[derive(Serialize)]
pub struct Comparison {
    /// Title of the first cell.
    pub from: String,
    /// Title of the second cell.
    pub to: String,
    /// The row or column that both cells share.
    pub within: String,
    /// HTML anchor.
    pub id: String,
    /// Positions of both cells in the script's list.
    pub cells: Option<[usize; 2]>,
    /// Ratio and sentence.
    pub headline: Option<Headline>,
    /// Cycles that the second cell has beyond the first.
    pub cycles: String,
    /// Confidence in the prices behind both.
    pub trust: Option<Badge>,
    /// The steps from one total to the other.
    pub waterfall: Waterfall,
}

/// A badge for the origin of prices.
#[derive(Serialize)]
pub struct Badge {
    /// The word on the badge.
    pub word: &'static str,
    /// Fraction that was measured.
    pub share: String,
}

/// Returns the badge for a confidence in prices.
pub fn badge(trust: Option<Trust>) -> Option<Badge> {
    trust.map(|trust| Badge { word: trust.word(), share: format!("{:.0}%", trust.share() * 100.0) })
}

/// All differences between two cells.
#[derive(Serialize)]
pub struct Details {
    /// Differential flame graph of both cells.
    pub flame: Option<Flame>,
    /// True if the graph is of call stacks, false if it is a cost tree.
    pub call_stacks: bool,
    /// Rows of the table.
    pub lines: Vec<Line>,
}

/// A row of the table.
#[derive(Serialize)]
pub struct Line {
    name: String,
    list: &'static str,
    before: String,
    after: String,
    change: String,
    share: Option<String>,
    counts: [String; 2],
    /// Sort keys: cycles before, after and their change; counts.
    keys: [i128; 5],
    /// `less`, `more` or `even`.
    kind: &'static str,
    /// Length of the bar in percent.
    bar: f64,
}

/// Converts text to a part of an anchor.
fn anchor(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).collect()
}

/// Returns the comparison of a pair, if both cells have results.
pub fn comparison(experiment: &Experiment, result: &ExperimentResult, pair: &Pair) -> Option<Comparison> {
    let (before, after) = pair.measured(experiment, result)?;
    let difference = Difference::new(before, after);
    let (from, to, within) = pair.titles(experiment);
    let id = |(row, column): (usize, usize)| {
        format!("{}.{}", anchor(&experiment.rows[row].line.id), anchor(&experiment.columns[column].id))
    };
    let at = |(row, column): (usize, usize)| {
        let found = result.cell(experiment, row, column)?;
        result.cells.iter().filter(|cell| cell.measured.is_some()).position(|cell| std::ptr::eq(cell, found))
    };
    Some(Comparison {
        waterfall: waterfall(&from, &to, &difference.total, &difference.causes),
        cycles: cycles(difference.total.ticks()),
        trust: badge(difference.total.trust),
        headline: headline(experiment, result, pair),
        id: format!("{}:{}..{}", anchor(&experiment.name), id(pair.from), id(pair.to)),
        cells: at(pair.from).zip(at(pair.to)).map(|(from, to)| [from, to]),
        from,
        to,
        within,
    })
}

/// Returns the rows of the table from titled lists, the largest change first; shares relate to `total`.
pub fn lines(lists: &[(&'static str, &[Change])], total: i128) -> Vec<Line> {
    let all = lists.iter().flat_map(|(title, changes)| changes.iter().map(|change| (*title, change)));
    let mut all: Vec<(&'static str, &Change)> = all.collect();
    let size = |change: &Change| (change.ticks().unsigned_abs(), change.count().unsigned_abs());
    all.sort_by_key(|(_, change)| std::cmp::Reverse(size(change)));
    let most = all.first().map_or(1, |(_, change)| change.ticks().unsigned_abs().max(1));
    let line = |(list, change): (&'static str, &Change)| Line {
        name: change.name.clone(),
        list,
        before: number(whole_cycles(change.before.ticks)),
        after: number(whole_cycles(change.after.ticks)),
        change: cycles(change.ticks()),
        share: share(change.ticks(), total),
        counts: [number(change.before.count), number(change.after.count)],
        keys: [
            i128::from(change.before.ticks),
            i128::from(change.after.ticks),
            change.ticks(),
            i128::from(change.before.count),
            i128::from(change.after.count),
        ],
        kind: match change.ticks() {
            0 => "even",
            ticks if ticks < 0 => "less",
            _ => "more",
        },
        bar: (change.ticks().unsigned_abs() as f64 / most as f64 * 1000.0).round() / 10.0,
    };
    all.into_iter().map(line).collect()
}

/// Returns the flame graph and the table of two cells.
pub fn details(experiment: &Experiment, result: &ExperimentResult, pair: &Pair) -> Option<Details> {
    let (before, after) = pair.measured(experiment, result)?;
    let stacks = |(row, column): (usize, usize)| {
        result.cell(experiment, row, column).map(|cell| shortened(&cell.stacks)).unwrap_or_default()
    };
    let difference = Difference::new(before, after);
    let lists: Vec<(&'static str, &[Change])> =
        difference.sections.iter().map(|section| (section.title, &section.changes[..])).collect();
    Some(Details {
        flame: flame(&stacks(pair.from), &stacks(pair.to)),
        call_stacks: experiment.sample.is_some(),
        lines: lines(&lists, difference.total.ticks()),
    })
}

/// Merges folded lines that are too narrow for a screen into one line per outermost frame.
pub(super) fn shortened(lines: &[String]) -> Vec<String> {
    let all = || lines.iter().filter_map(|line| parsed(line));
    let total: u64 = all().map(|(_, cycles)| cycles).fold(0, u64::saturating_add);
    let (kept, small): (Vec<_>, Vec<_>) = all().partition(|(_, cycles)| *cycles >= total / SMALLEST);
    let mut others: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, cycles) in small {
        let outermost = stack.split(';').next().unwrap_or_default();
        let sum = others.entry(outermost).or_default();
        *sum = sum.saturating_add(cycles);
    }
    let kept = kept.into_iter().map(|(stack, cycles)| format!("{stack} {cycles}"));
    kept.chain(others.into_iter().map(|(outermost, cycles)| format!("{outermost};(others) {cycles}"))).collect()
}

/// Interned strings.
#[derive(Default)]
struct Names<'a> {
    all: Vec<&'a str>,
    at: BTreeMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        *self.at.entry(name).or_insert_with(|| {
            self.all.push(name);
            self.all.len() - 1
        })
    }
}

fn tallies<'a>(list: &'a Tallies, names: &mut Names<'a>) -> Value {
    list.iter().map(|(name, tally)| json!([names.of(name), tally.count, tally.ticks])).collect()
}

/// Returns the script's data: the inputs of the comparisons above for each measured cell.
pub fn data(experiment: &Experiment, result: &ExperimentResult) -> Value {
    // Kept until the end, because the names below borrow from it.
    let measured: Vec<(&CellResult, &Measured)> =
        result.cells.iter().filter_map(|cell| Some((cell, cell.measured.as_ref()?))).collect();
    let causes: Vec<Vec<(String, _, _)>> = measured
        .iter()
        .map(|(_, measured)| {
            let charges = &measured.charges;
            charges.causes().map(|cause| (charges.name(cause), charges.of(cause), charges.trust(cause))).collect()
        })
        .collect();
    let stacks: Vec<Vec<String>> = measured.iter().map(|(cell, _)| shortened(&cell.stacks)).collect();
    let mut names = Names::default();
    let mut cells = Vec::new();
    for (at, (cell, measured)) in measured.iter().enumerate() {
        let row = experiment.rows.iter().find(|row| row.line.id == cell.row);
        let column = experiment.columns.iter().find(|column| column.id == cell.column);
        let causes: Vec<Value> = causes[at]
            .iter()
            .map(|(name, tally, trust)| {
                json!([names.of(name), tally.count, tally.ticks, trust.measured as f64, trust.estimated as f64])
            })
            .collect();
        let lists = measured.entries.lists().map(|(_, list)| tallies(list, &mut names));
        let stacks: Vec<Value> = stacks[at]
            .iter()
            .filter_map(|line| {
                let (stack, cycles) = parsed(line)?;
                let frames: Vec<usize> = stack.split(';').map(|frame| names.of(frame)).collect();
                Some(json!([frames, cycles]))
            })
            .collect();
        cells.push(json!({
            "row": row.map_or(cell.row.as_str(), |row| row.line.title.as_str()),
            "column": column.map_or(cell.column.as_str(), |column| column.title.as_str()),
            "value": measured.value,
            "figure": format!("{} {}", measured.figure(), measured.unit),
            "unit": measured.unit,
            "count": row.is_some_and(|row| row.metric.is_count()),
            "rate": row.is_some_and(|row| row.metric.is_rate()),
            "total": [measured.charges.total.count, measured.charges.total.ticks],
            "causes": causes,
            "lists": lists,
            "stacks": stacks,
        }));
    }
    let titles = crate::results::Entries::default().lists().map(|(title, _)| title);
    json!({ "names": names.all, "lists": titles, "cells": cells })
}
