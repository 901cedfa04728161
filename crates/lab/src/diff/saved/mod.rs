//! Results in a file: the runs of each side with all that a comparison needs, as JSON.

mod combined;
mod priced;
#[cfg(test)]
mod tests;

use super::entries::{ByEntry, Named};
use super::origin::{Files, Origin};
use super::statistics::Plan;
use super::{Interrupted, Paid, Remarks, Run, Runs, TimeLimit, several};
use crate::charges::{Tallies, Tally};
use crate::flame::Folded;
use crate::format::hexadecimal;
pub use combined::{CombineError, Combined, Labelled, SaveError, check_one, combine};
use ledger::stays::{Durations, Stays};
use ledger::{Amount, Gate, Stay};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use strum::VariantArray;

/// Keys that are left out where they have no contents.
const LEFT_OUT: [&str; 5] = ["configuration", "idle", "interrupted", "sha256", "time_limit"];
/// What the document is.
const DOCUMENT: &str = "results of tollgate diff";
/// The version of the document.
pub const FORMAT: u32 = 1;
/// The most runs of a side.
const MOST_RUNS: usize = 1000;
/// The sum of all numbers of a side is below this, so that no sum over its runs overflows.
const BOUND: u128 = 1 << 62;
/// No processor has a higher frequency, in hertz.
const MOST_HERTZ: u64 = 1 << 40;

/// The file is no saved result that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The file is not JSON, or not of this kind.
    #[error("is not a file that tollgate diff --save has written: {0}")]
    NotSaved(String),
    /// Another version wrote the file.
    #[error("is of format {0}, and this version of Tollgate reads format {FORMAT}")]
    Format(u64),
    /// The contents can't be the result of a measurement.
    #[error("can't be the result of a measurement: {0}")]
    Wrong(String),
}

/// Results of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    document: String,
    format: u32,
    /// Version of Tollgate.
    pub version: String,
    /// The command line, before parameters were replaced.
    pub command: String,
    /// The command that measures the same again.
    pub again: String,
    /// Seconds of virtual time for which the kernels were idle before the command began.
    pub settle: f64,
    /// True if the number of pairs was decided before the first run.
    fixed: bool,
    /// Name of the side with which the others were compared.
    pub reference: String,
    warnings: Vec<String>,
    notes: Vec<String>,
    /// Set if the user stopped the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interrupted: Option<Interrupted>,
    /// Set if a time limit ended the measurement before it was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_limit: Option<TimeLimit>,
    /// Names of sides that differ from the reference only in settings without an effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    idle: Vec<String>,
    /// Configurations of kernels by their hashes.
    configurations: BTreeMap<String, String>,
    sides: Vec<SavedSide>,
    /// Hash of all the rest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    sha256: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedSide {
    name: String,
    title: String,
    command: String,
    parameters: Vec<(String, String)>,
    files: Files,
    tsc_hz: u64,
    origin: Origin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration: Option<String>,
    /// Hash of all prices.
    prices: String,
    /// The confidence in the price of what was charged.
    confidence: BTreeMap<String, String>,
    runs: Vec<SavedRun>,
}

