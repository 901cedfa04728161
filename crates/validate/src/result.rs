//! The result of a validation: figures of this machine beside those of the models, and how far they are apart.

use crate::layout::PAGE;
use serde::{Deserialize, Serialize};
use silicon::host::Processor;
use silicon::model::{Score, error};
use std::path::Path;

/// Version of the file.
const FORMAT: u32 = 1;

/// Ratio below which two ways count as equally fast.
const EQUAL: f64 = 1.05;
/// Ratio within which the model's ratio of two ways counts as right.
const RIGHT: f64 = 1.25;

/// A figure is lower: no measurement takes so many cycles, which a processor of 10 GHz has in a day.
const HIGHEST: f64 = 1e15;

/// Part of the reorder buffer's entries that a program has at most if it shares the core: beside an active thread it has half of them.
pub(crate) const SHARED: f64 = 0.7;
/// Width of an interval, in terms of the figure, beyond which a row is noise.
const NOISE: f64 = 0.25;

/// The result of a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    format: u32,
    /// Version of the program.
    pub version: String,
    /// The processor of this machine.
    pub processor: Processor,
    /// Name of the profile.
    pub profile: String,
    /// Description of the profile's processor.
    pub title: String,
    /// How well the profile fits.
    pub fit: String,
    /// Frequency of the modelled core, in Hz.
    pub profile_hz: u64,
    /// Measured frequency of the core, in Hz.
    pub core_hz: Option<f64>,
    /// Entries of the reorder buffer that a program had here, at its best, and those of the profile.
    #[serde(default)]
    pub entries: Option<[f64; 2]>,
    /// True if only some of the kernels were measured.
    pub quick: bool,
    /// Names of the models, in the order of all figures.
    pub models: Vec<String>,
    /// Families of kernels.
    pub families: Vec<Family>,
    /// Pairs of ways to do one thing.
    pub pairs: Vec<Pair>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

/// A family of kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Name.
    pub name: String,
    /// What is measured.
    pub about: String,
    /// The unit.
    pub unit: String,
    /// Drawn as curves over the rows' place; otherwise each row is a bar.
    pub curve: Option<String>,
    /// The rows.
    pub rows: Vec<Row>,
    /// How far each model is from this machine.
    pub scores: Vec<Option<Score>>,
}

/// A figure of this machine beside those of the models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name.
    pub name: String,
    /// Group of the row within its family, if there are several: a curve, or a kind of block.
    pub group: String,
    /// Place on the axis of a curve.
    pub at: f64,
    /// The figure of this machine.
    pub native: f64,
    /// Its interval.
    pub interval: [f64; 2],
    /// Other work shared the core while this machine was measured: its figure is no less than that of an idle core.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The figures of the models.
    pub models: Vec<Option<f64>>,
}

/// Two ways to do one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Name.
    pub name: String,
    /// Cycles of both ways on this machine.
    pub native: [f64; 2],
    /// Cycles of both ways in the models.
    pub models: Vec<Option<[f64; 2]>>,
}

/// Which of two ways is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The first.
    First,
    /// The second.
    Second,
    /// None: they differ by less than 5 %.
    Equal,
}

impl Pair {
    /// Returns the ratio of the first way to the second.
    pub fn ratio(ways: [f64; 2]) -> f64 {
        ways[0] / ways[1]
    }

    /// Returns which way is faster.
    pub fn sign(ways: [f64; 2]) -> Sign {
        match Self::ratio(ways) {
            ratio if ratio > EQUAL => Sign::Second,
            ratio if ratio < 1.0 / EQUAL => Sign::First,
            _ => Sign::Equal,
        }
    }

    /// Returns true if a model says which way is faster.
    pub fn right_sign(&self, model: usize) -> Option<bool> {
        Some(Self::sign(self.models[model]?) == Self::sign(self.native))
    }

    /// Returns the model's ratio in terms of this machine's.
    pub fn factor(&self, model: usize) -> Option<f64> {
        Some(Self::ratio(self.models[model]?) / Self::ratio(self.native))
    }

    /// Returns true if the model's ratio is near this machine's.
    pub fn right_ratio(&self, model: usize) -> Option<bool> {
        self.factor(model).map(|factor| factor.ln().abs() <= RIGHT.ln())
    }
}

/// Relative error beyond which a figure counts as wrong.
const WRONG: f64 = 0.25;

/// Returns how far each model is from this machine, from the rows that are not noisy.
fn scores_of(rows: &[Row], models: usize) -> Vec<Option<Score>> {
    (0..models).map(|model| score_of(rows.iter(), model)).collect()
}

