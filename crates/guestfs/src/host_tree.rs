//! A directory of the host as a tree of files.
//!
//! Every name is looked up below the directory by openat2(2) with `RESOLVE_BENEATH` and without following symbolic links, so that no name, no link and
//! no concurrent move of a directory leads out of it. The guest follows links itself, in its own tree. A node is identified by its path from the
//! directory; a node whose last name is removed while the guest uses it remains reachable through a descriptor.

use crate::attributes::{Attributes, Kind, Time};
use crate::packed::errno;
use crate::tree::{Change, Entry, Found, New, ROOT, Room, Tree, When};
use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Time for which a guest may use cached names and attributes: other processes may change the directory.
const VALID: Duration = Duration::from_secs(1);
/// Limits on a guest's resources. Each resource costs memory or descriptors of the host.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes known to the guest; beyond it requests fail with `ENFILE`.
    pub nodes: usize,
    /// Files and directories open in the guest; beyond it requests fail with `EMFILE`.
    pub open: usize,
    /// Entries of the directories open in the guest; beyond it requests fail with `ENFILE`.
    pub entries: usize,
    /// Nodes without a name that the guest still uses.
    pub removed: usize,
}

impl Default for Limits {
    /// At most about 600 MB, and the usual limit of a process's descriptors.
    fn default() -> Self {
        Self { nodes: 1 << 20, open: 4096, entries: 1 << 21, removed: 1024 }
    }
}

/// Largest number of lookups of a name while other processes rename directories on its path.
const MOST_TRIES: usize = 64;
/// Flags of open(2) that the guest's program controls. The server sets all others.
const CHOSEN: OFlags =
    OFlags::RDONLY.union(OFlags::WRONLY).union(OFlags::RDWR).union(OFlags::TRUNC).union(OFlags::DSYNC);
/// Bits of a mode that the host honours when a file is executed or created: a guest's root must not leave a program on the host that runs with the rights of
/// the user of this process. The bit of the group stays on directories, where it decides about the group of new files.
const SET_IDS: u32 = 0o6000;
/// Flags of every open: never follow a link, never pass the file to another program, never acquire a terminal, never block.
const ALWAYS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// Flags of a descriptor that only names a file.
const NAMING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A node known to the guest.
#[derive(Debug)]
struct Node {
    parent: u64,
    name: Vec<u8>,
    /// The guest's reference count of the node.
    known: u64,
    /// Number of child nodes. A node with children stays.
    children: u64,
    /// Descriptor of a node whose name has been removed.
    removed: Option<OwnedFd>,
    /// True once the node has no name.
    gone: bool,
}

/// A file or directory open in the guest.
#[derive(Debug)]
enum Open {
    File(File),
    Directory(Vec<Entry>),
}

/// A shared directory.
#[derive(Debug)]
pub struct HostTree {
    root: OwnedFd,
    device: u64,
    writable: bool,
    nodes: HashMap<u64, Node>,
    names: HashMap<(u64, Vec<u8>), u64>,
    next_node: u64,
    open: HashMap<u64, Open>,
    next_handle: u64,
    removed: usize,
    /// Number of entries of all open directories.
    entries: usize,
    limits: Limits,
}

