//! Files of an RPM package. A package is a lead, a header with signatures, a header with its description, and an archive of cpio that is compressed.

use flate2::read::MultiGzDecoder;
use lzma_rust2::{LzmaReader, XzReader};
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Beginning of the lead.
pub const MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];
/// Length of the lead.
const LEAD: usize = 96;
/// Beginning of each header.
const HEADER: [u8; 3] = [0x8e, 0xad, 0xe8];
/// Length of the begin of a header, and of each entry of its index.
const HEAD: usize = 16;
/// The signatures are followed by zeros up to a multiple of this.
const ALIGNED: usize = 8;
/// The longest header, in bytes.
const LARGEST: u64 = 256 << 20;
/// The signature that is the SHA-256 of the header, in hexadecimal digits.
const OF_HEADER: u32 = 273;
/// The entry of the header that is the SHA-256 of the compressed archive.
const OF_FILES: u32 = 5092;
/// The most memory for data in the form of xz's predecessor, in KiB.
const MEMORY: u32 = 256 << 10;

/// Length of the begin of an archive's entry.
const ENTRY: usize = 110;
/// The beginnings of entries: without and with a checksum.
const ENTRIES: [&[u8]; 2] = [b"070701", b"070702"];
/// Names and data of entries end at a multiple of this.
const PADDED: u64 = 4;
/// The longest name and the longest target of a link, in bytes.
const LONGEST: u64 = 4096;
/// Name of the entry behind the last file.
const TRAILER: &[u8] = b"TRAILER!!!";
/// The kind of a file among the bits of its mode.
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// The reason why a package can't be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum RpmError {
    /// The file can't be read.
    #[error("it can't be read: {0}")]
    Read(io::Error),
    /// The file ends too early.
    #[error("the package ends within {0}: it is damaged or incomplete")]
    Ends(&'static str),
    /// A header does not begin as one.
    #[error("the package has no header where one should be: it is damaged")]
    NoHeader,
    /// A header has an impossible length.
    #[error("a header of the package is too long: the package is damaged")]
    TooLong,
    /// A part has another checksum than the package says.
    #[error("the package is damaged: {0} does not have the checksum that the package names")]
    Checksum(&'static str),
    /// The archive is compressed in a way that is not supported.
    #[error("the files are packed in a way that is not known (zstd, xz, lzma, gzip, or not packed)")]
    Packed,
    /// The compressed data are damaged.
    #[error("the package is damaged: its files can't be unpacked: {0}")]
    Compressed(io::Error),
    /// The archive is damaged.
    #[error("the package is damaged: in its archive of files, {0}")]
    Archive(&'static str),
    /// A file would be written somewhere else.
    #[error("the package has a file outside of its own directory: {0}")]
    Outside(String),
    /// A file can't be written.
    #[error("can't write {0}: {1}")]
    Write(PathBuf, io::Error),
}

/// Fills a buffer with the bytes of a part of the package.
fn fill(file: &mut dyn Read, buffer: &mut [u8], part: &'static str) -> Result<(), RpmError> {
    file.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RpmError::Ends(part),
        _ => RpmError::Read(error),
    })
}

/// Returns the number at a place.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads a header: its begin, its index and its data.
fn header(file: &mut dyn Read, part: &'static str) -> Result<Vec<u8>, RpmError> {
    let mut bytes = vec![0; HEAD];
    fill(file, &mut bytes, part)?;
    if !bytes.starts_with(&HEADER) {
        return Err(RpmError::NoHeader);
    }
    let length = |at| u64::from(number(&bytes, at).unwrap_or_default());
    let rest = length(8) * HEAD as u64 + length(12);
    if rest > LARGEST {
        return Err(RpmError::TooLong);
    }
    // The length may be wrong: memory is used for what the file has.
    let read = file.take(rest).read_to_end(&mut bytes).map_err(RpmError::Read)?;
    if (read as u64) < rest { Err(RpmError::Ends(part)) } else { Ok(bytes) }
}

