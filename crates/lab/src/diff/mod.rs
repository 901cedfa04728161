//! One command in two kernels, or under two settings: which of them costs more, how sure that is, and why.
//!
//! Runs come as [`Paid`]; a [`Diff`] is plain data that the other modules show: `sentence` in one sentence, `sheets` in tables for the terminal and for
//! Markdown, `junit` for programs that collect tests, [`crate::report::diff_page`] as a page.

mod junit;
pub mod paid;
pub mod runner;
mod sentence;
pub mod sheets;
pub mod statistics;

use crate::difference::{Change, changes};
use ledger::TICKS_PER_CYCLE;
pub use paid::Paid;
use serde::Serialize;
use statistics::{Interval, Sample};

/// The version of the JSON document.
pub const FORMAT: u32 = 1;
/// How the interval is made, for readers of the document.
const METHOD: &str = "Welch's t, 95% confidence, in parts of A's mean";

/// A run of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The seed of its layout; none: the layout was not drawn.
    pub seed: Option<u64>,
    /// What it paid.
    pub paid: Paid,
    /// How long the kernel had something to do before the command began, in seconds of virtual time. Infinite: it never had not.
    pub settled_after: f64,
}

/// The runs of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// What it is.
    pub title: String,
    /// Cycles in a second.
    pub tsc_hz: u64,
    /// At least one.
    pub runs: Vec<Run>,
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The seed of its layout.
    pub seed: Option<u64>,
    /// The command's cycles.
    pub cycles: f64,
    /// The command's instructions.
    pub instructions: u64,
    /// Cycles of other tasks and interrupts meanwhile.
    pub meanwhile: f64,
    /// Virtual time from the command's beginning to its end, in seconds.
    pub elapsed: f64,
    /// Until then the kernel had something to do, in seconds from when the command was ready. None: it never had not.
    pub settled_after: Option<f64>,
}

/// One of the two.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// What it is.
    pub title: String,
    /// Cycles in a second.
    pub tsc_hz: u64,
    /// The command's cycles.
    pub cycles: Sample,
    /// Each run.
    pub runs: Vec<Figures>,
}

/// Whether the two differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// B costs more.
    More,
    /// B costs less.
    Less,
    /// Both cost the same.
    Same,
    /// They differ by less than each of them does between layouts.
    Noise,
}

/// The answer, and how sure it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The answer.
    pub answer: Answer,
    /// By how much B costs more, as a part of A's cost.
    pub relative: f64,
    /// Where the true difference is, as parts of A's cost. None: there was one run each.
    pub interval: Option<Interval>,
    /// How the interval is made.
    pub method: Option<&'static str>,
    /// More than this part of A's cost is too much.
    pub limit: Option<f64>,
    /// It is more than that, beyond noise.
    pub exceeded: bool,
}

/// Two sides of a command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The version of the document.
    pub format: u32,
    /// The answer in one sentence.
    pub sentence: String,
    /// How sure it is, in another.
    pub certainty: String,
    /// What else a reader should know.
    pub notes: Vec<String>,
    /// The command.
    pub command: String,
    /// The answer for programs.
    pub verdict: Verdict,
    /// The first.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// The command's tasks by cause: means of the runs, the largest change first.
    pub causes: Vec<Change>,
    /// … and by function: instructions, and ticks for all causes.
    pub functions: Vec<Change>,
    /// Other tasks and interrupts meanwhile.
    pub meanwhile: Vec<Change>,
}

impl Side {
    fn new(runs: &Runs) -> Self {
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_CYCLE as f64 / runs.tsc_hz as f64;
        let figures = |run: &Run| Figures {
            seed: run.seed,
            cycles: run.paid.cycles(),
            instructions: run.paid.total().count,
            meanwhile: paid::sum(&run.paid.meanwhile).ticks as f64 / TICKS_PER_CYCLE as f64,
            elapsed: seconds(run.paid.elapsed),
            settled_after: Some(run.settled_after).filter(|seconds| seconds.is_finite()),
        };
        let all: Vec<Figures> = runs.runs.iter().map(figures).collect();
        let cycles = Sample::of(&all.iter().map(|run| run.cycles).collect::<Vec<_>>());
        Self { title: runs.title.clone(), tsc_hz: runs.tsc_hz, cycles, runs: all }
    }

    /// The mean of a figure.
    pub fn mean(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        Sample::of(&self.runs.iter().map(of).collect::<Vec<_>>()).mean
    }

    /// How long it took the slowest run to settle; none if one never did.
    pub fn settled_after(&self) -> Option<f64> {
        self.runs.iter().map(|run| run.settled_after).try_fold(0.0, |most: f64, seconds| Some(most.max(seconds?)))
    }
}

impl Verdict {
    fn new(a: &Sample, b: &Sample, limit: Option<f64>) -> Self {
        let relative_to_a = |cycles: f64| if a.mean == 0.0 { 0.0 } else { cycles / a.mean };
        let relative = relative_to_a(b.mean - a.mean);
        let interval = Interval::of_difference(a, b).filter(|_| a.mean != 0.0);
        let answer = match interval {
            _ if a.mean == b.mean => Answer::Same,
            Some(interval) if interval.has_zero() => Answer::Noise,
            _ if relative > 0.0 => Answer::More,
            _ => Answer::Less,
        };
        let interval = interval.map(|interval| interval.relative_to(a.mean));
        let at_least = interval.map_or(relative, |interval| interval.low);
        let exceeded = limit.is_some_and(|limit| at_least > limit);
        Self { answer, relative, interval, method: interval.map(|_| METHOD), limit, exceeded }
    }
}

impl Diff {
    /// Compares runs of a command.
    pub fn new(command: String, a: &Runs, b: &Runs, limit: Option<f64>) -> Self {
        let mean = |runs: &Runs| Paid::mean(&runs.runs.iter().map(|run| run.paid.clone()).collect::<Vec<_>>());
        let (before, after) = (mean(a), mean(b));
        let (a, b) = (Side::new(a), Side::new(b));
        let verdict = Verdict::new(&a.cycles, &b.cycles, limit);
        let causes = changes(&before.causes(), &after.causes());
        let by_function = |cause: &str| changes(&before.of_cause(cause), &after.of_cause(cause));
        let reason = sentence::reason(&verdict, before.total(), &causes, by_function);
        Self {
            format: FORMAT,
            sentence: sentence::answer(&verdict, &a, &b, reason),
            certainty: sentence::certainty(&verdict, &a, &b),
            notes: sentence::notes(&a, &b),
            command,
            causes,
            functions: changes(&before.functions, &after.functions),
            meanwhile: changes(&before.meanwhile, &after.meanwhile),
            verdict,
            a,
            b,
        }
    }

    /// One test of a suite in the format of JUnit, which fails when B costs too much.
    pub fn junit(&self) -> Result<String, crate::report::ReportError> {
        junit::document(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
