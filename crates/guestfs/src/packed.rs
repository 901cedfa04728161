//! A read-only tree of files, packed from the host's files and from bytes. The tree never changes: files have the contents that they had when they
//! were added, provided that the host's files stay the same.

mod missed;

use crate::attributes::{Attributes, Kind, Time};
use crate::pack_error::PackError;
use crate::shares::{self, Inside, Leaving, MOST_LINKS, Shares, Step, Way, names, prepend};
use crate::tree::{Entry, Found, ROOT, Tree};
use missed::Missed;
pub use missed::paths_below;
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Block size in which `stat` counts.
const BLOCK: u64 = 512;
/// Validity of attributes that never change: a time in seconds that no run reaches.
const FOREVER: Duration = Duration::from_secs(1 << 31);
/// Largest number of the host's files that are kept open.
const MOST_OPEN: usize = 32;

/// The place of a file's contents.
#[derive(Clone, Debug)]
enum Source {
    /// A file of the host: its real path, and its device and inode number.
    Host(PathBuf, (u64, u64)),
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
enum Content {
    Directory(BTreeMap<Vec<u8>, u64>),
    File(Source),
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Node {
    /// Kind and permissions.
    mode: u32,
    owner: (u32, u32),
    size: u64,
    modified: Time,
    content: Content,
}

impl Node {
    fn directory(permissions: u32) -> Self {
        let content = Content::Directory(BTreeMap::new());
        let mode = Kind::Directory as u32 | permissions & 0o7777;
        Self { mode, owner: (0, 0), size: 0, modified: Time::default(), content }
    }

    fn link(target: &[u8]) -> Self {
        let mode = Kind::Link as u32 | 0o777;
        let size = target.len() as u64;
        Self { mode, owner: (0, 0), size, modified: Time::default(), content: Content::Link(target.to_vec()) }
    }
}

/// A file in a tree.
#[derive(Clone, Debug)]
pub struct Walked {
    /// Path without a leading slash.
    pub path: Vec<u8>,
    /// Node number.
    pub node: u64,
    /// The attributes of the file.
    pub attributes: Attributes,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// The outcome of [`Packed::add`].
#[derive(Debug)]
pub enum Added {
    /// The added files, by their real paths.
    Files(Vec<PathBuf>),
    /// The name leads into a shared directory, and nothing was added.
    Shared(Inside),
}

/// A packed tree.
#[derive(Clone, Debug)]
pub struct Packed {
    nodes: Vec<Node>,
    shares: Arc<Shares>,
    /// Links in added directories that lead out of them.
    leaving: Vec<Leaving>,
    /// Recently read files of the host.
    open: Vec<(u64, Arc<File>)>,
    missed: Missed,
}

impl Default for Packed {
    fn default() -> Self {
        Self::new()
    }
}

fn modified(metadata: &Metadata) -> Time {
    Time { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 }
}

impl Packed {
    /// Creates an empty tree with a root directory.
    pub fn new() -> Self {
        Self::beside(Arc::default())
    }

    /// Creates an empty tree beside shared directories, whose contents are not packed.
    pub fn beside(shares: Arc<Shares>) -> Self {
        Self {
            nodes: vec![Node::directory(0o755)],
            shares,
            leaving: Vec::new(),
            open: Vec::new(),
            missed: Missed::default(),
        }
    }

    /// Returns the shared directories.
    pub(crate) fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    fn child(&self, directory: u64, name: &[u8]) -> Option<u64> {
        match &self.node(directory)?.content {
            Content::Directory(entries) => entries.get(name).copied(),
            Content::File(_) | Content::Link(_) => None,
        }
    }

    fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(number).ok()?)
    }

    /// Sets the node under a name of a directory, and returns the number of the node that it replaces.
    fn put(&mut self, directory: u64, name: &[u8], node: Node) -> Option<u64> {
        let number = self.nodes.len() as u64;
        let Content::Directory(entries) = &mut self.nodes.get_mut(directory as usize)?.content else { return None };
        entries.insert(name.to_vec(), number);
        self.nodes.push(node);
        Some(number)
    }

    /// Returns a directory inside a directory, and creates it if needed.
    fn subdirectory(&mut self, directory: u64, name: &[u8], permissions: u32, whole: &Path) -> Result<u64, PackError> {
        let refused = || PackError::NoDirectory(whole.to_path_buf());
        match self.child(directory, name) {
            Some(number) if matches!(self.nodes[number as usize].content, Content::Directory(_)) => Ok(number),
            Some(_) => Err(refused()),
            None => self.put(directory, name, Node::directory(permissions)).ok_or_else(refused),
        }
    }

