//! Prices of events, and sizes of the modelled structures: the numbers that drive the processor.
//!
//! They come from a profile (`profiles/*.toml`) and from nowhere else; [`Costs::free`] charges nothing and is what
//! `--clock host` and unit tests use.

use crate::Ticks;
use crate::caches::Caches;
use crate::event::{Class, Family, Kind};
use rustc_hash::FxHashMap;

/// Prices of one processor, in ticks.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Per instruction class.
    pub class: [u32; Class::COUNT],
    families: [Of; Family::COUNT],
    /// Per family and parameter, where a parameter is not small.
    by_kind: FxHashMap<Kind, Ticks>,
}

/// Parameters with prices that are found without a search.
const SMALL: usize = 64;

/// Prices of a family's events.
#[derive(Clone, Debug)]
struct Of {
    /// The price if nothing more specific is known.
    any: Ticks,
    /// By small parameter.
    small: [Ticks; SMALL],
    /// True if a parameter that is not small has a separate price.
    large: bool,
}

impl Costs {
    /// Prices that charge nothing but one cycle per instruction, and per exception or other transfer of control: time passes
    /// whatever is executed.
    pub fn free() -> Self {
        let price = |family: Family| if family.transfers_control() { crate::TICKS_PER_CYCLE } else { 0 };
        Self::new([crate::TICKS_PER_CYCLE as u32; Class::COUNT], Family::ALL.map(price), [])
    }

    /// Prices per instruction class, per event family, and per family and parameter (a CPUID leaf, an MSR, a TLB walk of so
    /// many references) where those differ.
    pub fn new(
        class: [u32; Class::COUNT],
        by_family: [Ticks; Family::COUNT],
        by_kind: impl IntoIterator<Item = (Kind, Ticks)>,
    ) -> Self {
        let families = by_family.map(|any| Of { any, small: [any; SMALL], large: false });
        let mut costs = Self { class, families, by_kind: FxHashMap::default() };
        by_kind.into_iter().for_each(|(kind, ticks)| costs.set(kind, ticks));
        costs
    }

    /// Sets the price of one kind of event.
    fn set(&mut self, kind: Kind, ticks: Ticks) {
        let of = &mut self.families[kind.family as usize];
        match of.small.get_mut(kind.param as usize) {
            Some(price) => *price = ticks,
            None => {
                of.large = true;
                self.by_kind.insert(kind, ticks);
            }
        }
    }

    /// The price of one event.
    #[inline]
    pub fn of(&self, kind: Kind) -> Ticks {
        let of = &self.families[kind.family as usize];
        match of.small.get(kind.param as usize) {
            Some(ticks) => *ticks,
            None if of.large => self.by_kind.get(&kind).copied().unwrap_or(of.any),
            None => of.any,
        }
    }
}

/// Entries and associativity of a cache-like structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sets {
    /// Entries in all; 0 if the processor has no such structure.
    pub entries: u16,
    /// Entries per set; `entries` for a fully associative one.
    pub ways: u16,
}

/// Sizes of what the processor models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First-level data TLB, 4 KiB pages.
    pub dtlb_4k: Sets,
    /// First-level data TLB, 2 MiB and 4 MiB pages.
    pub dtlb_2m: Sets,
    /// First-level data TLB, 1 GiB pages.
    pub dtlb_1g: Sets,
    /// First-level instruction TLB, 4 KiB pages.
    pub itlb_4k: Sets,
    /// First-level instruction TLB, 2 MiB and 4 MiB pages.
    pub itlb_2m: Sets,
    /// Second-level TLB shared by code and data, 4 KiB and 2 MiB pages.
    pub stlb: Sets,
    /// Second-level TLB for 1 GiB pages.
    pub stlb_1g: Sets,
    /// Entries of the indirect target cache.
    pub target_cache: u16,
    /// Depth of the return stack.
    pub return_stack: u16,
    /// Directions of conditional branches are predicted.
    pub predicts_directions: bool,
    /// Translations of global pages survive a MOV to CR3. Software that emulates a processor may drop them.
    pub keeps_global: bool,
    /// Large pages are kept as such. Software that emulates a processor may keep pieces of 4 KiB.
    pub keeps_large: bool,
    /// Caches, if they are modelled.
    pub caches: Option<Caches>,
}

impl Geometry {
    /// The same processor without caches, and with first-level TLBs that hardly ever miss, where nothing is charged for it.
    pub fn enlarged(self) -> Self {
        let small = Sets { entries: 4096, ways: 4 };
        let large = Sets { entries: 1024, ways: 4 };
        Self { dtlb_4k: small, dtlb_2m: large, itlb_4k: small, itlb_2m: large, caches: None, ..self }
    }

    /// Sizes of a mid-range modern core, for tests.
    pub const fn generic() -> Self {
        Self {
            dtlb_4k: Sets { entries: 64, ways: 4 },
            dtlb_2m: Sets { entries: 32, ways: 4 },
            dtlb_1g: Sets { entries: 4, ways: 4 },
            itlb_4k: Sets { entries: 128, ways: 8 },
            itlb_2m: Sets { entries: 8, ways: 8 },
            stlb: Sets { entries: 1536, ways: 12 },
            stlb_1g: Sets { entries: 16, ways: 4 },
            target_cache: 4096,
            return_stack: 16,
            predicts_directions: false,
            keeps_global: true,
            keeps_large: true,
            caches: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_level_tlbs_are_enlarged() {
        let (own, enlarged) = (Geometry::generic(), Geometry::generic().enlarged());
        let first = |g: Geometry| [g.dtlb_4k, g.dtlb_2m, g.itlb_4k, g.itlb_2m];
        assert!(first(enlarged).iter().zip(first(own)).all(|(large, own)| large.entries >= 8 * own.entries));
        let Geometry { dtlb_4k, dtlb_2m, itlb_4k, itlb_2m, .. } = own;
        assert_eq!(Geometry { dtlb_4k, dtlb_2m, itlb_4k, itlb_2m, ..enlarged }, own);
    }
}
