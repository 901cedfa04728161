//! Several sides as tables with one column each, for the terminal and for Markdown.

use super::{Column, Several};
use crate::charges::Tallies;
use crate::diff::origin::{Origin, among, short};
use crate::diff::sentence::{self, percent};
use crate::diff::sheets::{self, Sheet, command_lines, headings, mark_down, print, rounded};
use crate::diff::{Answer, Diff, Figures, Held, Rests, is_aside};
use crate::difference::Change;
use crate::format::Align::{Left, Right};
use crate::format::{gigahertz, signed};
use crate::markdown::{self, code, plain};
use ledger::TICKS_PER_CYCLE;
use std::collections::BTreeMap;

/// The most sides beside the reference that a table on a terminal has. Further sides are in a table below it, with the reference again.
const ABREAST: usize = 6;
/// Tables of Markdown that are not folded.
const OPEN: usize = 2;

/// A line of a cost: the cycles of the reference, and the changes of each side.
struct Line {
    name: String,
    base: f64,
    changes: Vec<f64>,
}

fn cycles(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_CYCLE as f64
}

impl Several {
    /// Returns the changes of each side, by name and position.
    fn lines<'a>(&'a self, base: impl Fn(&str) -> f64, of: impl Fn(&'a Diff) -> Vec<(&'a str, f64)>) -> Vec<Line> {
        let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (number, column) in self.columns.iter().enumerate() {
            for (name, change) in column.against.iter().flat_map(&of) {
                all.entry(name).or_insert_with(|| vec![0.0; self.columns.len()])[number] = change;
            }
        }
        let line = |(name, changes): (&str, Vec<f64>)| Line { name: name.to_owned(), base: base(name), changes };
        let mut lines: Vec<Line> = all.into_iter().map(line).collect();
        let size = |line: &Line| line.changes.iter().fold(0.0, |most: f64, change| most.max(change.abs()));
        lines.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
        lines
    }

    /// Returns the tables of costs: titles and lines.
    fn costs(&self) -> Vec<(&'static str, Vec<Line>)> {
        let of = |list: &Tallies, name: &str| cycles(list.get(name).map_or(0, |tally| tally.ticks));
        fn changed(list: &[Change]) -> Vec<(&str, f64)> {
            list.iter().map(|change| (&*change.name, change.ticks() as f64 / TICKS_PER_CYCLE as f64)).collect()
        }
        fn by_entry(diff: &Diff) -> Vec<(&str, f64)> {
            diff.entries.iter().map(|entry| (&*entry.name, entry.cycles())).collect()
        }
        vec![
            (
                "What the command paid, by cause",
                self.lines(|name| of(&self.base.causes, name), |diff| changed(&diff.causes)),
            ),
            (
                "What the command paid, by function",
                self.lines(|name| of(&self.base.functions, name), |diff| changed(&diff.functions)),
            ),
            (
                "What the command paid, by entry to the kernel, with everything below",
                self.lines(|name| self.base.entries.get(name).copied().unwrap_or_default(), by_entry),
            ),
            (
                "Other tasks and interrupts, while the command ran",
                self.lines(|name| of(&self.base.meanwhile, name), |diff| changed(&diff.meanwhile)),
            ),
        ]
    }

    /// Returns the columns at some positions.
    fn at<'a>(&'a self, columns: &'a [usize]) -> impl Iterator<Item = &'a Column> {
        columns.iter().map(|number| &self.columns[*number])
    }

    /// Returns the positions of the sides of each table of a terminal.
    fn blocks(&self) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        if all.len() <= ABREAST + 1 {
            return vec![all];
        }
        let others: Vec<usize> = all.into_iter().filter(|number| *number != self.reference).collect();
        others.chunks(ABREAST).map(|chunk| [&[self.reference], chunk].concat()).collect()
    }

    fn whole(&self) -> Vec<usize> {
        (0..self.columns.len()).collect()
    }
}

/// Returns a value for each column, or nothing if no column has one.
fn row(several: &Several, columns: &[usize], name: &str, of: impl Fn(&Column) -> String) -> Option<Vec<String>> {
    let cells: Vec<String> = several.at(columns).map(of).collect();
    let empty = cells.iter().all(String::is_empty);
    (!empty).then(|| std::iter::once(name.to_owned()).chain(cells).collect())
}

