//! The outcome of a diff in words.

use super::statistics::Interval;
use super::{Answer, Side, Verdict};
use crate::charges::Tally;
use crate::difference::Change;
use crate::format::number;

/// Prefixes of large numbers.
const SCALES: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];

/// Returns two numbers of cycles in the same unit, and that unit.
fn scaled(a: f64, b: f64) -> (String, String, &'static str) {
    let found = SCALES.iter().find(|(scale, _)| a.max(b) >= *scale);
    let &(scale, unit) = found.unwrap_or(&(1.0, ""));
    let figure = |n: f64| format!("{:.*}", if scale == 1.0 { 0 } else { 3 }, n / scale);
    (figure(a), figure(b), unit)
}

/// Formats a fraction as a percentage with its significant digits.
pub fn percent(part: f64) -> String {
    let percent = (part * 100.0).abs();
    match percent {
        _ if percent >= 0.095 => format!("{percent:.1}%"),
        _ if percent >= 0.0095 => format!("{percent:.2}%"),
        0.0 => "0%".to_owned(),
        _ => "less than 0.01%".to_owned(),
    }
}

/// Formats a fraction as a percentage with its sign.
pub fn signed_percent(part: f64) -> String {
    let digits = if part.abs() < 0.000_95 { 2 } else { 1 };
    // Smaller values round to zero, which has no sign.
    let sign = if part.abs() < 0.000_05 {
        ""
    } else if part < 0.0 {
        "-"
    } else {
        "+"
    };
    format!("{sign}{:.digits$}%", part.abs() * 100.0)
}

/// Returns the main cause of a difference: the largest cause in its direction, with that cause's main function. `before` is A's total cost.
pub fn reason(
    verdict: &Verdict,
    before: Tally,
    causes: &[Change],
    by_function: impl Fn(&str) -> Vec<Change>,
) -> Option<String> {
    let direction = match verdict.answer {
        Answer::More => 1,
        Answer::Less => -1,
        Answer::Same | Answer::Noise => return None,
    };
    let largest = causes.iter().find(|change| change.ticks().signum() == direction)?;
    let points = percent(largest.ticks() as f64 / before.ticks.max(1) as f64).replace('%', "");
    let functions = by_function(&largest.name);
    let most = functions.iter().find(|change| change.ticks().signum() == direction);
    let from = most.map_or_else(String::new, |most| {
        let half = most.ticks().unsigned_abs() * 2 >= largest.ticks().unsigned_abs();
        format!(", {} in {}", if half { "most" } else { "above all" }, most.name)
    });
    let count = largest.count();
    let times = number(u64::try_from(count.unsigned_abs()).unwrap_or(u64::MAX));
    let how = match count.signum() {
        0 => "as many at another price".to_owned(),
        sign if sign == direction && direction > 0 => format!("{times} more"),
        sign if sign == direction => format!("{times} fewer"),
        1 => format!("{times} more at a lower price"),
        _ => format!("{times} fewer at a higher price"),
    };
    Some(format!("{points} points are {} ({how}{from})", largest.name))
}

/// Returns the outcome in one sentence.
pub fn answer(verdict: &Verdict, a: &Side, b: &Side, reason: Option<String>) -> String {
    let (before, after, unit) = scaled(a.cycles.mean, b.cycles.mean);
    let cycles = format!("{before} → {after} {unit}").trim_end().to_owned();
    let how_much = percent(verdict.relative);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match verdict.answer {
        Answer::More => format!("B costs {how_much} more cycles than A ({cycles}){reason}."),
        Answer::Less => format!("B costs {how_much} fewer cycles than A ({cycles}){reason}."),
        Answer::Same => format!("B costs as many cycles as A ({before} {unit}).").replace(" )", ")"),
        Answer::Noise => {
            let found = signed_percent(verdict.relative);
            format!("No difference established: {found} ({cycles} cycles) is within the noise.")
        }
    }
}

/// Returns the confidence of the outcome in one sentence.
pub fn certainty(verdict: &Verdict, a: &Side, b: &Side) -> String {
    let Some(Interval { low, high }) = verdict.interval else {
        return match a.runs.first().and_then(|run| run.seed) {
            Some(seed) => {
                format!("Measured with the layout of seed {seed}: the result may differ with other layouts (--vary N).")
            }
            None => "Measured with one layout of code and data: the result may differ with other layouts (--vary N)."
                .to_owned(),
        };
    };
    format!(
        "The difference is between {} and {} with 95% confidence: {} layouts each, which differ by {} (A) and {} (B) among themselves.",
        signed_percent(low),
        signed_percent(high),
        a.runs.len(),
        percent(a.cycles.spread()),
        percent(b.cycles.spread()),
    )
}

/// Returns remarks and warnings for the reader.
pub fn notes(a: &Side, b: &Side) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, side) in [("A", a), ("B", b)] {
        if side.settled_after().is_none() {
            notes.push(format!(
                "{name} never settled: its kernel always had something to do, or its tasks are not known. What runs beside the command may differ."
            ));
        }
    }
    if a.tsc_hz != b.tsc_hz {
        let ghz = |side: &Side| side.tsc_hz as f64 / 1e9;
        notes.push(format!(
            "A's cycles are of {:.3} GHz and B's of {:.3} GHz: in time B takes {:.3} times as long.",
            ghz(a),
            ghz(b),
            b.cycles.mean / b.tsc_hz as f64 / (a.cycles.mean / a.tsc_hz as f64)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_unit_that_suits_them() {
        assert_eq!(scaled(1.812e9, 1.87e9), ("1.812".into(), "1.870".into(), "G"));
        assert_eq!(scaled(950e6, 1.2e9), ("0.950".into(), "1.200".into(), "G"));
        assert_eq!(scaled(12.0, 950.0), ("12".into(), "950".into(), ""));
    }

    #[test]
    fn percentages_have_digits_that_say_something() {
        let texts = [0.032, -0.5, 0.000_5, 0.000_001, 0.0].map(percent);
        assert_eq!(texts, ["3.2%", "50.0%", "0.05%", "less than 0.01%", "0%"]);
        assert_eq!([0.032, -0.000_42, -0.000_01].map(signed_percent), ["+3.2%", "-0.04%", "0.00%"]);
    }
}
