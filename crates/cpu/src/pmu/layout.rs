//! The counters that a processor has, according to its CPUID (SDM vol. 3, 20.2; APM vol. 2, 13.2), and the events that a
//! selector chooses.

use crate::capability::{Capabilities, Capability};
use crate::model::Model;
use crate::tally::Counted;
use ledger::{TICKS_PER_CYCLE, Ticks};

/// Most general counters.
pub(crate) const GENERAL: usize = 8;
/// Most fixed counters.
pub(crate) const FIXED: usize = 3;
/// Number of a processor's core counters with AMD's PerfCtrExtCore.
const AMD_COUNTERS: u8 = 6;
/// Width of AMD's counters in bits.
const AMD_WIDTH: u8 = 48;
/// In CPUID.80000001H:ECX of AMD: PerfCtrExtCore.
const PERF_CTR_EXT_CORE: u32 = 1 << 23;
/// CPUID leaf of architectural performance monitoring.
const MONITORING: u32 = 0xa;
/// In CPUID.0AH:EAX: the version.
const VERSION: u32 = 0xff;

/// The counters of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// True for AMD's counters.
    pub(crate) amd: bool,
    /// Number of general counters.
    pub(crate) general: u8,
    /// Number of fixed counters.
    pub(crate) fixed: u8,
    /// Width of a counter in bits.
    pub(crate) width: u8,
    /// True if counters can be written in full width.
    pub(crate) full_width: bool,
    /// Architectural events that are not available, as CPUID.0AH:EBX has them.
    unavailable: u32,
    /// The levels that the last cache is asked for.
    last_level: &'static [Counted],
}

/// An event that a counter can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The sums that make up the event's count.
    pub(crate) what: &'static [Counted],
    /// Sum for each count: cycles are counted in ticks.
    pub(crate) per: u64,
    /// Estimate of the least time between two counts.
    pub(crate) apart: Ticks,
}

const CYCLES: Event = Event { what: &[Counted::Time], per: TICKS_PER_CYCLE, apart: TICKS_PER_CYCLE };
const INSTRUCTIONS: Event = Event { what: &[Counted::Instructions], per: 1, apart: TICKS_PER_CYCLE / 8 };
const BRANCHES: Event = Event { what: &[Counted::Branches], per: 1, apart: TICKS_PER_CYCLE / 2 };
const MISPREDICTIONS: Event = Event { what: &[Counted::Mispredictions], per: 1, apart: 4 * TICKS_PER_CYCLE };

/// Events of lines, which may come one after the other without a wait between them.
const fn lines(what: &'static [Counted]) -> Event {
    Event { what, per: 1, apart: 2 * TICKS_PER_CYCLE }
}

/// Events of the fixed counters (SDM vol. 3, table 20-2).
pub(crate) const FIXED_EVENTS: [Event; FIXED] = [INSTRUCTIONS, CYCLES, CYCLES];

