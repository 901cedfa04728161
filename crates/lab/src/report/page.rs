//! The HTML page: the data for the template, and the template with its style sheet and script.

use super::ReportError;
use super::compare::{self, Badge, Comparison, Details};
use super::entries::Entries;
use super::headline::{Headline, headline};
use super::interval::Drawn;
use super::plot::{FAR, Plot, plot};
use super::trend::Trend;
use crate::Experiment;
use crate::difference;
use crate::experiment::Skip;
use crate::results::{CellResult, ExperimentResult, Interrupted};
use crate::shown;
use crate::text::asked;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, HtmlEscape, Value, context};
use serde::Serialize;

/// Number of characters shown of a hash. The tooltip has the whole hash.
const SHORT_HASH: usize = 12;

/// An experiment, a comparison of two kernels, or a series of commits.
#[derive(Default, Serialize)]
pub struct Section {
    /// HTML anchor.
    pub id: String,
    /// Heading.
    pub title: String,
    /// True if the page shows only the answer until a reader opens the rest: one of several comparisons.
    pub folded: bool,
    /// True if tables of texts are closed until a reader opens them.
    pub folds_words: bool,
    /// Ratio and sentence at the top.
    pub headline: Option<Headline>,
    /// Text of the section in the list of sections, if the section has no headline.
    pub brief: Option<String>,
    /// Confidence in the prices behind the headline.
    pub trust: Option<Badge>,
    /// Reasons for which the comparison may not be the one that was meant.
    pub warnings: Vec<String>,
    /// The interval of the ratio.
    pub interval: Option<Drawn>,
    /// A line for each commit of a series.
    pub trend: Option<Trend>,
    /// Paragraphs that describe it.
    pub about: Vec<String>,
    /// Source of the published figures.
    pub source: Option<String>,
    /// Totals of both sides.
    pub overview: Option<Table>,
    /// Totals of several sides: a table that may be wider than the window.
    pub wide: Option<Table>,
    /// What differs between both sides, with its heading.
    pub differs: Option<(String, Table)>,
    /// Remarks on the tables.
    pub asides: Vec<String>,
    /// What both sides were measured on, with its heading.
    pub origin: Option<(String, Table)>,
    /// The files of the host that the command could read: path, hash.
    pub files: Vec<(String, String)>,
    /// Entries to the kernel on both sides.
    pub entries: Option<Entries>,
    /// Our values beside the published figures.
    pub rows: Vec<Plot>,
    /// Notes on the results.
    pub notes: Vec<String>,
    /// Comparisons that the experiment declares.
    pub declared: Vec<Comparison>,
    /// The leading comparison.
    pub lead: Option<Comparison>,
    /// Full details of the leading comparison.
    pub details: Option<Details>,
    /// Origins of the values.
    pub cells: Vec<Cell>,
    /// Data for the script, which compares any two cells.
    pub data: Option<String>,
}

/// A small table. Each text comes with a flag that is true for numbers.
#[derive(Serialize)]
pub struct Table {
    /// Column headings.
    pub headings: Vec<(String, bool)>,
    /// Rows.
    pub rows: Vec<Vec<(String, bool)>>,
}

/// The origin of a value.
#[derive(Serialize)]
pub struct Cell {
    title: String,
    value: Option<String>,
    failure: Option<String>,
    unnamed: Vec<String>,
    command: String,
    hashes: Vec<Hash>,
    profile: Option<String>,
}

#[derive(Serialize)]
struct Hash {
    name: &'static str,
    short: String,
    full: String,
}

fn hash(name: &'static str, full: &str) -> Hash {
    Hash { name, short: full.chars().take(SHORT_HASH).collect(), full: full.to_owned() }
}

fn cell(experiment: &Experiment, cell: &CellResult) -> Cell {
    let provenance = cell.provenance.as_ref();
    Cell {
        title: cell.title(experiment),
        value: cell.measured.as_ref().map(|measured| format!("{} {}", measured.figure(), measured.unit)),
        failure: cell.failure.clone(),
        unnamed: cell.unnamed.clone(),
        command: cell.command.clone(),
        hashes: provenance
            .map(|known| vec![hash("cell", &known.fingerprint), hash("ledger", &known.ledger)])
            .unwrap_or_default(),
        profile: provenance.map(|known| known.profile.clone()),
    }
}

