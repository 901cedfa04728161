//! Files of this host that a command has looked for and that its guest does not have.

use super::Share;
use super::files::is_of_guest;
use crate::output::say;
use crate::table::counted;
use guestfs::Packed;
use std::path::{Path, PathBuf};

/// The most files that a message names.
const MOST_NAMED: usize = 3;
/// Directories in which programs make files while they run.
const OF_RUNS: [&str; 3] = ["/run", "/tmp", "/var/run"];
/// Names of files and directories that the C library and many programs look for and do not need.
const OPTIONAL: [&str; 6] = ["gconv", "ld.so.preload", "locale", "nscd", "selinux", "terminfo"];

/// Returns the paths that a guest has looked for in vain in its packed files and that this host has, the latest first.
pub fn on_host(packed: &Packed, shares: &[Share]) -> Vec<PathBuf> {
    let elsewhere = |path: &Path| {
        is_of_guest(path)
            || OF_RUNS.iter().any(|place| path.starts_with(place))
            || shares.iter().any(|share| path.starts_with(&share.path))
    };
    // Programs and libraries are looked for in each of these directories.
    let lists = ["PATH", "LD_LIBRARY_PATH"].into_iter().filter_map(std::env::var_os);
    let searched: Vec<PathBuf> = lists.flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>()).collect();
    let is_search = |path: &Path| {
        let root = ["/bin", "/sbin", "/usr"].map(Path::new).contains(&path);
        root || searched.iter().any(|directory| directory.starts_with(path))
    };
    let is_optional = |path: &Path| path.iter().any(|name| OPTIONAL.iter().any(|optional| *optional == name));
    let mut paths = packed.missed();
    paths.retain(|path| !elsewhere(path) && !is_search(path) && !is_optional(path) && path.symlink_metadata().is_ok());
    paths
}

/// Tells the user of a command that failed which files it may have needed.
pub fn report(missing: &[PathBuf]) {
    if missing.is_empty() {
        return;
    }
    let named: Vec<_> = missing.iter().take(MOST_NAMED).map(|path| path.display().to_string()).collect();
    let others = match missing.len() - named.len() {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other", "others")),
    };
    say(&format!(
        "tollgate: the command has looked for files that this host has and its guest does not: {}{others} (--add PATH packs a file or directory, --root shows all files)",
        named.join(", ")
    ));
}
