//! The profile of a processor, or the nearest one.

use ledger::profile::{Profile, ProfileError};
use silicon::host::Processor;

/// A core, and the processors that have it.
struct Core {
    /// Name of the core's table, or of its generation if it has none.
    name: &'static str,
    vendor: &'static str,
    family: u32,
    /// Ranges of models.
    models: &'static [(u32, u32)],
}

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

/// The cores in the order of their age, from the vendors' lists of models (Linux's `intel-family.h`; AMD's revision
/// guides).
const CORES: &[Core] = &[
    Core { name: "core2", vendor: INTEL, family: 6, models: &[(0x0f, 0x0f), (0x17, 0x17), (0x1d, 0x1d)] },
    Core {
        name: "nehalem",
        vendor: INTEL,
        family: 6,
        models: &[(0x1a, 0x1a), (0x1e, 0x1f), (0x25, 0x25), (0x2c, 0x2c), (0x2e, 0x2f)],
    },
    Core {
        name: "sandybridge",
        vendor: INTEL,
        family: 6,
        models: &[(0x2a, 0x2a), (0x2d, 0x2d), (0x3a, 0x3a), (0x3e, 0x3e)],
    },
    Core { name: "haswell", vendor: INTEL, family: 6, models: &[(0x3c, 0x3c), (0x3f, 0x3f), (0x45, 0x46)] },
    Core {
        name: "broadwell",
        vendor: INTEL,
        family: 6,
        models: &[(0x3d, 0x3d), (0x47, 0x47), (0x4f, 0x4f), (0x56, 0x56)],
    },
    Core {
        name: "skylakex",
        vendor: INTEL,
        family: 6,
        models: &[(0x4e, 0x4e), (0x55, 0x55), (0x5e, 0x5e), (0x8e, 0x8e), (0x9e, 0x9e), (0xa5, 0xa6)],
    },
    Core { name: "cascadelake", vendor: INTEL, family: 6, models: &[] },
    Core {
        name: "icelake",
        vendor: INTEL,
        family: 6,
        models: &[(0x6a, 0x6a), (0x6c, 0x6c), (0x7d, 0x7e), (0x8c, 0x8d), (0xa7, 0xa7)],
    },
    Core {
        name: "goldencove",
        vendor: INTEL,
        family: 6,
        models: &[(0x8f, 0x8f), (0x97, 0x97), (0x9a, 0x9a), (0xb7, 0xb7), (0xba, 0xba), (0xbf, 0xbf), (0xcf, 0xcf)],
    },
    Core {
        name: "redwoodcove",
        vendor: INTEL,
        family: 6,
        models: &[(0xaa, 0xaa), (0xac, 0xae), (0xb5, 0xb6), (0xbd, 0xbd), (0xc5, 0xc6)],
    },
    Core { name: "zen", vendor: AMD, family: 0x17, models: &[(0x00, 0x2f)] },
    Core { name: "zen2", vendor: AMD, family: 0x17, models: &[(0x30, 0xff)] },
    Core { name: "zen3", vendor: AMD, family: 0x19, models: &[(0x00, 0x0f), (0x20, 0x5f)] },
    Core { name: "zen4", vendor: AMD, family: 0x19, models: &[(0x10, 0x1f), (0x60, 0xff)] },
    Core { name: "zen5", vendor: AMD, family: 0x1a, models: &[(0x00, 0xff)] },
];

/// Intel's models of family 6 that two cores share: model, first stepping of the later core, its name.
const SHARED: &[(u32, u32, &str)] = &[(0x55, 5, "cascadelake")];

/// How well a profile fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The profile is of this processor.
    Exact,
    /// The profile is of another processor with this core.
    Core,
    /// The profile is the nearest of this vendor.
    Nearest,
    /// There is no profile of this vendor or none of its core is known.
    Foreign,
    /// The user named the profile.
    Named,
}

impl Fit {
    /// Says how well the profile fits, after its name.
    pub fn text(&self) -> &'static str {
        match self {
            Self::Exact => "the profile of this processor",
            Self::Core => "a profile of another processor with the same core",
            Self::Nearest => {
                "the nearest profile: no profile has the core of this processor, so that the errors are those of the choice too"
            }
            Self::Foreign => "any profile: none is like this processor, so that the errors say little about the model",
            Self::Named => "the profile that was asked for",
        }
    }
}

/// Returns the place of a processor's core in the list.
fn core(processor: &Processor) -> Option<usize> {
    let later = SHARED.iter().find(|(model, stepping, _)| {
        (processor.vendor.as_str(), processor.family, processor.model) == (INTEL, 6, *model)
            && processor.stepping >= *stepping
    });
    if let Some((.., name)) = later {
        return CORES.iter().position(|core| core.name == *name);
    }
    CORES.iter().position(|core| {
        core.vendor == processor.vendor
            && core.family == processor.family
            && core.models.iter().any(|(first, last)| (*first..=*last).contains(&processor.model))
    })
}

