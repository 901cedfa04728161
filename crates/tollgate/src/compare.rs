//! `tollgate compare`: shows two runs side by side, the largest change first.

use crate::functions;
use crate::report::{fact, header_document, select, select_task};
use crate::table::{
    Align::{Left, Right},
    change, emit, gigahertz, limit, number, read_ledger, seconds, share, signed, table, whole_cycles,
};
use anyhow::{Context, Result};
use clap::Args;
use ledger::summary::{By, CallStack, Cause, Selection, Weigh};
use ledger::{Amount, Ledger};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Shows two runs side by side, the largest change first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate compare before.ledger after.ledger
  tollgate compare pti.ledger nopti.ledger --region ssdd --top 40
  tollgate compare 6.1.ledger 6.12.ledger --task hackbench
  tollgate compare before.ledger after.ledger --json | jq .totals")]
pub struct CompareArgs {
    /// Ledger of the first run
    #[arg(value_name = "A")]
    before: PathBuf,
    /// Ledger of the second run
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Prints the complete comparison as JSON
    #[arg(long)]
    json: bool,
    /// Rows per table; 0 for all
    #[arg(long, value_name = "N", default_value_t = 25)]
    top: usize,
    /// Restricts the comparison to a region of interest
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Restricts the comparison to the tasks of a name, with the wildcards * and ?, or to the process or thread of a number
    #[arg(long, value_name = "COMM|PID")]
    task: Option<String>,
}

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<()> {
    let (before, after) = (read_ledger(&args.before)?, read_ledger(&args.after)?);
    let region = args.region.as_deref();
    let selected = |ledger, path: &PathBuf| {
        let selection = select(ledger, region).and_then(|all| select_task(all, args.task.as_deref()));
        selection.with_context(|| path.display().to_string())
    };
    let two = [(&before, selected(&before, &args.before)?), (&after, selected(&after, &args.after)?)];
    let parts = [("region", &args.region), ("task", &args.task)];
    let parts: Vec<(&str, &str)> =
        parts.into_iter().filter_map(|(what, name)| Some((what, name.as_deref()?))).collect();
    if args.json {
        emit(&format!("{:#}\n", document(two, &parts)))?
    } else {
        emit(&text(two, &parts, args.top))?
    }
    for (ledger, path) in [(&before, &args.before), (&after, &args.after)] {
        ledger.verify().with_context(|| format!("{} contradicts itself", path.display()))?;
    }
    Ok(())
}

type Two<'a> = [(&'a Ledger, Selection<'a>); 2];

/// A line with its charges in both runs.
struct Change {
    name: String,
    before: Amount,
    after: Amount,
}

impl Change {
    /// Returns the difference in rounded cycles, so that the shown figures add up.
    fn cycles(&self) -> i128 {
        i128::from(whole_cycles(self.after.ticks)) - i128::from(whole_cycles(self.before.ticks))
    }
}

/// Returns the lines of both runs by name, the largest change first.
fn changes(before: BTreeMap<String, Amount>, after: BTreeMap<String, Amount>) -> Vec<Change> {
    let mut both: BTreeMap<String, (Amount, Amount)> =
        before.into_iter().map(|(name, amount)| (name, (amount, Amount::default()))).collect();
    for (name, amount) in after {
        both.entry(name).or_default().1 = amount;
    }
    let mut changes: Vec<Change> =
        both.into_iter().map(|(name, (before, after))| Change { name, before, after }).collect();
    changes.sort_by(|a, b| {
        let order = |change: &Change| {
            (change.before.ticks.abs_diff(change.after.ticks), change.before.count.abs_diff(change.after.count))
        };
        order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name))
    });
    changes
}

/// Returns the lines that differ between the runs, the largest change first.
fn changed(before: BTreeMap<String, Amount>, after: BTreeMap<String, Amount>) -> Vec<Change> {
    let mut changes = changes(before, after);
    changes.retain(|change| change.before != change.after);
    changes
}

/// Title of the part of crossings that exists only under a hypervisor.
const EXITS: &str = "of these, VM exits and entries";
const OPERATIONS: &str = "of these, hypervisor";