    /// Resolves a path: returns the real path of its last directory, with all symbolic links of the tree followed.
    fn real(&self, path: &Path) -> Result<Vec<Vec<u8>>, PackError> {
        let mut rest = Vec::new();
        prepend(&mut rest, path.as_os_str().as_bytes());
        let (mut real, mut links) = (Vec::<Vec<u8>>::new(), 0);
        while let Some(name) = rest.pop() {
            if name == b".." {
                real.pop();
                continue;
            }
            let directory = real.iter().try_fold(ROOT, |at, name| self.child(at, name));
            let node = directory.and_then(|at| self.child(at, &name)).and_then(|number| self.node(number));
            let Some(Content::Link(target)) = node.map(|node| &node.content) else {
                real.push(name);
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(PackError::Links(path.to_path_buf()));
            }
            if target.starts_with(b"/") {
                real.clear();
            }
            prepend(&mut rest, target);
        }
        Ok(real)
    }

    /// Creates a directory and its parents.
    pub fn make_directory(&mut self, path: &Path, permissions: u32) -> Result<(), PackError> {
        let names = self.real(path)?;
        let last = names.len().saturating_sub(1);
        let mut at = ROOT;
        for (number, name) in names.iter().enumerate() {
            let permissions = if number == last { permissions } else { 0o755 };
            at = self.subdirectory(at, name, permissions, path)?;
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.mode = Kind::Directory as u32 | permissions & 0o7777;
        }
        Ok(())
    }

    fn parent(&mut self, path: &Path) -> Result<(u64, Vec<u8>), PackError> {
        let mut real = self.real(path)?;
        let Some(last) = real.pop() else { return Err(PackError::NoDirectory(path.to_path_buf())) };
        let mut at = ROOT;
        for name in &real {
            at = self.subdirectory(at, name, 0o755, path)?;
        }
        Ok((at, last))
    }

    /// Creates a file from bytes, owned by user 0.
    pub fn put_bytes(&mut self, path: &Path, permissions: u32, bytes: &[u8]) -> Result<(), PackError> {
        let (directory, name) = self.parent(path)?;
        let node = Node {
            mode: Kind::File as u32 | permissions & 0o7777,
            owner: (0, 0),
            size: bytes.len() as u64,
            modified: Time::default(),
            content: Content::File(Source::Bytes(bytes.into())),
        };
        self.put(directory, &name, node);
        Ok(())
    }

    /// Creates a symbolic link. An existing file stays.
    pub fn put_link(&mut self, path: &Path, target: &[u8]) -> Result<(), PackError> {
        if self.has(path) {
            return Ok(());
        }
        let (directory, name) = self.parent(path)?;
        self.put(directory, &name, Node::link(target));
        Ok(())
    }