/// Returns the processor that a profile describes.
pub fn processor(profile: &Profile) -> Processor {
    Processor::of(|leaf| profile.real_cpuid(leaf, 0).map_or([0; 4], |l| [l.eax, l.ebx, l.ecx, l.edx]))
}

/// Returns the profile that fits a processor best, and how well it does. Synthetic profiles fit none.
pub fn choose(host: &Processor) -> Result<(Profile, Fit), ProfileError> {
    let profiles = Profile::names().map(Profile::named).collect::<Result<Vec<_>, _>>()?;
    let place = |profile: &Profile| {
        let named = profile.core.as_ref().map(|core| core.value.as_str());
        CORES.iter().position(|core| Some(core.name) == named).or_else(|| core(&processor(profile)))
    };
    let wanted = core(host);
    let mut best: Option<(u32, Fit, Profile)> = None;
    for profile in profiles.into_iter().filter(|profile| !profile.synthetic) {
        let of = processor(&profile);
        let place = place(&profile);
        let same = (&of.vendor, of.family, of.model, place) == (&host.vendor, host.family, host.model, wanted);
        let distance = match (wanted, place) {
            (Some(a), Some(b)) => a.abs_diff(b) as u32,
            _ => CORES.len() as u32,
        };
        let (rank, fit) = match same {
            true => (0, Fit::Exact),
            false if of.vendor != host.vendor => (10_000, Fit::Foreign),
            false if wanted.is_none() => (1000, Fit::Foreign),
            false if distance == 0 => (1, Fit::Core),
            false => (100 + distance, Fit::Nearest),
        };
        if best.as_ref().is_none_or(|(known, ..)| rank < *known) {
            best = Some((rank, fit, profile));
        }
    }
    let (_, fit, profile) = best.expect("there are profiles of processors");
    Ok((profile, fit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(vendor: &str, family: u32, model: u32) -> (String, Fit) {
        chosen_stepping(vendor, family, model, 0)
    }

    fn chosen_stepping(vendor: &str, family: u32, model: u32, stepping: u32) -> (String, Fit) {
        let vendor = vendor.into();
        let (profile, fit) = choose(&Processor { vendor, family, model, stepping, ..Processor::default() }).unwrap();
        (profile.name, fit)
    }

    #[test]
    fn a_processor_gets_its_profile_or_the_nearest() {
        assert_eq!(chosen(AMD, 0x19, 1), ("zen3".into(), Fit::Exact));
        assert_eq!(chosen(AMD, 0x19, 0x21), ("zen3".into(), Fit::Core));
        assert_eq!(chosen(AMD, 0x17, 1), ("zen3".into(), Fit::Nearest));
        assert_eq!(chosen(AMD, 0x19, 0x11), ("zen4".into(), Fit::Exact));
        assert_eq!(chosen(AMD, 0x19, 0x61), ("zen4".into(), Fit::Core));
        assert_eq!(chosen(AMD, 0x1a, 2), ("zen5".into(), Fit::Exact));
        assert_eq!(chosen(AMD, 0x1a, 0x44), ("zen5".into(), Fit::Core));
        assert_eq!(chosen(INTEL, 6, 0xcf), ("emr".into(), Fit::Exact));
        assert_eq!(chosen(INTEL, 6, 0x8f), ("spr".into(), Fit::Exact));
        assert_eq!(chosen(INTEL, 6, 0x97).1, Fit::Core);
        assert_eq!(chosen(INTEL, 6, 0x3f), ("hsw".into(), Fit::Exact));
        assert_eq!(chosen(INTEL, 6, 0x3c), ("hsw".into(), Fit::Core));
        assert_eq!(chosen(INTEL, 6, 0x3d), ("hsw".into(), Fit::Nearest));
        assert_eq!(chosen("CentaurHauls", 7, 0x3b).1, Fit::Foreign);
        assert_eq!(chosen(INTEL, 6, 0x01).1, Fit::Foreign);
    }

    /// Cascade Lake has the model of Skylake-SP, and later steppings.
    #[test]
    fn steppings_tell_cores_of_one_model_apart() {
        assert_eq!(chosen_stepping(INTEL, 6, 0x55, 4), ("skx".into(), Fit::Exact));
        assert_eq!(chosen_stepping(INTEL, 6, 0x55, 7), ("clx".into(), Fit::Exact));
        assert_eq!(chosen_stepping(INTEL, 6, 0x9e, 13), ("skx".into(), Fit::Core));
    }
}
