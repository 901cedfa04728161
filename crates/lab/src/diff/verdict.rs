//! The verdict of a diff: what the interval of the paired differences says, and whether a limit is exceeded.

use super::statistics::{Estimate, Interval, LOOKS, Plan, Sample};
use serde::Serialize;

/// The confidence without which nothing is decided.
pub(super) const CONFIDENCE: f64 = 0.95;
/// The method behind the interval, named in the document.
const METHOD: &str =
    "Wilcoxon's signed rank of the logarithms of B / A in each pair, Hodges-Lehmann estimate, in parts of A";

/// The outcome of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// B costs more.
    More,
    /// B costs less.
    Less,
    /// Every pair is equal, to the cycle.
    Same,
    /// The difference is smaller than the margin, in whichever direction.
    Within,
    /// The interval contains zero, and also differences beyond the margin.
    Undecided,
    /// There is a single pair, which differs: without an interval, nothing is known of other layouts.
    OneLayout,
}

impl Answer {
    /// Returns the identifier used in machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::More => "more",
            Self::Less => "less",
            Self::Same => "same",
            Self::Within => "within",
            Self::Undecided => "undecided",
            Self::OneLayout => "one-layout",
        }
    }
}

/// The rules by which pairs are judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// When the number of pairs is decided.
    pub plan: Plan,
    /// A difference below this part of A counts as none.
    pub margin: f64,
    /// Largest acceptable increase, as a part of A.
    pub limit: Option<f64>,
}

/// What a limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// B's cost is within the limit.
    Within,
    /// B's cost exceeds the limit.
    Exceeded,
    /// The interval contains the limit.
    Undecided,
}

/// The outcome with its confidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The outcome.
    pub answer: Answer,
    /// The difference as a fraction of A; positive if B costs more.
    pub relative: f64,
    /// Confidence interval of the difference, as fractions of A. None for one pair.
    pub interval: Option<Interval>,
    /// The method behind the interval.
    pub method: Option<&'static str>,
    /// The difference of each pair, as a fraction of A's run.
    pub differences: Vec<f64>,
    /// The margin below which a difference counts as none.
    pub margin: f64,
    /// The number of layouts that would probably decide. None if all is decided, or if more than `--layouts` takes would be needed.
    pub sufficient: Option<u16>,
    /// Largest acceptable increase, as a fraction of A.
    pub limit: Option<f64>,
    /// What the limit says.
    pub held: Option<Held>,
}

/// The estimate and the interval of a difference; the ends are the estimate if there is no interval.
#[derive(Clone, Copy, Default)]
pub(crate) struct Position {
    pub low: f64,
    pub middle: f64,
    pub high: f64,
}

impl Position {
    /// Returns those of a verdict.
    pub fn of(verdict: &Verdict) -> Self {
        let middle = verdict.relative;
        let (low, high) = verdict.interval.map_or((middle, middle), |found| (found.low, found.high));
        Self { low, middle, high }
    }
}

/// Returns the logarithm of a ratio of cycles. A run without cycles counts as one cycle.
fn logarithm((a, b): &(f64, f64)) -> f64 {
    (b.max(1.0) / a.max(1.0)).ln()
}

