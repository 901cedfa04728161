//! Questions of translated code for lines of code, which are frequent calls from it where caches are modelled: what such a call needs is
//! side by side in the host's memory.

use super::waits::WaitCounter;
use ledger::Kind;

/// A question for the line in which an instruction begins.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct LineQuestion {
    /// Address of the instruction.
    pub rip: u64,
    /// Argument for the full form of the question (`dispatch::ask`).
    pub code: u64,
    /// Guest-physical address of the line divided by its size.
    pub line: u32,
    /// Price of the instruction's block from the instruction on, in ticks.
    pub rest: u32,
    /// Time from the begin of the trace's first block to the begin of its last, in ticks.
    pub span: u32,
    /// The counter of waits for the second level.
    pub waits: WaitCounter,
}

impl LineQuestion {
    /// Creates a question, unless the line or a time is out of the usual range.
    pub fn new(rip: u64, code: u64, line: u64, rest: u64, span: u64) -> Option<Self> {
        let [line, rest, span] = [line, rest, span].map(u32::try_from);
        Some(Self { rip, code, line: line.ok()?, rest: rest.ok()?, span: span.ok()?, waits: WaitCounter::default() })
    }
}

/// Result of a short form that has done what it was called for, in place of the argument for the full form.
pub const ANSWERED: u64 = u64::MAX;

/// The kind of event that a question's counters count.
pub const COUNTED: Kind = Kind::cache_miss(true, 2, false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_room_for_usual_values() {
        assert!(LineQuestion::new(1, 2, 3, 4, 5).is_some());
        assert!(LineQuestion::new(1, 2, 1 << 32, 4, 5).is_none());
    }
}
