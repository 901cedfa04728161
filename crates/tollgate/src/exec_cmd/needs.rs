//! The options of a kernel's configuration that `exec` needs or uses (docs/guides/exec.md has their reasons).

use std::collections::BTreeSet;

/// Options that have the same purpose.
pub struct Need {
    /// The purpose, in a few words.
    pub purpose: &'static str,
    /// The options, without `CONFIG_`.
    pub options: &'static [&'static str],
    /// True if nothing runs without them.
    pub required: bool,
}

const fn need(purpose: &'static str, required: bool, options: &'static [&'static str]) -> Need {
    Need { purpose, options, required }
}

/// The options. Drivers and file systems may be modules.
pub const NEEDS: [Need; 10] = [
    need(
        "process 1",
        true,
        &[
            "64BIT",
            "BLK_DEV_INITRD",
            "BINFMT_ELF",
            "MULTIUSER",
            "TTY",
            "UNIX98_PTYS",
            "PROC_FS",
            "SYSFS",
            "DEVTMPFS",
            "SHMEM",
            "TMPFS",
            "SIGNALFD",
            "POSIX_TIMERS",
            "X86_IOPL_IOPERM",
        ],
    ),
    need("the command's streams", true, &["PCI", "VIRTIO_MENU", "VIRTIO_PCI", "VIRTIO_CONSOLE"]),
    need("the end of the run, and the devices' interrupts", true, &["ACPI"]),
    need("mounted files, --root and --share", false, &["FUSE_FS", "VIRTIO_FS", "OVERLAY_FS"]),
    need("the kernel's messages", false, &["PRINTK", "SERIAL_8250", "SERIAL_8250_CONSOLE"]),
    need(
        "most programs",
        false,
        &["FUTEX", "EPOLL", "EVENTFD", "TIMERFD", "FILE_LOCKING", "BINFMT_SCRIPT", "NET", "UNIX", "INET"],
    ),
    need("--net", false, &["NETDEVICES", "NET_CORE", "VIRTIO_NET"]),
    need("names of functions and tasks", false, &["KALLSYMS", "DEBUG_KERNEL", "KALLSYMS_ALL"]),
    need(
        "layouts",
        false,
        &[
            "RELOCATABLE",
            "RANDOMIZE_BASE",
            "RANDOMIZE_MEMORY",
            "SHUFFLE_PAGE_ALLOCATOR",
            "SLUB",
            "SLAB_FREELIST_RANDOM",
        ],
    ),
    need("exit status 120", false, &["VM_EVENT_COUNTERS"]),
];

/// Returns the options that a configuration sets, built in or as modules.
fn set(configuration: &str) -> BTreeSet<&str> {
    let set = configuration.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('='));
    set.filter(|(_, value)| matches!(*value, "y" | "m")).map(|(name, _)| name).collect()
}

/// Returns the options that a configuration lacks, of those without which nothing runs or of the others.
pub fn lacking(configuration: &str, required: bool) -> Vec<&'static str> {
    let set = set(configuration);
    let needs = NEEDS.iter().filter(|need| need.required == required);
    needs.flat_map(|need| need.options).copied().filter(|option| !set.contains(option)).collect()
}

/// Returns a fragment of a configuration that sets all options.
pub fn fragment() -> String {
    let mut out = "# What `tollgate exec` needs of a kernel.\n".to_owned();
    for need in &NEEDS {
        let word = if need.required { "needed" } else { "used" };
        out += &format!("\n# {}: {word}\n", need.purpose);
        need.options.iter().for_each(|option| out += &format!("CONFIG_{option}=y\n"));
    }
    // tinyconfig has it in trees from 6.2 on, and it excludes SLAB_FREELIST_RANDOM.
    out + "\n# excludes an option above\n# CONFIG_SLUB_TINY is not set\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_configuration_lacks_is_listed() {
        let all = fragment();
        assert_eq!((lacking(&all, true), lacking(&all, false)), (vec![], vec![]));
        let less = all.replace("CONFIG_PCI=y\n", "# CONFIG_PCI is not set\n").replace("FUSE_FS=y", "FUSE_FS=m");
        assert_eq!((lacking(&less, true), lacking(&less, false)), (vec!["PCI"], vec![]));
        assert_eq!(lacking("", true).len(), 19);
        // SLUB_TINY of tinyconfig excludes SLAB_FREELIST_RANDOM.
        assert!(all.contains("\n# CONFIG_SLUB_TINY is not set\n"));
    }

    #[test]
    fn the_guide_lists_the_same_options() {
        let guide = include_str!("../../../../docs/guides/exec.md");
        let table: Vec<&str> = guide
            .split("### Configuration of the kernel")
            .nth(1)
            .unwrap()
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        for option in NEEDS.iter().flat_map(|need| need.options) {
            assert!(
                table.iter().any(|row| row.contains(&format!("`{option}`"))),
                "{option} is not in docs/guides/exec.md"
            );
        }
    }
}
