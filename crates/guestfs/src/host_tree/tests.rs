use super::*;
use crate::testing::{Directory, opens};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn tree(directory: &Directory) -> HostTree {
    HostTree::open(&directory.0, true).unwrap()
}

#[test]
fn no_node_becomes_its_own_ancestor() {
    for exchange in [false, true] {
        let directory = Directory::new();
        std::fs::create_dir_all(directory.0.join("a/b")).unwrap();
        std::fs::create_dir_all(directory.0.join("a/b/x")).unwrap();
        let mut tree = tree(&directory);
        let a = tree.look_up(ROOT, b"a").unwrap().node;
        let b = tree.look_up(a, b"b").unwrap().node;
        let directories = (tree.directory(ROOT).unwrap(), tree.directory(b).unwrap());
        // Another process takes b out of a between the opening of the directories and the call.
        std::fs::rename(directory.0.join("a/b"), directory.0.join("b")).unwrap();
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        let to: &[u8] = if exchange { b"x" } else { b"y" };
        tree.rename_between(&directories, (ROOT, b"a"), (b, to), flags).unwrap();
        assert!(directory.0.join("b").join(std::str::from_utf8(to).unwrap()).is_dir());
        assert_eq!((tree.path(a), tree.path(b)), (Ok(None), Ok(None)));
        assert_eq!(tree.attributes(b, None).unwrap_err(), Errno::STALE);
        // The guest finds the directories again, and nothing is left when it has forgotten them.
        let again = tree.look_up(ROOT, b"b").unwrap().node;
        let inner = tree.look_up(again, to).unwrap().node;
        assert!(tree.attributes(inner, None).is_ok());
        for node in [a, b, inner, again] {
            tree.forget(node, 1);
        }
        assert!(tree.nodes.is_empty() && tree.names.is_empty(), "{:?}", tree.nodes);
    }
}

#[test]
fn a_guest_leaves_no_file_with_the_rights_of_the_host_s_user() {
    let directory = Directory::new();
    let mut tree = tree(&directory);
    let mode = |name: &str| std::fs::metadata(directory.0.join(name)).unwrap().mode() & 0o7777;
    let (made, handle) = tree.create(ROOT, b"made", 0o6755, OFlags::WRONLY.bits()).unwrap();
    tree.close(handle);
    assert_eq!(mode("made") & SET_IDS, 0);
    tree.make(ROOT, b"node", &New::Node(0o106755)).unwrap();
    tree.make(ROOT, b"directory", &New::Directory(0o6755)).unwrap();
    assert_eq!((mode("node"), mode("directory")), (0o755, 0o2755));
    let change = |mode| Change { mode: Some(mode), ..Change::default() };
    let changed = tree.change(made.node, None, &change(0o107_777)).unwrap();
    assert_eq!((changed.mode & 0o7777, mode("made")), (0o1777, 0o1777));
    // A file that has the bits loses them when its contents change, however that happens.
    let set = || {
        let path = directory.0.join("made");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o6755)).unwrap();
    };
    set();
    let read = Tree::open(&mut tree, made.node, OFlags::RDONLY.bits()).unwrap();
    assert_eq!(mode("made"), 0o6755);
    let written = Tree::open(&mut tree, made.node, OFlags::WRONLY.bits()).unwrap();
    assert_eq!(mode("made"), 0o755);
    set();
    tree.change(made.node, None, &Change { size: Some(1), ..Change::default() }).unwrap();
    assert_eq!(mode("made"), 0o755);
    set();
    let (_, third) = tree.create(ROOT, b"made", 0o644, OFlags::WRONLY.bits()).unwrap();
    assert_eq!(mode("made"), 0o755);
    for handle in [read, written, third] {
        tree.close(handle);
    }
}

#[test]
fn a_mode_is_set_only_on_a_file_of_the_kind_that_was_made() {
    let directory = Directory::new();
    let path = directory.0.join("name");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let tree = tree(&directory);
    let at = tree.directory(ROOT).unwrap();
    // Between the making of a directory and this call, another process has put a file in its place.
    assert_eq!(tree.set_mode(&at, b"name", 0o2755, FileType::Directory), Err(Errno::STALE));
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    tree.set_mode(&at, b"name", 0o2755, FileType::RegularFile).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
}

