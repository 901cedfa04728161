//! Axes of plots: positions of values in percent of the width, and tick marks.

use serde::Serialize;

/// A tick mark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Position in percent of the width.
    pub at: f64,
    /// Label.
    pub text: String,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Axis {
    /// A linear scale from zero to this value.
    Linear(f64),
    /// A linear scale that begins at this value, with a number of intervals of this size.
    Part(f64, f64, u32),
    /// A logarithmic scale between two values.
    Logarithmic(f64, f64),
}

/// Steps between tick marks within a decade.
const STEPS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
/// Largest number of intervals between tick marks on a linear axis. More labels would overlap in the narrow charts.
const MOST_INTERVALS: f64 = 3.0;

/// The part of the largest value below which no value may be, so that an axis need not begin at zero.
const FAR_FROM_ZERO: f64 = 0.5;
/// The part of the largest value that the values of such an axis have to span: its marks would have equal labels otherwise.
const LEAST_SPAN: f64 = 0.003;
/// The part of their span that is left empty below the values.
const BELOW: f64 = 0.25;

/// Returns the smallest round number that is at least `least`.
fn round_up(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    let step = STEPS.iter().find(|step| **step * decade >= least * (1.0 - 1e-9));
    step.map_or(least, |step| step * decade)
}

/// Rounds a percentage to the precision that a screen can show.
pub fn percent(part: f64) -> f64 {
    (part * 100_000.0).round() / 1000.0
}

/// Formats a number in few characters: thousands as k, millions as M, and so on.
pub fn short(value: f64) -> String {
    let units = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let (divisor, unit) = units.into_iter().find(|(from, _)| value.abs() >= *from).unwrap_or((1.0, ""));
    let digits = format!("{:.3}", value / divisor);
    format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
}

impl Axis {
    /// Creates a linear axis that reaches at least `most`.
    pub fn linear(most: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = round_up(most / MOST_INTERVALS);
        Axis::Linear((most / step - 1e-9).ceil() * step)
    }

    /// Creates a linear axis for values from `least` to `most`. It is zoomed to them if they are far from zero.
    pub fn around(least: f64, most: f64) -> Self {
        let span = most - least;
        let is_zoomed = most > 0.0 && span >= most * LEAST_SPAN && least >= most * FAR_FROM_ZERO;
        if !is_zoomed {
            return Self::linear(most);
        }
        let base = least - span * BELOW;
        let step = round_up((most - base) / MOST_INTERVALS);
        let (first, last) = ((base / step + 1e-9).floor(), (most / step - 1e-9).ceil());
        Axis::Part(first * step, step, (last - first) as u32)
    }

    /// Returns the value at which a linear axis begins, if that is not zero.
    pub fn begin(&self) -> Option<f64> {
        match *self {
            Axis::Part(begin, ..) => Some(begin),
            Axis::Linear(_) | Axis::Logarithmic(..) => None,
        }
    }

    /// Creates a logarithmic axis from `least` to `most`, both above zero. Its ends are 1, 2 or 5 of a decade.
    pub fn logarithmic(least: f64, most: f64) -> Self {
        let most = round_up(most.max(f64::MIN_POSITIVE));
        // The round number below a value is the inverse of the round number above the value's inverse.
        Axis::Logarithmic(1.0 / round_up(1.0 / least.max(f64::MIN_POSITIVE)), most)
    }

    /// Returns the position of a value in percent.
    pub fn at(&self, value: f64) -> f64 {
        let part = match *self {
            Axis::Linear(most) => value / most,
            Axis::Part(begin, step, intervals) => (value - begin) / (step * f64::from(intervals)),
            Axis::Logarithmic(least, most) if most > least => (value / least).ln() / (most / least).ln(),
            Axis::Logarithmic(..) => 0.5,
        };
        percent(part.clamp(0.0, 1.0))
    }

    /// Returns the tick marks.
    pub fn marks(&self) -> Vec<Mark> {
        let mark = |value: f64| Mark { at: self.at(value), text: short(value) };
        match *self {
            Axis::Linear(most) => {
                let step = round_up(most / MOST_INTERVALS);
                (0..=(most / step).round() as u32).map(|n| mark(f64::from(n) * step)).collect()
            }
            Axis::Part(begin, step, intervals) => (0..=intervals).map(|n| mark(begin + f64::from(n) * step)).collect(),
            Axis::Logarithmic(least, most) => {
                let decades = (least.log10() - 1e-9).floor() as i32..=(most.log10() + 1e-9).floor() as i32;
                let steps: &[f64] = if most / least > 150.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
                all.filter(|value| (least * 0.999..=most * 1.001).contains(value)).map(mark).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.marks().into_iter().map(|mark| format!("{}@{}", mark.text, mark.at)).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_marks() {
        assert_eq!(texts(&Axis::linear(1.3)), ["0@0", "0.5@33.333", "1@66.667", "1.5@100"]);
        assert_eq!(texts(&Axis::linear(9.1e6)), ["0@0", "5 M@50", "10 M@100"]);
        assert_eq!(Axis::linear(0.0), Axis::Linear(1.0));
        assert_eq!(Axis::linear(f64::NAN), Axis::Linear(1.0));
    }

    #[test]
    fn an_axis_is_zoomed_to_values_that_are_far_from_zero() {
        let texts = |least, most| texts(&Axis::around(least, most));
        assert_eq!(texts(14.64e6, 18.69e6), ["12 M@0", "14 M@25", "16 M@50", "18 M@75", "20 M@100"]);
        assert_eq!(texts(13.84e6, 14.14e6)[0], "13.6 M@0");
        assert_eq!(texts(4e6, 9.1e6), ["0@0", "5 M@50", "10 M@100"]);
        assert_eq!(Axis::around(1e6, 1.001e6), Axis::linear(1.001e6), "the labels would be equal");
        assert_eq!((Axis::around(9.0, 10.0).begin(), Axis::around(0.0, 0.0).begin()), (Some(8.5), None));
    }

    #[test]
    fn a_logarithmic_axis_marks_its_decades() {
        let axis = Axis::logarithmic(1.11, 61.18);
        assert_eq!(axis, Axis::Logarithmic(1.0, 100.0));
        assert_eq!(texts(&axis), ["1@0", "2@15.051", "5@34.949", "10@50", "20@65.051", "50@84.949", "100@100"]);
        let decades = texts(&Axis::logarithmic(0.03, 4000.0));
        assert_eq!(decades.len(), 5, "{decades:?}");
        assert!(decades[0].starts_with("0.1@") && decades[4].starts_with("1 k@"), "{decades:?}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.25, 20.0, 1500.0, 1.25e9].map(short), ["0.25", "20", "1.5 k", "1.25 G"]);
    }
}
