//! The security modules (LSM) of this machine's kernel, for the guest's: their hooks are a part of most paths through the kernel.

use flate2::read::GzDecoder;
use silicon::release;
use std::io::Read;
use std::path::Path;

/// Where a kernel lists its modules, if securityfs is mounted.
const LIST: &str = "/sys/kernel/security/lsm";
/// Where a kernel has its configuration, if it has `CONFIG_IKCONFIG_PROC`.
const CONFIGURATION: &str = "/proc/config.gz";
/// The most bytes of a configuration that are read.
const LONGEST: u64 = 4 << 20;
/// The module that each kernel has, and that no parameter names.
const ALWAYS: &str = "capability";

/// Returns the parameter by which a kernel has the security modules of this machine's, or `None` if neither the list nor the
/// configuration of this machine's kernel can be read.
pub fn of_host() -> Option<String> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let packed = || {
        let file = std::fs::File::open(CONFIGURATION).ok()?;
        let mut text = String::new();
        GzDecoder::new(file).take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text)
    };
    let installed = || read(&Path::new("/boot").join(format!("config-{}", release::of_host()?)));
    let modules = match read(Path::new(LIST)) {
        Some(list) => names(&list),
        None => built(&packed().or_else(installed)?, &read(Path::new("/proc/cmdline")).unwrap_or_default())?,
    };
    Some(format!("lsm={}", modules.join(",")))
}

/// Returns the names of a list that a parameter may have.
fn names(list: &str) -> Vec<String> {
    list.trim().split(',').filter(|name| !name.is_empty() && *name != ALWAYS).map(str::to_owned).collect()
}

/// Returns the modules of a kernel by its configuration and its command line.
fn built(configuration: &str, command_line: &str) -> Option<Vec<String>> {
    let order = configuration.lines().find_map(|line| line.strip_prefix("CONFIG_LSM=\"")?.strip_suffix('"'))?;
    let asked = command_line.split_whitespace().rev().find_map(|word| word.strip_prefix("lsm="));
    let is_built = |name: &String| {
        let option = match name.as_str() {
            "bpf" => "CONFIG_BPF_LSM".into(),
            "integrity" => "CONFIG_INTEGRITY".into(),
            "lockdown" => "CONFIG_SECURITY_LOCKDOWN_LSM".into(),
            name => format!("CONFIG_SECURITY_{}", name.to_uppercase()),
        };
        configuration.lines().any(|line| line.strip_prefix(&option) == Some("=y"))
    };
    Some(names(asked.unwrap_or(order)).into_iter().filter(is_built).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATION: &str = "CONFIG_SECURITY=y\nCONFIG_SECURITY_LANDLOCK=y\n# CONFIG_SECURITY_SMACK is not set\n\
        CONFIG_SECURITY_SMACK_BRINGUP=y\nCONFIG_SECURITY_SELINUX=y\nCONFIG_SECURITY_LOCKDOWN_LSM=y\nCONFIG_BPF_LSM=y\n\
        CONFIG_LSM=\"landlock,lockdown,yama,integrity,smack,bpf\"\n";

    #[test]
    fn modules_are_those_that_are_built_in_the_kernel_s_order() {
        assert_eq!(built(CONFIGURATION, "quiet").unwrap(), ["landlock", "lockdown", "bpf"]);
        assert_eq!(built(CONFIGURATION, "lsm=smack quiet lsm=selinux,yama").unwrap(), ["selinux"]);
        assert!(built(CONFIGURATION, "lsm=").unwrap().is_empty());
        assert_eq!(built("CONFIG_SECURITY=y", ""), None);
    }

    #[test]
    fn a_list_of_the_kernel_is_taken_without_what_each_kernel_has() {
        assert_eq!(names("lockdown,capability,landlock,yama,apparmor\n"), ["lockdown", "landlock", "yama", "apparmor"]);
        assert!(names("capability\n").is_empty());
    }
}