impl HostTree {
    /// Opens the tree of a directory. The guest may change it if `writable` is true.
    pub fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::openat(CWD, path, flags, Mode::empty())?;
        let device = fs::fstat(&root)?.st_dev;
        // Kernels before 5.6 have no openat2, and no safe substitute.
        fs::openat2(&root, ".", flags, Mode::empty(), resolve())?;
        Ok(Self {
            root,
            device,
            writable,
            nodes: HashMap::new(),
            names: HashMap::new(),
            next_node: ROOT + 1,
            open: HashMap::new(),
            next_handle: 1,
            removed: 0,
            entries: 0,
            limits: Limits::default(),
        })
    }

    /// Sets the limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Checks that the records of nodes, names and open files agree with each other and with the limits. For tests.
    ///
    /// # Panics
    /// Panics if they do not.
    pub fn check(&self) {
        for ((parent, name), number) in &self.names {
            let node = &self.nodes[number];
            assert!(!node.gone && node.parent == *parent && node.name == *name, "{number}: {node:?}");
        }
        let mut children: HashMap<u64, u64> = HashMap::new();
        for (number, node) in &self.nodes {
            *children.entry(node.parent).or_default() += 1;
            assert!(node.gone || self.names.get(&(node.parent, node.name.clone())) == Some(number), "{node:?}");
            assert!(node.known != 0 || node.children != 0, "{node:?} is of no use");
            // A circle would have no end.
            let (mut at, mut steps) = (node.parent, 0);
            while at != ROOT {
                at = self.nodes[&at].parent;
                steps += 1;
                assert!(steps <= self.nodes.len(), "{node:?} is its own ancestor");
            }
        }
        for (number, node) in &self.nodes {
            assert_eq!(node.children, children.get(number).copied().unwrap_or(0), "{node:?}");
        }
        let removed = self.nodes.values().filter(|node| node.removed.is_some()).count();
        let entries =
            self.open.values().map(|open| if let Open::Directory(entries) = open { entries.len() } else { 0 });
        assert_eq!((self.removed, self.entries), (removed, entries.sum()));
        let Limits { nodes, open, entries, removed } = self.limits;
        assert!(
            self.nodes.len() <= nodes && self.open.len() <= open,
            "{} nodes, {} open",
            self.nodes.len(),
            self.open.len()
        );
        assert!(
            self.entries <= entries && self.removed <= removed,
            "{} entries, {} removed",
            self.entries,
            self.removed
        );
    }

    /// Checks that there is room for another node.
    fn has_room(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let room = self.nodes.len() < self.limits.nodes || self.names.contains_key(&(parent, name.to_vec()));
        if room { Ok(()) } else { Err(Errno::NFILE) }
    }

    /// Returns the path of a node from the directory. `None` if the node has no name.
    fn path(&self, node: u64) -> Result<Option<Vec<u8>>, Errno> {
        let (mut names, mut at) = (Vec::new(), node);
        while at != ROOT {
            let Node { parent, name, gone, .. } = self.nodes.get(&at).ok_or(Errno::STALE)?;
            if *gone {
                return Ok(None);
            }
            names.push(name.as_slice());
            at = *parent;
        }
        names.reverse();
        Ok(Some(if names.is_empty() { b".".to_vec() } else { names.join(&b'/') }))
    }

    /// Returns a descriptor of a node without access to its contents.
    fn reach(&self, node: u64) -> Result<OwnedFd, Errno> {
        if let Some(Node { removed: Some(file), .. }) = self.nodes.get(&node) {
            return file.try_clone().map_err(|error| errno(&error));
        }
        let path = self.path(node)?.ok_or(Errno::STALE)?;
        self.beneath(&path, NAMING, Mode::empty())
    }

    fn beneath(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        for _ in 0..MOST_TRIES {
            match fs::openat2(&self.root, path, flags, mode, resolve()) {
                // Another process has renamed a directory on the path.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Reopens a node with other flags through its descriptor, without another lookup.
    fn reopen(&self, file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        use std::os::fd::AsRawFd;
        let flags = flags.difference(OFlags::NOFOLLOW) | OFlags::CLOEXEC;
        fs::openat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())
    }

    fn attributes_of(&self, stat: &Stat) -> Attributes {
        let time = |seconds: i64, nanoseconds: u64| Time { seconds, nanoseconds: nanoseconds as u32 };
        // Distinguishes equal inode numbers of different file systems below the directory.
        let apart = (stat.st_dev ^ self.device).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Attributes {
            inode: stat.st_ino ^ apart,
            mode: stat.st_mode,
            links: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: 0,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Returns the attributes of a descriptor.
    fn stat(&self, file: impl AsFd) -> Result<Attributes, Errno> {
        Ok(self.attributes_of(&fs::fstat(file)?))
    }

    /// Registers a node that the guest learns of: the known node with that name, or a new one.
    fn know(&mut self, parent: u64, name: &[u8], attributes: Attributes) -> Result<Found, Errno> {
        self.has_room(parent, name)?;
        let key = (parent, name.to_vec());
        let number = match self.names.get(&key) {
            Some(number) => *number,
            None => {
                let number = self.next_node;
                self.next_node += 1;
                self.names.insert(key, number);
                let node = Node { parent, name: name.to_vec(), known: 0, children: 0, removed: None, gone: false };
                self.nodes.insert(number, node);
                if let Some(above) = self.nodes.get_mut(&parent) {
                    above.children += 1;
                }
                number
            }
        };
        if let Some(node) = self.nodes.get_mut(&number) {
            node.known += 1;
        }
        Ok(Found { node: number, attributes })
    }

    /// Drops a node that the guest has forgotten, and its parents that were kept only for it.
    fn drop_unknown(&mut self, mut number: u64) {
        while let Some(node) = self.nodes.get(&number) {
            if node.known != 0 || node.children != 0 {
                break;
            }
            let Some(node) = self.nodes.remove(&number) else { break };
            if node.removed.is_some() {
                self.removed -= 1;
            }
            if !node.gone {
                self.names.remove(&(node.parent, node.name));
            }
            if let Some(above) = self.nodes.get_mut(&node.parent) {
                above.children -= 1;
            }
            number = node.parent;
        }
    }

    /// Keeps the node behind a name reachable before the name is removed.
    fn keep(&mut self, parent: u64, name: &[u8]) -> Option<(u64, OwnedFd)> {
        let number = *self.names.get(&(parent, name.to_vec()))?;
        (self.removed < self.limits.removed).then(|| self.reach(number).ok()).flatten().map(|file| (number, file))
    }

    /// Records the removal of a name.
    fn lost(&mut self, parent: u64, name: &[u8], kept: Option<(u64, OwnedFd)>) {
        let Some(number) = self.names.remove(&(parent, name.to_vec())) else { return };
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.gone = true;
        if let Some((_, file)) = kept {
            node.removed = Some(file);
            self.removed += 1;
        }
    }

    fn directory(&self, node: u64) -> Result<OwnedFd, Errno> {
        let path = self.path(node)?.ok_or(Errno::NOENT)?;
        self.beneath(&path, NAMING | OFlags::DIRECTORY, Mode::empty())
    }

    fn may_write(&self) -> Result<(), Errno> {
        if self.writable { Ok(()) } else { Err(Errno::ROFS) }
    }

    fn file(&self, handle: u64) -> Result<&File, Errno> {
        match self.open.get(&handle) {
            Some(Open::File(file)) => Ok(file),
            Some(Open::Directory(_)) => Err(Errno::ISDIR),
            None => Err(Errno::BADF),
        }
    }

    fn handle(&mut self, open: Open) -> Result<u64, Errno> {
        if self.open.len() >= self.limits.open {
            return Err(Errno::MFILE);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.open.insert(handle, open);
        Ok(handle)
    }

    fn read_directory(&self, node: u64) -> Result<Vec<Entry>, Errno> {
        let directory = self.directory(node)?;
        let readable = self.reopen(&directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in fs::Dir::new(readable)? {
            let entry = entry?;
            if self.entries + entries.len() >= self.limits.entries {
                return Err(Errno::NFILE);
            }
            let kind = match entry.file_type() {
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                FileType::Fifo => Kind::Pipe,
                FileType::Socket => Kind::Socket,
                FileType::CharacterDevice => Kind::CharacterDevice,
                FileType::BlockDevice => Kind::BlockDevice,
                FileType::RegularFile | FileType::Unknown => Kind::File,
            };
            entries.push(Entry { name: entry.file_name().to_bytes().to_vec(), inode: entry.ino(), kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// Returns the flags of lookups.
fn resolve() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS
}

fn timespec(when: Option<When>) -> Timespec {
    match when {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(When::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(When::At(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    }
}

/// Returns true if flags of open(2) allow changes of the file's contents.
fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

/// Returns the permissions of a mode that a guest may set on a file of this kind.
fn permitted(mode: u32, kind: FileType) -> u32 {
    let refused = if kind == FileType::Directory { 0o4000 } else { SET_IDS };
    mode & 0o7777 & !refused
}

/// Returns a path that names the file of a descriptor without access.
fn through(file: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl Tree for HostTree {
    fn validity(&self) -> Duration {
        VALID
    }

    fn keeps_contents(&self) -> bool {
        // The guest's kernel drops its cached contents when the file's time or size changes.
        true
    }

    fn look_up(&mut self, directory: u64, name: &[u8]) -> Result<Found, Errno> {
        let stat = fs::statat(self.directory(directory)?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let attributes = self.attributes_of(&stat);
        self.know(directory, name, attributes)
    }

    fn forget(&mut self, node: u64, times: u64) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.known = known.known.saturating_sub(times);
            self.drop_unknown(node);
        }
    }

    fn attributes(&mut self, node: u64, handle: Option<u64>) -> Result<Attributes, Errno> {
        if let Some(Ok(file)) = handle.map(|handle| self.file(handle)) {
            return self.stat(file);
        }
        self.stat(self.reach(node)?)
    }

    fn read_link(&mut self, node: u64) -> Result<Vec<u8>, Errno> {
        Ok(fs::readlinkat(self.reach(node)?, "", Vec::new())?.into_bytes())
    }

    fn open(&mut self, node: u64, flags: u32) -> Result<u64, Errno> {
        let flags = OFlags::from_bits_retain(flags) & CHOSEN;
        if writes(flags) {
            self.may_write()?;
        }
        let file = self.reach(node)?;
        // The guest's own kernel implements pipes, sockets and devices.
        let attributes = self.stat(&file)?;
        if attributes.kind() != Kind::File {
            return Err(Errno::PERM);
        }
        if writes(flags) {
            self.without_set_ids(&file, attributes)?;
        }
        let opened = self.reopen(&file, flags | ALWAYS)?;
        self.handle(Open::File(opened.into()))
    }

    fn read(&mut self, _node: u64, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let file = self.file(handle)?;
        let (mut bytes, mut read) = (vec![0; size], 0);
        while read < size {
            match file.read_at(&mut bytes[read..], offset.saturating_add(read as u64)) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    fn open_directory(&mut self, node: u64) -> Result<u64, Errno> {
        let entries = self.read_directory(node)?;
        let count = entries.len();
        let handle = self.handle(Open::Directory(entries))?;
        self.entries += count;
        Ok(handle)
    }

    fn list(&mut self, _node: u64, handle: u64, from: u64, each: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        let Some(Open::Directory(entries)) = self.open.get(&handle) else { return Err(Errno::BADF) };
        let _ = entries.iter().skip(usize::try_from(from).unwrap_or(usize::MAX)).all(each);
        Ok(())
    }

    fn close(&mut self, handle: u64) {
        if let Some(Open::Directory(entries)) = self.open.remove(&handle) {
            self.entries -= entries.len();
        }
    }

    fn room(&mut self) -> Room {
        let Ok(room) = fs::fstatvfs(&self.root) else { return Room::default() };
        Room {
            block: u32::try_from(room.f_frsize).unwrap_or(4096),
            blocks: room.f_blocks,
            free: room.f_bfree,
            available: room.f_bavail,
            files: room.f_files,
            files_free: room.f_ffree,
        }
    }

    fn make(&mut self, directory: u64, name: &[u8], new: &New) -> Result<Found, Errno> {
        self.may_write()?;
        self.has_room(directory, name)?;
        let at = self.directory(directory)?;
        match new {
            New::Directory(mode) => fs::mkdirat(&at, name, Mode::from_raw_mode(*mode))?,
            New::Node(mode) => {
                let kind = FileType::from_raw_mode(*mode);
                fs::mknodat(&at, name, kind, Mode::from_raw_mode(permitted(*mode, kind)), 0)?;
            }
            New::Link(target) => fs::symlinkat(target.as_slice(), &at, name)?,
            New::Name(node) => {
                let file = self.reach(*node)?;
                fs::linkat(CWD, through(&file), &at, name, AtFlags::SYMLINK_FOLLOW)?;
            }
        }
        // The host process's umask does not apply to guests. The new file is its own, so this can hardly fail.
        let _ = match new {
            New::Directory(mode) => self.set_mode(&at, name, *mode, FileType::Directory),
            New::Node(mode) => self.set_mode(&at, name, *mode, FileType::from_raw_mode(*mode)),
            New::Link(_) | New::Name(_) => Ok(()),
        };
        self.look_up(directory, name)
    }

    fn create(&mut self, directory: u64, name: &[u8], mode: u32, flags: u32) -> Result<(Found, u64), Errno> {
        self.may_write()?;
        if self.open.len() >= self.limits.open {
            return Err(Errno::MFILE);
        }
        self.has_room(directory, name)?;
        let at = self.directory(directory)?;
        let file =
            self.open_or_create(&at, name, permitted(mode, FileType::RegularFile), OFlags::from_bits_retain(flags))?;
        let attributes = self.stat(&file)?;
        let found = self.know(directory, name, attributes)?;
        let handle = self.handle(Open::File(file.into()))?;
        Ok((found, handle))
    }

    fn change(&mut self, node: u64, handle: Option<u64>, change: &Change) -> Result<Attributes, Errno> {
        self.may_write()?;
        let file = self.reach(node)?;
        let attributes = self.stat(&file)?;
        let kind = FileType::from_raw_mode(attributes.mode);
        let link = kind == FileType::Symlink;
        if let Some(size) = change.size {
            // To open a pipe or a device of the host would have effects there.
            match kind {
                FileType::RegularFile => {}
                FileType::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            self.without_set_ids(&file, attributes)?;
            match handle.map(|handle| self.file(handle)) {
                Some(Ok(open)) => fs::ftruncate(open, size)?,
                _ => fs::ftruncate(self.reopen(&file, OFlags::WRONLY | ALWAYS)?, size)?,
            }
        }
        if let Some(mode) = change.mode.filter(|_| !link) {
            fs::chmodat(CWD, through(&file), Mode::from_raw_mode(permitted(mode, kind)), AtFlags::empty())?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times =
                Timestamps { last_access: timespec(change.accessed), last_modification: timespec(change.modified) };
            // The descriptor itself names the file: whatever has taken a link's place meanwhile stays as it is.
            fs::utimensat(&file, "", &times, AtFlags::EMPTY_PATH)?;
        }
        self.stat(&file)
    }

    fn write(&mut self, handle: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.may_write()?;
        let file = self.file(handle)?;
        file.write_all_at(bytes, offset).map_err(|error| errno(&error))?;
        Ok(bytes.len())
    }

    fn sync(&mut self, handle: u64) -> Result<(), Errno> {
        self.file(handle)?.sync_all().map_err(|error| errno(&error))
    }

    fn allocate(&mut self, handle: u64, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        self.may_write()?;
        fs::fallocate(self.file(handle)?, FallocateFlags::from_bits_retain(mode), offset, length)
    }

    fn remove(&mut self, directory: u64, name: &[u8], directory_itself: bool) -> Result<(), Errno> {
        self.may_write()?;
        let at = self.directory(directory)?;
        let kept = self.keep(directory, name);
        fs::unlinkat(&at, name, if directory_itself { AtFlags::REMOVEDIR } else { AtFlags::empty() })?;
        self.lost(directory, name, kept);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        self.may_write()?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        // A whiteout is a device file.
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let directories = (self.directory(from.0)?, self.directory(to.0)?);
        self.rename_between(&directories, from, to, flags)
    }
}

impl HostTree {
    /// Renames between two open directories. Another process may have moved either of them since it was opened.
    fn rename_between(
        &mut self,
        (source, target): &(OwnedFd, OwnedFd),
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let kept = if exchange { None } else { self.keep(to.0, to.1) };
        fs::renameat_with(source, from.1, target, to.1, flags)?;
        let moved = self.names.remove(&(from.0, from.1.to_vec()));
        let other = if exchange { self.names.remove(&(to.0, to.1.to_vec())) } else { None };
        if !exchange {
            self.lost(to.0, to.1, kept);
        }
        self.moved(moved, to);
        self.moved(other, from);
        Ok(())
    }

    /// Returns true if a node is `above` or below it.
    fn is_at_or_below(&self, mut node: u64, above: u64) -> bool {
        while node != above {
            let Some(Node { parent, .. }) = self.nodes.get(&node) else { return false };
            node = *parent;
        }
        true
    }

    /// Records the new name of a node.
    fn moved(&mut self, node: Option<u64>, (parent, name): (u64, &[u8])) {
        let Some(number) = node else { return };
        // If another process has moved a directory meanwhile, the new parent can be a node that is known below this one. The node would be its own
        // ancestor. Its place is unknown: it loses its name, and the guest looks the new name up as a new node.
        let circle = self.is_at_or_below(parent, number);
        let Some(node) = self.nodes.get_mut(&number) else { return };
        if circle {
            node.gone = true;
            return;
        }
        let before = std::mem::replace(&mut node.parent, parent);
        node.name = name.to_vec();
        self.names.insert((parent, name.to_vec()), number);
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children += 1;
        }
        if let Some(above) = self.nodes.get_mut(&before) {
            above.children -= 1;
        }
        self.drop_unknown(before);
    }

    /// Removes the set-user-ID and set-group-ID bits of a file before the guest changes its contents, as the kernel does for processes without
    /// CAP_FSETID. Returns the attributes after that.
    fn without_set_ids(&self, file: &OwnedFd, attributes: Attributes) -> Result<Attributes, Errno> {
        if attributes.kind() != Kind::File || attributes.mode & SET_IDS == 0 {
            return Ok(attributes);
        }
        fs::chmodat(CWD, through(file), Mode::from_raw_mode(attributes.mode & 0o7777 & !SET_IDS), AtFlags::empty())?;
        self.stat(file)
    }

    /// Opens a regular file in a directory, and creates it if the name is free.
    fn open_or_create(&self, directory: &OwnedFd, name: &[u8], mode: u32, flags: OFlags) -> Result<OwnedFd, Errno> {
        let chosen = (flags & CHOSEN) | ALWAYS;
        for _ in 0..MOST_TRIES {
            let new = chosen | OFlags::CREATE | OFlags::EXCL;
            match fs::openat2(directory, name, new, Mode::from_raw_mode(mode), resolve()) {
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                // Another process has renamed a directory.
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error),
                Ok(file) => {
                    // The host process's umask does not apply to guests. The file is its own, so this can hardly fail.
                    let _ = fs::chmodat(CWD, through(&file), Mode::from_raw_mode(mode), AtFlags::empty());
                    return Ok(file);
                }
            }
            // What is there is opened only if it is a regular file: to open a pipe or a device has effects on the host.
            match fs::openat2(directory, name, NAMING, Mode::empty(), resolve()) {
                // Another process has removed the file, or has renamed a directory.
                Err(Errno::NOENT | Errno::AGAIN) => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let attributes = self.stat(&file)?;
                    match attributes.kind() {
                        Kind::File => {}
                        Kind::Directory => return Err(Errno::ISDIR),
                        Kind::Link => return Err(Errno::LOOP),
                        _ => return Err(Errno::PERM),
                    }
                    if writes(chosen) {
                        self.without_set_ids(&file, attributes)?;
                    }
                    return self.reopen(&file, chosen);
                }
            }
        }
        Err(Errno::AGAIN)
    }

    /// Sets the mode of a file that was just made, unless a file of another kind has taken its place.
    fn set_mode(&self, directory: &OwnedFd, name: &[u8], mode: u32, kind: FileType) -> Result<(), Errno> {
        let file = fs::openat2(directory, name, NAMING, Mode::empty(), resolve())?;
        if FileType::from_raw_mode(fs::fstat(&file)?.st_mode) != kind {
            return Err(Errno::STALE);
        }
        fs::chmodat(CWD, through(&file), Mode::from_raw_mode(permitted(mode, kind)), AtFlags::empty())
    }
}

#[cfg(test)]
mod tests;