fn totals((ledger, selection): (&Ledger, Selection)) -> Vec<(String, Amount)> {
    let total = selection.total();
    let of = |cause| (ledger.describe_cause(cause), total.of(cause));
    vec![
        of(Cause::Instructions),
        ("crossings".to_owned(), total.crossings()),
        (EXITS.to_owned(), total.exits()),
        (OPERATIONS.to_owned(), total.operations()),
        of(Cause::TlbMisses),
        of(Cause::CacheMisses),
        of(Cause::Splits),
        of(Cause::Mispredictions),
        of(Cause::Halted),
        ("all".to_owned(), Amount { count: 0, ticks: total.ticks }),
    ]
}

/// Returns charges by kind, without halted time, which is the rest of the time.
fn kinds((ledger, selection): (&Ledger, Selection)) -> BTreeMap<String, Amount> {
    let busy = selection.kinds().into_iter().filter(|(kind, _)| Cause::of(*kind) != Cause::Halted);
    let mut kinds: BTreeMap<String, Amount> = BTreeMap::new();
    for (kind, amount) in busy {
        let sum = kinds.entry(ledger.describe(kind)).or_default();
        sum.count = sum.count.saturating_add(amount.count);
        sum.ticks = sum.ticks.saturating_add(amount.ticks);
    }
    kinds
}

/// Returns instructions and cycles by symbol, without halted time.
fn symbols((_, selection): (&Ledger, Selection)) -> BTreeMap<String, Amount> {
    selection.busy(By::Symbol)
}

/// Returns instructions and cycles by task name, without halted time.
fn tasks((_, selection): (&Ledger, Selection)) -> BTreeMap<String, Amount> {
    selection.busy(By::Comm)
}

/// Returns the ticks without halted time.
fn busy((_, selection): (&Ledger, Selection)) -> u64 {
    let total = selection.total();
    total.ticks.saturating_sub(total.of(Cause::Halted).ticks)
}

/// Returns the call stacks of both runs by time, if both have them.
fn stacks(two: Two) -> Option<[Vec<CallStack>; 2]> {
    let of = |(ledger, selection): (&Ledger, Selection)| {
        let weigh = ledger.weigh().filter(|weigh| matches!(weigh, Weigh::Samples))?;
        Some(selection.call_stacks(&weigh))
    };
    Some([of(two[0])?, of(two[1])?])
}

/// Returns the shares of a line in both runs, and their difference in percentage points.
fn shares(change: &Change, whole: [u64; 2]) -> [String; 3] {
    let parts = [change.before.ticks, change.after.ticks];
    let [before, after] = [0, 1].map(|run| share(parts[run], whole[run]));
    // The difference is that of the shown figures.
    let part = |run: usize| (parts[run] as f64 / whole[run] as f64 * 10_000.0).round() as i64;
    let points = match whole.contains(&0) {
        true => String::new(),
        false => match part(1) - part(0) {
            0 => "0".to_owned(),
            points => format!("{:+.2}", points as f64 / 100.0),
        },
    };
    [before, after, points]
}

