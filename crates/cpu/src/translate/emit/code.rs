//! Questions for lines of code and for branches: see [`crate::code_lines`].

use super::aside::{Asked, From};
use super::{Aim, Emit};
use crate::known_code::{Question, always_branches};
use crate::time::memory::LINE_SHIFT;
use crate::translate::asm::{M, R};
use crate::translate::layout::{FIRST, TEST, field, found};
use crate::translate::questions::LineQuestion;

impl Emit<'_> {
    /// Asks for the line of the current instruction, unless the instruction in front of it is in the same line, and for its
    /// branch if it always branches.
    pub(super) fn ask_for_code(&mut self) {
        if !self.source.fetches {
            return;
        }
        let op = *self.op();
        let line = self.part().block.at(&op) >> LINE_SHIFT;
        if self.line.replace(line) != Some(line) {
            let rest = self.part().rests[self.at];
            self.ask_unless_known(Question::line(line), Asked::Line { rip: op.rip(), line, rest });
        }
        if always_branches(op.class) {
            self.ask_unless_known(Question::branch(op.rip(), op.branches_far()), Asked::Always);
        }
    }

    /// Asks for the branch of the current instruction, a conditional branch that is taken.
    pub(in crate::translate) fn ask_for_taken(&mut self) {
        if self.source.fetches {
            let op = self.op();
            self.ask_unless_known(Question::branch(op.rip(), op.branches_far()), Asked::Taken);
        }
    }

    /// Continues if the answer to a question is known to be yes.
    fn ask_unless_known(&mut self, question: Question, asked: Asked) {
        self.asm.flagless_load(TEST, field!(known_code));
        self.asm.flagless_load32(TEST, M::at(TEST, 4 * question.slot as i32));
        // A tag is never 0, so that one more than the negated tag does not overflow.
        let difference = M::at(TEST, (question.tag as i32).wrapping_neg());
        let site = self.asm.flagless_jump_unless_zero_sum(false, difference);
        let from = From::Ask { site, asked, held: self.held(), back: self.asm.here() };
        let (code, loaded) = (self.slow_code(), self.loaded);
        let stub = self.aside(from);
        (stub.code, stub.loaded) = (code, loaded);
    }

    /// Calls for the answer to a question about the instruction of `code`.
    pub(super) fn ask(&mut self, code: u64, asked: Asked, held: Option<usize>, loaded: u8, back: usize) {
        let (code, aim) = match asked {
            Asked::Taken => (code, Aim::AskTaken),
            Asked::Always => (code, Aim::Ask),
            Asked::Line { rip, line, rest } => match LineQuestion::new(rip, code, line, rest, self.source.span()) {
                Some(question) => {
                    let number = self.source.question + self.questions.len() as u32;
                    self.questions.push(question);
                    (number.into(), Aim::AskLine)
                }
                None => (code, Aim::Ask),
            },
        };
        self.asm.flagless_constant(TEST, code);
        let call = self.asm.call();
        self.aims.push((call, aim));
        self.call_load(loaded);
        if let Some(group) = held {
            self.asm.flagless_load(FIRST, found(group));
        }
        let site = self.asm.jump();
        self.asm.aim(site, back);
    }
}
