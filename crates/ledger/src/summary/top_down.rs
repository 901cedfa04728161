//! Where the cycles of a run go, as top-down analysis splits them (Yasin, ISPASS 2014), with the crossings of boundaries as a part of
//! their own.
//!
//! The parts add up to the cycles that are not halted. An event belongs to the part that its time is charged for: a wait for a
//! line of code is front end, one for a line of data is back end, at the level that the line came from.
//!
//! What is left is the price of the instructions. A core that issues a number of instructions a cycle needs at least a slot for each:
//! that time is *retiring*, and the rest is *core*: ports, dividers, and dependence between instructions. Instructions of
//! several uops count as one, and so does each of two that are fused. Where no width is given, both are one part.

use super::{By, Lines, Selection};
use crate::{Family, Kind, Ticks};
use rustc_hash::FxHashMap;
use strum::{EnumCount, VariantArray};

/// A part of the cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub enum Bound {
    /// Slots of instructions; all that instructions take, if no width is known.
    Retiring,
    /// Branches that were predicted wrongly.
    BadSpeculation,
    /// Lines of code, translations of their addresses, and branches that the front end did not know.
    FrontEnd,
    /// Ports, dividers and dependence.
    Core,
    /// Data from the second level.
    SecondLevel,
    /// Data from the third level.
    ThirdLevel,
    /// Data from memory.
    Memory,
    /// Data from other processors, which have changed it.
    Contention,
    /// Translations of addresses of data.
    Tlb,
    /// Boundaries that were crossed.
    Crossings,
}

impl Bound {
    /// Every part, in the order of a report.
    pub const ALL: [Self; Self::COUNT] = *<Self as VariantArray>::VARIANTS.first_chunk().unwrap();

    /// Returns the part to which an event belongs; `None` for time that is spent halted.
    fn of(kind: Kind) -> Option<Self> {
        Some(match kind.family {
            Family::Halt => return None,
            Family::Instruction | Family::Split => Self::Core,
            Family::UnknownBranch | Family::CacheMissCode | Family::StlbHitCode | Family::TlbMissCode => Self::FrontEnd,
            Family::StlbHitData | Family::TlbMissData => Self::Tlb,
            Family::CacheMissData => match kind.param & !Kind::PREFETCHED {
                2 => Self::SecondLevel,
                3 => Self::ThirdLevel,
                Kind::PROCESSOR => Self::Contention,
                _ => Self::Memory,
            },
            family if family.is_mispredict() => Self::BadSpeculation,
            _ => Self::Crossings,
        })
    }

    /// Returns the name of the part.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retiring => "retiring",
            Self::BadSpeculation => "bad speculation",
            Self::FrontEnd => "front end",
            Self::Core => "back end, core",
            Self::SecondLevel => "back end, L2",
            Self::ThirdLevel => "back end, L3",
            Self::Memory => "back end, memory",
            Self::Contention => "back end, other processors",
            Self::Tlb => "back end, TLB",
            Self::Crossings => "crossings",
        }
    }
}

/// The cycles of a selection or of a line, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopDown {
    ticks: [Ticks; Bound::COUNT],
}

impl TopDown {
    /// Returns the ticks of a part.
    pub fn of(&self, bound: Bound) -> Ticks {
        self.ticks[bound as usize]
    }

    /// Returns the ticks of all parts.
    pub fn total(&self) -> Ticks {
        self.ticks.iter().fold(0, |sum, ticks| sum.saturating_add(*ticks))
    }

    fn add(&mut self, bound: Bound, ticks: Ticks) {
        let sum = &mut self.ticks[bound as usize];
        *sum = sum.saturating_add(ticks);
    }

    /// Returns the parts of sums of ticks by kind of event, `None` for instructions, of which there are so many. `slot` is the time of the
    /// slot in which the core issues an instruction, if it is known.
    pub fn of_sums(sums: impl Iterator<Item = (Option<Kind>, Ticks)>, instructions: u64, slot: Option<Ticks>) -> Self {
        let mut parts = Self::default();
        for (kind, ticks) in sums {
            if let Some(bound) = kind.map_or(Some(Bound::Core), Bound::of) {
                parts.add(bound, ticks);
            }
        }
        parts.split(instructions, slot)
    }

    /// Splits what instructions took into slots and the rest.
    fn split(mut self, instructions: u64, slot: Option<Ticks>) -> Self {
        let all = self.of(Bound::Core);
        let retiring = slot.map_or(all, |slot| instructions.saturating_mul(slot).min(all));
        self.ticks[Bound::Retiring as usize] = retiring;
        self.ticks[Bound::Core as usize] = all - retiring;
        self
    }
}