fn pipe(path: &Path) {
    fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

const EPOCH: Time = Time { seconds: 1, nanoseconds: 2 };
const WRITE: u32 = OFlags::WRONLY.bits();

fn dated() -> Change {
    Change { accessed: Some(When::At(EPOCH)), modified: Some(When::At(EPOCH)), ..Change::default() }
}

#[test]
fn the_times_of_a_removed_link_are_not_those_of_what_took_its_name() {
    let directory = Directory::new();
    let mut tree = tree(&directory);
    let link = tree.make(ROOT, b"name", &New::Link(b"target".to_vec())).unwrap().node;
    assert_eq!(tree.change(link, None, &dated()).unwrap().modified, EPOCH);
    tree.remove(ROOT, b"name", false).unwrap();
    let path = directory.0.join("name");
    std::fs::write(&path, "text").unwrap();
    assert_eq!(tree.change(link, None, &dated()).unwrap().modified, EPOCH);
    assert_ne!(std::fs::metadata(&path).unwrap().mtime(), EPOCH.seconds);
}

#[test]
fn neither_pipes_nor_devices_of_the_host_are_opened() {
    let directory = Directory::new();
    let mut tree = tree(&directory);
    let path = directory.0.join("pipe");
    pipe(&path);
    for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
        let flags = flags.bits();
        assert!(!opens(&path, || {
            assert_eq!(tree.create(ROOT, b"pipe", 0o644, flags).unwrap_err(), Errno::PERM);
            let node = tree.look_up(ROOT, b"pipe").unwrap().node;
            assert_eq!(Tree::open(&mut tree, node, flags).unwrap_err(), Errno::PERM);
            let sized = Change { size: Some(0), ..Change::default() };
            assert_eq!(tree.change(node, None, &sized).unwrap_err(), Errno::INVAL);
            assert!(crate::shares::open_real(&path).is_err());
        }));
    }
    assert_eq!(tree.look_up(ROOT, b"pipe").unwrap().attributes.kind(), Kind::Pipe);
    // Other kinds have the errors of open(2).
    symlink("pipe", directory.0.join("link")).unwrap();
    std::fs::create_dir(directory.0.join("directory")).unwrap();
    for (name, error) in [("link", Errno::LOOP), ("directory", Errno::ISDIR)] {
        assert_eq!(tree.create(ROOT, name.as_bytes(), 0o644, WRITE).unwrap_err(), error, "{name}");
    }
    let inner = tree.look_up(ROOT, b"directory").unwrap().node;
    let sized = Change { size: Some(0), ..Change::default() };
    assert_eq!(tree.change(inner, None, &sized).unwrap_err(), Errno::ISDIR);
}

/// A tree with small limits, over a directory with `a`, `b` and `d/e/f`.
fn small(directory: &Directory, limits: Limits) -> HostTree {
    std::fs::create_dir_all(directory.0.join("d/e")).unwrap();
    for (name, text) in [("a", "first"), ("b", "second"), ("d/e/f", "third")] {
        std::fs::write(directory.0.join(name), text).unwrap();
    }
    tree(directory).with_limits(limits)
}

