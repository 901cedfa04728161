//! The options that say what a guest runs on.

use anyhow::{Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use hypervisor::config::{Cr0Wp, Irqchip, MmuMode};
use ledger::profile::Profile;
use machine::{Platform, Switches};

/// What the guest runs on.
#[derive(Args)]
pub struct PlatformArgs {
    /// What the guest runs on
    #[arg(long, value_enum, default_value_t = PlatformName::Bare)]
    platform: PlatformName,
    #[command(flatten)]
    hvm: HvmArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlatformName {
    /// The processor itself
    Bare,
    /// A software emulator on that processor: the same execution, at the emulator's prices
    Emulated,
    /// A hypervisor on that processor
    Hvm,
}

/// The switches of the hypervisor.
#[derive(Args)]
#[command(next_help_heading = "Options of --platform hvm")]
struct HvmArgs {
    /// How guest memory is mapped. Default: tdp where the processor has EPT, else shadow
    #[arg(long, value_name = "MODE", value_parser = named::<MmuMode>(MmuMode::ALL.iter().map(|m| m.name())))]
    mmu: Option<MmuMode>,
    /// What a change of CR0.WP alone leads to: new roots, new metadata only (under tdp and legacy-tdp), or no exit at all
    /// [default: in-place]
    #[arg(long, value_name = "POLICY", value_parser = named::<Cr0Wp>(Cr0Wp::ALL.iter().map(|p| p.name())))]
    cr0_wp: Option<Cr0Wp>,
    /// The paravirtual interface [default: off]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    paravirt: Option<bool>,
    /// Where interrupt controllers and timers are emulated: in the kernel, or in the user-space VMM as KVM did in 2007
    /// [default: kernel]
    #[arg(long, value_name = "PLACE", value_parser = named::<Irqchip>(Irqchip::ALL.iter().map(|p| p.name())))]
    irqchip: Option<Irqchip>,
    /// Tags for the guest's translations. Default: on where the processor has them
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    vpid: Option<bool>,
    /// Real mode and unpaged protected mode run on the processor. Default: on where it can and the MMU mode allows it
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    unrestricted_guest: Option<bool>,
    /// Limit of shadow or TDP pages. Default: 20 for each 1000 pages of guest memory, at least 64
    #[arg(long, value_name = "N")]
    mmu_pages: Option<u32>,
    /// Mappings larger than 4 KiB [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    huge_pages: Option<bool>,
    /// Last-level guest page tables that are written freely until the next flush (shadow) [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    unsync: Option<bool>,
}

/// Values that have names, with the list of them in the help and in errors.
fn named<T>(names: impl Iterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

fn on_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off"),
    }
}

impl PlatformArgs {
    /// The platform on the processor of a profile.
    pub fn resolve(&self, profile: &Profile) -> Result<Platform> {
        let switches = self.hvm.switches();
        if let Some(option) = switches.named().next().filter(|_| self.platform != PlatformName::Hvm) {
            bail!("{option} is a switch of the hypervisor: it needs --platform hvm");
        }
        Ok(match self.platform {
            PlatformName::Bare => Platform::Bare,
            PlatformName::Emulated => Platform::Emulated,
            PlatformName::Hvm => Platform::Hvm(switches.resolve(profile)?),
        })
    }
}

impl HvmArgs {
    fn switches(&self) -> Switches {
        Switches {
            mmu: self.mmu,
            cr0_wp: self.cr0_wp,
            paravirt: self.paravirt,
            irqchip: self.irqchip,
            vpid: self.vpid,
            unrestricted_guest: self.unrestricted_guest,
            mmu_pages: self.mmu_pages,
            huge_pages: self.huge_pages,
            unsync: self.unsync,
        }
    }
}
