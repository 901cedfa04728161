//! A drawing of costs beside one of them: a line for each commit of a series, or for each side of a comparison.

use super::axis::{Mark, percent};
use super::interval::marks;
use crate::diff::{Answer, Diff, Position};
use serde::Serialize;

/// The part of the range that is left empty at each end.
const MARGIN: f64 = 0.04;

/// A line for each commit or side: its cost as a difference from the first commit or the reference.
#[derive(Serialize)]
pub struct Trend {
    /// The noun for a line.
    what: &'static str,
    caption: String,
    marks: Vec<Mark>,
    /// Position of what the others are compared with.
    zero: f64,
    /// True if a line has the differences of its layouts.
    has_dots: bool,
    lines: Vec<Drawn>,
}

/// A commit or a side.
#[derive(Default, Serialize)]
pub struct Line {
    pub name: String,
    pub subject: String,
    /// The class of the line: `more`, `less`, `even` or `absent`.
    pub kind: &'static str,
    /// True for what a search has found.
    pub found: bool,
    /// None without figures.
    #[serde(skip)]
    pub position: Option<Position>,
    /// The differences of single layouts.
    #[serde(skip)]
    pub differences: Vec<f64>,
    pub change: String,
    pub verdict: String,
    /// Anchor of the section about the change.
    pub link: Option<String>,
}

/// A line with its positions in the drawing.
#[derive(Serialize)]
struct Drawn {
    #[serde(flatten)]
    line: Line,
    /// Position of the estimate; none without figures.
    at: Option<f64>,
    from: f64,
    width: f64,
    /// Position of each layout.
    dots: Vec<f64>,
}

/// Returns the class of a line, by its comparison if it has one.
pub fn kind(against: Option<&Diff>) -> &'static str {
    match against.map(|diff| diff.verdict.answer) {
        Some(Answer::More) => "more",
        Some(Answer::Less) => "less",
        _ => "even",
    }
}

impl Trend {
    /// Draws lines.
    pub fn new(what: &'static str, caption: String, lines: Vec<Line>) -> Self {
        let positions = lines.iter().filter_map(|line| line.position);
        let ends = positions.flat_map(|found| [found.low, found.middle, found.high]);
        let ends = ends.chain(lines.iter().flat_map(|line| line.differences.iter().copied()));
        let (least, most) = ends.fold((0.0, 0.0), |(least, most): (f64, f64), end| (least.min(end), most.max(end)));
        // Without any difference there is still an axis.
        let (least, most) = if most > least { (least, most) } else { (-0.01, 0.01) };
        let edge = (most - least) * MARGIN;
        let (least, most) = (least - edge, most + edge);
        let at = |value: f64| percent((value - least) / (most - least));
        let drawn = |line: Line| {
            let Position { low, high, .. } = line.position.unwrap_or_default();
            let middle = line.position.map(|found| at(found.middle));
            let dots = line.differences.iter().map(|value| at(*value)).collect();
            Drawn { line, at: middle, from: at(low), width: percent((high - low) / (most - least)), dots }
        };
        let (marks, zero) = (marks(least, most), at(0.0));
        let has_dots = lines.iter().any(|line| !line.differences.is_empty());
        Self { what, caption, marks, zero, has_dots, lines: lines.into_iter().map(drawn).collect() }
    }
}
