//! The attributes of a file: kind, owner, size and times.

/// A kind of file: the upper bits of its mode (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A named pipe.
    Pipe = 0o010_000,
    /// A character device.
    CharacterDevice = 0o020_000,
    /// A directory.
    Directory = 0o040_000,
    /// A block device.
    BlockDevice = 0o060_000,
    /// A regular file.
    File = 0o100_000,
    /// A symbolic link.
    Link = 0o120_000,
    /// A socket.
    Socket = 0o140_000,
}

impl Kind {
    /// The bits of a mode that hold the kind.
    pub const MASK: u32 = 0o170_000;

    /// Returns the kind in a mode.
    pub fn of(mode: u32) -> Option<Self> {
        let all = [
            Self::Pipe,
            Self::CharacterDevice,
            Self::Directory,
            Self::BlockDevice,
            Self::File,
            Self::Link,
            Self::Socket,
        ];
        all.into_iter().find(|kind| *kind as u32 == mode & Self::MASK)
    }
}

/// A time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1 000 000 000.
    pub nanoseconds: u32,
}

/// The attributes of a file, as stat(2) gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub device: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the contents.
    pub modified: Time,
    /// Last change of the attributes.
    pub changed: Time,
}

impl Attributes {
    /// Returns the kind of the file; a regular file if the mode has no known kind.
    pub fn kind(&self) -> Kind {
        Kind::of(self.mode).unwrap_or(Kind::File)
    }
}
