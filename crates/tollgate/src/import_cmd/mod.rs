//! `tollgate import`: the VM exits that another program has recorded, in the form of `tollgate report --by exit`, also beside those of a ledger.

mod trace;

use crate::output::say;
use crate::report::select;
use crate::table::{
    Align::{self, Left, Right},
    ROWS, emit, limit, number, read_ledger, table, title,
};
use anyhow::{Context, Result};
use clap::Args;
use ledger::TICKS_PER_CYCLE;
use ledger::stays::Stays;
use ledger::summary::Selection;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use trace::{Exits, Trace, Unknown};

/// Larger than any text that is read, in bytes.
const LARGEST: u64 = 4 << 30;
/// The name of standard input.
const INPUT: &str = "-";
/// A value that a side does not have.
const ABSENT: &str = "–";
/// Beginning of the names of VM exits in ledgers.
const EXIT: &str = "VM exit ";

/// Shows the VM exits that perf or trace-cmd has recorded on hardware, from each to the next entry, also beside those of a ledger.
#[derive(Args)]
#[command(after_help = "\
Examples:
  perf script --ns -i perf.data.guest | tollgate import -
  trace-cmd report -t trace.dat > trace.txt && tollgate import trace.txt
  perf kvm stat report > stat.txt 2>&1; tollgate import stat.txt --beside guest.ledger
  tollgate import trace.txt --csv > exits.csv

A text has the events kvm_exit and kvm_entry, as perf kvm stat record, perf record -e 'kvm:*' and trace-cmd record -e kvm record them, or the table of perf kvm stat report. The latter has no medians. Lines that are not understood are counted, and the first is shown.

Exit status: 0, or 126 if the text has no VM exits.")]
pub struct ImportArgs {
    /// The text: what perf script, trace-cmd report, ftrace or perf kvm stat report prints; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Shows the exits of a ledger beside them
    #[arg(long, value_name = "LEDGER")]
    beside: Option<PathBuf>,
    /// Restricts the ledger to a region of interest
    #[arg(long, value_name = "NAME", requires = "beside")]
    region: Option<String>,
    /// Rows of the table; 0 for all [default: 25; with --json and --csv: 0]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Prints comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    count: u64,
    total: f64,
    most: f64,
    quantiles: Option<[f64; 2]>,
}

impl Times {
    fn mean(&self) -> f64 {
        self.total / self.count.max(1) as f64
    }

    /// Returns count, total, mean, median, 99th percentile and maximum.
    fn figures(&self) -> [Option<f64>; 6] {
        let [median, p99] = self.quantiles.map_or([None; 2], |all| all.map(Some));
        [Some(self.count as f64), Some(self.total), Some(self.mean()), median, p99, Some(self.most)]
    }
}

impl From<&Exits> for Times {
    fn from(exits: &Exits) -> Self {
        let micro = |nanoseconds: f64| nanoseconds / 1000.0;
        let Exits { count, total, most, quantiles } = exits;
        Self { count: *count, total: micro(*total), most: micro(*most), quantiles: quantiles.map(|all| all.map(micro)) }
    }
}

/// Names of the figures.
const FIGURES: [&str; 6] = ["count", "total", "mean", "median", "p99", "max"];

/// Returns the exits of a ledger by their reason, of all levels together.
fn of_ledger(selection: Selection, describe: impl Fn(ledger::Entry) -> String, tsc_hz: u64) -> BTreeMap<String, Times> {
    let mut all: BTreeMap<String, Stays> = BTreeMap::new();
    for ((_, entry), stays) in selection.exits() {
        let name = describe(entry);
        all.entry(name.strip_prefix(EXIT).unwrap_or(&name).to_owned()).or_default().merge(&stays);
    }
    let micro = |ticks: f64| ticks / TICKS_PER_CYCLE as f64 / tsc_hz as f64 * 1e6;
    let times = |stays: &Stays| {
        let quantile = |part| micro(stays.durations.quantile(part).unwrap_or_default());
        Times {
            count: stays.count(),
            total: micro(stays.sum.ticks as f64),
            most: quantile(1.0),
            quantiles: Some([quantile(0.5), quantile(0.99)]),
        }
    };
    all.iter().map(|(name, stays)| (name.clone(), times(stays))).collect()
}

/// A reason with its times on hardware and in the ledger.
type Line = (String, Option<Times>, Option<Times>);

/// Joins both by the reason, the largest sum first.
fn joined(theirs: &Trace, ours: &BTreeMap<String, Times>) -> Vec<Line> {
    let mut names: Vec<&String> = theirs.exits.keys().chain(ours.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let line = |name: &String| (name.clone(), theirs.exits.get(name).map(Times::from), ours.get(name).copied());
    let mut lines: Vec<Line> = names.into_iter().map(line).collect();
    let sum = |(_, theirs, ours): &Line| theirs.or(*ours).map_or(0.0, |times| times.total);
    let known = |(_, theirs, _): &Line| theirs.is_none();
    lines.sort_by(|a, b| known(a).cmp(&known(b)).then(sum(b).total_cmp(&sum(a))).then_with(|| a.0.cmp(&b.0)));
    lines
}

/// Formats a time in microseconds.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |value| format!("{value:.2}"))
}

fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.2}%", part / whole * 100.0) } else { ABSENT.to_owned() }
}

/// Returns true if no row of a column has a value.
fn is_empty(column: usize, rows: &[Vec<String>]) -> bool {
    rows.iter().all(|row| row[column] == ABSENT)
}

/// Returns the cells of the exits of one side.
fn cells(times: Option<Times>, whole: f64) -> Vec<String> {
    let Some(times) = times else { return vec![ABSENT.to_owned(); 7] };
    let [_, figures @ ..] = times.figures();
    let first = [share(times.total, whole), number(times.count)];
    first.into_iter().chain(figures.map(shown)).collect()
}

/// Returns the remarks below the table.
fn remarks(trace: &Trace, lines: &[Line], beside: bool) -> Vec<String> {
    let open = match trace.open {
        0 => None,
        1 => Some("1 exit is not followed by an entry and is not counted.".to_owned()),
        open => Some(format!("{} exits are not followed by an entry and are not counted.", number(open))),
    };
    let nothing = beside && lines.iter().all(|(_, _, ours)| ours.is_none());
    let nothing = nothing.then(|| {
        "The ledger has no VM exits: its guest ran without a hypervisor, or they are not in the region.".to_owned()
    });
    let whole = trace.whole_microseconds.then(|| {
        "The text has whole microseconds; perf script --ns and trace-cmd report -t print nanoseconds.".to_owned()
    });
    let unknown = trace.remark().map(|remark| format!("{remark}."));
    [open, nothing, whole, unknown].into_iter().flatten().collect()
}

fn text(lines: &[Line], trace: &Trace, asked: bool, top: usize) -> String {
    // A ledger without exits leaves room for the sum and the maximum.
    let beside = asked && lines.iter().any(|(_, _, ours)| ours.is_some());
    let sum = |of: &dyn Fn(&Line) -> Option<Times>| lines.iter().filter_map(of).map(|times| times.total).sum::<f64>();
    let whole = [sum(&|line: &Line| line.1), sum(&|line: &Line| line.2)];
    let rows: Vec<Vec<String>> = lines
        .iter()
        .take(limit(top))
        .map(|(name, theirs, ours)| {
            let mut row = cells(*theirs, whole[0]);
            if beside {
                // The sum and the maximum say little of another machine.
                let of = cells(*ours, whole[1]);
                row = vec![&row[0], &of[0], &row[1], &of[1], &row[3], &of[3], &row[4], &of[4], &row[5], &of[5]]
                    .into_iter()
                    .cloned()
                    .collect();
            }
            row.push(name.clone());
            row
        })
        .collect();
    let mut out = String::new();
    title(&mut out, "From VM exit to entry, in microseconds", rows.len(), lines.len());
    let headings: Vec<&str> = match beside {
        false => vec!["share", "count", "total", "mean", "median", "p99", "max"],
        true => vec!["share", "count", "mean", "median", "p99"],
    };
    let mut headings: Vec<(String, Align)> = match beside {
        false => headings.iter().map(|heading| ((*heading).to_owned(), Right)).collect(),
        true => {
            let both = |(number, heading): (usize, &&str)| {
                // Beside a column without values the other one says what it has.
                let ours = if is_empty(2 * number, &rows) { format!("{heading}, ledger") } else { "ledger".to_owned() };
                [(*heading).to_owned(), ours]
            };
            headings.iter().enumerate().flat_map(both).map(|heading| (heading, Right)).collect()
        }
    };
    headings.push(("exit".to_owned(), Left));
    // The table of perf kvm stat has no medians, and a ledger may have no exits.
    let kept: Vec<usize> = (0..headings.len()).filter(|column| rows.is_empty() || !is_empty(*column, &rows)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| kept.iter().map(|at| row[*at].clone()).collect()).collect();
    let headings: Vec<(&str, Align)> = kept.iter().map(|at| (headings[*at].0.as_str(), headings[*at].1)).collect();
    table(&mut out, &headings, &rows);
    for remark in remarks(trace, lines, asked) {
        out += &format!("\n{remark}\n");
    }
    out.trim_start_matches('\n').to_owned()
}

fn document(lines: &[Line], trace: &Trace, top: usize) -> Value {
    let side = |times: Option<Times>| {
        times.map(|times| {
            FIGURES
                .iter()
                .zip(times.figures())
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
        })
    };
    let line = |(name, theirs, ours): &Line| json!({ "reason": name, "trace": side(*theirs), "ledger": side(*ours) });
    let all: Vec<Value> = lines.iter().take(limit(top)).map(line).collect();
    let unknown = trace.unknown.as_ref();
    let unknown =
        unknown.map(|Unknown { count, line, text }| json!({ "lines": count, "of": trace.lines, "first": { "line": line, "text": text } }));
    json!({ "format": 1, "unit": "us", "without_entry": trace.open, "whole_microseconds": trace.whole_microseconds, "not_understood": unknown, "exits": all })
}

