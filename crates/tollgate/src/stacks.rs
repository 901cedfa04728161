//! Call stacks in `tollgate report`: as a tree, as folded lines, and as a flame graph.

use crate::functions::{self, Unit};
use crate::output::{self, OutputFile};
use crate::table::{
    Align::{Left, Right},
    ROWS, cycles, emit, limit, number, share, table,
};
use crate::usage::WrongArguments;
use anyhow::{Result, bail};
use clap::Args;
use lab::flame;
use ledger::Ledger;
use ledger::summary::{CallTree, Selection, Weigh};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Options of `tollgate report` for call stacks.
#[derive(Args)]
pub struct StacksArgs {
    /// Shows the call stacks of a run with --sample or --call-graph as a tree, from the task to the innermost function
    #[arg(long, conflicts_with_all = ["by", "top", "what_if"])]
    stacks: bool,
    /// Selects the call stacks of crossings of a kind, such as `MOV CR3` or `syscall`, instead of samples
    #[arg(long, value_name = "KIND", conflicts_with_all = ["by", "what_if"])]
    event: Option<String>,
    /// Shows the functions of the call stacks, with their total cost, including callees, and their own cost. With --csv and --top as for other tables
    #[arg(long, conflicts_with_all = ["by", "what_if", "stacks", "folded", "svg", "top_down"])]
    functions: bool,
    /// Shows who calls a function, and what it calls. With the wildcards * and ?, several functions are treated as one
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["by", "what_if", "stacks", "folded", "svg", "top_down", "csv", "functions"])]
    of: Option<String>,
    /// Prints each stack as a line `task;function;function weight`, the input of flame graph scripts
    #[arg(long, conflicts_with_all = ["by", "top", "what_if", "json"])]
    folded: bool,
    /// Writes a flame graph of the stacks as SVG
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "top", "what_if"])]
    svg: Option<PathBuf>,
    /// Hides branches of the tree below this share
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5, value_parser = parse_percent)]
    percent_limit: f64,
}

impl StacksArgs {
    /// Returns the option that writes a file, with this file.
    pub fn output(&self) -> Option<output::Named<'_>> {
        output::named("--svg", &self.svg)
    }
}

/// Parses a share of the whole.
fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("a number from 0 to 100".into()),
    }
}

impl StacksArgs {
    /// Returns true if the report is about stacks.
    pub fn wanted(&self) -> bool {
        self.stacks || self.folded || self.event.is_some() || self.svg.is_some() || self.functions || self.of.is_some()
    }
}

/// Returns the weight of stacks that the options select.
pub fn weigh(ledger: &Ledger, event: Option<&str>) -> Result<Weigh> {
    let Some(usual) = ledger.weigh() else {
        bail!(
            "the ledger has no call stacks: run the guest with --sample 10us, or with --call-graph for those of crossings"
        );
    };
    let Some(event) = event else { return Ok(usual) };
    if !ledger.stacks.keeps.crossings {
        bail!("the ledger has no call stacks of crossings: run the guest with --call-graph");
    }
    let kinds = ledger.kinds_called(event);
    if kinds.is_empty() {
        let names: Vec<String> = ledger.kinds_with_stacks().into_iter().map(|kind| ledger.describe(kind)).collect();
        let text = format!("the ledger has no crossing '{event}' with call stacks; it has: {}", names.join(", "));
        bail!(WrongArguments::new(text));
    }
    Ok(Weigh::Kinds(kinds))
}

/// The form of a report.
pub struct Form {
    /// True for JSON.
    pub json: bool,
    /// True for comma-separated values.
    pub csv: bool,
    /// Number of rows, if the user sets one.
    pub top: Option<usize>,
}