/// An event by its name, with the event number and the unit mask that select it on Intel's processors and on AMD's.
type Named = (&'static str, Option<(u16, u8)>, Option<(u16, u8)>);

/// The events that a counter may know. All others count nothing.
const NAMED: [Named; 9] = [
    ("cycles", Some((0x3c, 0)), Some((0x76, 0))),
    ("reference cycles", Some((0x3c, 1)), None),
    ("instructions", Some((0xc0, 0)), Some((0xc0, 0))),
    ("branches", Some((0xc4, 0)), Some((0xc2, 0))),
    ("mispredicted branches", Some((0xc5, 0)), Some((0xc3, 0))),
    ("references to the last cache", Some((0x2e, 0x4f)), None),
    ("misses of the last cache", Some((0x2e, 0x41)), None),
    ("requests to the second level", None, Some((0x60, 0xf0))),
    ("misses of the second level", None, Some((0x64, 0x09))),
];

impl Layout {
    /// Returns the events that the model has, each with its number and its unit mask.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u16, u8)> {
        let of_vendor = |(name, intel, amd): Named| {
            let (event, unit) = if self.amd { amd } else { intel }?;
            self.event(event, unit).map(|_| (name, event, unit))
        };
        NAMED.into_iter().filter_map(of_vendor)
    }

    /// Returns the counters of a model, if it has any.
    pub fn of(model: &Model) -> Option<Self> {
        let l3 = model.geometry.caches.is_some_and(|caches| caches.l3.is_some());
        let last_level: &[Counted] = match l3 {
            true => &[Counted::ThirdLevelData, Counted::ThirdLevelCode],
            false => &[Counted::SecondLevelData, Counted::SecondLevelCode],
        };
        // An empty table, as in tests of single instructions, has no counters.
        let capabilities = (!model.cpuid.is_empty()).then(|| Capabilities::of(model))?;
        if capabilities.amd {
            let has = model.static_cpuid(0x8000_0001, 0).ecx & PERF_CTR_EXT_CORE != 0;
            return has.then_some(Self {
                amd: true,
                general: AMD_COUNTERS,
                fixed: 0,
                width: AMD_WIDTH,
                full_width: false,
                unavailable: 0,
                last_level,
            });
        }
        let leaf = model.leaf(MONITORING, 0).filter(|leaf| leaf.eax & VERSION != 0)?;
        Some(Self {
            amd: false,
            general: ((leaf.eax >> 8) as u8).min(GENERAL as u8),
            fixed: (leaf.edx as u8 & 0x1f).min(FIXED as u8),
            width: ((leaf.eax >> 16) as u8).clamp(32, 48),
            // Processors have the registers for that from Ivy Bridge on, as they have FSGSBASE.
            full_width: capabilities.has(Capability::FsGsBase),
            unavailable: leaf.ebx,
            last_level,
        })
    }

    /// Returns the bits of a counter.
    pub(crate) fn mask(&self) -> u64 {
        (1 << self.width) - 1
    }

    /// Returns the bits of IA32_PERF_GLOBAL_CTRL: one for each counter.
    pub(crate) fn all(&self) -> u64 {
        ((1 << self.general) - 1) | ((1 << self.fixed) - 1) << 32
    }

    /// Returns what a selector with this event and unit mask counts, if it is known.
    pub(crate) fn event(&self, event: u16, unit: u8) -> Option<Event> {
        if self.amd { amd(event, unit) } else { self.intel(event, unit) }
    }

    /// Architectural events (SDM vol. 3, table 20-1).
    fn intel(&self, event: u16, unit: u8) -> Option<Event> {
        const MISSES: &[Counted] = &[Counted::MemoryData, Counted::MemoryCode];
        let (bit, event) = match (event, unit) {
            (0x3c, 0) => (0, CYCLES),
            (0xc0, 0) => (1, INSTRUCTIONS),
            (0x3c, 1) => (2, CYCLES),
            (0x2e, 0x4f) => (3, lines(self.last_level)),
            (0x2e, 0x41) => (4, lines(MISSES)),
            (0xc4, 0) => (5, BRANCHES),
            (0xc5, 0) => (6, MISPREDICTIONS),
            _ => return None,
        };
        (self.unavailable >> bit & 1 == 0).then_some(event)
    }
}

/// Events of AMD's processors from family 17h on (PPR, performance monitor counters).
fn amd(event: u16, unit: u8) -> Option<Event> {
    use Counted::*;
    // Unit masks of the events of the second level: fetches, and loads and stores.
    const REQUESTS: [u8; 2] = [0x10, 0xe0];
    const MISSES: [u8; 2] = [0x01, 0x08];
    let either = |masks: [u8; 2], code, data, both| match masks.map(|mask| unit & mask != 0) {
        [true, true] => Some(lines(both)),
        [true, false] => Some(lines(code)),
        [false, true] => Some(lines(data)),
        [false, false] => None,
    };
    match event {
        0x76 => Some(CYCLES),
        0xc0 => Some(INSTRUCTIONS),
        0xc2 => Some(BRANCHES),
        0xc3 => Some(MISPREDICTIONS),
        0x60 => either(REQUESTS, &[SecondLevelCode], &[SecondLevelData], &[SecondLevelData, SecondLevelCode]),
        0x64 => either(MISSES, &[ThirdLevelCode], &[ThirdLevelData], &[ThirdLevelData, ThirdLevelCode]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Profile;
    use std::collections::BTreeSet;

    #[test]
    fn the_names_are_those_of_all_events() {
        for (name, count) in [("skx,pmu", 7), ("core2,pmu", 6), ("zen3,pmu", 6)] {
            let profile = Profile::find(name).unwrap().with_usual_clock();
            let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
            let layout = Layout::of(&model).unwrap();
            let named: Vec<_> = layout.events().collect();
            assert_eq!(named.len(), count, "{name}: {named:?}");
            let all = (0..=0xfff).flat_map(|event| (0..=0xff).map(move |unit| (event, unit)));
            let known: BTreeSet<u16> =
                all.filter(|(event, unit)| layout.event(*event, *unit).is_some()).map(|(event, _)| event).collect();
            assert_eq!(known, named.iter().map(|(_, event, _)| *event).collect(), "{name}");
        }
        let without = Profile::find("skx").unwrap();
        assert_eq!(Layout::of(&Model::of(&without, without.costs(), without.geometry(), &without.cpuid())), None);
    }
}
