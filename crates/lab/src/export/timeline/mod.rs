//! A page with a timeline: a lane with the tasks of each processor, one with its crossings and samples, and one for each task. The page needs
//! no other file and no network.

use super::runs::{Run, runs};
use super::{Export, ExportError, task_title};
use crate::format::number;
use crate::report::STYLE;
use ledger::stack::{MOST_RECORDS, Moment, Record, StackId};
use ledger::{Family, TaskId, TaskKind};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of slices of tasks, of crossings and of samples that a page has. The shortest are left out.
const MOST: usize = 200_000;
/// Largest number of tasks with a lane. Those that ran for the shortest time have none.
const MOST_TASKS: usize = 250;
/// Number of tasks in the table.
const LISTED: usize = 40;

/// Classes of crossings, and samples, as the legend names them.
const LEGEND: [[&str; 2]; 7] = [
    ["call", "system calls"],
    ["exception", "exceptions"],
    ["interrupt", "interrupts"],
    ["exit", "VM exits and entries"],
    ["halt", "halted"],
    [SAMPLE, "samples"],
    [OTHER, "other crossings"],
];
/// The class of samples.
const SAMPLE: &str = "sample";
/// The class of crossings that have no other one.
const OTHER: &str = "other";

/// Returns the entries of the legend for what is drawn.
fn legend(records: impl Iterator<Item = Moment>) -> Vec<[&'static str; 2]> {
    let drawn: BTreeSet<&str> = records
        .filter_map(|moment| match moment {
            Moment::Event(kind) => Some(family(kind.family)),
            Moment::Samples(_) => Some(SAMPLE),
            Moment::Task => None,
        })
        .collect();
    LEGEND.into_iter().filter(|[name, _]| drawn.contains(name)).collect()
}

/// A line of the table: a task with the time that it ran for.
#[derive(Serialize)]
struct Line {
    name: String,
    number: String,
    time: String,
    share: String,
    runs: usize,
}

/// The stacks of a page, by number, as numbers of names.
#[derive(Default)]
struct Stacks {
    names: super::Names,
    numbers: BTreeMap<(StackId, u64), usize>,
    stacks: Vec<Vec<usize>>,
}

impl Stacks {
    /// Returns the number of a record's stack; 0 for none.
    fn number(&mut self, export: &Export, record: &Record<u32>) -> usize {
        let space = export.selection.origin_of(record.origin).address_space();
        let (names, stacks) = (&mut self.names, &mut self.stacks);
        *self.numbers.entry((record.stack, u64::from(record.origin))).or_insert_with(|| {
            let frames = export.ledger.stacks.frames(record.stack);
            let stack: Vec<usize> =
                frames.map(|address| names.number(export.ledger.frame_name(space, address))).collect();
            if stack.is_empty() {
                return 0;
            }
            stacks.push(stack);
            stacks.len()
        })
    }
}

/// Keeps the longest of some slices, in their order. Returns the number of those that are left out.
fn keep_longest<T>(slices: &mut Vec<T>, most: usize, length: impl Fn(&T) -> u64) -> usize {
    let Some(beyond) = slices.len().checked_sub(most).filter(|beyond| *beyond != 0) else { return 0 };
    let mut order: Vec<usize> = (0..slices.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(length(&slices[at])));
    let kept: BTreeSet<usize> = order[..most].iter().copied().collect();
    let mut at = 0;
    slices.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
    beyond
}

