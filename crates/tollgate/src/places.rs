//! Locations of the program's files: in a checkout, or in the directories of installed packages.

use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

/// The directory with the program's architecture-independent files, relative to the prefix of an installation.
const SHARED: &str = "share/tollgate";
/// The prefix of packages.
const PREFIX: &str = "/usr";
/// A file by which a checkout is recognized.
const MARK: &str = "guests/linux/kernel";

/// The cache that all users of a machine share, if a package or an administrator has made it.
const SYSTEM_CACHE: &str = "/var/cache/tollgate";
/// The variable that names another directory for that cache. Empty: there is none.
const SYSTEM_CACHE_VARIABLE: &str = "TOLLGATE_CACHE";

/// Returns the checkout around the current directory, or else around the program.
pub fn checkout() -> Option<PathBuf> {
    let places = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let mut above = places.iter().flatten().flat_map(|place| place.ancestors());
    above.find(|directory| directory.join(MARK).is_file()).map(Path::to_path_buf)
}

/// Returns the directory of installed files: that of the program's own prefix, wherever its package was unpacked, or else that of packages.
fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let own = program.as_deref().and_then(prefix);
    let mut prefixes = own.into_iter().chain([Path::new(PREFIX)]);
    prefixes.find_map(|prefix| Some(prefix.join(SHARED)).filter(|directory| directory.is_dir()))
}

/// Returns the prefix of a program in a directory `bin`.
fn prefix(program: &Path) -> Option<&Path> {
    let directory = program.parent()?;
    directory.parent().filter(|_| directory.file_name().is_some_and(|name| name == "bin"))
}

/// Returns the base directory of the built-in experiments' images.
pub fn guests() -> PathBuf {
    checkout().or_else(installed).unwrap_or_else(|| PathBuf::from("."))
}

/// Returns the cache directory: `$XDG_CACHE_HOME/tollgate` or `~/.cache/tollgate`.
pub fn cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(base.ok_or_else(|| anyhow!("there is no directory for a cache: HOME is not set"))?.join("tollgate"))
}

/// Returns the directory of the cache that all users share, if there is one.
pub fn shared_cache() -> Option<PathBuf> {
    let named = std::env::var_os(SYSTEM_CACHE_VARIABLE).map(PathBuf::from);
    // A relative path would be another directory wherever the program is started.
    named.or_else(|| Some(SYSTEM_CACHE.into())).filter(|directory| directory.is_absolute() && directory.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_above_bin() {
        assert_eq!(prefix(Path::new("/tmp/root/usr/bin/tollgate")), Some(Path::new("/tmp/root/usr")));
        assert_eq!(prefix(Path::new("/home/user/target/release/tollgate")), None);
    }
}