impl Verdict {
    /// Judges pairs of cycles, at least one.
    pub fn new(pairs: &[(f64, f64)], terms: &Terms) -> Self {
        let differences: Vec<f64> = pairs.iter().map(logarithm).collect();
        let look = terms.plan.look(pairs.len());
        let estimate = Estimate::of(&differences, look);
        let interval = estimate.interval.map(|interval| interval.map(f64::exp_m1));
        let relative = estimate.middle.exp_m1();
        let sure = interval.filter(|interval| interval.confidence >= CONFIDENCE);
        let answer = match (sure, interval) {
            _ if pairs.iter().all(|(a, b)| a == b) => Answer::Same,
            (Some(sure), _) if !sure.has_zero() && relative < 0.0 => Answer::Less,
            (Some(sure), _) if !sure.has_zero() => Answer::More,
            (Some(sure), _) if sure.is_within(terms.margin) => Answer::Within,
            (_, Some(_)) => Answer::Undecided,
            (_, None) => Answer::OneLayout,
        };
        let held = terms.limit.map(|limit| match (sure, interval) {
            (Some(sure), _) if sure.low > limit => Held::Exceeded,
            (Some(sure), _) if sure.high <= limit => Held::Within,
            _ if answer == Answer::Same => Held::Within,
            (_, Some(_)) => Held::Undecided,
            // One layout decides only for whoever asked for one.
            (_, None) if terms.plan == Plan::Looks => Held::Undecided,
            (_, None) if relative > limit => Held::Exceeded,
            (_, None) => Held::Within,
        });
        let middle = estimate.middle;
        let of_answer =
            (answer == Answer::Undecided).then(|| middle.abs().max(terms.margin.ln_1p() - middle.abs())).into_iter();
        let of_limit =
            terms.limit.filter(|_| held == Some(Held::Undecided)).map(|limit| (middle - limit.ln_1p()).abs());
        let nearest = of_answer.chain(of_limit).reduce(f64::min);
        Self {
            answer,
            relative,
            interval,
            method: interval.map(|_| METHOD),
            differences: differences.into_iter().map(f64::exp_m1).collect(),
            margin: terms.margin,
            sufficient: nearest.and_then(|distance| estimate.suggested(pairs.len(), distance)),
            limit: terms.limit,
            held,
        }
    }

    /// Returns the verdict of a measurement that its user has stopped. A single pair, of several that were asked for, decides no limit.
    pub fn of_interrupted(mut self) -> Self {
        if self.answer == Answer::OneLayout && self.held.is_some() {
            self.held = Some(Held::Undecided);
        }
        self
    }

    /// Returns true if further pairs are not needed.
    pub fn is_decided(&self) -> bool {
        !matches!(self.answer, Answer::Undecided | Answer::OneLayout) && self.held != Some(Held::Undecided)
    }

    /// Returns true if B costs more or less, also in a single layout.
    pub fn differs(&self) -> bool {
        self.direction() != 0
    }

    /// Returns 1 if B costs more, and -1 if it costs less, also in a single layout; otherwise 0.
    pub fn direction(&self) -> i128 {
        match self.answer {
            Answer::More => 1,
            Answer::Less => -1,
            Answer::OneLayout => {
                if self.relative < 0.0 {
                    -1
                } else {
                    1
                }
            }
            Answer::Same | Answer::Within | Answer::Undecided => 0,
        }
    }

    /// Returns true if B's cost exceeds the limit.
    pub fn exceeded(&self) -> bool {
        self.held == Some(Held::Exceeded)
    }

    /// Returns the half width of the interval; 0 if there is none.
    pub fn uncertainty(&self) -> f64 {
        self.interval.map_or(0.0, |interval| (interval.high - interval.low) / 2.0)
    }

    /// Returns the difference as text, with the digits that its interval allows.
    pub fn shown(&self) -> String {
        super::sentence::cells(self).0
    }

    /// Returns the spread of the pairs' differences, as a standard deviation.
    pub fn spread(&self) -> f64 {
        Sample::of(&self.differences).deviation
    }
}

