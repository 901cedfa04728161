//! The switches of a virtual machine. Their names are the same on the command line, in experiments and in ledgers.

use crate::switches::{Setting, Takes, Word, switches};
use ledger::profile::Profile;
use strum::{Display, EnumMessage, EnumString, IntoStaticStr, VariantArray, VariantNames};
use x86::vmx::secondary;

/// Platform of a guest. The other switches apply to [`PlatformName::Hvm`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Display, EnumMessage, EnumString, IntoStaticStr, VariantArray, VariantNames,
)]
#[strum(serialize_all = "kebab-case")]
pub enum PlatformName {
    /// The processor itself
    Bare,
    /// A software emulator on that processor: the same execution, at the emulator's prices
    Emulated,
    /// A hypervisor on that processor
    Hvm,
}

impl PlatformName {
    /// All platforms.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;
    /// Names of the platforms.
    pub const NAMES: &[&str] = <Self as VariantNames>::VARIANTS;

    /// Returns a short description.
    pub fn help(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

/// MMU mode: mapping of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum MmuMode {
    /// One shadow tree, dropped at each load of CR3 (KVM before January 2007).
    ShadowNocache,
    /// Shadow pages kept by guest frame and role.
    Shadow,
    /// Two-dimensional paging with the shadow pages' hash and reverse maps.
    LegacyTdp,
    /// Two-dimensional paging with a tree per root.
    Tdp,
}

impl MmuMode {
    /// All modes.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns true if the processor walks both the guest's tables and the hypervisor's (EPT).
    pub const fn is_tdp(self) -> bool {
        matches!(self, Self::LegacyTdp | Self::Tdp)
    }
}

/// Effect of a change of CR0.WP alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Cr0Wp {
    /// The roots are unloaded, and the bit is part of their role even with two-dimensional paging: roots with different
    /// values are distinct (KVM before 5.19).
    Role,
    /// The roots are unloaded, as for any other change of the MMU's role.
    Unload,
    /// Only the metadata is updated where the current roots are direct: with two-dimensional paging but for the shadow of a nested guest's EPT, and with paging disabled
    /// (the patch of 1 February 2023: `root_role.direct`).
    Direct,
    /// With two-dimensional paging only the metadata is updated (`tdp_enabled`).
    Tdp,
    /// With two-dimensional paging, and with paging disabled, only the metadata is updated (`tdp_enabled || !(cr0 & X86_CR0_PG)`).
    TdpOrPagingOff,
    /// With two-dimensional paging only the metadata is updated; with paging disabled nothing happens.
    InPlace,
    /// The guest owns the bit, so there is no exit. Requires two-dimensional paging.
    GuestOwned,
}

impl Cr0Wp {
    /// All policies.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns what a change leads to with two-dimensional paging (`tdp`), in a guest with paging (`paging`), under roots that are `direct`.
    pub const fn effect(self, tdp: bool, paging: bool, direct: bool) -> Cr0WpEffect {
        let kept = match self {
            Self::Role | Self::Unload => false,
            Self::Direct => direct,
            Self::Tdp => tdp,
            Self::TdpOrPagingOff | Self::InPlace | Self::GuestOwned => tdp || !paging,
        };
        match (kept, paging, self) {
            (false, ..) => Cr0WpEffect::Unload,
            // There are no permissions; the metadata is updated when paging is enabled.
            (true, false, Self::InPlace | Self::GuestOwned) => Cr0WpEffect::Nothing,
            (true, ..) => Cr0WpEffect::Metadata,
        }
    }
}

/// The effect of a change of CR0.WP alone on the MMU at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cr0WpEffect {
    /// The roots are unloaded, and the metadata is updated.
    Unload,
    /// The metadata is updated.
    Metadata,
    /// Nothing.
    Nothing,
}

/// Location of the emulated interrupt controllers and timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Irqchip {
    /// In the kernel part of the hypervisor.
    Kernel,
    /// In the user-space VMM.
    User,
}

/// Handling of the roots of a guest and of a nested guest at transitions between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum NestedRoots {
    /// The previous roots of both are kept (KVM since 4.19).
    Keep,
    /// They are created again each time.
    Drop,
}

