//! The mitigations of this machine's kernel, for the guest's: a path through the kernel is compared with the same path.

use std::path::Path;

/// Where a kernel says what it does against each vulnerability of the processor.
const DIRECTORY: &str = "/sys/devices/system/cpu/vulnerabilities";

/// A vulnerability, a word of what the kernel says of it, and the parameter that makes another kernel do the same. The first
/// word that is there decides.
type Rule = (&'static str, &'static [(&'static str, &'static str)]);

const RULES: [Rule; 14] = [
    ("meltdown", &[("PTI", "pti=on"), ("", "pti=off")]),
    (
        "spectre_v2",
        &[
            ("IBRS + Retpolines", "spectre_v2=eibrs,retpoline"),
            ("Retpolines", "spectre_v2=retpoline"),
            ("Automatic IBRS", "spectre_v2=eibrs"),
            ("Enhanced", "spectre_v2=eibrs"),
            ("IBRS", "spectre_v2=ibrs"),
            ("", "spectre_v2=off"),
        ],
    ),
    (
        "retbleed",
        &[
            ("untrained", "retbleed=unret"),
            ("IBPB", "retbleed=ibpb"),
            ("Mitigation", "retbleed=auto"),
            ("", "retbleed=off"),
        ],
    ),
    (
        "spec_rstack_overflow",
        &[
            ("Safe RET", "spec_rstack_overflow=safe-ret"),
            ("IBPB", "spec_rstack_overflow=ibpb"),
            ("Mitigation", "spec_rstack_overflow=safe-ret"),
            ("", "spec_rstack_overflow=off"),
        ],
    ),
    ("spec_store_bypass", &[("Mitigation", "spec_store_bypass_disable=auto"), ("", "spec_store_bypass_disable=off")]),
    ("l1tf", &[("Mitigation", "l1tf=flush"), ("", "l1tf=off")]),
    ("mds", &[("Mitigation", "mds=full"), ("", "mds=off")]),
    ("tsx_async_abort", &[("Mitigation", "tsx_async_abort=full"), ("", "tsx_async_abort=off")]),
    ("mmio_stale_data", &[("Mitigation", "mmio_stale_data=full"), ("", "mmio_stale_data=off")]),
    ("reg_file_data_sampling", &[("Mitigation", "reg_file_data_sampling=on"), ("", "reg_file_data_sampling=off")]),
    ("gather_data_sampling", &[("Mitigation", ""), ("", "gather_data_sampling=off")]),
    (
        "indirect_target_selection",
        &[("Mitigation", "indirect_target_selection=on"), ("", "indirect_target_selection=off")],
    ),
    ("tsa", &[("Mitigation", "tsa=on"), ("", "tsa=off")]),
    ("srbds", &[("Mitigation", ""), ("", "srbds=off")]),
];

/// Returns the parameters by which a kernel mitigates what this machine's does. A kernel that says nothing of a vulnerability gets
/// no parameter for it.
pub fn of_host() -> Vec<&'static str> {
    parameters(|name| std::fs::read_to_string(Path::new(DIRECTORY).join(name)).ok())
}

fn parameters(says: impl Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let decide = |(name, words): &Rule| {
        let text = says(name)?;
        words.iter().find(|(word, _)| text.contains(word)).map(|(_, parameter)| *parameter)
    };
    RULES.iter().filter_map(decide).filter(|parameter| !parameter.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_mitigates_what_the_host_does() {
        let says = |name: &str| {
            let text = match name {
                "meltdown" | "mds" => "Not affected",
                "retbleed" => "Mitigation: untrained return thunk; SMT disabled",
                "spec_rstack_overflow" => "Vulnerable: Safe RET, no microcode",
                "spectre_v2" => "Mitigation: Retpolines; STIBP: disabled; RSB filling; PBRSB-eIBRS: Not affected",
                "spec_store_bypass" => "Vulnerable",
                "tsa" => "Mitigation: Clear CPU buffers",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = [
            "pti=off",
            "spectre_v2=retpoline",
            "retbleed=unret",
            "spec_rstack_overflow=safe-ret",
            "spec_store_bypass_disable=off",
            "mds=off",
            "tsa=on",
        ];
        assert_eq!(parameters(says), expected);
        assert_eq!(parameters(|_| None), [""; 0]);
    }
}
