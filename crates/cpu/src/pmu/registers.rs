//! The registers of performance monitoring (SDM vol. 3, 20.2; APM vol. 2, 13.2.1), without what they count.

use super::layout::{Event, FIXED, FIXED_EVENTS, GENERAL, Layout};
use crate::tally::Counts;
use ledger::Ticks;
use serde::{Deserialize, Serialize};

/// In a selector: counts in user code.
const USER: u64 = 1 << 16;
/// In a selector: counts in the operating system.
const KERNEL: u64 = 1 << 17;
/// In a selector: counts transitions.
const EDGE: u64 = 1 << 18;
/// In a selector: an overflow raises an interrupt.
const INTERRUPT: u64 = 1 << 20;
/// In a selector: the counter is enabled.
const ENABLED: u64 = 1 << 22;
/// In a selector: the comparison with the counter mask is inverted.
const INVERTED: u64 = 1 << 23;
/// Position and bits of the counter mask in a selector.
const COUNTER_MASK: u32 = 24;
/// Bits of a selector on Intel processors with version 2: event, unit mask, USR, OS, E, PC, INT, EN, INV, counter mask.
const INTEL: u64 = 0xffdf_ffff;
/// Bits of a selector on AMD processors: the same without PC, bits 11:8 of the event, guest and host alone.
const AMD: u64 = 0x30f_ffd7_ffff;
/// Bits of a fixed counter's control: OS, USR, interrupt. The others belong to version 3.
const FIXED_BITS: u64 = 0xb;
/// In IA32_PERF_GLOBAL_OVF_CTRL: the debug store's overflow, and a changed condition.
const OVERFLOW_OTHERS: u64 = 3 << 62;

/// Least time between two looks at the counters, if it is not known when a counter overflows.
const PATIENCE: Ticks = 32 * ledger::TICKS_PER_CYCLE;

/// A counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its value.
    value: u64,
    /// Rest of a sum that is less than one count.
    rest: u64,
}

/// The registers of performance monitoring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pmu {
    counters: [Counter; GENERAL + FIXED],
    selectors: [u64; GENERAL],
    fixed_control: u64,
    global_control: u64,
    global_status: u64,
}

/// The program of a counter: its event, and the code that it counts in.
#[derive(Clone, Copy)]
struct Programmed {
    event: Event,
    kernel: bool,
    user: bool,
    interrupts: bool,
}

/// Result of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counting {
    /// True if an overflow raises an interrupt.
    pub(super) interrupts: bool,
}

/// Returns the bit of a counter in IA32_PERF_GLOBAL_CTRL, and in IA32_PERF_GLOBAL_STATUS.
fn bit(number: usize) -> u64 {
    if number < GENERAL { 1 << number } else { 1 << (32 + number - GENERAL) }
}

impl Pmu {
    /// Returns the registers after RESET: all general counters are enabled as far as that depends on
    /// IA32_PERF_GLOBAL_CTRL.
    pub(crate) fn reset(layout: Option<&Layout>) -> Self {
        let general = layout.filter(|layout| !layout.amd).map_or(0, |layout| (1 << layout.general) - 1);
        Self { global_control: general, ..Self::default() }
    }

    /// Returns true if a processor with these counters can have this state, which may come from a file.
    pub(crate) fn fits(&self, layout: Option<&Layout>) -> bool {
        let Some(layout) = layout else { return *self == Self::default() };
        let selectors = if layout.amd { AMD } else { INTEL };
        let counters = self.counters.iter().all(|counter| counter.value & !layout.mask() == 0);
        let rests = self.counters.iter().all(|counter| counter.rest < ledger::TICKS_PER_CYCLE);
        counters
            && rests
            && self.selectors.iter().all(|selector| selector & !selectors == 0)
            && self.fixed_control & !fixed_bits(layout) == 0
            && (self.global_control | self.global_status) & !layout.all() == 0
    }

    /// Returns what a counter is programmed to count, if it counts anything.
    fn programmed(&self, layout: &Layout, number: usize) -> Option<Programmed> {
        if !layout.amd && self.global_control & bit(number) == 0 {
            return None;
        }
        if let Some(fixed) = number.checked_sub(GENERAL) {
            let control = self.fixed_control >> (4 * fixed);
            let (kernel, user) = (control & 1 != 0, control & 2 != 0);
            let there = fixed < usize::from(layout.fixed) && (kernel || user);
            let interrupts = control & 8 != 0;
            return there.then_some(Programmed { event: FIXED_EVENTS[fixed], kernel, user, interrupts });
        }
        let selector = self.selectors[number];
        let (kernel, user) = (selector & KERNEL != 0, selector & USER != 0);
        if number >= usize::from(layout.general) || selector & ENABLED == 0 || !(kernel || user) {
            return None;
        }
        let event = layout.event((selector & 0xff | selector >> 24 & 0xf00) as u16, (selector >> 8) as u8)?;
        (selector & EDGE == 0 && event.counts_each(selector)).then_some(Programmed {
            event,
            kernel,
            user,
            interrupts: selector & INTERRUPT != 0,
        })
    }

