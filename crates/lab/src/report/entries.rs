//! Entries to the kernel as bars: for each entry and side a bar as long as its mean, of the parts of its way.

use super::axis::percent;
use crate::diff::EntryChange;
use crate::diff::entries::Figures;
use crate::format::{number, signed};
use serde::Serialize;

/// The number of entries that the page shows.
const SHOWN: usize = 12;

/// A part of a bar.
#[derive(Serialize)]
struct Part {
    /// Name of the part, which the style sheet and the legend know.
    name: &'static str,
    /// Width in percent of the longest bar.
    width: f64,
}

/// One side of an entry.
#[derive(Serialize)]
struct Side {
    name: String,
    count: String,
    mean: String,
    median: String,
    p99: String,
    parts: Vec<Part>,
}

/// An entry.
#[derive(Serialize)]
struct Row {
    name: String,
    change: String,
    /// The direction of the change: whether the second side pays more or less than the first.
    kind: &'static str,
    sides: [Side; 2],
}

/// The entries of a page.
#[derive(Serialize)]
pub struct Entries {
    rows: Vec<Row>,
    /// Number of further entries that differ.
    more: usize,
}

fn cycles(cycles: f64) -> String {
    number(cycles.round().max(0.0) as u64)
}

fn side(name: &str, figures: &Figures, longest: f64) -> Side {
    let parts = [
        ("enter", figures.enter),
        ("mitigation", figures.mitigation),
        ("handler", figures.handler),
        ("leave", figures.leave),
    ];
    Side {
        name: name.to_owned(),
        count: cycles(figures.count),
        mean: cycles(figures.mean),
        median: cycles(figures.median),
        p99: cycles(figures.p99),
        parts: parts.map(|(name, cycles)| Part { name, width: percent(cycles / longest) }).into(),
    }
}

/// Draws the entries with the largest changes between two sides of these names. Each has a scale of its own, because a call may cost a thousand times as much as another.
pub fn entries(changes: &[EntryChange], [a, b]: [&str; 2]) -> Option<Entries> {
    let row = |change: &EntryChange| {
        let longest = change.a.mean.max(change.b.mean).max(1.0);
        Row {
            name: change.name.clone(),
            change: signed(change.cycles().round() as i128),
            kind: if change.cycles() > 0.0 { "more" } else { "less" },
            sides: [side(a, &change.a, longest), side(b, &change.b, longest)],
        }
    };
    let rows: Vec<Row> = changes.iter().take(SHOWN).map(row).collect();
    (!rows.is_empty()).then(|| Entries { more: changes.len() - rows.len(), rows })
}
