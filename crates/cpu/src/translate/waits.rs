//! Counters of waits for a line from the second level at an instruction of translated code.

use crate::blocks::{Blocks, Derived};
use ledger::Kind;

/// Number of waits before they have counters: most instructions wait a few times, when their code is executed for the first time,
/// and counters are scarce.
const OFTEN: u32 = 8;
/// Value if no counters are left.
const NONE_LEFT: u32 = u32::MAX;

/// The number of waits so far, or [`OFTEN`] plus the number of the counter of such waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitCounter(u32);

impl WaitCounter {
    /// Returns the number of the counter of waits: the next counter has their time. `pair` gives two counters, if there are any left.
    #[inline(always)]
    fn number(&mut self, pair: impl FnOnce() -> Option<u32>) -> Option<u32> {
        match self.0 {
            NONE_LEFT => return None,
            waits if waits < OFTEN - 1 => {
                self.0 += 1;
                return None;
            }
            waits if waits == OFTEN - 1 => self.0 = pair().map_or(NONE_LEFT, |number| number + OFTEN),
            _ => {}
        }
        self.0.checked_sub(OFTEN).filter(|_| self.0 != NONE_LEFT)
    }

    /// Returns the number of the counter of events of a kind at the instruction at `rip`, if they have one.
    #[inline(always)]
    pub fn of<D: Derived>(&mut self, code: &mut Blocks<D>, rip: u64, kind: Kind) -> Option<u32> {
        self.number(|| code.timed_event(rip, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_for_what_waits_often() {
        let [mut some, mut none] = [WaitCounter::default(); 2];
        for _ in 1..OFTEN {
            assert_eq!(some.number(|| unreachable!("too early")), None);
            assert_eq!(none.number(|| unreachable!("too early")), None);
        }
        assert_eq!(some.number(|| Some(7)), Some(7));
        assert_eq!(some.number(|| unreachable!("it has one")), Some(7));
        assert_eq!(none.number(|| None), None);
        assert_eq!(none.number(|| unreachable!("none is left")), None);
    }
}
