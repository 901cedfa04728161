//! The page: what the template is given, and the template.

use super::ReportError;
use super::chart::{self, Bar};
use crate::difference::{self, Change, Difference, Pair};
use crate::format::{change, number, signed, whole_cycles};
use crate::results::{CellResult, Entries, ExperimentResult, Interrupted};
use crate::shown;
use crate::text::{absent, factor};
use crate::{Experiment, flame};
use ledger::TICKS_PER_CYCLE;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;

/// Lines of a list of changes.
const MOST_CHANGES: usize = 15;
/// Lines of a list of a cell's entries.
const MOST_ENTRIES: usize = 10;

#[derive(Serialize)]
struct Page {
    id: String,
    title: String,
    name: String,
    about: Vec<String>,
    source: Option<String>,
    columns: Vec<String>,
    rows: Vec<PageRow>,
    skips: Vec<String>,
    factors: Vec<[String; 3]>,
    pairs: Vec<PagePair>,
    cells: Vec<PageCell>,
}

#[derive(Serialize)]
struct PageRow {
    title: String,
    unit: String,
    scale: Option<String>,
    cells: Vec<PageValue>,
    chart: String,
}

#[derive(Serialize)]
struct PageValue {
    published: Option<String>,
    ours: String,
    ratio: Option<String>,
    /// Whether ours is beyond a factor of 1.5 from the published figure.
    far: bool,
}

#[derive(Serialize)]
struct PagePair {
    from: String,
    to: String,
    within: String,
    cycles: String,
    percent: String,
    sections: Vec<PageSection>,
}

#[derive(Serialize)]
struct PageSection {
    title: String,
    more: usize,
    lines: Vec<PageChange>,
}

#[derive(Serialize)]
struct PageChange {
    share: String,
    cycles: String,
    before: String,
    after: String,
    name: String,
}

#[derive(Serialize)]
struct PageCell {
    title: String,
    command: String,
    failure: Option<String>,
    value: Option<String>,
    lists: Vec<PageList>,
    flame: Option<String>,
}

#[derive(Serialize)]
struct PageList {
    title: &'static str,
    lines: Vec<[String; 4]>,
}

/// Ratios beyond this, or below its inverse, are marked.
const FAR: f64 = 1.5;

fn cycles(ticks: i128) -> String {
    let half = i128::from(TICKS_PER_CYCLE / 2) * ticks.signum();
    signed((ticks + half) / i128::from(TICKS_PER_CYCLE))
}

fn lines(changes: &[Change], total: i128) -> Vec<PageChange> {
    changes
        .iter()
        .take(MOST_CHANGES)
        .map(|change| PageChange {
            share: match total {
                0 => "–".to_owned(),
                total => format!("{:.1}%", change.ticks() as f64 / total as f64 * 100.0),
            },
            cycles: cycles(change.ticks()),
            before: number(change.before.count),
            after: number(change.after.count),
            name: change.name.clone(),
        })
        .collect()
}

fn pair(experiment: &Experiment, result: &ExperimentResult, pair: &Pair) -> Option<PagePair> {
    let (before, after) = pair.measured(experiment, result)?;
    let difference = Difference::new(before, after);
    let total = difference.total.ticks();
    let section = |title: &str, changes: &[Change]| PageSection {
        title: title.to_owned(),
        more: changes.len().saturating_sub(MOST_CHANGES),
        lines: lines(changes, total),
    };
    let mut sections = vec![section("what explains it", &difference.causes)];
    sections.extend(difference.sections.iter().map(|found| section(found.title, &found.changes)));
    let (from, to, within) = pair.titles(experiment);
    Some(PagePair {
        from,
        to,
        within,
        cycles: cycles(total),
        percent: change(difference.total.before.ticks, difference.total.after.ticks),
        sections,
    })
}

fn entries(entries: &Entries) -> Vec<PageList> {
    let lists = entries.lists().into_iter().filter(|(_, list)| !list.is_empty());
    lists
        .map(|(title, list)| {
            let mut all: Vec<_> = list.iter().collect();
            all.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.ticks, tally.count)));
            let line = |(name, tally): &(&String, &crate::results::Tally)| {
                let each = tally.ticks.checked_div(tally.count).unwrap_or(0);
                let numbers = [number(whole_cycles(tally.ticks)), number(tally.count), number(whole_cycles(each))];
                let [cycles, count, each] = numbers;
                [cycles, count, each, (*name).clone()]
            };
            PageList { title, lines: all.iter().take(MOST_ENTRIES).map(line).collect() }
        })
        .collect()
}

fn cell(experiment: &Experiment, cell: &CellResult) -> PageCell {
    let row = experiment.rows.iter().find(|row| row.line.id == cell.row);
    let column = experiment.columns.iter().find(|column| column.id == cell.column);
    let title = |found: Option<&str>, id: &str| found.unwrap_or(id).to_owned();
    PageCell {
        title: format!(
            "{}, {}",
            title(row.map(|row| row.line.title.as_str()), &cell.row),
            title(column.map(|column| column.title.as_str()), &cell.column)
        ),
        command: cell.command.clone(),
        failure: cell.failure.clone(),
        value: cell.measured.as_ref().map(|measured| format!("{} {}", measured.figure(), measured.unit)),
        lists: cell.measured.as_ref().map(|measured| entries(&measured.entries)).unwrap_or_default(),
        flame: flame::svg(&cell.cost_tree),
    }
}