/// Returns the heading of each column.
fn names(several: &Several, columns: &[usize]) -> Vec<String> {
    several.at(columns).map(|column| column.side.name.clone()).collect()
}

fn overview_of(several: &Several, columns: &[usize]) -> Sheet {
    let against = |column: &Column, of: &dyn Fn(&Diff) -> String| column.against.as_ref().map_or_else(String::new, of);
    let seconds = |seconds: f64| format!("{seconds:.6} s");
    let mean = |of: fn(&Figures) -> f64| move |column: &Column| rounded(column.side.mean(of));
    let sample = |of: fn(&Column) -> f64| {
        move |column: &Column| if column.side.runs.len() > 1 { rounded(of(column)) } else { String::new() }
    };
    let held = |diff: &Diff| match diff.verdict.held {
        Some(Held::Within) => "passes".to_owned(),
        Some(Held::Exceeded) => "fails".to_owned(),
        Some(Held::Undecided) => "undecided".to_owned(),
        None => String::new(),
    };
    let confidence = |diff: &Diff| {
        let interval = diff.verdict.interval.filter(|_| diff.verdict.answer != Answer::Same);
        interval.map_or_else(String::new, |interval| sentence::confidence(&interval))
    };
    let is_partial = several.columns.iter().any(|column| {
        let compared = column.against.as_ref();
        compared.is_some_and(|diff| {
            diff.b.runs.len() != column.side.runs.len() || diff.b.runs.len() != several.base().runs.len()
        })
    });
    let share = |of: fn(&Rests) -> f64| {
        move |column: &Column| {
            let rests = column.against.as_ref().and_then(|diff| diff.rests.as_ref());
            rests.map_or_else(String::new, |rests| format!("{:.0}%", of(rests) * 100.0))
        }
    };
    let is_modelled = several.comparisons().filter_map(|diff| diff.rests.as_ref()).any(|rests| rests.modelled > 0.0);
    let row = |name: &str, of: &dyn Fn(&Column) -> String| row(several, columns, name, of);
    let limit = several.comparisons().find_map(|diff| diff.verdict.limit);
    let held_name = limit.map_or_else(String::new, |limit| format!("  --fail-above {}%", (limit * 1e8).round() / 1e6));
    let rows = [
        row("cycles of the command, median", &|column| rounded(column.side.cycles.median)),
        row(&format!("  against {}, in pairs", several.base().name), &|column| {
            column.against.as_ref().map_or_else(|| "reference".to_owned(), |diff| sentence::cells(&diff.verdict).0)
        }),
        row("  interval", &|column| against(column, &|diff| sentence::cells(&diff.verdict).1)),
        row("  confidence", &|column| against(column, &confidence)).filter(|_| several.is_uneven()),
        row("  verdict", &|column| against(column, &|diff| sentence::word(&diff.verdict))),
        row(&held_name, &|column| against(column, &held)),
        row("  layouts", &|column| column.side.runs.len().to_string()),
        row("  of them compared", &|column| against(column, &|diff| diff.b.runs.len().to_string()))
            .filter(|_| is_partial),
        row("  mean", &sample(|column| column.side.cycles.mean)),
        row("  lowest", &sample(|column| column.side.cycles.least)),
        row("  highest", &sample(|column| column.side.cycles.most)),
        row("  deviation", &|column| {
            if column.side.runs.len() > 1 { percent(column.side.cycles.spread()) } else { String::new() }
        }),
        row("instructions of the command", &mean(|run| run.instructions as f64)),
        row("cycles of other tasks and interrupts", &mean(|run| run.meanwhile)),
        row("virtual time, beginning to end", &|column| seconds(column.side.mean(|run| run.elapsed))),
        row("  at a frequency of", &|column| gigahertz(column.side.tsc_hz)),
        row("kernel busy before the command", &|column| {
            column.side.settled_after().map_or_else(|| "never".to_owned(), seconds)
        }),
        row("of the change, at measured prices", &share(|rests| rests.measured)),
        row("  at estimates", &share(|rests| rests.estimated)),
        row("  from the model", &share(|rests| rests.modelled)).filter(|_| is_modelled),
        row("  time of instructions", &share(|rests| rests.instructions)),
    ];
    let all = names(several, columns).into_iter().map(|name| (name, Right));
    Sheet {
        title: String::new(),
        headings: headings([("", Left)]).into_iter().chain(all).collect(),
        rows: rows.into_iter().flatten().collect(),
    }
}

