//! Several sides of a command, each compared with one of them, the reference, as [`Diff`] compares two.

mod sheets;
#[cfg(test)]
pub(crate) mod tests;

use super::entries::ByEntry;
use super::gathered::gathered;
use super::origin::Provenance;
use super::verdict::CONFIDENCE;
use super::{
    Answer, Diff, Differing, EntryChange, Interrupted, Paid, Remarks, Rests, Run, Runs, Side, Terms, TimeLimit,
    Verdict, junit, paid,
};
use crate::charges::Tallies;
use crate::difference::Change;
use crate::format::counted;
use crate::report::ReportError;
use serde::Serialize;
pub use sheets::{asides, differing, markdown, overview, provenance, remarks, text};
use std::collections::BTreeMap;

/// The version of the JSON document.
pub const FORMAT: u32 = 1;
/// The largest number of sides.
pub const MOST_SIDES: usize = 64;
/// The longest name of a side, in characters.
pub const LONGEST_NAME: usize = 64;

/// Returns true if a side can have this name: it is short, and a terminal obeys no character of it.
pub fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && name.chars().count() <= LONGEST_NAME && !name.contains(char::is_control)
}
/// A side with its comparison.
#[derive(Clone, Debug)]
pub struct Column {
    /// The side: its name, kernel and settings, and its costs.
    pub side: Side,
    /// The command line.
    pub command: String,
    /// Names and values of the parameters that were replaced in the command and in the settings.
    pub parameters: Vec<(String, String)>,
    /// The number of files of the host that the command could read, and their hash.
    pub files: String,
    /// The comparison with the reference, whose A is the reference. None for the reference itself.
    pub against: Option<Diff>,
}

/// The mean costs of the reference.
#[derive(Clone, Debug, Default)]
struct Base {
    causes: Tallies,
    functions: Tallies,
    meanwhile: Tallies,
    entries: BTreeMap<String, f64>,
}

/// Several sides of a command.
#[derive(Clone, Debug)]
pub struct Several {
    /// Reasons for which a comparison may not be the one that was meant.
    pub warnings: Vec<String>,
    /// Set if the user stopped the measurement.
    pub interrupted: Option<Interrupted>,
    /// Set if a time limit ended the measurement before it was complete.
    pub time_limit: Option<TimeLimit>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The command line, before parameters were replaced.
    pub command: String,
    /// The position of the reference.
    pub reference: usize,
    /// The sides, in the order in which they were given.
    pub columns: Vec<Column>,
    /// Version, seeds, files and the command that measures the same again.
    pub provenance: Provenance,
    base: Base,
}

/// A side that has no layout in common with the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{side} and {reference} have no layout in common: they can't be compared")]
pub struct NothingInCommon {
    side: String,
    reference: String,
}

/// Returns the runs of both sides that have the same layouts, in the order of the side.
pub(super) fn paired(reference: &Runs, side: &Runs) -> Option<[Runs; 2]> {
    let of_reference = |run: &Run| reference.runs.iter().find(|other| other.seed == run.seed);
    let pairs: Vec<(Run, Run)> =
        side.runs.iter().filter_map(|run| Some((of_reference(run)?.clone(), run.clone()))).collect();
    let (first, second) = pairs.into_iter().unzip::<Run, Run, Vec<Run>, Vec<Run>>();
    let with = |of: &Runs, runs| Runs { runs, ..of.clone() };
    (!first.is_empty()).then(|| [with(reference, first), with(side, second)])
}

/// Compares two sides by the layouts that both have.
pub fn of_two(command: String, a: &Runs, b: &Runs, terms: &Terms, remarks: Remarks) -> Result<Diff, NothingInCommon> {
    let [a, b] = common(a, b)?;
    Ok(Diff::new(command, &a, &b, terms, remarks))
}

/// Returns the runs of both sides that have the same layouts, in the order of the side, at least one.
fn common(reference: &Runs, side: &Runs) -> Result<[Runs; 2], NothingInCommon> {
    let error = || NothingInCommon { side: side.name.clone(), reference: reference.name.clone() };
    paired(reference, side).ok_or_else(error)
}

/// Returns the mean costs of a side.
fn base(runs: &Runs) -> Base {
    let (sum, count) = (Paid::sum(runs.runs.iter().map(|run| &run.paid)), runs.runs.len());
    let total = |entries: &ByEntry| {
        let cycles = |ticks: u64| ticks as f64 / ledger::TICKS_PER_CYCLE as f64 / count.max(1) as f64;
        entries.iter().map(|(name, named)| (name.clone(), cycles(named.stays.sum.ticks))).collect()
    };
    Base {
        causes: paid::means(sum.causes(), count),
        functions: paid::means(sum.functions.clone(), count),
        meanwhile: paid::means(sum.meanwhile.clone(), count),
        entries: total(&sum.entries),
    }
}

impl Several {
    /// Compares sides with one of them, the reference: each by the layouts that both have.
    pub fn new(
        command: String,
        sides: &[Runs],
        reference: usize,
        terms: &Terms,
        remarks: Remarks,
    ) -> Result<Self, NothingInCommon> {
        let mut columns = Vec::new();
        let mut notes = remarks.notes;
        for (number, runs) in sides.iter().enumerate() {
            let against = match number == reference {
                true => None,
                false => {
                    let [a, b] = common(&sides[reference], runs)?;
                    let (idle, provenance) = (remarks.idle.clone(), remarks.provenance.clone());
                    let Remarks { interrupted, time_limit, .. } = remarks;
                    let remarks = Remarks { idle, provenance, interrupted, time_limit, ..Remarks::default() };
                    Some(Diff::new(runs.command.clone(), &a, &b, terms, remarks))
                }
            };
            notes.extend(against.iter().flat_map(|diff| diff.notes.iter().cloned()));
            columns.push(Column {
                side: Side::new(runs),
                command: runs.command.clone(),
                parameters: runs.parameters.clone(),
                files: runs.files.describe(),
                against,
            });
        }
        let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
        Ok(Self {
            warnings: gathered(remarks.warnings, &names),
            interrupted: remarks.interrupted,
            time_limit: remarks.time_limit,
            notes: gathered(notes, &names),
            command,
            reference,
            columns,
            provenance: remarks.provenance,
            base: base(&sides[reference]),
        })
    }