fn text(tree: &mut HostTree, node: u64) -> Result<String, Errno> {
    let handle = Tree::open(tree, node, 0)?;
    let read = tree.read(node, handle, 0, 100);
    tree.close(handle);
    tree.check();
    read.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn names(tree: &mut HostTree, handle: u64, from: u64, most: usize) -> Result<Vec<(String, Kind)>, Errno> {
    let mut names = Vec::new();
    tree.list(ROOT, handle, from, &mut |entry| {
        names.push((String::from_utf8(entry.name.clone()).unwrap(), entry.kind));
        names.len() < most
    })?;
    Ok(names)
}

const PLENTY: Limits = Limits { nodes: 100, open: 100, entries: 100, removed: 100 };

#[test]
fn a_node_has_the_attributes_of_its_file() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    assert_eq!((tree.validity(), tree.keeps_contents()), (Duration::from_secs(1), true));
    symlink("a", directory.0.join("link")).unwrap();
    for (name, kind) in [("a", Kind::File), ("d", Kind::Directory), ("link", Kind::Link)] {
        let found = tree.look_up(ROOT, name.as_bytes()).unwrap();
        let host = std::fs::symlink_metadata(directory.0.join(name)).unwrap();
        let Attributes { inode, mode, links, uid, gid, device, size, blocks, accessed, modified, changed } =
            found.attributes;
        assert_eq!((inode, mode, links), (host.ino(), host.mode(), host.nlink() as u32));
        assert_eq!((uid, gid, device, size, blocks), (host.uid(), host.gid(), 0, host.size(), host.blocks()));
        let times = [accessed, modified, changed].map(|time| (time.seconds, i64::from(time.nanoseconds)));
        let host_times =
            [(host.atime(), host.atime_nsec()), (host.mtime(), host.mtime_nsec()), (host.ctime(), host.ctime_nsec())];
        assert_eq!((times, found.attributes.kind()), (host_times, kind));
        assert_eq!(tree.attributes(found.node, None), Ok(found.attributes));
        // A handle without a file, or an unknown one, does not matter: the node counts.
        assert_eq!(tree.attributes(found.node, Some(77)), Ok(found.attributes));
    }
    // Files of another file system have numbers of their own.
    let here = fs::stat(&directory.0).unwrap();
    let (mut there, mut further) = (here, here);
    there.st_dev += 1;
    further.st_dev += 2;
    assert_ne!(tree.attributes_of(&here).inode, tree.attributes_of(&there).inode);
    assert_ne!(tree.attributes_of(&further).inode, tree.attributes_of(&there).inode);
    let (mut first, mut last) = (there, there);
    (first.st_ino, last.st_ino) = (0, u64::MAX);
    assert_eq!(tree.attributes_of(&first).inode, !tree.attributes_of(&last).inode);
    let room = fs::statvfs(&directory.0).unwrap();
    let found = tree.room();
    assert_eq!((u64::from(found.block), found.blocks, found.files), (room.f_frsize, room.f_blocks, room.f_files));
    assert!(found.free <= found.blocks && found.available <= found.free && found.files_free <= found.files);
    let link = tree.look_up(ROOT, b"link").unwrap().node;
    assert_eq!(tree.read_link(link).unwrap(), b"a");
    // An open file goes on when its name leads to another one.
    let a = tree.look_up(ROOT, b"a").unwrap();
    let handle = Tree::open(&mut tree, a.node, 0).unwrap();
    std::fs::rename(directory.0.join("b"), directory.0.join("a")).unwrap();
    assert_eq!(tree.attributes(a.node, Some(handle)).unwrap().size, 5);
    assert_eq!(tree.attributes(a.node, None).unwrap().size, 6);
    tree.check();
}

#[test]
fn directories_are_listed_with_kinds_and_in_order() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    symlink("a", directory.0.join("link")).unwrap();
    pipe(&directory.0.join("pipe"));
    fs::mknodat(CWD, directory.0.join("socket"), FileType::Socket, Mode::RWXU, 0).unwrap();
    let handle = tree.open_directory(ROOT).unwrap();
    let all = names(&mut tree, handle, 0, 100).unwrap();
    let known = [
        (".", Kind::Directory),
        ("..", Kind::Directory),
        ("a", Kind::File),
        ("b", Kind::File),
        ("d", Kind::Directory),
        ("link", Kind::Link),
        ("pipe", Kind::Pipe),
        ("socket", Kind::Socket),
    ];
    assert_eq!(all, known.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(names(&mut tree, handle, 2, 1).unwrap(), all[2..3]);
    assert_eq!(names(&mut tree, handle, 7, 100).unwrap(), all[7..]);
    assert_eq!(names(&mut tree, handle, u64::MAX, 100).unwrap(), []);
    let file = tree.look_up(ROOT, b"a").unwrap().node;
    let open = Tree::open(&mut tree, file, 0).unwrap();
    assert_ne!(open, handle);
    assert_eq!(names(&mut tree, open, 0, 100).unwrap_err(), Errno::BADF);
    assert_eq!(names(&mut tree, 77, 0, 100).unwrap_err(), Errno::BADF);
    assert_eq!(tree.read(ROOT, handle, 0, 1).unwrap_err(), Errno::ISDIR);
    assert_eq!(tree.open_directory(file).unwrap_err(), Errno::NOTDIR);
    tree.check();
    tree.close(handle);
    assert_eq!(names(&mut tree, handle, 0, 100).unwrap_err(), Errno::BADF);
    tree.check();
}

