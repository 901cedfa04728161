//! The page of a series of commits: a trend with a line for each commit, and a section for each change.

use super::ReportError;
use super::diff::{section as of_diff, table, titled};
use super::headline::Headline;
use super::page::{Section, render};
use super::trend::{self, Line, Trend};
use crate::diff::Diff;
use crate::diff::series::{Row, Series, Status};
use crate::format::counted;

fn kind(row: &Row) -> &'static str {
    if row.status == Status::Measured { trend::kind(row.previous.as_ref()) } else { "absent" }
}

/// Returns the anchor of the section about a change.
fn anchor(row: &Row) -> String {
    format!("commit:{}", row.commit.name)
}

fn trend(series: &Series) -> Trend {
    let found = series.found();
    let line = |row: &Row| Line {
        name: row.commit.name.clone(),
        subject: row.commit.subject.clone(),
        kind: kind(row),
        found: found.iter().any(|other| other.commit == row.commit),
        position: row.position(),
        differences: row.first.as_ref().map(|verdict| verdict.differences.clone()).unwrap_or_default(),
        change: row.previous.as_ref().map(|diff| diff.verdict.shown()).unwrap_or_default(),
        verdict: row.word(),
        link: row.previous.as_ref().filter(|diff| diff.verdict.differs()).map(|_| anchor(row)),
    };
    let caption = "The cost of each commit, compared with the first one".to_owned();
    Trend::new("commit", caption, series.shown().map(line).collect())
}

/// Returns the headline: the change of the commit that a search has found, or else the largest change.
fn headline(series: &Series) -> Option<Headline> {
    let found = series.found();
    let searched = found.first().filter(|_| found.len() == 1).and_then(|row| row.previous.as_ref());
    let size = |diff: &&Diff| diff.verdict.relative.abs();
    let largest = series.changes().map(|(_, diff)| diff).max_by(|a, b| size(a).total_cmp(&size(b)));
    let diff = searched.or(largest)?;
    let (ratio, word) = diff.short_answer();
    Some(Headline { ratio, word, published: None, sentence: diff.sentence.clone() })
}

/// Returns the page as one HTML file that needs no network.
pub fn series_page(series: &Series) -> Result<String, ReportError> {
    let about = series.search_in_words().into_iter().chain([series.summary()]).chain(series.remarks());
    let broken = series.rows.iter().filter_map(|row| Some((row, row.broken.as_ref()?)));
    let whole = Section {
        id: "series".to_owned(),
        title: series.about.command.clone(),
        headline: headline(series),
        brief: Some(counted(series.rows.len(), "commit", "commits")),
        warnings: series.warnings.clone(),
        about: about.collect(),
        trend: Some(trend(series)),
        wide: Some(table(series.overview(false))),
        folds_words: true,
        notes: broken.map(|(row, broken)| format!("{}: {}", row.commit.name, broken.why)).collect(),
        asides: series.asides().cloned().collect(),
        origin: Some(titled(series.measured_on())),
        files: series.provenance.files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect(),
        ..Section::default()
    };
    let changes = series.changes().map(|(row, diff)| {
        let mut section = Section { origin: None, files: Vec::new(), ..of_diff(diff) };
        section.id = anchor(row);
        section.declared.iter_mut().for_each(|pair| pair.id = format!("{}:a..b", section.id));
        section.title = format!("{}: {}", row.commit.name, row.commit.subject);
        section.folded = true;
        section
    });
    let interrupted = series.about.interrupted.then(|| "interrupted before all commits were tried".to_owned());
    render(&series.about.command, std::iter::once(whole).chain(changes).collect(), interrupted)
}
