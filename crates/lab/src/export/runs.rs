//! The times in which tasks ran.

use super::{Export, ExportError};
use ledger::{Origin, RegionId, TaskId, Ticks};

/// A time in which a task ran on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub cpu: u32,
    pub task: TaskId,
    /// Begin and end on the processor's clock.
    pub from: Ticks,
    pub to: Ticks,
}

/// Returns the times in which tasks ran and of which a record is selected: from the first record of a task to the first of another task
/// on this processor. A time ends where its region of interest does.
pub(super) fn runs(export: &Export) -> Result<Vec<Run>, ExportError> {
    if !export.ledger.stacks.keeps.trace {
        return Err(ExportError::NoTrace);
    }
    let clocks = &export.ledger.header.clocks;
    let mut selected = export.selection.records().peekable();
    let mut all: Vec<(Run, RegionId, bool)> = Vec::new();
    for record in &export.ledger.stacks.records {
        let wanted = selected.next_if(|next| std::ptr::eq(*next, record)).is_some();
        let Origin { task, region, .. } = *export.selection.origin_of(record.origin);
        match all.last_mut() {
            Some((last, within, any)) if last.cpu == record.cpu => {
                last.to = last.to.max(record.time);
                if (last.task, *within) == (task, region) {
                    *any |= wanted;
                    continue;
                }
            }
            Some((last, ..)) => last.to = end_of(clocks, last),
            None => {}
        }
        all.push((Run { cpu: record.cpu, task, from: record.time, to: record.time }, region, wanted));
    }
    if let Some((last, ..)) = all.last_mut() {
        last.to = end_of(clocks, last);
    }
    let mut runs: Vec<Run> = all.into_iter().filter_map(|(run, _, any)| any.then_some(run)).collect();
    runs.dedup_by(|next, run| {
        let goes_on = (next.cpu, next.task, next.from) == (run.cpu, run.task, run.to);
        if goes_on {
            run.to = next.to;
        }
        goes_on
    });
    Ok(runs)
}

fn end_of(clocks: &[Ticks], last: &Run) -> Ticks {
    clocks.get(last.cpu as usize).copied().unwrap_or(0).max(last.to)
}
