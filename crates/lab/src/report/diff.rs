//! The page of a diff, built from the same parts as that of an experiment.

use super::ReportError;
use super::compare::{Comparison, Details, lines, shortened};
use super::flame::flame;
use super::headline::Headline;
use super::page::{Section, Table, render};
use super::waterfall::{cycles, waterfall};
use crate::charges::Tally;
use crate::diff::sheets::sheets;
use crate::diff::statistics::Sample;
use crate::diff::{Answer, Diff};
use crate::difference::Change;
use crate::format::Align;
use crate::format::figure;
use ledger::TICKS_PER_CYCLE;

/// Rows per table of changes. Only the first sheet, the totals, is used here.
const NO_LINES: usize = 0;

/// Converts a mean in cycles to a tally in ticks.
fn tally(cycles: &Sample) -> Tally {
    Tally { count: 0, ticks: (cycles.mean * TICKS_PER_CYCLE as f64).round().max(0.0) as u64 }
}

/// Returns the headline: the difference in percent, and its meaning.
fn headline(diff: &Diff) -> Headline {
    let percent = diff.verdict.relative * 100.0;
    let word = match diff.verdict.answer {
        Answer::More => "more cycles",
        Answer::Less => "fewer cycles",
        Answer::Same => "no difference",
        Answer::Noise => "within the noise: no difference established",
    };
    let ratio = match diff.verdict.answer {
        Answer::Same => "0 %".to_owned(),
        Answer::More | Answer::Less | Answer::Noise => {
            format!("{}{} %", if percent < 0.0 { "−" } else { "+" }, figure(percent.abs()))
        }
    };
    Headline { ratio, word: word.to_owned(), published: None, sentence: diff.sentence.clone() }
}

fn overview(diff: &Diff) -> Option<Table> {
    let sheet = sheets(diff, NO_LINES).into_iter().next()?;
    let numbers: Vec<bool> = sheet.headings.iter().map(|(_, side)| *side == Align::Right).collect();
    let headings = sheet.headings.iter().map(|(text, _)| (*text).to_owned()).zip(numbers.iter().copied()).collect();
    let rows = sheet.rows.into_iter().map(|row| row.into_iter().zip(numbers.iter().copied()).collect());
    Some(Table { headings, rows: rows.collect() })
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
    let about = [diff.certainty.clone()].into_iter().chain(diff.notes.iter().cloned());
    let section = Section {
        id: "diff".to_owned(),
        title: diff.command.clone(),
        about: about.chain([format!("A: {}", diff.a.title), format!("B: {}", diff.b.title)]).collect(),
        headline: Some(headline(diff)),
        overview: overview(diff),
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
