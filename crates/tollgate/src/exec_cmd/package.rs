//! Packages of kernels, `.deb` and `.rpm`: their files are unpacked once. A `.deb` is unpacked by a program of this host.

use crate::output::say;
use crate::places;
use crate::table::hexadecimal;
use anyhow::{Context, Result, bail};
use guestfs::rpm;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Beginning of an archive of `ar`, whose first member says that it is a Debian package (deb(5)).
const DEB: &[u8] = b"!<arch>\ndebian-binary";
/// Digits of a hash in the name of a directory.
const DIGITS: usize = 12;

/// The kind of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's and Ubuntu's.
    Deb,
    /// Fedora's, openSUSE's and so on.
    Rpm,
}

/// Returns the kind of a package, by its first bytes. None for any other file.
pub fn kind(path: &Path) -> Option<Kind> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(DEB.len() as u64).read_to_end(&mut start).ok()?;
    match () {
        () if start.starts_with(DEB) => Some(Kind::Deb),
        () if start.starts_with(&rpm::MAGIC) => Some(Kind::Rpm),
        () => None,
    }
}

/// Returns true if this host has a program.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns the directory for the files of a package in a directory for packages.
pub fn place(packages: &Path, path: &Path) -> Result<PathBuf> {
    let file = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    let mut hash = Sha256::new();
    hash.update(path.as_os_str().as_bytes());
    hash.update(format!("{} {} {} {}", file.len(), file.mtime(), file.mtime_nsec(), file.ino()));
    let digits = hexadecimal(&hash.finalize());
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(packages.join("files").join(format!("{stem}-{}", &digits[..DIGITS])))
}

/// Returns the directory with the files of a package, which is unpacked in the user's cache if it was not so far.
pub fn unpacked(path: &Path, kind: Kind) -> Result<PathBuf> {
    unpacked_in(&places::cache()?.join("packages"), path, kind)
}

/// Returns the directory with the files of a package, which is unpacked in a directory for packages if it was not so far.
pub fn unpacked_in(packages: &Path, path: &Path, kind: Kind) -> Result<PathBuf> {
    let directory = place(packages, path)?;
    if directory.is_dir() {
        return Ok(directory);
    }
    say(&format!("tollgate: unpacking {}", path.display()));
    let partial = directory.with_extension(format!("partial-{}", std::process::id()));
    std::fs::create_dir_all(&partial).with_context(|| format!("can't make {}", partial.display()))?;
    let done = match kind {
        Kind::Deb => unpack_deb(path, &partial),
        Kind::Rpm => unpack_rpm(path, &partial),
    };
    // Another process may have unpacked the same package meanwhile.
    let done = done.and_then(|()| match std::fs::rename(&partial, &directory) {
        Err(error) if !directory.is_dir() => Err(error.into()),
        _ => Ok(()),
    });
    if partial.exists() {
        // The rest of a package does no harm.
        let _ = std::fs::remove_dir_all(&partial);
    }
    done.with_context(|| format!("can't unpack {}", path.display()))?;
    Ok(directory)
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output = output.with_context(|| format!("{name} can't be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { bail!("{name}: {}", said.trim().replace('\n', "; ")) }
}

fn unpack_deb(path: &Path, to: &Path) -> Result<()> {
    if has("dpkg-deb") {
        return run(Command::new("dpkg-deb").arg("--extract").arg(path).arg(to));
    }
    if has("bsdtar") {
        run(Command::new("bsdtar").arg("-xf").arg(path).arg("-C").arg(to).arg("data.tar*"))?;
        let entries = std::fs::read_dir(to)?.flatten().map(|entry| entry.path());
        let data = entries.into_iter().next().context("the package has no data")?;
        run(Command::new("bsdtar").arg("-xf").arg(&data).arg("-C").arg(to))?;
        return Ok(std::fs::remove_file(data)?);
    }
    bail!("neither dpkg-deb (package dpkg) nor bsdtar (package libarchive-tools) is installed")
}

fn unpack_rpm(path: &Path, to: &Path) -> Result<()> {
    Ok(rpm::unpack(&mut BufReader::new(File::open(path)?), to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(test: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("tollgate-package-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("root/boot")).unwrap();
        std::fs::write(place.join("root/boot/vmlinuz-1"), "kernel").unwrap();
        place
    }

    #[test]
    fn a_package_is_known_by_its_first_bytes() {
        let place = place("kind");
        let file = place.join("x");
        std::fs::write(&file, b"!<arch>\ndebian-binary   1").unwrap();
        assert_eq!(kind(&file), Some(Kind::Deb));
        std::fs::write(&file, [&rpm::MAGIC[..], &[3, 0]].concat()).unwrap();
        assert_eq!(kind(&file), Some(Kind::Rpm));
        std::fs::write(&file, b"!<arch>\n").unwrap();
        assert_eq!((kind(&file), kind(&place)), (None, None));
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_debian_package_is_unpacked() {
        if !has("dpkg-deb") {
            say("skipped: dpkg-deb is not installed");
            return;
        }
        let place = place("deb");
        std::fs::create_dir_all(place.join("root/DEBIAN")).unwrap();
        let control = "Package: k\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: k\n";
        std::fs::write(place.join("root/DEBIAN/control"), control).unwrap();
        let deb = place.join("k.deb");
        run(Command::new("dpkg-deb").arg("--build").arg(place.join("root")).arg(&deb)).unwrap();
        assert_eq!(kind(&deb), Some(Kind::Deb));
        unpack_deb(&deb, &place).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("boot/vmlinuz-1")).unwrap(), "kernel");
        std::fs::remove_dir_all(place).unwrap();
    }
}
