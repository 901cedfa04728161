//! A FUSE server for a guest: several trees as the directories of one file system, and the answers to requests.
//!
//! Requests come from the guest and are not trusted: an invalid request is answered with an error.

use crate::attributes::{Attributes, Kind, Time};
use crate::tree::{Change, Entry, Found, New, ROOT, Tree, When};
use crate::wire::{self, Body, Fields, operation, set};
use rustix::io::Errno;
use std::time::Duration;

/// Number of the root in the protocol.
const TOP: u64 = 1;
/// Number of low bits in a protocol node number that hold the node's number in its tree. The bits above hold the tree's position, counted from one.
const NODE_BITS: u32 = 48;
/// Largest read or write, in bytes.
pub const LARGEST_TRANSFER: u32 = 1 << 20;
const PAGE: u32 = 4096;
/// Longest name, in bytes.
const LONGEST_NAME: usize = 255;
/// Number of background requests that the guest's kernel may have in flight.
const BACKGROUND: u16 = 64;

/// A tree with the name of its directory.
struct Named {
    name: String,
    tree: Box<dyn Tree>,
}

/// The server.
#[derive(Default)]
pub struct Server {
    trees: Vec<Named>,
    /// True once the guest has mounted the file system.
    mounted: bool,
}

/// A node of the guest: the top directory, or a node of a tree.
#[derive(Clone, Copy)]
enum Place {
    Top,
    In { tree: usize, node: u64 },
}

/// A parsed request.
struct Request<'a> {
    node: u64,
    fields: Fields<'a>,
    /// Room for the answer's body, in bytes.
    room: usize,
}

type Answer = Result<Body, Errno>;

/// A function that answers a request.
type Handler = fn(&mut Server, Request) -> Answer;

/// The operations with their handlers.
const TABLE: &[(u32, Handler)] = &[
    (operation::LOOK_UP, Server::look_up),
    (operation::GET_ATTRIBUTES, Server::get_attributes),
    (operation::SET_ATTRIBUTES, Server::set_attributes),
    (operation::READ_LINK, Server::read_link),
    (operation::SYMBOLIC_LINK, Server::symbolic_link),
    (operation::MAKE_NODE, Server::make_node),
    (operation::MAKE_DIRECTORY, Server::make_directory),
    (operation::UNLINK, Server::unlink),
    (operation::REMOVE_DIRECTORY, Server::remove_directory),
    (operation::RENAME, Server::rename),
    (operation::RENAME2, Server::rename_with_flags),
    (operation::LINK, Server::link),
    (operation::OPEN, Server::open),
    (operation::READ, Server::read),
    (operation::WRITE, Server::write),
    (operation::STATFS, Server::statfs),
    (operation::RELEASE, Server::release),
    (operation::SYNC, Server::sync),
    (operation::FLUSH, Server::nothing),
    (operation::INIT, Server::init),
    (operation::OPEN_DIRECTORY, Server::open_directory),
    (operation::READ_DIRECTORY, Server::read_directory),
    (operation::RELEASE_DIRECTORY, Server::release),
    (operation::SYNC_DIRECTORY, Server::nothing),
    (operation::CREATE, Server::create),
    (operation::DESTROY, Server::destroy),
    (operation::ALLOCATE, Server::allocate),
    (operation::SYNC_ALL, Server::nothing),
];

/// Returns the guest's number of a handle. Directories of the top have none.
fn outside(tree: usize, node: u64) -> u64 {
    (tree as u64 + 1) << NODE_BITS | node
}

fn place(node: u64) -> Place {
    match (node >> NODE_BITS).checked_sub(1) {
        Some(tree) => Place::In { tree: tree as usize, node: node & ((1 << NODE_BITS) - 1) },
        None => Place::Top,
    }
}

impl Server {
    /// Creates a server without trees.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tree as a directory of the top.
    pub fn add(&mut self, name: &str, tree: Box<dyn Tree>) {
        self.trees.push(Named { name: name.to_owned(), tree });
    }