#[test]
fn files_are_read_and_written_where_it_is_said() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let a = tree.look_up(ROOT, b"a").unwrap().node;
    // Of the flags only some are the guest's affair: with O_APPEND the host would not write where it is said.
    let append = OFlags::WRONLY | OFlags::APPEND | OFlags::DIRECT;
    let handle = Tree::open(&mut tree, a, append.bits()).unwrap();
    assert_eq!(tree.write(handle, 1, b"??"), Ok(2));
    assert_eq!(tree.read(a, handle, 0, 1).unwrap_err(), Errno::BADF);
    let reading = Tree::open(&mut tree, a, 0).unwrap();
    assert_eq!(tree.write(reading, 0, b"x").unwrap_err(), Errno::BADF);
    assert_eq!(tree.write(77, 0, b"x").unwrap_err(), Errno::BADF);
    let read =
        |tree: &mut HostTree, offset, size| String::from_utf8(tree.read(a, reading, offset, size).unwrap()).unwrap();
    assert_eq!(read(&mut tree, 0, 100), "f??st");
    assert_eq!(read(&mut tree, 1, 2), "??");
    assert_eq!((read(&mut tree, 5, 10), read(&mut tree, 0, 0)), (String::new(), String::new()));
    assert_eq!(tree.read(a, reading, u64::MAX, 1).unwrap_err(), Errno::INVAL);
    for handle in [handle, reading] {
        // No program that the host starts gets the descriptors.
        let flags = rustix::io::fcntl_getfd(tree.file(handle).unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(fs::fcntl_getfl(tree.file(handle).unwrap()).unwrap().contains(OFlags::NONBLOCK));
    }
    assert_eq!((tree.sync(handle), tree.sync(77)), (Ok(()), Err(Errno::BADF)));
    tree.allocate(handle, 0, 1000, 0).unwrap();
    assert_eq!(tree.attributes(a, None).unwrap().size, 1000);
    tree.allocate(handle, 0, 2000, FallocateFlags::KEEP_SIZE.bits()).unwrap();
    assert_eq!(tree.attributes(a, None).unwrap().size, 1000);
    assert_eq!(tree.allocate(77, 0, 1, 0), Err(Errno::BADF));
    let truncating = Tree::open(&mut tree, a, (OFlags::WRONLY | OFlags::TRUNC).bits()).unwrap();
    assert_eq!(tree.attributes(a, None).unwrap().size, 0);
    for handle in [handle, reading, truncating] {
        tree.close(handle);
        assert_eq!(tree.sync(handle), Err(Errno::BADF));
    }
    tree.check();
    // The tree's own directory is not inherited either.
    let root = rustix::io::fcntl_getfd(&tree.root).unwrap();
    let reached = rustix::io::fcntl_getfd(tree.reach(a).unwrap()).unwrap();
    let listed = rustix::io::fcntl_getfd(tree.directory(ROOT).unwrap()).unwrap();
    let reopened = tree.reopen(&tree.reach(a).unwrap(), OFlags::RDONLY).unwrap();
    let reopened = rustix::io::fcntl_getfd(reopened).unwrap();
    assert!([root, reached, listed, reopened].iter().all(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC)));
}

