//! Comparison of one command on two kernels, or under two settings: which one costs more, with what confidence, and why.
//!
//! The input is [`Paid`] for each run. A [`Diff`] is plain data, which the other modules present: `sentence` in one sentence, `sheets` as tables for the
//! terminal and for Markdown, `junit` for programs that collect tests, [`crate::report::diff_page`] as a page.

pub mod csv;
pub mod entries;
mod gathered;
mod interrupted;
pub mod junit;
pub mod origin;
pub mod paid;
mod rests;
pub mod runner;
pub mod saved;
pub(crate) mod sentence;
pub mod series;
pub mod several;
pub mod sheets;
pub mod statistics;
mod top_down;
pub mod verdict;

use crate::charges::Tallies;
use crate::difference::{Change, changes};
use crate::flame::Folded;
pub use entries::EntryChange;
use gathered::gathered;
pub use interrupted::{Interrupted, TimeLimit};
use ledger::TICKS_PER_CYCLE;
use ledger::profile::Clock;
use origin::{Differing, Files, Origin, Provenance};
pub use paid::Paid;
pub use rests::{Known, Priced, Rests};
use serde::Serialize;
pub use series::Series;
pub use several::Several;
use statistics::Sample;
pub(crate) use verdict::Position;
pub use verdict::{Answer, Held, Terms, Verdict};

/// The version of the JSON document.
pub const FORMAT: u32 = 3;

/// A run of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Seed of the run's layout, if the layout was drawn.
    pub seed: Option<u64>,
    /// The costs of the run.
    pub paid: Paid,
    /// The command's call stacks or cost tree, for the page; empty if there is none.
    pub stacks: Folded,
    /// Seconds of virtual time for which the kernel was busy before the command began. Infinite if the kernel never became idle.
    pub settled_after: f64,
}

/// The runs of one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// Name of the side: a letter or a word.
    pub name: String,
    /// Title of the side: its kernel and its settings.
    pub title: String,
    /// The command line, which differs between sides if parameters stand in it.
    pub command: String,
    /// Names and values of the parameters that were replaced in the command and in the settings.
    pub parameters: Vec<(String, String)>,
    /// The files of the host that the command could read.
    pub files: Files,
    /// Frequency of the cycles, in hertz.
    pub tsc_hz: u64,
    /// The model of time.
    pub clock: Clock,
    /// What is known of the prices behind the charges.
    pub prices: Option<Known>,
    /// The processor, the kernel and the inputs of the side.
    pub origin: Origin,
    /// The runs, at least one. Runs of A and B with the same index are a pair.
    pub runs: Vec<Run>,
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Seed of the run's layout, if the layout was drawn.
    pub seed: Option<u64>,
    /// Cycles charged to the command.
    pub cycles: f64,
    /// Instructions of the command.
    pub instructions: u64,
    /// Cycles charged to other tasks and to interrupts while the command ran.
    pub meanwhile: f64,
    /// Virtual time from the command's start to its end, in seconds.
    pub elapsed: f64,
    /// Seconds for which the kernel was busy before the command began. None if the kernel never became idle.
    pub settled_after: Option<f64>,
}

/// One side of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Name of the side.
    #[serde(skip)]
    pub name: String,
    /// Title of the side.
    pub title: String,
    /// Frequency of the cycles, in hertz.
    pub tsc_hz: u64,
    /// The processor, the kernel and the inputs of the side.
    pub origin: Origin,
    /// Statistics of the command's cycles.
    pub cycles: Sample,
    /// Figures of each run.
    pub runs: Vec<Figures>,
}

/// Warnings, notes and provenance, which a reader must know besides the figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remarks {
    /// Reasons for which the comparison may not be the one that was meant: they come before the answer.
    pub warnings: Vec<String>,
    /// Other remarks.
    pub notes: Vec<String>,
    /// Set if the user stopped the measurement. A warning says it too.
    pub interrupted: Option<Interrupted>,
    /// Set if a time limit ended the measurement before it was complete. A warning says it too.
    pub time_limit: Option<TimeLimit>,
    /// Names of sides that differ from the reference only in settings without an effect: further layouts would show nothing of them.
    pub idle: Vec<String>,
    /// Version, seeds, files and the command that measures the same again.
    pub provenance: Provenance,
}

/// The comparison of two sides of a command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The version of the document.
    pub format: u32,
    /// Reasons for which the comparison may not be the one that was meant.
    pub warnings: Vec<String>,
    /// Set if the user stopped the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
    /// Set if a time limit ended the measurement before it was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<TimeLimit>,
    /// The answer in one sentence.
    pub sentence: String,
    /// The confidence of the answer in one sentence.
    pub certainty: String,
    /// What `--fail-above` decided, and why.
    pub decision: Option<String>,
    /// The shares of the difference at measured prices, at estimates, and from the model of time.
    pub rests: Option<Rests>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// The command line.
    pub command: String,
    /// The answer for programs.
    pub verdict: Verdict,
    /// The first side.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// The settings, kernels and inputs that differ between the sides.
    pub differs: Vec<Differing>,
    /// Changes in the command's tasks by cause: means over the runs, the largest change first, without causes that are equal on both sides.
    pub causes: Vec<Change>,
    /// The same as top-down analysis splits it, in its order; empty unless both sides have a model that tells the parts apart.
    pub top_down: Vec<Change>,
    /// The same by function: instructions, and ticks for all causes.
    pub functions: Vec<Change>,
    /// Entries of the command's tasks to the kernel, with everything below them, the largest change first, without those that are equal.
    pub entries: Vec<EntryChange>,
    /// Changes in other tasks and interrupts while the command ran.
    pub meanwhile: Vec<Change>,
    /// Entries of other tasks, interrupts and soft interrupts while the command ran.
    pub entries_meanwhile: Vec<EntryChange>,
    /// Version, seeds, files and the command that measures the same again.
    pub provenance: Provenance,
    /// The command's call stacks or cost trees on both sides, for the page: lines of all runs.
    #[serde(skip)]
    pub stacks: [Folded; 2],
}