impl Word for NestedRoots {}
/// Time at which the parts of the guest's CPUID that depend on its registers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum CpuidUpdate {
    /// Immediately when a register changes: CR4.OSXSAVE, CR4.PKE, XCR0, IA32_XSS or IA32_APIC_BASE (KVM before 6.14).
    Eager,
    /// At the guest's next CPUID.
    Deferred,
}

impl Word for MmuMode {}
impl Word for CpuidUpdate {}
impl Word for Cr0Wp {}
impl Word for Irqchip {}

switches! {
    /// MMU mode.
    mmu: MmuMode = MmuMode::Tdp, "mmu", Takes::Word("MODE", <MmuMode as VariantNames>::VARIANTS),
        "How guest memory is mapped. Default: tdp where the processor has EPT, else shadow";
    /// Effect of a change of CR0.WP alone.
    cr0_wp: Cr0Wp = Cr0Wp::InPlace, "cr0-wp", Takes::Word("POLICY", <Cr0Wp as VariantNames>::VARIANTS),
        "What a change of CR0.WP alone leads to: new roots, new metadata only (under tdp and legacy-tdp), or no exit at all [default: in-place]";
    /// Time at which the parts of the guest's CPUID that depend on its registers are computed.
    cpuid_update: CpuidUpdate = CpuidUpdate::Eager, "cpuid-update", Takes::Word("WHEN", <CpuidUpdate as VariantNames>::VARIANTS),
        "When CPUID's answers that depend on registers are computed: at each change, or when CPUID is executed [default: eager]";
    /// True if the sizes of XSAVE components are cached when the hypervisor is loaded; otherwise it executes CPUID for
    /// each.
    cpuid_cache: bool = true, "cpuid-cache", Takes::OnOff,
        "Sizes of XSAVE components read once, when the hypervisor is loaded, instead of by CPUID each time (KVM before 6.1.122) [default: on]";
    /// True if the paravirtual interface is offered.
    paravirt: bool = false, "paravirt", Takes::OnOff, "The paravirtual interface [default: off]";
    /// Location of the emulated interrupt controllers.
    irqchip: Irqchip = Irqchip::Kernel, "irqchip", Takes::Word("PLACE", <Irqchip as VariantNames>::VARIANTS),
        "Where interrupt controllers and timers are emulated: in the kernel, or in the user-space VMM as KVM did in 2007 [default: kernel]";
    /// True if translations of the guest are tagged, so that transitions need not flush them.
    vpid: bool = true, "vpid", Takes::OnOff, "Tags for the guest's translations. Default: on where the processor has them";
    /// True if real mode and unpaged protected mode run on the processor.
    unrestricted_guest: bool = true, "unrestricted-guest", Takes::OnOff,
        "Real mode and unpaged protected mode run on the processor. Default: on where it can and the MMU mode allows it";
    /// Maximum number of MMU pages; `None` for a limit in proportion to the guest's memory.
    mmu_pages: Option<u32> = None, "mmu-pages", Takes::Number,
        "Limit of shadow or TDP pages. Default: 20 for each 1000 pages of guest memory, at least 64";
    /// True if mappings larger than 4 KiB are used where possible.
    huge_pages: bool = true, "huge-pages", Takes::OnOff, "Mappings larger than 4 KiB [default: on]";
    /// True if the guest may write to last-level page tables without an exit until it flushes (`shadow` only).
    /// Otherwise each write is emulated, as in KVM of 2007.
    unsync: bool = true, "unsync", Takes::OnOff,
        "Last-level guest page tables that are written freely until the next flush (shadow) [default: on]";
    /// True if the guest may be a hypervisor itself: it has VMX.
    nested: bool = false, "nested", Takes::OnOff, "VMX for the guest, which may be a hypervisor itself [default: off]";
    /// True if a guest hypervisor is offered EPT.
    nested_ept: bool = true, "nested-ept", Takes::OnOff,
        "EPT for guests that are hypervisors. Default: on under tdp and legacy-tdp";
    /// True if translations of a nested guest have a tag of their own, so that transitions between guest and nested
    /// guest need not flush them.
    nested_vpid: bool = true, "nested-vpid", Takes::OnOff,
        "A tag of its own for the translations of a guest's guest. Default: as vpid";
    /// True if VMREAD and VMWRITE of a guest hypervisor access a shadow VMCS, without exits.
    shadow_vmcs: bool = true, "shadow-vmcs", Takes::OnOff,
        "A shadow VMCS for guests that are hypervisors. Default: on where the processor has VMCS shadowing";
    /// Handling of roots at transitions between a guest and a nested guest.
    nested_roots: NestedRoots = NestedRoots::Keep, "nested-roots", Takes::Word("WHAT", <NestedRoots as VariantNames>::VARIANTS),
        "Roots of the MMU at transitions between a guest and its own guest: previous ones are kept, or made again each time [default: keep]";
}