#[test]
fn attributes_change_one_by_one() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let a = tree.look_up(ROOT, b"a").unwrap().node;
    let before = tree.change(a, None, &dated()).unwrap();
    assert_eq!((before.accessed, before.modified), (EPOCH, EPOCH));
    let later = Time { seconds: 5, nanoseconds: 6 };
    let accessed = Change { accessed: Some(When::At(later)), ..Change::default() };
    let after = tree.change(a, None, &accessed).unwrap();
    assert_eq!((after.accessed, after.modified, after.mode, after.size), (later, EPOCH, before.mode, before.size));
    let modified = Change { modified: Some(When::At(later)), ..Change::default() };
    let after = tree.change(a, None, &modified).unwrap();
    assert_eq!((after.accessed, after.modified), (later, later));
    let now = Change { modified: Some(When::Now), ..Change::default() };
    let after = tree.change(a, None, &now).unwrap();
    assert!(after.accessed == later && after.modified.seconds > 1_000_000_000);
    let mode = Change { mode: Some(0o640), ..Change::default() };
    assert_eq!(tree.change(a, None, &mode).unwrap().mode & 0o7777, 0o640);
    // Whoever may give files away gives away only what is named.
    let may = before.uid == 0;
    let owner = Change { uid: Some(if may { 4321 } else { before.uid }), ..Change::default() };
    let after = tree.change(a, None, &owner).unwrap();
    assert_eq!((Some(after.uid), after.gid), (owner.uid, before.gid));
    let group = Change { gid: Some(if may { 4322 } else { before.gid }), ..Change::default() };
    let after = tree.change(a, None, &group).unwrap();
    assert_eq!((Some(after.uid), Some(after.gid)), (owner.uid, group.gid));
    // The size, by name and through an open file.
    let size = |size| Change { size: Some(size), ..Change::default() };
    assert_eq!(tree.change(a, None, &size(2)).unwrap().size, 2);
    assert_eq!(text(&mut tree, a).unwrap(), "fi");
    let open = Tree::open(&mut tree, a, WRITE).unwrap();
    assert_eq!(tree.change(a, Some(open), &size(1)).unwrap().size, 1);
    let reading = Tree::open(&mut tree, a, 0).unwrap();
    assert_eq!(tree.change(a, Some(reading), &size(0)).unwrap_err(), Errno::INVAL);
    assert_eq!(tree.change(a, Some(77), &size(3)).unwrap().size, 3);
    // A link has times and an owner, but no permissions.
    symlink("b", directory.0.join("link")).unwrap();
    let link = tree.look_up(ROOT, b"link").unwrap().node;
    let host = || std::fs::metadata(directory.0.join("b")).unwrap();
    let target = host();
    let changed = tree.change(link, None, &Change { mode: Some(0o600), ..dated() }).unwrap();
    assert_eq!((changed.kind(), changed.modified, changed.mode & 0o777), (Kind::Link, EPOCH, 0o777));
    tree.change(link, None, &owner).unwrap();
    assert_eq!((host().mode(), host().uid(), host().mtime()), (target.mode(), target.uid(), target.mtime()));
    assert_eq!(tree.change(link, None, &size(0)).unwrap_err(), Errno::INVAL);
}