/// Returns the first table: the costs of each side, and how it differs from the reference.
pub fn overview(several: &Several) -> Sheet {
    overview_of(several, &several.whole())
}

fn differing_of(several: &Several, columns: &[usize]) -> Option<Sheet> {
    let origins: Vec<&Origin> = several.columns.iter().map(|column| &column.side.origin).collect();
    let mut rows = among(&origins);
    let mut add = |what: &str, values: Vec<String>| {
        if values.iter().any(|value| *value != values[0]) {
            rows.insert(0, (what.to_owned(), values));
        }
    };
    add("files of the host", several.columns.iter().map(|column| column.files.clone()).collect());
    add("command", several.columns.iter().map(|column| column.command.clone()).collect());
    let shown = |(what, values): (String, Vec<String>)| {
        std::iter::once(what).chain(columns.iter().map(|number| values[*number].clone())).collect()
    };
    let all = names(several, columns).into_iter().map(|name| (name, Left));
    (!rows.is_empty()).then(|| Sheet {
        title: "Differences between the sides other than costs".to_owned(),
        headings: headings([("", Left)]).into_iter().chain(all).collect(),
        rows: rows.into_iter().map(shown).collect(),
    })
}

/// Returns the table of what differs between the sides, apart from the costs.
pub fn differing(several: &Several) -> Option<Sheet> {
    differing_of(several, &several.whole())
}

/// Returns a table of costs: the cycles of the reference, and changes of the other sides.
fn cost(several: &Several, title: &str, lines: &[Line], top: usize, columns: &[usize]) -> Option<Sheet> {
    if lines.is_empty() {
        return None;
    }
    let more = if lines.len() > top { format!(" ({top} of {})", lines.len()) } else { String::new() };
    let row = |line: &Line| {
        let cell = |number: &usize| match *number == several.reference {
            true => rounded(line.base),
            false => signed(line.changes[*number].round() as i128),
        };
        columns.iter().map(cell).chain([line.name.clone()]).collect()
    };
    let all = names(several, columns).into_iter().map(|name| (name, Right));
    Some(Sheet {
        title: format!("{title}: cycles of {}, and changes{more}", several.base().name),
        headings: all.chain(headings([("", Left)])).collect(),
        rows: lines.iter().take(top).map(row).collect(),
    })
}

