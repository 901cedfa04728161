//! Results of an experiment: the value of each cell beside the published one, and the named entries of its ledger.

use crate::charges::{Charges, Tallies, Tally};
use crate::experiment::{Image, Measure, Platform, PlatformName, TimeUnit};
use crate::failure::Failure;
use crate::flame::Folded;
use crate::format::{figure, number};
use crate::measure::{self, MeasureError};
use crate::runner::{self, Outcome};
use crate::store::Finished;
use crate::{Cell, Experiment};
use ledger::profile::Prices;
use ledger::summary::{By, Cause, Part, Selection};
use ledger::{Family, Profile};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The version of the JSON document.
pub const FORMAT: u32 = 1;

/// Named charges in the measured region of a cell, as they are printed, saved, and compared with another program's.
/// Exits, operations, events and instructions add up to the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    /// Instructions, and all ticks.
    pub total: Tally,
    /// VM exits by reason: the processor's cost.
    pub exits: Tallies,
    /// The hypervisor's operations by kind, and the processor's cost of VM entries.
    pub operations: Tallies,
    /// All other events by kind.
    pub events: Tallies,
    /// Instructions by class.
    pub instructions: Tallies,
    /// VM exits by the guest's function: their number, and their cost with all of the hypervisor's work.
    pub exit_symbols: Tallies,
    /// Instructions and ticks by function, halted time excluded.
    pub symbols: Tallies,
}

impl Entries {
    /// Collects the charges of `selection`, whose sums by kind are `charges`.
    fn new(charges: &Charges, selection: Selection) -> Self {
        let mut entries = Self { total: charges.total, ..Self::default() };
        for (kind, (name, tally)) in &charges.kinds {
            let list = match kind.family {
                Family::VmExit => &mut entries.exits,
                Family::VmEntry | Family::Operation => &mut entries.operations,
                _ => &mut entries.events,
            };
            list.entry(kind.within_family(name.as_deref())).or_default().add(*tally);
        }
        for (class, tally) in &charges.classes {
            entries.instructions.insert(class.name().to_owned(), *tally);
        }
        for (name, row) in selection.rows(By::Symbol) {
            let mut crossed = Tally::default();
            for (cause, amount) in &row.causes {
                if let Cause::Crossing(kind) = cause
                    && kind.family.is_hypervisor()
                {
                    let count = if kind.family == Family::VmExit { amount.count } else { 0 };
                    crossed.add(Tally { count, ticks: amount.ticks });
                }
            }
            if crossed != Tally::default() {
                entries.exit_symbols.insert(name.clone(), crossed);
            }
            if row.busy() != 0 {
                entries.symbols.insert(name, Tally { count: row.instructions, ticks: row.busy() });
            }
        }
        entries
    }

    /// Returns the lists with their titles.
    pub fn lists(&self) -> [(&'static str, &Tallies); 6] {
        [
            ("VM exits by reason", &self.exits),
            ("VM exits by guest function", &self.exit_symbols),
            ("hypervisor operations", &self.operations),
            ("events", &self.events),
            ("instructions", &self.instructions),
            ("functions", &self.symbols),
        ]
    }
}

/// The value of a cell, with the charges behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Our value.
    pub value: f64,
    /// The values in several layouts, whose mean is the value. Empty if there is one layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layouts: Vec<f64>,
    /// Unit of the value.
    pub unit: String,
    /// Published value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// Ratio of our value to the published one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Frequency of the cycles in hertz; a tick is a thousandth of a cycle.
    pub tsc_hz: u64,
    /// Charges by name.
    pub entries: Entries,
    /// The functions of each layout, as [`Entries::symbols`] has those of the first. Empty if there is one layout, and in a saved result.
    #[serde(skip)]
    pub functions: Vec<Tallies>,
    /// Charges by kind. Empty in a saved result.
    #[serde(skip)]
    pub charges: Charges,
}

impl Measured {
    /// Returns the functions of each layout, or of the only one.
    pub fn functions(&self) -> impl Iterator<Item = &Tallies> {
        let only = self.functions.is_empty().then_some(&self.entries.symbols);
        self.functions.iter().chain(only)
    }

