//! The functions of call stacks: the weight of each with all that it calls and its own, its callers and its callees.

use crate::table::{
    Align::{Left, Right},
    cycles, limit, number, share, table, title,
};
use crate::usage::WrongArguments;
use anyhow::{Result, bail};
use ledger::summary::CallStack;
use ledger::{Amount, pattern};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Weights of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weights {
    /// Of all stacks that have the function.
    total: u64,
    /// Of those in which it is the innermost one.
    own: u64,
}

/// Functions with their weights, the heaviest first.
type Lines = Vec<(String, Weights)>;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Ticks of time, which are shown as cycles.
    Ticks,
    /// Crossings.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Ticks => "ticks",
            Self::Count => "count",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Ticks => "cycles",
            Self::Count => "count",
        }
    }

    fn text(self, weight: u64) -> String {
        match self {
            Self::Ticks => cycles(weight),
            Self::Count => number(weight),
        }
    }
}

/// Returns the weight of all stacks.
pub fn whole(stacks: &[CallStack]) -> u64 {
    stacks.iter().fold(0, |sum, stack| sum.saturating_add(stack.weight))
}

fn ordered(weights: BTreeMap<&str, Weights>) -> Lines {
    let mut lines: Lines = weights.into_iter().map(|(name, weights)| (name.to_owned(), weights)).collect();
    lines.sort_by(|(a, x), (b, y)| (y.total, y.own).cmp(&(x.total, x.own)).then_with(|| a.cmp(b)));
    lines
}

/// Sums the stacks by function. The first name of a stack is its task.
fn functions(stacks: &[CallStack]) -> Lines {
    let mut weights: BTreeMap<&str, Weights> = BTreeMap::new();
    for CallStack { names, weight } in stacks {
        let frames = names.get(1..).unwrap_or_default();
        // A function that calls itself is in the stack more than once, and counts once.
        for name in frames.iter().collect::<BTreeSet<_>>() {
            let of = weights.entry(name).or_default();
            of.total = of.total.saturating_add(*weight);
        }
        if let Some(name) = frames.last() {
            let of = weights.entry(name).or_default();
            of.own = of.own.saturating_add(*weight);
        }
    }
    ordered(weights)
}

/// Returns the ticks of each function with all that it calls, and its own in place of a count.
pub fn with_callees(stacks: &[CallStack]) -> BTreeMap<String, Amount> {
    let line = |(name, weights): (String, Weights)| (name, Amount { count: weights.own, ticks: weights.total });
    functions(stacks).into_iter().map(line).collect()
}

/// A function between its callers and its callees.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sandwich {
    names: Vec<String>,
    weights: Weights,
    callers: Lines,
    callees: Lines,
}

/// Looks at the functions that a pattern names as at one. Weights of callers and callees are of the stacks in which they stand beside it.
fn sandwich(stacks: &[CallStack], named: &str) -> Sandwich {
    let is_it = |name: &str| pattern::matches(named, name);
    let mut found = Sandwich::default();
    let mut names = BTreeSet::new();
    let (mut callers, mut callees) = (BTreeMap::new(), BTreeMap::new());
    for CallStack { names: frames, weight } in stacks {
        let places: Vec<usize> = (1..frames.len()).filter(|place| is_it(&frames[*place])).collect();
        if places.is_empty() {
            continue;
        }
        found.weights.total = found.weights.total.saturating_add(*weight);
        names.extend(places.iter().map(|place| frames[*place].clone()));
        let before: BTreeSet<&str> = places.iter().map(|place| frames[place - 1].as_str()).collect();
        let behind: BTreeSet<&str> =
            places.iter().filter_map(|place| frames.get(place + 1)).map(String::as_str).collect();
        if places.last() == Some(&(frames.len() - 1)) {
            found.weights.own = found.weights.own.saturating_add(*weight);
        }
        for (list, beside) in [(&mut callers, before), (&mut callees, behind)] {
            for name in beside.into_iter().filter(|name| !is_it(name)) {
                let of: &mut Weights = list.entry(name).or_default();
                of.total = of.total.saturating_add(*weight);
            }
        }
    }
    Sandwich { names: names.into_iter().collect(), callers: ordered(callers), callees: ordered(callees), ..found }
}

fn line(name: &str, weights: Weights) -> Value {
    json!({ "name": name, "total": weights.total, "own": weights.own })
}

/// Returns the functions as JSON, `top` of them.
pub fn document(stacks: &[CallStack], of: Option<&str>, unit: Unit, region: Option<&str>, top: usize) -> Result<Value> {
    let mut document = json!({ "unit": unit.name(), "region": region, "whole": whole(stacks) });
    match of {
        None => {
            let lines: Vec<Value> =
                functions(stacks).iter().take(top).map(|(name, weights)| line(name, *weights)).collect();
            document["functions"] = lines.into();
        }
        Some(named) => {
            let found = looked_up(stacks, named)?;
            let beside = |lines: &Lines| -> Vec<Value> {
                lines.iter().take(top).map(|(name, weights)| json!({ "name": name, "total": weights.total })).collect()
            };
            document["names"] = json!(found.names);
            document["total"] = found.weights.total.into();
            document["own"] = found.weights.own.into();
            document["callers"] = beside(&found.callers).into();
            document["callees"] = beside(&found.callees).into();
        }
    }
    Ok(document)
}

/// Returns the functions as comma-separated values, `top` of them.
pub fn csv(stacks: &[CallStack], unit: Unit, top: usize) -> String {
    let mut out = String::new();
    let headings = ["name".to_owned(), format!("total_{}", unit.name()), format!("own_{}", unit.name())];
    lab::csv::row(&mut out, headings);
    for (name, weights) in functions(stacks).into_iter().take(top) {
        lab::csv::row(&mut out, [name, weights.total.to_string(), weights.own.to_string()]);
    }
    out
}