/// Returns the table of what the sides were measured on, without command lines.
fn measured_on(several: &Several, columns: &[usize]) -> Sheet {
    let origin = |column: &Column, of: &dyn Fn(&Origin) -> String| {
        let (own, base) = (of(&column.side.origin), of(&several.base().origin));
        if column.against.is_some() && own == base { "the same".to_owned() } else { own }
    };
    let row = |name: &str, of: &dyn Fn(&Origin) -> String| row(several, columns, name, |column| origin(column, of));
    let mut rows: Vec<Vec<String>> = [
        row("processor", &|origin| format!("{} (profile {})", origin.processor, origin.profile)),
        row("model of time", &|origin| origin.model.clone()),
        row("kernel", &|origin| origin.release.clone().unwrap_or_default()),
        row("image", &|origin| short(&origin.image)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let cell = |column: &Column, of: &dyn Fn(&Column) -> String| {
        let (own, base) = (of(column), of(&several.columns[several.reference]));
        if column.against.is_some() && own == base { "the same".to_owned() } else { own }
    };
    let all = |name: &str, of: &dyn Fn(&Column) -> String| {
        std::iter::once(name.to_owned()).chain(several.at(columns).map(|column| cell(column, of))).collect()
    };
    rows.push(all("files of the host", &|column| column.files.clone()));
    rows.push(all("layouts", &|column| sheets::seeds(&column.side)));
    rows.push(of_all("version", &format!("Tollgate {}", several.provenance.version), columns));
    let all = names(several, columns).into_iter().map(|name| (name, Left));
    Sheet { title: "Measured on".to_owned(), headings: headings([("", Left)]).into_iter().chain(all).collect(), rows }
}

/// Returns a row with a text that holds for all columns.
fn of_all(name: &str, text: &str, columns: &[usize]) -> Vec<String> {
    let mut cells = vec![String::new(); columns.len() + 1];
    cells[0] = name.to_owned();
    cells[1] = text.to_owned();
    cells
}

/// Returns the table of what the sides were measured on.
fn provenance_of(several: &Several, columns: &[usize]) -> Sheet {
    let mut sheet = measured_on(several, columns);
    let lines = [("command", &several.command), ("again", &several.provenance.again)];
    sheet.rows.extend(lines.map(|(name, line)| of_all(name, line, columns)));
    sheet
}

/// Returns the table of what the sides were measured on.
pub fn provenance(several: &Several) -> Sheet {
    provenance_of(several, &several.whole())
}

/// Returns the remarks behind the answers, in their order.
pub fn remarks(several: &Several) -> Vec<String> {
    let decided = |diff: &Diff| diff.decision.as_ref().map(|decision| sentence::decision_on(&diff.b.name, decision));
    let mut lacks: Vec<&str> =
        several.comparisons().filter_map(|diff| diff.rests.as_ref()).map(|rests| rests.lacks).collect();
    lacks.sort_unstable();
    lacks.dedup();
    let lacks = lacks.into_iter().map(|lacks| format!("The time of instructions is that of a model: {lacks}."));
    let certainty = several.certainty().into_iter();
    certainty
        .chain(several.comparisons().filter_map(decided))
        .chain(lacks)
        .chain(several.notes.iter().filter(|note| !is_aside(note)).cloned())
        .collect()
}

/// Returns the remarks on the tables, which stand below them.
pub fn asides(several: &Several) -> impl Iterator<Item = &String> {
    several.notes.iter().filter(|note| is_aside(note))
}

/// Returns the tables for each block of columns, but those of what was measured on.
fn all(several: &Several, top: usize, blocks: &[Vec<usize>]) -> Vec<Sheet> {
    let mut all: Vec<Sheet> = blocks.iter().map(|block| overview_of(several, block)).collect();
    all.extend(blocks.iter().filter_map(|block| differing_of(several, block)));
    match &several.comparisons().collect::<Vec<_>>()[..] {
        // There is room for the counts and the entries of two sides.
        [diff] => all.extend(sheets::costs(diff, top)),
        _ => {
            for (title, lines) in several.costs() {
                all.extend(blocks.iter().filter_map(|block| cost(several, title, &lines, top, block)));
            }
        }
    }
    all
}

/// Returns the tables as text for the terminal.
pub fn text(several: &Several, top: usize) -> String {
    let mut out = String::new();
    several.warnings.iter().for_each(|warning| out += &format!("{warning}\n"));
    several.sentences().for_each(|sentence| out += &format!("{sentence}\n"));
    remarks(several).iter().for_each(|remark| out += &format!("{remark}\n"));
    out.push('\n');
    let width = several.columns.iter().map(|column| column.side.name.chars().count()).max().unwrap_or_default();
    for column in &several.columns {
        let name = &column.side.name;
        let padding = " ".repeat(width.saturating_sub(name.chars().count()));
        out += &format!("{name}{padding}  {}\n", column.side.title);
    }
    print(&mut out, all(several, top, &several.blocks()));
    asides(several).for_each(|aside| out += &format!("\n{aside}\n"));
    print(&mut out, several.blocks().iter().map(|block| provenance_of(several, block)).collect());
    out
}

/// Returns the tables as Markdown for a pull request.
pub fn markdown(several: &Several, top: usize) -> String {
    let mut out = String::new();
    let names: Vec<&str> = several.columns.iter().map(|column| &*column.side.name).collect();
    let sentence = |text: &str| markdown::sentence(text, &names);
    several.warnings.iter().for_each(|warning| out += &format!("> {}\n\n", sentence(warning)));
    several.sentences().for_each(|text| out += &format!("- **{}**\n", sentence(&text)));
    remarks(several).iter().for_each(|remark| out += &format!("\n{}\n", sentence(remark)));
    out.push('\n');
    for column in &several.columns {
        out += &format!("- {}: {}\n", plain(&column.side.name), code(&column.side.title));
    }
    out += &command_lines(&several.command, &several.provenance);
    mark_down(&mut out, all(several, top, &[several.whole()]), OPEN);
    asides(several).for_each(|aside| out += &format!("\n{}\n", sentence(aside)));
    mark_down(&mut out, vec![measured_on(several, &several.whole())], 0);
    out
}
