//! When the condition of a mispredicted branch is known, if it waits for what earlier runs have begun.
//!
//! The runs are decoded from memory, where [`Recent`](super::recent::Recent) says that they began, and the model of time says how late the
//! condition is. The answer depends on nothing but these addresses and the bytes there, so it is remembered with them: nearly all
//! mispredictions repeat one that has been seen.

use super::recent::{Begins, CUT, MOST};
use super::{Followed, Lead};
use crate::decode::MAX_LENGTH;
use crate::op::{Op, Timed};
use crate::ram::{Ram, lines};
use crate::state::Cpu;
use ledger::{Class, Ticks};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use x86::page::PAGE;

/// The most instructions of a run that is followed. A longer one has ended what was begun in front of it.
const MOST_INSTRUCTIONS: usize = 256;

/// The most answers that are remembered.
const MOST_ANSWERS: usize = 1 << 16;
/// The most runs that are remembered: one takes some kilobytes.
const MOST_RUNS: usize = 1 << 14;

/// What an answer is for: where the runs began, and the offset in its page and the mode of the branch.
type Question = (Begins, u32);

/// A run that has been decoded.
struct Run {
    /// Its guest-physical address.
    begin: u64,
    bytes: Box<[u8]>,
    followed: Followed,
    /// Its last instruction, if that ends it: the class, the offset in its page, and the address behind it.
    end: Option<(Class, u32, u64)>,
}

/// An answer, and what it was derived from.
struct Answer {
    late: u32,
    /// The [version](Ram::code_version) of memory in which the bytes are known to be the same; `None` if a change of them would not be noticed.
    checked: Option<u64>,
    runs: Box<[Arc<Run>]>,
}

/// What has been found out.
#[derive(Default)]
pub(crate) struct Resolutions {
    answers: FxHashMap<Question, Answer>,
    runs: FxHashMap<(u64, u8), Arc<Run>>,
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
    fn lead(&self, next: u64) -> Option<Lead> {
        self.end.map(|(class, _, behind)| match class {
            Class::Branch if behind == next => Lead::Through,
            Class::Call | Class::Return => Lead::Called,
            _ => Lead::Taken,
        })
    }
}

impl Answer {
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

impl Cpu {
    /// Returns the ticks for which the condition of a mispredicted branch is not known yet when the branch could execute, because it waits for
    /// earlier runs; 0 if it waits for none.
    pub(crate) fn late_behind_runs(&mut self, op: &Op) -> Ticks {
        let begins = self.micro.recent.last();
        // Without a run in front there is nothing but the branch's own.
        if begins[MOST - 2] == CUT {
            return 0;
        }
        let question = (begins, (op.rip() & (PAGE - 1)) as u32 | u32::from(self.engine.mode) << 16);
        if let Some(answer) = self.engine.resolutions.answers.get_mut(&question)
            && answer.holds(&self.wiring.ram)
        {
            return answer.late.into();
        }
        let Resolutions { answers, runs } = &mut self.engine.resolutions;
        // Answers keep their runs, so both are forgotten together.
        if answers.len() >= MOST_ANSWERS || runs.len() >= MOST_RUNS {
            answers.clear();
            runs.clear();
        }
        let answer = self.resolve_branch(&question);
        let late = answer.late;
        self.engine.resolutions.answers.insert(question, answer);
        late.into()
    }

    /// Derives the answer to a question from memory.
    #[cold]
    #[inline(never)]
    fn resolve_branch(&mut self, (begins, branch): &Question) -> Answer {
        let begins = begins.iter().filter(|begin| **begin != CUT);
        let runs: Box<[_]> = begins.map(|begin| self.run_at(*begin)).collect();
        let offset = branch & 0xffff;
        let late = match runs.last().and_then(|last| last.end) {
            Some((Class::Branch, at, _)) if at == offset => {
                let leads = runs.iter().zip(&runs[1..]).map(|(run, next)| run.lead(next.begin)).chain([None]);
                let runs = runs.iter().zip(leads).map(|(run, lead)| (&run.followed, lead));
                self.wiring.model.timing.late_behind(&mut { runs })
            }
            _ => 0,
        };
        let ram = &self.wiring.ram;
        let checked = runs.iter().all(|run| run.is_watched(ram)).then(|| ram.code_version());
        Answer { late, checked, runs }
    }

    /// Returns the run that begins at a guest-physical address.
    fn run_at(&mut self, begin: u64) -> Arc<Run> {
        let key = (begin, self.engine.mode);
        if let Some(run) = self.engine.resolutions.runs.get(&key).filter(|run| run.holds(&self.wiring.ram)) {
            return Arc::clone(run);
        }
        let run = Arc::new(self.decode_run(begin));
        self.engine.resolutions.runs.insert(key, Arc::clone(&run));
        run
    }

    /// Decodes the run that begins at a guest-physical address, as far as it is in the same page.
    fn decode_run(&self, begin: u64) -> Run {
        let mut bytes = vec![0; (PAGE - (begin & (PAGE - 1))) as usize];
        if !self.wiring.ram.read_bytes(begin, &mut bytes) {
            bytes.clear();
        }
        let (mut instructions, mut at, mut end) = (Vec::new(), 0, None);
        while at < bytes.len() && instructions.len() < MOST_INSTRUCTIONS && end.is_none() {
            let rest = &bytes[at..];
            let here = begin + at as u64;
            let Ok(instruction) = Self::decode_one(&rest[..rest.len().min(MAX_LENGTH)], here, self.engine.mode) else {
                // An instruction goes on in another page, as far as these bytes tell.
                at = bytes.len();
                break;
            };
            let (op, ends) = self.operation_of(&instruction, self.engine.mode);
            at += usize::from(op.len).max(1);
            end = ends.then_some((op.class, (here & (PAGE - 1)) as u32, op.next));
            instructions.push(Timed { op, instruction });
        }
        bytes.truncate(at);
        let model = &self.wiring.model;
        let followed = model.timing.follow(&model.costs, &mut instructions.iter().map(Timed::step));
        Run { begin, bytes: bytes.into(), followed, end }
    }
}
