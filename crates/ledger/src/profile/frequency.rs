//! The core at another frequency than the base frequency of the profile.
//!
//! The figures of a profile are cycles of the core at its base frequency. What the core does takes the same number of cycles at each frequency. Memory
//! has a clock of its own, so its latency and its transfers take the same time, which is more cycles of a faster core. So has the third level
//! of Intel's processors, with the way from core to core: they are parts of the uncore. On AMD's processors, the third level has the clock of
//! its cores.

use super::{CacheFigures, Profile, Sourced, Vendor};
use crate::Ticks;
use std::fmt::{Display, Formatter, Result as Written};
use std::ops::RangeInclusive;

/// How the option with a frequency begins.
const PREFIX: &str = "ghz=";
/// Frequencies that can be chosen, in MHz.
const MEGAHERTZ: RangeInclusive<u32> = 100..=10_000;
/// Hertz of a megahertz.
const MEGA: u64 = 1_000_000;
/// Leaf of CPUID with the ratio of the TSC to a crystal (SDM volume 2, CPUID).
const CRYSTAL: u32 = 0x15;
/// Leaf of CPUID with the base frequency and the highest frequency in MHz.
const PROCESSOR_FREQUENCY: u32 = 0x16;

/// A frequency of the core that a user chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// The highest one.
    Boost,
    /// So many MHz.
    Megahertz(u32),
}

impl Display for Frequency {
    /// Writes the frequency as the option by which it is chosen.
    fn fmt(&self, f: &mut Formatter) -> Written {
        match self {
            Self::Boost => f.write_str("boost"),
            Self::Megahertz(mhz) => write!(f, "{PREFIX}{}.{:03}", mhz / 1000, mhz % 1000),
        }
    }
}

impl Frequency {
    /// Returns the frequency that is nearest to so many hertz and can be chosen, in steps of 50 MHz.
    pub fn nearest(hz: f64) -> Self {
        const STEP: f64 = 50.0;
        let mhz = (hz / MEGA as f64 / STEP).round() * STEP;
        Self::Megahertz((mhz as u32).clamp(*MEGAHERTZ.start(), *MEGAHERTZ.end()))
    }

    /// Returns a frequency with a decimal point, if two options are one with a comma in its place.
    pub(super) fn with_point(option: &str, next: &str) -> Option<String> {
        let point = format!("{option}.{next}");
        let is_number = !next.is_empty() && next.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && matches!(Self::parse(&point), Some(Ok(_)))).then_some(point)
    }

    /// Reads an option; `None` if it does not give a frequency. An error is the reason why it can't be chosen.
    pub(super) fn parse(word: &str) -> Option<Result<Self, String>> {
        let number = word.strip_prefix(PREFIX)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let fits = (1..=2).contains(&whole.len()) && part.len() <= 3 && digits(whole) && digits(part);
        let mhz = fits.then(|| format!("{whole}{part:0<3}").parse().ok()).flatten();
        let mhz = mhz.filter(|mhz| MEGAHERTZ.contains(mhz));
        Some(mhz.map(Self::Megahertz).ok_or_else(|| {
            format!("it should be a number of GHz from 0.1 to 10, with at most three decimals, as {PREFIX}3.65")
        }))
    }
}

impl Profile {
    /// Returns the processor with its core, and the time-stamp counter, at another frequency. An error is the reason why there is none.
    pub fn at(mut self, frequency: Frequency) -> Result<Self, String> {
        let (hz, from) = match frequency {
            Frequency::Boost => {
                let boost = self.boost_hz.as_ref().ok_or("its profile has no boost frequency")?;
                (boost.value, boost.from.clone())
            }
            Frequency::Megahertz(mhz) => (u64::from(mhz) * MEGA, self.tsc_hz.from.clone()),
        };
        let base = self.tsc_hz.value;
        self.title = format!("{}, here at {:.3} GHz", self.title, hz as f64 / 1e9);
        self.tsc_hz = Sourced { value: hz, from };
        if frequency != Frequency::Boost {
            self.tsc_hz.from.source = format!("chosen by the option {frequency}; at base: {}", self.tsc_hz.from.source);
        }
        if let Some(caches) = &mut self.caches {
            caches.convert(self.vendor, base, hz);
        }
        for leaf in &mut self.raw_cpuid {
            match leaf {
                // The ratio of the TSC to the crystal, whose frequency is in ECX; 0 is one that is not enumerated, for which leaf 0x16 counts.
                [CRYSTAL, _, denominator, numerator, crystal, _] if *crystal >= 1000 => {
                    (*denominator, *numerator) = (*crystal / 1000, (hz / 1000) as u32);
                }
                [PROCESSOR_FREQUENCY, _, mhz, most, ..] => {
                    *mhz = (hz / MEGA) as u32;
                    *most = (*most).max(*mhz);
                }
                _ => {}
            }
        }
        self.options.frequency = Some(frequency);
        Ok(self)
    }
}

impl CacheFigures {
    /// Converts the cycles of what has a clock of its own from a core of one frequency to one of another.
    fn convert(&mut self, vendor: Vendor, from: u64, to: u64) {
        let ghz = |hz: u64| format!("{:.2} GHz", hz as f64 / 1e9);
        let note = format!("; converted from {} to {}", ghz(from), ghz(to));
        let [from, to] = [from, to].map(u128::from);
        let convert = |ticks: &mut Ticks| *ticks = ((u128::from(*ticks) * to + from / 2) / from) as Ticks;
        let memory = &mut self.memory.value;
        [&mut memory.latency, &mut memory.transfer, &mut memory.stream, &mut memory.same_set]
            .into_iter()
            .for_each(convert);
        self.memory.from.source.push_str(&note);
        if vendor == Vendor::Amd {
            return;
        }
        if let Some(l3) = &mut self.l3 {
            let level = &mut l3.value;
            [&mut level.latency, &mut level.transfer, &mut level.same_set].into_iter().for_each(convert);
            l3.from.source.push_str(&note);
        }
        convert(&mut self.between_cores.value);
        self.between_cores.from.source.push_str(&note);
    }
}
