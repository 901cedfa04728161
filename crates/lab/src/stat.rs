//! Counters of a command, in the form of `perf stat`: means over layouts, with the deviation of the mean.

use crate::csv::{number as number_of, row};
use crate::diff::paid::{NoCommand, OTHERS, regions};
use crate::diff::statistics::Sample;
use crate::format::number;
use ledger::profile::Clock;
use ledger::summary::{Bound, By, Cause, Selection};
use ledger::{Class, Context, Family, Gate, Kind, Ledger, TICKS_PER_CYCLE, Ticks};
use serde::Serialize;

/// The version of the JSON document.
pub const FORMAT: u32 = 1;
/// The vector of page faults.
const PAGE_FAULT: u32 = 14;
/// Classes of branches.
const BRANCHES: [Class; 6] =
    [Class::Branch, Class::Jump, Class::Call, Class::Return, Class::IndirectJump, Class::IndirectCall];

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Clock,
    Cycles,
    UserCycles,
    KernelCycles,
    Instructions,
    Branches,
    BranchMisses,
    UnknownBranches,
    L1Data,
    L2Data,
    L3Data,
    L1Code,
    SecondLevelData,
    WalksData,
    SecondLevelCode,
    WalksCode,
    Crossings,
    SystemCalls,
    PageFaults,
    Exits,
    Interrupts,
    Others,
}

/// The model of time that counts an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Any,
    Core,
    /// Shown only if there are any.
    Some,
}

/// All counters, in the order of the table: the name, which is that of perf where perf has one.
const EVENTS: [(Event, &str, Needs); 22] = [
    (Event::Clock, "task-clock", Needs::Any),
    (Event::Cycles, "cycles", Needs::Any),
    (Event::UserCycles, "cycles:u", Needs::Any),
    (Event::KernelCycles, "cycles:k", Needs::Any),
    (Event::Instructions, "instructions", Needs::Any),
    (Event::Branches, "branches", Needs::Any),
    (Event::BranchMisses, "branch-misses", Needs::Any),
    (Event::UnknownBranches, "unknown-branches", Needs::Core),
    (Event::L1Data, "L1-dcache-misses", Needs::Core),
    (Event::L2Data, "L2-data-misses", Needs::Core),
    (Event::L3Data, "L3-data-misses", Needs::Core),
    (Event::L1Code, "L1-icache-misses", Needs::Core),
    (Event::SecondLevelData, "dTLB-misses, second level hit", Needs::Any),
    (Event::WalksData, "dTLB-misses, page walk", Needs::Any),
    (Event::SecondLevelCode, "iTLB-misses, second level hit", Needs::Any),
    (Event::WalksCode, "iTLB-misses, page walk", Needs::Any),
    (Event::Crossings, "crossings", Needs::Any),
    (Event::SystemCalls, "system-calls", Needs::Any),
    (Event::PageFaults, "page-faults", Needs::Any),
    (Event::Exits, "vm-exits", Needs::Some),
    (Event::Interrupts, "interrupts", Needs::Any),
    (Event::Others, "cycles of interrupts and other tasks", Needs::Any),
];

/// The counters of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Seed of the layout, if it was drawn.
    pub seed: Option<u64>,
    values: [f64; EVENTS.len()],
    /// Cycles by part of a top-down analysis.
    bounds: [f64; Bound::ALL.len()],
    /// Seconds of virtual time from the command's beginning to its end.
    elapsed: f64,
}

/// Returns the level that served a miss, without regard to whether it was on its way.
fn served_by(kind: Kind) -> u32 {
    kind.param & !Kind::PREFETCHED
}