#[test]
fn what_is_made_has_the_mode_that_the_guest_asked_for() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let mode = |name: &str| std::fs::symlink_metadata(directory.0.join(name)).unwrap().mode();
    // No umask of the host takes bits away.
    let (made, handle) = tree.create(ROOT, b"file", 0o177_777, WRITE).unwrap();
    assert_eq!((mode("file"), tree.write(handle, 0, b"abc")), (0o101_777, Ok(3)));
    assert_eq!(text(&mut tree, made.node).unwrap(), "abc");
    for (name, new, expected) in [
        ("node", New::Node(0o107_666), 0o101_666),
        ("pipe", New::Node(0o016_622), 0o010_622),
        ("directory", New::Directory(0o7777), 0o043_777),
    ] {
        let found = tree.make(ROOT, name.as_bytes(), &new).unwrap();
        assert_eq!((mode(name), found.attributes.mode), (expected, expected), "{name}");
        assert_eq!(tree.make(ROOT, name.as_bytes(), &new).unwrap_err(), Errno::EXIST);
    }
    let link = tree.make(ROOT, b"link", &New::Link(b"../somewhere".to_vec())).unwrap();
    assert_eq!(tree.read_link(link.node).unwrap(), b"../somewhere");
    let name = tree.make(ROOT, b"name", &New::Name(made.node)).unwrap();
    assert_eq!((name.attributes.links, text(&mut tree, name.node).unwrap().as_str()), (2, "abc"));
    // A name of a link is another link, not a name of what it leads to.
    tree.make(ROOT, b"second", &New::Name(link.node)).unwrap();
    assert_eq!(std::fs::read_link(directory.0.join("second")).unwrap(), Path::new("../somewhere"));
    // What exists is opened, unless it must be new.
    let exclusive = OFlags::WRONLY | OFlags::EXCL;
    assert_eq!(tree.create(ROOT, b"file", 0o600, exclusive.bits()).unwrap_err(), Errno::EXIST);
    let (again, reading) = tree.create(ROOT, b"file", 0o600, 0).unwrap();
    assert_eq!((again.node, mode("file")), (made.node, 0o101_777));
    assert_eq!(tree.read(again.node, reading, 0, 9).unwrap(), b"abc");
    let (_, emptied) = tree.create(ROOT, b"file", 0o600, (OFlags::WRONLY | OFlags::TRUNC).bits()).unwrap();
    assert_eq!(tree.attributes(made.node, None).unwrap().size, 0);
    let (_, new) = tree.create(ROOT, b"new", 0o600, exclusive.bits()).unwrap();
    for handle in [handle, reading, emptied, new] {
        let flags = rustix::io::fcntl_getfd(tree.file(handle).unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    tree.check();
}

#[test]
fn nothing_is_changed_without_permission() {
    let directory = Directory::new();
    drop(small(&directory, PLENTY));
    let mut tree = HostTree::open(&directory.0, false).unwrap();
    let a = tree.look_up(ROOT, b"a").unwrap().node;
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::TRUNC] {
        assert_eq!(Tree::open(&mut tree, a, flags.bits()).unwrap_err(), Errno::ROFS);
    }
    let handle = Tree::open(&mut tree, a, 0).unwrap();
    assert_eq!(tree.write(handle, 0, b"x").unwrap_err(), Errno::ROFS);
    assert_eq!(tree.allocate(handle, 0, 1, 0).unwrap_err(), Errno::ROFS);
    assert_eq!(tree.change(a, None, &dated()).unwrap_err(), Errno::ROFS);
    assert_eq!(tree.make(ROOT, b"x", &New::Directory(0o755)).unwrap_err(), Errno::ROFS);
    assert_eq!(tree.create(ROOT, b"x", 0o755, 0).unwrap_err(), Errno::ROFS);
    assert_eq!(tree.remove(ROOT, b"a", false).unwrap_err(), Errno::ROFS);
    assert_eq!(tree.rename((ROOT, b"a"), (ROOT, b"x"), 0).unwrap_err(), Errno::ROFS);
    assert_eq!(text(&mut tree, a).unwrap(), "first");
}