/// A name with a count and ticks.
type Row = (String, u64, u64);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedRun {
    seed: Option<u64>,
    settled_after: Option<f64>,
    elapsed: u64,
    functions: Vec<Row>,
    /// Cause, function, count, ticks.
    parts: Vec<(String, String, u64, u64)>,
    priced: Vec<(String, u64)>,
    meanwhile: Vec<Row>,
    entries: Vec<SavedEntry>,
    entries_meanwhile: Vec<SavedEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedEntry {
    name: String,
    gate: String,
    plural: String,
    sum: Stay,
    nested: Amount,
    /// Classes of durations: number, count, ticks.
    durations: Vec<(u16, u64, u64)>,
}

fn wrong(text: impl Into<String>) -> SavedError {
    SavedError::Wrong(text.into())
}

fn rows(tallies: &Tallies) -> Vec<Row> {
    tallies.iter().map(|(name, tally)| (name.clone(), tally.count, tally.ticks)).collect()
}

/// Collects rows, of which no two have the same name.
fn distinct<K: Ord, V>(
    rows: impl ExactSizeIterator<Item = Result<(K, V), SavedError>>,
) -> Result<BTreeMap<K, V>, SavedError> {
    let count = rows.len();
    let all = rows.collect::<Result<BTreeMap<K, V>, _>>()?;
    if all.len() < count { Err(wrong("a run has two rows of the same name")) } else { Ok(all) }
}

fn tallies(rows: &[Row]) -> Result<Tallies, SavedError> {
    distinct(rows.iter().map(|(name, count, ticks)| Ok((name.clone(), Tally { count: *count, ticks: *ticks }))))
}

impl SavedEntry {
    fn new(name: &str, Named { gate, plural, stays }: &Named) -> Self {
        let class = |(class, amount): &(u16, Amount)| (*class, amount.count, amount.ticks);
        Self {
            name: name.to_owned(),
            gate: gate.name().to_owned(),
            plural: plural.clone(),
            sum: stays.sum,
            nested: stays.nested,
            durations: stays.durations.classes().iter().map(class).collect(),
        }
    }

    fn named(&self) -> Result<(String, Named), SavedError> {
        let gate = Gate::VARIANTS.iter().find(|gate| gate.name() == self.gate);
        let gate = *gate.ok_or_else(|| wrong(format!("there is no kind of entry '{}'", self.gate)))?;
        let class = |(class, count, ticks): &(u16, u64, u64)| (*class, Amount { count: *count, ticks: *ticks });
        let durations = Durations::of(self.durations.iter().map(class).collect());
        let durations = durations.ok_or_else(|| wrong("durations are not in order"))?;
        let stays = Stays { durations, sum: self.sum, nested: self.nested };
        Ok((self.name.clone(), Named { gate, plural: self.plural.clone(), stays }))
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        let Stay { ticks, enter, mitigation, leave } = self.sum;
        let sums = [ticks, enter, mitigation, leave, self.nested.count, self.nested.ticks];
        sums.into_iter().chain(self.durations.iter().flat_map(|(_, count, ticks)| [*count, *ticks]))
    }
}

fn saved_entries(entries: &ByEntry) -> Vec<SavedEntry> {
    entries.iter().map(|(name, named)| SavedEntry::new(name, named)).collect()
}

impl SavedRun {
    fn new(run: &Run) -> Self {
        let paid = &run.paid;
        let part = |((cause, function), tally): (&(String, String), &Tally)| {
            (cause.clone(), function.clone(), tally.count, tally.ticks)
        };
        Self {
            seed: run.seed,
            settled_after: Some(run.settled_after).filter(|seconds| seconds.is_finite()),
            elapsed: paid.elapsed,
            functions: rows(&paid.functions),
            parts: paid.parts.iter().map(part).collect(),
            priced: paid.priced.iter().map(|(what, ticks)| (priced::text(*what), *ticks)).collect(),
            meanwhile: rows(&paid.meanwhile),
            entries: saved_entries(&paid.entries),
            entries_meanwhile: saved_entries(&paid.entries_meanwhile),
        }
    }

    fn run(&self) -> Result<Run, SavedError> {
        let part = |(cause, function, count, ticks): &(String, String, u64, u64)| {
            Ok(((cause.clone(), function.clone()), Tally { count: *count, ticks: *ticks }))
        };
        let entries = |list: &[SavedEntry]| distinct(list.iter().map(SavedEntry::named));
        let priced = |(what, ticks): &(String, u64)| Ok((priced::parsed(what)?, *ticks));
        if self.settled_after.is_some_and(|seconds| !(0.0..1e9).contains(&seconds)) {
            return Err(wrong("a time until the kernel was idle is out of range"));
        }
        let paid = Paid {
            parts: distinct(self.parts.iter().map(part))?,
            functions: tallies(&self.functions)?,
            priced: distinct(self.priced.iter().map(priced))?,
            meanwhile: tallies(&self.meanwhile)?,
            entries: entries(&self.entries)?,
            entries_meanwhile: entries(&self.entries_meanwhile)?,
            elapsed: self.elapsed,
        };
        if let Some(function) = paid.contradiction() {
            return Err(wrong(format!("the costs of {function:?} by cause do not add up to its own")));
        }
        Ok(Run {
            seed: self.seed,
            paid,
            stacks: Folded::default(),
            settled_after: self.settled_after.unwrap_or(f64::INFINITY),
        })
    }

    /// Returns the sum of all numbers.
    fn sum(&self) -> u128 {
        let rows = self.functions.iter().chain(&self.meanwhile).flat_map(|row| [row.1, row.2]);
        let parts = self.parts.iter().flat_map(|part| [part.2, part.3]);
        let priced = self.priced.iter().map(|(_, ticks)| *ticks);
        let entries = self.entries.iter().chain(&self.entries_meanwhile).flat_map(SavedEntry::numbers);
        let all = rows.chain(parts).chain(priced).chain(entries).chain([self.elapsed]);
        all.map(u128::from).sum()
    }
}

impl SavedSide {
    fn new(runs: &Runs, configurations: &mut BTreeMap<String, String>) -> Self {
        let configuration = runs.origin.configuration.as_ref().map(|text| {
            let hash = hexadecimal(&Sha256::digest(text));
            configurations.entry(hash.clone()).or_insert_with(|| text.clone());
            hash
        });
        Self {
            name: runs.name.clone(),
            title: runs.title.clone(),
            command: runs.command.clone(),
            parameters: runs.parameters.clone(),
            files: runs.files.clone(),
            tsc_hz: runs.tsc_hz,
            // The file has each configuration once.
            origin: Origin { configuration: None, ..runs.origin.clone() },
            configuration,
            prices: runs.prices.as_ref().map_or_else(String::new, |known| known.hash.clone()),
            confidence: priced::confidences(runs),
            runs: runs.runs.iter().map(SavedRun::new).collect(),
        }
    }

    fn runs(&self, configurations: &BTreeMap<String, String>) -> Result<Runs, SavedError> {
        if !(1..=MOST_HERTZ).contains(&self.tsc_hz) {
            return Err(wrong(format!("{}: {} Hz is no frequency of a processor", self.name, self.tsc_hz)));
        }
        if !(1..=MOST_RUNS).contains(&self.runs.len()) {
            return Err(wrong(format!(
                "{}: it has {} runs, and a side has 1 to {MOST_RUNS}",
                self.name,
                self.runs.len()
            )));
        }
        let seeds: BTreeSet<Option<u64>> = self.runs.iter().map(|run| run.seed).collect();
        if seeds.len() != self.runs.len() {
            return Err(wrong(format!("{}: two runs have the same layout", self.name)));
        }
        let sum = self.runs.iter().fold(0_u128, |sum, run| sum.saturating_add(run.sum()));
        if sum >= BOUND {
            return Err(wrong(format!("{}: the costs are too high", self.name)));
        }
        let configuration = match &self.configuration {
            None => None,
            Some(hash) => match configurations.get(hash) {
                Some(text) => Some(text.clone()),
                None => return Err(wrong(format!("{}: the configuration of its kernel is missing", self.name))),
            },
        };
        let clock = self.origin.model.parse();
        let clock = clock.map_err(|_| wrong(format!("there is no model of time '{}'", self.origin.model)))?;
        Ok(Runs {
            name: self.name.clone(),
            title: self.title.clone(),
            command: self.command.clone(),
            parameters: self.parameters.clone(),
            files: self.files.clone(),
            tsc_hz: self.tsc_hz,
            clock,
            prices: priced::known(&self.confidence, &self.prices)?,
            origin: Origin { configuration, ..self.origin.clone() },
            runs: self.runs.iter().map(SavedRun::run).collect::<Result<_, _>>()?,
        })
    }
}

/// Returns true if a text has characters that a terminal would obey.
fn has_control(value: &Value) -> bool {
    let is_wrong = |text: &str| text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t'));
    match value {
        Value::String(text) => is_wrong(text),
        Value::Array(all) => all.iter().any(has_control),
        Value::Object(all) => all.iter().any(|(name, value)| is_wrong(name) || has_control(value)),
        _ => false,
    }
}

/// Returns the place of a key that a document has and that was not read from it. `known` is the document as it was read.
fn unknown_key(document: &Value, known: &Value) -> Option<String> {
    // What is left out where it is empty may also be written as empty.
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        _ => false,
    };
    let within = |place: &dyn std::fmt::Display, one, other| Some(format!("/{place}{}", unknown_key(one, other)?));
    match (document, known) {
        (Value::Object(all), Value::Object(known)) => all.iter().find_map(|(name, value)| match known.get(name) {
            Some(other) => within(name, value, other),
            None => (!is_empty(value) || !LEFT_OUT.contains(&name.as_str())).then(|| format!("/{name}")),
        }),
        (Value::Array(all), Value::Array(known)) => {
            all.iter().zip(known).enumerate().find_map(|(number, (value, other))| within(&number, value, other))
        }
        _ => None,
    }
}