/// Returns the text of an entry of a header: the first one of several.
fn text(header: &[u8], tag: u32) -> Option<&str> {
    let entries = usize::try_from(number(header, 8)?).ok()?;
    let data = HEAD + entries * HEAD;
    let mut all = (1..=entries).map(|entry| entry * HEAD);
    let at = all.find(|at| number(header, *at) == Some(tag))?;
    let start = data.checked_add(usize::try_from(number(header, at + 8)?).ok()?)?;
    let text = header.get(start..)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

/// A reader that computes the checksum of all that is read.
struct Summed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

/// Returns true if a package does not name a checksum, or names this one.
fn agrees(named: Option<&str>, hash: Sha256) -> bool {
    let digits = || hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    named.is_none_or(|named| named == digits())
}

/// Unpacks the files of a package into a directory, which must be empty. Devices and sockets are left out, and so are owners and times.
pub fn unpack(package: &mut dyn Read, to: &Path) -> Result<(), RpmError> {
    fill(package, &mut [0; LEAD], "its lead")?;
    let signatures = header(package, "its signatures")?;
    let padding = signatures.len().next_multiple_of(ALIGNED) - signatures.len();
    fill(package, &mut [0; ALIGNED][..padding], "its signatures")?;
    let description = header(package, "its header")?;
    if !agrees(text(&signatures, OF_HEADER), Sha256::new_with_prefix(&description)) {
        return Err(RpmError::Checksum("its header"));
    }
    let mut files = Summed { inner: package, hash: Sha256::new() };
    let unpacked = unpack_files(&mut files, to);
    // Compressed data that are damaged can look like anything.
    io::copy(&mut files, &mut io::sink()).map_err(RpmError::Read)?;
    if !agrees(text(&description, OF_FILES), files.hash) {
        return Err(RpmError::Checksum("its archive of files"));
    }
    unpacked
}

/// Unpacks a compressed archive.
fn unpack_files(files: &mut dyn Read, to: &Path) -> Result<(), RpmError> {
    let mut start = [0; 6];
    fill(files, &mut start, "its files")?;
    let mut files = Cursor::new(start).chain(files);
    let archive: &mut dyn Read = match start {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &mut zstd(files)?,
        [0xfd, b'7', b'z', b'X', b'Z', _] => &mut XzReader::new(files, true),
        [0x1f, 0x8b, ..] => &mut MultiGzDecoder::new(files),
        // The form of xz's predecessor has no magic number; these are its usual properties.
        [0x5d, 0, 0, ..] => &mut LzmaReader::new_mem_limit(files, MEMORY, None).map_err(RpmError::Compressed)?,
        [b'0', b'7', b'0', b'7', ..] => &mut files,
        _ => return Err(RpmError::Packed),
    };
    Entries { archive }.unpack(to)
}

fn zstd<R: Read>(files: R) -> Result<impl Read, RpmError> {
    StreamingDecoder::new(files).map_err(|error| RpmError::Compressed(io::Error::other(error)))
}

/// The entries of an archive in cpio's `newc` form.
struct Entries<'a> {
    archive: &'a mut dyn Read,
}

/// The begin of an entry.
struct Entry {
    inode: u32,
    mode: u32,
    links: u32,
    length: u64,
    path: PathBuf,
}

/// Returns the path of an entry below the package's directory.
fn path(name: &[u8]) -> Result<PathBuf, RpmError> {
    let parts = Path::new(std::ffi::OsStr::from_bytes(name)).components();
    let outside = || RpmError::Outside(String::from_utf8_lossy(name).replace(char::is_control, "\u{fffd}"));
    let parts = parts.filter(|part| !matches!(part, Component::CurDir | Component::RootDir));
    let normal = |part| if let Component::Normal(part) = part { Ok(part) } else { Err(outside()) };
    parts.map(normal).collect()
}

/// Returns the number of bytes behind some data up to the next multiple.
fn padding(length: u64) -> u64 {
    length.next_multiple_of(PADDED) - length
}