impl Run {
    /// Returns the counters in the ledger of a run of one command. `slot` is the time of the slot in which the core issues an
    /// instruction, if it is known.
    pub fn of(ledger: &Ledger, seed: Option<u64>, slot: Option<Ticks>) -> Result<Self, NoCommand> {
        let [whole, others] = regions(ledger)?;
        let command = whole.in_context(Context::Task);
        let kinds = command.kinds();
        let of = |wanted: &dyn Fn(Kind) -> bool| -> f64 {
            kinds.iter().filter(|(kind, _)| wanted(**kind)).map(|(_, amount)| amount.count as f64).sum()
        };
        let family = |family: Family| of(&|kind| kind.family == family);
        let missed = |code: Family, beyond: u32| of(&|kind| kind.family == code && served_by(kind) > beyond);
        let total = command.total();
        let cycles = |ticks: u64| ticks as f64 / TICKS_PER_CYCLE as f64;
        let busy = |part: Selection| cycles(part.total().busy());
        let user: u64 = command
            .rows(By::Ring)
            .into_iter()
            .filter(|(ring, _)| ring.contains("ring 3"))
            .map(|(_, row)| row.busy())
            .sum();
        let entries = |part: Selection, gates: &[Gate]| -> f64 {
            let counts = part.entries().into_iter().filter(|(entry, _)| gates.contains(&entry.gate));
            counts.map(|(_, stays)| stays.count() as f64).sum()
        };
        let branches = command.classes();
        let branches: f64 = BRANCHES.iter().map(|class| branches[*class as usize].count as f64).sum();
        let meanwhile = [Context::SoftInterrupt, Context::Interrupt].map(|context| busy(whole.in_context(context)));
        let hertz = ledger.header.tsc_hz as f64;
        let value = |event: Event| match event {
            Event::Clock => cycles(total.busy()) / hertz * 1e3,
            Event::Cycles => cycles(total.busy()),
            Event::UserCycles => cycles(user),
            Event::KernelCycles => cycles(total.busy().saturating_sub(user)),
            Event::Instructions => total.instructions as f64,
            Event::Branches => branches,
            Event::BranchMisses => total.of(Cause::Mispredictions).count as f64 - family(Family::UnknownBranch),
            Event::UnknownBranches => family(Family::UnknownBranch),
            Event::L1Data => missed(Family::CacheMissData, 1),
            Event::L2Data => missed(Family::CacheMissData, 2),
            Event::L3Data => missed(Family::CacheMissData, 3),
            Event::L1Code => missed(Family::CacheMissCode, 1),
            Event::SecondLevelData => family(Family::StlbHitData),
            Event::WalksData => family(Family::TlbMissData),
            Event::SecondLevelCode => family(Family::StlbHitCode),
            Event::WalksCode => family(Family::TlbMissCode),
            Event::Crossings => total.crossings().count as f64,
            Event::SystemCalls => entries(command, &[Gate::Call, Gate::Call32]),
            Event::PageFaults => of(&|kind| kind == Kind::new(Family::Exception, PAGE_FAULT)),
            Event::Exits => total.exits().count as f64,
            Event::Interrupts => entries(whole, &[Gate::Interrupt, Gate::Nmi]),
            Event::Others => meanwhile.iter().sum::<f64>() + busy(others),
        };
        let region = ledger.regions.iter().find(|region| region.name == OTHERS);
        let elapsed = region.map_or(0.0, |region| cycles(region.elapsed) / hertz);
        let parts = command.top_down(slot);
        let bounds = Bound::ALL.map(|bound| cycles(parts.of(bound)));
        Ok(Self { seed, bounds, values: EVENTS.map(|(event, ..)| value(event)), elapsed })
    }

    fn value(&self, event: Event) -> f64 {
        EVENTS.iter().position(|known| known.0 == event).map_or(0.0, |at| self.values[at])
    }
}

/// A figure beside a counter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// The value.
    pub value: f64,
    /// Its unit or meaning.
    pub unit: &'static str,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counter {
    /// The name.
    pub name: &'static str,
    /// Mean over the runs; none if the model of time does not count it.
    pub value: Option<f64>,
    /// Standard deviation of the mean as a part of it, if there are several runs.
    pub deviation: Option<f64>,
    /// The value of each run.
    pub runs: Vec<f64>,
    /// A figure that relates it to others.
    pub metric: Option<Metric>,
}