fn row(experiment: &Experiment, result: &ExperimentResult, at: usize) -> PageRow {
    let row = &experiment.rows[at];
    let values = |column: usize| {
        let shown = shown::cell(experiment, result, at, column);
        PageValue {
            published: shown.published,
            ours: shown.ours.unwrap_or_else(|| absent(experiment, result, at, column).to_owned()),
            ratio: shown.ratio.map(|ratio| format!("{ratio:.2}")),
            far: shown.ratio.is_some_and(|ratio| !(1.0 / FAR..=FAR).contains(&ratio)),
        }
    };
    let bars: Vec<Bar> = experiment
        .columns
        .iter()
        .enumerate()
        .map(|(column, line)| {
            let [published, ours] = shown::cell(experiment, result, at, column).numbers;
            Bar { label: line.title.clone(), published, ours }
        })
        .collect();
    PageRow {
        title: row.line.title.clone(),
        unit: shown::unit(experiment, at).to_owned(),
        scale: row.scale.clone(),
        cells: (0..experiment.columns.len()).map(values).collect(),
        chart: chart::svg(&bars, shown::unit(experiment, at)),
    }
}

fn page(experiment: &Experiment, result: &ExperimentResult) -> Page {
    let factors = difference::factors(experiment).into_iter().filter_map(|pair| {
        let (published, ours) = pair.factors(experiment, result)?;
        let (from, to, within) = pair.titles(experiment);
        Some([format!("{from} → {to}, {within}"), published.map_or_else(|| "–".to_owned(), factor), factor(ours)])
    });
    let skip = |skip: &crate::experiment::Skip| {
        let (row, column) = (&experiment.rows[skip.row].line.title, &experiment.columns[skip.column].title);
        format!("{row}, {column}: {}", skip.reason)
    };
    Page {
        id: experiment.name.clone(),
        title: experiment.title.clone(),
        name: experiment.name.clone(),
        about: (experiment.about.split("\n\n").filter(|part| !part.is_empty()).map(str::to_owned))
            .chain(shown::note(experiment, result))
            .collect(),
        source: experiment.source.as_ref().map(|source| format!("{} {}", source.text, source.reference)),
        columns: experiment.columns.iter().map(|column| column.title.clone()).collect(),
        rows: (0..experiment.rows.len()).map(|at| row(experiment, result, at)).collect(),
        skips: experiment.skips.iter().map(skip).collect(),
        factors: factors.collect(),
        pairs: difference::pairs(experiment).iter().filter_map(|found| pair(experiment, result, found)).collect(),
        cells: result.cells.iter().map(|found| cell(experiment, found)).collect(),
    }
}

/// One page with everything in it: no file beside it and no network is needed.
pub fn html(
    experiments: &[Experiment],
    results: &[ExperimentResult],
    interrupted: Option<Interrupted>,
) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("report.html", include_str!("report.html"))?;
    let shown = experiments.iter().zip(results).filter(|(_, result)| !result.cells.is_empty());
    let pages: Vec<Page> = shown.map(|(experiment, result)| page(experiment, result)).collect();
    let template = environment.get_template("report.html")?;
    let interrupted = interrupted.map(|interrupted| interrupted.to_string());
    let version = env!("CARGO_PKG_VERSION");
    Ok(template.render(context! { pages => Value::from(Serde(pages)), interrupted, version })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// The page without the drawings of flame graphs, which are another library's.
    fn without_flames(page: &str) -> String {
        let mut out = String::new();
        let mut rest = page;
        while let Some((before, after)) = rest.split_once("srcdoc=\"") {
            out += before;
            out += "srcdoc=\"(flame graph)\"";
            rest = after.split_once('"').map_or("", |(_, rest)| rest);
        }
        out + rest
    }

    #[test]
    fn the_page_is_as_it_should_be() {
        let (experiment, result) = testing::results(4);
        let page = html(&[experiment], &[result], None).unwrap();
        insta::assert_snapshot!(without_flames(&page));
    }

    #[test]
    fn a_page_of_an_interrupted_run_says_so_at_its_head() {
        let (experiment, result) = testing::results(4);
        let early = Interrupted { done: 5, cells: 9 };
        let page = html(&[experiment], &[result], Some(early)).unwrap();
        let (head, _) = page.split_once("<table").unwrap();
        assert!(head.contains("interrupted: 5 of 9 cells"), "{head}");
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let (experiment, result) = testing::results(4);
        let page = html(&[experiment], &[result], None).unwrap();
        assert_eq!(page.matches("<iframe").count(), 4);
        let drawn = page.replace("http://www.w3.org/", "").replace("https://www.w3.org/", "");
        for outside in ["src=\"", "href=\"http", "@import", "url(http", "<link"] {
            assert!(!without_flames(&drawn).contains(outside), "{outside}");
        }
        assert!(page.contains("A sample &lt;of&gt; tolls") && page.contains("name=\"viewport\""));
    }
}