    /// Adds a file of the host under its real path.
    fn put_file(&mut self, path: &Path) -> Result<(), PackError> {
        let failed = |cause| PackError::Host { path: path.to_path_buf(), cause };
        // The file that is open here is the one that is packed, and an unreadable file is reported before the run.
        let file = shares::open_real(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (directory, name) = self.parent(path)?;
        let node = Node {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size: metadata.len(),
            modified: modified(&metadata),
            content: Content::File(Source::Host(path.to_path_buf(), shares::identity(&metadata))),
        };
        self.put(directory, &name, node);
        Ok(())
    }

    /// Returns true if a file exists under a path, after all symbolic links.
    pub fn has(&self, path: &Path) -> bool {
        self.real(path).is_ok_and(|names| names.iter().try_fold(ROOT, |at, name| self.child(at, name)).is_some())
    }

    /// Adds a file or directory of the host under its own path, with the symbolic links on the way. A directory is added with its contents, of
    /// which only files, directories and links count. Nothing at or below a shared directory is added.
    pub fn add(&mut self, path: &Path) -> Result<Added, PackError> {
        self.add_path(path, true)
    }

    /// Adds a file or directory of the host under its own path. A directory is added without its contents.
    pub fn add_alone(&mut self, path: &Path) -> Result<(), PackError> {
        self.add_path(path, false).map(drop)
    }

    fn add_path(&mut self, path: &Path, recursive: bool) -> Result<Added, PackError> {
        let mut added = Vec::new();
        let shares = Arc::clone(&self.shares);
        let way = shares.walk(path, &mut |step| match step {
            Step::Directory(here, metadata) => self.make_directory(here, metadata.mode() & 0o7777),
            Step::Link(here, target) => self.put_link(here, target),
            Step::File(here) => self.add_file(here, &mut added),
        })?;
        match way {
            Way::Outside(real) => {
                if recursive && real.is_dir() {
                    self.add_directory(&real, &real, &mut added)?;
                }
                Ok(Added::Files(added))
            }
            Way::Inside(number, rest) => {
                let found = shares.follow(number, rest);
                found.map(Added::Shared).map_err(|cause| PackError::Host { path: path.to_path_buf(), cause })
            }
        }
    }

    fn add_file(&mut self, path: &Path, added: &mut Vec<PathBuf>) -> Result<(), PackError> {
        if !self.has(path) {
            self.put_file(path)?;
            added.push(path.to_path_buf());
        }
        Ok(())
    }

    /// Adds the contents of a directory. `top` is the directory that was asked for.
    fn add_directory(&mut self, path: &Path, top: &Path, added: &mut Vec<PathBuf>) -> Result<(), PackError> {
        let failed = |cause| PackError::Host { path: path.to_path_buf(), cause };
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            entries.push(entry.map_err(failed)?.path());
        }
        entries.sort();
        for entry in entries {
            let failed = |cause| PackError::Host { path: entry.clone(), cause };
            let metadata = std::fs::symlink_metadata(&entry).map_err(failed)?;
            if metadata.is_symlink() {
                let target = std::fs::read_link(&entry).map_err(failed)?;
                self.put_link(&entry, target.as_os_str().as_bytes())?;
                let to: PathBuf = names(&path.join(target)).into_iter().map(OsStr::from_bytes).collect();
                let to = Path::new("/").join(to);
                if !to.starts_with(top) {
                    self.leaving.push(Leaving { from: entry, to, link: true });
                }
            } else if metadata.is_dir() {
                self.make_directory(&entry, metadata.mode() & 0o7777)?;
                if self.shares.number(&entry, &metadata).is_none() {
                    self.add_directory(&entry, top, added)?;
                }
            } else if metadata.is_file() {
                self.add_file(&entry, added)?;
            }
        }
        Ok(())
    }

    /// Returns the links in added directories that lead out of them, to files that exist and are not packed.
    pub fn leaving(&self) -> impl Iterator<Item = &Leaving> {
        let lacks = |path: &Path| path.exists() && !self.has(path) && !self.shares.contains(path);
        self.leaving.iter().filter(move |leaving| lacks(&leaving.to))
    }

    fn attributes_of(&self, number: u64) -> Option<Attributes> {
        let node = self.node(number)?;
        let links = match &node.content {
            Content::Directory(entries) => {
                let is_directory =
                    |child: &&u64| matches!(self.node(**child), Some(Node { content: Content::Directory(_), .. }));
                2 + entries.values().filter(is_directory).count() as u32
            }
            Content::File(_) | Content::Link(_) => 1,
        };
        Some(Attributes {
            inode: number + 1,
            mode: node.mode,
            links,
            uid: node.owner.0,
            gid: node.owner.1,
            device: 0,
            size: node.size,
            blocks: node.size.div_ceil(BLOCK),
            accessed: node.modified,
            modified: node.modified,
            changed: node.modified,
        })
    }