/// How the sides of a result were measured.
pub struct Measurement<'a> {
    /// The command line, before parameters were replaced.
    pub command: &'a str,
    /// Seconds of virtual time for which the kernels were idle before the command began.
    pub settle: f64,
    /// When the number of pairs was decided.
    pub plan: Plan,
    /// Position of the side with which the others were compared.
    pub reference: usize,
    /// Warnings, notes and provenance.
    pub remarks: &'a Remarks,
}

impl Saved {
    /// Returns the result of a measurement, for a file. Call stacks are no part of it.
    pub fn new(sides: &[Runs], measurement: &Measurement) -> Self {
        let Measurement { command, settle, plan, reference, remarks } = measurement;
        let mut configurations = BTreeMap::new();
        let mut saved = Self {
            document: DOCUMENT.to_owned(),
            format: FORMAT,
            version: remarks.provenance.version.clone(),
            command: (*command).to_owned(),
            again: remarks.provenance.again.clone(),
            settle: *settle,
            fixed: *plan == Plan::Fixed,
            reference: sides[*reference].name.clone(),
            warnings: remarks.warnings.clone(),
            notes: remarks.notes.clone(),
            interrupted: remarks.interrupted,
            time_limit: remarks.time_limit,
            idle: remarks.idle.clone(),
            sides: sides.iter().map(|runs| SavedSide::new(runs, &mut configurations)).collect(),
            configurations,
            sha256: String::new(),
        };
        saved.seal();
        saved
    }