/// Returns a function between its callers and callees. An unknown one is an error, which names others.
fn looked_up(stacks: &[CallStack], named: &str) -> Result<Sandwich> {
    const SHOWN: usize = 8;
    let found = sandwich(stacks, named);
    if found.names.is_empty() {
        let known = functions(stacks);
        let more = if known.len() > SHOWN { ", ..." } else { "" };
        let names: Vec<&str> = known.iter().take(SHOWN).map(|(name, _)| name.as_str()).collect();
        let text = format!("no call stack has the function '{named}'; the heaviest are: {}{more}", names.join(", "));
        bail!(WrongArguments::new(text));
    }
    Ok(found)
}

/// Returns the functions as text, with `top` rows in each table; 0 for all.
pub fn text(stacks: &[CallStack], of: Option<&str>, unit: Unit, heading: &str, top: usize) -> Result<String> {
    let all = whole(stacks);
    let mut out = format!("{heading}\n");
    let Some(named) = of else {
        let lines = functions(stacks);
        let count = lines.len();
        let rows: Vec<Vec<String>> = lines
            .into_iter()
            .take(limit(top))
            .map(|(name, of)| {
                vec![share(of.total, all), share(of.own, all), unit.text(of.total), unit.text(of.own), name]
            })
            .collect();
        title(&mut out, "Functions, with their total cost, including callees, and their own cost", rows.len(), count);
        let headings = [("total", Right), ("own", Right), (unit.heading(), Right), ("own", Right), ("function", Left)];
        table(&mut out, &headings, &rows);
        return Ok(out);
    };
    let found = looked_up(stacks, named)?;
    let Weights { total, own } = found.weights;
    out += &format!(
        "\n{}\n  with all that it calls  {}  {}\n  its own                 {}  {}\n",
        found.names.join(", "),
        share(total, all),
        unit.text(total),
        share(own, all),
        unit.text(own)
    );
    for (name, lines) in [("Called by", found.callers), ("Calls", found.callees)] {
        let count = lines.len();
        let row = |(name, of): (String, Weights)| vec![share(of.total, total), unit.text(of.total), name];
        let rows: Vec<Vec<String>> = lines.into_iter().take(limit(top)).map(row).collect();
        title(&mut out, name, rows.len(), count);
        table(&mut out, &[("share", Right), (unit.heading(), Right), ("function", Left)], &rows);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> Vec<CallStack> {
        let stack = |names: &str, weight| CallStack { names: names.split(';').map(str::to_owned).collect(), weight };
        vec![
            stack("work;main;vfs_write;copy", 60_000),
            stack("work;main;vfs_read;copy", 30_000),
            stack("work;main;walk;walk;walk;copy", 6_000),
            stack("work;main;walk;walk", 3_000),
            stack("swapper/0;idle", 1_000),
        ]
    }

    #[test]
    fn a_function_counts_once_in_a_stack() {
        let all = functions(&stacks());
        let of = |name: &str| all.iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!(of("main"), Weights { total: 99_000, own: 0 });
        assert_eq!(of("walk"), Weights { total: 9_000, own: 3_000 });
        assert_eq!(of("copy"), Weights { total: 96_000, own: 96_000 });
        assert_eq!(all[0].0, "main");
        assert!(!all.iter().any(|(name, _)| name == "work"), "a task is no function");
        assert_eq!(all.iter().map(|(_, of)| of.own).sum::<u64>(), whole(&stacks()));
    }

    #[test]
    fn callers_and_callees_stand_beside_the_function() {
        let copy = sandwich(&stacks(), "copy");
        let names = |lines: &Lines| lines.iter().map(|(name, of)| format!("{name} {}", of.total)).collect::<Vec<_>>();
        assert_eq!(names(&copy.callers), ["vfs_write 60000", "vfs_read 30000", "walk 6000"]);
        assert_eq!((copy.callees.len(), copy.weights), (0, Weights { total: 96_000, own: 96_000 }));
        // A call of itself is neither a caller nor a callee.
        let walk = sandwich(&stacks(), "walk");
        assert_eq!(
            (names(&walk.callers), names(&walk.callees)),
            (vec!["main 9000".to_owned()], vec!["copy 6000".to_owned()])
        );
        // Several functions are looked at as one.
        let vfs = sandwich(&stacks(), "vfs_*");
        assert_eq!((vfs.names.len(), vfs.weights.total, vfs.callees.len()), (2, 90_000, 1));
        // Who calls the outermost function is the task.
        assert_eq!(names(&sandwich(&stacks(), "main").callers), ["work 99000"]);
    }

    #[test]
    fn both_tables_read_well() {
        insta::assert_snapshot!("functions", text(&stacks(), None, Unit::Ticks, "A heading", 4).unwrap());
        insta::assert_snapshot!("sandwich", text(&stacks(), Some("walk"), Unit::Count, "A heading", 0).unwrap());
        let error = text(&stacks(), Some("wlak"), Unit::Ticks, "", 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "no call stack has the function 'wlak'; the heaviest are: main, copy, vfs_write, vfs_read, walk, idle"
        );
        assert_eq!(csv(&stacks(), Unit::Ticks, 2), "name,total_ticks,own_ticks\nmain,99000,0\ncopy,96000,96000\n");
        let value = document(&stacks(), Some("walk"), Unit::Ticks, None, 9).unwrap();
        assert_eq!((&value["own"], &value["callers"][0]["name"]), (&3_000.into(), &"main".into()));
    }
}
