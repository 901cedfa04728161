//! The sums of a processor's charges that performance counters count, as the ledger has them, for kernel and user code.

use ledger::{Class, Family, Kind, Ticks};
use serde::{Deserialize, Serialize};

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counted {
    /// Time in which the processor was not halted, in ticks.
    Time,
    /// Instructions that completed.
    Instructions,
    /// Branches that completed, far ones included.
    Branches,
    /// Mispredicted branches.
    Mispredictions,
    /// Accesses to data that the first-level cache did not have.
    SecondLevelData,
    /// Fetches that the first-level cache did not have.
    SecondLevelCode,
    /// Accesses to data that the first two levels did not have.
    ThirdLevelData,
    /// Fetches that the first two levels did not have.
    ThirdLevelCode,
    /// Accesses to data that no cache had.
    MemoryData,
    /// Fetches that no cache had.
    MemoryCode,
}

/// Number of variants of [`Counted`].
const COUNTED: usize = Counted::MemoryCode as usize + 1;

/// Sums of kernel code, and of user code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts([[u64; COUNTED]; 2]);

/// Returns true if instructions of a class are near branches.
fn is_branch(class: Class) -> bool {
    use Class::*;
    matches!(class, Branch | Jump | Call | Return | IndirectJump | IndirectCall)
}

impl Counts {
    fn put(&mut self, user: bool, what: Counted, count: u64) {
        let sum = &mut self.0[usize::from(user)][what as usize];
        *sum = sum.wrapping_add(count);
    }

    /// Adds a charge.
    pub(crate) fn add(&mut self, user: bool, kind: Kind, count: u64, ticks: Ticks) {
        use Counted::*;
        if kind.family == Family::Halt {
            return;
        }
        self.put(user, Time, ticks);
        match kind.family {
            Family::Instruction if kind.param == Class::StringStep as u32 => {}
            Family::Instruction => {
                self.put(user, Instructions, count);
                if Class::ALL.get(kind.param as usize).is_some_and(|class| is_branch(*class)) {
                    self.put(user, Branches, count);
                }
            }
            Family::Syscall | Family::Sysret | Family::Iret | Family::FarTransfer | Family::SoftwareInterrupt => {
                self.put(user, Branches, count);
            }
            Family::BranchMiss | Family::IndirectMiss | Family::ReturnMiss => self.put(user, Mispredictions, count),
            Family::CacheMissData => self.missed(user, kind, count, [SecondLevelData, ThirdLevelData, MemoryData]),
            Family::CacheMissCode => self.missed(user, kind, count, [SecondLevelCode, ThirdLevelCode, MemoryCode]),
            _ => {}
        }
    }

    /// Adds misses of the first level, which ask the levels after it until one has the line.
    fn missed(&mut self, user: bool, kind: Kind, count: u64, levels: [Counted; 3]) {
        let served = kind.param & !Kind::PREFETCHED;
        self.put(user, levels[0], count);
        if served > 2 {
            self.put(user, levels[1], count);
        }
        if served == Kind::MEMORY {
            self.put(user, levels[2], count);
        }
    }

    /// Adds executions of a block that costs `ticks`.
    pub(crate) fn add_block(
        &mut self,
        user: bool,
        classes: impl ExactSizeIterator<Item = Class>,
        runs: u64,
        ticks: Ticks,
    ) {
        self.put(user, Counted::Time, ticks.wrapping_mul(runs));
        self.put(user, Counted::Instructions, runs.wrapping_mul(classes.len() as u64));
        let branches = classes.filter(|class| is_branch(*class)).count() as u64;
        self.put(user, Counted::Branches, runs.wrapping_mul(branches));
    }

    /// Adds the sums of another one, which begins again at zero.
    pub(crate) fn take_from(&mut self, other: &mut Self) {
        let other = std::mem::take(other);
        for (sums, more) in self.0.iter_mut().zip(other.0) {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        }
    }

    /// Returns the sum of what a counter counts, for kernel code, user code or both.
    pub(crate) fn sum(&self, what: &[Counted], kernel: bool, user: bool) -> u64 {
        let of = |ring: usize| what.iter().fold(0u64, |sum, what| sum.wrapping_add(self.0[ring][*what as usize]));
        let when = |wanted: bool, ring| if wanted { of(ring) } else { 0 };
        when(kernel, 0).wrapping_add(when(user, 1))
    }
}

/// The charges of a processor since its counters were completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// True if any counter counts.
    pub(crate) on: bool,
    /// Sums since the counters were completed.
    pub(crate) counts: Counts,
    /// Time at which the counters are looked at.
    pub(crate) look_at: Ticks,
}

impl Default for Tally {
    fn default() -> Self {
        Self { on: false, counts: Counts::default(), look_at: Ticks::MAX }
    }
}

impl Tally {
    /// Returns true if any counter counts.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Takes the sums, which begin again at zero.
    pub(crate) fn take(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}