/// Encodes JSON for a script element.
fn embedded(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn section(experiment: &Experiment, result: &ExperimentResult) -> Section {
    let skip = |skip: &Skip| {
        let (row, column) = (&experiment.rows[skip.row].line.title, &experiment.columns[skip.column].title);
        format!("n/a: {row}, {column}: {}.", skip.reason)
    };
    let [rows, columns] = asked(experiment, result);
    let skips = experiment.skips.iter().filter(|skip| rows.contains(&skip.row) && columns.contains(&skip.column));
    let factors = difference::factors(experiment);
    let leading = factors.iter().find(|pair| pair.measured(experiment, result).is_some());
    let lead = leading.and_then(|pair| compare::comparison(experiment, result, pair));
    Section {
        headline: leading.and_then(|pair| headline(experiment, result, pair)),
        trust: leading.and_then(|pair| compare::comparison(experiment, result, pair)?.trust),
        id: experiment.name.clone(),
        title: experiment.title.clone(),
        about: experiment.about.split("\n\n").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        source: experiment.source.as_ref().map(|source| format!("{} {}", source.text, source.reference)),
        notes: (shown::note(experiment, result).into_iter())
            .chain(shown::frequencies(result))
            .chain(skips.map(skip))
            .collect(),
        rows: rows.iter().map(|row| plot(experiment, result, *row, &columns)).collect(),
        declared: factors.iter().filter_map(|pair| compare::comparison(experiment, result, pair)).collect(),
        lead,
        details: leading.and_then(|pair| compare::details(experiment, result, pair)),
        cells: result.cells.iter().map(|found| cell(experiment, found)).collect(),
        data: Some(embedded(&compare::data(experiment, result))),
        ..Section::default()
    }
}

/// Renders a page of sections.
pub fn render(title: &str, sections: Vec<Section>, interrupted: Option<String>) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_filter("whole", |text: &str| Value::from_safe_string(whole(text)));
    environment.add_filter("prose", |text: &str| Value::from_safe_string(prose(text)));
    environment.add_template("page.html", concat!(include_str!("parts.html"), include_str!("page.html")))?;
    let template = environment.get_template("page.html")?;
    let page = template.render(context! {
        title,
        sections => Value::from(Serde(sections)),
        interrupted,
        far => FAR,
        version => env!("CARGO_PKG_VERSION"),
        style => super::STYLE,
        script => include_str!("page.js"),
    })?;
    Ok(squeezed(&page))
}

/// Units that stay on the line of their number.
const UNITS: [&str; 10] = ["s", "ms", "µs", "ns", "k", "M", "G", "KiB", "MiB", "GiB"];

/// Returns a text as HTML in which no line ends between a number and its unit, or within the name of an option.
fn whole(text: &str) -> String {
    let mut html = String::new();
    let mut number = false;
    for (at, word) in text.split(' ').enumerate() {
        if at > 0 {
            let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', ':', '.', ')', ']']));
            html.push(if number && is_unit { '\u{a0}' } else { ' ' });
        }
        number = word.ends_with(|c: char| c.is_ascii_digit());
        let dashes = word.find('-').filter(|at| word[..*at].chars().all(|c| matches!(c, '`' | '(' | '[')));
        let name = dashes.map(|at| {
            let length = word[at..].find(|c: char| c != '-' && !c.is_ascii_alphanumeric());
            (at, length.map_or(word.len(), |length| at + length))
        });
        let is_name = |text: &str| text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
        html += &match name.filter(|(from, to)| is_name(&word[*from..*to])) {
            Some((from, to)) => {
                let [before, name, after] =
                    [&word[..from], &word[from..to], &word[to..]].map(|part| HtmlEscape(part).to_string());
                format!("{before}<span class=\"whole\">{name}</span>{after}")
            }
            None => HtmlEscape(word).to_string(),
        };
    }
    html
}

/// Returns a text as HTML, with the parts between two backticks as code. A backtick without a second one stays.
fn prose(text: &str) -> String {
    let escaped = whole(text);
    let mut parts = escaped.split('`');
    let mut html = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        html += &match parts.next() {
            Some(after) => format!("<code>{part}</code>{after}"),
            None => format!("`{part}"),
        };
    }
    html
}

/// Removes the empty lines that the template leaves.
fn squeezed(page: &str) -> String {
    page.lines().filter(|line| !line.trim().is_empty()).map(|line| format!("{line}\n")).collect()
}

