//! Words of the kernel's command line that the kernel does not know. A Linux kernel passes them to process 1 and does nothing else with them, so that a
//! misspelled parameter would give a result without its effect.

use std::fmt::Write;

/// Key of the unknown words in a ledger, separated by spaces.
pub const UNKNOWN: &str = "unknown kernel parameters";

/// Largest number of differing letters between a word and the parameter that may be meant.
const NEAR: usize = 2;

/// Parameters of Linux kernels on x86 that change costs, places or the hardware in use (Documentation/admin-guide/kernel-parameters.txt). Among them are all
/// that x86 code reads early by itself (`cmdline_find_option`): a kernel counts those as unknown, although they have their effect.
#[rustfmt::skip]
const KNOWN: [&str; 187] = [
    "acpi", "acpi_enforce_resources", "acpi_rsdp", "align_va_addr", "apic", "apparmor", "audit", "bootconfig", "cgroup_disable", "cgroup_no_v1",
    "clearcpuid", "clocksource", "cma", "console", "crashkernel", "debug", "debug_pagealloc", "debugpat", "default_hugepagesz", "dis_ucode_ldr",
    "dyndbg", "eagerfpu", "earlycon", "earlyprintk", "efi", "ftrace", "gather_data_sampling", "hardened_usercopy", "highres", "hlt", "hpet",
    "hugepages", "hugepagesz", "hugetlb_cma", "hugetlb_free_vmemmap", "hung_task_panic", "ibt", "idle", "ignore_loglevel", "ima",
    "indirect_target_selection", "init", "init_on_alloc", "init_on_free", "initcall_debug", "intel_iommu", "intel_pstate", "io_delay", "iommu",
    "irqaffinity", "isolcpus", "kasan", "kernelcore", "kfence.sample_interval", "kgdboc", "kprobe_event", "kvm_cma_resv_ratio", "l1d_flush", "l1tf",
    "lapic", "lockdown", "log_buf_len", "loglevel", "lpj", "lsm", "maxcpus", "mce", "mds", "mem", "mem_encrypt", "mem_sleep", "memmap",
    "memory_corruption_check", "memtest", "mitigations", "mmio_stale_data", "movable_node", "movablecore", "mtrr_gran_size", "net.ifnames", "netdev",
    "nfsroot", "nmi_watchdog", "no5lvl", "no_console_suspend", "no_hash_pointers", "no_stf_barrier", "no_timer_check", "noaliencache", "noapic",
    "noefi", "noexec", "nofxsr", "nohibernate", "nohlt", "nohpet", "nohugeiomap", "nohugevmalloc", "nohz", "nohz_full", "noinvpcid", "nokaslr",
    "nolapic", "nopat", "nopcid", "nopku", "nopti", "nopv", "nopvspin", "norandmaps", "noreplace-smp", "noresume", "nosgx", "nosmap", "nosmep",
    "nosmp", "nosmt", "nosoftlockup", "nospec_store_bypass_disable", "nospectre_bhb", "nospectre_v1", "nospectre_v2", "nousb", "nowatchdog",
    "noxsave", "noxsaveopt", "noxsaves", "nr_cpus", "numa", "numa_balancing", "page_owner", "page_poison", "panic", "pci", "pcie_aspm",
    "possible_cpus", "preempt", "processor.max_cstate", "psi", "pti", "quiet", "raid", "ramdisk_size", "random.trust_cpu", "randomize_kstack_offset",
    "rcu_nocb_poll", "rcu_nocbs", "rcupdate.rcu_expedited", "rdinit", "reboot", "reg_file_data_sampling", "resume", "retbleed", "root", "security",
    "selinux", "setcpuid", "sev", "skew_tick", "slab_nomerge", "slub_debug", "slub_max_order", "slub_min_objects", "softlockup_panic",
    "spec_rstack_overflow", "spec_store_bypass_disable", "spectre_bhi", "spectre_v2", "spectre_v2_user", "split_lock_detect", "srbds",
    "stack_depot_disable", "swapaccount", "swiotlb", "threadirqs", "trace_event", "transparent_hugepage", "tsc", "tsx", "tsx_async_abort", "vdso",
    "vmscape", "vsyscall", "vsyscall32", "watchdog_thresh", "x2apic_phys", "xen_nopv",
];

