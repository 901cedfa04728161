//! The time for which the condition of a mispredicted branch is not known, because the condition waits for instructions of earlier runs.
//!
//! The runs are decoded from memory, where [`Recent`](super::recent::Recent) says that they began, and the model of time says how late the
//! condition is. [`Resolutions`](super::resolution::Resolutions) remembers the answer.

use super::recent::{CUT, MOST};
use super::resolution::{Answer, Question, Run};
use crate::op::{Op, Timed};
use crate::state::Cpu;
use ledger::{Class, Ticks};
use std::sync::Arc;
use x86::page::PAGE;

/// The most instructions of a run that is followed. A longer one has ended what was begun in front of it.
const MOST_INSTRUCTIONS: usize = 256;

impl Cpu {
    /// Returns the ticks for which the condition of a mispredicted branch is not known yet when the branch could execute, because it waits for
    /// earlier runs; 0 if it waits for none.
    pub(crate) fn late_behind_runs(&mut self, op: &Op) -> Ticks {
        let begins = self.micro.recent.last();
        // Without a run in front there is nothing but the branch's own.
        if begins[MOST - 2] == CUT {
            return 0;
        }
        let question = Question { begins, offset: (op.rip() & (PAGE - 1)) as u16, mode: self.engine.mode };
        if let Some(late) = self.engine.resolutions.answer(&question, &self.wiring.ram) {
            return late.into();
        }
        let answer = self.resolve_branch(&question);
        let late = answer.late;
        self.engine.resolutions.learn(question, answer);
        late.into()
    }

    /// Derives the answer to a question from memory.
    #[cold]
    #[inline(never)]
    fn resolve_branch(&mut self, question: &Question) -> Answer {
        let begins = question.begins.iter().filter(|begin| **begin != CUT);
        let runs: Box<[_]> = begins.map(|begin| self.run_at(*begin)).collect();
        let late = match runs.last().and_then(|last| last.end) {
            Some((Class::Branch, offset, _)) if offset == question.offset => {
                let leads = runs.iter().zip(&runs[1..]).map(|(run, next)| run.lead(next.begin)).chain([None]);
                let runs = runs.iter().zip(leads).map(|(run, lead)| (&run.followed, lead));
                self.wiring.model.timing.late_behind(&mut { runs })
            }
            _ => 0,
        };
        Answer::of(late, runs, &self.wiring.ram)
    }

    /// Returns the run that begins at a guest-physical address.
    fn run_at(&mut self, begin: u64) -> Arc<Run> {
        let mut resolutions = std::mem::take(&mut self.engine.resolutions);
        let run = resolutions.run(begin, self.engine.mode, &self.wiring.ram, || self.decode_run(begin));
        self.engine.resolutions = resolutions;
        run
    }

    /// Decodes the run that begins at a guest-physical address, as far as it is in the same page.
    fn decode_run(&self, begin: u64) -> Run {
        let mut bytes = vec![0; (PAGE - (begin & (PAGE - 1))) as usize];
        if !self.wiring.ram.read_bytes(begin, &mut bytes) {
            bytes.clear();
        }
        let (mut instructions, mut end) = (Vec::new(), None);
        for (timed, ends) in self.decode_bytes(&bytes, begin, self.engine.mode).take(MOST_INSTRUCTIONS) {
            let op = timed.op;
            instructions.push(timed);
            if ends {
                end = Some((op.class, (op.rip() & (PAGE - 1)) as u16, op.next));
                break;
            }
        }
        // An instruction that goes on in another page does so as far as the last bytes of this one tell.
        if end.is_some() || instructions.len() == MOST_INSTRUCTIONS {
            bytes.truncate(instructions.iter().map(|timed| usize::from(timed.op.len).max(1)).sum());
        }
        let model = &self.wiring.model;
        let followed = model.timing.follow(&model.costs, &mut instructions.iter().map(Timed::step));
        Run { begin, bytes: bytes.into(), followed, end }
    }
}
