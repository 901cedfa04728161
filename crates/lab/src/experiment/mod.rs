//! Experiments: guests, the matrix of configurations, what is measured, and what was published.

mod builtin;
mod cell;
mod grown;
mod kernels;
mod kvm;
mod parse;
mod settings;
pub mod sink;

pub use builtin::names;
pub use cell::Cell;
pub use hypervisor::config::PlatformName;
pub use kernels::Kernel;
pub use parse::ExperimentError;
pub use settings::{Guest, GuestName, Image, Platform, Settings};

use sink::Figure;
use std::collections::BTreeMap;
use std::path::Path;
use strum::{EnumString, IntoStaticStr, VariantNames};

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// A table of rows and columns.
    #[default]
    Table,
    /// A list of the columns for each row.
    List,
}

/// The source of published figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Author, title, date.
    pub text: String,
    /// The identifier of the source: a message's identifier, an address.
    pub reference: String,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
pub enum TimeUnit {
    /// Nanoseconds.
    #[strum(serialize = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[strum(serialize = "us")]
    Microseconds,
    /// Milliseconds.
    #[strum(serialize = "ms")]
    Milliseconds,
    /// Seconds.
    #[strum(serialize = "s")]
    Seconds,
}

impl TimeUnit {
    /// The symbols of all.
    pub const SYMBOLS: &[&str] = Self::VARIANTS;

    /// Its symbol.
    pub fn symbol(self) -> &'static str {
        self.into()
    }

    /// The number of units in a second.
    pub const fn per_second(self) -> f64 {
        match self {
            TimeUnit::Nanoseconds => 1e9,
            TimeUnit::Microseconds => 1e6,
            TimeUnit::Milliseconds => 1e3,
            TimeUnit::Seconds => 1.0,
        }
    }

    /// The unit with that symbol.
    pub fn from_symbol(symbol: &str) -> Option<Self> {
        symbol.parse().ok()
    }
}

/// The unit of the time in which a processor does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
pub enum Busy {
    /// The part of the whole time, in per cent.
    #[strum(serialize = "%")]
    Part,
    /// Cycles, of all processors together.
    #[strum(serialize = "busy cycles")]
    Cycles,
}

/// The way in which a cell's value is obtained.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// The time for which the region of interest was open.
    Region(TimeUnit),
    /// The number in a line `result NAME NUMBER UNIT` that the guest prints.
    Result {
        /// NAME.
        name: String,
        /// The unit to show it in: a unit of time, or exactly the guest's UNIT.
        unit: String,
    },
    /// The number in a line `count NAME NUMBER` that the guest prints.
    Counted {
        /// NAME, which may be several words.
        name: String,
        /// The unit of the count.
        unit: String,
    },
    /// The number of charges of a kind of event, under the name that reports give it.
    Count {
        /// The name; with an asterisk at its end, all names that begin so.
        kind: String,
        /// The unit of the count.
        unit: String,
    },
    /// The region's time in which the processor does not wait in HLT or MWAIT.
    Busy(Busy),
    /// A figure of the frames that the machine's sinks have received.
    Sink {
        /// The figure.
        figure: Figure,
        /// The unit: of time for latencies, of frames per second for rates.
        unit: String,
    },
}

/// The value that is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The way in which the value is obtained.
    pub measure: Measure,
    /// The region of interest that is measured, and that the differential profile is about; the whole run if there is none.
    pub region: Option<String>,
    /// The value is divided by this: iterations in the region.
    pub per: f64,
    /// The value is multiplied by this: how many times the run would have to be longer to be the published one.
    pub times: f64,
}

impl Metric {
    /// The unit's name.
    pub fn unit(&self) -> &str {
        match &self.measure {
            Measure::Region(unit) => unit.symbol(),
            Measure::Busy(unit) => (*unit).into(),
            Measure::Result { unit, .. }
            | Measure::Counted { unit, .. }
            | Measure::Count { unit, .. }
            | Measure::Sink { unit, .. } => unit,
        }
    }

