//! The directory of a series: the work tree, the build directory, the kernels that were built, and the runs in them. Another series of the same repository
//! finds them again, so that a series that was interrupted goes on where it ended.

use crate::places;
use crate::table::hexadecimal;
use anyhow::{Context, Result, anyhow, bail};
use lab::diff::Runs;
use lab::diff::saved::{Measurement, Saved};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Digits of a hash in the name of a directory.
const DIGITS: usize = 16;
/// Larger than the runs of any commit, in bytes.
const LARGEST: u64 = 256 << 20;

/// The directory, which one series uses at a time.
pub struct State {
    /// Its path.
    pub directory: PathBuf,
    _lock: File,
}

/// Returns the hash of some texts, in hexadecimal digits.
pub fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hexadecimal(&hash.finalize())
}

/// Returns the directory of a repository's series, unless the user names another one.
pub fn default_directory(common: &Path) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(places::cache()?.join("series").join(&hash([common.as_os_str().as_bytes()])[..DIGITS]))
}

/// Returns true if a path lies in a directory.
fn lies_in(path: &Path, directory: &Path) -> bool {
    let real = |path: &Path| path.ancestors().find_map(|above| above.canonicalize().ok());
    real(path).zip(real(directory)).is_some_and(|(path, directory)| path.starts_with(directory))
}

impl State {
    /// Opens the directory. It must not lie in the user's tree, which it would change.
    pub fn open(directory: &Path, tree: &Path) -> Result<Self> {
        if lies_in(directory, tree) && !lies_in(directory, &tree.join(".git")) {
            bail!(
                "--state {}: the directory is inside the tree of --tree, which tollgate must not change",
                directory.display()
            );
        }
        let failed = || format!("can't make the directory {}", directory.display());
        std::fs::create_dir_all(directory).with_context(failed)?;
        let directory = directory.canonicalize().with_context(failed)?;
        let lock = File::create(directory.join("lock")).with_context(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            anyhow!(
                "{} is in use by another `tollgate series`: wait for it, or name another directory by --state",
                directory.display()
            )
        })?;
        Ok(Self { directory, _lock: lock })
    }

    /// Returns the place of the work tree.
    pub fn tree(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Returns the directory of builds.
    pub fn build(&self) -> PathBuf {
        self.directory.join("build")
    }

    /// Returns the place of a kernel, by the hash of what it is built by and its commit.
    pub fn kernel(&self, by: &str, commit: &str) -> PathBuf {
        self.directory.join("kernels").join(&by[..DIGITS]).join(commit)
    }

    fn runs(&self, by: &str, image: &str) -> PathBuf {
        self.directory.join("runs").join(&by[..DIGITS]).join(format!("{image}.json"))
    }

    /// Returns the runs in a kernel, by the hash of what they are measured by and its image. A file that can't be read is none.
    pub fn load(&self, by: &str, image: &str) -> Option<Kept> {
        let bytes = crate::input::read(&self.runs(by, image), LARGEST).ok()?;
        let saved = Saved::read(&bytes).ok().filter(|saved| saved.suspicion().is_none())?;
        let [warnings, notes] = saved.remarks().map(<[String]>::to_vec);
        let mut sides = saved.runs().ok()?;
        (sides.len() == 1).then(|| Kept { runs: sides.remove(0), warnings, notes })
    }

    /// Keeps the runs in a kernel.
    pub fn save(&self, by: &str, image: &str, runs: &Runs, measurement: &Measurement) -> Result<()> {
        let text =
            Saved::new(std::slice::from_ref(runs), measurement).to_json().context("can't write the runs as JSON")?;
        replace(&self.runs(by, image), text.as_bytes())
    }
}

/// Runs in a kernel that were kept, with the remarks on them.
pub struct Kept {
    pub runs: Runs,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

/// Writes a file that is complete or absent.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || format!("can't write {}", path.display());
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).with_context(failed)?;
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    std::fs::rename(&partial, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tollgate-state-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn one_series_uses_a_directory() {
        let place = directory("one");
        let tree = place.join("tree");
        std::fs::create_dir_all(tree.join(".git")).unwrap();
        let first = State::open(&place.join("state"), &tree).unwrap();
        let error = State::open(&place.join("state"), &tree).err().unwrap().to_string();
        assert!(error.contains("is in use by another `tollgate series`"), "{error}");
        drop(first);
        State::open(&place.join("state"), &tree).unwrap();
        let error = State::open(&tree.join("state"), &tree).err().unwrap().to_string();
        assert!(error.contains("is inside the tree"), "{error}");
        State::open(&tree.join(".git/tollgate"), &tree).unwrap();
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn hashes_tell_where_a_part_ends() {
        let of = |parts: &[&str]| hash(parts.iter().map(|part| part.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab"]).len(), 64);
    }

    #[test]
    fn a_damaged_file_is_none() {
        let place = directory("damaged");
        let state = State::open(&place.join("state"), &place.join("tree")).unwrap();
        let by = "0".repeat(64);
        assert!(state.load(&by, "image").is_none());
        replace(&state.runs(&by, "image"), b"{\"document\": ").unwrap();
        assert!(state.load(&by, "image").is_none());
        std::fs::remove_dir_all(place).unwrap();
    }
}
