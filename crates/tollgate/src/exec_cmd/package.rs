//! Packages of kernels, `.deb` and `.rpm`: their files are unpacked once, by the programs of this host.

use crate::output::say;
use crate::places;
use crate::table::hexadecimal;
use anyhow::{Context, Result, anyhow, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Beginning of an archive of `ar`, whose first member says that it is a Debian package (deb(5)).
const DEB: &[u8] = b"!<arch>\ndebian-binary";
/// Beginning of the lead of an RPM package.
const RPM: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];
/// Length of that lead.
const LEAD: u64 = 96;
/// Beginning of each of the two headers behind it: the signature's, and the package's own.
const HEADER: [u8; 3] = [0x8e, 0xad, 0xe8];
/// Length of the begin of a header, and of each entry of its index.
const HEAD: u64 = 16;
/// The signature's header is followed by zeros up to a multiple of this.
const ALIGNED: u64 = 8;
/// A header is not larger, in bytes.
const LARGEST: u64 = 256 << 20;
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
        () if start.starts_with(&RPM) => Some(Kind::Rpm),
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

/// Passes over a header, and returns where it ends.
fn skip_header(file: &mut File) -> Result<u64> {
    let mut head = [0; HEAD as usize];
    file.read_exact(&mut head).context("the package ends in a header")?;
    if head[..3] != HEADER {
        bail!("the package has no header where one should be");
    }
    let number = |at: usize| u64::from(u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let length = number(8) * HEAD + number(12);
    if length > LARGEST {
        bail!("a header of the package is too long");
    }
    Ok(file.seek(SeekFrom::Current(length as i64))?)
}

/// Returns the program that unpacks data that begin so, and its package.
fn unpacker(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let known: [(&[u8], &str, &str); 6] = [
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "xz", "xz-utils"),
        (&[0x1f, 0x8b], "gzip", "gzip"),
        (b"BZh", "bzip2", "bzip2"),
        // The form of xz's predecessor has no magic number; these are its usual properties.
        (&[0x5d, 0, 0], "xz", "xz-utils"),
        // Files that are not packed: an archive of cpio.
        (b"07070", "cat", "coreutils"),
    ];
    known.into_iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, program, package)| (program, package))
}

fn piped(command: &mut Command) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| anyhow!("{name} can't be started: {error}"))
}

fn unpack_rpm(path: &Path, to: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(LEAD))?;
    let end = skip_header(&mut file)?;
    file.seek(SeekFrom::Start(end.next_multiple_of(ALIGNED)))?;
    let payload = skip_header(&mut file)?;
    let mut start = [0; 6];
    file.read_exact(&mut start).context("the package has no files")?;
    file.seek(SeekFrom::Start(payload))?;
    let (program, package) = unpacker(&start).context("the files are packed in a way that is not known")?;
    let lacking: Vec<String> = [(program, package), ("cpio", "cpio")]
        .iter()
        .filter(|(program, _)| !has(program))
        .map(|(program, package)| format!("{program} (package {package})"))
        .collect();
    if !lacking.is_empty() {
        bail!("{} is not installed", lacking.join(" and "));
    }
    let options: &[&str] = if program == "cat" { &[] } else { &["-dc"] };
    let mut first = piped(Command::new(program).args(options).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let output = first.stdout.take().context("the output is not a pipe")?;
    let mut second = Command::new("cpio");
    second.args(["--extract", "--make-directories", "--no-absolute-filenames", "--quiet"]);
    let second = piped(second.current_dir(to).stdin(output).stdout(Stdio::null()).stderr(Stdio::piped()))?;
    if let Some(mut input) = first.stdin.take() {
        // If a program ends early, its status says so.
        let _ = std::io::copy(&mut file, &mut input).and_then(|_| input.flush());
    }
    let unpacked = first.wait()?;
    let written = second.wait_with_output()?;
    match (unpacked.success(), written.status.success()) {
        (true, true) => Ok(()),
        (false, _) => bail!("{program} ended with {unpacked}"),
        _ => bail!("cpio: {}", String::from_utf8_lossy(&written.stderr).trim().replace('\n', "; ")),
    }
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
        std::fs::write(&file, [&RPM[..], &[3, 0]].concat()).unwrap();
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

    /// A header with an index of one entry and some data.
    fn header(data: usize) -> Vec<u8> {
        let numbers = [1_u32, data as u32].iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
        [&HEADER[..], &[1, 0, 0, 0, 0], &numbers, &[0; HEAD as usize], &vec![7; data]].concat()
    }

    #[test]
    fn an_rpm_package_is_unpacked() {
        if !has("cpio") || !has("gzip") {
            say("skipped: cpio or gzip is not installed");
            return;
        }
        let place = place("rpm");
        // A signature of 5 bytes is followed by three zeros.
        let lead = [&RPM[..], &[0; LEAD as usize - 4]].concat();
        let rpm = place.join("k.rpm");
        let mut package = Vec::new();
        let packers = ["zstd -qc", "xz -c", "xz --format=lzma -c", "bzip2 -c", "cat", "gzip -c"];
        for packer in packers.iter().filter(|packer| has(packer.split(' ').next().unwrap())) {
            let script = format!("find ./boot | cpio --quiet -o -H newc | {packer} > ../files");
            run(Command::new("sh").args(["-c", &script]).current_dir(place.join("root"))).unwrap();
            let files = std::fs::read(place.join("files")).unwrap();
            package = [lead.clone(), header(5), vec![0; 3], header(9), files].concat();
            std::fs::write(&rpm, &package).unwrap();
            unpack_rpm(&rpm, &place).unwrap();
            assert_eq!(std::fs::read_to_string(place.join("boot/vmlinuz-1")).unwrap(), "kernel", "{packer}");
            std::fs::remove_dir_all(place.join("boot")).unwrap();
        }
        for (length, word) in [(100, "ends in a header"), (LEAD as usize + 60, "has no files")] {
            std::fs::write(&rpm, &package[..length]).unwrap();
            let error = format!("{:#}", unpack_rpm(&rpm, &place).unwrap_err());
            assert!(error.contains(word), "{length}: {error}");
        }
        std::fs::write(&rpm, [&package[..LEAD as usize], &[0; 64]].concat()).unwrap();
        assert!(unpack_rpm(&rpm, &place).unwrap_err().to_string().contains("no header where one should be"));
        std::fs::remove_dir_all(place).unwrap();
    }
}