/// Returns the comparison as text. `parts` are the restrictions of both runs, with their titles.
fn text(two: Two, parts: &[(&str, &str)], top: usize) -> String {
    let mut out = String::new();
    let columns = [("", Left), ("before", Right), ("after", Right)];
    let headers = two.map(|(ledger, _)| &ledger.header);
    let mut rows = vec![
        row("processor", headers.map(|h| h.profile.clone())),
        row("frequency", headers.map(|h| gigahertz(h.tsc_hz))),
        row("virtual CPUs", headers.map(|h| number(h.clocks.len() as u64))),
        row(
            "virtual time",
            headers.map(|h| format!("{:.6} s", seconds(h.clocks.iter().copied().max().unwrap_or(0), h.tsc_hz))),
        ),
    ];
    let keys: std::collections::BTreeSet<&String> = headers.iter().flat_map(|h| h.metadata.keys()).collect();
    let longest = keys.iter().map(|key| key.chars().count()).max().unwrap_or(0);
    let width = longest.max(12) + 2;
    let mut asked: Vec<String> = parts.iter().map(|(what, name)| format!("{what:<width$}{name}\n")).collect();
    let mut same: Vec<Vec<String>> = Vec::new();
    for key in keys {
        let values = headers.map(|h| h.metadata.get(key).map_or_else(|| "-".to_owned(), |value| fact(value)));
        if values[0] == values[1] {
            same.push(vec![key.clone(), values[0].clone()]);
        } else if values.iter().any(|value| value.chars().count() > 32) {
            asked.push(format!("{key:<width$}before: {}\n{:width$}after:  {}\n", values[0], "", values[1]));
        } else {
            rows.push(row(key, values));
        }
    }
    table(&mut out, &columns, &rows);
    if !asked.is_empty() {
        out.push('\n');
        out.extend(asked);
    }
    let [before, after] = two.map(totals);
    let mut lines: Vec<Change> =
        before.into_iter().zip(after).map(|((name, before), (_, after))| Change { name, before, after }).collect();
    if two.iter().all(|(ledger, _)| !ledger.has_guest()) {
        lines.retain(|line| line.name != EXITS && line.name != OPERATIONS);
    }
    // Not every model of time has them.
    let modelled = [Cause::CacheMisses, Cause::Splits].map(|cause| two[0].0.describe_cause(cause));
    let is_there = |line: &Change| line.before != Amount::default() || line.after != Amount::default();
    lines.retain(|line| !modelled.contains(&line.name) || is_there(line));
    let all = two.map(|(_, selection)| selection.total().ticks);
    let busy = two.map(busy);
    section(&mut out, "Time", "count", "", &lines, all, usize::MAX);
    section(&mut out, "Kinds of events", "count", "kind", &changed(kinds(two[0]), kinds(two[1])), busy, limit(top));
    if two.iter().any(|(ledger, _)| ledger.tasks.len() > 1) {
        section(&mut out, "Tasks", "instructions", "task", &changed(tasks(two[0]), tasks(two[1])), busy, limit(top));
    }
    let changes = changed(symbols(two[0]), symbols(two[1]));
    section(&mut out, "Symbols", "instructions", "symbol", &changes, busy, limit(top));
    if let Some([before, after]) = stacks(two) {
        let whole = [&before, &after].map(|stacks| functions::whole(stacks));
        let in_cycles = |(name, of): (String, Amount)| (name, Amount { count: whole_cycles(of.count), ..of });
        let [before, after] =
            [before, after].map(|stacks| functions::with_callees(&stacks).into_iter().map(in_cycles).collect());
        let changes = changed(before, after);
        section(&mut out, "Functions with all that they call", "own cycles", "function", &changes, whole, limit(top));
    }
    if !same.is_empty() {
        out.push_str("\nThe same in both runs\n\n");
        table(&mut out, &[("", Left), ("", Left)], &same);
    }
    out
}

fn row(name: &str, [before, after]: [String; 2]) -> Vec<String> {
    vec![name.to_owned(), before, after]
}

/// Appends a table. `whole` is what the shares are parts of, in both runs.
fn section(out: &mut String, title: &str, count: &str, what: &str, changes: &[Change], whole: [u64; 2], top: usize) {
    if changes.is_empty() {
        out.push_str(&format!("\n{title}: no change\n"));
        return;
    }
    let more = if changes.len() > top { format!(" ({top} of {})", changes.len()) } else { String::new() };
    out.push_str(&format!("\n{title}{more}\n\n"));
    let rows: Vec<Vec<String>> = changes
        .iter()
        .take(top)
        .map(|c| {
            let cycles = [c.before, c.after].map(|amount| number(whole_cycles(amount.ticks)));
            let [before, after] = cycles;
            let percent = change(c.before.ticks, c.after.ticks);
            let counts = [number(c.before.count), number(c.after.count)];
            let [count_before, count_after] = counts;
            let [share_before, share_after, points] = shares(c, whole);
            vec![
                signed(c.cycles()),
                percent,
                before,
                after,
                share_before,
                share_after,
                points,
                count_before,
                count_after,
                c.name.clone(),
            ]
        })
        .collect();
    let [count_before, count_after] = ["before", "after"].map(|when| format!("{count} {when}"));
    let headings = [
        ("change", Right),
        ("", Right),
        ("cycles before", Right),
        ("cycles after", Right),
        ("share before", Right),
        ("share after", Right),
        ("points", Right),
        (count_before.as_str(), Right),
        (count_after.as_str(), Right),
        (what, Left),
    ];
    table(out, &headings, &rows);
}

