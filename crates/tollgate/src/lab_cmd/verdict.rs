//! The findings of a check as text and as JSON.

use crate::table::{
    Align::{Left, Right},
    counted, number, table, whole_cycles,
};
use lab::check::{Verdict, What};
use lab::failure::groups;
use lab::results::{FORMAT, Interrupted};
use serde_json::json;

fn growth(what: What, before: u64, after: u64) -> [String; 3] {
    let shown = |value: u64| match what {
        What::Count => number(value),
        What::Cycles => number(whole_cycles(value)),
    };
    [shown(before), shown(after), crate::table::change(before, after)]
}

/// Returns the findings as text, with the `top` largest regressions of each cell.
pub fn text(verdict: &Verdict, top: usize) -> String {
    let mut out = String::new();
    let mut rows = Vec::new();
    let mut shown: (&str, usize) = ("", 0);
    let mut more = 0;
    for regression in &verdict.regressions {
        shown = if shown.0 == regression.cell { (shown.0, shown.1 + 1) } else { (&regression.cell, 1) };
        if top != 0 && shown.1 > top {
            more += 1;
            continue;
        }
        let what = if regression.what == What::Count { "count" } else { "cycles" };
        let [before, after, change] = growth(regression.what, regression.before, regression.after);
        let entry = format!("{}: {}", regression.list, regression.name);
        rows.push(vec![regression.cell.clone(), what.to_owned(), before, after, change, entry]);
    }
    if !rows.is_empty() {
        let headings =
            [("cell", Left), ("what", Left), ("baseline", Right), ("now", Right), ("", Right), ("entry", Left)];
        table(&mut out, &headings, &rows);
        if more != 0 {
            out.push_str(&format!("and {} more (--top 0 shows all)\n", number(more)));
        }
        out.push('\n');
    }
    for (group, reason) in groups(verdict.missing.iter().map(|(cell, reason)| (cell.as_str(), reason))) {
        out.push_str(&format!("{group}: no result now: {reason}\n"));
    }
    for (group, ()) in groups(verdict.failed_before.iter().map(|cell| (cell.as_str(), ()))) {
        out.push_str(&format!("{group}: not compared: no result in the baseline\n"));
    }
    let entries = |count: usize| counted(count, "entry", "entries");
    out.push_str(&format!(
        "{}, {} compared: {}, {} improved, {} missing\n",
        counted(verdict.cells, "cell", "cells"),
        entries(verdict.entries),
        counted(verdict.regressions.len(), "regression", "regressions"),
        entries(verdict.improved),
        counted(verdict.missing.len(), "cell", "cells")
    ));
    out
}

/// Returns the findings as JSON.
pub fn document(verdict: &Verdict, interrupted: Option<Interrupted>) -> serde_json::Value {
    let regressions = verdict.regressions.iter().map(|r| {
        let what = if r.what == What::Count { "count" } else { "ticks" };
        json!({ "cell": r.cell, "list": r.list, "name": r.name, "what": what, "before": r.before, "after": r.after })
    });
    let missing = verdict.missing.iter().map(|(cell, reason)| json!({ "cell": cell, "reason": reason }));
    let mut document = json!({
        "format": FORMAT,
        "cells": verdict.cells,
        "entries": verdict.entries,
        "improved": verdict.improved,
        "regressions": regressions.collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
        "failed_before": verdict.failed_before,
    });
    if let Some(interrupted) = interrupted {
        document["interrupted"] = json!(interrupted);
    }
    document
}
