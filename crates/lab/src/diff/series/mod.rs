//! A series of commits: the cost of a command in each kernel, compared with the kernel before it and with the first one.

pub mod course;
mod csv;
mod search;
mod sheets;
#[cfg(test)]
pub(crate) mod tests;

use super::origin::Provenance;
use super::several::{self, Against};
use super::{Diff, Remarks, Runs, Side, Terms, Verdict};
pub use search::{Found, Mark, Search};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The version of the JSON document.
pub const FORMAT: u32 = 1;

/// A commit, or a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commit {
    /// Its hash.
    pub commit: String,
    /// A short name: the abbreviated hash, or the name of the patch's file.
    pub name: String,
    /// The first line of its message.
    pub subject: String,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was measured. Its image may be that of an earlier commit, with this name.
    Measured(Box<Runs>, Option<String>),
    /// It could not be built.
    NotBuilt(Broken),
    /// Its kernel did not boot, or the command failed in it.
    NotMeasured(Broken),
    /// It was not tried: a search does not need it, or the user stopped the series.
    Untried,
}

/// The reason why a commit has no figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The reason in a few words.
    pub why: String,
    /// The last lines of the output.
    pub log: Vec<String>,
}

/// How a row was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It has figures.
    Measured,
    /// It could not be built.
    NotBuilt,
    /// Its kernel did not boot, or the command failed in it.
    NotMeasured,
    /// It was not tried.
    Untried,
}

/// A commit with its comparisons.
#[derive(Clone, Debug)]
pub struct Row {
    /// The commit.
    pub commit: Commit,
    /// How the row was obtained.
    pub status: Status,
    /// The reason for which there are no figures.
    pub broken: Option<Broken>,
    /// The costs.
    pub side: Option<Side>,
    /// The name of the earlier commit whose kernel is the same, byte for byte.
    pub same_as: Option<String>,
    /// The comparison with the measured commit before it.
    pub previous: Option<Diff>,
    /// The verdict on the comparison with the first commit.
    pub first: Option<Verdict>,
}

/// What is searched for, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Bisection {
    /// The limit, as a part of the first commit's cost.
    pub above: f64,
    /// What is known of each commit.
    pub marks: Vec<Option<Mark>>,
    /// The result. None: the last commit is not above the limit, or the user stopped the search.
    pub found: Option<Found>,
    /// Number of kernels that were built for the search, or found built.
    pub kernels: usize,
}

/// What a series is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The command line.
    pub command: String,
    /// The commits in words: a range, or a directory of patches.
    pub range: String,
    /// True if the user stopped the series.
    pub interrupted: bool,
}

/// A series of commits.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the series is about.
    pub about: About,
    /// Reasons for which the series may not be the one that was meant.
    pub warnings: Vec<String>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The commits, the oldest first.
    pub rows: Vec<Row>,
    /// The search, if one was asked for.
    pub bisection: Option<Bisection>,
    /// Version, seeds, files and the command that measures the same again.
    pub provenance: Provenance,
}

/// Compares two sides by the layouts that both have. None if there are none.
fn compare(a: &Runs, b: &Runs, terms: &Terms) -> Option<Diff> {
    let [a, b] = several::paired(a, b)?;
    Some(Diff::new(b.command.clone(), &a, &b, terms, Remarks::default()))
}

/// The commits with the same kernel. Of each, the name of the one that was measured before it, which may be a later commit if a search came to that first.
struct Images<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Images<'a> {
    fn of(commits: &'a [(Commit, Outcome)]) -> Self {
        let same = |(commit, outcome): &'a (Commit, Outcome)| match outcome {
            Outcome::Measured(_, Some(other)) => Some((commit.name.as_str(), other.as_str())),
            _ => None,
        };
        Self(commits.iter().filter_map(same).collect())
    }

    /// Returns the name of the first commit that was measured with the kernel of a commit.
    fn image(&self, commit: &'a str) -> &'a str {
        std::iter::successors(Some(commit), |name| self.0.get(name).copied()).last().unwrap_or(commit)
    }
}

