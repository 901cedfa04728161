//! Words of the kernel's command line that the kernel does not know. A Linux kernel passes them to process 1 and does nothing else with them, so that a
//! misspelled parameter would give a result without its effect.

use silicon::release::version;
use std::fmt::Write;

/// Key of the unknown words in a ledger, separated by spaces.
pub const UNKNOWN: &str = "unknown kernel parameters";

/// Largest number of differing letters between a word and the parameter that may be meant.
const NEAR: usize = 2;
/// Largest number of parameters of which one may be meant.
const MOST_MEANT: usize = 2;

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
/// Parameters that name processors. A kernel counts one of them as unknown if it refuses the value.
const OF_PROCESSORS: [&str; 2] = ["isolcpus", "nohz_full"];
/// Flags in front of the processors of a parameter.
const FLAGS: (&str, &[&str]) = ("isolcpus", &["domain", "managed_irq", "nohz"]);
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
    if name == FLAGS.0 {
        return wrong_flag(word, value);
    }
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
    let near = match SWITCHES.contains(&small.as_str()) {
        true => Vec::new(),
        false => nearest(&small, values, NEAR.min(wrong.len() / 2)),
    };
    let meant = match near[..] {
        [near] => format!("is `{name}={}` meant?", value.replacen(wrong, near, 1)),
        _ => format!("it has {}", quoted(values, ", ")),
    };
    Some(format!("`{word}` has a value that the documentation of `{name}` does not know: {meant}"))
}

/// Describes a word with a flag in front of its processors that no kernel knows.
fn wrong_flag(word: &str, value: &str) -> Option<String> {
    let is_processors = |part: &str| part == "all" || part.starts_with(|c: char| c.is_ascii_digit() || c == 'N');
    let wrong = value.split(',').take_while(|part| !is_processors(part)).find(|part| !FLAGS.1.contains(part))?;
    let meant = match nearest(wrong, FLAGS.1, NEAR.min(wrong.len() / 2))[..] {
        [near] => format!("is `{}` meant?", word.replacen(wrong, near, 1)),
        _ => format!("it has a list of processors, behind {}", quoted(FLAGS.1, ", ")),
    };
    Some(format!("`{word}` has a flag that the documentation of `{}` does not know: {meant}", FLAGS.0))
}

/// Returns words between backticks.
fn quoted(words: &[&str], between: &str) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(between)
}

/// Returns true if a parameter is known here, so that it may have its effect although the kernel counts it as unknown.
pub fn is_known(word: &str) -> bool {
    let name = plain(word.split('=').next().unwrap_or(word));
    KNOWN.iter().any(|known| plain(known) == name) && !OF_PROCESSORS.contains(&&*name)
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
    if OF_PROCESSORS.contains(&name) {
        return format!(
            "the kernel refuses `{word}`, which has no effect: the guest has no such processor beside another one (--cpus), or the kernel is built without this"
        );
    }
    let mut text = format!("the kernel does not know its parameter `{word}`, which has no effect");
    // Two letters of four are another word.
    let near = nearest(name, &KNOWN, NEAR.min(name.len() / 3));
    if (1..=MOST_MEANT).contains(&near.len()) {
        let takes_none = |name: &&str| VALUES.iter().any(|(known, values)| known == name && values.is_empty());
        let meant =
            near.iter().map(|name| if takes_none(name) { format!("`{name}`") } else { format!("`{name}{value}`") });
        // Writing to a string can't fail.
        let _ = write!(text, ": is {} meant?", meant.collect::<Vec<_>>().join(" or "));
    }
    text
}

/// Returns the known words that are nearest to another one, which differs from them in at most so many letters. Among words at the same distance are those
/// nearest that have the same letters in another order, and then those that begin with the word.
fn nearest(word: &str, all: &[&'static str], most: usize) -> Vec<&'static str> {
    let word = plain(word);
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let ranked = all.iter().filter_map(|known| {
        let other = plain(known);
        let distance = strsim::damerau_levenshtein(&word, &other);
        let rank = || (distance, sorted(&word) != sorted(&other), !other.starts_with(&word));
        (distance <= most).then(|| (rank(), *known))
    });
    let ranked: Vec<_> = ranked.collect();
    let least = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.into_iter().filter(|(rank, _)| Some(*rank) == least).map(|(_, known)| known).collect()
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
            ("srbds=of", "srbds=off"),
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
        // Two values differ in one letter from the first, and a letter of the second is all that there is.
        let text = |word: &str| {
            format!("`{word}` has a value that the documentation of `srbds` does not know: it has `off`, `on`")
        };
        for word in ["srbds=ofn", "srbds=o"] {
            assert_eq!(said(word), text(word));
        }
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
            ("nopit", "nopti"),
            ("nopit=1", "nopti"),
            ("nosm", "nosmp` or `nosmt"),
            ("isolcpu=1", "isolcpus=1"),
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

    #[test]
    fn a_list_of_processors_that_a_kernel_refuses_is_named() {
        let said = warnings(&["isolcpus=1".to_owned()]).remove(0);
        assert!(said.starts_with("the kernel refuses `isolcpus=1`, which has no effect: "), "{said}");
        assert!(!is_known("isolcpus=1") && !is_known("nohz_full=1") && is_known("rcu_nocbs=1"));
        let said = |word: &str| of_values([word], None).pop().unwrap_or_default();
        let text = "has a flag that the documentation of `isolcpus` does not know";
        assert_eq!(
            said("isolcpus=domian,1-2"),
            format!("`isolcpus=domian,1-2` {text}: is `isolcpus=domain,1-2` meant?")
        );
        assert_eq!(
            said("isolcpus=foo"),
            format!("`isolcpus=foo` {text}: it has a list of processors, behind `domain`, `managed_irq`, `nohz`")
        );
        for word in ["isolcpus=1", "isolcpus=nohz,domain,1,3-5", "isolcpus=managed_irq,all", "isolcpus=1-N"] {
            assert_eq!(said(word), "");
        }
    }
}