/// Returns one self-contained page, which needs no other file and no network.
pub fn html(
    experiments: &[Experiment],
    results: &[ExperimentResult],
    interrupted: Option<Interrupted>,
) -> Result<String, ReportError> {
    let shown = experiments.iter().zip(results).filter(|(_, result)| !result.cells.is_empty());
    let sections: Vec<Section> = shown.map(|(experiment, result)| section(experiment, result)).collect();
    let title = sections.iter().map(|section| section.id.as_str()).collect::<Vec<_>>().join(", ");
    render(&title, sections, interrupted.map(|interrupted| interrupted.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Returns the page without the contents of an element.
    fn without(page: &str, begin: &str, end: &str) -> String {
        let (head, rest) = page.split_once(begin).unwrap();
        let (_, tail) = rest.split_once(end).unwrap();
        format!("{head}{begin}{end}{tail}")
    }

    #[test]
    fn the_page_is_as_it_should_be() {
        let (experiment, result) = testing::results(4);
        let page = html(&[experiment], &[result], None).unwrap();
        let page = without(&without(&page, "<style>", "</style>"), "<script>", "</script>");
        insta::assert_snapshot!(page);
    }

    #[test]
    fn what_stands_between_backticks_is_code() {
        assert_eq!(
            prose("its parameter `a<b`: is `a` meant?"),
            "its parameter <code>a&lt;b</code>: is <code>a</code> meant?"
        );
        assert_eq!(prose("a ` and `b`"), "a <code> and </code>b`");
        assert_eq!(prose("one ` alone"), "one ` alone");
        assert_eq!(prose("none"), "none");
        let text = "`mitigation=off` has no effect".to_owned();
        let section = Section { warnings: vec![text.clone()], about: vec![text], ..Section::default() };
        let page = render("title", vec![section], None).unwrap();
        assert_eq!(page.matches("<code>mitigation=off</code> has no effect").count(), 2);
    }

    #[test]
    fn a_cell_says_what_has_no_names() {
        let (experiment, result) = testing::results(4);
        let said =
            "11.1% of the time is spent in code of programs without names: the ledger does not contain the reason";
        assert_eq!(result.cells[0].unnamed, [said]);
        assert!(html(&[experiment], &[result], None).unwrap().contains(&format!("<dd class=\"soft\">{said}</dd>")));
    }

    #[test]
    fn what_was_not_asked_for_is_not_in_the_page() {
        let (experiment, mut result) = testing::results(4);
        let text = |experiment: &Experiment, result: &ExperimentResult| {
            let section = section(experiment, result);
            let data = section.data.clone().unwrap();
            (render("title", vec![section], None).unwrap().replace(&data, ""), data)
        };
        let others = ["exits", "native", "KVM after", "nothing to leave"];
        let (page, data) = text(&experiment, &result);
        assert!(others.iter().all(|other| page.contains(&format!(">{other}<")) || page.contains(&format!("{other}."))));
        assert!(data.contains("KVM after"));
        result.cells.retain(|cell| (cell.row.as_str(), cell.column.as_str()) == ("switch", "before"));
        let (page, data) = text(&experiment, &result);
        assert!(page.contains("KVM before") && page.contains("61.18"), "the published figure of what was run stays");
        for other in others {
            assert!(!page.contains(&format!(">{other}<")) && !page.contains(&format!("{other}.")), "{other}: {page}");
            assert!(!data.contains(&format!("\"{other}\"")), "{other}: {data}");
        }
    }

    #[test]
    fn a_page_of_an_interrupted_run_says_so_at_its_head() {
        let (experiment, result) = testing::results(4);
        let early = Interrupted { done: 5, cells: 9, layouts: None };
        let page = html(&[experiment], &[result], Some(early)).unwrap();
        let (head, _) = page.split_once("<table").unwrap();
        assert!(head.contains("interrupted: 5 of 9 cells"), "{head}");
    }

    #[test]
    fn a_name_without_spaces_does_not_widen_the_page() {
        // A symbol of hundreds of characters stands in sentences, titles and lists.
        assert!(super::super::STYLE.contains("h1, h2, h3, p, caption, dt, dd { overflow-wrap: anywhere }"));
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let (experiment, result) = testing::results(4);
        let page = html(&[experiment], &[result], None).unwrap();
        for outside in ["src=", "href=\"http", "@import", "url(", "<link", "<iframe", "fetch("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("A sample &lt;of&gt; tolls") && page.contains("name=\"viewport\""));
    }

    #[test]
    fn data_cannot_end_the_element_that_it_is_in() {
        assert_eq!(embedded(&serde_json::json!(["</script><!--"])), "[\"\\u003c/script>\\u003c!--\"]");
    }

    #[test]
    fn units_and_options_stay_whole() {
        assert_eq!(whole("12.5 s, 3 M; 2 to 4 <"), "12.5\u{a0}s, 3\u{a0}M; 2 to 4 &lt;");
        assert_eq!(whole("`--a=x -- b`"), "`<span class=\"whole\">--a</span>=x -- b`");
        assert_eq!(whole("a--b (--jobs) i-- --"), "a--b (<span class=\"whole\">--jobs</span>) i-- --");
        assert_eq!(whole("[ $i -lt -8 - ]"), "[ $i <span class=\"whole\">-lt</span> -8 - ]");
        assert_eq!(prose("see `diff --load`"), "see <code>diff <span class=\"whole\">--load</span></code>");
    }
}
