//! Reads an experiment's TOML. Whatever is wrong is reported with the file, the key and the reason. There is no key for a cost.

use super::sink::Figure;
use super::{
    Busy, Experiment, Factor, Guest, Image, Layout, Line, Measure, Metric, Platform, Row, Settings, Skip, Source,
    TimeUnit,
};
use ledger::Profile;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use strum::VariantNames;

/// More than any experiment has, in bytes.
const LARGEST: u64 = 8 << 20;
/// The most rows, and the most columns.
const MOST_LINES: usize = 10_000;
/// The most cells: those of a sweep that a cluster runs in a day.
const MOST_CELLS: usize = 100_000;

/// Exit statuses of `tollgate run` that say that the guest did not run to its end, and so never that all is well.
const NEVER: &[(i32, &str)] =
    &[(124, "the time was up"), (126, "the machine could not be made"), (130, "the run was interrupted")];

/// Why there is no experiment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// No built-in experiment has that name.
    #[error("there is no experiment '{name}'; there are: {known}. The path of a .toml file is also accepted")]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The file can't be read.
    #[error("{file} can't be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// It is a picture, a program or the like.
    #[error("{file} is no experiment: it is not text")]
    NotText {
        /// The file.
        file: String,
    },
    /// It isn't TOML, or has keys or values that mean nothing.
    #[error("{file}:{line}:{column}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The character in the line, from 1.
        column: usize,
        /// The reason.
        reason: String,
    },
    /// A value makes no sense.
    #[error("{file}: {key}: {reason}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The reason.
        reason: String,
    },
}

