//! Options of a processor, which follow the name of its profile: `skx,pmu`.

use super::frequency::Frequency;
use super::{Profile, ProfileError, Vendor};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// An option of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Choice {
    /// Guests have the processor's performance counters.
    Pmu,
    /// The processor's microcode is not updated: mitigations that need its features are missing.
    Unpatched,
    /// The core runs at its highest frequency.
    Boost,
}

/// How the messages show an option with a frequency.
const FREQUENCY: &str = "ghz=N";

/// The options of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// True if guests have the processor's performance counters.
    pub pmu: bool,
    /// True for a processor without microcode updates.
    pub unpatched: bool,
    /// The core's frequency, if it is not the base frequency.
    pub frequency: Option<Frequency>,
}

impl Options {
    /// Returns the options as words, in the order of [`Choice`].
    pub fn words(self) -> impl Iterator<Item = String> {
        let Self { pmu, unpatched, frequency } = self;
        let plain = [(pmu, Choice::Pmu), (unpatched, Choice::Unpatched)];
        let plain = plain.into_iter().filter(|(on, _)| *on).map(|(_, choice)| <&str>::from(choice).to_owned());
        plain.chain(frequency.map(|frequency| frequency.to_string()))
    }
}

/// Divides what a user names a processor by into the name, or the path of a file, and the options behind a comma.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    const FILE: &str = ".toml,";
    match text.find(FILE) {
        Some(at) => (&text[..at + FILE.len() - 1], Some(&text[at + FILE.len()..])),
        None if text.contains('/') => (text, None),
        None => text.split_once(',').map_or((text, None), |(name, options)| (name, Some(options))),
    }
}

impl Profile {
    /// Chooses options, which are separated by commas.
    pub(super) fn with_options(mut self, words: Option<&str>) -> Result<Self, ProfileError> {
        let mut before = "";
        for word in words.into_iter().flat_map(|words| words.split(',')) {
            let name = self.name.clone();
            if let Some(point) = Frequency::with_point(before, word) {
                let reason = format!("decimals are behind a point, as {point}");
                return Err(ProfileError::Choice { name, word: format!("{before},{word}"), reason });
            }
            before = word;
            self = self.with_option(word).map_err(|reason| ProfileError::Choice {
                name,
                word: word.chars().take(80).collect(),
                reason,
            })?;
        }
        Ok(self)
    }

    /// Chooses an option. An error is the reason why the processor can't have it.
    fn with_option(mut self, word: &str) -> Result<Self, String> {
        let known = || {
            let words = Choice::VARIANTS.iter().map(<&str>::from).chain([FREQUENCY]);
            format!("there are: {}", words.collect::<Vec<_>>().join(", "))
        };
        let once = |given: bool| if given { Err("it is given twice".to_owned()) } else { Ok(()) };
        let frequency = match word.parse() {
            Ok(Choice::Pmu) => {
                once(self.options.pmu)?;
                if !self.has_counters() {
                    return Err("its CPUID has no performance counters".to_owned());
                }
                self.options.pmu = true;
                return Ok(self);
            }
            Ok(Choice::Unpatched) => {
                once(self.options.unpatched)?;
                if self.microcode.is_none() {
                    return Err("its profile has no [microcode]".to_owned());
                }
                self = self.with_updates(false);
                self.options.unpatched = true;
                return Ok(self);
            }
            Ok(Choice::Boost) => Frequency::Boost,
            Err(_) if word.is_empty() => return Err(format!("an option belongs behind each comma; {}", known())),
            Err(_) => Frequency::parse(word).unwrap_or_else(|| Err(format!("there is no such option; {}", known())))?,
        };
        if self.options.frequency.is_some() {
            return Err("the frequency is given twice".to_owned());
        }
        self.at(frequency)
    }

    /// Returns true if the real processor's CPUID has performance counters.
    fn has_counters(&self) -> bool {
        match self.vendor {
            Vendor::Intel => self.real_cpuid(0xa, 0).is_some_and(|leaf| leaf.eax & 0xff > 1),
            Vendor::Amd => {
                self.real_cpuid(0x8000_0001, 0).is_some_and(|leaf| leaf.ecx & super::pmu::EXTENDED_COUNTERS != 0)
            }
        }
    }
}
