//! The FUSE protocol's messages (Linux: include/uapi/linux/fuse.h), as far as a virtio file system device needs them.

use crate::attributes::{Attributes, Time};
use std::time::Duration;

/// Operations.
pub mod operation {
    pub const LOOK_UP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GET_ATTRIBUTES: u32 = 3;
    pub const SET_ATTRIBUTES: u32 = 4;
    pub const READ_LINK: u32 = 5;
    pub const SYMBOLIC_LINK: u32 = 6;
    pub const MAKE_NODE: u32 = 8;
    pub const MAKE_DIRECTORY: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const REMOVE_DIRECTORY: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const SYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPEN_DIRECTORY: u32 = 27;
    pub const READ_DIRECTORY: u32 = 28;
    pub const RELEASE_DIRECTORY: u32 = 29;
    pub const SYNC_DIRECTORY: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const ALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const SYNC_ALL: u32 = 50;
}

/// Flags negotiated by INIT.
pub mod feature {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const AUTO_INVALIDATE: u32 = 1 << 12;
    pub const PARALLEL_DIRECTORIES: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_LINKS: u32 = 1 << 23;
}

/// Flags of an open file.
pub mod opened {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIRECTORY: u32 = 1 << 3;
}

/// Flags of the attributes to set.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ACCESSED: u32 = 1 << 4;
    pub const MODIFIED: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ACCESSED_NOW: u32 = 1 << 7;
    pub const MODIFIED_NOW: u32 = 1 << 8;
}

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Minor version of the protocol that this server implements.
pub const MINOR: u32 = 31;
/// Oldest minor version with all required features.
pub const OLDEST_MINOR: u32 = 28;
/// Size of a request's header, in bytes.
pub const REQUEST_HEADER: usize = 40;
/// Size of an answer's header, in bytes.
pub const ANSWER_HEADER: usize = 16;
/// Size of a directory entry before its name, in bytes.
pub const ENTRY_HEADER: usize = 24;
/// Alignment of directory entries, in bytes.
pub const ALIGNMENT: usize = 8;

/// The fields of a request in order. Fields beyond the end read as zero; [`Fields::whole`] then returns false.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    short: bool,
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, short: false }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.bytes.split_first_chunk::<N>() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => {
                (self.bytes, self.short) = (&[], true);
                [0; N]
            }
        }
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Reads a name, which ends with a zero byte.
    pub fn name(&mut self) -> &'a [u8] {
        match self.bytes.iter().position(|byte| *byte == 0) {
            Some(end) => {
                let name = &self.bytes[..end];
                self.bytes = &self.bytes[end + 1..];
                name
            }
            None => {
                (self.bytes, self.short) = (&[], true);
                &[]
            }
        }
    }

    /// Returns all remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn whole(&self) -> bool {
        !self.short
    }
}

/// The body of an answer.
#[derive(Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn times(self, times: [Time; 3]) -> Self {
        let body = times.iter().fold(self, |body, time| body.u64(time.seconds as u64));
        times.iter().fold(body, |body, time| body.u32(time.nanoseconds))
    }

    /// Appends `struct fuse_attr`.
    pub fn attributes(self, a: &Attributes) -> Self {
        let body = self.u64(a.inode).u64(a.size).u64(a.blocks).times([a.accessed, a.modified, a.changed]);
        body.u32(a.mode).u32(a.links).u32(a.uid).u32(a.gid).u32(a.device).u32(4096).u32(0)
    }

    /// Appends `struct fuse_entry_out`.
    pub fn entry(self, node: u64, valid: Duration, attributes: &Attributes) -> Self {
        let (seconds, rest) = (valid.as_secs(), valid.subsec_nanos());
        self.u64(node).u64(0).u64(seconds).u64(seconds).u32(rest).u32(rest).attributes(attributes)
    }

    /// Appends `struct fuse_attr_out`.
    pub fn valid_attributes(self, valid: Duration, attributes: &Attributes) -> Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attributes(attributes)
    }

    /// Appends `struct fuse_open_out`.
    pub fn opened(self, handle: u64, flags: u32) -> Self {
        self.u64(handle).u32(flags).u32(0)
    }
}