    /// Returns the hash of all the rest. It does not depend on the order of the document's parts, or on its white space.
    fn sum(&self) -> String {
        let rest = Self { sha256: String::new(), ..self.clone() };
        let text = serde_json::to_vec(&rest).unwrap_or_default();
        hexadecimal(&Sha256::digest(text))
    }

    /// Notes the hash of all the rest.
    fn seal(&mut self) {
        self.sha256 = self.sum();
    }

    /// Returns a predicate of the file if the result is not the one that was saved. Whoever changes a file on purpose can change the hash too.
    pub fn suspicion(&self) -> Option<&'static str> {
        match self.sha256.as_str() {
            "" => {
                Some("has no checksum: it was changed after it was saved, or an earlier version of Tollgate wrote it")
            }
            sum if sum != self.sum() => Some(
                "was changed after it was saved: its checksum does not match, and its figures need not be those of the measurement",
            ),
            _ => None,
        }
    }

    /// Returns the document.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Reads a document, and checks that a measurement can have written it.
    pub fn read(bytes: &[u8]) -> Result<Self, SavedError> {
        let not_saved = |error: serde_json::Error| SavedError::NotSaved(crate::input::wrong_json(&error));
        crate::input::check_json(bytes).map_err(not_saved)?;
        let value: Value = serde_json::from_slice(bytes).map_err(not_saved)?;
        if value.get("document").and_then(|document| document.as_str()) != Some(DOCUMENT) {
            return Err(SavedError::NotSaved(format!("it has no \"document\": \"{DOCUMENT}\"")));
        }
        let format = value.get("format").and_then(Value::as_u64);
        let format =
            format.ok_or_else(|| SavedError::NotSaved("its \"format\" is no number of a format".to_owned()))?;
        if format != u64::from(FORMAT) {
            return Err(SavedError::Format(format));
        }
        if has_control(&value) {
            return Err(wrong("a text has control characters"));
        }
        let saved: Self = serde_json::from_slice(bytes).map_err(not_saved)?;
        saved.runs()?;
        let known = serde_json::to_value(&saved).map_err(not_saved)?;
        if let Some(key) = unknown_key(&value, &known) {
            return Err(wrong(format!("no measurement has the key {key}")));
        }
        Ok(saved)
    }

    /// Returns the warnings and the notes.
    pub fn remarks(&self) -> [&[String]; 2] {
        [&self.warnings, &self.notes]
    }

    /// Returns the sides with their runs.
    pub fn runs(&self) -> Result<Vec<Runs>, SavedError> {
        if !(1..=several::MOST_SIDES).contains(&self.sides.len()) {
            let (count, most) = (self.sides.len(), several::MOST_SIDES);
            return Err(wrong(format!("it has {count} sides, and a result has 1 to {most}")));
        }
        if !(0.0..1e9).contains(&self.settle) {
            return Err(wrong("the settling time is out of range"));
        }
        if !self.sides.iter().all(|side| several::is_name(&side.name)) {
            let most = several::LONGEST_NAME;
            return Err(wrong(format!("the name of a side has 1 to {most} characters, and no control characters")));
        }
        let names: BTreeSet<&str> = self.sides.iter().map(|side| side.name.as_str()).collect();
        if names.len() != self.sides.len() || !names.contains(self.reference.as_str()) {
            return Err(wrong("the names of its sides are not what they should be"));
        }
        self.sides.iter().map(|side| side.runs(&self.configurations)).collect()
    }
}