/// Returns the errors of a model over the rows that are not noisy.
fn score_of<'a>(rows: impl Iterator<Item = &'a Row>, model: usize) -> Option<Score> {
    let known = rows.filter(|row| !row.is_noisy()).filter_map(|row| Some((row.models[model]?, row.native)));
    Score::of(&known.collect::<Vec<_>>())
}

impl Family {
    /// Creates a family and computes its scores, from the rows that are not noisy. The rows keep their order.
    pub fn new(name: &str, about: &str, unit: &str, curve: Option<&str>, rows: Vec<Row>, models: usize) -> Self {
        let scores = scores_of(&rows, models);
        let [name, about, unit] = [name, about, unit].map(str::to_owned);
        Self { name, about, unit, curve: curve.map(str::to_owned), rows, scores }
    }

    /// Returns the number of rows that are not noisy and in which a model's figure is wrong by more than a quarter of this machine's. The
    /// median does not tell them if the other rows are right.
    pub fn wrong(&self, model: usize) -> usize {
        let quiet = self.rows.iter().filter(|row| !row.is_noisy());
        quiet.filter_map(|row| row.error(model)).filter(|error| error.abs() > WRONG).count()
    }

    /// Returns the rows that are not noisy, the ones with the greatest error of a model first.
    pub fn worst(&self, model: usize) -> Vec<&Row> {
        let counted = |row: &&Row| row.models[model].is_some() && !row.is_noisy();
        let mut rows: Vec<&Row> = self.rows.iter().filter(counted).collect();
        let distance = |row: &Row| row.models[model].map_or(0.0, |m| (m.max(1e-3) / row.native).ln().abs());
        rows.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
        rows
    }

    /// Returns the groups in the order of their first row.
    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !groups.contains(&row.group.as_str()) {
                groups.push(&row.group);
            }
        }
        groups
    }

    /// Returns the errors of a model for each group in which they are known.
    pub fn scores_by_group(&self, model: usize) -> Vec<(&str, Score)> {
        let score = |group| Some((group, score_of(self.rows.iter().filter(|row| row.group == group), model)?));
        self.groups().into_iter().filter_map(score).collect()
    }
}

/// Returns true for a figure that a measurement can have.
fn is_measured(figure: f64) -> bool {
    figure > 0.0 && figure < HIGHEST
}

impl Row {
    /// Returns true if a measurement can have given these figures.
    fn is_possible(&self) -> bool {
        let [low, high] = self.interval;
        // A model may say that something takes no time.
        let of_models = self.models.iter().flatten().all(|figure| (0.0..HIGHEST).contains(figure));
        is_measured(self.native) && low <= high && is_measured(high) && of_models && (0.0..HIGHEST).contains(&self.at)
    }

    /// Returns true if this machine disturbed the measurement so much that the row counts for nothing.
    pub fn is_noisy(&self) -> bool {
        self.shared || self.interval[1] - self.interval[0] > NOISE * self.native
    }

    /// Returns a model's relative error.
    pub fn error(&self, model: usize) -> Option<f64> {
        self.models[model].map(|figure| error(figure, self.native))
    }
}

/// What a validation says about pairs, in one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairScore {
    /// Pairs.
    pub pairs: usize,
    /// Pairs whose faster way is right.
    pub signs: usize,
    /// Pairs whose ratio is within 25 %.
    pub ratios: usize,
}

/// Reason why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read or written.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// The file is not a result.
    #[error("{0} is no result of `tollgate validate --json` or --save: {1}")]
    Content(String, serde_json::Error),
    /// The file is of another version.
    #[error("{0} is of version {1}; this program reads version {FORMAT}: validate again")]
    Version(String, u32),
}

/// Largest file that is read.
const LARGEST: u64 = PAGE << 14;