impl Series {
    /// Compares the commits, the oldest first.
    pub fn new(
        about: About,
        commits: Vec<(Commit, Outcome)>,
        bisection: Option<Bisection>,
        terms: &Terms,
        remarks: Remarks,
    ) -> Self {
        let mut notes = remarks.notes;
        let mut rows = Vec::new();
        let mut first: Option<&Runs> = None;
        let mut previous: Option<&Runs> = None;
        let same = Images::of(&commits);
        let mut known = BTreeMap::new();
        let limited = Terms { limit: bisection.as_ref().map(|bisection| bisection.above), ..*terms };
        for (commit, outcome) in &commits {
            let mut row = Row {
                commit: commit.clone(),
                status: Status::Untried,
                broken: None,
                side: None,
                same_as: None,
                previous: None,
                first: None,
            };
            match outcome {
                Outcome::Untried => {}
                Outcome::NotBuilt(broken) => (row.status, row.broken) = (Status::NotBuilt, Some(broken.clone())),
                Outcome::NotMeasured(broken) => (row.status, row.broken) = (Status::NotMeasured, Some(broken.clone())),
                Outcome::Measured(runs, _) => {
                    row.status = Status::Measured;
                    row.side = Some(Side::new(runs));
                    match known.entry(same.image(&commit.name)) {
                        Entry::Occupied(earlier) => row.same_as = Some(String::clone(earlier.get())),
                        Entry::Vacant(free) => drop(free.insert(commit.name.clone())),
                    }
                    row.previous = previous.and_then(|previous| compare(previous, runs, terms));
                    row.first = first.and_then(|first| Some(compare(first, runs, &limited)?.verdict));
                    first = first.or(Some(runs));
                    previous = Some(runs);
                }
            }
            for note in row.previous.iter().flat_map(|diff| &diff.notes).filter(|note| !note.contains(&row.commit.name))
            {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
            rows.push(row);
        }
        Self { about, warnings: remarks.warnings, notes, rows, bisection, provenance: remarks.provenance }
    }

    /// Returns the rows with figures.
    pub fn measured(&self) -> impl Iterator<Item = (&Row, &Side)> {
        self.rows.iter().filter_map(|row| Some((row, row.side.as_ref()?)))
    }

    /// Returns the rows that differ from the measured commit before them.
    pub fn changes(&self) -> impl Iterator<Item = (&Row, &Diff)> {
        let differs = |diff: &&Diff| diff.verdict.differs();
        self.rows.iter().filter_map(move |row| Some((row, row.previous.as_ref().filter(differs)?)))
    }
}

/// A comparison in the document.
#[derive(Serialize)]
struct WithPrevious<'a> {
    name: &'a str,
    #[serde(flatten)]
    against: Against<'a>,
}

/// A row in the document.
#[derive(Serialize)]
struct ShownRow<'a> {
    #[serde(flatten)]
    commit: &'a Commit,
    status: Status,
    broken: Option<&'a Broken>,
    same_as: Option<&'a str>,
    mark: Option<Mark>,
    side: Option<&'a Side>,
    previous: Option<WithPrevious<'a>>,
    first: Option<&'a Verdict>,
}

/// A search in the document.
#[derive(Serialize)]
struct ShownBisection<'a> {
    above: f64,
    kernels: usize,
    found: Vec<&'a str>,
    sentence: String,
}

/// The document.
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    warnings: &'a [String],
    summary: String,
    notes: &'a [String],
    command: &'a str,
    range: &'a str,
    interrupted: bool,
    bisection: Option<ShownBisection<'a>>,
    commits: Vec<ShownRow<'a>>,
    provenance: &'a Provenance,
}

impl Serialize for Series {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mark = |number: usize| self.bisection.as_ref().and_then(|bisection| bisection.marks[number]);
        let row = |(number, row): (usize, &'_ Row)| ShownRow {
            commit: &self.rows[number].commit,
            status: row.status,
            broken: self.rows[number].broken.as_ref(),
            same_as: self.rows[number].same_as.as_deref(),
            mark: mark(number),
            side: self.rows[number].side.as_ref(),
            previous: self.rows[number]
                .previous
                .as_ref()
                .map(|diff| WithPrevious { name: &diff.a.name, against: Against::new(diff) }),
            first: self.rows[number].first.as_ref(),
        };
        let bisection = self.bisection.as_ref().map(|bisection| ShownBisection {
            above: bisection.above,
            kernels: bisection.kernels,
            found: self.found().into_iter().map(|row| row.commit.name.as_str()).collect(),
            sentence: self.search_in_words().unwrap_or_default(),
        });
        let document = Document {
            format: FORMAT,
            warnings: &self.warnings,
            summary: self.summary(),
            notes: &self.notes,
            command: &self.about.command,
            range: &self.about.range,
            interrupted: self.about.interrupted,
            bisection,
            commits: self.rows.iter().enumerate().map(row).collect(),
            provenance: &self.provenance,
        };
        document.serialize(serializer)
    }
}
