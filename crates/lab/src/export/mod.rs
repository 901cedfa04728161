//! Call stacks and traces in the formats of other programs, and a trace as a page.

mod firefox;
mod perf_script;
mod perfetto;
mod runs;
mod speedscope;
#[cfg(test)]
mod tests;
mod timeline;

use crate::flame;
use ledger::stack::{Moment, Record, StackId, What};
use ledger::summary::{Selection, Weigh};
use ledger::{Kind, Ledger, Origin, TICKS_PER_CYCLE, Task, TaskKind};
use std::collections::BTreeMap;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Format {
    /// The text of `perf script`.
    PerfScript,
    /// The Firefox Profiler's processed profiles.
    Firefox,
    /// Speedscope's files.
    Speedscope,
    /// The JSON of Chrome's traces, which Perfetto reads.
    Perfetto,
    /// A page with a timeline, for any browser.
    Timeline,
    /// One line for each stack.
    Folded,
}

/// The reason why an export fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The ledger has no trace.
    #[error("the ledger has no trace: run the guest with --trace")]
    NoTrace,
    /// The JSON could not be written.
    #[error("can't write the profile as JSON")]
    Json,
    /// Nothing of the trace is selected.
    #[error("the trace has nothing of what is selected")]
    Nothing,
    /// The page could not be made.
    #[error("can't create the page")]
    Page,
}

/// The data to export.
#[derive(Clone, Copy)]
pub struct Export<'a> {
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The part of the ledger to export.
    pub selection: Selection<'a>,
    /// The weight of stacks.
    pub weigh: &'a Weigh,
}

/// A stack with its weight and its time.
struct Sample<'a> {
    time: u64,
    cpu: u32,
    who: &'a Origin,
    stack: StackId,
    /// Ticks, or a count.
    weight: u64,
    what: What,
}

impl<'a> Export<'a> {
    /// Returns the file in a format.
    pub fn to_bytes(self, format: Format) -> Result<Vec<u8>, ExportError> {
        match format {
            Format::PerfScript => Ok(perf_script::text(self).into_bytes()),
            Format::Firefox => firefox::profile(self),
            Format::Speedscope => speedscope::file(self),
            Format::Perfetto => perfetto::trace(self),
            Format::Timeline => timeline::page(self),
            Format::Folded => {
                let lines = flame::folded(&self.selection.call_stacks(self.weigh), self.weigh);
                Ok(lines.into_iter().map(|line| line + "\n").collect::<String>().into_bytes())
            }
        }
    }

    fn wanted(&self, what: What) -> bool {
        match (self.weigh, what) {
            (Weigh::Samples, What::Sample) | (Weigh::Crossings, What::Crossing(_)) => true,
            (Weigh::Kinds(kinds), What::Crossing(kind)) => kinds.contains(&kind),
            _ => false,
        }
    }

    /// Returns all samples. Without a trace, samples have no times: each begins at the end of the previous one.
    fn samples(&self) -> Vec<Sample<'a>> {
        let selection = self.selection;
        let counts = matches!(self.weigh, Weigh::Kinds(_));
        if self.ledger.stacks.keeps.trace {
            let sample = |record: &'a Record<u32>| {
                let (what, weight) = match record.moment {
                    Moment::Samples(count) => (What::Sample, count.saturating_mul(self.ledger.stacks.keeps.interval)),
                    Moment::Event(kind) => (What::Crossing(kind), if counts { 1 } else { record.ticks }),
                    Moment::Task => return None,
                };
                let Record { time, cpu, stack, .. } = *record;
                let who = selection.origin_of(record.origin);
                self.wanted(what).then_some(Sample { time, cpu, who, stack, weight, what })
            };
            return selection.records().filter_map(sample).collect();
        }
        let mut time = 0;
        let charges = selection.stack_charges().filter(|charge| self.wanted(charge.what));
        charges
            .map(|charge| {
                let weight = if counts { charge.count } else { charge.ticks };
                let begins = time;
                time += charge.ticks;
                let who = selection.origin_of(charge.origin);
                Sample { time: begins, cpu: 0, who, stack: charge.stack, weight, what: charge.what }
            })
            .collect()
    }

    /// Converts a time to nanoseconds.
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let per_second = u128::from(self.ledger.header.tsc_hz) * u128::from(TICKS_PER_CYCLE);
        u64::try_from(u128::from(ticks) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
    }

    /// Converts a weight to the format's unit: nanoseconds, or a count.
    fn amount(&self, weight: u64) -> u64 {
        if matches!(self.weigh, Weigh::Kinds(_)) { weight } else { self.nanoseconds(weight) }
    }

    fn task(&self, who: &Origin) -> &'a Task {
        &self.ledger.tasks[who.task.0 as usize]
    }

    fn kind_name(&self, kind: Kind) -> String {
        self.ledger.describe(kind)
    }
}

/// Returns the title of a task's track.
fn task_title(task: &Task) -> &str {
    match (task.comm.as_str(), task.kind) {
        ("", TaskKind::Idle) => "idle",
        ("", _) => "[no task]",
        (comm, _) => comm,
    }
}

/// Interned names.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: String) -> usize {
        let names = &mut self.names;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() - 1
        })
    }
}
