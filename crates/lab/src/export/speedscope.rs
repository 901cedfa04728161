//! Speedscope's file format: <https://www.speedscope.app/file-format-schema.json>.

use super::{Export, ExportError, Names, task_title};
use ledger::summary::Weigh;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Returns the file, with one profile per task.
pub fn file(export: Export) -> Result<Vec<u8>, ExportError> {
    let mut frames = Names::default();
    let mut tasks: BTreeMap<u32, (Vec<Value>, Vec<u64>)> = BTreeMap::new();
    for sample in export.samples() {
        let space = sample.who.address_space();
        let mut stack: Vec<usize> = export
            .ledger
            .stacks
            .frames(sample.stack)
            .map(|address| frames.number(export.ledger.frame_name(space, address)))
            .collect();
        stack.reverse();
        let (samples, weights) = tasks.entry(sample.who.task.0).or_default();
        samples.push(json!(stack));
        weights.push(export.amount(sample.weight));
    }
    let unit = if matches!(export.weigh, Weigh::Kinds(_)) { "none" } else { "nanoseconds" };
    // The task with the largest weight is shown first.
    let sums = tasks.values().map(|(_, weights)| weights.iter().fold(0u64, |sum, weight| sum.saturating_add(*weight)));
    let active = sums.enumerate().max_by_key(|(number, sum)| (*sum, Reverse(*number))).map_or(0, |(number, _)| number);
    let profiles = tasks.into_iter().map(|(task, (samples, weights))| {
        let task = &export.ledger.tasks[task as usize];
        let end: u64 = weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight));
        json!({
            "type": "sampled",
            "name": format!("{} ({})", task_title(task), task.tid),
            "unit": unit,
            "startValue": 0,
            "endValue": end,
            "samples": samples,
            "weights": weights,
        })
    });
    let profiles: Vec<Value> = profiles.collect();
    let frames: Vec<Value> = frames.names.iter().map(|name| json!({ "name": name })).collect();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": { "frames": frames },
        "profiles": profiles,
        "name": export.ledger.header.profile,
        "activeProfileIndex": active,
        "exporter": format!("tollgate {}", env!("CARGO_PKG_VERSION")),
    });
    serde_json::to_vec(&file).map_err(|_| ExportError::Json)
}
