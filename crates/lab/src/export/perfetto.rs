//! Chrome's JSON trace format, which Perfetto and `chrome://tracing` read. Each processor has a track with the tasks that it ran and a track with
//! its crossings, and each task has a track with the times at which it ran.

use super::runs::{Run, runs};
use super::{Export, ExportError, task_title};
use ledger::stack::{Moment, Record, StackId};
use ledger::{Family, Kind, TaskId, TaskKind};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Process number for the processors, above those of Linux.
const PROCESSORS: u32 = 1 << 30;
/// Process number for the idle tasks, which all have number 0 in Linux.
const IDLE: u32 = PROCESSORS + 1;

/// An event of the format.
#[derive(Serialize)]
struct Event<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Arguments<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: &'a str,
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
}

/// Arguments of an event, by the names that viewers show.
#[derive(Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<&'a [String]>,
}

/// A file that grows by one event after the other: a trace has millions.
struct File {
    bytes: Vec<u8>,
}

impl File {
    /// Begins a file with all that is in front of the events.
    fn begin(lost: u64) -> Self {
        let other = json!({ "exporter": format!("tollgate {}", env!("CARGO_PKG_VERSION")), "records lost": lost });
        let begin = format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[");
        Self { bytes: begin.into_bytes() }
    }

    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        if self.bytes.last() != Some(&b'[') {
            self.bytes.push(b',');
        }
        serde_json::to_writer(&mut self.bytes, event).map_err(|_| ExportError::Json)
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.extend(b"]}");
        self.bytes
    }
}

/// Names that many records share.
#[derive(Default)]
struct Known {
    kinds: BTreeMap<Kind, String>,
    /// Frames of stacks, by the number of the origin and of the stack.
    stacks: BTreeMap<(u32, StackId), Vec<String>>,
}

/// Returns the trace.
pub fn trace(export: Export) -> Result<Vec<u8>, ExportError> {
    let runs = runs(&export)?;
    let tasks: BTreeSet<TaskId> = runs.iter().map(|run| run.task).collect();
    let processors: BTreeSet<u32> = export.selection.records().map(|record| record.cpu).collect();
    let mut file = File::begin(export.ledger.stacks.lost);
    add_names(&export, &processors, &tasks, &mut file)?;
    for run in &runs {
        add_run(&export, run, &mut file)?;
    }
    let mut known = Known::default();
    for record in export.selection.records() {
        add_moment(&export, record, &mut known, &mut file)?;
    }
    Ok(file.end())
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
fn add_run(export: &Export, run: &Run, file: &mut File) -> Result<(), ExportError> {
    let name = task_title(&export.ledger.tasks[run.task.0 as usize]);
    let (ts, end) = (microseconds(export, run.from), microseconds(export, run.to));
    let (pid, tid) = place(export, run.task);
    let mut slice = |name: &str, pid: u32, tid: u32| {
        let (ts, dur) = (Some(ts), Some(end - ts));
        file.add(&Event { args: None, cat: None, dur, name, ph: "X", pid, s: None, tid, ts })
    };
    slice(name, PROCESSORS, 2 * run.cpu)?;
    slice(&format!("on CPU {}", run.cpu), pid, tid)
}

/// Adds the event for a record. A task switch has none: it ends a slice.
fn add_moment(export: &Export, record: &Record<u32>, known: &mut Known, file: &mut File) -> Result<(), ExportError> {
    let Known { kinds, stacks } = known;
    let stack = stacks.entry((record.origin, record.stack)).or_insert_with(|| {
        let space = export.selection.origin_of(record.origin).address_space();
        let frames = export.ledger.stacks.frames(record.stack);
        frames.map(|address| export.ledger.frame_name(space, address)).collect()
    });
    let ts = Some(microseconds(export, record.time));
    let (pid, tid) = (PROCESSORS, 2 * record.cpu + 1);
    match record.moment {
        Moment::Task => Ok(()),
        Moment::Samples(count) => {
            let args = Some(Arguments { samples: Some(count), stack: Some(stack.as_slice()), name: None });
            file.add(&Event {
                args,
                cat: Some("sample"),
                dur: None,
                name: "sample",
                ph: "i",
                pid,
                s: Some("t"),
                tid,
                ts,
            })
        }
        Moment::Event(kind) => {
            let name = kinds.entry(kind).or_insert_with(|| export.kind_name(kind));
            let args = Arguments { stack: (!stack.is_empty()).then_some(stack.as_slice()), ..Arguments::default() };
            let (cat, dur) = (Some(category(kind.family)), Some(microseconds(export, record.ticks)));
            file.add(&Event { args: Some(args), cat, dur, name, ph: "X", pid, s: None, tid, ts })
        }
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

/// Adds the names of the tracks.
fn add_names(
    export: &Export,
    processors: &BTreeSet<u32>,
    tasks: &BTreeSet<TaskId>,
    file: &mut File,
) -> Result<(), ExportError> {
    let mut add = |what: &str, pid: u32, tid: u32, name: &str| {
        let args = Some(Arguments { name: Some(name), ..Arguments::default() });
        file.add(&Event { args, cat: None, dur: None, name: what, ph: "M", pid, s: None, tid, ts: None })
    };
    add("process_name", PROCESSORS, 0, "processors")?;
    add("process_name", IDLE, 0, "idle")?;
    for cpu in processors {
        add("thread_name", PROCESSORS, 2 * cpu, &format!("CPU {cpu}"))?;
        add("thread_name", PROCESSORS, 2 * cpu + 1, &format!("CPU {cpu} crossings"))?;
    }
    for number in tasks {
        let task = &export.ledger.tasks[number.0 as usize];
        let (pid, tid) = place(export, *number);
        if task.pid == task.tid && task.kind != TaskKind::Idle {
            add("process_name", pid, 0, task_title(task))?;
        }
        add("thread_name", pid, tid, task_title(task))?;
    }
    Ok(())
}