    /// Returns true if any counter counts.
    pub(crate) fn counts(&self, layout: &Layout) -> bool {
        (0..GENERAL + FIXED).any(|number| self.programmed(layout, number).is_some())
    }

    /// Adds sums to the counters.
    pub(super) fn count(&mut self, layout: &Layout, counts: &Counts) -> Counting {
        let mut result = Counting::default();
        for number in 0..self.counters.len() {
            let Some(Programmed { event, kernel, user, interrupts }) = self.programmed(layout, number) else {
                continue;
            };
            let counter = &mut self.counters[number];
            let sum = counts.sum(event.what, kernel, user).wrapping_add(counter.rest);
            counter.rest = sum % event.per;
            let value = counter.value.wrapping_add(sum / event.per);
            counter.value = value & layout.mask();
            if value != counter.value {
                self.global_status |= if layout.amd { 0 } else { bit(number) };
                result.interrupts |= interrupts;
            }
        }
        result
    }

    /// Returns an estimate of the least time until a counter overflows whose overflow raises an interrupt. For cycles it is
    /// exact if the counter counts all code.
    pub(super) fn until_interrupt(&self, layout: &Layout) -> Option<Ticks> {
        let until = |number: usize| {
            let Programmed { event, kernel, user, interrupts } = self.programmed(layout, number)?;
            let Counter { value, rest } = self.counters[number];
            let left = (layout.mask() - value + 1).saturating_mul(event.apart).saturating_sub(rest);
            let exact = event.per > 1 && kernel && user;
            interrupts.then_some(if exact { left } else { left.max(PATIENCE).max(64 * event.apart) })
        };
        (0..self.counters.len()).filter_map(until).min()
    }

    /// Stops all counters of an Intel processor.
    pub(super) fn freeze(&mut self) {
        self.global_control = 0;
    }

    /// Returns a counter: a general one, or a fixed one.
    pub(crate) fn counter(&self, number: usize, fixed: bool) -> u64 {
        self.counters[number + if fixed { GENERAL } else { 0 }].value
    }

    /// Sets a counter.
    pub(super) fn set_counter(&mut self, number: usize, fixed: bool, value: u64) {
        self.counters[number + if fixed { GENERAL } else { 0 }] = Counter { value, rest: 0 };
    }

    /// Returns a selector.
    pub(super) fn selector(&self, number: usize) -> u64 {
        self.selectors[number]
    }

    /// Sets a selector. Returns false if a reserved bit is set, which AMD processors ignore.
    pub(super) fn set_selector(&mut self, layout: &Layout, number: usize, value: u64) -> bool {
        if !layout.amd && value & !INTEL != 0 {
            return false;
        }
        self.selectors[number] = value & if layout.amd { AMD } else { INTEL };
        true
    }

    /// Reads IA32_FIXED_CTR_CTRL.
    pub(super) fn fixed_control(&self) -> u64 {
        self.fixed_control
    }

    /// Writes IA32_FIXED_CTR_CTRL. Returns false if a reserved bit is set.
    pub(super) fn set_fixed_control(&mut self, layout: &Layout, value: u64) -> bool {
        let good = value & !fixed_bits(layout) == 0;
        if good {
            self.fixed_control = value;
        }
        good
    }

    /// Reads IA32_PERF_GLOBAL_CTRL.
    pub(super) fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Writes IA32_PERF_GLOBAL_CTRL. Returns false if a reserved bit is set.
    pub(super) fn set_global_control(&mut self, layout: &Layout, value: u64) -> bool {
        let good = value & !layout.all() == 0;
        if good {
            self.global_control = value;
        }
        good
    }

    /// Reads IA32_PERF_GLOBAL_STATUS.
    pub(super) fn global_status(&self) -> u64 {
        self.global_status
    }

    /// Writes IA32_PERF_GLOBAL_OVF_CTRL, which clears overflows. Returns false if a reserved bit is set.
    pub(super) fn clear_overflows(&mut self, layout: &Layout, value: u64) -> bool {
        let good = value & !(layout.all() | OVERFLOW_OTHERS) == 0;
        if good {
            self.global_status &= !value;
        }
        good
    }
}

/// Returns the bits of IA32_FIXED_CTR_CTRL.
fn fixed_bits(layout: &Layout) -> u64 {
    (0..u32::from(layout.fixed)).fold(0, |bits, number| bits | FIXED_BITS << (4 * number))
}

impl Event {
    /// Returns true if a selector counts each event. With a counter mask it counts the cycles with at least so many
    /// events, of which the model of time knows nothing, except that each cycle is one.
    fn counts_each(&self, selector: u64) -> bool {
        let (mask, cycles) = (selector >> COUNTER_MASK & 0xff, self.per > 1);
        // The inversion is ignored without a counter mask (SDM vol. 3, 20.2.1.1).
        mask == 0 || cycles && ((mask == 1) != (selector & INVERTED != 0))
    }
}
