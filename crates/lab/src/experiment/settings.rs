//! What a cell is run with: the options of `tollgate run`, under the same names.

use serde::Deserialize;
use std::collections::BTreeMap;

/// An option that takes one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)*
        }
        impl $name {
            /// The word of the command line.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// What the guest runs on.
    Platform {
        /// The processor itself.
        Bare = "bare",
        /// A software emulator of it.
        Emulated = "emulated",
        /// A virtual machine of the hypervisor.
        Hvm = "hvm",
    }
}

words! {
    /// How the hypervisor translates guest memory.
    Mmu {
        /// Shadow page tables, thrown away at each CR3 load.
        ShadowNocache = "shadow-nocache",
        /// Shadow page tables kept by guest page and role.
        Shadow = "shadow",
        /// Two-dimensional paging through the shadow page hash.
        LegacyTdp = "legacy-tdp",
        /// Two-dimensional paging, a tree per root.
        Tdp = "tdp",
    }
}

words! {
    /// What a change of CR0.WP does.
    Cr0Wp {
        /// All roots are unloaded, and the bit is part of the role of two-dimensional tables.
        Role = "role",
        /// All roots are unloaded.
        Unload = "unload",
        /// Roots stay where that is possible.
        InPlace = "in-place",
        /// The guest owns the bit.
        GuestOwned = "guest-owned",
    }
}

words! {
    /// Where interrupt controllers and the timer are emulated.
    Irqchip {
        /// In the hypervisor.
        Kernel = "kernel",
        /// In user space.
        User = "user",
    }
}

words! {
    /// On or off.
    Switch {
        /// On.
        On = "on",
        /// Off.
        Off = "off",
    }
}

/// The name of a guest of the experiment.
pub type GuestName = String;

/// What a row, a column or an experiment sets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The guest that is run.
    pub guest: Option<GuestName>,
    /// The guest's command line; those of experiment, column and row are joined.
    pub append: Option<String>,
    /// Name of a built-in profile.
    pub profile: Option<String>,
    /// What the guest runs on.
    pub platform: Option<Platform>,
    /// `hvm`: the MMU.
    pub mmu: Option<Mmu>,
    /// `hvm`: what a change of CR0.WP does.
    pub cr0_wp: Option<Cr0Wp>,
    /// `hvm`: the paravirtual interface.
    pub paravirt: Option<Switch>,
    /// `hvm`: where interrupt controllers are.
    pub irqchip: Option<Irqchip>,
    /// `hvm`: VPID.
    pub vpid: Option<Switch>,
    /// `hvm`: unrestricted guest.
    pub unrestricted_guest: Option<Switch>,
    /// `hvm`: the most pages of the MMU.
    pub mmu_pages: Option<u32>,
    /// `hvm`: huge pages.
    pub huge_pages: Option<Switch>,
    /// `hvm`: shadow pages that are out of step with the guest's until it flushes.
    pub unsync: Option<Switch>,
    /// Guest memory, such as 64M.
    pub memory: Option<String>,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Seconds of the host's time after which a cell has failed.
    pub timeout: Option<u32>,
}

impl Settings {
    /// Options of `tollgate run` for the hypervisor alone, that are set.
    pub fn hypervisor_options(&self) -> BTreeMap<&'static str, String> {
        let words = [
            ("mmu", self.mmu.map(Mmu::word)),
            ("cr0-wp", self.cr0_wp.map(Cr0Wp::word)),
            ("paravirt", self.paravirt.map(Switch::word)),
            ("irqchip", self.irqchip.map(Irqchip::word)),
            ("vpid", self.vpid.map(Switch::word)),
            ("unrestricted-guest", self.unrestricted_guest.map(Switch::word)),
            ("huge-pages", self.huge_pages.map(Switch::word)),
            ("unsync", self.unsync.map(Switch::word)),
        ];
        let set = words.into_iter().filter_map(|(option, word)| Some((option, word?.to_owned())));
        set.chain(self.mmu_pages.map(|pages| ("mmu-pages", pages.to_string()))).collect()
    }

    /// These settings, with `defaults` where nothing is set. Command lines are joined.
    pub fn or(&self, defaults: &Self) -> Self {
        let append = [&defaults.append, &self.append].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
        Self {
            guest: self.guest.clone().or_else(|| defaults.guest.clone()),
            append: (!append.is_empty()).then(|| append.join(" ")),
            profile: self.profile.clone().or_else(|| defaults.profile.clone()),
            platform: self.platform.or(defaults.platform),
            mmu: self.mmu.or(defaults.mmu),
            cr0_wp: self.cr0_wp.or(defaults.cr0_wp),
            paravirt: self.paravirt.or(defaults.paravirt),
            irqchip: self.irqchip.or(defaults.irqchip),
            vpid: self.vpid.or(defaults.vpid),
            unrestricted_guest: self.unrestricted_guest.or(defaults.unrestricted_guest),
            mmu_pages: self.mmu_pages.or(defaults.mmu_pages),
            huge_pages: self.huge_pages.or(defaults.huge_pages),
            unsync: self.unsync.or(defaults.unsync),
            memory: self.memory.clone().or_else(|| defaults.memory.clone()),
            cpus: self.cpus.or(defaults.cpus),
            timeout: self.timeout.or(defaults.timeout),
        }
    }

    /// A setting, other than the command line, that both make.
    pub fn conflict(&self, other: &Self) -> Option<&'static str> {
        let both = [
            ("guest", self.guest.is_some() && other.guest.is_some()),
            ("profile", self.profile.is_some() && other.profile.is_some()),
            ("platform", self.platform.is_some() && other.platform.is_some()),
            ("memory", self.memory.is_some() && other.memory.is_some()),
            ("cpus", self.cpus.is_some() && other.cpus.is_some()),
            ("timeout", self.timeout.is_some() && other.timeout.is_some()),
        ];
        let (mine, others) = (self.hypervisor_options(), other.hypervisor_options());
        let general = both.into_iter().find_map(|(name, both)| both.then_some(name));
        general.or_else(|| mine.keys().find(|option| others.contains_key(*option)).copied())
    }
}

/// What is booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A bare-metal image.
    Bare(String),
    /// A Linux kernel with its initial RAM disk.
    Linux {
        /// The kernel.
        kernel: String,
        /// The initial RAM disk.
        initrd: Option<String>,
    },
}

/// A guest: files are named relative to the directory that the laboratory is started in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// What is booted.
    pub image: Image,
    /// Exit status of `tollgate run` when the guest ran as it should.
    pub status: i32,
    /// Files with symbols for its user programs, besides the image's own.
    pub symbols: Vec<String>,
    /// How it is made, for whoever lacks it.
    pub made_by: String,
}