/// Descriptions of the measured run, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// The command line.
    pub command: String,
    /// The processor.
    pub processor: String,
    /// Name of its profile.
    pub profile: String,
    /// The model of time.
    pub model: &'static str,
    /// The kernel's release, if it is known.
    pub kernel: Option<String>,
    /// Tollgate's version.
    pub version: String,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stat {
    /// The version of the document.
    pub format: u32,
    /// The command, processor and kernel that the counters are of.
    #[serde(flatten)]
    pub subject: Subject,
    /// Frequency of the cycles, in hertz.
    pub tsc_hz: u64,
    /// Seeds of the layouts, of runs whose layout was drawn.
    pub seeds: Vec<u64>,
    /// The counters.
    pub counters: Vec<Counter>,
    /// Cycles as top-down analysis splits them, under the model `core`.
    pub top_down: Vec<Counter>,
    /// Seconds of virtual time from beginning to end.
    pub elapsed: Counter,
    /// Seconds in user mode.
    pub user: Counter,
    /// Seconds in the kernel.
    pub system: Counter,
}

/// Returns the standard deviation of a mean, as a part of it.
fn deviation(sample: &Sample, runs: usize) -> Option<f64> {
    (runs > 1).then(|| sample.spread() / (runs as f64).sqrt())
}

impl Counter {
    fn new(name: &'static str, runs: Vec<f64>, metric: Option<Metric>) -> Self {
        let sample = Sample::of(&runs);
        Self { name, value: Some(sample.mean), deviation: deviation(&sample, runs.len()), runs, metric }
    }
}

impl Stat {
    /// Sums up runs, of which there is at least one.
    pub fn new(subject: Subject, tsc_hz: u64, clock: Clock, runs: &[Run]) -> Self {
        let of = |event: Event| runs.iter().map(|run| run.value(event)).collect::<Vec<_>>();
        let mean = |event: Event| Sample::of(&of(event)).mean;
        let each = |part: Event, whole: Event| Some(mean(part) / mean(whole)).filter(|ratio| ratio.is_finite());
        let metric = |event: Event| {
            let share = |whole: Event, unit: &'static str| each(event, whole).map(|part| (part * 100.0, unit));
            let thousand = || each(event, Event::Instructions).map(|part| (part * 1e3, "per 1000 instructions"));
            let found = match event {
                Event::Clock => {
                    let elapsed = runs.iter().map(|run| run.elapsed * 1e3).sum::<f64>() / runs.len().max(1) as f64;
                    Some((mean(event) / elapsed, "CPUs utilized")).filter(|(used, _)| used.is_finite())
                }
                Event::Cycles => Some((tsc_hz as f64 / 1e9, "GHz")),
                Event::UserCycles | Event::KernelCycles => share(Event::Cycles, "% of all cycles"),
                Event::Instructions => each(event, Event::Cycles).map(|ratio| (ratio, "insn per cycle")),
                Event::Branches => share(Event::Instructions, "% of all instructions"),
                Event::BranchMisses | Event::UnknownBranches => share(Event::Branches, "% of all branches"),
                Event::Others => share(Event::Cycles, "% of the command's"),
                Event::SystemCalls | Event::PageFaults | Event::Exits | Event::Interrupts => {
                    each(event, Event::Clock).map(|ratio| (ratio, "K/sec"))
                }
                _ => thousand(),
            };
            found.map(|(value, unit)| Metric { value, unit })
        };
        let counter = |&(event, name, needs): &(Event, &'static str, Needs)| {
            if needs == Needs::Some && mean(event) == 0.0 {
                return None;
            }
            if needs == Needs::Core && clock != Clock::Core {
                return Some(Counter { name, value: None, deviation: None, runs: Vec::new(), metric: None });
            }
            Some(Counter::new(name, of(event), metric(event)))
        };
        let seconds = |name, event: Event| {
            Counter::new(name, of(event).into_iter().map(|cycles| cycles / tsc_hz as f64).collect(), None)
        };
        let bound = |(at, bound): (usize, Bound)| {
            let all: Vec<f64> = runs.iter().map(|run| run.bounds[at]).collect();
            let part = Sample::of(&all).mean / mean(Event::Cycles) * 100.0;
            let metric = Metric { value: part, unit: "% of all cycles" };
            Counter::new(bound.name(), all, Some(metric).filter(|metric| metric.value.is_finite()))
        };
        let top_down = Bound::ALL.into_iter().enumerate().filter(|_| clock == Clock::Core).map(bound);
        Self {
            format: FORMAT,
            top_down: top_down.filter(|counter| counter.value != Some(0.0)).collect(),
            subject,
            tsc_hz,
            seeds: runs.iter().filter_map(|run| run.seed).collect(),
            counters: EVENTS.iter().filter_map(counter).collect(),
            elapsed: Counter::new("elapsed", runs.iter().map(|run| run.elapsed).collect(), None),
            user: seconds("user", Event::UserCycles),
            system: seconds("sys", Event::KernelCycles),
        }
    }

