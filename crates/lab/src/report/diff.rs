//! The page of a diff, built from the same parts as that of an experiment.

use super::ReportError;
use super::compare::{Comparison, Details, lines, shortened};
use super::entries::entries;
use super::flame::flame;
use super::headline::Headline;
use super::interval::interval;
use super::page::{Section, Table, render};
use super::waterfall::{cycles, waterfall};
use crate::charges::Tally;
use crate::diff::Diff;
use crate::diff::sheets::{self, Sheet};
use crate::diff::statistics::Sample;
use crate::difference::Change;
use crate::format::Align;
use ledger::TICKS_PER_CYCLE;

/// Rows per table of changes. Only the first sheet, the totals, is used here.
const NO_LINES: usize = 0;

/// Converts a mean in cycles to a tally in ticks.
fn tally(cycles: &Sample) -> Tally {
    Tally { count: 0, ticks: (cycles.mean * TICKS_PER_CYCLE as f64).round().max(0.0) as u64 }
}

/// Returns the headline: the difference in percent, and its meaning.
fn headline(diff: &Diff) -> Headline {
    let (ratio, word) = diff.short_answer();
    Headline { ratio, word, published: None, sentence: diff.sentence.clone() }
}

fn table(sheet: Sheet) -> Table {
    let numbers: Vec<bool> = sheet.headings.iter().map(|(_, side)| *side == Align::Right).collect();
    let headings = sheet.headings.iter().map(|(text, _)| (*text).to_owned()).zip(numbers.iter().copied()).collect();
    let rows = sheet.rows.into_iter().map(|row| row.into_iter().zip(numbers.iter().copied()).collect());
    Table { headings, rows: rows.collect() }
}

fn titled(sheet: Sheet) -> (String, Table) {
    (sheet.title.clone(), table(sheet))
}

/// Returns the page as one HTML file that needs no network.
pub fn diff_page(diff: &Diff) -> Result<String, ReportError> {
    let total =
        Change { name: "all".to_owned(), before: tally(&diff.a.cycles), after: tally(&diff.b.cycles), trust: None };
    let comparison = Comparison {
        from: "A".to_owned(),
        to: "B".to_owned(),
        within: format!("{} → {}", diff.a.title, diff.b.title),
        id: "diff:a..b".to_owned(),
        cells: None,
        headline: None,
        cycles: cycles(total.ticks()),
        trust: None,
        waterfall: waterfall("A", "B", &total, &diff.causes),
    };
    let lists =
        [("cause", &diff.causes[..]), ("function", &diff.functions[..]), ("others meanwhile", &diff.meanwhile[..])];
    let [a, b] = &diff.stacks;
    let about = sheets::remarks(diff).cloned();
    let section = Section {
        id: "diff".to_owned(),
        title: diff.command.clone(),
        about: about.chain([format!("A: {}", diff.a.title), format!("B: {}", diff.b.title)]).collect(),
        warnings: diff.warnings.clone(),
        headline: Some(headline(diff)),
        interval: interval(&diff.verdict),
        overview: sheets::sheets(diff, NO_LINES).into_iter().next().map(table),
        differs: sheets::differing(diff).map(titled),
        origin: Some(titled(sheets::provenance(diff))),
        files: diff.provenance.files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect(),
        entries: entries(&diff.entries),
        declared: vec![comparison],
        details: Some(Details {
            flame: flame(&shortened(&a.lines), &shortened(&b.lines)),
            call_stacks: a.call_stacks && b.call_stacks,
            lines: lines(&lists, total.ticks()),
        }),
        ..Section::default()
    };
    render(&diff.command, vec![section], None)
}
