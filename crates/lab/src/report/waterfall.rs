//! Waterfall charts: the steps from one total to another, cause by cause.

use super::axis::{Axis, Mark, percent, short};
use crate::difference::Change;
use crate::format::{number, signed};
use crate::trust::Trust;
use ledger::TICKS_PER_CYCLE;
use serde::Serialize;

/// Largest number of causes with a step of their own.
const MOST_STEPS: usize = 7;

/// A waterfall chart.
#[derive(Serialize)]
pub struct Waterfall {
    marks: Vec<Mark>,
    /// The value at which the axis begins, if that value is not zero.
    begin: Option<String>,
    steps: Vec<Step>,
}

/// A bar of the chart.
#[derive(Serialize)]
struct Step {
    /// `total`, `total cut` if the bar does not begin at zero, `less` or `more`.
    kind: &'static str,
    name: String,
    /// Start and length of the bar in percent.
    from: f64,
    width: f64,
    /// Cycles; those of a cause have a sign.
    cycles: String,
    /// Share of the whole difference.
    share: Option<String>,
    /// Counts before and after.
    counts: Option<String>,
    /// Confidence in the prices.
    trust: Option<&'static str>,
}

/// Formats ticks as cycles, with a sign.
pub fn cycles(ticks: i128) -> String {
    let half = i128::from(TICKS_PER_CYCLE / 2) * ticks.signum();
    signed((ticks + half) / i128::from(TICKS_PER_CYCLE))
}

/// Formats ticks as cycles.
fn whole(ticks: i128) -> String {
    let cycles = (ticks + i128::from(TICKS_PER_CYCLE / 2)) / i128::from(TICKS_PER_CYCLE);
    number(u64::try_from(cycles).unwrap_or(0))
}

/// Formats a share of a difference.
pub fn share(ticks: i128, total: i128) -> Option<String> {
    (total != 0).then(|| format!("{:.1}%", ticks as f64 / total as f64 * 100.0))
}

/// Returns the word of a badge.
pub fn word(trust: Option<Trust>) -> Option<&'static str> {
    trust.map(Trust::word)
}

/// Returns the waterfall chart between two named totals; `causes` add up to the change of the total.
pub fn waterfall(from: &str, to: &str, total: &Change, causes: &[Change]) -> Waterfall {
    let difference = total.ticks();
    let moved: Vec<&Change> = causes.iter().filter(|change| change.ticks() != 0).collect();
    // A single remaining cause gets a step of its own.
    let own = if moved.len() == MOST_STEPS + 1 { moved.len() } else { moved.len().min(MOST_STEPS) };
    let (before, after) = (i128::from(total.before.ticks), i128::from(total.after.ticks));
    let mut parts: Vec<(i128, Step)> = Vec::new();
    let step = |name: String, ticks: i128, counts: Option<String>, trust| Step {
        kind: if ticks < 0 { "less" } else { "more" },
        name,
        from: 0.0,
        width: 0.0,
        cycles: cycles(ticks),
        share: share(ticks, difference),
        counts,
        trust,
    };
    for change in &moved[..own] {
        let counts = format!("{} → {}", number(change.before.count), number(change.after.count));
        parts.push((change.ticks(), step(change.name.clone(), change.ticks(), Some(counts), word(change.trust))));
    }
    let rest = &moved[own..];
    if !rest.is_empty() {
        let ticks = rest.iter().map(|change| change.ticks()).sum();
        parts.push((ticks, step(format!("{} other causes", rest.len()), ticks, None, None)));
    }
    let mut level = before;
    let (mut least, mut most) = (before.min(after), before.max(after));
    for (ticks, _) in &parts {
        level += ticks;
        (least, most) = (least.min(level), most.max(level));
    }
    let axis = Axis::around(least as f64 / TICKS_PER_CYCLE as f64, most as f64 / TICKS_PER_CYCLE as f64);
    let begin = axis.begin().map(short);
    let at = |ticks: i128| axis.at(ticks as f64 / TICKS_PER_CYCLE as f64);
    let end = |name: &str, ticks: i128| Step {
        kind: if begin.is_some() { "total cut" } else { "total" },
        name: name.to_owned(),
        from: 0.0,
        width: at(ticks),
        cycles: whole(ticks),
        share: None,
        counts: None,
        trust: None,
    };
    let mut steps = vec![end(from, before)];
    level = before;
    for (ticks, mut step) in parts {
        let (low, high) = (level.min(level + ticks), level.max(level + ticks));
        level += ticks;
        (step.from, step.width) = (at(low), percent((at(high) - at(low)) / 100.0));
        steps.push(step);
    }
    steps.push(end(to, after));
    Waterfall { marks: axis.marks(), begin, steps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charges::Tally;

    fn change(name: &str, before: u64, after: u64) -> Change {
        let tally = |cycles: u64| Tally { count: cycles, ticks: cycles * TICKS_PER_CYCLE };
        Change { name: name.to_owned(), before: tally(before), after: tally(after), trust: None }
    }

    #[test]
    fn steps_lead_from_one_total_to_the_other() {
        let causes = [change("exits", 80, 10), change("faults", 0, 20), change("same", 5, 5)];
        let drawn = waterfall("A", "B", &change("all", 100, 50), &causes);
        let bars: Vec<_> = drawn.steps.iter().map(|step| (step.name.as_str(), step.from, step.width)).collect();
        assert_eq!(bars, [("A", 0.0, 100.0), ("exits", 30.0, 70.0), ("faults", 30.0, 20.0), ("B", 0.0, 50.0)]);
        assert_eq!(drawn.steps[1].cycles, "-70");
        assert_eq!(drawn.steps[1].share.as_deref(), Some("140.0%"));
    }

    #[test]
    fn small_steps_are_seen() {
        let drawn = waterfall("A", "B", &change("all", 1_000, 1_020), &[change("faults", 100, 120)]);
        let bars: Vec<_> = drawn.steps.iter().map(|step| (step.kind, step.from, step.width)).collect();
        assert_eq!(bars, [("total cut", 0.0, 33.333), ("more", 33.333, 66.667), ("total cut", 0.0, 100.0)]);
        assert_eq!(drawn.begin.as_deref(), Some("990"));
    }

    #[test]
    fn the_smallest_causes_are_one_step_and_nothing_is_lost() {
        let causes: Vec<Change> = (0..12).map(|n| change(&format!("c{n}"), 100 - n, 0)).collect();
        let all: u64 = causes.iter().map(|change| change.before.count).sum();
        let drawn = waterfall("A", "B", &change("all", all, 0), &causes);
        assert_eq!(drawn.steps.len(), MOST_STEPS + 3);
        assert_eq!(drawn.steps[MOST_STEPS + 1].name, "5 other causes");
        assert_eq!(drawn.steps[MOST_STEPS + 1].from, 0.0);
    }
}