/// Returns the page.
pub fn page(export: Export) -> Result<Vec<u8>, ExportError> {
    let mut ran = runs(&export)?;
    let records: Vec<&Record<u32>> = export.selection.records().collect();
    if ran.is_empty() {
        return Err(ExportError::Nothing);
    }
    let mut by_task: BTreeMap<TaskId, (u64, usize)> = BTreeMap::new();
    for run in &ran {
        let sum = by_task.entry(run.task).or_default();
        *sum = (sum.0 + (run.to - run.from), sum.1 + 1);
    }
    // A processor that is halted runs nobody.
    for record in &records {
        if matches!(record.moment, Moment::Event(kind) if kind.family == Family::Halt)
            && let Some(sum) = by_task.get_mut(&export.selection.origin_of(record.origin).task)
        {
            sum.0 = sum.0.saturating_sub(record.ticks);
        }
    }
    let mut tasks: Vec<(TaskId, u64, usize)> =
        by_task.into_iter().map(|(task, (ticks, runs))| (task, ticks, runs)).collect();
    tasks.sort_by_key(|&(task, ticks, _)| (std::cmp::Reverse(ticks), task));
    let mut crossings: Vec<_> =
        records.iter().copied().filter(|record| matches!(record.moment, Moment::Event(_))).collect();
    let mut samples: Vec<_> =
        records.iter().copied().filter(|record| matches!(record.moment, Moment::Samples(_))).collect();
    let lanes = tasks.len().min(MOST_TASKS);
    let left_out = [
        (keep_longest(&mut ran, MOST, |run| run.to - run.from), "times in which a task ran, the shortest ones"),
        (keep_longest(&mut crossings, MOST, |record| record.ticks), "crossings, the shortest ones"),
        (keep_longest(&mut samples, MOST, |_| 1), "samples, the last ones"),
        (tasks.len() - lanes, "lanes, of the tasks that ran for the shortest time"),
    ];
    let mut notes: Vec<String> = left_out
        .iter()
        .filter(|(count, _)| *count != 0)
        .map(|(count, what)| format!("The page leaves out {what}: {}.", number(*count as u64)))
        .collect();
    if export.ledger.stacks.lost != 0 {
        let lost = export.ledger.stacks.lost;
        let were = if lost == 1 { "record was" } else { "records were" };
        let limit = number(MOST_RECORDS as u64);
        notes.push(format!("A trace has at most {limit} records; {} later {were} lost.", number(lost)));
    }
    let times = ran.iter().map(|run| run.from).chain(records.iter().map(|record| record.time));
    let start = export.nanoseconds(times.min().unwrap_or(0));
    let data = data(&export, start, &ran, &tasks[..lanes], &crossings, &samples);
    let whole: u64 = tasks.iter().map(|task| task.1).sum();
    let lines: Vec<Line> = tasks.iter().take(LISTED).map(|task| line(&export, task, whole)).collect();
    let header = &export.ledger.header;
    let fact = |key: &str| header.metadata.get(key).cloned();
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("timeline.html", include_str!("timeline.html")).map_err(|_| ExportError::Page)?;
    let template = environment.get_template("timeline.html").map_err(|_| ExportError::Page)?;
    let page = template.render(context! {
        profile => header.profile.clone(),
        model => fact("model"),
        processors => header.clocks.len(),
        start => format!("{:.6} ms", start as f64 / 1e6),
        lines => minijinja::Value::from(Serde(lines)),
        further => tasks.len().saturating_sub(LISTED),
        notes,
        legend => legend(crossings.iter().chain(&samples).map(|record| record.moment)),
        data => data.to_string().replace('<', "\\u003c"),
        version => env!("CARGO_PKG_VERSION"),
        style => STYLE,
        more_style => include_str!("timeline.css"),
        script => include_str!("timeline.js"),
    });
    Ok(page.map_err(|_| ExportError::Page)?.into_bytes())
}

fn line(export: &Export, &(task, ticks, runs): &(TaskId, u64, usize), whole: u64) -> Line {
    let of = &export.ledger.tasks[task.0 as usize];
    Line {
        name: task_title(of).to_owned(),
        number: if of.tid == 0 { String::new() } else { of.tid.to_string() },
        time: format!("{:.3} ms", export.nanoseconds(ticks) as f64 / 1e6),
        share: format!("{:.1}%", 100.0 * ticks as f64 / whole.max(1) as f64),
        runs,
    }
}

