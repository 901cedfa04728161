//! Chrome's JSON trace format, which Perfetto and `chrome://tracing` read. Each processor has a track with the tasks that it ran and a track with
//! its crossings, and each task has a track with the times at which it ran.

use super::runs::{Run, runs};
use super::{Export, ExportError, task_title};
use ledger::stack::{Moment, Record};
use ledger::{Family, TaskId, TaskKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Process number for the processors, above those of Linux.
const PROCESSORS: u32 = 1 << 30;
/// Process number for the idle tasks, which all have number 0 in Linux.
const IDLE: u32 = PROCESSORS + 1;

/// Returns the trace.
pub fn trace(export: Export) -> Result<Vec<u8>, ExportError> {
    let (mut tasks, mut processors) = (BTreeSet::new(), BTreeSet::new());
    let mut events = Vec::new();
    for run in runs(&export)? {
        tasks.insert(run.task);
        add_run(&export, &run, &mut events);
    }
    for record in export.selection.records() {
        processors.insert(record.cpu);
        events.extend(moment(&export, record));
    }
    let mut all = names(&export, &processors, &tasks);
    all.append(&mut events);
    let lost = export.ledger.stacks.lost;
    let file = json!({
        "traceEvents": all,
        "displayTimeUnit": "ns",
        "otherData": { "exporter": format!("tollgate {}", env!("CARGO_PKG_VERSION")), "records lost": lost },
    });
    serde_json::to_vec(&file).map_err(|_| ExportError::Json)
}

/// Converts a time to microseconds.
fn microseconds(export: &Export, ticks: u64) -> f64 {
    export.nanoseconds(ticks) as f64 / 1000.0
}

/// Returns the process and thread numbers of a task.
fn place(export: &Export, number: TaskId) -> (u32, u32) {
    let task = &export.ledger.tasks[number.0 as usize];
    match task.kind {
        TaskKind::Idle => (IDLE, number.0),
        _ => (task.pid, task.tid),
    }
}

/// Adds a slice to the processor's track, and one to the task's.
fn add_run(export: &Export, run: &Run, events: &mut Vec<Value>) {
    let name = task_title(&export.ledger.tasks[run.task.0 as usize]);
    let (ts, end) = (microseconds(export, run.from), microseconds(export, run.to));
    let (pid, tid) = place(export, run.task);
    let slice = |name: &str, pid: u32, tid: u32| json!({ "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts });
    events.push(slice(name, PROCESSORS, 2 * run.cpu));
    events.push(slice(&format!("on CPU {}", run.cpu), pid, tid));
}

/// Returns the event for a record. A task switch has none: it ends a slice.
fn moment(export: &Export, record: &Record<u32>) -> Option<Value> {
    let space = export.selection.origin_of(record.origin).address_space();
    let frames = export.ledger.stacks.frames(record.stack);
    let stack: Vec<String> = frames.map(|address| export.ledger.frame_name(space, address)).collect();
    let ts = microseconds(export, record.time);
    let args = if stack.is_empty() { json!({}) } else { json!({ "stack": stack }) };
    let (pid, tid) = (PROCESSORS, 2 * record.cpu + 1);
    match record.moment {
        Moment::Task => None,
        Moment::Samples(count) => Some(json!({
            "ph": "i", "s": "t", "name": "sample", "cat": "sample", "pid": pid, "tid": tid, "ts": ts,
            "args": { "samples": count, "stack": stack },
        })),
        Moment::Event(kind) => Some(json!({
            "ph": "X", "name": export.kind_name(kind), "cat": category(kind.family), "pid": pid, "tid": tid, "ts": ts,
            "dur": microseconds(export, record.ticks), "args": args,
        })),
    }
}

fn category(family: Family) -> &'static str {
    match family {
        Family::Interrupt | Family::Nmi => "interrupt",
        Family::VmExit | Family::VmEntry => "exit",
        Family::Halt => "halt",
        _ => "crossing",
    }
}

/// Returns the names of the tracks.
fn names(export: &Export, processors: &BTreeSet<u32>, tasks: &BTreeSet<TaskId>) -> Vec<Value> {
    let name = |what: &str, pid: u32, tid: u32, name: String| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    let mut all = vec![
        name("process_name", PROCESSORS, 0, "processors".to_owned()),
        name("process_name", IDLE, 0, "idle".to_owned()),
    ];
    for cpu in processors {
        all.push(name("thread_name", PROCESSORS, 2 * cpu, format!("CPU {cpu}")));
        all.push(name("thread_name", PROCESSORS, 2 * cpu + 1, format!("CPU {cpu} crossings")));
    }
    for number in tasks {
        let task = &export.ledger.tasks[number.0 as usize];
        let (pid, tid) = place(export, *number);
        if task.pid == task.tid && task.kind != TaskKind::Idle {
            all.push(name("process_name", pid, 0, task_title(task).to_owned()));
        }
        all.push(name("thread_name", pid, tid, task_title(task).to_owned()));
    }
    all
}
