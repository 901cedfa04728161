//! A differential flame graph of two runs: the width of a frame is its share of both runs together, and its colour shows the change.

use super::axis::percent;
use crate::flame::parsed;
use serde::Serialize;
use std::collections::BTreeMap;

/// Narrowest frame, as a fraction of the graph. Narrower frames are left out.
const NARROWEST: f64 = 0.0015;
/// Largest depth of frames.
const DEEPEST: usize = 96;
/// Height of a row in pixels.
pub const ROW: usize = 20;

/// A node of the stack tree: a function or another level of a stack.
#[derive(Default)]
struct Node {
    before: u64,
    after: u64,
    below: BTreeMap<String, Node>,
}

/// A frame with its geometry.
#[derive(Serialize)]
struct Frame {
    name: String,
    before: u64,
    after: u64,
    /// Left edge and width in percent; top edge in pixels.
    x: f64,
    w: f64,
    y: usize,
    /// `less`, `more` or `even`.
    kind: &'static str,
    /// Intensity of the colour in percent.
    tint: u32,
}

/// A flame graph.
#[derive(Serialize)]
pub struct Flame {
    height: usize,
    before: u64,
    after: u64,
    frames: Vec<Frame>,
    /// The directions of change that occur, each with what it is.
    legend: Vec<[&'static str; 2]>,
    /// All directions, for a page whose script draws other pairs.
    all_kinds: [[&'static str; 2]; 2],
}

fn add(root: &mut Node, line: &str, side: impl Fn(&mut Node) -> &mut u64) {
    let Some((stack, count)) = parsed(line) else { return };
    let add_to = |sum: &mut u64| *sum = sum.saturating_add(count);
    add_to(side(root));
    let mut node = root;
    for name in stack.split(';').take(DEEPEST) {
        node = node.below.entry(name.to_owned()).or_default();
        add_to(side(node));
    }
}

impl Node {
    fn both(&self) -> f64 {
        self.before as f64 + self.after as f64
    }

    /// Appends the frames below this node. `left` and `unit` are fractions of the graph.
    fn draw(&self, left: f64, unit: f64, depth: usize, frames: &mut Vec<Frame>) {
        let mut left = left;
        for (name, node) in &self.below {
            let width = node.both() * unit;
            if width >= NARROWEST {
                frames.push(node.frame(name, left, width, depth));
                node.draw(left, unit, depth + 1, frames);
            }
            left += width;
        }
    }

    fn frame(&self, name: &str, left: f64, width: f64, depth: usize) -> Frame {
        let change = (self.after as f64 - self.before as f64) / self.both();
        Frame {
            name: name.to_owned(),
            before: self.before,
            after: self.after,
            x: percent(left),
            w: percent(width),
            y: depth * ROW,
            kind: match change {
                change if change <= -0.005 => "less",
                change if change >= 0.005 => "more",
                _ => "even",
            },
            tint: (change.abs() * 100.0).round() as u32,
        }
    }
}

/// Returns the graph of folded lines (`frame;frame;frame cycles`), or None if there is nothing to draw.
pub fn flame(before: &[String], after: &[String]) -> Option<Flame> {
    let mut root = Node::default();
    before.iter().for_each(|line| add(&mut root, line, |node| &mut node.before));
    after.iter().for_each(|line| add(&mut root, line, |node| &mut node.after));
    if root.both() == 0.0 {
        return None;
    }
    let mut frames = Vec::new();
    root.draw(0.0, 1.0 / root.both(), 0, &mut frames);
    let height = frames.iter().map(|frame| frame.y + ROW).max()?;
    let all_kinds = [["less", "the second pays less"], ["more", "the second pays more"]];
    let legend = all_kinds.into_iter().filter(|[kind, _]| frames.iter().any(|frame| frame.kind == *kind)).collect();
    Some(Flame { height, before: root.before, after: root.after, frames, legend, all_kinds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn the_legend_has_the_directions_that_occur() {
        let kinds = |before: &[&str], after: &[&str]| {
            let drawn = flame(&lines(before), &lines(after)).unwrap();
            drawn.legend.iter().map(|[kind, _]| *kind).collect::<Vec<_>>()
        };
        assert!(kinds(&["a 30"], &["a 30"]).is_empty());
        assert_eq!(kinds(&["a 30"], &["a 40"]), ["more"]);
        assert_eq!(kinds(&["a 30", "b 40"], &["a 40", "b 30"]), ["less", "more"]);
    }

    #[test]
    fn frames_are_as_wide_as_their_part_in_both_runs() {
        let drawn = flame(&lines(&["a;b 30", "a;c 10"]), &lines(&["a;b 10", "a;c 10", "d 40"])).unwrap();
        let frames: Vec<_> = drawn.frames.iter().map(|f| (f.name.as_str(), f.x, f.w, f.kind, f.tint)).collect();
        assert_eq!(
            frames,
            [
                ("a", 0.0, 60.0, "less", 33),
                ("b", 0.0, 40.0, "less", 50),
                ("c", 40.0, 20.0, "even", 0),
                ("d", 60.0, 40.0, "more", 100)
            ]
        );
        assert_eq!((drawn.height, drawn.before, drawn.after), (40, 40, 60));
    }

    #[test]
    fn lines_that_are_none_and_deep_stacks_do_no_harm() {
        let deep = format!("{} 5", vec!["f"; 10_000].join(";"));
        let drawn = flame(&lines(&["nonsense", "a b c", &deep]), &[]).unwrap();
        assert_eq!(drawn.frames.len(), DEEPEST);
        assert!(flame(&[], &lines(&["a 0"])).is_none());
    }
}
