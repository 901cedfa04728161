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
    total: String,
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
    /// The length of the longest name of a side, in characters.
    width: usize,
    /// The parts that occur, each with what it is.
    legend: Vec<[&'static str; 2]>,
    /// Number of further entries that differ.
    more: usize,
}

/// The parts of a bar, in their order.
const PARTS: [[&str; 2]; 4] = [
    ["enter", "the processor's way in"],
    ["mitigation", "mitigations"],
    ["handler", "the handler"],
    ["leave", "the way out"],
];

fn cycles(cycles: f64) -> String {
    number(cycles.round().max(0.0) as u64)
}

fn side(name: &str, figures: &Figures, longest: f64) -> Side {
    let parts = [figures.enter, figures.mitigation, figures.handler, figures.leave];
    let parts = PARTS.iter().zip(parts).filter(|(_, cycles)| *cycles > 0.0);
    Side {
        name: name.to_owned(),
        count: cycles(figures.count),
        total: cycles(figures.total),
        mean: cycles(figures.mean),
        median: cycles(figures.median),
        p99: cycles(figures.p99),
        parts: parts.map(|([name, _], cycles)| Part { name, width: percent(cycles / longest) }).collect(),
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
    let occurs =
        |name: &str| rows.iter().flat_map(|row| &row.sides).any(|side| side.parts.iter().any(|part| part.name == name));
    let legend = PARTS.into_iter().filter(|[name, _]| occurs(name)).collect();
    let width = a.chars().count().max(b.chars().count());
    (!rows.is_empty()).then(|| Entries { more: changes.len() - rows.len(), rows, width, legend })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_has_the_parts_that_occur() {
        let figures = |mitigation| Figures {
            count: 1.0,
            mean: 100.0,
            enter: 20.0,
            mitigation,
            handler: 80.0,
            ..Figures::default()
        };
        let change = |mitigation| EntryChange {
            name: "read".to_owned(),
            gate: "call",
            plural: "calls of read".to_owned(),
            a: figures(0.0),
            b: figures(mitigation),
        };
        let names = |changes: &[EntryChange]| {
            let drawn = entries(changes, ["A", "B"]).unwrap();
            drawn.legend.iter().map(|[name, _]| *name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[change(0.0)]), ["enter", "handler"]);
        assert_eq!(names(&[change(0.0), change(5.0)]), ["enter", "mitigation", "handler"]);
    }
}
