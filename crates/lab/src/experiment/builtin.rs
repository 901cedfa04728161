//! The experiments of `experiments/`, which every program has with it.

use super::ExperimentError;

const BUILT_IN: &[(&str, &str)] = &[
    ("pv-cr3", include_str!("../../../../experiments/pv-cr3.toml")),
    ("pv-cr3-pages", include_str!("../../../../experiments/pv-cr3-pages.toml")),
    ("pv-cr3-io", include_str!("../../../../experiments/pv-cr3-io.toml")),
    ("pv-parts", include_str!("../../../../experiments/pv-parts.toml")),
    ("cr0-wp", include_str!("../../../../experiments/cr0-wp.toml")),
    ("cr0-wp-forms", include_str!("../../../../experiments/cr0-wp-forms.toml")),
    ("cr0-wp-linux", include_str!("../../../../experiments/cr0-wp-linux.toml")),
    ("xstate-cpuid", include_str!("../../../../experiments/xstate-cpuid.toml")),
    ("xstate-cpuid-linux", include_str!("../../../../experiments/xstate-cpuid-linux.toml")),
    ("xstate-cpuid-kvm", include_str!("../../../../experiments/xstate-cpuid-kvm.toml")),
    ("cr0-wp-role", include_str!("../../../../experiments/cr0-wp-role.toml")),
    ("mmu-linux", include_str!("../../../../experiments/mmu-linux.toml")),
    ("linux-workloads", include_str!("../../../../experiments/linux-workloads.toml")),
    ("udp-rx", include_str!("../../../../experiments/udp-rx.toml")),
    ("udp-rx-remedies", include_str!("../../../../experiments/udp-rx-remedies.toml")),
    ("udp-tx", include_str!("../../../../experiments/udp-tx.toml")),
    ("qdisc", include_str!("../../../../experiments/qdisc.toml")),
    ("switches", include_str!("../../../../experiments/switches.toml")),
    ("pvp", include_str!("../../../../experiments/pvp.toml")),
    ("forwarding-bulk", include_str!("../../../../experiments/forwarding-bulk.toml")),
    ("xfrm-compat", include_str!("../../../../experiments/xfrm-compat.toml")),
    ("network-processors", include_str!("../../../../experiments/network-processors.toml")),
    ("processors", include_str!("../../../../experiments/processors.toml")),
];

/// The names of the built-in experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|entry| entry.0)
}

/// The text of a built-in experiment.
pub(super) fn text(name: &str) -> Result<&'static str, ExperimentError> {
    let found = BUILT_IN.iter().find(|entry| entry.0 == name);
    found.map(|entry| entry.1).ok_or_else(|| ExperimentError::Unknown {
        name: name.chars().take(64).collect(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}