    /// Returns comma-separated values: a row for each run, with a column for each counter that the model of time has.
    pub fn csv(&self) -> String {
        let times = [("elapsed", &self.elapsed), ("user", &self.user), ("sys", &self.system)];
        let counted = self.counters.iter().chain(&self.top_down).filter(|counter| counter.value.is_some());
        let all: Vec<(&str, &Counter)> =
            times.into_iter().chain(counted.map(|counter| (counter.name, counter))).collect();
        let mut out = String::new();
        row(&mut out, ["command", "seed"].into_iter().chain(all.iter().map(|(name, _)| *name)));
        for run in 0..self.elapsed.runs.len() {
            let seed = self.seeds.get(run).map_or_else(String::new, u64::to_string);
            let cells = all.iter().map(|(_, counter)| number_of(counter.runs.get(run).copied()));
            row(&mut out, [self.subject.command.clone(), seed].into_iter().chain(cells));
        }
        out
    }

    /// Returns the table for people.
    pub fn text(&self) -> String {
        let runs = self.elapsed.runs.len();
        let layouts = match (runs, self.seeds.first(), self.seeds.last()) {
            (1, None, _) => String::new(),
            (1, Some(seed), _) => format!(" (layout of seed {seed})"),
            (_, Some(first), Some(last)) => format!(" ({runs} layouts, seeds {first} to {last})"),
            _ => format!(" ({runs} runs)"),
        };
        let mut out = format!("\n Performance counter stats for '{}'{layouts}:\n\n", self.subject.command);
        let deviation = |counter: &Counter| {
            counter.deviation.map_or_else(String::new, |part| format!("  ( +-{:6.2}% )", part * 100.0))
        };
        let line = |out: &mut String, counter: &Counter| {
            let value = match counter.value {
                None => "<not modelled>".to_owned(),
                Some(value) if counter.name == "task-clock" => format!("{value:.3} msec"),
                Some(value) => number(value.round().max(0.0) as u64),
            };
            let metric = counter.metric.as_ref().map_or_else(String::new, |metric| {
                let digits = if metric.value >= 100.0 { 0 } else { 3 };
                format!("#{:9.digits$}  {}", metric.value, metric.unit)
            });
            let line = format!("{value:>20}  {:<37}{metric:<36}{}", counter.name, deviation(counter));
            *out += &format!("{}\n", line.trim_end());
        };
        self.counters.iter().for_each(|counter| line(&mut out, counter));
        if !self.top_down.is_empty() {
            out += "\n Cycles, top-down:\n\n";
            self.top_down.iter().for_each(|counter| line(&mut out, counter));
        }
        out.push('\n');
        for (counter, what) in [
            (&self.elapsed, "seconds of virtual time elapsed"),
            (&self.user, "seconds user"),
            (&self.system, "seconds sys"),
        ] {
            let line = format!("{:>20.9}  {what:<31}{}", counter.value.unwrap_or_default(), deviation(counter));
            out += &format!("{}\n", line.trim_end());
        }
        let Subject { processor, profile, model, kernel, version, .. } = &self.subject;
        let kernel = kernel.as_ref().map_or_else(String::new, |kernel| format!(", kernel {kernel}"));
        out += &format!("\n on {processor} (profile {profile}, model {model}){kernel}; Tollgate {version}\n");
        out
    }
}

#[cfg(test)]
mod tests;