impl Entries<'_> {
    /// Returns the next bytes, which must be there.
    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, RpmError> {
        let mut bytes = Vec::new();
        self.archive.take(length).read_to_end(&mut bytes).map_err(RpmError::Compressed)?;
        if (bytes.len() as u64) < length { Err(RpmError::Archive("a file ends too early")) } else { Ok(bytes) }
    }

    /// Writes the next bytes, which must be there.
    fn copy(&mut self, length: u64, to: &Path) -> Result<(), RpmError> {
        let mut file = File::create(to).map_err(|error| RpmError::Write(to.to_path_buf(), error))?;
        // An error of the package is none of the disk.
        let mut left = length;
        while left > 0 {
            let part = self.bytes(left.min(1 << 20))?;
            io::Write::write_all(&mut file, &part).map_err(|error| RpmError::Write(to.to_path_buf(), error))?;
            left -= part.len() as u64;
        }
        Ok(())
    }

    /// Returns the next entry; None behind the last one.
    fn next(&mut self) -> Result<Option<Entry>, RpmError> {
        let begin = self.bytes(ENTRY as u64)?;
        if !ENTRIES.iter().any(|magic| begin.starts_with(magic)) {
            return Err(RpmError::Archive("there is no file where one should be"));
        }
        let digits = |number: usize| std::str::from_utf8(&begin[6 + number * 8..14 + number * 8]).ok();
        let field = |number: usize| digits(number).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let field = |number: usize| field(number).ok_or(RpmError::Archive("a number is wrong"));
        let [inode, mode, links, length, name] = [field(0)?, field(1)?, field(4)?, field(6)?, field(11)?];
        let [length, name] = [length, name].map(u64::from);
        if !(1..=LONGEST).contains(&name) {
            return Err(RpmError::Archive("a name has an impossible length"));
        }
        let mut bytes = self.bytes(name)?;
        self.bytes(padding(ENTRY as u64 + name))?;
        if bytes.pop() != Some(0) {
            return Err(RpmError::Archive("a name has no end"));
        }
        if bytes == TRAILER {
            return Ok(None);
        }
        Ok(Some(Entry { inode, mode, links, length, path: path(&bytes)? }))
    }

    /// Unpacks all files. Links are made last, so that no file is written through one.
    fn unpack(mut self, to: &Path) -> Result<(), RpmError> {
        let mut links = Vec::new();
        // Files with several names: the last name has the contents.
        let mut same: HashMap<u32, Vec<PathBuf>> = HashMap::new();
        while let Some(entry) = self.next()? {
            let path = to.join(&entry.path);
            let failed = |error| RpmError::Write(path.clone(), error);
            let directory = if entry.mode & KIND == DIRECTORY { Some(&*path) } else { path.parent() };
            directory.map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
            match entry.mode & KIND {
                LINK if entry.length <= LONGEST => links.push((path, self.bytes(entry.length)?)),
                LINK => return Err(RpmError::Archive("a link is too long")),
                REGULAR if entry.links > 1 && entry.length == 0 => same.entry(entry.inode).or_default().push(path),
                REGULAR => {
                    self.copy(entry.length, &path)?;
                    if entry.mode & 0o100 != 0 {
                        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
                    }
                    for other in same.remove(&entry.inode).into_iter().flatten() {
                        fs::copy(&path, &other).map_err(|error| RpmError::Write(other, error))?;
                    }
                }
                // Directories, and files that a kernel does not have.
                _ => drop(self.bytes(entry.length.min(LONGEST))?),
            }
            self.bytes(padding(entry.length))?;
        }
        for empty in same.into_values().flatten() {
            File::create(&empty).map_err(|error| RpmError::Write(empty, error))?;
        }
        for (path, target) in links {
            let target = std::ffi::OsStr::from_bytes(&target);
            std::os::unix::fs::symlink(target, &path).map_err(|error| RpmError::Write(path, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::{Command, Stdio};

    /// An entry of an archive: inode, mode, links, name, contents.
    type Given<'a> = (u32, u32, u32, &'a str, &'a [u8]);

    fn archive(entries: &[Given]) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, mode, links, name, contents) in entries.iter().chain(&[(0, 0, 1, "TRAILER!!!", &b""[..])]) {
            let fields = [*inode, *mode, 0, 0, *links, 0, contents.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
            out.extend(fields.iter().fold("070701".to_owned(), |text, field| format!("{text}{field:08x}")).bytes());
            for part in [format!("{name}\0").as_bytes(), contents] {
                out.extend(part);
                out.resize(out.len().next_multiple_of(4), 0);
            }
        }
        out
    }

    /// A header with one text, as rpm writes it.
    fn described(tag: u32, text: &str) -> Vec<u8> {
        let length = text.len() as u32 + 1;
        let numbers =
            [1, length, tag, 6, 0, 1].iter().flat_map(|number: &u32| number.to_be_bytes()).collect::<Vec<_>>();
        [&HEADER[..], &[1, 0, 0, 0, 0], &numbers, text.as_bytes(), &[0]].concat()
    }

    fn sum(bytes: &[u8]) -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A package with compressed files.
    fn package(files: &[u8]) -> Vec<u8> {
        let header = described(OF_FILES, &sum(files));
        let mut out = [&MAGIC[..], &[0; LEAD - MAGIC.len()], &described(OF_HEADER, &sum(&header))].concat();
        out.resize(out.len().next_multiple_of(ALIGNED), 0);
        [&out, &header, files].concat()
    }

    /// An empty directory that the test removes.
    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Self {
            let place = std::env::temp_dir().join(format!("tollgate-rpm-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&place);
            fs::create_dir_all(place.join("to")).unwrap();
            Self(place)
        }

        fn unpack(&self, package: &[u8]) -> Result<(), RpmError> {
            let to = self.0.join("to");
            let _ = fs::remove_dir_all(&to);
            fs::create_dir_all(&to).unwrap();
            unpack(&mut &package[..], &to)
        }

        fn text(&self, path: &str) -> String {
            fs::read_to_string(self.0.join("to").join(path)).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const FILES: [Given; 6] = [
        (1, 0o040_755, 2, "./lib", b""),
        (2, 0o100_755, 1, "./lib/modules/1/vmlinuz", b"kernel"),
        (3, 0o100_644, 2, "/boot/twin", b""),
        (3, 0o100_644, 2, "/boot/config", b"CONFIG_X=y"),
        (4, 0o120_777, 1, "lib/link", b"modules/1/vmlinuz"),
        (5, 0o020_600, 1, "dev/null", b""),
    ];

    #[test]
    fn a_package_in_each_form_is_unpacked() {
        let place = Place::new("forms");
        let archive = archive(&FILES);
        for packer in ["cat", "gzip -c", "xz -c", "xz --format=lzma -c", "zstd -qc"] {
            let (program, options) = packer.split_once(' ').unwrap_or((packer, ""));
            fs::write(place.0.join("archive"), &archive).unwrap();
            let mut command = Command::new(program);
            command.args(options.split_whitespace()).stdin(File::open(place.0.join("archive")).unwrap());
            let Ok(output) = command.stderr(Stdio::inherit()).output() else {
                eprintln!("skipped: {program} is not installed");
                continue;
            };
            place.unpack(&package(&output.stdout)).unwrap();
            for (path, contents) in [
                ("lib/modules/1/vmlinuz", "kernel"),
                ("lib/link", "kernel"),
                ("boot/config", "CONFIG_X=y"),
                ("boot/twin", "CONFIG_X=y"),
            ] {
                assert_eq!(place.text(path), contents, "{packer}");
            }
            assert!(!place.0.join("to/dev/null").exists());
        }
    }

    #[test]
    fn no_file_is_written_outside_of_the_directory() {
        let place = Place::new("outside");
        let outside = place.0.join("outside");
        let target = place.0.to_str().unwrap();
        let link = [(1, 0o120_777, 1, "a", target.as_bytes()), (2, 0o100_644, 1, "a/outside", &b"x"[..])];
        let error = place.unpack(&package(&archive(&link))).unwrap_err();
        assert!(error.to_string().starts_with("can't write "), "{error}");
        let error = place.unpack(&package(&archive(&[(1, 0o100_644, 1, "b/../../outside", b"x")]))).unwrap_err();
        assert_eq!(error.to_string(), "the package has a file outside of its own directory: b/../../outside");
        place.unpack(&package(&archive(&[(1, 0o100_644, 1, outside.to_str().unwrap(), b"x")]))).unwrap();
        assert!(!outside.exists());
    }

    #[test]
    fn each_damage_has_a_name() {
        let place = Place::new("damage");
        let good = package(&archive(&FILES));
        let said = |bytes: &[u8]| place.unpack(bytes).unwrap_err().to_string();
        let header = good.len() - archive(&FILES).len() - 70;
        for (length, part) in [(50, "its lead"), (130, "its signatures"), (header, "its header")] {
            assert_eq!(said(&good[..length]), format!("the package ends within {part}: it is damaged or incomplete"));
        }
        assert!(said(&good[..good.len() - 9]).contains("its archive of files does not have the checksum"));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(said(&with(LEAD, 0)).contains("no header where one should be"));
        assert!(said(&with(LEAD + 8, 0xff)).contains("a header of the package is too long"));
        assert!(said(&with(header + 20, b'x')).contains("its header does not have the checksum"));
        assert!(said(&package(b"BZh91AY")).contains("packed in a way that is not known (zstd, xz, "));
        assert!(said(&package(b"BZ")).contains("ends within its files"));
        for (part, text) in [(&b"07070X"[..], "no file where one should be"), (b"070701", "a file ends too early")] {
            let files = [part, &[b'0'; ENTRY - 6]].concat();
            let files = if text.starts_with("a file") { files[..50].to_vec() } else { files };
            assert!(said(&package(&files)).contains(text), "{text}");
        }
    }

    proptest! {
        /// Whatever is changed in a package, it is unpacked as it was, or there is an error.
        #[test]
        fn a_damaged_package_is_an_error(
            changes in proptest::collection::vec((LEAD..1200_usize, any::<u8>()), 1..4),
            end in 0..1200_usize,
            checked: bool,
        ) {
            let place = Place::new("random");
            let files = archive(&FILES);
            let mut bytes = package(&files);
            if !checked {
                // Without checksums, as in packages of old, the archive alone says what is wrong.
                let at = |tag: u32| bytes.windows(4).position(|part| part == tag.to_be_bytes()).unwrap();
                for at in [at(OF_HEADER), at(OF_FILES)] {
                    bytes[at] = 0x7f;
                }
            }
            let good = bytes.clone();
            for (at, byte) in changes {
                let length = bytes.len();
                bytes[at % length] = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(end / 8));
            let unpacked = place.unpack(&bytes);
            // The lead, the numbers of signatures and names of unchecked parts may differ.
            if checked && bytes[LEAD..] != good[LEAD..] && unpacked.is_ok() {
                prop_assert_eq!(place.text("lib/modules/1/vmlinuz"), "kernel");
            }
            let others = fs::read_dir(&place.0).unwrap().flatten().filter(|entry| entry.file_name() != "to");
            prop_assert_eq!(others.count(), 0);
        }
    }
}
