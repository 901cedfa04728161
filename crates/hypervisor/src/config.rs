//! The switches of a virtual machine. Their names are the same on the command line, in experiments and in ledgers.

use crate::switches::{Setting, Takes, Word, switches};
use ledger::profile::Profile;
use strum::{Display, EnumMessage, EnumString, IntoStaticStr, VariantArray, VariantNames};
use x86::vmx::secondary;

/// What a guest runs on. The other switches are for [`PlatformName::Hvm`].
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
    /// All of them.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;
    /// What they are called.
    pub const NAMES: &[&str] = <Self as VariantNames>::VARIANTS;

    /// What it is, in a phrase.
    pub fn help(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

/// How guest memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum MmuMode {
    /// One shadow tree, thrown away at each load of CR3 (KVM before January 2007).
    ShadowNocache,
    /// Shadow pages kept by guest frame and role.
    Shadow,
    /// Two-dimensional paging mapped through the shadow pages' hash and reverse maps.
    LegacyTdp,
    /// Two-dimensional paging with a tree per root.
    Tdp,
}

impl MmuMode {
    /// All of them.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Whether the processor walks guest tables and the hypervisor's (EPT).
    pub const fn is_tdp(self) -> bool {
        matches!(self, Self::LegacyTdp | Self::Tdp)
    }
}

/// What a change of CR0.WP alone leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Cr0Wp {
    /// The roots are unloaded, and with two-dimensional paging too the bit is part of their role: a root with it set is
    /// not one with it clear (KVM before 5.19).
    Role,
    /// The roots are unloaded, as for any other change of the MMU's role.
    Unload,
    /// With two-dimensional paging only the metadata is refreshed, with paging off nothing at all.
    InPlace,
    /// The guest owns the bit: no exit. Needs two-dimensional paging.
    GuestOwned,
}

impl Cr0Wp {
    /// All of them.
    pub const ALL: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Whether a change unloads the roots, whatever they depend on.
    pub const fn unloads(self) -> bool {
        matches!(self, Self::Role | Self::Unload)
    }
}

/// Where the interrupt controllers and the timer are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Irqchip {
    /// In the kernel part of the hypervisor.
    Kernel,
    /// In the user-space VMM.
    User,
}

/// What becomes of the roots of a guest and of its own guest at transitions between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum NestedRoots {
    /// The previous roots of both are kept (KVM since 4.19).
    Keep,
    /// They are made anew each time.
    Drop,
}

impl Word for NestedRoots {}
/// When the parts of the guest's CPUID that depend on its registers are worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum CpuidUpdate {
    /// At once when a register changes: CR4.OSXSAVE, CR4.PKE, XCR0, IA32_XSS or IA32_APIC_BASE (KVM before 6.14).
    Eager,
    /// When the guest next executes CPUID.
    Deferred,
}

impl Word for MmuMode {}
impl Word for CpuidUpdate {}
impl Word for Cr0Wp {}
impl Word for Irqchip {}

switches! {
    /// How guest memory is mapped.
    mmu: MmuMode = MmuMode::Tdp, "mmu", Takes::Word("MODE", <MmuMode as VariantNames>::VARIANTS),
        "How guest memory is mapped. Default: tdp where the processor has EPT, else shadow";
    /// What a change of CR0.WP alone leads to.
    cr0_wp: Cr0Wp = Cr0Wp::InPlace, "cr0-wp", Takes::Word("POLICY", <Cr0Wp as VariantNames>::VARIANTS),
        "What a change of CR0.WP alone leads to: new roots, new metadata only (under tdp and legacy-tdp), or no exit at all [default: in-place]";
    /// When the parts of the guest's CPUID that depend on its registers are worked out.
    cpuid_update: CpuidUpdate = CpuidUpdate::Eager, "cpuid-update", Takes::Word("WHEN", <CpuidUpdate as VariantNames>::VARIANTS),
        "When CPUID's answers that depend on registers are worked out: at each change, or when CPUID is executed [default: eager]";
    /// The sizes of XSAVE components are known since the hypervisor was loaded; otherwise it executes CPUID for each.
    cpuid_cache: bool = true, "cpuid-cache", Takes::OnOff,
        "Sizes of XSAVE components read once, when the hypervisor is loaded, instead of by CPUID each time (KVM before 6.1.122) [default: on]";
    /// The paravirtual interface is offered.
    paravirt: bool = false, "paravirt", Takes::OnOff, "The paravirtual interface [default: off]";
    /// Where the interrupt controllers are emulated.
    irqchip: Irqchip = Irqchip::Kernel, "irqchip", Takes::Word("PLACE", <Irqchip as VariantNames>::VARIANTS),
        "Where interrupt controllers and timers are emulated: in the kernel, or in the user-space VMM as KVM did in 2007 [default: kernel]";
    /// Translations of the guest are tagged, so that transitions need not flush them.
    vpid: bool = true, "vpid", Takes::OnOff, "Tags for the guest's translations. Default: on where the processor has them";
    /// Real mode and unpaged protected mode run on the processor.
    unrestricted_guest: bool = true, "unrestricted-guest", Takes::OnOff,
        "Real mode and unpaged protected mode run on the processor. Default: on where it can and the MMU mode allows it";
    /// Limit of MMU pages; `None`: in proportion to the guest's memory.
    mmu_pages: Option<u32> = None, "mmu-pages", Takes::Number,
        "Limit of shadow or TDP pages. Default: 20 for each 1000 pages of guest memory, at least 64";
    /// Mappings larger than 4 KiB are made where possible.
    huge_pages: bool = true, "huge-pages", Takes::OnOff, "Mappings larger than 4 KiB [default: on]";
    /// Last-level guest page tables may be written without the hypervisor noticing, until the guest flushes (`shadow` only).
    /// Without it each write is emulated, as KVM did in 2007.
    unsync: bool = true, "unsync", Takes::OnOff,
        "Last-level guest page tables that are written freely until the next flush (shadow) [default: on]";
    /// The guest may be a hypervisor itself: it has VMX.
    nested: bool = false, "nested", Takes::OnOff, "VMX for the guest, which may be a hypervisor itself [default: off]";
    /// A guest that is a hypervisor is offered EPT.
    nested_ept: bool = true, "nested-ept", Takes::OnOff,
        "EPT for guests that are hypervisors. Default: on under tdp and legacy-tdp";
    /// Translations of a guest's guest have a tag of their own, so that transitions between the two need not flush them.
    nested_vpid: bool = true, "nested-vpid", Takes::OnOff,
        "A tag of its own for the translations of a guest's guest. Default: as vpid";
    /// VMREAD and VMWRITE of a guest that is a hypervisor go to a shadow VMCS, without exits.
    shadow_vmcs: bool = true, "shadow-vmcs", Takes::OnOff,
        "A shadow VMCS for guests that are hypervisors. Default: on where the processor has VMCS shadowing";
    /// What becomes of roots at transitions between a guest and its own guest.
    nested_roots: NestedRoots = NestedRoots::Keep, "nested-roots", Takes::Word("WHAT", <NestedRoots as VariantNames>::VARIANTS),
        "Roots of the MMU at transitions between a guest and its own guest: previous ones are kept, or made anew each time [default: keep]";
}

