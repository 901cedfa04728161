//! What a guest runs on: the processor itself, a software emulator, or a hypervisor with its switches.

use hypervisor::config::{Cr0Wp, Irqchip, MmuMode};
use ledger::profile::Profile;

/// What a guest runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// The processor of the profile.
    #[default]
    Bare,
    /// A software emulator on a host with the processor of the profile: the same execution, at the emulator's prices.
    Emulated,
    /// A hypervisor on the processor of the profile.
    Hvm(hypervisor::Config),
}

/// A platform and its switches as a user names them; what is missing follows from the others and from the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `--mmu`.
    pub mmu: Option<MmuMode>,
    /// `--cr0-wp`.
    pub cr0_wp: Option<Cr0Wp>,
    /// `--paravirt`.
    pub paravirt: Option<bool>,
    /// `--irqchip`.
    pub irqchip: Option<Irqchip>,
    /// `--vpid`.
    pub vpid: Option<bool>,
    /// `--unrestricted-guest`.
    pub unrestricted_guest: Option<bool>,
    /// `--mmu-pages`.
    pub mmu_pages: Option<u32>,
    /// `--huge-pages`.
    pub huge_pages: Option<bool>,
    /// `--unsync`.
    pub unsync: Option<bool>,
}

/// Why there is no such platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// The switches do not fit together.
    #[error(transparent)]
    Config(#[from] hypervisor::config::ConfigError),
    /// The processor lacks what a switch needs.
    #[error("{switch} needs a processor with {feature}, and {processor} has none{instead}")]
    Processor {
        /// The switch and its value.
        switch: String,
        /// What is missing.
        feature: &'static str,
        /// The processor.
        processor: String,
        /// What to do.
        instead: &'static str,
    },
}

impl Switches {
    /// The options that were given.
    pub fn named(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--mmu", self.mmu.is_some()),
            ("--cr0-wp", self.cr0_wp.is_some()),
            ("--paravirt", self.paravirt.is_some()),
            ("--irqchip", self.irqchip.is_some()),
            ("--vpid", self.vpid.is_some()),
            ("--unrestricted-guest", self.unrestricted_guest.is_some()),
            ("--mmu-pages", self.mmu_pages.is_some()),
            ("--huge-pages", self.huge_pages.is_some()),
            ("--unsync", self.unsync.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
    }

    /// The hypervisor's configuration on the processor of a profile.
    pub fn resolve(&self, profile: &Profile) -> Result<hypervisor::Config, PlatformError> {
        let processor = profile.virtualization.value;
        let lacks = |switch: String, feature, instead| {
            Err(PlatformError::Processor { switch, feature, processor: profile.name.clone(), instead })
        };
        let mmu = self.mmu.unwrap_or(if processor.ept { MmuMode::Tdp } else { MmuMode::Shadow });
        if mmu.is_tdp() && !processor.ept {
            return lacks(format!("--mmu {mmu}"), "EPT", ": use --mmu shadow or --mmu shadow-nocache");
        }
        if self.vpid == Some(true) && !processor.vpid {
            return lacks("--vpid on".to_owned(), "VPID", "");
        }
        if self.unrestricted_guest == Some(true) && !processor.unrestricted_guest {
            return lacks("--unrestricted-guest on".to_owned(), "unrestricted guest mode", "");
        }
        let default = hypervisor::Config::default();
        let config = hypervisor::Config {
            mmu,
            cr0_wp: self.cr0_wp.unwrap_or(default.cr0_wp),
            paravirt: self.paravirt.unwrap_or(default.paravirt),
            irqchip: self.irqchip.unwrap_or(default.irqchip),
            vpid: self.vpid.unwrap_or(processor.vpid),
            unrestricted_guest: self.unrestricted_guest.unwrap_or(processor.unrestricted_guest && mmu.is_tdp()),
            mmu_pages: self.mmu_pages,
            huge_pages: self.huge_pages.unwrap_or(default.huge_pages),
            unsync: self.unsync.unwrap_or(default.unsync),
        };
        config.validate()?;
        Ok(config)
    }
}

impl Platform {
    /// The name on the command line and in ledgers.
    pub fn name(&self) -> &'static str {
        match self {
            Platform::Bare => "bare",
            Platform::Emulated => "emulated",
            Platform::Hvm(_) => "hvm",
        }
    }

    /// The platform and its switches as names and values, for a ledger.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        let mut facts = vec![("platform", self.name().to_owned())];
        if let Platform::Hvm(config) = self {
            facts.extend([
                ("mmu", config.mmu.to_string()),
                ("cr0-wp", config.cr0_wp.to_string()),
                ("paravirt", on_off(config.paravirt)),
                ("irqchip", config.irqchip.to_string()),
                ("vpid", on_off(config.vpid)),
                ("unrestricted-guest", on_off(config.unrestricted_guest)),
                ("mmu-pages", config.mmu_pages.map_or("default".to_owned(), |pages| pages.to_string())),
                ("huge-pages", on_off(config.huge_pages)),
                ("unsync", on_off(config.unsync)),
            ]);
        }
        facts
    }
}
