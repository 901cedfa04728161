//! The result of a comparison as one ratio and one sentence.

use super::waterfall::share;
use crate::Experiment;
use crate::difference::{Difference, Pair};
use crate::format::figure;
use crate::results::{ExperimentResult, Measured};
use serde::Serialize;

/// Relative changes up to this size count as equal.
const SAME: f64 = 0.005;

/// The ratio and its meaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headline {
    /// Ratio with its sign: `8.12×`.
    pub ratio: String,
    /// Meaning of the ratio: `faster`, `slower`, `fewer`.
    pub word: String,
    /// Published ratio of the same pair.
    pub published: Option<String>,
    /// Sentence.
    pub sentence: String,
}

/// Returns the ratio as a number of at least one, with the word that applies.
pub fn ratio(times: f64, [better, worse]: [&str; 2]) -> (String, String) {
    match times {
        times if (times - 1.0).abs() < SAME => ("1.00×".to_owned(), "no difference".to_owned()),
        times if times > 1.0 => (format!("{}×", figure(times)), better.to_owned()),
        times => (format!("{}×", figure(1.0 / times)), worse.to_owned()),
    }
}

/// Formats a value with its unit.
fn value(measured: &Measured) -> String {
    format!("{} {}", measured.figure(), measured.unit)
}

/// Returns the main cause of a difference as the end of a sentence.
fn explained(difference: &Difference) -> String {
    let total = difference.total.ticks();
    let cause = difference.causes.iter().find(|change| change.ticks().signum() == total.signum());
    match cause.and_then(|cause| Some((cause, share(cause.ticks(), total)?))) {
        Some((cause, share)) => {
            let verb = if total < 0 { "saved" } else { "added" };
            format!(" Of the cycles {verb}, {share} are {}.", cause.name)
        }
        None => String::new(),
    }
}

/// Returns the headline of a pair, if both cells have results.
pub fn headline(experiment: &Experiment, result: &ExperimentResult, pair: &Pair) -> Option<Headline> {
    let (before, after) = pair.measured(experiment, result)?;
    let (published, times) = pair.factors(experiment, result)?;
    if !times.is_finite() || times <= 0.0 {
        return None;
    }
    let metric = &experiment.rows[pair.from.0].metric;
    let words = match metric.is_count() {
        true => ["fewer", "more"],
        false => ["faster", "slower"],
    };
    let (ratio_text, word) = ratio(times, words);
    let (from, to, within) = pair.titles(experiment);
    let verb = if metric.is_count() || metric.is_rate() { "has" } else { "takes" };
    let sentence = format!(
        "{within}: {to} {verb} {}, {from} {}.{}",
        value(after),
        value(before),
        explained(&Difference::new(before, after))
    );
    let published = published.filter(|times| times.is_finite() && *times > 0.0).map(|times| {
        let (ratio, word) = ratio(times, words);
        format!("{ratio} {word}")
    });
    Some(Headline { ratio: ratio_text, word, published, sentence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{difference, testing};

    #[test]
    fn a_headline_says_by_how_much_and_why() {
        let (experiment, result) = testing::results(4);
        let pair = difference::factors(&experiment)[0];
        let line = headline(&experiment, &result, &pair).unwrap();
        assert_eq!(line.word, "faster");
        assert_eq!(line.published.as_deref(), Some("30.59× faster"));
        assert!(line.sentence.starts_with("switch: KVM after takes "), "{}", line.sentence);
        assert!(line.sentence.contains("Of the cycles saved, "), "{}", line.sentence);
    }

    #[test]
    fn ratios_are_from_one_on() {
        let words = ["faster", "slower"];
        assert_eq!(ratio(0.5, words), ("2.00×".to_owned(), "slower".to_owned()));
        assert_eq!(ratio(1.001, words).1, "no difference");
    }
}