/// Returns what the script draws. Times are nanoseconds from `start`; slices are rows of numbers, one after the other.
fn data(
    export: &Export,
    start: u64,
    ran: &[Run],
    tasks: &[(TaskId, u64, usize)],
    crossings: &[&Record<u32>],
    samples: &[&Record<u32>],
) -> Value {
    let at = |ticks: u64| export.nanoseconds(ticks).saturating_sub(start);
    let long = |from: u64, to: u64| at(to).saturating_sub(at(from));
    // Tasks without a lane are drawn on their processors all the same.
    let mut numbers: BTreeMap<TaskId, usize> =
        tasks.iter().enumerate().map(|(number, task)| (task.0, number)).collect();
    let mut named: Vec<TaskId> = tasks.iter().map(|task| task.0).collect();
    let mut number_of = |task: TaskId| {
        *numbers.entry(task).or_insert_with(|| {
            named.push(task);
            named.len() - 1
        })
    };
    let (mut kinds, mut stacks) = (super::Names::default(), Stacks::default());
    let mut families = Vec::new();
    let runs: Vec<u64> = ran
        .iter()
        .flat_map(|run| [u64::from(run.cpu), number_of(run.task) as u64, at(run.from), long(run.from, run.to)])
        .collect();
    let mut crossed: Vec<u64> = Vec::new();
    for record in crossings {
        let Moment::Event(kind) = record.moment else { continue };
        let number = kinds.number(export.kind_name(kind));
        if number == families.len() {
            families.push(family(kind.family));
        }
        let task = number_of(export.selection.origin_of(record.origin).task);
        let to = record.time.saturating_add(record.ticks);
        let stack = stacks.number(export, record);
        crossed.extend([
            u64::from(record.cpu),
            number as u64,
            at(record.time),
            long(record.time, to),
            task as u64,
            stack as u64,
        ]);
    }
    let mut sampled: Vec<u64> = Vec::new();
    for record in samples {
        let Moment::Samples(count) = record.moment else { continue };
        let task = number_of(export.selection.origin_of(record.origin).task);
        let stack = stacks.number(export, record);
        sampled.extend([u64::from(record.cpu), at(record.time), count, task as u64, stack as u64]);
    }
    let task = |number: &TaskId| {
        let task = &export.ledger.tasks[number.0 as usize];
        json!([task_title(task), task.pid, task.tid, task.kind == TaskKind::Idle])
    };
    json!({
        "lanes": tasks.len(),
        "tasks": named.iter().map(task).collect::<Value>(),
        "kinds": kinds.names,
        "families": families,
        "runs": runs,
        "crossings": crossed,
        "samples": sampled,
        "names": stacks.names.names,
        "stacks": stacks.stacks,
    })
}

/// Returns the class of a crossing, by which it is coloured.
fn family(family: Family) -> &'static str {
    match family {
        Family::Interrupt | Family::Nmi => "interrupt",
        Family::VmExit | Family::VmEntry => "exit",
        Family::Exception => "exception",
        Family::Syscall | Family::Sysret => "call",
        Family::Halt => "halt",
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_has_what_is_drawn() {
        let of = |moments: &[Moment]| legend(moments.iter().copied()).iter().map(|[name, _]| *name).collect::<Vec<_>>();
        let event = |family| Moment::Event(ledger::Kind::new(family, 0));
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[Moment::Samples(1), event(Family::Syscall), event(Family::Sysret)]), ["call", "sample"]);
        assert_eq!(of(&[event(Family::Wrmsr), event(Family::Halt)]), ["halt", "other"]);
        let known = ["call", "exception", "interrupt", "exit", "halt", SAMPLE, OTHER];
        assert_eq!(LEGEND.map(|[name, _]| name), known);
    }

    #[test]
    fn the_shortest_are_left_out() {
        let mut slices = vec![5, 1, 4, 4, 9, 2];
        assert_eq!(keep_longest(&mut slices, 4, |long| *long), 2);
        assert_eq!(slices, [5, 4, 4, 9]);
        assert_eq!(keep_longest(&mut slices, 4, |long| *long), 0);
        assert_eq!(keep_longest(&mut slices, 2, |long| *long), 2);
        assert_eq!(slices, [5, 9]);
    }
}