impl Validation {
    /// Creates a result without figures.
    pub fn new(processor: Processor, models: Vec<String>, quick: bool) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            processor,
            profile: String::new(),
            title: String::new(),
            fit: String::new(),
            profile_hz: 0,
            core_hz: None,
            entries: None,
            quick,
            models,
            families: Vec::new(),
            pairs: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads a result.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let name = path.display().to_string();
        let read = || {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::open(path)?, LARGEST), &mut text)?;
            Ok(text)
        };
        let text = read().map_err(|error| FileError::File(name.clone(), error))?;
        let mut result: Self =
            serde_json::from_slice(&text).map_err(|error| FileError::Content(name.clone(), error))?;
        if result.format != FORMAT {
            return Err(FileError::Version(name, result.format));
        }
        let complete = |figures: usize| figures == result.models.len();
        let rows = result.families.iter().flat_map(|family| &family.rows).all(|row| complete(row.models.len()));
        let scores = result.families.iter().all(|family| complete(family.scores.len()));
        if !rows || !scores || !result.pairs.iter().all(|pair| complete(pair.models.len())) {
            let wrong = serde::de::Error::custom("a figure of a model is missing");
            return Err(FileError::Content(name, wrong));
        }
        if let Some(what) = result.impossible() {
            return Err(FileError::Content(name, serde::de::Error::custom(what)));
        }
        let models = result.models.len();
        for family in &mut result.families {
            // The scores follow from the rows, whatever the file says.
            family.scores = scores_of(&family.rows, models);
        }
        Ok(result)
    }

    /// Returns what no measurement could have put into the result.
    fn impossible(&self) -> Option<String> {
        if self.models.is_empty() {
            return Some("it names no model of time".into());
        }
        if self.families.is_empty() && self.pairs.is_empty() {
            return Some("it has no figures".into());
        }
        if !self.core_hz.is_none_or(is_measured) {
            return Some("the core's frequency is impossible".into());
        }
        if !self.entries.iter().flatten().all(|entries| is_measured(*entries)) {
            return Some("the number of entries of the reorder buffer is impossible".into());
        }
        for (number, family) in self.families.iter().enumerate() {
            if self.families[..number].iter().any(|before| before.name == family.name) {
                return Some(format!("the family {} is there twice", family.name));
            }
            if family.rows.is_empty() {
                return Some(format!("the family {} has no figures", family.name));
            }
            if let Some(row) = family.rows.iter().find(|row| !row.is_possible()) {
                return Some(format!("a figure of {} in {} is impossible", row.name, family.name));
            }
        }
        let pair = self.pairs.iter().find(|pair| {
            let models = pair.models.iter().flatten();
            !pair.native.iter().chain(models.flatten()).all(|cycles| is_measured(*cycles))
        })?;
        Some(format!("a figure of {} is impossible", pair.name))
    }

    /// Returns the result as JSON.
    pub fn json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("figures and texts are JSON"))
    }

    /// Returns a model's error over all families: the mean of their median errors, so that no family counts more because
    /// it has more rows.
    pub fn total(&self, model: usize) -> Option<f64> {
        let medians: Vec<f64> =
            self.families.iter().filter_map(|family| family.scores[model]).map(|score| score.median).collect();
        (!medians.is_empty()).then(|| medians.iter().sum::<f64>() / medians.len() as f64)
    }

    /// Returns what a model says about pairs.
    pub fn pair_score(&self, model: usize) -> PairScore {
        let count = |right: fn(&Pair, usize) -> Option<bool>| {
            self.pairs.iter().filter(|pair| right(pair, model) == Some(true)).count()
        };
        let pairs = self.pairs.iter().filter(|pair| pair.models[model].is_some()).count();
        PairScore { pairs, signs: count(Pair::right_sign), ratios: count(Pair::right_ratio) }
    }

    /// Returns the sentence that others quote, such as `zen3, validated at 19% here`.
    pub fn quotation(&self) -> Option<String> {
        let beside = if self.is_beside_others() { ", beside other work on the core" } else { "" };
        Some(format!("{}, validated at {:.0}% here{beside}", self.profile, 100.0 * self.total(0)?))
    }

    /// Returns true if a program never had the whole reorder buffer of the core, whose profile it is: its other thread was active all the
    /// time.
    pub fn is_beside_others(&self) -> bool {
        self.entries.is_some_and(|[here, profile]| here < profile * SHARED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(native: f64, models: &[Option<f64>]) -> Row {
        Row {
            name: "a".into(),
            group: String::new(),
            at: 0.0,
            native,
            interval: [native, native],
            shared: false,
            models: models.to_vec(),
        }
    }

    #[test]
    fn the_total_is_the_mean_of_families() {
        let mut result = Validation::new(Processor::default(), vec!["core".into(), "flat".into()], true);
        result.profile = "zen3".into();
        assert_eq!((result.total(0), result.quotation()), (None, None));
        let one = vec![row(10.0, &[Some(11.0), Some(20.0)]), row(10.0, &[Some(11.0), None])];
        let other = vec![row(10.0, &[Some(7.0), None])];
        result.families.push(Family::new("a", "", "", None, one, 2));
        result.families.push(Family::new("b", "", "", None, other, 2));
        assert!((result.total(0).unwrap() - 0.2).abs() < 1e-9);
        assert!((result.total(1).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(result.quotation().unwrap(), "zen3, validated at 20% here");
        result.entries = Some([252.4, 256.0]);
        assert_eq!(result.quotation().unwrap(), "zen3, validated at 20% here");
        result.entries = Some([129.0, 256.0]);
        assert_eq!(result.quotation().unwrap(), "zen3, validated at 20% here, beside other work on the core");
    }

    #[test]
    fn what_can_not_have_been_measured_is_impossible() {
        let mut good = Validation::new(Processor::default(), vec!["core".into()], true);
        good.families.push(Family::new("a", "", "", None, vec![row(10.0, &[Some(11.0)])], 1));
        good.pairs.push(Pair { name: "p".into(), native: [1.0, 2.0], models: vec![None] });
        assert_eq!(good.impossible(), None);
        let impossible = |change: fn(&mut Validation)| {
            let mut result = good.clone();
            change(&mut result);
            result.impossible().is_some()
        };
        assert!(impossible(|result| result.core_hz = Some(0.0)) && impossible(|result| result.core_hz = Some(1e308)));
        assert!(impossible(|result| result.models.clear()));
        assert!(impossible(|result| result.families[0].rows.clear()));
        assert!(impossible(|result| (result.families, result.pairs) = (Vec::new(), Vec::new())));
        for change in [
            |row: &mut Row| row.native = 1e308,
            |row: &mut Row| row.interval[1] = 1e308,
            |row: &mut Row| row.models[0] = Some(1e308),
            |row: &mut Row| row.models[0] = Some(-1.0),
            |row: &mut Row| row.at = f64::INFINITY,
        ] {
            let mut result = good.clone();
            change(&mut result.families[0].rows[0]);
            assert!(result.impossible().is_some());
        }
        assert!(impossible(|result| result.pairs[0].models = vec![Some([1e308, 1.0])]));
        assert!(impossible(|result| result.families.push(result.families[0].clone())));
        assert!(impossible(|result| result.families[0].rows[0].native = -5.0));
        assert!(impossible(|result| result.families[0].rows[0].interval = [5.0, 1.0]));
        assert!(impossible(|result| result.pairs[0].native = [0.0, 0.0]));
    }

    #[test]
    fn a_noisy_row_does_not_count() {
        let noisy = Row { interval: [8.0, 12.0], ..row(10.0, &[Some(99.0)]) };
        let shared = Row { shared: true, ..row(10.0, &[Some(99.0)]) };
        let family = Family::new("a", "", "", None, vec![row(10.0, &[Some(11.0)]), noisy, shared], 1);
        assert_eq!(family.scores[0].unwrap().blocks, 1);
        assert_eq!(family.worst(0).len(), 1);
    }

    #[test]
    fn pairs_are_judged_by_sign_and_ratio() {
        let pair = |native, model| Pair { name: String::new(), native, models: vec![Some(model)] };
        let judged = |pair: Pair| (pair.right_sign(0).unwrap(), pair.right_ratio(0).unwrap());
        assert_eq!(judged(pair([2.0, 1.0], [1.7, 1.0])), (true, true));
        assert_eq!(judged(pair([2.0, 1.0], [1.2, 1.0])), (true, false));
        assert_eq!(judged(pair([1.1, 1.0], [0.9, 1.0])), (false, true));
        assert_eq!(judged(pair([1.0, 1.0], [1.04, 1.0])), (true, true));
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let mut result = Validation::new(Processor::default(), vec!["core".into()], false);
        result.families.push(Family::new("a", "b", "cycles", Some("bytes"), vec![row(2.0, &[Some(1.0)])], 1));
        result.pairs.push(Pair { name: "p".into(), native: [1.0, 2.0], models: vec![None] });
        let path = std::env::temp_dir().join(format!("validation-{}", std::process::id()));
        std::fs::write(&path, result.json()).unwrap();
        assert_eq!(Validation::load(&path).unwrap(), result);
        let whole = result.clone();
        result.families[0].scores = vec![None];
        std::fs::write(&path, result.json()).unwrap();
        assert_eq!(Validation::load(&path).unwrap(), whole, "scores are those of the rows");
        result.families[0].rows[0].models.clear();
        std::fs::write(&path, result.json()).unwrap();
        assert!(matches!(Validation::load(&path), Err(FileError::Content(..))));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Validation::load(&path), Err(FileError::File(..))));
    }
}