fn csv(lines: &[Line], beside: bool, top: usize) -> String {
    let mut out = String::new();
    let names = |of: &'static str| FIGURES.iter().map(move |name| format!("{of}{name}"));
    let ours = names("ledger_").filter(|_| beside);
    lab::csv::row(&mut out, std::iter::once("reason".to_owned()).chain(names("")).chain(ours));
    for (name, theirs, ours) in lines.iter().take(limit(top)) {
        let of = |times: &Option<Times>| times.map_or([None; 6], |times| times.figures());
        let figures = of(theirs).into_iter().chain(of(ours).into_iter().filter(|_| beside));
        lab::csv::row(&mut out, std::iter::once(name.clone()).chain(figures.map(lab::csv::number)));
    }
    out
}

/// Reads the text.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    if path != Path::new(INPUT) {
        return crate::input::read(path, LARGEST);
    }
    crate::input::read_stream(std::io::stdin().lock(), LARGEST, "standard input")
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> Result<()> {
    let name = if args.file == Path::new(INPUT) { "standard input".into() } else { args.file.display().to_string() };
    let trace = trace::read(&bytes(&args.file)?).with_context(|| format!("{name} can't be imported"))?;
    let ours = match &args.beside {
        None => BTreeMap::new(),
        Some(path) => {
            let ledger = read_ledger(path)?;
            let selection = select(&ledger, args.region.as_deref())?;
            of_ledger(selection, |entry| ledger.describe_entry(entry), ledger.header.tsc_hz)
        }
    };
    let lines = joined(&trace, &ours);
    let (beside, all) = (args.beside.is_some(), args.top.unwrap_or(0));
    if let Some(remark) = trace.remark() {
        say(&format!("tollgate: {name}: {remark}"));
    }
    emit(&match () {
        () if args.json => format!("{:#}\n", document(&lines, &trace, all)),
        () if args.csv => csv(&lines, beside, all),
        () => text(&lines, &trace, beside, args.top.unwrap_or(ROWS)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let exits = |count, total, most, quantiles| Exits { count, total, most, quantiles };
        let all = [
            ("EPT_VIOLATION", exits(2, 4_500.0, 3_000.0, Some([1_500.0, 3_000.0]))),
            ("HLT", exits(1, 900_000.0, 900_000.0, None)),
        ];
        let exits = all.into_iter().map(|(name, exits)| (name.to_owned(), exits)).collect();
        Trace { exits, open: 1, lines: 9, ..Trace::default() }
    }

    fn ours() -> BTreeMap<String, Times> {
        let times = Times { count: 3, total: 6.0, most: 3.0, quantiles: Some([2.0, 3.0]) };
        [("CPUID".to_owned(), times), ("EPT_VIOLATION".to_owned(), times)].into()
    }

    #[test]
    fn the_tables_read_well() {
        let alone = joined(&trace(), &BTreeMap::new());
        insta::assert_snapshot!("import", text(&alone, &trace(), false, 0));
        let both = joined(&trace(), &ours());
        insta::assert_snapshot!("import_beside", text(&both, &Trace { open: 0, ..trace() }, true, 0));
        let csv = csv(&both, true, 0);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[1], "HLT,1,900,900,,,900,,,,,,");
        assert_eq!(lines[3], "CPUID,,,,,,,3,6,2,2,3,3");
        let value = document(&both, &trace(), 0);
        assert_eq!((&value["exits"][1]["ledger"]["mean"], &value["exits"][0]["ledger"]), (&2.0.into(), &Value::Null));
    }

    #[test]
    fn a_column_without_values_is_left_out_and_what_was_not_understood_is_said() {
        let mut table = trace();
        table.exits.values_mut().for_each(|exits| exits.quantiles = None);
        table.unknown = Some(Unknown { count: 2, line: 7, text: "HLT 7x".to_owned() });
        insta::assert_snapshot!("import_table", text(&joined(&table, &ours()), &table, true, 0));
        let alone = text(&joined(&table, &BTreeMap::new()), &table, true, 0);
        assert!(!alone.contains("ledger  ") && alone.contains("The ledger has no VM exits"), "{alone}");
        assert!([" total ", " max "].iter().all(|column| alone.contains(column)), "{alone}");
        let value = document(&joined(&table, &ours()), &table, 0);
        let unknown = json!({ "lines": 2, "of": 9, "first": { "line": 7, "text": "HLT 7x" } });
        assert_eq!(value["not_understood"], unknown);
        assert_eq!(document(&joined(&trace(), &ours()), &trace(), 0)["not_understood"], Value::Null);
    }

    #[test]
    fn exits_of_a_ledger_have_the_names_of_the_kernel() {
        let ledger = crate::report::tests::exits("hvm");
        let all = of_ledger(ledger.all(), |entry| ledger.describe_entry(entry), ledger.header.tsc_hz);
        assert!(all.contains_key("CPUID"), "{:?}", all.keys());
    }
}