    /// Returns true if the value is a number of events or frames.
    pub fn is_count(&self) -> bool {
        match &self.measure {
            Measure::Counted { .. } | Measure::Count { .. } => true,
            Measure::Sink { figure, .. } => figure.is_count(),
            Measure::Region(_) | Measure::Busy(_) | Measure::Result { .. } => false,
        }
    }

    /// Returns true if more is better: packets, or anything else, per second.
    pub fn is_rate(&self) -> bool {
        let unit = self.unit();
        unit.ends_with("pps") || unit.ends_with("/s")
    }
}

/// A row or a column of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Short name, for the command line.
    pub id: String,
    /// Name in tables.
    pub title: String,
    /// Its settings.
    pub settings: Settings,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The properties that rows share with columns.
    pub line: Line,
    /// The value that is measured.
    pub metric: Metric,
    /// The difference between the run and the published one, if any.
    pub scale: Option<String>,
    /// Published figures by the column's position.
    pub published: BTreeMap<usize, f64>,
}

/// Two rows or two columns whose ratio matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// Two columns, by position, in every row.
    Columns(usize, usize),
    /// Two rows, by position, in every column.
    Rows(usize, usize),
}

/// A cell that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The row's position.
    pub row: usize,
    /// The column's position.
    pub column: usize,
    /// Why.
    pub reason: String,
}

/// An experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Name: that of the file, without its extension.
    pub name: String,
    /// The file it was read from; `None` for those built in.
    pub file: Option<String>,
    /// One line.
    pub title: String,
    /// The description.
    pub about: String,
    /// The source of published figures.
    pub source: Option<Source>,
    /// The cell, by row and column, that values are compared as multiples of: for a source that names no machine.
    pub relative_to: Option<(usize, usize)>,
    /// The layout of the table.
    pub layout: Layout,
    /// The interval of call stacks, as in `--sample`. `None` for no call stacks.
    pub sample: Option<String>,
    /// The settings of every cell, unless its row or column overrides them.
    pub defaults: Settings,
    /// Guests by name.
    pub guests: BTreeMap<String, Guest>,
    /// Rows.
    pub rows: Vec<Row>,
    /// Columns.
    pub columns: Vec<Line>,
    /// Pairs whose ratio matters.
    pub factors: Vec<Factor>,
    /// Cells left out.
    pub skips: Vec<Skip>,
    /// Mebibytes of memory that each cell has beyond its settings: the experiment in another layout.
    pub grown: u32,
}

impl Experiment {
    /// A built-in experiment, or the one in a file, which a name that ends in `.toml` or has a slash in it is.
    pub fn find(name_or_path: &str) -> Result<Self, ExperimentError> {
        match name_or_path.ends_with(".toml") || name_or_path.contains('/') {
            true => Self::load(Path::new(name_or_path)),
            false => Self::named(name_or_path),
        }
    }

    /// A built-in experiment.
    pub fn named(name: &str) -> Result<Self, ExperimentError> {
        parse::experiment(&format!("{name}.toml (built in)"), name, None, builtin::text(name)?)
    }

    /// The experiment in a file.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        let text = parse::read(path)?;
        let file = path.display().to_string();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        parse::experiment(&file, &name, Some(file.clone()), &text)
    }

    /// The cells, row by row, without those left out.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let all = (0..self.rows.len()).flat_map(|row| (0..self.columns.len()).map(move |column| (row, column)));
        all.filter(|&(row, column)| self.skipped(row, column).is_none())
            .map(|(row, column)| Cell::new(self, row, column))
            .collect()
    }

    /// Why a cell is left out, if it is.
    pub fn skipped(&self, row: usize, column: usize) -> Option<&str> {
        self.skips.iter().find(|skip| (skip.row, skip.column) == (row, column)).map(|skip| skip.reason.as_str())
    }
}

#[cfg(test)]
mod tests;