#[test]
fn nodes_follow_renames_and_exchanges() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let (a, b) = (tree.look_up(ROOT, b"a").unwrap().node, tree.look_up(ROOT, b"b").unwrap().node);
    let d = tree.look_up(ROOT, b"d").unwrap().node;
    let e = tree.look_up(d, b"e").unwrap().node;
    let f = tree.look_up(e, b"f").unwrap().node;
    let exchange = RenameFlags::EXCHANGE.bits();
    tree.rename((ROOT, b"a"), (e, b"f"), exchange).unwrap();
    let all = |tree: &mut HostTree| [a, b, f].map(|node| text(tree, node));
    assert_eq!(all(&mut tree), ["first", "second", "third"].map(|text| Ok(text.to_owned())));
    assert_eq!((tree.look_up(e, b"f").unwrap().node, tree.look_up(ROOT, b"a").unwrap().node), (a, f));
    assert_eq!(std::fs::read_to_string(directory.0.join("a")).unwrap(), "third");
    // The replaced file stays reachable for whoever knows it.
    tree.rename((ROOT, b"b"), (e, b"f"), 0).unwrap();
    assert_eq!(all(&mut tree), ["first", "second", "third"].map(|text| Ok(text.to_owned())));
    assert_eq!(tree.look_up(e, b"f").unwrap().node, b);
    assert_eq!(tree.rename((ROOT, b"a"), (e, b"f"), RenameFlags::NOREPLACE.bits()).unwrap_err(), Errno::EXIST);
    assert_eq!(tree.rename((ROOT, b"none"), (e, b"f"), 0).unwrap_err(), Errno::NOENT);
    // A whiteout is a device file.
    for flags in [RenameFlags::WHITEOUT.bits(), 1 << 20] {
        assert_eq!(tree.rename((ROOT, b"a"), (ROOT, b"g"), flags).unwrap_err(), Errno::INVAL);
    }
    // What is below a directory goes with it.
    tree.rename((d, b"e"), (ROOT, b"moved"), 0).unwrap();
    assert_eq!(text(&mut tree, b).unwrap(), "second");
    assert_eq!(tree.path(b).unwrap().unwrap(), b"moved/f");
    tree.check();
    for (node, times) in [(a, 2), (b, 2), (d, 1), (e, 1), (f, 2)] {
        tree.forget(node, times);
        tree.check();
    }
    assert!(tree.nodes.is_empty() && tree.names.is_empty(), "{:?}", tree.nodes);
}

#[test]
fn a_node_stays_as_long_as_it_is_needed() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let find = |tree: &mut HostTree, node, name: &str| tree.look_up(node, name.as_bytes()).unwrap().node;
    let d = find(&mut tree, ROOT, "d");
    let e = find(&mut tree, d, "e");
    let f = find(&mut tree, e, "f");
    assert!(d != ROOT && e != d && f != e && f != d);
    assert_eq!((find(&mut tree, e, "f"), find(&mut tree, d, "e")), (f, e));
    // The guest has no use for the directories, but the file's path leads through them.
    tree.forget(d, 1);
    tree.forget(e, 2);
    tree.check();
    assert_eq!((text(&mut tree, f).unwrap().as_str(), tree.nodes.len()), ("third", 3));
    tree.forget(f, 1);
    assert_eq!((text(&mut tree, f).unwrap().as_str(), tree.nodes.len()), ("third", 3));
    // More than there is.
    tree.forget(f, 9);
    tree.check();
    assert_eq!((tree.nodes.len(), tree.names.len(), text(&mut tree, f)), (0, 0, Err(Errno::STALE)));
    tree.forget(77, 1);
    // After its removal a file is there until it is forgotten, a directory without contents.
    let a = find(&mut tree, ROOT, "a");
    tree.remove(ROOT, b"a", false).unwrap();
    tree.check();
    assert_eq!((tree.removed, text(&mut tree, a).unwrap().as_str()), (1, "first"));
    assert_eq!(tree.look_up(ROOT, b"a").unwrap_err(), Errno::NOENT);
    tree.forget(a, 1);
    tree.check();
    assert_eq!((tree.removed, tree.nodes.len()), (0, 0));
    let d = find(&mut tree, ROOT, "d");
    assert_eq!(tree.remove(ROOT, b"d", true).unwrap_err(), Errno::NOTEMPTY);
    assert_eq!(tree.remove(ROOT, b"d", false).unwrap_err(), Errno::ISDIR);
    assert_eq!(tree.path(d).unwrap().unwrap(), b"d");
    let e = find(&mut tree, d, "e");
    tree.remove(e, b"f", false).unwrap();
    tree.remove(d, b"e", true).unwrap();
    assert_eq!(tree.look_up(e, b"f").unwrap_err(), Errno::NOENT);
    assert_eq!(tree.make(e, b"new", &New::Directory(0o755)).unwrap_err(), Errno::NOENT);
    tree.check();
}

