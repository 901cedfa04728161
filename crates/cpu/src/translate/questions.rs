//! Questions of translated code for lines of code, which are the most frequent calls from it where caches are modelled: what such a
//! call needs is side by side in the host's memory.

use ledger::Kind;

/// Number of waits for a line from the second level at an instruction before they have counters: most instructions wait a few
/// times, when their code is executed for the first time, and counters are scarce.
const OFTEN: u32 = 8;
/// Value of [`LineQuestion::counter`] if no counters are left.
const NONE_LEFT: u32 = u32::MAX;

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
    /// The number of waits for the second level so far, or [`OFTEN`] plus the number of the counter of such waits.
    counter: u32,
}

impl LineQuestion {
    /// Creates a question, unless the line or a time is out of the usual range.
    pub fn new(rip: u64, code: u64, line: u64, rest: u64, span: u64) -> Option<Self> {
        let [line, rest, span] = [line, rest, span].map(u32::try_from);
        Some(Self { rip, code, line: line.ok()?, rest: rest.ok()?, span: span.ok()?, counter: 0 })
    }

    /// Returns the number of the counter of waits for the second level: the next counter has their time. `pair` gives two counters, if
    /// there are any left.
    #[inline(always)]
    pub fn counter(&mut self, pair: impl FnOnce(u64) -> Option<u32>) -> Option<u32> {
        match self.counter {
            NONE_LEFT => return None,
            waits if waits < OFTEN - 1 => {
                self.counter += 1;
                return None;
            }
            waits if waits == OFTEN - 1 => self.counter = pair(self.rip).map_or(NONE_LEFT, |number| number + OFTEN),
            _ => {}
        }
        self.counter.checked_sub(OFTEN).filter(|_| self.counter != NONE_LEFT)
    }
}

/// Result of a question's short form that was answered, in place of the argument for the full form.
pub const ANSWERED: u64 = u64::MAX;

/// The kind of event that a question's counters count.
pub const COUNTED: Kind = Kind::cache_miss(true, 2, false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_for_what_waits_often() {
        let question = LineQuestion::new(1, 2, 3, 4, 5).expect("all values are small");
        assert!(LineQuestion::new(1, 2, 1 << 32, 4, 5).is_none());
        let (mut some, mut none) = (question, question);
        for _ in 1..OFTEN {
            assert_eq!(some.counter(|_| unreachable!("too early")), None);
            assert_eq!(none.counter(|_| unreachable!("too early")), None);
        }
        assert_eq!(some.counter(|rip| Some(rip as u32 + 6)), Some(7));
        assert_eq!(some.counter(|_| unreachable!("it has one")), Some(7));
        assert_eq!(none.counter(|_| None), None);
        assert_eq!(none.counter(|_| unreachable!("none is left")), None);
    }
}
