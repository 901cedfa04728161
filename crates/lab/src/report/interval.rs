//! The drawing of an interval: a bar for the interval, a line for its estimate, and a dot for each pair of runs, on an axis that is zoomed to them.

use super::axis::{Mark, percent};
use crate::diff::Verdict;
use serde::Serialize;

/// Steps between tick marks within a decade.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];
/// Largest number of intervals between tick marks. More labels would overlap on a telephone.
const MOST_INTERVALS: f64 = 5.0;
/// The part of a telephone's width that half a letter of a label needs beyond the margin of the page, in percent.
const HALF_LETTER: f64 = 0.7;
/// The part of the range that is left empty at each end.
const MARGIN: f64 = 0.06;

/// Positions in percent of the width.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drawn {
    /// Tick marks.
    marks: Vec<Mark>,
    /// Position of zero, if the axis shows it.
    zero: Option<f64>,
    /// Lower end of the interval.
    from: f64,
    /// Width of the interval.
    width: f64,
    /// Position of the estimate.
    middle: f64,
    /// Position of each pair.
    dots: Vec<f64>,
    /// The same in words, for readers who do not see the drawing.
    words: String,
}

/// Returns the distance between tick marks on an axis.
fn step(least: f64, most: f64) -> f64 {
    let rough = (most - least) / MOST_INTERVALS;
    let decade = 10f64.powf(rough.log10().floor());
    STEPS.iter().map(|step| step * decade).find(|step| *step >= rough).unwrap_or(10.0 * decade)
}

/// Returns the digits behind the point of percentages that are a step apart.
fn digits(step: f64) -> usize {
    (-(step * 100.0).log10().floor()).max(0.0) as usize
}

/// Returns the tick marks of an axis of differences, in percent. `least` is below `most`.
pub fn marks(least: f64, most: f64) -> Vec<Mark> {
    let step = step(least, most);
    let digits = digits(step);
    let numbers = (least / step).ceil() as i64..=(most / step).floor() as i64;
    let mark = |number: i64| {
        let value = number as f64 * step;
        let sign = if number > 0 { "+" } else { "" };
        let at = percent((value - least) / (most - least));
        Mark { at, text: format!("{sign}{:.digits$}%", value * 100.0).replace('-', "−") }
    };
    numbers.map(mark).collect()
}

/// Leaves out the label of a mark that would reach beyond the edge of a telephone's screen. Its line stays.
fn within_page(mark: Mark) -> Mark {
    let half = mark.text.chars().count() as f64 * HALF_LETTER;
    if (half..=100.0 - half).contains(&mark.at) { mark } else { Mark { text: String::new(), ..mark } }
}

/// Draws the interval of a verdict. None if there is none, or if all pairs are equal.
pub fn interval(verdict: &Verdict) -> Option<Drawn> {
    let found = verdict.interval?;
    let values = verdict.differences.iter().copied().chain([found.low, found.high]);
    let (least, most) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    let range = most - least;
    if range.is_nan() || range <= 0.0 {
        return None;
    }
    // Zero belongs to the picture if it is no further away than the values are from each other.
    let (least, most) = if least > 0.0 && least < range { (0.0, most) } else { (least, most) };
    let (least, most) = if most < 0.0 && -most < range { (least, 0.0) } else { (least, most) };
    let edge = (most - least) * MARGIN;
    let (least, most) = (least - edge, most + edge);
    let at = |value: f64| percent((value - least) / (most - least));
    let step = step(least, most);
    let digits = digits(step);
    let shown = |value: f64| format!("{:+.*}%", digits + 1, value * 100.0);
    Some(Drawn {
        marks: marks(least, most).into_iter().map(within_page).collect(),
        zero: (least <= 0.0 && most >= 0.0).then(|| at(0.0)),
        from: at(found.low),
        width: percent((found.high - found.low) / (most - least)),
        middle: at(verdict.relative),
        dots: verdict.differences.iter().map(|value| at(*value)).collect(),
        words: format!(
            "the interval reaches from {} to {}, and its estimate is {}; the dots are the differences of {} pairs of runs",
            shown(found.low),
            shown(found.high),
            shown(verdict.relative),
            verdict.differences.len()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Terms;
    use crate::diff::statistics::Plan;

    fn drawn(factors: &[f64]) -> Option<Drawn> {
        let pairs: Vec<(f64, f64)> = factors.iter().map(|factor| (1e6, 1e6 * factor)).collect();
        interval(&Verdict::new(&pairs, &Terms { plan: Plan::Looks, margin: 0.01, limit: None }))
    }

    #[test]
    fn everything_is_on_the_axis_and_zero_if_it_is_near() {
        let near = drawn(&[1.1, 1.2, 1.15, 1.3, 1.25, 1.05]).unwrap();
        let all = near.dots.iter().chain([&near.from, &near.middle]).chain(near.marks.iter().map(|mark| &mark.at));
        assert!(all.into_iter().all(|at| (0.0..=100.0).contains(at)), "{near:?}");
        assert!(near.zero.is_some() && near.from + near.width <= 100.0 && near.dots.len() == 6);
        assert!(near.marks.iter().any(|mark| mark.text == "+10%") && near.marks.len() <= 7, "{near:?}");
        let far = drawn(&[1.51, 1.52, 1.515, 1.53, 1.525, 1.505]).unwrap();
        assert_eq!(far.zero, None, "the axis is zoomed to the values");
        // The last of these marks is at 99.8 % of the width.
        let edge = drawn(&[1.3268, 1.3301, 1.3336]).unwrap();
        let labels: Vec<&str> = edge.marks.iter().map(|mark| mark.text.as_str()).collect();
        assert_eq!(labels, ["+32.8%", "+33.0%", "+33.2%", ""]);
        assert_eq!(drawn(&[1.0; 6]), None);
        assert_eq!(drawn(&[1.5]), None);
    }
}
