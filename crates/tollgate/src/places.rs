//! Locations of the program's files: in a checkout, or in the directories of installed packages.

use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

/// The directory in which packages install architecture-independent files.
const INSTALLED: &str = "/usr/share/tollgate";
/// A file by which a checkout is recognized.
const MARK: &str = "guests/linux/kernel";

/// Returns the checkout around the current directory, or else around the program.
pub fn checkout() -> Option<PathBuf> {
    let places = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let mut above = places.iter().flatten().flat_map(|place| place.ancestors());
    above.find(|directory| directory.join(MARK).is_file()).map(Path::to_path_buf)
}

/// Returns the base directory of the experiments' images.
pub fn guests() -> PathBuf {
    let installed = Path::new(INSTALLED);
    let otherwise = || if installed.is_dir() { installed.to_path_buf() } else { PathBuf::from(".") };
    checkout().unwrap_or_else(otherwise)
}

/// Returns the cache directory: `$XDG_CACHE_HOME/tollgate` or `~/.cache/tollgate`.
pub fn cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(base.ok_or_else(|| anyhow!("there is no directory for a cache: HOME is not set"))?.join("tollgate"))
}