    /// Returns the comparisons with the reference.
    pub fn comparisons(&self) -> impl Iterator<Item = &Diff> {
        self.columns.iter().filter_map(|column| column.against.as_ref())
    }

    /// Returns the answer of each comparison in a sentence, which names its side.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.comparisons().map(|diff| diff.sentence.clone())
    }

    /// Returns the side with which the others are compared.
    pub fn base(&self) -> &Side {
        &self.columns[self.reference].side
    }

    /// Returns true if the cost of a side exceeds the limit.
    pub fn exceeded(&self) -> bool {
        self.comparisons().any(|diff| diff.verdict.exceeded())
    }

    /// Says how sure the answers are.
    fn certainty(&self) -> Vec<String> {
        let sure = |diff: &Diff| diff.verdict.interval.is_some_and(|interval| interval.confidence >= CONFIDENCE);
        let (usual, others): (Vec<&Diff>, Vec<&Diff>) =
            self.comparisons().partition(|diff| sure(diff) && diff.verdict.answer != Answer::Same);
        let counts = usual.iter().map(|diff| diff.b.runs.len());
        let mut all = Vec::new();
        if let (Some(least), Some(most)) = (counts.clone().min(), counts.max()) {
            let pairs = if least == most { counted(most, "pair", "pairs") } else { format!("{least} to {most} pairs") };
            all.push(format!(
                "Each difference is the Hodges-Lehmann estimate of its pairs, and its interval has 95% confidence for its side alone: {pairs} of runs with {}, each pair under a layout of its own.",
                self.base().name
            ));
        }
        match others.first() {
            Some(first) if usual.is_empty() && others.iter().all(|diff| diff.certainty == first.certainty) => {
                all.push(first.certainty.clone());
            }
            _ => all.extend(others.iter().map(|diff| format!("{}: {}", diff.b.name, diff.certainty))),
        }
        if self.is_uneven() {
            all.push("The intervals have unequal confidence, so their widths can't be compared with each other: that of fewer pairs may be narrow by chance.".to_owned());
        }
        all
    }

    /// Returns true if some intervals have less confidence than others: they are of fewer pairs.
    pub(crate) fn is_uneven(&self) -> bool {
        let of = |diff: &Diff| diff.verdict.interval.map(|interval| interval.confidence >= CONFIDENCE);
        let found: Vec<bool> = self.comparisons().filter_map(of).collect();
        found.iter().any(|sure| *sure != found[0])
    }

    /// Returns the result as JUnit tests, one for each side but the reference. A test fails if the cost of its side exceeds the limit.
    pub fn junit(&self) -> Result<String, ReportError> {
        junit::document(self.comparisons(), &self.warnings, self.interrupted)
    }
}

/// A comparison in the document.
#[derive(Serialize)]
pub(super) struct Against<'a> {
    sentence: &'a str,
    certainty: &'a str,
    decision: Option<&'a str>,
    rests: Option<&'a Rests>,
    verdict: &'a Verdict,
    differs: &'a [Differing],
    causes: &'a [Change],
    top_down: &'a [Change],
    functions: &'a [Change],
    entries: &'a [EntryChange],
    meanwhile: &'a [Change],
    entries_meanwhile: &'a [EntryChange],
}

impl<'a> Against<'a> {
    /// Returns a comparison without its sides.
    pub fn new(diff: &'a Diff) -> Self {
        Self {
            sentence: &diff.sentence,
            certainty: &diff.certainty,
            decision: diff.decision.as_deref(),
            rests: diff.rests.as_ref(),
            verdict: &diff.verdict,
            differs: &diff.differs,
            causes: &diff.causes,
            top_down: &diff.top_down,
            functions: &diff.functions,
            entries: &diff.entries,
            meanwhile: &diff.meanwhile,
            entries_meanwhile: &diff.entries_meanwhile,
        }
    }
}

/// A side in the document.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    command: &'a str,
    parameters: BTreeMap<&'a str, &'a str>,
    files: &'a str,
    #[serde(flatten)]
    side: &'a Side,
    against: Option<Against<'a>>,
}

/// The document.
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<Interrupted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_limit: Option<TimeLimit>,
    notes: &'a [String],
    command: &'a str,
    reference: &'a str,
    sides: Vec<Shown<'a>>,
    provenance: &'a Provenance,
}

impl Serialize for Several {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn shown(column: &Column) -> Shown<'_> {
            Shown {
                name: &column.side.name,
                command: &column.command,
                parameters: column.parameters.iter().map(|(name, value)| (&**name, &**value)).collect(),
                files: &column.files,
                side: &column.side,
                against: column.against.as_ref().map(Against::new),
            }
        }
        let document = Document {
            format: FORMAT,
            warnings: &self.warnings,
            interrupted: self.interrupted,
            time_limit: self.time_limit,
            notes: &self.notes,
            command: &self.command,
            reference: &self.base().name,
            sides: self.columns.iter().map(shown).collect(),
            provenance: &self.provenance,
        };
        document.serialize(serializer)
    }
}