impl Selection<'_> {
    /// Returns the parts of all cycles. `slot` is the time of the slot in which the core issues an instruction, if it is known.
    pub fn top_down(self, slot: Option<Ticks>) -> TopDown {
        let (mut parts, mut instructions) = (TopDown::default(), 0u64);
        self.parts(|_, bound, ticks, count| {
            parts.add(bound, ticks);
            instructions = instructions.saturating_add(count);
        });
        parts.split(instructions, slot)
    }

    /// Returns the parts of the `most` lines with the most cycles, the largest first and equal ones by name, and the number of
    /// all lines.
    pub fn top_down_by(self, by: By, most: usize, slot: Option<Ticks>) -> (Vec<(String, TopDown)>, usize) {
        let lines = Lines::new(self.ledger, by);
        let mut sums: FxHashMap<_, (TopDown, u64)> = FxHashMap::default();
        self.parts(|place, bound, ticks, count| {
            let (parts, instructions) = sums.entry(lines.of(place)).or_default();
            parts.add(bound, ticks);
            *instructions = instructions.saturating_add(count);
        });
        let mut named: Vec<(String, TopDown)> = sums
            .into_iter()
            .map(|(line, (parts, instructions))| (lines.name(line), parts.split(instructions, slot)))
            .filter(|(_, parts)| parts.total() != 0)
            .collect();
        named.sort_by(|a, b| b.1.total().cmp(&a.1.total()).then_with(|| a.0.cmp(&b.0)));
        let of = named.len();
        named.truncate(most);
        (named, of)
    }

    /// Calls `each` for every charge that is not halted time: its place, its part, its ticks, and its number of instructions. Instructions are
    /// in [`Bound::Core`].
    fn parts(self, mut each: impl FnMut((u32, u64, u32), Bound, Ticks, u64)) {
        self.charges(|place, _, kind, amount| {
            let bound = kind.map_or(Some(Bound::Core), Bound::of);
            let executes = kind.is_none_or(|kind| kind.family == Family::Instruction);
            if let Some(bound) = bound {
                each(place, bound, amount.ticks, if executes { amount.count } else { 0 });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::{guest, sample};
    use crate::summary::Cause;

    #[test]
    fn the_parts_are_the_cycles_that_are_not_halted() {
        for ledger in [sample(), guest()] {
            let total = ledger.all().total();
            for slot in [None, Some(1), Some(250), Some(Ticks::MAX)] {
                let parts = ledger.all().top_down(slot);
                assert_eq!(parts.total(), total.busy(), "{slot:?}");
                let instructions = parts.of(Bound::Retiring) + parts.of(Bound::Core);
                assert_eq!(instructions, total.of(Cause::Instructions).ticks);
                for by in [By::Symbol, By::Comm, By::Region, By::Level] {
                    let (rows, of) = ledger.all().top_down_by(by, usize::MAX, slot);
                    assert_eq!(rows.len(), of);
                    assert_eq!(rows.iter().map(|(_, parts)| parts.total()).sum::<Ticks>(), total.busy());
                    assert!(rows.is_sorted_by_key(|(_, parts)| std::cmp::Reverse(parts.total())));
                }
            }
        }
    }

    #[test]
    fn instructions_retire_in_a_slot_each() {
        let parts = TopDown { ticks: [0, 0, 0, 1_000, 0, 0, 0, 0, 0, 0] };
        assert_eq!(parts.split(3, Some(200)).ticks[..4], [600, 0, 0, 400]);
        assert_eq!(parts.split(30, Some(200)).ticks[..4], [1_000, 0, 0, 0]);
        assert_eq!(parts.split(3, None).ticks[..4], [1_000, 0, 0, 0]);
    }

    #[test]
    fn waits_belong_to_the_level_that_had_the_line() {
        for (kind, bound) in [
            (Kind::cache_miss(false, 2, true), Bound::SecondLevel),
            (Kind::cache_miss(false, 3, false), Bound::ThirdLevel),
            (Kind::cache_miss(false, Kind::MEMORY, true), Bound::Memory),
            (Kind::cache_miss(true, Kind::MEMORY, false), Bound::FrontEnd),
            (Kind::new(Family::TlbMissData, 4), Bound::Tlb),
            (Kind::new(Family::ReturnMiss, 0), Bound::BadSpeculation),
            (Kind::new(Family::UnknownBranch, 0), Bound::FrontEnd),
            (Kind::new(Family::Syscall, 0), Bound::Crossings),
        ] {
            assert_eq!(Bound::of(kind), Some(bound));
        }
        assert_eq!(Bound::of(Kind::new(Family::Halt, 0)), None);
    }
}