/// Values of parameters that have a list of them, or take none (Documentation/admin-guide/kernel-parameters.txt of 6.1 to 7.0). A kernel goes on without a word
/// after most of the others. Parameters whose values are joined by commas, or are numbers or names, are not among them.
#[rustfmt::skip]
const VALUES: [(&str, &[&str]); 33] = [
    ("gather_data_sampling", &["force", "off"]),
    ("idle", &["halt", "nomwait", "poll"]),
    ("indirect_target_selection", &["force", "off", "on", "stuff", "vmexit"]),
    ("l1d_flush", &["on"]),
    ("l1tf", &["flush", "flush,nosmt", "flush,nowarn", "full", "full,force", "off"]),
    ("lockdown", &["confidentiality", "integrity"]),
    ("mds", &["full", "full,nosmt", "off"]),
    ("mmio_stale_data", &["full", "full,nosmt", "off"]),
    ("nokaslr", NONE),
    ("nopcid", NONE),
    ("nopku", NONE),
    ("nopti", NONE),
    ("nopv", NONE),
    ("nosmap", NONE),
    ("nosmep", NONE),
    ("nosmt", &["force"]),
    ("nospec_store_bypass_disable", NONE),
    ("nospectre_bhb", NONE),
    ("nospectre_v1", NONE),
    ("nospectre_v2", NONE),
    ("preempt", &["full", "lazy", "none", "voluntary"]),
    ("pti", &["auto", "off", "on"]),
    ("reg_file_data_sampling", &["off", "on"]),
    ("spec_rstack_overflow", &["ibpb", "ibpb-vmexit", "microcode", "off", "safe-ret"]),
    ("spec_store_bypass_disable", &["auto", "off", "on", "prctl", "seccomp"]),
    ("spectre_bhi", &["off", "on", "vmexit"]),
    ("spectre_v2", &["auto", "eibrs", "eibrs,lfence", "eibrs,retpoline", "ibrs", "off", "on", "retpoline", "retpoline,amd", "retpoline,generic", "retpoline,lfence"]),
    ("spectre_v2_user", &["auto", "off", "on", "prctl", "prctl,ibpb", "seccomp", "seccomp,ibpb"]),
    ("srbds", &["off", "on"]),
    ("transparent_hugepage", &["always", "madvise", "never"]),
    ("tsx", &["auto", "off", "on"]),
    ("tsx_async_abort", &["full", "full,nosmt", "off"]),
    ("vmscape", &["auto", "force", "ibpb", "off", "on"]),
];
const NONE: &[&str] = &[];
/// Words of lists that are joined by commas.
const JOINED: [(&str, &[&str]); 1] = [("retbleed", &["auto", "force", "ibpb", "nosmt", "off", "stuff", "unret"])];
/// Values of `mitigations=`, and the classes of attacks that may follow a semicolon since Linux 6.17.
const MITIGATIONS: (&str, &[&str], &[&str]) = (
    "mitigations",
    &["auto", "auto,nosmt", "off"],
    &["no_cross_thread", "no_guest_guest", "no_guest_host", "no_user_kernel", "no_user_user"],
);
/// The first release that knows classes of attacks in `mitigations=`.
const CLASSES_SINCE: (u32, u32) = (6, 17);
/// Values that mean on or off elsewhere: which of a parameter's values is meant is not seen in their letters.
const SWITCHES: [&str; 10] = ["0", "1", "disable", "disabled", "enable", "enabled", "false", "no", "true", "yes"];

/// Describes words of a kernel's command line whose values are not those of their parameters, a line for each. `release` is that of the kernel, if it is
/// known.
pub fn of_values<'a>(words: impl IntoIterator<Item = &'a str>, release: Option<&str>) -> Vec<String> {
    words.into_iter().filter_map(|word| value_warning(word, release)).collect()
}

/// Returns true if a word's value is none of its parameter's.
pub fn has_unknown_value(word: &str, release: Option<&str>) -> bool {
    value_warning(word, release).is_some()
}

/// Returns the first two numbers of a release such as 6.1.0-56-cloud-amd64.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    numbers.next()?.ok().zip(numbers.next()?.ok())
}

fn value_warning(word: &str, release: Option<&str>) -> Option<String> {
    let (name, value) = word.split_once('=')?;
    let early = release.filter(|release| version(release).is_some_and(|version| version < CLASSES_SINCE));
    if let Some(release) = early.filter(|_| plain(name) == MITIGATIONS.0 && value.contains(';')) {
        let (major, minor) = CLASSES_SINCE;
        return Some(format!(
            "`{word}` has a value that Linux {release} does not know: classes of attacks behind a semicolon came with Linux {major}.{minor}"
        ));
    }
    let of = |list: &[(&str, &'static [&'static str])]| {
        list.iter().find(|(known, _)| plain(known) == plain(name)).map(|(_, values)| *values)
    };
    let (values, parts) = match (of(&VALUES), of(&JOINED)) {
        (Some(values), _) => (values, vec![value]),
        (None, Some(values)) => (values, value.split(',').collect()),
        (None, None) if plain(name) == MITIGATIONS.0 => match value.split_once(';') {
            Some((before, classes)) if MITIGATIONS.1.contains(&before) => (MITIGATIONS.2, classes.split(',').collect()),
            _ => (MITIGATIONS.1, vec![value]),
        },
        (None, None) => return None,
    };
    let wrong = parts.into_iter().find(|part| !values.contains(part))?;
    if values.is_empty() {
        return Some(format!("`{word}` gives a value to `{name}`, which takes none: is `{name}` meant?"));
    }
    let small = wrong.to_ascii_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&small, known);
    let near = values.iter().map(|known| (distance(known), *known)).min();
    let near = near.filter(|(letters, _)| *letters <= NEAR.min(wrong.len() / 2).max(1));
    let meant = match near.filter(|_| !SWITCHES.contains(&small.as_str())) {
        Some((_, near)) => format!("is `{name}={}` meant?", value.replacen(wrong, near, 1)),
        None => format!("it has {}", values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")),
    };
    Some(format!("`{word}` has a value that the documentation of `{name}` does not know: {meant}"))
}

