//! The platform `kvm`: the distribution's KVM, which runs on the machine and its processor as they are, with a Linux inside. The switches
//! of the hypervisor have counterparts there: parameters of KVM's modules, and variants of them (`guests/linux/kvm/variants`), which the
//! guest's kernel command line names (`docs/guides/nested.md`).

use super::Settings;
use hypervisor::config::{Cr0Wp, MmuMode};

/// Words of the host's kernel command line by which KVM does what the switches say.
pub(super) fn words(settings: &Settings) -> Result<Vec<String>, String> {
    let mut words = settings
        .switches
        .given()
        .map(|(switch, value)| word(switch.name, &value).ok_or_else(|| format!("KVM has no {} {value}", switch.name)))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(cpus) = settings.cpus {
        words.push(format!("tollgate.cpus={cpus}"));
    }
    Ok(words)
}

/// Processors of the host: one more than its guest has, for what the VMM does besides running them.
pub(super) fn host_processors(settings: &Settings) -> u32 {
    settings.cpus.unwrap_or(1).saturating_add(1)
}

fn word(switch: &str, value: &str) -> Option<String> {
    let flag = |parameter: &str| Some(format!("kvm_intel.{parameter}={}", u8::from(value == "on")));
    match switch {
        "mmu" => match value.parse().ok()? {
            MmuMode::ShadowNocache => None,
            MmuMode::Shadow => Some("kvm_intel.ept=0".to_owned()),
            MmuMode::LegacyTdp => Some("kvm.tdp_mmu=0".to_owned()),
            MmuMode::Tdp => Some("kvm.tdp_mmu=1".to_owned()),
        },
        "cr0-wp" => {
            // A root of the TDP MMU that nobody uses goes with its tree, as it did when roots were unloaded.
            let variant = match value.parse().ok()? {
                Cr0Wp::Role => "cr0-wp-role-drop",
                Cr0Wp::Unload => "cr0-wp-unload-drop",
                Cr0Wp::Direct => "cr0-wp-direct",
                Cr0Wp::Tdp => "cr0-wp-tdp",
                Cr0Wp::TdpOrPagingOff => "cr0-wp-tdp-or-paging-off",
                Cr0Wp::InPlace => "cr0-wp-in-place",
                Cr0Wp::GuestOwned => "plain",
            };
            Some(format!("tollgate.kvm={variant}"))
        }
        "vpid" => flag("vpid"),
        "unrestricted-guest" => flag("unrestricted_guest"),
        _ => None,
    }
}
