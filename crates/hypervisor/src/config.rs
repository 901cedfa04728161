//! The switches of a virtual machine. Their names are the same on the command line, in experiments and in ledgers.

use std::fmt;
use std::str::FromStr;

/// A name that no variant of a switch has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {what}: use one of {allowed}")]
pub struct UnknownName {
    /// What was given.
    given: String,
    /// The switch.
    what: &'static str,
    /// What could have been given.
    allowed: String,
}

/// An enum whose variants have names: `ALL`, `name`, `Display` and `FromStr`.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on the command line and in ledgers.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(given: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|v| v.name() == given).ok_or_else(|| UnknownName {
                    given: given.to_owned(),
                    what: $what,
                    allowed: Self::ALL.iter().map(|v| v.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

named! {
    /// How guest memory is mapped.
    MmuMode, "MMU mode" {
        /// One shadow tree, thrown away at each load of CR3 (KVM before January 2007).
        ShadowNocache = "shadow-nocache",
        /// Shadow pages kept by guest frame and role.
        Shadow = "shadow",
        /// Two-dimensional paging mapped through the shadow pages' hash and reverse maps.
        LegacyTdp = "legacy-tdp",
        /// Two-dimensional paging with a tree per root.
        Tdp = "tdp",
    }
}

impl MmuMode {
    /// Whether the processor walks guest tables and the hypervisor's (EPT).
    pub const fn is_tdp(self) -> bool {
        matches!(self, Self::LegacyTdp | Self::Tdp)
    }
}

named! {
    /// What a change of CR0.WP alone leads to.
    Cr0Wp, "CR0.WP policy" {
        /// The roots are unloaded, and with two-dimensional paging too the bit is part of their role: a root with it set is
        /// not one with it clear (KVM before 5.19).
        Role = "role",
        /// The roots are unloaded, as for any other change of the MMU's role.
        Unload = "unload",
        /// With two-dimensional paging only the metadata is refreshed, with paging off nothing at all.
        InPlace = "in-place",
        /// The guest owns the bit: no exit. Needs two-dimensional paging.
        GuestOwned = "guest-owned",
    }
}

impl Cr0Wp {
    /// Whether a change unloads the roots, whatever they depend on.
    pub const fn unloads(self) -> bool {
        matches!(self, Self::Role | Self::Unload)
    }
}

named! {
    /// Where the interrupt controllers and the timer are emulated.
    Irqchip, "place for the interrupt controllers" {
        /// In the kernel part of the hypervisor.
        Kernel = "kernel",
        /// In the user-space VMM.
        User = "user",
    }
}

/// All switches of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How guest memory is mapped.
    pub mmu: MmuMode,
    /// What a change of CR0.WP alone leads to.
    pub cr0_wp: Cr0Wp,
    /// The paravirtual interface is offered.
    pub paravirt: bool,
    /// Where the interrupt controllers are emulated.
    pub irqchip: Irqchip,
    /// Translations of the guest are tagged, so that transitions need not flush them.
    pub vpid: bool,
    /// Real mode and unpaged protected mode run on the processor.
    pub unrestricted_guest: bool,
    /// Limit of MMU pages; `None`: in proportion to the guest's memory.
    pub mmu_pages: Option<u32>,
    /// Mappings larger than 4 KiB are made where possible.
    pub huge_pages: bool,
    /// Last-level guest page tables may be written without the hypervisor noticing, until the guest flushes (`shadow` only).
    /// Without it each write is emulated, as KVM did in 2007.
    pub unsync: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mmu: MmuMode::Tdp,
            cr0_wp: Cr0Wp::InPlace,
            paravirt: false,
            irqchip: Irqchip::Kernel,
            vpid: true,
            unrestricted_guest: true,
            mmu_pages: None,
            huge_pages: true,
            unsync: true,
        }
    }
}

/// A combination of switches that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// CR0.WP cannot belong to the guest while its permissions are computed by the hypervisor.
    #[error("--cr0-wp guest-owned needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    GuestOwnedNeedsTdp,
    /// Unpaged code cannot run on the processor without EPT.
    #[error("--unrestricted-guest on needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    UnrestrictedNeedsTdp,
    /// Fewer MMU pages than one guest can run with.
    #[error("--mmu-pages {0} is too few: at least {min} are needed", min = Config::MIN_MMU_PAGES)]
    TooFewPages(u32),
}

impl Config {
    /// The fewest MMU pages a machine gets.
    pub const MIN_MMU_PAGES: u32 = 64;

    /// Whether the switches fit together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.cr0_wp == Cr0Wp::GuestOwned && !self.mmu.is_tdp() {
            return Err(ConfigError::GuestOwnedNeedsTdp);
        }
        if self.unrestricted_guest && !self.mmu.is_tdp() {
            return Err(ConfigError::UnrestrictedNeedsTdp);
        }
        match self.mmu_pages {
            Some(pages) if pages < Self::MIN_MMU_PAGES => Err(ConfigError::TooFewPages(pages)),
            _ => Ok(()),
        }
    }

    /// The limit of MMU pages of a machine with this many guest pages: what is configured, or 20 per thousand, at least
    /// [`Config::MIN_MMU_PAGES`].
    pub fn mmu_pages_for(&self, guest_pages: u64) -> u32 {
        let proportional = u32::try_from(guest_pages.saturating_mul(20) / 1000).unwrap_or(u32::MAX);
        self.mmu_pages.unwrap_or(proportional).max(Self::MIN_MMU_PAGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back() {
        for mode in MmuMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(*mode));
        }
        for policy in Cr0Wp::ALL {
            assert_eq!(policy.to_string().parse(), Ok(*policy));
        }
        let error = "both".parse::<Irqchip>().unwrap_err();
        assert_eq!(error.to_string(), "`both` is not a place for the interrupt controllers: use one of kernel, user");
    }

    #[test]
    fn a_shadow_mmu_owns_cr0_wp() {
        let config =
            Config { mmu: MmuMode::Shadow, cr0_wp: Cr0Wp::GuestOwned, unrestricted_guest: false, ..Config::default() };
        assert_eq!(config.validate(), Err(ConfigError::GuestOwnedNeedsTdp));
        assert_eq!(Config { cr0_wp: Cr0Wp::InPlace, ..config }.validate(), Ok(()));
    }

    #[test]
    fn the_limit_of_pages_follows_memory() {
        let config = Config::default();
        assert_eq!(config.mmu_pages_for(131_072), 2621);
        assert_eq!(config.mmu_pages_for(100), 64);
        assert_eq!(Config { mmu_pages: Some(256), ..config }.mmu_pages_for(131_072), 256);
    }
}