fn document(two: Two, parts: &[(&str, &str)]) -> Value {
    let list = |changes: Vec<Change>| -> Vec<Value> {
        changes
            .into_iter()
            .map(|c| {
                json!({
                    "name": c.name,
                    "before": { "count": c.before.count, "ticks": c.before.ticks },
                    "after": { "count": c.after.count, "ticks": c.after.ticks },
                })
            })
            .collect()
    };
    let functions = stacks(two).map(|both| {
        let [before, after] = both.map(|stacks| functions::with_callees(&stacks));
        // The stack's own time is not a count.
        let line = |c: Change| {
            let run = |of: Amount| json!({ "total": of.ticks, "own": of.count });
            json!({ "name": c.name, "before": run(c.before), "after": run(c.after) })
        };
        changes(before, after).into_iter().map(line).collect::<Vec<_>>()
    });
    let [before, after] = two.map(|one| totals(one).into_iter().collect());
    let part = |wanted: &str| parts.iter().find(|(what, _)| *what == wanted).map(|(_, name)| *name);
    json!({
        "region": part("region"),
        "task": part("task"),
        "before": header_document(two[0].0),
        "after": header_document(two[1].0),
        "totals": list(changes(before, after)),
        "kinds": list(changes(kinds(two[0]), kinds(two[1]))),
        "symbols": list(changes(symbols(two[0]), symbols(two[1]))),
        "tasks": list(changes(tasks(two[0]), tasks(two[1]))),
        "functions": functions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{guest, sample};

    #[test]
    fn the_comparison_reads_well() {
        let (before, after) = (sample(1), sample(3));
        insta::assert_snapshot!(text([(&before, before.all()), (&after, after.all())], &[], 8));
    }

    #[test]
    fn a_machine_compared_with_a_guest_reads_well() {
        let (before, after) = (sample(1), guest());
        insta::assert_snapshot!(text([(&before, before.all()), (&after, after.all())], &[], 12));
    }

    #[test]
    fn shares_are_of_each_run_and_their_difference_is_that_of_the_shown_figures() {
        let amount = |ticks| Amount { count: 1, ticks };
        let of = |before, after, whole| {
            shares(&Change { name: String::new(), before: amount(before), after: amount(after) }, whole)
        };
        assert_eq!(of(100, 250, [1_000, 2_000]), ["10.00%", "12.50%", "+2.50"]);
        assert_eq!(of(2, 1, [3, 3]), ["66.67%", "33.33%", "-33.34"]);
        assert_eq!(of(5, 10, [10, 20]), ["50.00%", "50.00%", "0"]);
        assert_eq!(of(0, 10, [0, 20]), ["-", "50.00%", ""]);
    }

    #[test]
    fn a_run_compared_with_itself_has_not_changed() {
        let ledger = sample(2);
        let value = document([(&ledger, ledger.all()), (&ledger, ledger.all())], &[]);
        for list in ["totals", "kinds", "symbols", "tasks"] {
            assert!(value[list].as_array().unwrap().iter().all(|line| line["before"] == line["after"]));
        }
    }

    #[test]
    fn what_changed_most_comes_first() {
        let amount = |ticks| Amount { count: 1, ticks };
        let map = |list: &[(&str, u64)]| list.iter().map(|(n, t)| ((*n).to_owned(), amount(*t))).collect();
        let order = changes(map(&[("a", 10), ("b", 500), ("c", 7)]), map(&[("a", 300), ("b", 100), ("d", 8)]));
        assert_eq!(order.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["b", "a", "d", "c"]);
    }
}
