//! The platform that a guest runs on: the processor itself, a software emulator, or a hypervisor with its switches.

use hypervisor::config::PlatformName;

/// Platform that a guest runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// The processor of the profile.
    #[default]
    Bare,
    /// A software emulator on a host with the processor of the profile: the execution is the same, the costs are the
    /// emulator's.
    Emulated,
    /// A hypervisor on the processor of the profile.
    Hvm(hypervisor::VmConfig),
}

impl Platform {
    /// Returns the name of the platform.
    pub fn name(&self) -> PlatformName {
        match self {
            Platform::Bare => PlatformName::Bare,
            Platform::Emulated => PlatformName::Emulated,
            Platform::Hvm(_) => PlatformName::Hvm,
        }
    }

    /// Describes the platform and its switches as names and values, for a ledger.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("platform", self.name().to_string())];
        if let Platform::Hvm(config) = self {
            facts.extend(config.describe());
        }
        facts
    }
}