/// The text of an experiment's file.
pub(super) fn read(path: &Path) -> Result<String, ExperimentError> {
    let unreadable =
        |reason: String| ExperimentError::Unreadable { file: path.display().to_string(), reason: reason.to_owned() };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(unreadable(format!("it has more than {LARGEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| ExperimentError::NotText { file: path.display().to_string() })
}

/// The TOML library's error in one line: the library would show the place in four more.
fn syntax(file: &str, text: &str, error: &toml::de::Error) -> ExperimentError {
    // The library names places in the text it was given; where it names none, the file as a whole is meant.
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = String::from_utf8_lossy(&text.as_bytes()[..start]);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let reason = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
    ExperimentError::Syntax { file: file.to_owned(), line, column, reason }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    about: String,
    source: Option<FileSource>,
    #[serde(rename = "relative-to")]
    relative_to: Option<FileReference>,
    #[serde(default)]
    layout: Layout,
    sample: Option<String>,
    #[serde(default)]
    defaults: Settings,
    guest: BTreeMap<String, FileGuest>,
    metric: Option<FileMetric>,
    column: Vec<FileLine>,
    row: Vec<FileLine>,
    #[serde(default)]
    factor: Vec<FileFactor>,
    #[serde(default)]
    skip: Vec<FileSkip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSource {
    text: String,
    reference: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileGuest {
    image: Option<String>,
    kernel: Option<String>,
    initrd: Option<String>,
    #[serde(default)]
    status: i32,
    #[serde(default)]
    symbols: Vec<String>,
    made_by: String,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMetric {
    region: Option<String>,
    result: Option<String>,
    count: Option<String>,
    counted: Option<String>,
    sink: Option<String>,
    unit: String,
    per: Option<f64>,
    times: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLine {
    id: String,
    title: String,
    #[serde(default)]
    set: Settings,
    metric: Option<FileMetric>,
    scale: Option<String>,
    #[serde(default)]
    published: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFactor {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileReference {
    row: String,
    column: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSkip {
    row: String,
    column: String,
    reason: String,
}

/// Turns a file's parts into an experiment's, knowing which file it is.
struct Reader<'a> {
    file: &'a str,
}

type Parsed<T> = Result<T, ExperimentError>;

impl Reader<'_> {
    fn error(&self, key: impl Into<String>, reason: impl Into<String>) -> ExperimentError {
        ExperimentError::Value { file: self.file.to_owned(), key: key.into(), reason: reason.into() }
    }

    /// One paragraph per paragraph, without the file's line breaks.
    fn prose(text: &str) -> String {
        let words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        text.trim().split("\n\n").map(words).collect::<Vec<_>>().join("\n\n")
    }

    fn text(&self, key: &str, text: &str) -> Parsed<String> {
        let text = Self::prose(text);
        if text.is_empty() { Err(self.error(key, "is empty")) } else { Ok(text) }
    }

    fn guest(&self, name: &str, guest: &FileGuest) -> Parsed<Guest> {
        let key = format!("guest.{name}");
        let image = match (&guest.image, &guest.kernel) {
            (Some(_), None) if guest.initrd.is_some() => {
                return Err(self.error(format!("{key}.initrd"), "a bare-metal image has none"));
            }
            (Some(image), None) => Image::Bare(image.clone()),
            (None, Some(kernel)) => Image::Linux { kernel: kernel.clone(), initrd: guest.initrd.clone() },
            _ => return Err(self.error(key, "must have either image or kernel")),
        };
        let made_by = self.text(&format!("{key}.made-by"), &guest.made_by)?;
        if let Some((_, meaning)) = NEVER.iter().find(|(status, _)| *status == guest.status) {
            let reason = format!("{} is no status to expect: it says that {meaning}", guest.status);
            return Err(self.error(format!("{key}.status"), reason));
        }
        if !(0..=255).contains(&guest.status) {
            return Err(self.error(format!("{key}.status"), format!("should be 0 to 255, is {}", guest.status)));
        }
        Ok(Guest { image, status: guest.status, symbols: guest.symbols.clone(), made_by })
    }

    fn metric(&self, key: &str, metric: &FileMetric) -> Parsed<Metric> {
        let unit = self.text(&format!("{key}.unit"), &metric.unit)?;
        let positive = |name: &str, value: Option<f64>| match value {
            None => Ok(1.0),
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(self.error(format!("{key}.{name}"), format!("should be above 0, is {value}"))),
        };
        let (per, times) = (positive("per", metric.per)?, positive("times", metric.times)?);
        let measure = match (&metric.result, &metric.counted, &metric.count, &metric.sink) {
            (Some(name), None, None, None) => Measure::Result { name: name.clone(), unit },
            (None, Some(name), None, None) => {
                Measure::Counted { name: self.text(&format!("{key}.counted"), name)?, unit }
            }
            (None, None, Some(kind), None) => Measure::Count { kind: kind.clone(), unit },
            (None, None, None, Some(name)) => self.sink(key, name, unit)?,
            (None, None, None, None) if metric.region.is_none() => {
                return Err(self.error(key, "has none of region, result, counted, count and sink"));
            }
            (None, None, None, None) => match (TimeUnit::from_symbol(&unit), unit.parse()) {
                (Some(unit), _) => Measure::Region(unit),
                (None, Ok(unit)) => Measure::Busy(unit),
                (None, Err(_)) => {
                    let units = [TimeUnit::SYMBOLS, Busy::VARIANTS].concat().join(", ");
                    return Err(self.error(format!("{key}.unit"), format!("'{unit}' is none of {units}")));
                }
            },
            _ => return Err(self.error(key, "has more than one of result, counted, count and sink")),
        };
        Ok(Metric { measure, region: metric.region.clone(), per, times })
    }

    fn sink(&self, key: &str, name: &str, unit: String) -> Parsed<Measure> {
        let Ok(figure) = name.parse::<Figure>() else {
            let names = Figure::NAMES.join(", ");
            return Err(self.error(format!("{key}.sink"), format!("'{}' is none of {names}", name.escape_debug())));
        };
        figure.check_unit(&unit).map_err(|reason| self.error(format!("{key}.unit"), reason))?;
        Ok(Measure::Sink { figure, unit })
    }

    fn settings(&self, key: &str, settings: &Settings, guests: &BTreeMap<String, Guest>) -> Parsed<()> {
        if let Some(profile) = &settings.profile
            && !Profile::names().any(|name| name == profile)
        {
            let names = Profile::names().collect::<Vec<_>>().join(", ");
            return Err(self.error(format!("{key}.profile"), format!("'{profile}' is none of {names}")));
        }
        if let Some(guest) = &settings.guest
            && !guests.contains_key(guest)
        {
            let names = guests.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(self.error(format!("{key}.guest"), format!("'{guest}' is none of {names}")));
        }
        match (settings.cpus, settings.timeout) {
            (Some(0), _) => Err(self.error(format!("{key}.cpus"), "should be above 0")),
            (_, Some(0)) => Err(self.error(format!("{key}.timeout"), "should be above 0")),
            _ => Ok(()),
        }
    }

    fn line(&self, what: &str, line: &FileLine, guests: &BTreeMap<String, Guest>) -> Parsed<Line> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if line.id.is_empty() || line.id.len() > 40 || !line.id.chars().all(good) {
            let reason = format!("'{}' should be lower-case letters, digits and hyphens", line.id.escape_debug());
            return Err(self.error(format!("{what}.id"), reason));
        }
        let key = format!("{what}.{}", line.id);
        self.settings(&format!("{key}.set"), &line.set, guests)?;
        let title = self.text(&format!("{key}.title"), &line.title)?;
        Ok(Line { id: line.id.clone(), title, settings: line.set.clone() })
    }

    fn row(&self, line: &FileLine, columns: &[Line], guests: &BTreeMap<String, Guest>, file: &File) -> Parsed<Row> {
        let shared = self.line("row", line, guests)?;
        let key = format!("row.{}", line.id);
        let (metric_key, metric) = match (&line.metric, &file.metric) {
            (Some(metric), _) => (format!("{key}.metric"), metric),
            (None, Some(metric)) => ("metric".to_owned(), metric),
            (None, None) => return Err(self.error(key, "has no metric, and neither has the experiment")),
        };
        let metric = self.metric(&metric_key, metric)?;
        let scale = line.scale.as_deref().map(|text| self.text(&format!("{key}.scale"), text)).transpose()?;
        if metric.times != 1.0 && scale.is_none() {
            return Err(self.error(format!("{key}.scale"), "is missing: a value that is scaled must say how"));
        }
        let mut published = BTreeMap::new();
        for (column, value) in &line.published {
            let key = format!("{key}.published.{column}");
            let Some(at) = columns.iter().position(|c| c.id == *column) else {
                return Err(self.error(key, "there is no such column"));
            };
            if !(value.is_finite() && *value > 0.0) {
                return Err(self.error(key, format!("should be above 0, is {value}")));
            }
            published.insert(at, *value);
        }
        if !published.is_empty() && file.source.is_none() {
            return Err(self.error("source", "is missing: published figures need a source"));
        }
        Ok(Row { line: shared, metric, scale, published })
    }

    fn factor(&self, factor: &FileFactor, rows: &[Row], columns: &[Line]) -> Parsed<Factor> {
        let column = |id: &str| columns.iter().position(|line| line.id == id);
        let row = |id: &str| rows.iter().position(|row| row.line.id == id);
        match (column(&factor.from), column(&factor.to), row(&factor.from), row(&factor.to)) {
            (Some(from), Some(to), ..) => Ok(Factor::Columns(from, to)),
            (_, _, Some(from), Some(to)) => Ok(Factor::Rows(from, to)),
            _ => Err(self.error(
                "factor",
                format!("'{}' and '{}' are neither two columns nor two rows", factor.from, factor.to),
            )),
        }
    }

    fn skip(&self, skip: &FileSkip, rows: &[Row], columns: &[Line]) -> Parsed<Skip> {
        let reason = self.text("skip.reason", &skip.reason)?;
        let (row, column) = self.place("skip", (&skip.row, &skip.column), rows, columns)?;
        Ok(Skip { row, column, reason })
    }

    /// The cell that values are relative to: one that has a published figure.
    fn relative_to(&self, cell: &FileReference, rows: &[Row], columns: &[Line]) -> Parsed<(usize, usize)> {
        let place = self.place("relative-to", (&cell.row, &cell.column), rows, columns)?;
        match rows[place.0].published.contains_key(&place.1) {
            true => Ok(place),
            false => Err(self.error("relative-to", "is a cell without a published figure")),
        }
    }

    /// A cell by the names of its row and column.
    fn place(
        &self,
        key: &str,
        (row_id, column_id): (&str, &str),
        rows: &[Row],
        columns: &[Line],
    ) -> Parsed<(usize, usize)> {
        let row = rows.iter().position(|row| row.line.id == row_id);
        let column = columns.iter().position(|column| column.id == column_id);
        match (row, column) {
            (Some(row), Some(column)) => Ok((row, column)),
            (None, _) => Err(self.error(format!("{key}.row"), format!("there is no row '{row_id}'"))),
            (_, None) => Err(self.error(format!("{key}.column"), format!("there is no column '{column_id}'"))),
        }
    }

    /// Checks that need a whole cell.
    fn cell(&self, experiment: &Experiment, row: usize, column: usize) -> Parsed<()> {
        let (row_line, column_line) = (&experiment.rows[row].line, &experiment.columns[column]);
        let place = format!("row.{} with column.{}", row_line.id, column_line.id);
        if let Some(name) = row_line.settings.conflict(&column_line.settings) {
            return Err(self.error(place, format!("both set {name}")));
        }
        let settings = super::Cell::new(experiment, row, column).settings;
        let error = |reason: String| Err(self.error(&place, reason));
        if settings.guest.is_none() {
            return error("no guest is set".to_owned());
        }
        if settings.profile.is_none() {
            return error("no profile is set".to_owned());
        }
        let Some(platform) = settings.platform else {
            return error("no platform is set".to_owned());
        };
        match settings.hypervisor_options().keys().next() {
            Some(option) if !platform.has_switches() => {
                return error(format!("{option} is for the platforms hvm and kvm, this is {platform}"));
            }
            _ => {}
        }
        match platform {
            Platform::Kvm => super::kvm::words(&settings).map(drop).or_else(error),
            Platform::Own(_) => Ok(()),
        }
    }
}

/// Names that are there twice.
fn twice(mut ids: Vec<&str>) -> Option<&str> {
    ids.sort_unstable();
    ids.windows(2).find(|two| two[0] == two[1]).map(|two| two[0])
}

/// Reads an experiment from the text of `file`.
pub(super) fn experiment(
    file: &str,
    name: &str,
    path: Option<String>,
    text: &str,
) -> Result<Experiment, ExperimentError> {
    let r = Reader { file };
    let parsed: File = toml::from_str(text).map_err(|error| syntax(file, text, &error))?;
    let guests = parsed.guest.iter().map(|(name, guest)| Ok((name.clone(), r.guest(name, guest)?)));
    let guests = guests.collect::<Parsed<BTreeMap<_, _>>>()?;
    r.settings("defaults", &parsed.defaults, &guests)?;
    for (what, lines) in [("row", &parsed.row), ("column", &parsed.column)] {
        if lines.is_empty() || lines.len() > MOST_LINES {
            return Err(r.error(what, format!("there should be 1 to {MOST_LINES}, there are {}", lines.len())));
        }
    }
    let cells = parsed.row.len().saturating_mul(parsed.column.len());
    if cells > MOST_CELLS {
        return Err(r.error("row", format!("there should be at most {MOST_CELLS} cells, there are {cells}")));
    }
    for column in &parsed.column {
        if column.metric.is_some() || column.scale.is_some() || !column.published.is_empty() {
            return Err(r.error(format!("column.{}", column.id), "metric, scale and published belong to rows"));
        }
    }
    let columns = parsed.column.iter().map(|line| r.line("column", line, &guests)).collect::<Parsed<Vec<_>>>()?;
    let row = |line| r.row(line, &columns, &guests, &parsed);
    let rows = parsed.row.iter().map(row).collect::<Parsed<Vec<_>>>()?;
    let ids = columns.iter().map(|line| line.id.as_str()).chain(rows.iter().map(|row| row.line.id.as_str()));
    if let Some(id) = twice(ids.collect()) {
        return Err(r.error(id, "is the id of two rows or columns"));
    }
    let source = parsed.source.as_ref().map(|source| {
        Ok(Source {
            text: r.text("source.text", &source.text)?,
            reference: r.text("source.reference", &source.reference)?,
        })
    });
    let factors = parsed.factor.iter().map(|f| r.factor(f, &rows, &columns)).collect::<Parsed<Vec<_>>>()?;
    let skips = parsed.skip.iter().map(|s| r.skip(s, &rows, &columns)).collect::<Parsed<Vec<_>>>()?;
    let relative_to = parsed.relative_to.as_ref().map(|cell| r.relative_to(cell, &rows, &columns)).transpose()?;
    if let Some(Err(error)) = parsed.sample.as_deref().map(ledger::stack::interval) {
        return Err(r.error("sample", error.to_string()));
    }
    let experiment = Experiment {
        name: name.to_owned(),
        file: path,
        title: r.text("title", &parsed.title)?,
        about: Reader::prose(&parsed.about),
        source: source.transpose()?,
        relative_to,
        layout: parsed.layout,
        sample: parsed.sample,
        defaults: parsed.defaults,
        guests,
        rows,
        columns,
        factors,
        skips,
        grown: 0,
    };
    for row in 0..experiment.rows.len() {
        for column in 0..experiment.columns.len() {
            if experiment.skipped(row, column).is_none() {
                r.cell(&experiment, row, column)?;
            }
        }
    }
    Ok(experiment)
}
