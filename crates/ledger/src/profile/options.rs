//! Options of a processor, which follow the name of its profile: `skx,pmu`.

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
}

/// The options of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// True if guests have the processor's performance counters.
    pub pmu: bool,
    /// True for a processor without microcode updates.
    pub unpatched: bool,
}

impl Options {
    /// Returns the options as words, in the order of [`Choice`].
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let Self { pmu, unpatched } = self;
        [(pmu, Choice::Pmu), (unpatched, Choice::Unpatched)]
            .into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, choice)| choice.into())
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
        for word in words.into_iter().flat_map(|words| words.split(',')) {
            let known = || Choice::VARIANTS.iter().map(<&str>::from).collect::<Vec<_>>().join(", ");
            let refused = |reason: String| ProfileError::Choice {
                name: self.name.clone(),
                word: word.chars().take(80).collect(),
                reason,
            };
            let choice = word.parse();
            let given = |choice: &Choice| self.options.words().any(|word| word == <&str>::from(choice));
            match choice {
                Ok(choice) if given(&choice) => return Err(refused("it is given twice".to_owned())),
                Ok(Choice::Pmu) if !self.has_counters() => {
                    return Err(refused("its CPUID has no performance counters".to_owned()));
                }
                Ok(Choice::Pmu) => self.options.pmu = true,
                Ok(Choice::Unpatched) if self.microcode.is_none() => {
                    return Err(refused("its profile has no [microcode]".to_owned()));
                }
                Ok(Choice::Unpatched) => {
                    self = self.with_updates(false);
                    self.options.unpatched = true;
                }
                Err(_) if word.is_empty() => {
                    return Err(refused(format!("an option belongs behind each comma; there are: {}", known())));
                }
                Err(_) => return Err(refused(format!("there is no such option; there are: {}", known()))),
            }
        }
        Ok(self)
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