/// Returns the folded lines of all runs.
fn folded(runs: &Runs) -> Folded {
    Folded {
        lines: runs.runs.iter().flat_map(|run| run.stacks.lines.iter().cloned()).collect(),
        call_stacks: runs.runs.iter().all(|run| run.stacks.call_stacks),
    }
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
        Self {
            name: runs.name.clone(),
            title: runs.title.clone(),
            tsc_hz: runs.tsc_hz,
            origin: runs.origin.clone(),
            cycles,
            runs: all,
        }
    }

    /// Returns the mean of a figure over the runs.
    pub fn mean(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        Sample::of(&self.runs.iter().map(of).collect::<Vec<_>>()).mean
    }

    /// Returns the settling time of the slowest run; None if a run never settled.
    pub fn settled_after(&self) -> Option<f64> {
        self.runs.iter().map(|run| run.settled_after).try_fold(0.0, |most: f64, seconds| Some(most.max(seconds?)))
    }
}

/// Judges the pairs of two sides.
pub fn judge(a: &[Run], b: &[Run], terms: &Terms) -> Verdict {
    let pairs: Vec<(f64, f64)> = a.iter().zip(b).map(|(a, b)| (a.paid.cycles(), b.paid.cycles())).collect();
    Verdict::new(&pairs, terms)
}

impl Diff {
    /// Compares the runs of a command on two sides.
    pub fn new(command: String, a: &Runs, b: &Runs, terms: &Terms, remarks: Remarks) -> Self {
        let [before, after] = [a, b].map(|runs| (Paid::sum(runs.runs.iter().map(|run| &run.paid)), runs.runs.len()));
        let changed = |of: &dyn Fn(&Paid) -> Tallies| {
            let [before, after] = [&before, &after].map(|(sum, runs)| paid::means(of(sum), *runs));
            changes(&before, &after)
        };
        let stacks = [folded(a), folded(b)];
        let top_down = top_down::changes((a, &before.0), (b, &after.0));
        let verdict = judge(&a.runs, &b.runs, terms);
        let verdict = if remarks.interrupted.is_some() { verdict.of_interrupted() } else { verdict };
        let rests = Rests::new(a, b);
        let names = [&*a.name, &*b.name];
        let (a, b) = (Side::new(a), Side::new(b));
        let causes = changed(&Paid::causes);
        let functions = changed(&|paid| paid.functions.clone());
        let by_function = |cause: &str| changed(&|paid| paid.of_cause(cause));
        let total = paid::sum(&paid::means(before.0.functions.clone(), before.1));
        let sums = [(&before.0, before.1), (&after.0, after.1)];
        let entries = entries::changes(sums, |paid| &paid.entries);
        let entries_meanwhile = entries::changes(sums, |paid| &paid.entries_meanwhile);
        let advises = !remarks.idle.contains(&b.name);
        let reason = sentence::reason(&verdict, total, &causes, &entries, by_function);
        Self {
            format: FORMAT,
            warnings: gathered(remarks.warnings, &names),
            interrupted: remarks.interrupted,
            time_limit: remarks.time_limit,
            sentence: sentence::answer(&verdict, [&a, &b], reason, advises, remarks.time_limit.is_some()),
            certainty: sentence::certainty(&verdict, [&a, &b], advises),
            decision: sentence::decision(&verdict, [&a, &b], advises, remarks.interrupted.is_some()),
            rests,
            notes: gathered(remarks.notes.into_iter().chain(sentence::notes(&a, &b)).collect(), &names),
            command,
            differs: origin::differing(&a.origin, &b.origin),
            causes,
            top_down,
            functions,
            entries,
            meanwhile: changed(&|paid| paid.meanwhile.clone()),
            entries_meanwhile,
            provenance: remarks.provenance,
            stacks,
            verdict,
            a,
            b,
        }
    }

    /// Returns the answer in two parts of a few words: a figure, and its meaning.
    pub fn short_answer(&self) -> (String, String) {
        sentence::short(&self.verdict)
    }

    /// Returns the result as one JUnit test, which fails if B's cost exceeds the limit.
    pub fn junit(&self) -> Result<String, crate::report::ReportError> {
        junit::document(std::iter::once(self), &[], self.interrupted)
    }
}

/// Words of each note that says how much of a side's time belongs to code without names.
pub const WITHOUT_NAMES: &str = "of the command's time is spent in";

/// Returns true for a note that explains the tables and not the answer: it stands below them.
fn is_aside(note: &str) -> bool {
    note.contains(WITHOUT_NAMES)
}

#[cfg(test)]
pub(crate) mod tests;