#[test]
fn limits_hold_to_the_last_one() {
    let directory = Directory::new();
    let mut tree = small(&directory, Limits { nodes: 2, open: 2, entries: 12, removed: 1 });
    let find = |tree: &mut HostTree, name: &str| tree.look_up(ROOT, name.as_bytes()).map(|found| found.node);
    let (a, b) = (find(&mut tree, "a").unwrap(), find(&mut tree, "b").unwrap());
    assert_eq!((find(&mut tree, "d"), find(&mut tree, "a")), (Err(Errno::NFILE), Ok(a)));
    tree.check();
    let file = Tree::open(&mut tree, a, 0).unwrap();
    // Five entries: `.`, `..`, a, b, d.
    let listed = tree.open_directory(ROOT).unwrap();
    assert_eq!(tree.open_directory(ROOT).unwrap_err(), Errno::MFILE);
    assert_eq!(tree.create(ROOT, b"a", 0o600, 0).unwrap_err(), Errno::MFILE);
    assert_eq!(tree.entries, 5);
    tree.close(file);
    let second = tree.open_directory(ROOT).unwrap();
    assert_eq!(tree.entries, 10);
    tree.close(second);
    tree.limits.entries = 9;
    assert_eq!(tree.open_directory(ROOT).unwrap_err(), Errno::NFILE);
    tree.limits.entries = 10;
    let second = tree.open_directory(ROOT).unwrap();
    tree.check();
    for handle in [listed, second, second, 77] {
        tree.close(handle);
    }
    assert_eq!((tree.entries, tree.open.len()), (0, 0));
    // Of two removed files one is kept.
    tree.remove(ROOT, b"a", false).unwrap();
    tree.remove(ROOT, b"b", false).unwrap();
    assert_eq!((text(&mut tree, a), text(&mut tree, b)), (Ok("first".into()), Err(Errno::STALE)));
    tree.check();
    tree.forget(a, 2);
    tree.forget(b, 1);
    assert_eq!((tree.removed, tree.nodes.len()), (0, 0));
}

#[test]
fn no_directory_is_reached_through_a_link_that_took_its_place() {
    let (directory, outside) = (Directory::new(), Directory::new());
    let mut tree = small(&directory, PLENTY);
    std::fs::create_dir_all(outside.0.join("e")).unwrap();
    std::fs::write(outside.0.join("e/f"), "secret").unwrap();
    std::fs::create_dir_all(directory.0.join("other/e")).unwrap();
    std::fs::write(directory.0.join("other/e/f"), "other").unwrap();
    let d = tree.look_up(ROOT, b"d").unwrap().node;
    let e = tree.look_up(d, b"e").unwrap().node;
    let f = tree.look_up(e, b"f").unwrap().node;
    std::fs::rename(directory.0.join("d"), directory.0.join("away")).unwrap();
    // Neither out of the shared directory, nor to another place in it.
    for target in [outside.0.as_path(), Path::new("other")] {
        symlink(target, directory.0.join("d")).unwrap();
        assert_eq!(text(&mut tree, f).unwrap_err(), Errno::LOOP);
        assert_eq!(tree.look_up(e, b"f").unwrap_err(), Errno::LOOP);
        assert_eq!(tree.create(e, b"new", 0o600, WRITE).unwrap_err(), Errno::LOOP);
        std::fs::remove_file(directory.0.join("d")).unwrap();
    }
    // The server refuses such names. If one came here, it would not lead out either.
    assert_eq!(tree.create(ROOT, b"../new", 0o600, WRITE).unwrap_err(), Errno::XDEV);
    let root = tree.directory(ROOT).unwrap();
    assert_eq!(tree.set_mode(&root, b"..", 0o755, FileType::Directory), Err(Errno::XDEV));
}

#[test]
fn a_file_without_set_user_id_is_not_touched_by_its_opening() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    let a = tree.look_up(ROOT, b"a").unwrap();
    // Longer than a tick of the file system's clock.
    std::thread::sleep(Duration::from_millis(50));
    Tree::open(&mut tree, a.node, WRITE).unwrap();
    assert_eq!(tree.attributes(a.node, None).unwrap().changed, a.attributes.changed);
}

#[test]
#[should_panic(expected = "(1, 0)")]
fn records_that_do_not_agree_are_noticed() {
    let directory = Directory::new();
    let mut tree = small(&directory, PLENTY);
    tree.removed = 1;
    tree.check();
}