/// Switches that apply only if the guest has VMX.
const FOR_GUEST_HYPERVISORS: &[&str] = &["nested", "nested-ept", "nested-vpid", "nested-roots", "shadow-vmcs"];

/// Description of a switch, for input and output.
pub struct Switch {
    /// Name: on the command line (after `--`), in experiments and in ledgers.
    pub name: &'static str,
    /// Permitted values.
    pub takes: Takes,
    /// Purpose, in one sentence.
    pub help: &'static str,
    set: fn(&mut Switches, &str) -> Option<()>,
    given: fn(&Switches) -> Option<String>,
    inherit: fn(&mut Switches, &Switches),
    value: fn(&VmConfig) -> String,
}

impl Switch {
    /// Returns the switch with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Switches::ALL.iter().find(|switch| switch.name == name)
    }
}

impl Switches {
    /// Sets a switch. Returns `None` if the value is not permitted.
    pub fn set(&mut self, switch: &Switch, value: &str) -> Option<()> {
        (switch.set)(self, value)
    }

    /// Returns the switches that are set, with their values.
    pub fn given(&self) -> impl Iterator<Item = (&'static Switch, String)> {
        Self::ALL.iter().filter_map(|switch| Some((switch, (switch.given)(self)?)))
    }

    /// Completes the switches: those that are not set are taken from `defaults`.
    pub fn or(mut self, defaults: &Self) -> Self {
        Self::ALL.iter().for_each(|switch| (switch.inherit)(&mut self, defaults));
        self
    }
}

impl VmConfig {
    /// Returns the name and value of every relevant switch: those for guest hypervisors are included only if there may
    /// be one.
    pub fn describe(&self) -> impl Iterator<Item = (&'static str, String)> {
        let matters = |switch: &&Switch| self.nested || !FOR_GUEST_HYPERVISORS.contains(&switch.name);
        Switches::ALL.iter().filter(matters).map(|switch| (switch.name, (switch.value)(self)))
    }
}

/// An invalid combination of switches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// CR0.WP cannot belong to the guest while the hypervisor computes its permissions.
    #[error("--cr0-wp guest-owned needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    GuestOwnedNeedsTdp,
    /// Unpaged code cannot run on the processor without EPT.
    #[error("--unrestricted-guest on needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    UnrestrictedNeedsTdp,
    /// A guest hypervisor's EPT cannot be shadowed by page tables.
    #[error("--nested-ept on needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    NestedEptNeedsTdp,
    /// A tag for the nested guest requires one for the guest.
    #[error("--nested-vpid on needs tags: use --vpid on")]
    NestedVpidNeedsVpid,
    /// Fewer MMU pages than a guest needs to run.
    #[error("--mmu-pages {0} is too few: at least {min} are needed", min = VmConfig::MIN_MMU_PAGES)]
    TooFewPages(u32),
    /// The processor lacks a feature that a switch needs.
    #[error("{switch} needs a processor with {feature}, and {processor} has none{instead}")]
    Processor {
        /// Name and value of the switch.
        switch: String,
        /// Name of the feature.
        feature: &'static str,
        /// Name of the processor.
        processor: String,
        /// Suggestion for the user.
        instead: &'static str,
    },
}

impl Switches {
    /// Computes the configuration on the processor of a profile.
    pub fn resolve(&self, profile: &Profile) -> Result<VmConfig, ConfigError> {
        let processor = profile.virtualization.value;
        let lacks = |switch: String, feature, instead| {
            Err(ConfigError::Processor { switch, feature, processor: profile.name.clone(), instead })
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
        if self.nested == Some(true) && profile.vmx.is_none() {
            return lacks("--nested on".to_owned(), "VMX", "");
        }
        let shadowing =
            profile.vmx.as_ref().is_some_and(|vmx| vmx.secondary.value.allowed_1 & secondary::VMCS_SHADOWING != 0);
        if self.shadow_vmcs == Some(true) && !shadowing {
            return lacks("--shadow-vmcs on".to_owned(), "VMCS shadowing", "");
        }
        let vpid = self.vpid.unwrap_or(processor.vpid);
        let config = self.over(VmConfig {
            mmu,
            vpid: processor.vpid,
            unrestricted_guest: processor.unrestricted_guest && mmu.is_tdp(),
            nested_ept: mmu.is_tdp(),
            nested_vpid: vpid,
            shadow_vmcs: shadowing,
            ..VmConfig::default()
        });
        config.validate()?;
        Ok(config)
    }
}

impl VmConfig {
    /// Minimum number of MMU pages of a machine.
    pub const MIN_MMU_PAGES: u32 = 64;