    /// Returns true if the guest has mounted the file system. From then on it may know files of the trees.
    pub fn mounted(&self) -> bool {
        self.mounted
    }

    /// Returns the answer to a request, at most `room` bytes. `None` if the request has no answer.
    pub fn answer(&mut self, request: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut fields = Fields::new(request);
        let (length, code, unique) = (fields.u32(), fields.u32(), fields.u64());
        let (node, _uid, _gid, _pid) = (fields.u64(), fields.u32(), fields.u32(), fields.u32());
        let _extensions = fields.u32();
        let sane = fields.whole() && length as usize >= wire::REQUEST_HEADER && length as usize <= request.len();
        match code {
            operation::FORGET if sane => {
                self.forget(node, fields.u64());
                return None;
            }
            operation::BATCH_FORGET if sane => {
                let (count, _) = (fields.u32(), fields.u32());
                for _ in 0..count {
                    let (node, times) = (fields.u64(), fields.u64());
                    if !fields.whole() {
                        break;
                    }
                    self.forget(node, times);
                }
                return None;
            }
            // Each request completes before the next one is read, so there is nothing to interrupt.
            operation::INTERRUPT => return None,
            _ => {}
        }
        let room = room.checked_sub(wire::ANSWER_HEADER)?;
        let fields = Fields::new(request.get(wire::REQUEST_HEADER..length as usize).unwrap_or_default());
        let request = Request { node, fields, room };
        let handler = TABLE.iter().find(|(known, _)| *known == code).map(|(_, handler)| handler);
        let result = match handler {
            Some(handler) if sane => handler(self, request),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::NOSYS),
        };
        let result = result.and_then(|body| if body.0.len() <= room { Ok(body.0) } else { Err(Errno::OVERFLOW) });
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let mut answer = Vec::with_capacity(wire::ANSWER_HEADER + body.len());
        answer.extend(((wire::ANSWER_HEADER + body.len()) as u32).to_le_bytes());
        answer.extend(error.to_le_bytes());
        answer.extend(unique.to_le_bytes());
        answer.extend(body);
        Some(answer)
    }

    fn forget(&mut self, node: u64, times: u64) {
        if let Place::In { tree, node } = place(node)
            && let Some(named) = self.trees.get_mut(tree)
        {
            named.tree.forget(node, times);
        }
    }

    /// Returns the tree of a node, with the node's number there. The top belongs to no tree.
    fn tree(&mut self, node: u64) -> Result<(usize, &mut dyn Tree, u64), Errno> {
        let Place::In { tree, node } = place(node) else { return Err(Errno::ROFS) };
        let named = self.trees.get_mut(tree).ok_or(Errno::STALE)?;
        Ok((tree, &mut *named.tree, node))
    }

    fn top(&self) -> Attributes {
        Attributes {
            inode: TOP,
            mode: Kind::Directory as u32 | 0o755,
            links: 2 + self.trees.len() as u32,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            blocks: 0,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
        }
    }

    fn init(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (major, minor, read_ahead, offered) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        if !fields.whole() || major < wire::MAJOR || major == wire::MAJOR && minor < wire::OLDEST_MINOR {
            return Err(Errno::PROTO);
        }
        let wanted = wire::feature::ASYNC_READ
            | wire::feature::BIG_WRITES
            | wire::feature::AUTO_INVALIDATE
            | wire::feature::PARALLEL_DIRECTORIES
            | wire::feature::MAX_PAGES
            | wire::feature::CACHE_LINKS;
        self.mounted = true;
        let body = Body::default().u32(wire::MAJOR).u32(wire::MINOR).u32(read_ahead).u32(offered & wanted);
        let body = body.u16(BACKGROUND).u16(BACKGROUND * 3 / 4).u32(LARGEST_TRANSFER).u32(1);
        Ok(body.u16((LARGEST_TRANSFER / PAGE) as u16).u16(0).u32(0).zeros(28))
    }

    fn destroy(&mut self, _request: Request) -> Answer {
        self.mounted = false;
        Ok(Body::default())
    }

    fn nothing(&mut self, _request: Request) -> Answer {
        Ok(Body::default())
    }

    fn look_up(&mut self, mut request: Request) -> Answer {
        let name = file_name(request.fields.name())?;
        if let Place::Top = place(request.node) {
            let tree = self.trees.iter().position(|named| named.name.as_bytes() == name).ok_or(Errno::NOENT)?;
            let named = &mut self.trees[tree];
            let attributes = named.tree.attributes(ROOT, None)?;
            return Ok(Body::default().entry(outside(tree, ROOT), named.tree.validity(), &attributes));
        }
        let (number, tree, node) = self.tree(request.node)?;
        let valid = tree.validity();
        match tree.look_up(node, name) {
            Ok(found) => Ok(entry(number, valid, &found)),
            // The guest may cache the absence of the name.
            Err(Errno::NOENT) => {
                let none = Attributes { mode: 0, inode: 0, links: 0, ..empty() };
                Ok(Body::default().entry(0, valid, &none))
            }
            Err(error) => Err(error),
        }
    }

    fn get_attributes(&mut self, mut request: Request) -> Answer {
        let (flags, _, handle) = (request.fields.u32(), request.fields.u32(), request.fields.u64());
        if let Place::Top = place(request.node) {
            return Ok(Body::default().valid_attributes(Duration::from_secs(1), &self.top()));
        }
        let (_, tree, node) = self.tree(request.node)?;
        let attributes = tree.attributes(node, (flags & 1 != 0).then_some(handle))?;
        Ok(Body::default().valid_attributes(tree.validity(), &attributes))
    }

    fn set_attributes(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (valid, _, handle, size, _owner) = (fields.u32(), fields.u32(), fields.u64(), fields.u64(), fields.u64());
        let (accessed, modified, _changed) = (fields.u64(), fields.u64(), fields.u64());
        let (accessed_ns, modified_ns, _changed_ns) = (fields.u32(), fields.u32(), fields.u32());
        let (mode, _, uid, gid) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        if !fields.whole() {
            return Err(Errno::INVAL);
        }
        let has = |bit: u32| valid & bit != 0;
        let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| match (has(now), has(set)) {
            (true, _) => Some(When::Now),
            (false, true) => Some(When::At(Time { seconds: seconds as i64, nanoseconds })),
            (false, false) => None,
        };
        let change = Change {
            mode: has(set::MODE).then_some(mode & 0o7777),
            uid: has(set::UID).then_some(uid),
            gid: has(set::GID).then_some(gid),
            size: has(set::SIZE).then_some(size),
            accessed: time(set::ACCESSED, set::ACCESSED_NOW, accessed, accessed_ns),
            modified: time(set::MODIFIED, set::MODIFIED_NOW, modified, modified_ns),
        };
        let (_, tree, node) = self.tree(request.node)?;
        let attributes = tree.change(node, has(set::HANDLE).then_some(handle), &change)?;
        Ok(Body::default().valid_attributes(tree.validity(), &attributes))
    }

    fn read_link(&mut self, request: Request) -> Answer {
        let (_, tree, node) = self.tree(request.node)?;
        Ok(Body(tree.read_link(node)?))
    }

    fn make(&mut self, node: u64, name: &[u8], new: &New) -> Answer {
        let name = file_name(name)?;
        let (number, tree, node) = self.tree(node)?;
        let found = tree.make(node, name, new)?;
        Ok(entry(number, tree.validity(), &found))
    }

    fn symbolic_link(&mut self, mut request: Request) -> Answer {
        let (name, target) = (request.fields.name(), request.fields.name());
        if !request.fields.whole() {
            return Err(Errno::INVAL);
        }
        self.make(request.node, name, &New::Link(target.to_vec()))
    }

    fn make_node(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (mode, _device, umask, _) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        let name = fields.name();
        match Kind::of(mode) {
            // Device files of the host are not available to guests.
            Some(Kind::File | Kind::Pipe | Kind::Socket) => {
                self.make(request.node, name, &New::Node(mode & !(umask & 0o777)))
            }
            _ => Err(Errno::PERM),
        }
    }

    fn make_directory(&mut self, mut request: Request) -> Answer {
        let (mode, umask, name) = (request.fields.u32(), request.fields.u32(), request.fields.name());
        self.make(request.node, name, &New::Directory(mode & 0o7777 & !(umask & 0o777)))
    }

    fn link(&mut self, mut request: Request) -> Answer {
        let (old, name) = (request.fields.u64(), request.fields.name());
        let (tree, _, node) = self.tree(old)?;
        match place(request.node) {
            Place::In { tree: other, .. } if other == tree => self.make(request.node, name, &New::Name(node)),
            _ => Err(Errno::XDEV),
        }
    }

    fn remove(&mut self, mut request: Request, directory_itself: bool) -> Answer {
        let name = file_name(request.fields.name())?;
        let (_, tree, node) = self.tree(request.node)?;
        tree.remove(node, name, directory_itself)?;
        Ok(Body::default())
    }

    fn unlink(&mut self, request: Request) -> Answer {
        self.remove(request, false)
    }

    fn remove_directory(&mut self, request: Request) -> Answer {
        self.remove(request, true)
    }

    fn rename(&mut self, mut request: Request) -> Answer {
        let to = request.fields.u64();
        self.rename_to(request, to, 0)
    }

    fn rename_with_flags(&mut self, mut request: Request) -> Answer {
        let (to, flags, _) = (request.fields.u64(), request.fields.u32(), request.fields.u32());
        self.rename_to(request, to, flags)
    }

    fn rename_to(&mut self, mut request: Request, to: u64, flags: u32) -> Answer {
        let (old, new) = (file_name(request.fields.name())?, file_name(request.fields.name())?);
        let (Place::In { tree, node: from }, Place::In { tree: other, node: to }) = (place(request.node), place(to))
        else {
            return Err(Errno::ROFS);
        };
        if tree != other {
            return Err(Errno::XDEV);
        }
        let named = self.trees.get_mut(tree).ok_or(Errno::STALE)?;
        named.tree.rename((from, old), (to, new), flags)?;
        Ok(Body::default())
    }

    fn open(&mut self, mut request: Request) -> Answer {
        let flags = request.fields.u32();
        let (_, tree, node) = self.tree(request.node)?;
        let handle = tree.open(node, flags)?;
        let keep = if tree.keeps_contents() { wire::opened::KEEP_CACHE } else { 0 };
        Ok(Body::default().opened(handle, keep))
    }

    fn create(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (flags, mode, umask, _) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        let name = file_name(fields.name())?;
        let (number, tree, node) = self.tree(request.node)?;
        let (found, handle) = tree.create(node, name, mode & 0o7777 & !(umask & 0o777), flags)?;
        let mut body = entry(number, tree.validity(), &found);
        body.0.extend(Body::default().opened(handle, 0).0);
        Ok(body)
    }

    fn read(&mut self, mut request: Request) -> Answer {
        let (handle, offset, size) = (request.fields.u64(), request.fields.u64(), request.fields.u32());
        let size = request.room.min(size.min(LARGEST_TRANSFER) as usize);
        let (_, tree, node) = self.tree(request.node)?;
        Ok(Body(tree.read(node, handle, offset, size)?))
    }

    fn write(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (handle, offset, size, _flags, _owner) =
            (fields.u64(), fields.u64(), fields.u32(), fields.u32(), fields.u64());
        let (_open_flags, _) = (fields.u32(), fields.u32());
        let bytes = fields.rest().get(..size as usize).ok_or(Errno::INVAL)?;
        let (_, tree, _) = self.tree(request.node)?;
        let written = tree.write(handle, offset, bytes)?;
        Ok(Body::default().u32(written as u32).u32(0))
    }

    fn statfs(&mut self, request: Request) -> Answer {
        let room = match place(request.node) {
            Place::Top => crate::tree::Room { block: PAGE, ..crate::tree::Room::default() },
            Place::In { .. } => self.tree(request.node)?.1.room(),
        };
        let body = Body::default().u64(room.blocks).u64(room.free).u64(room.available).u64(room.files);
        let body = body.u64(room.files_free).u32(room.block).u32(LONGEST_NAME as u32).u32(room.block);
        Ok(body.zeros(28))
    }

    fn release(&mut self, mut request: Request) -> Answer {
        let handle = request.fields.u64();
        if let Place::In { .. } = place(request.node) {
            self.tree(request.node)?.1.close(handle);
        }
        Ok(Body::default())
    }

    fn sync(&mut self, mut request: Request) -> Answer {
        let handle = request.fields.u64();
        self.tree(request.node)?.1.sync(handle)?;
        Ok(Body::default())
    }

    fn allocate(&mut self, mut request: Request) -> Answer {
        let fields = &mut request.fields;
        let (handle, offset, length, mode) = (fields.u64(), fields.u64(), fields.u64(), fields.u32());
        self.tree(request.node)?.1.allocate(handle, offset, length, mode)?;
        Ok(Body::default())
    }

    fn open_directory(&mut self, request: Request) -> Answer {
        if let Place::Top = place(request.node) {
            return Ok(Body::default().opened(0, 0));
        }
        let (_, tree, node) = self.tree(request.node)?;
        let handle = tree.open_directory(node)?;
        let keep = wire::opened::KEEP_CACHE | wire::opened::CACHE_DIRECTORY;
        let flags = if tree.validity() > Duration::from_secs(60) { keep } else { 0 };
        Ok(Body::default().opened(handle, flags))
    }

    fn read_directory(&mut self, mut request: Request) -> Answer {
        let (handle, from, size) = (request.fields.u64(), request.fields.u64(), request.fields.u32());
        let room = request.room.min(size as usize);
        let mut body = Body::default();
        let mut at = from;
        let mut put = |entry: &Entry| {
            let len = (wire::ENTRY_HEADER + entry.name.len()).next_multiple_of(wire::ALIGNMENT);
            if body.0.len() + len > room {
                return false;
            }
            at += 1;
            let (start, kind) = (body.0.len(), entry.kind as u32 >> 12);
            let mut full = std::mem::take(&mut body).u64(entry.inode).u64(at).u32(entry.name.len() as u32).u32(kind);
            full.0.extend_from_slice(&entry.name);
            full.0.resize(start + len, 0);
            body = full;
            true
        };
        if let Place::Top = place(request.node) {
            let entries = self.trees.iter().enumerate().map(|(number, named)| Entry {
                name: named.name.clone().into_bytes(),
                inode: outside(number, ROOT),
                kind: Kind::Directory,
            });
            entries.skip(from as usize).all(|entry| put(&entry));
            return Ok(body);
        }
        let (_, tree, node) = self.tree(request.node)?;
        tree.list(node, handle, from, &mut put)?;
        Ok(body)
    }
}

/// Returns the answer to a lookup that found a node.
fn entry(tree: usize, valid: Duration, found: &Found) -> Body {
    Body::default().entry(outside(tree, found.node), valid, &found.attributes)
}

fn empty() -> Attributes {
    let never = Time::default();
    Attributes {
        inode: 0,
        mode: 0,
        links: 0,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        blocks: 0,
        accessed: never,
        modified: never,
        changed: never,
    }
}

/// Checks a name in a directory: it is not a path, and neither `.` nor `..`.
fn file_name(name: &[u8]) -> Result<&[u8], Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        _ if name.contains(&b'/') => Err(Errno::INVAL),
        _ if name.len() > LONGEST_NAME => Err(Errno::NAMETOOLONG),
        _ => Ok(name),
    }
}
