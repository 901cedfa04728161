//! The times in which tasks ran.

use super::Export;
use ledger::{TaskId, Ticks};

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
/// on this processor.
pub(super) fn runs(export: &Export) -> Vec<Run> {
    let clocks = &export.ledger.header.clocks;
    let mut selected = export.selection.records().peekable();
    let mut all: Vec<(Run, bool)> = Vec::new();
    for record in &export.ledger.stacks.records {
        let wanted = selected.next_if(|next| std::ptr::eq(*next, record)).is_some();
        let task = export.selection.origin_of(record.origin).task;
        match all.last_mut() {
            Some((last, any)) if last.cpu == record.cpu => {
                last.to = last.to.max(record.time);
                if last.task == task {
                    *any |= wanted;
                    continue;
                }
            }
            Some((last, _)) => last.to = end_of(clocks, last),
            None => {}
        }
        all.push((Run { cpu: record.cpu, task, from: record.time, to: record.time }, wanted));
    }
    if let Some((last, _)) = all.last_mut() {
        last.to = end_of(clocks, last);
    }
    all.into_iter().filter_map(|(run, any)| any.then_some(run)).collect()
}

fn end_of(clocks: &[Ticks], last: &Run) -> Ticks {
    clocks.get(last.cpu as usize).copied().unwrap_or(0).max(last.to)
}