/// Returns the numbers of pairs after which a diff may end: after the first pair, at each look, and at a fixed number.
pub fn stages(fixed: Option<u16>) -> Vec<usize> {
    match fixed {
        Some(count) if count <= 1 => vec![1],
        Some(count) => vec![1, usize::from(count)],
        None => std::iter::once(1).chain(LOOKS.iter().map(|look| look.pairs)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { plan: Plan::Looks, margin: 0.01, limit: None };

    /// Pairs whose second runs cost the first's times the given factors.
    fn pairs(factors: &[f64]) -> Vec<(f64, f64)> {
        factors.iter().map(|factor| (1e6, 1e6 * factor)).collect()
    }

    fn answer(factors: &[f64]) -> Answer {
        Verdict::new(&pairs(factors), &TERMS).answer
    }

    #[test]
    fn there_are_three_verdicts_and_equality() {
        assert_eq!(answer(&[1.4, 1.5, 1.6, 1.7, 1.45, 1.55]), Answer::More);
        assert_eq!(answer(&[0.7, 0.8, 0.75, 0.9, 0.85, 0.95]), Answer::Less);
        assert_eq!(answer(&[1.001, 0.999, 1.002, 0.998, 1.003, 1.0]), Answer::Within);
        assert_eq!(answer(&[1.1, 0.9, 1.2, 0.8, 1.3, 1.0]), Answer::Undecided);
        assert_eq!(answer(&[1.0; 6]), Answer::Same);
        // What is sure to differ differs, however little.
        assert_eq!(answer(&[1.001, 1.002, 1.001, 1.003, 1.002, 1.001]), Answer::More);
    }

    #[test]
    fn the_verdict_is_the_same_in_the_other_direction() {
        let factors = [1.4, 1.5, 1.6, 1.7, 1.45, 1.55];
        let there = Verdict::new(&pairs(&factors), &TERMS);
        let swapped: Vec<(f64, f64)> = pairs(&factors).into_iter().map(|(a, b)| (b, a)).collect();
        let back = Verdict::new(&swapped, &TERMS);
        assert!((1.0 / (1.0 + there.relative) - 1.0 - back.relative).abs() < 1e-12);
        assert_eq!(back.answer, Answer::Less);
    }

    #[test]
    fn fewer_than_six_pairs_decide_nothing_and_one_is_what_it_is() {
        assert_eq!(answer(&[1.4, 1.5, 1.6, 1.7, 1.45]), Answer::Undecided);
        assert_eq!(
            (answer(&[1.4]), answer(&[0.9]), answer(&[1.0])),
            (Answer::OneLayout, Answer::OneLayout, Answer::Same)
        );
        let direction = |factor: f64| Verdict::new(&pairs(&[factor]), &TERMS).direction();
        assert_eq!([1.4, 0.9, 1.0].map(direction), [1, -1, 0]);
    }

    #[test]
    fn a_limit_is_decided_by_the_ends_of_the_interval() {
        let held = |limit, factors: &[f64]| {
            Verdict::new(&pairs(factors), &Terms { limit: Some(limit), ..TERMS }).held.unwrap()
        };
        let between = [1.010, 1.014, 1.011, 1.013, 1.012, 1.015];
        assert_eq!(held(0.009, &between), Held::Exceeded);
        assert_eq!(held(0.012, &between), Held::Undecided, "although the middle is above");
        assert_eq!(held(0.016, &between), Held::Within);
        assert_eq!((held(0.0, &[1.0; 6]), held(0.0, &[1.0])), (Held::Within, Held::Within));
        assert_eq!(
            [0.01, 0.03].map(|limit| held(limit, &[1.02])),
            [Held::Undecided; 2],
            "nobody has asked for one layout"
        );
        let one = |limit| Verdict::new(&pairs(&[1.02]), &Terms { plan: Plan::Fixed, limit: Some(limit), ..TERMS });
        assert_eq!([0.01, 0.03].map(|limit| one(limit).held), [Some(Held::Exceeded), Some(Held::Within)]);
        assert_eq!(one(0.01).of_interrupted().held, Some(Held::Undecided), "the first of several");
        assert_eq!(held(0.01, &[1.02; 3]), Held::Undecided);
        let open = Verdict::new(&pairs(&between), &Terms { limit: Some(0.012), ..TERMS });
        assert!(open.answer == Answer::More && !open.is_decided() && open.sufficient.is_some());
    }

    #[test]
    fn a_run_ends_where_it_may() {
        assert_eq!(stages(None), [1, 6, 9, 13, 19, 28]);
        assert_eq!((stages(Some(1)), stages(Some(40))), (vec![1], vec![1, 40]));
    }
}