    /// Formats the value; counts are whole numbers.
    pub fn figure(&self) -> String {
        let time = TimeUnit::from_symbol(&self.unit).is_some();
        match !time && self.value.fract() == 0.0 && self.value.abs() < 1e15 {
            true => number(self.value as u64),
            false => figure(self.value),
        }
    }
}

/// The origin of a value: the run that produced it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Hash of everything that decides the outcome.
    pub fingerprint: String,
    /// SHA-256 of the ledger.
    pub ledger: String,
    /// Name of the price profile.
    pub profile: String,
}

/// The result of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// Name of the row.
    pub row: String,
    /// Name of the column.
    pub column: String,
    /// Command line that runs the cell.
    pub command: String,
    /// The measured value, unless the cell failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// The reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The parts of the measured code that have no names, with their shares and the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unnamed: Vec<String>,
    /// Those of the parts without names that should have some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameless: Vec<Nameless>,
    /// Folded call stacks with cycles; without call stacks in the ledger its cost tree, `level;ring;function;cause` with cycles.
    #[serde(skip)]
    pub stacks: Vec<String>,
    /// Origin of the value. None in a saved result and in a cell that failed.
    #[serde(skip)]
    pub provenance: Option<Provenance>,
}

impl CellResult {
    /// Returns the cell's name, row/column.
    pub fn id(&self) -> String {
        format!("{}/{}", self.row, self.column)
    }

    /// Returns the titles of the cell's row and column.
    pub fn title(&self, experiment: &Experiment) -> String {
        let row = experiment.rows.iter().find(|row| row.line.id == self.row);
        let column = experiment.columns.iter().find(|column| column.id == self.column);
        format!(
            "{}, {}",
            row.map_or(self.row.as_str(), |row| row.line.title.as_str()),
            column.map_or(self.column.as_str(), |column| column.title.as_str())
        )
    }
}

/// The results of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Name of the experiment.
    pub name: String,
    /// File that it was read from, unless it is built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The cells that were run.
    pub cells: Vec<CellResult>,
}

impl ExperimentResult {
    /// Returns the value of a cell by the positions of its row and column.
    pub fn measured(&self, experiment: &Experiment, row: usize, column: usize) -> Option<&Measured> {
        self.cell(experiment, row, column)?.measured.as_ref()
    }

    /// Returns a cell by the positions of its row and column.
    pub fn cell(&self, experiment: &Experiment, row: usize, column: usize) -> Option<&CellResult> {
        let (row, column) = (&experiment.rows[row].line.id, &experiment.columns[column].id);
        self.cells.iter().find(|cell| cell.row == *row && cell.column == *column)
    }
}

/// The state of a run that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// Cells that have an outcome.
    pub done: usize,
    /// Cells that were to be run.
    pub cells: usize,
    /// The number of layouts, each of which counts as a cell; none if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layouts: Option<u32>,
}

impl Interrupted {
    /// Returns the state if cells are missing because of an interruption.
    pub fn of(outcomes: &[Outcome], layouts: u32) -> Option<Self> {
        let done = outcomes.iter().filter(|outcome| **outcome != Outcome::Interrupted).count();
        let layouts = Some(layouts).filter(|layouts| *layouts > 1);
        (done != outcomes.len()).then_some(Self { done, cells: outcomes.len(), layouts })
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {} of {} cells", self.done, self.cells)?;
        self.layouts.map_or(Ok(()), |layouts| write!(f, ", counting each in {layouts} layouts"))
    }
}

/// Code that should have names and has none: of a kernel, of its modules, or of its tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nameless {
    /// Share of the measured time.
    pub share: f64,
    /// The code and the reason, as the rest of a sentence that begins with the share and "is spent in".
    pub code: String,
}

/// Returns the prices of a built-in profile's processor, or of the program that emulates it; `None` for any other profile.
fn prices(cell: &Cell, profile: &str) -> Option<Arc<Prices>> {
    let profile = Profile::named(profile).ok()?;
    let emulated = cell.settings.platform == Some(Platform::Own(PlatformName::Emulated));
    Some(Arc::new(if emulated { profile.emulator.prices } else { profile.prices }))
}