    /// Checks the combination of switches.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.cr0_wp == Cr0Wp::GuestOwned && !self.mmu.is_tdp() {
            return Err(ConfigError::GuestOwnedNeedsTdp);
        }
        if self.unrestricted_guest && !self.mmu.is_tdp() {
            return Err(ConfigError::UnrestrictedNeedsTdp);
        }
        if self.nested && self.nested_ept && !self.mmu.is_tdp() {
            return Err(ConfigError::NestedEptNeedsTdp);
        }
        if self.nested && self.nested_vpid && !self.vpid {
            return Err(ConfigError::NestedVpidNeedsVpid);
        }
        match self.mmu_pages {
            Some(pages) if pages < Self::MIN_MMU_PAGES => Err(ConfigError::TooFewPages(pages)),
            _ => Ok(()),
        }
    }

    /// Returns the maximum number of MMU pages of a machine with this number of guest pages: the configured value, or
    /// 20 per thousand, at least [`VmConfig::MIN_MMU_PAGES`].
    pub fn mmu_pages_for(&self, guest_pages: u64) -> u32 {
        let proportional = u32::try_from(guest_pages.saturating_mul(20) / 1000).unwrap_or(u32::MAX);
        self.mmu_pages.unwrap_or(proportional).max(Self::MIN_MMU_PAGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::ON_OFF;

    #[test]
    fn what_is_shown_is_read_back() {
        for switch in Switches::ALL {
            let values = match switch.takes {
                Takes::Word(_, words) => words,
                Takes::OnOff => ON_OFF,
                Takes::Number => &["64", "4294967295"],
            };
            for value in values {
                let mut switches = Switches::default();
                assert_eq!(switches.set(switch, value), Some(()), "{} {value}", switch.name);
                let given: Vec<_> = switches.given().map(|(switch, value)| (switch.name, value)).collect();
                assert_eq!(given, [(switch.name, (*value).to_owned())]);
                let config = switches.over(VmConfig { nested: true, ..VmConfig::default() });
                let described = config.describe().find(|(name, _)| *name == switch.name);
                let shown = described.map(|(_, shown)| shown);
                assert_eq!(shown.as_deref(), Some(*value).filter(|_| config.nested));
                assert_eq!(Switches::default().or(&switches), switches);
            }
            assert_eq!(Switches::default().set(switch, "both"), None, "{}", switch.name);
        }
        assert!(Switch::named("cr0-wp").is_some() && Switch::named("cr0_wp").is_none());
    }

    #[test]
    fn help_names_the_default() {
        for switch in Switches::ALL {
            let value = (switch.value)(&VmConfig::default());
            if switch.help.contains("[default: ") {
                assert!(switch.help.ends_with(&format!(" [default: {value}]")), "{}", switch.name);
            }
        }
    }

    #[test]
    fn a_shadow_mmu_owns_cr0_wp() {
        let config = VmConfig {
            mmu: MmuMode::Shadow,
            cr0_wp: Cr0Wp::GuestOwned,
            unrestricted_guest: false,
            ..VmConfig::default()
        };
        assert_eq!(config.validate(), Err(ConfigError::GuestOwnedNeedsTdp));
        assert_eq!(VmConfig { cr0_wp: Cr0Wp::InPlace, ..config }.validate(), Ok(()));
    }

    #[test]
    fn the_limit_of_pages_follows_memory() {
        let config = VmConfig::default();
        assert_eq!(config.mmu_pages_for(131_072), 2621);
        assert_eq!(config.mmu_pages_for(100), 64);
        assert_eq!(VmConfig { mmu_pages: Some(256), ..config }.mmu_pages_for(131_072), 256);
    }
}
