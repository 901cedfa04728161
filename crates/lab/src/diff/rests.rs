//! What a difference rests on: prices that were measured, prices that are estimates, and the parts of the processor that the model of time leaves out.

use super::{Run, Runs};
use crate::format::hexadecimal;
use crate::trust::Trust;
use ledger::profile::{Clock, Confidence, Prices};
use ledger::{Class, Family, Kind};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Something with a price: a class of instructions, or a kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priced {
    /// Instructions of a class.
    Class(Class),
    /// Events of a kind.
    Kind(Kind),
}

/// What is known of the prices of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The confidence in the price of everything that was charged and has one.
    pub confidences: BTreeMap<Priced, Confidence>,
    /// Hash of all prices, those that were not charged too.
    pub hash: String,
}

impl Known {
    /// Returns what is known of the prices of runs.
    pub fn of(prices: &Prices, runs: &[Run]) -> Self {
        let confidence = |what: &Priced| {
            let figure = match *what {
                Priced::Class(class) => prices.classes.get(class as usize),
                Priced::Kind(kind) => prices.figure(kind),
            };
            Some((*what, figure?.from.confidence))
        };
        let hash = Sha256::digest(format!("{prices:?}"));
        Self {
            confidences: runs.iter().flat_map(|run| run.paid.priced.keys()).filter_map(confidence).collect(),
            hash: hexadecimal(&hash),
        }
    }

    /// Returns the confidence in a price, if there is one.
    pub fn confidence(&self, what: Priced) -> Option<Confidence> {
        self.confidences.get(&what).copied()
    }

    fn trust(&self, what: Priced) -> Trust {
        Trust::of(self.confidence(what), 1)
    }
}

/// The shares of a difference: parts of the sum of all changes, whatever their direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rests {
    /// Charged at prices that were measured, on this processor or one with the same core.
    pub measured: f64,
    /// Charged at prices that are derived or known from the literature only.
    pub estimated: f64,
    /// Computed by the model of time, at least in part without a price of its own: instructions, cache misses, and mispredicted
    /// and unknown branches under `core`.
    pub modelled: f64,
    /// Time of instructions and of waits for memory, which is where the parts that are not modelled would show.
    pub instructions: f64,
    /// The same in a sentence.
    pub sentence: String,
    /// What the models of time leave out.
    #[serde(skip)]
    pub lacks: &'static str,
}

/// Returns true if the model of time itself decides what something costs.
fn is_modelled(clock: Clock, what: Priced) -> bool {
    clock == Clock::Core
        && match what {
            Priced::Class(_) => true,
            Priced::Kind(kind) => {
                kind.family.is_cache_miss()
                    || matches!(kind.family, Family::BranchMiss | Family::UnknownBranch | Family::Split)
            }
        }
}

/// Returns true for time in which parts that are not modelled would show.
fn is_of_instructions(what: Priced) -> bool {
    match what {
        Priced::Class(_) => true,
        Priced::Kind(kind) => kind.family.is_cache_miss() || kind.family == Family::Split,
    }
}

/// Returns the mean ticks of a side's runs by what has a price.
fn means(runs: &Runs) -> BTreeMap<Priced, f64> {
    let mut all = BTreeMap::new();
    for run in &runs.runs {
        for (what, ticks) in &run.paid.priced {
            *all.entry(*what).or_default() += *ticks as f64 / runs.runs.len() as f64;
        }
    }
    all
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Formats shares of a whole as whole percentages whose sum is 100: what rounding down leaves goes to the shares with the largest remainders.
fn percentages<const N: usize>(shares: [f64; N]) -> [String; N] {
    let exact = shares.map(|share| share * 100.0);
    let mut whole = exact.map(f64::floor);
    let mut order: Vec<usize> = (0..N).collect();
    order.sort_by(|a, b| (exact[*b] - whole[*b]).total_cmp(&(exact[*a] - whole[*a])));
    let left = (exact.iter().sum::<f64>() - whole.iter().sum::<f64>()).round() as usize;
    order.iter().take(left).for_each(|at| whole[*at] += 1.0);
    whole.map(|percent| format!("{percent:.0}%"))
}

impl Rests {
    /// Returns what the difference of two sides rests on. None if nothing changes, or if the prices of a side are not known.
    pub fn new(a: &Runs, b: &Runs) -> Option<Self> {
        let known = [a.prices.as_ref()?, b.prices.as_ref()?];
        let (before, after) = (means(a), means(b));
        let of = |list: &BTreeMap<Priced, f64>, what| list.get(what).copied().unwrap_or_default();
        let (mut measured, mut estimated, mut modelled, mut instructions) = (0.0, 0.0, 0.0, 0.0);
        for what in before.keys().chain(after.keys().filter(|what| !before.contains_key(what))) {
            let change = (of(&after, what) - of(&before, what)).abs();
            if is_of_instructions(*what) {
                instructions += change;
            }
            let trust = known[0].trust(*what).and(known[1].trust(*what));
            match trust.known() {
                _ if is_modelled(a.clock, *what) || is_modelled(b.clock, *what) => modelled += change,
                Some(trust) if trust.estimated == 0 => measured += change,
                _ => estimated += change,
            }
        }
        let whole: f64 = measured + estimated + modelled;
        if whole == 0.0 {
            return None;
        }
        let [measured, estimated, modelled, instructions] =
            [measured, estimated, modelled, instructions].map(|part: f64| part / whole);
        let lacks = match (a.clock, b.clock) {
            (Clock::Flat, Clock::Flat) => {
                "the model flat has no caches, no overlap of instructions and no mispredicted conditional branches"
            }
            (Clock::Core, Clock::Core) => {
                "the model core does not execute mispredicted paths, and it treats all processors as equally distant"
            }
            _ => "the models differ: only core has pipelines, caches and predictors",
        };
        let [at_measured, at_estimates, by_model] = percentages([measured, estimated, modelled]);
        let charged = if modelled > 0.0 {
            format!(
                "{at_measured} are charged at measured prices, {at_estimates} at estimates and {by_model} by the model of pipeline, caches and predictor"
            )
        } else {
            format!("{at_measured} are charged at measured prices and {at_estimates} at estimates")
        };
        let sentence = format!(
            "Of all changes, {charged}. Of the same changes, {} are time of instructions; {lacks}.",
            percent(instructions)
        );
        Some(Self { measured, estimated, modelled, instructions, sentence, lacks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_sentence_are_a_whole() {
        assert_eq!(percentages([0.335, 0.335, 0.33]), ["34%", "33%", "33%"]);
        assert_eq!(percentages([0.125, 0.125, 0.75]), ["13%", "12%", "75%"]);
        assert_eq!(percentages([1.0 / 3.0; 3]), ["34%", "33%", "33%"]);
        assert_eq!(percentages([0.0, 0.0, 1.0]), ["0%", "0%", "100%"]);
        assert_eq!(percentages([0.006, 0.994]), ["1%", "99%"]);
    }
}
