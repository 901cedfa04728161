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
