//! The server's interface to a file tree: nodes by number, and the operations on them.

use crate::attributes::{Attributes, Kind, Time};
use rustix::io::Errno;
use std::time::Duration;

/// The number of the root in every tree.
pub const ROOT: u64 = 0;

/// A node found by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Node number.
    pub node: u64,
    /// The attributes of the file.
    pub attributes: Attributes,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode number.
    pub inode: u64,
    /// The kind of the file.
    pub kind: Kind,
}

/// The attributes that a guest wants to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<When>,
    /// Last change of the contents.
    pub modified: Option<When>,
}

/// A time that a guest sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The host's time.
    Now,
    /// A time of the guest's choice.
    At(Time),
}

/// The kind of node that [`Tree::make`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// A directory with these permissions.
    Directory(u32),
    /// A regular file, pipe or socket, by its mode.
    Node(u32),
    /// A symbolic link to this.
    Link(Vec<u8>),
    /// Another name of a node.
    Name(u64),
}

/// The total and the free space, as in statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Block size in bytes.
    pub block: u32,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks available to unprivileged users.
    pub available: u64,
    /// Number of files.
    pub files: u64,
    /// Number of further files that fit.
    pub files_free: u64,
}

/// A tree of files. Requests that change a read-only tree are answered with `EROFS`.
pub trait Tree: Send {
    /// Returns the time for which the guest's cached names and attributes stay valid.
    fn validity(&self) -> Duration;
    /// Finds a name in a directory.
    fn look_up(&mut self, directory: u64, name: &[u8]) -> Result<Found, Errno>;
    /// Subtracts `times` from the guest's references to a node.
    fn forget(&mut self, _node: u64, _times: u64) {}
    /// Returns the attributes of a node, or of an open file if `handle` is given.
    fn attributes(&mut self, node: u64, handle: Option<u64>) -> Result<Attributes, Errno>;
    /// Returns the target of a symbolic link.
    fn read_link(&mut self, node: u64) -> Result<Vec<u8>, Errno>;
    /// Opens a file with the flags of open(2).
    fn open(&mut self, _node: u64, _flags: u32) -> Result<u64, Errno> {
        Ok(0)
    }
    /// Reads at most `size` bytes of an open file.
    fn read(&mut self, node: u64, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno>;
    /// Opens a directory.
    fn open_directory(&mut self, _node: u64) -> Result<u64, Errno> {
        Ok(0)
    }
    /// Calls `each` for the entries of an open directory from a position on, until it returns false.
    fn list(&mut self, node: u64, handle: u64, from: u64, each: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno>;
    /// Closes a file or a directory.
    fn close(&mut self, _handle: u64) {}
    /// Returns the room in the file system.
    fn room(&mut self) -> Room {
        Room { block: 4096, ..Room::default() }
    }
    /// Returns true if the guest may keep a file's cached contents when it opens the file again.
    fn keeps_contents(&self) -> bool;

    /// Creates a node, and looks it up.
    fn make(&mut self, _directory: u64, _name: &[u8], _new: &New) -> Result<Found, Errno> {
        Err(Errno::ROFS)
    }
    /// Creates a regular file and opens it.
    fn create(&mut self, _directory: u64, _name: &[u8], _mode: u32, _flags: u32) -> Result<(Found, u64), Errno> {
        Err(Errno::ROFS)
    }
    /// Changes attributes.
    fn change(&mut self, _node: u64, _handle: Option<u64>, _change: &Change) -> Result<Attributes, Errno> {
        Err(Errno::ROFS)
    }
    /// Writes to an open file, and returns the number of bytes written.
    fn write(&mut self, _handle: u64, _offset: u64, _bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }
    /// Flushes an open file to the disk.
    fn sync(&mut self, _handle: u64) -> Result<(), Errno> {
        Ok(())
    }
    /// Reserves or frees room in an open file, as fallocate(2) does.
    fn allocate(&mut self, _handle: u64, _offset: u64, _length: u64, _mode: u32) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Removes a name; `directory_itself` selects rmdir in place of unlink.
    fn remove(&mut self, _directory: u64, _name: &[u8], _directory_itself: bool) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
    /// Renames, with the flags of renameat2(2).
    fn rename(&mut self, _from: (u64, &[u8]), _to: (u64, &[u8]), _flags: u32) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
}