/// Returns true if a parameter is known here, whether or not the kernel counts it as its own.
pub fn is_known(word: &str) -> bool {
    let name = plain(word.split('=').next().unwrap_or(word));
    KNOWN.iter().any(|known| plain(known) == name)
}

/// Returns a name in the form in which names are compared: Linux makes no difference between dashes and underscores.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Describes unknown words for a person, a line for each.
pub fn warnings(words: &[String]) -> Vec<String> {
    words.iter().map(|word| warning(word)).collect()
}

fn warning(word: &str) -> String {
    let (name, value) = word.split_once('=').map_or((word, ""), |(name, _)| (name, &word[name.len()..]));
    let mut text = format!("the kernel does not know its parameter `{word}`, which has no effect");
    if let Some(near) = nearest(name) {
        // Writing to a string can't fail.
        let _ = write!(text, ": is `{near}{value}` meant?");
    }
    text
}

/// Returns the known parameter whose name is nearest to an unknown one.
fn nearest(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &plain(known));
    let near = KNOWN.iter().map(|known| (distance(known), *known)).min()?;
    // Two letters of four are another word.
    (near.0 <= NEAR.min(name.len() / 3)).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_kernel_knows_is_named() {
        let said = |word: &str| of_values([word], None).pop().unwrap_or_default();
        let has_unknown_value = |word: &str| has_unknown_value(word, None);
        for (word, meant) in [
            ("spectre_v2=of", "spectre_v2=off"),
            ("spectre-v2=retpolin", "spectre-v2=retpoline"),
            ("mitigations=offf", "mitigations=off"),
            ("mitigations=auto,nosmtt", "mitigations=auto,nosmt"),
            ("mitigations=OFF", "mitigations=off"),
            ("mitigations=auto;no_user_usr", "mitigations=auto;no_user_user"),
            ("mds=ful", "mds=full"),
            ("preempt=ful", "preempt=full"),
        ] {
            let name = word.split('=').next().unwrap();
            let text =
                format!("`{word}` has a value that the documentation of `{name}` does not know: is `{meant}` meant?");
            assert_eq!(said(word), text);
        }
        assert_eq!(said("nopti=1"), "`nopti=1` gives a value to `nopti`, which takes none: is `nopti` meant?");
        let text = "`pti=never` has a value that the documentation of `pti` does not know: it has `auto`, `off`, `on`";
        assert_eq!(said("pti=never"), text);
        let text = "`pti=no` has a value that the documentation of `pti` does not know: it has `auto`, `off`, `on`";
        assert_eq!(said("pti=no"), text);
        for word in [
            "mitigations=nosmt",
            "mitigations=auto,no_user_kernel",
            "mitigations=off,nosmt",
            "mitigations=no_user_kernel",
        ] {
            assert!(has_unknown_value(word), "{word}");
        }
        for word in [
            "spectre_v2=off",
            "mitigations=auto,nosmt",
            "mitigations=auto;no_user_user,no_guest_host",
            "nopti",
            "l1tf=full,force",
            "x=y",
            "quiet",
        ] {
            assert!(!has_unknown_value(word), "{word}");
        }
    }

    #[test]
    fn a_value_that_came_with_a_later_kernel_is_named() {
        let word = "mitigations=auto;no_user_user";
        let said = |release| of_values([word], release);
        for release in ["6.1.0-56-cloud-amd64", "6.16", "5.19.17"] {
            let text = format!(
                "`{word}` has a value that Linux {release} does not know: classes of attacks behind a semicolon came with Linux 6.17"
            );
            assert_eq!(said(Some(release)), [text]);
        }
        for release in [Some("6.17.0-rc1"), Some("7.0"), Some("next"), None] {
            assert!(said(release).is_empty(), "{release:?}");
        }
        assert!(of_values(["mitigations=auto,nosmt"], Some("6.1.0")).is_empty());
    }

    #[test]
    fn the_nearest_parameter_is_named() {
        let said = |word: &str| warnings(&[word.to_owned()]).remove(0);
        for (word, meant) in [
            ("mitigation=off", "mitigations=off"),
            ("mitgations=off", "mitigations=off"),
            ("spectre_v3=off", "spectre_v2=off"),
            ("quite", "quiet"),
            ("nokasrl", "nokaslr"),
        ] {
            assert_eq!(
                said(word),
                format!("the kernel does not know its parameter `{word}`, which has no effect: is `{meant}` meant?")
            );
        }
        assert!(is_known("spectre_v2=off") && is_known("noreplace_smp") && !is_known("mitigation=off"));
        for word in ["x", "zzz=1", "tollgate_test=1", "hip=1"] {
            assert_eq!(said(word), format!("the kernel does not know its parameter `{word}`, which has no effect"));
        }
    }
}