    fn entries(&self, number: u64) -> Result<&BTreeMap<Vec<u8>, u64>, Errno> {
        match &self.node(number).ok_or(Errno::STALE)?.content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) | Content::Link(_) => Err(Errno::NOTDIR),
        }
    }

    /// Returns the open file of a node whose contents are in a file of the host.
    /// A file that has taken the place of the packed one is not read.
    fn host_file(&mut self, number: u64, path: &Path, identity: (u64, u64)) -> Result<Arc<File>, Errno> {
        if let Some(at) = self.open.iter().position(|(node, _)| *node == number) {
            let found = self.open.remove(at);
            let file = Arc::clone(&found.1);
            self.open.push(found);
            return Ok(file);
        }
        let file = Arc::new(shares::open_real(path).map_err(|error| errno(&error))?);
        if shares::identity(&file.metadata().map_err(|error| errno(&error))?) != identity {
            return Err(Errno::STALE);
        }
        if self.open.len() == MOST_OPEN {
            self.open.remove(0);
        }
        self.open.push((number, Arc::clone(&file)));
        Ok(file)
    }

    fn read_node(&mut self, number: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let node = self.node(number).ok_or(Errno::STALE)?;
        // The guest does not see growth of a file after it was packed.
        let size = size.min(usize::try_from(node.size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let source = match &node.content {
            Content::File(source) => source.clone(),
            Content::Directory(_) => return Err(Errno::ISDIR),
            Content::Link(_) => return Err(Errno::INVAL),
        };
        match source {
            Source::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes[start..bytes.len().min(start.saturating_add(size))].to_vec())
            }
            Source::Host(path, identity) => {
                let file = self.host_file(number, &path, identity)?;
                let mut bytes = vec![0; size];
                let mut read = 0;
                while read < size {
                    match file.read_at(&mut bytes[read..], offset + read as u64) {
                        Ok(0) => break,
                        Ok(count) => read += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(errno(&error)),
                    }
                }
                bytes.truncate(read);
                Ok(bytes)
            }
        }
    }

    /// Returns all nodes except the root, directories before their contents, in the order of names.
    pub fn walk(&self) -> Vec<Walked> {
        let mut all = Vec::new();
        let mut stack: Vec<(Vec<u8>, u64)> = vec![(Vec::new(), ROOT)];
        while let Some((path, number)) = stack.pop() {
            let Some(node) = self.node(number) else { continue };
            if let Content::Directory(entries) = &node.content {
                let below = |(name, number): (&Vec<u8>, &u64)| {
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    ([&path, slash, name].concat(), *number)
                };
                stack.extend(entries.iter().rev().map(below));
            }
            let target = match &node.content {
                Content::Link(target) => Some(target.clone()),
                Content::Directory(_) | Content::File(_) => None,
            };
            if let (false, Some(attributes)) = (path.is_empty(), self.attributes_of(number)) {
                all.push(Walked { path, node: number, attributes, target });
            }
        }
        all
    }

    /// Returns the node of a directory, whose path has no links.
    fn directory_at(&self, names: &[&[u8]]) -> Option<u64> {
        let at = names.iter().try_fold(ROOT, |at, name| self.child(at, name))?;
        matches!(self.node(at)?.content, Content::Directory(_)).then_some(at)
    }

    fn entries_of(&mut self, directory: u64) -> Option<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.nodes.get_mut(directory as usize)?.content {
            Content::Directory(entries) => Some(entries),
            Content::File(_) | Content::Link(_) => None,
        }
    }

    /// Makes `to`, a user and a group, the owner of all files of the user `from` below a directory, whose path has no links.
    pub fn give(&mut self, below: &Path, from: u32, to: (u32, u32)) {
        let below: Vec<u8> = names(below).into_iter().flat_map(|name| [name, b"/"].concat()).collect();
        for walked in self.walk().iter().filter(|walked| walked.path.starts_with(&below)) {
            if let Some(node) = self.nodes.get_mut(walked.node as usize).filter(|node| node.owner.0 == from) {
                node.owner = to;
            }
        }
    }

    /// Returns the tree with the entries of the directory `from` in the directory `to`, for which all users have all permissions. Directories that
    /// become empty disappear, if they are not in `kept`. Paths have no links. The numbers of files depend only on the names in the returned tree,
    /// not on the order in which files were added.
    pub fn moved(mut self, from: &Path, to: &Path, kept: &[&Path]) -> Result<Self, PackError> {
        let mut place = names(from);
        let entries = self.directory_at(&place).and_then(|at| self.entries_of(at)).map(std::mem::take);
        while let Some((last, above)) = place.split_last() {
            let directory = self.directory_at(&place).and_then(|at| self.entries_of(at));
            if directory.is_none_or(|entries| !entries.is_empty()) || kept.iter().any(|kept| names(kept) == place) {
                break;
            }
            if let Some(entries) = self.directory_at(above).and_then(|at| self.entries_of(at)) {
                entries.remove(*last);
            }
            place.pop();
        }
        self.make_directory(to, 0o777)?;
        let real = self.real(to)?;
        let real: Vec<&[u8]> = real.iter().map(Vec::as_slice).collect();
        if let Some(all) = self.directory_at(&real).and_then(|to| self.entries_of(to)) {
            all.extend(entries.unwrap_or_default());
        }
        Ok(self.renumbered())
    }

    /// Returns the same tree, with numbers in the order of [`Self::walk`].
    pub fn renumbered(mut self) -> Self {
        let order: Vec<u64> = [ROOT].into_iter().chain(self.walk().iter().map(|walked| walked.node)).collect();
        let numbers: BTreeMap<u64, u64> =
            order.iter().enumerate().map(|(new, old)| (*old, ROOT + new as u64)).collect();
        let node = |old: &u64| {
            let mut node = self.node(*old)?.clone();
            if let Content::Directory(entries) = &mut node.content {
                entries.values_mut().for_each(|number| *number = numbers[number]);
            }
            Some(node)
        };
        let moved: Vec<Node> = order.iter().filter_map(node).collect();
        self.open.clear();
        self.nodes = moved;
        self
    }

    /// Returns the files of the host whose contents are in the tree.
    pub fn host_files(&self) -> Vec<PathBuf> {
        let of = |node: &Node| match &node.content {
            Content::File(Source::Host(path, _)) => Some(path.clone()),
            _ => None,
        };
        self.nodes.iter().filter_map(of).collect()
    }

    /// Returns the files of the host that are no longer what was packed: another file or none has taken the place of the packed one, or it was written to.
    pub fn changed(&self) -> Vec<PathBuf> {
        let is_changed = |node: &Node, path: &Path, identity: (u64, u64)| {
            let metadata = shares::open_real(path).and_then(|file| file.metadata());
            !metadata.is_ok_and(|metadata| {
                shares::identity(&metadata) == identity
                    && metadata.len() == node.size
                    && modified(&metadata) == node.modified
            })
        };
        let of = |node: &Node| match &node.content {
            Content::File(Source::Host(path, identity)) if is_changed(node, path, *identity) => Some(path.clone()),
            _ => None,
        };
        self.nodes.iter().filter_map(of).collect()
    }

    /// Returns true if a file's contents are those of a file of the host.
    pub fn is_of_host(&self, number: u64) -> bool {
        matches!(self.node(number), Some(Node { content: Content::File(Source::Host(..)), .. }))
    }

    /// Returns the contents of a file.
    pub fn contents(&mut self, number: u64) -> Result<Vec<u8>, Errno> {
        let size = self.node(number).ok_or(Errno::STALE)?.size;
        self.read_node(number, 0, usize::try_from(size).map_err(|_| Errno::FBIG)?)
    }

    /// Returns the SHA-256 hash of names, attributes and contents.
    pub fn hash(&mut self) -> Result<[u8; 32], Errno> {
        let mut sha = Sha256::new();
        for Walked { path, node, attributes, target } in self.walk() {
            let Attributes { mode, uid, gid, size, modified, .. } = attributes;
            sha.update((path.len() as u64).to_le_bytes());
            sha.update(&path);
            sha.update(format!("{mode} {uid} {gid} {size} {} {}\0", modified.seconds, modified.nanoseconds));
            match target {
                Some(target) => sha.update(target),
                None if attributes.kind() == Kind::File => sha.update(self.contents(node)?),
                None => {}
            }
        }
        Ok(sha.finalize().into())
    }
}

