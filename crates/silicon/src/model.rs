//! A model of the time that blocks take, seen from outside, and how far it is from measurements.

use crate::block::Block;
use crate::family::Family;
use crate::stats;
use iced_x86::Instruction;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A model of the time that blocks take.
pub trait BlockModel {
    /// Returns the name.
    fn name(&self) -> &str;
    /// Returns the cycles that one repetition of the block takes when it is repeated without an end.
    fn cycles(&self, block: &[Instruction]) -> f64;
}

/// A constant number of cycles for each instruction.
pub struct Constant(pub f64);

impl BlockModel for Constant {
    fn name(&self) -> &str {
        "constant"
    }

    fn cycles(&self, block: &[Instruction]) -> f64 {
        self.0 * block.len() as f64
    }
}

impl Constant {
    /// Returns the constant with the least median error over these blocks and measurements, in hundredths.
    pub fn fitted(blocks: &[(&Block, f64)]) -> Self {
        let error = |constant: f64| {
            let errors: Vec<f64> = blocks
                .iter()
                .map(|(b, cycles)| error(Constant(constant).cycles(b.instructions()), *cycles).abs())
                .collect();
            stats::median(&errors).unwrap_or(0.0)
        };
        let candidates = (1..=200).map(|n| f64::from(n) / 100.0);
        Self(candidates.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0.25))
    }
}

/// Returns the relative error of a figure beside a measurement.
pub fn error(figure: f64, measured: f64) -> f64 {
    (figure - measured) / measured
}

/// How far figures are from measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Number of pairs.
    pub blocks: usize,
    /// Median of the relative error's absolute value.
    pub median: f64,
    /// Mean of the same.
    pub mean: f64,
    /// Median of the relative error: the bias.
    pub bias: f64,
    /// Kendall's tau; figures that differ by less than 1 % count as equal. `None` if one side is constant.
    pub tau: Option<f64>,
}

/// Differences below which two figures count as equal for [`Score::tau`].
const TIE: f64 = 0.01;

impl Score {
    /// Returns the score of pairs of a figure and a measurement, `None` of none.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let errors: Vec<f64> = pairs.iter().map(|(figure, measured)| error(*figure, *measured)).collect();
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        Some(Self {
            blocks: pairs.len(),
            median: stats::median(&sizes)?,
            mean: sizes.iter().sum::<f64>() / sizes.len() as f64,
            bias: stats::median(&errors)?,
            tau: stats::kendall(pairs, TIE),
        })
    }
}

/// Returns the scores of groups, by their names.
pub fn by_group<K: Ord>(pairs: impl IntoIterator<Item = (K, (f64, f64))>) -> BTreeMap<K, Score> {
    let mut groups: BTreeMap<K, Vec<(f64, f64)>> = BTreeMap::new();
    for (group, pair) in pairs {
        groups.entry(group).or_default().push(pair);
    }
    groups.into_iter().filter_map(|(group, pairs)| Some((group, Score::of(&pairs)?))).collect()
}

/// Returns the scores by family of block.
pub fn by_family(blocks: &[(&Block, f64, f64)]) -> BTreeMap<Family, Score> {
    by_group(blocks.iter().map(|(block, figure, measured)| (Family::of(block.instructions()), (*figure, *measured))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_has_the_median_error_and_the_order() {
        let score = Score::of(&[(1.1, 1.0), (1.8, 2.0), (6.0, 3.0)]).unwrap();
        assert!((score.median - 0.1).abs() < 1e-9 && (score.mean - 0.4).abs() < 1e-9);
        assert!((score.bias - 0.1).abs() < 1e-9);
        assert_eq!((score.tau, score.blocks), (Some(1.0), 3));
        assert_eq!(Score::of(&[]), None);
    }

    #[test]
    fn the_constant_is_fitted() {
        let block = |n: usize| Block::decode(&[0x90].repeat(n)).unwrap();
        let (a, b, c) = (block(1), block(2), block(10));
        assert_eq!(Constant::fitted(&[(&a, 0.17), (&b, 0.34), (&c, 5.0)]).0, 0.17);
    }
}
