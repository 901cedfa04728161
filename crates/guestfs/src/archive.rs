//! Archives for an initial RAM disk: cpio's `newc` format, as Linux unpacks it (Documentation/driver-api/early-userspace/buffer-format.rst).

use crate::attributes::{Attributes, Kind};
use crate::packed::{Packed, Walked};
use rustix::io::Errno;

const ALIGNMENT: usize = 4;
const TRAILER: &[u8] = b"TRAILER!!!";

/// An archive in progress.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// Adds a file, directory or link under a path without a leading slash. Times, owners and inode numbers are constant.
    pub fn add(&mut self, path: &[u8], mode: u32, contents: &[u8]) {
        self.entry(path, mode, (0, 0), 0, (0, 0), contents);
    }

    /// Adds a character device by its numbers.
    pub fn add_device(&mut self, path: &[u8], permissions: u32, major: u32, minor: u32) {
        self.entry(path, Kind::CharacterDevice as u32 | permissions, (0, 0), 0, (major, minor), b"");
    }

    fn entry(&mut self, path: &[u8], mode: u32, owner: (u32, u32), modified: u32, device: (u32, u32), contents: &[u8]) {
        self.inode += 1;
        let links = if Kind::of(mode) == Some(Kind::Directory) { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            owner.0,
            owner.1,
            links,
            modified,
            contents.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path);
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// Adds a tree below a directory that exists; `below` is the directory's path with a trailing slash.
    pub fn add_tree(&mut self, below: &str, tree: &mut Packed) -> Result<(), Errno> {
        for Walked { path, node, attributes, target } in tree.walk() {
            let Attributes { mode, uid, gid, modified, .. } = attributes;
            let contents = match target {
                Some(target) => target,
                None if attributes.kind() == Kind::File => tree.contents(node)?,
                None => Vec::new(),
            };
            if u32::try_from(contents.len()).is_err() {
                return Err(Errno::FBIG);
            }
            let seconds = u32::try_from(modified.seconds).unwrap_or(0);
            self.entry(&[below.as_bytes(), &path].concat(), mode, (uid, gid), seconds, (0, 0), &contents);
        }
        Ok(())
    }

    /// Returns the bytes of the archive. Archives may be concatenated.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), 0, (0, 0), b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The fields of an entry: number, mode, owner, group, links, time, size, device numbers, length of the name.
    fn header(fields: [u32; 10]) -> String {
        let [number, mode, uid, gid, links, time, size, major, minor, name] = fields;
        let fields = [number, mode, uid, gid, links, time, size, 0, 0, major, minor, name, 0];
        fields.iter().fold("070701".to_owned(), |text, field| format!("{text}{field:08x}"))
    }

    #[test]
    fn an_archive_is_what_linux_unpacks() {
        let mut archive = Archive::default();
        archive.add(b"ab", 0o100_644, b"text!");
        archive.add_device(b"dev", 0o600, 5, 1);
        let mut tree = Packed::new();
        tree.make_directory(Path::new("/d"), 0o7750).unwrap();
        tree.put_bytes(Path::new("/d/f"), 0o600, b"file").unwrap();
        tree.put_link(Path::new("/l"), b"d/f").unwrap();
        archive.add_tree("x/", &mut tree).unwrap();
        let entries = [
            (header([1, 0o100_644, 0, 0, 1, 0, 5, 0, 0, 3]), "ab", "text!"),
            (header([2, 0o020_600, 0, 0, 1, 0, 0, 5, 1, 4]), "dev", ""),
            (header([3, 0o047_750, 0, 0, 2, 0, 0, 0, 0, 4]), "x/d", ""),
            (header([4, 0o100_600, 0, 0, 1, 0, 4, 0, 0, 6]), "x/d/f", "file"),
            (header([5, 0o120_777, 0, 0, 1, 0, 3, 0, 0, 4]), "x/l", "d/f"),
            (header([6, 0, 0, 0, 1, 0, 0, 0, 0, 11]), "TRAILER!!!", ""),
        ];
        let mut expected = String::new();
        for (header, name, contents) in entries {
            for part in [format!("{header}{name}\0"), contents.to_owned()] {
                expected.push_str(&part);
                // Each part begins at a multiple of four.
                while !expected.len().is_multiple_of(4) {
                    expected.push('\0');
                }
            }
        }
        assert_eq!(String::from_utf8(archive.finish()).unwrap(), expected);
    }
}
