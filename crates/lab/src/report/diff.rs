//! The page of a diff, of two sides or of several, built from the same parts as that of an experiment.

use super::ReportError;
use super::compare::{Comparison, Details, lines, shortened};
use super::entries::entries;
use super::flame::flame;
use super::headline::Headline;
use super::interval::interval;
use super::page::{Section, Table, render};
use super::trend::{self, Line, Trend};
use super::waterfall::{cycles, waterfall};
use crate::charges::Tally;
use crate::diff::sentence::word;
use crate::diff::several::{self, Several};
use crate::diff::sheets::{self, Sheet};
use crate::diff::statistics::Sample;
use crate::diff::{Diff, Position};
use crate::difference::Change;
use crate::format::{Align, counted};
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

pub(super) fn table(sheet: Sheet) -> Table {
    let numbers: Vec<bool> = sheet.headings.iter().map(|(_, side)| *side == Align::Right).collect();
    let headings = sheet.headings.iter().map(|(text, _)| text.clone()).zip(numbers.iter().copied()).collect();
    let rows = sheet.rows.into_iter().map(|row| row.into_iter().zip(numbers.iter().copied()).collect());
    Table { headings, rows: rows.collect() }
}

/// Returns a table with its title. A row with a single value for all sides ends behind it.
pub(super) fn titled(mut sheet: Sheet) -> (String, Table) {
    for row in &mut sheet.rows {
        if row.iter().skip(2).all(String::is_empty) {
            row.truncate(2);
        }
    }
    (sheet.title.clone(), table(sheet))
}

/// Returns the section of a comparison.
pub(super) fn section(diff: &Diff) -> Section {
    let (from, to) = (&diff.a.name, &diff.b.name);
    let total =
        Change { name: "all".to_owned(), before: tally(&diff.a.cycles), after: tally(&diff.b.cycles), trust: None };
    let comparison = Comparison {
        from: from.clone(),
        to: to.clone(),
        within: format!("{} → {}", diff.a.title, diff.b.title),
        id: "diff:a..b".to_owned(),
        cells: None,
        headline: None,
        cycles: cycles(total.ticks()),
        trust: None,
        waterfall: waterfall(from, to, &total, &diff.causes),
    };
    let lists = [
        ("cause", &diff.causes[..]),
        ("top-down", &diff.top_down[..]),
        ("function", &diff.functions[..]),
        ("other tasks and interrupts", &diff.meanwhile[..]),
    ];
    let [a, b] = &diff.stacks;
    let about = sheets::remarks(diff).cloned();
    Section {
        id: "diff".to_owned(),
        title: diff.command.clone(),
        about: about.chain([format!("{from}: {}", diff.a.title), format!("{to}: {}", diff.b.title)]).collect(),
        warnings: diff.warnings.clone(),
        headline: Some(headline(diff)),
        interval: interval(&diff.verdict),
        overview: sheets::sheets(diff, NO_LINES).into_iter().next().map(table),
        differs: sheets::differing(diff).map(titled),
        origin: Some(titled(sheets::provenance(diff))),
        files: diff.provenance.files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect(),
        asides: sheets::asides(diff).cloned().collect(),
        entries: entries(&diff.entries, [from, to]),
        declared: vec![comparison],
        details: Some(Details {
            flame: flame(&shortened(&a.lines), &shortened(&b.lines)),
            call_stacks: a.call_stacks && b.call_stacks,
            lines: lines(&lists, total.ticks()),
        }),
        ..Section::default()
    }
}

/// Returns the page as one HTML file that needs no network.
pub fn diff_page(diff: &Diff) -> Result<String, ReportError> {
    render(&diff.command, vec![section(diff)], None)
}

/// Draws the sides beside the reference.
fn trend(several: &Several) -> Trend {
    let mut compared = 0;
    let line = |column: &several::Column| {
        let verdict = column.against.as_ref().map(|diff| &diff.verdict);
        compared += usize::from(verdict.is_some());
        Line {
            name: column.side.name.clone(),
            subject: column.side.title.clone(),
            kind: trend::kind(column.against.as_ref()),
            found: false,
            position: Some(verdict.map(Position::of).unwrap_or_default()),
            differences: verdict.map(|verdict| verdict.differences.clone()).unwrap_or_default(),
            change: verdict.map(|verdict| verdict.shown()).unwrap_or_default(),
            verdict: verdict.map_or_else(|| "the reference".to_owned(), word),
            link: verdict.map(|_| format!("diff{compared}")),
        }
    };
    let uneven = if several.is_uneven() { ", in intervals of unequal confidence" } else { "" };
    let caption = format!("The cost of each side, compared with the reference{uneven}");
    Trend::new("side", caption, several.columns.iter().map(line).collect())
}

/// Returns the page of several sides: a section with all of them, and one for each comparison.
pub fn several_page(several: &Several) -> Result<String, ReportError> {
    let titles = several.columns.iter().map(|column| format!("{}: {}", column.side.name, column.side.title));
    let sentences = several.sentences();
    let whole = Section {
        id: "sides".to_owned(),
        brief: Some(counted(several.columns.len(), "side", "sides")),
        title: several.command.clone(),
        warnings: several.warnings.clone(),
        about: sentences.chain(several::remarks(several)).chain(titles).collect(),
        trend: Some(trend(several)),
        wide: Some(table(several::overview(several))),
        folds_words: true,
        differs: several::differing(several).map(titled),
        asides: several::asides(several).cloned().collect(),
        origin: Some(titled(several::provenance(several))),
        files: several.provenance.files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect(),
        ..Section::default()
    };
    let compared = several.comparisons().enumerate().map(|(number, diff)| {
        let mut section = Section { origin: None, files: Vec::new(), ..section(diff) };
        section.id = format!("diff{}", number + 1);
        section.declared.iter_mut().for_each(|pair| pair.id = format!("{}:a..b", section.id));
        section.title = format!("{} against {}", diff.b.name, diff.a.name);
        section.folded = true;
        section
    });
    render(&several.command, std::iter::once(whole).chain(compared).collect(), None)
}