/// The measurements of a finished cell.
struct Known {
    measured: Measured,
    unnamed: Vec<String>,
    nameless: Vec<Nameless>,
    stacks: Vec<String>,
    provenance: Option<Provenance>,
}

/// Measures a finished cell.
fn measured(cell: &Cell, finished: &Finished) -> Result<Known, MeasureError> {
    let ledger = measure::read(&finished.ledger)?;
    let metric = &cell.row_of().metric;
    let selection = measure::selection(&ledger, metric.region.as_deref())?;
    let profile = ledger.header.profile.clone();
    let charges = Charges { prices: prices(cell, &profile), ..Charges::new(&ledger, selection) };
    let entries = Entries::new(&charges, selection);
    let output = match metric.measure {
        Measure::Result { .. } | Measure::Counted { .. } | Measure::Sink { .. } => {
            Some(measure::output(&finished.output)?)
        }
        Measure::Region(_) | Measure::Busy(_) | Measure::Count { .. } => None,
    };
    let value = measure::value(metric, &ledger, &charges, output.as_deref())?;
    let published = cell.published();
    // If only factors are compared, the ratio of two values has no meaning.
    let ratio = published.filter(|_| cell.experiment.relative_to.is_none()).map(|published| value / published);
    let unit = metric.unit().to_owned();
    let region = metric.region.as_deref();
    let unnamed = selection.unnamed();
    // Only a Linux has tasks that are expected to have names.
    let linux = matches!(cell.guest().image, Image::Linux { .. });
    let said = |part: Part| part.is_said() && (linux || part != Part::Tasks);
    let nameless = unnamed.iter().filter(|unnamed| said(unnamed.part));
    let nameless = nameless.map(|part| Nameless { share: part.share(), code: part.describe_in_sentence() }).collect();
    let unnamed = unnamed
        .iter()
        .map(|part| format!("{:.1}% of the time is spent in {}", part.share() * 100.0, part.describe_in_sentence()));
    let unnamed = unnamed.collect();
    let stacks = Folded::of(&ledger, region).lines;
    let provenance = finished.identity().map(|(fingerprint, ledger)| Provenance { fingerprint, ledger, profile });
    let (layouts, functions) = (Vec::new(), Vec::new());
    let tsc_hz = ledger.header.tsc_hz;
    let measured = Measured { value, layouts, unit, published, ratio, tsc_hz, entries, functions, charges };
    Ok(Known { measured, unnamed, nameless, stacks, provenance })
}

/// Returns the result of a cell, and its failure.
pub fn cell(cell: &Cell, outcome: &Outcome) -> (CellResult, Option<Failure>) {
    let (found, failure) = match outcome {
        Outcome::Failed(failure) => (None, Some(failure.clone())),
        Outcome::Interrupted => {
            (None, Some(Failure { ran: true, ..Failure::before_the_run("was interrupted".to_owned()) }))
        }
        Outcome::Finished(finished) => match measured(cell, finished) {
            Ok(found) => (Some(found), None),
            Err(error) => {
                let (said, output) = (runner::said(&finished.output), Some(finished.output.clone()));
                (None, Some(Failure { reason: error.to_string(), said, output, ran: true }))
            }
        },
    };
    let (measured, unnamed, nameless, stacks, provenance) = match found {
        Some(known) => (Some(known.measured), known.unnamed, known.nameless, known.stacks, known.provenance),
        None => (None, Vec::new(), Vec::new(), Vec::new(), None),
    };
    let result = CellResult {
        row: cell.row_of().line.id.clone(),
        column: cell.experiment.columns[cell.column].id.clone(),
        command: cell.command(),
        measured,
        failure: failure.as_ref().map(|failure| failure.reason.clone()),
        unnamed,
        nameless,
        stacks,
        provenance,
    };
    (result, failure)
}

#[cfg(test)]
mod tests;
