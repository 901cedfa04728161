//! A cache of lateness: for a mispredicted branch and the runs in front of it, the time that [`super::late`] has derived.
//!
//! The time depends on nothing but the addresses of these runs and the bytes there. Nearly all mispredictions repeat one that has been seen.

use super::recent::Begins;
use super::{Followed, Lead};
use crate::ram::{Ram, lines};
use ledger::Class;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use x86::page::PAGE;

/// The most answers that are remembered.
const MOST_ANSWERS: usize = 1 << 16;
/// The most runs that are remembered: one takes some kilobytes.
const MOST_RUNS: usize = 1 << 14;

/// The key of an answer.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Question {
    /// The addresses at which the runs began.
    pub begins: Begins,
    /// The offset of the branch in its page.
    pub offset: u16,
    /// The mode in which the processor executes the branch.
    pub mode: u8,
}

/// A run that has been decoded.
pub(crate) struct Run {
    /// Its guest-physical address.
    pub begin: u64,
    /// The bytes that were read.
    pub bytes: Box<[u8]>,
    /// Its instructions.
    pub followed: Followed,
    /// Its last instruction, if that ends it: the class, the offset in its page, and the address behind it.
    pub end: Option<(Class, u16, u64)>,
}

/// An answer, and what it was derived from.
pub(crate) struct Answer {
    /// The time for which the condition is not known yet, in ticks.
    pub late: u32,
    /// The [version](Ram::code_version) of memory in which the bytes are known to be the same; `None` if a change of them would not be noticed.
    checked: Option<u64>,
    runs: Box<[Arc<Run>]>,
}

/// The cache: answers, and the runs that they were derived from.
#[derive(Default)]
pub(crate) struct Resolutions {
    answers: FxHashMap<Question, Answer>,
    /// Decoded runs, by address and mode.
    runs: FxHashMap<(u64, u8), Arc<Run>>,
}

impl Resolutions {
    /// Returns the answer to a question, if nothing that it was derived from has changed.
    pub fn answer(&mut self, question: &Question, ram: &Ram) -> Option<u32> {
        let answer = self.answers.get_mut(question)?;
        answer.holds(ram).then_some(answer.late)
    }

    /// Adds an answer.
    pub fn learn(&mut self, question: Question, answer: Answer) {
        // Answers keep their runs, so both are forgotten together.
        if self.answers.len() >= MOST_ANSWERS || self.runs.len() >= MOST_RUNS {
            self.answers.clear();
            self.runs.clear();
        }
        self.answers.insert(question, answer);
    }

    /// Returns the run that begins at a guest-physical address, which `decode` decodes if it is not known.
    pub fn run(&mut self, begin: u64, mode: u8, ram: &Ram, decode: impl FnOnce() -> Run) -> Arc<Run> {
        if let Some(run) = self.runs.get(&(begin, mode)).filter(|run| run.holds(ram)) {
            return Arc::clone(run);
        }
        let run = Arc::new(decode());
        self.runs.insert((begin, mode), Arc::clone(&run));
        run
    }
}

impl Run {
    /// Returns true if the bytes are still the same.
    fn holds(&self, ram: &Ram) -> bool {
        ram.holds(self.begin, &self.bytes)
    }

    /// Returns true if a change of the bytes would change the version of memory.
    fn is_watched(&self, ram: &Ram) -> bool {
        let all = lines(self.begin & (PAGE - 1), self.bytes.len().max(1) as u64);
        ram.marked(self.begin) & all == all
    }

    /// Returns how the last instruction leads to the run that begins at a guest-physical address; `None` if it is not known.
    pub fn lead(&self, next: u64) -> Option<Lead> {
        self.end.map(|(class, _, behind)| match class {
            Class::Branch if behind == next => Lead::Through,
            Class::Call | Class::Return => Lead::Called,
            _ => Lead::Taken,
        })
    }
}

impl Answer {
    /// Makes an answer that was derived from runs.
    pub fn of(late: u32, runs: Box<[Arc<Run>]>, ram: &Ram) -> Self {
        let checked = runs.iter().all(|run| run.is_watched(ram)).then(|| ram.code_version());
        Self { late, checked, runs }
    }

    /// Returns true if nothing that the answer was derived from has changed.
    fn holds(&mut self, ram: &Ram) -> bool {
        let version = ram.code_version();
        if self.checked == Some(version) {
            return true;
        }
        let holds = self.runs.iter().all(|run| run.holds(ram));
        self.checked = (holds && self.runs.iter().all(|run| run.is_watched(ram))).then_some(version);
        holds
    }
}