/// Switches that say nothing of a machine whose guest has no VMX.
const FOR_GUEST_HYPERVISORS: &[&str] = &["nested", "nested-ept", "nested-vpid", "nested-roots", "shadow-vmcs"];

/// A switch, for whoever reads one from a user or shows one.
pub struct Switch {
    /// Its name: on the command line (behind `--`), in experiments and in ledgers.
    pub name: &'static str,
    /// What it can be set to.
    pub takes: Takes,
    /// What it is for, in a sentence.
    pub help: &'static str,
    set: fn(&mut Switches, &str) -> Option<()>,
    given: fn(&Switches) -> Option<String>,
    inherit: fn(&mut Switches, &Switches),
    value: fn(&VmConfig) -> String,
}

impl Switch {
    /// The switch of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Switches::ALL.iter().find(|switch| switch.name == name)
    }
}

impl Switches {
    /// Sets a switch. `None`: it can't be set to that.
    pub fn set(&mut self, switch: &Switch, value: &str) -> Option<()> {
        (switch.set)(self, value)
    }

    /// The switches that are set, and to what.
    pub fn given(&self) -> impl Iterator<Item = (&'static Switch, String)> {
        Self::ALL.iter().filter_map(|switch| Some((switch, (switch.given)(self)?)))
    }

    /// These, with `defaults` where nothing is set.
    pub fn or(mut self, defaults: &Self) -> Self {
        Self::ALL.iter().for_each(|switch| (switch.inherit)(&mut self, defaults));
        self
    }
}

impl VmConfig {
    /// Every switch that matters by name, and what it is set to: those for guest hypervisors only where there may be one.
    pub fn describe(&self) -> impl Iterator<Item = (&'static str, String)> {
        let matters = |switch: &&Switch| self.nested || !FOR_GUEST_HYPERVISORS.contains(&switch.name);
        Switches::ALL.iter().filter(matters).map(|switch| (switch.name, (switch.value)(self)))
    }
}

/// A combination of switches that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// CR0.WP cannot belong to the guest while its permissions are computed by the hypervisor.
    #[error("--cr0-wp guest-owned needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    GuestOwnedNeedsTdp,
    /// Unpaged code cannot run on the processor without EPT.
    #[error("--unrestricted-guest on needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    UnrestrictedNeedsTdp,
    /// A guest hypervisor's EPT cannot be shadowed by page tables.
    #[error("--nested-ept on needs two-dimensional paging: use --mmu tdp or --mmu legacy-tdp")]
    NestedEptNeedsTdp,
    /// A tag of the guest's guest without one of the guest's.
    #[error("--nested-vpid on needs tags: use --vpid on")]
    NestedVpidNeedsVpid,
    /// Fewer MMU pages than one guest can run with.
    #[error("--mmu-pages {0} is too few: at least {min} are needed", min = VmConfig::MIN_MMU_PAGES)]
    TooFewPages(u32),
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
    /// The configuration on the processor of a profile.
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

    /// The limit of MMU pages of a machine with this many guest pages: what is configured, or 20 per thousand, at least
    /// [`VmConfig::MIN_MMU_PAGES`].
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