/// Prints the report.
pub fn run(args: &StacksArgs, ledger: &Ledger, selection: Selection, region: Option<&str>, form: &Form) -> Result<()> {
    let weigh = weigh(ledger, args.event.as_deref())?;
    let stacks = selection.call_stacks(&weigh);
    let as_json = form.json;
    if args.functions || args.of.is_some() {
        let (of, unit) = (args.of.as_deref(), if matches!(weigh, Weigh::Kinds(_)) { Unit::Count } else { Unit::Ticks });
        let all = limit(form.top.unwrap_or(0));
        return emit(&match form {
            Form { csv: true, .. } => functions::csv(&stacks, unit, all),
            Form { json: true, .. } => format!("{:#}\n", functions::document(&stacks, of, unit, region, all)?),
            _ => functions::text(&stacks, of, unit, &heading(ledger, &weigh), form.top.unwrap_or(ROWS))?,
        });
    }
    if let Some(path) = &args.svg {
        let unit = if matches!(weigh, Weigh::Kinds(_)) { "crossings" } else { "cycles" };
        let Some(svg) = flame::svg(&flame::folded(&stacks, &weigh), unit) else {
            bail!("the selection has no call stacks to draw");
        };
        OutputFile::create(path, "flame graph")?.write(svg.as_bytes())?;
    }
    if args.folded {
        return emit(&flame::folded(&stacks, &weigh).into_iter().map(|line| line + "\n").collect::<String>());
    }
    if as_json {
        let lines: Vec<Value> =
            stacks.iter().map(|stack| json!({ "frames": stack.names, "weight": stack.weight })).collect();
        let unit = if matches!(weigh, Weigh::Kinds(_)) { "count" } else { "ticks" };
        return emit(&format!("{:#}\n", json!({ "unit": unit, "region": region, "stacks": lines })));
    }
    if !args.stacks && args.svg.is_some() {
        return Ok(());
    }
    emit(&text(ledger, &CallTree::of(&stacks), &weigh, args.percent_limit))
}

/// Says what the stacks are weighed by.
fn heading(ledger: &Ledger, weigh: &Weigh) -> String {
    match weigh {
        Weigh::Samples => format!("Call stacks by time, in samples of {} cycles", cycles(ledger.stacks.keeps.interval)),
        Weigh::Crossings => "Call stacks of crossings, by their cycles".to_owned(),
        Weigh::Kinds(kinds) => {
            let names: Vec<String> = kinds.iter().map(|kind| ledger.describe(*kind)).collect();
            format!("Call stacks of {}", names.join(", "))
        }
    }
}

/// Formats the tree as a table: a single callee stands below its caller, several are indented.
fn text(ledger: &Ledger, tree: &CallTree, weigh: &Weigh, percent: f64) -> String {
    let heading = heading(ledger, weigh);
    let amount = |weight| if matches!(weigh, Weigh::Kinds(_)) { number(weight) } else { cycles(weight) };
    let least = (tree.total as f64 * percent / 100.0).ceil() as u64;
    let mut rows = Vec::new();
    // An explicit stack in place of recursion: a guest's stacks may be deep.
    let mut waiting: Vec<(&str, &CallTree, usize)> =
        tree.heaviest().into_iter().rev().map(|(name, node)| (name, node, 0)).collect();
    while let Some((name, node, depth)) = waiting.pop() {
        if node.total < least.max(1) {
            continue;
        }
        let name = format!("{}{name}", "  ".repeat(depth));
        rows.push(vec![share(node.total, tree.total), share(node.own, tree.total), amount(node.total), name]);
        let called = node.heaviest();
        let deeper = depth + usize::from(called.len() > 1 || node.own >= least.max(1));
        waiting.extend(called.into_iter().rev().map(|(name, node)| (name, node, deeper)));
    }
    let mut out = format!("{heading}\n\n");
    let what = if matches!(weigh, Weigh::Kinds(_)) { "count" } else { "cycles" };
    table(&mut out, &[("total", Right), ("own", Right), (what, Right), ("stack", Left)], &rows);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::summary::CallStack;

    #[test]
    fn the_tree_reads_well() {
        let ledger = crate::report::tests::sample(1);
        let stack = |names: &str, weight| CallStack { names: names.split(';').map(str::to_owned).collect(), weight };
        let stacks = [
            stack("work;main;do_syscall_64;vfs_write;sock_write_iter", 60_000),
            stack("work;main;do_syscall_64;vfs_read;sock_read_iter;schedule", 30_000),
            stack("work;main", 9_000),
            stack("work;rare", 1),
            stack("swapper/0;do_idle", 1_000),
        ];
        insta::assert_snapshot!(text(&ledger, &CallTree::of(&stacks), &Weigh::Crossings, 0.5));
    }

    #[test]
    fn a_share_is_from_0_to_100() {
        assert_eq!(["0", "0.5", "100"].map(parse_percent), [Ok(0.0), Ok(0.5), Ok(100.0)]);
        assert!(["-1", "nan", "inf", "100.1", "", "5%"].into_iter().all(|text| parse_percent(text).is_err()));
    }

    #[test]
    fn a_ledger_without_stacks_says_how_to_get_some() {
        let error = weigh(&crate::report::tests::sample(1), None).unwrap_err();
        assert!(error.to_string().contains("--sample"), "{error}");
    }
}