/// Returns the error number of an error of the host.
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Tree for Packed {
    fn validity(&self) -> Duration {
        FOREVER
    }

    fn keeps_contents(&self) -> bool {
        true
    }

    fn look_up(&mut self, directory: u64, name: &[u8]) -> Result<Found, Errno> {
        let Some(&node) = self.entries(directory)?.get(name) else {
            self.missed.add(directory, name);
            return Err(Errno::NOENT);
        };
        Ok(Found { node, attributes: self.attributes_of(node).ok_or(Errno::STALE)? })
    }

    fn attributes(&mut self, node: u64, _handle: Option<u64>) -> Result<Attributes, Errno> {
        self.attributes_of(node).ok_or(Errno::STALE)
    }

    fn read_link(&mut self, node: u64) -> Result<Vec<u8>, Errno> {
        match &self.node(node).ok_or(Errno::STALE)?.content {
            Content::Link(target) => Ok(target.clone()),
            Content::Directory(_) | Content::File(_) => Err(Errno::INVAL),
        }
    }

    fn read(&mut self, node: u64, _handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        self.read_node(node, offset, size)
    }

    fn list(&mut self, node: u64, _handle: u64, from: u64, each: &mut dyn FnMut(&Entry) -> bool) -> Result<(), Errno> {
        for (name, number) in self.entries(node)?.iter().skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            let attributes = self.attributes_of(*number).ok_or(Errno::STALE)?;
            let entry = Entry { name: name.clone(), inode: attributes.inode, kind: attributes.kind() };
            if !each(&entry) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
