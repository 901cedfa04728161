use crate::attributes::Kind;
use crate::host_tree::{HostTree, Limits};
use crate::packed::{Added, Packed};
use crate::server::Server;
use crate::testing::Directory;
use crate::wire::operation;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

const ENOENT: i32 = -2;
const EACCES_OR_LOOP: [i32; 3] = [-13, -40, -20];
const EXDEV: i32 = -18;
const EINVAL: i32 = -22;
const EROFS: i32 = -30;
const ENFILE: i32 = -23;
const EMFILE: i32 = -24;
const ENOSYS: i32 = -38;
const EOPNOTSUPP: i32 = -95;
const ENAMETOOLONG: i32 = -36;
const TOP: u64 = 1;
const O_WRONLY: u32 = 1;

/// A guest.
struct Guest(Server);

impl Guest {
    fn send(&mut self, code: u32, node: u64, body: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut request = Vec::new();
        request.extend((40 + body.len() as u32).to_le_bytes());
        request.extend(code.to_le_bytes());
        request.extend(7u64.to_le_bytes());
        request.extend(node.to_le_bytes());
        request.extend([0; 16]);
        request.extend(body);
        self.0.answer(&request, room)
    }

    fn ask(&mut self, code: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let answer = self.send(code, node, body, 1 << 20).unwrap();
        assert_eq!(u32::from_le_bytes(answer[..4].try_into().unwrap()) as usize, answer.len());
        assert_eq!(&answer[8..16], &7u64.to_le_bytes());
        match i32::from_le_bytes(answer[4..8].try_into().unwrap()) {
            0 => Ok(answer[16..].to_vec()),
            error => Err(error),
        }
    }

    /// The number of the node of a name.
    fn find(&mut self, node: u64, name: &str) -> Result<u64, i32> {
        let found = number(&self.ask(operation::LOOK_UP, node, &name_of(name))?, 0);
        // That there is none is also an answer.
        if found == 0 { Err(ENOENT) } else { Ok(found) }
    }

    /// A path from a directory on.
    fn walk(&mut self, from: u64, path: &str) -> Result<u64, i32> {
        path.split('/').try_fold(from, |node, name| self.find(node, name))
    }

    fn open(&mut self, node: u64, flags: u32) -> Result<u64, i32> {
        Ok(number(&self.ask(operation::OPEN, node, &[flags.to_le_bytes(), [0; 4]].concat())?, 0))
    }

    fn read(&mut self, node: u64) -> Result<Vec<u8>, i32> {
        let handle = self.open(node, 0)?;
        let mut body = [handle.to_le_bytes(), 0u64.to_le_bytes()].concat();
        body.extend(100_000u32.to_le_bytes());
        body.resize(40, 0);
        self.ask(operation::READ, node, &body)
    }

    fn write(&mut self, node: u64, handle: u64, text: &[u8]) -> Result<Vec<u8>, i32> {
        let mut body = [handle.to_le_bytes(), 0u64.to_le_bytes()].concat();
        body.extend((text.len() as u32).to_le_bytes());
        body.resize(40, 0);
        body.extend(text);
        self.ask(operation::WRITE, node, &body)
    }

    fn create(&mut self, node: u64, name: &str, mode: u32) -> Result<(u64, u64), i32> {
        let mut body: Vec<u8> = [O_WRONLY, mode, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        body.extend(name_of(name));
        let answer = self.ask(operation::CREATE, node, &body)?;
        Ok((number(&answer, 0), number(&answer, 128)))
    }

    /// The names in a directory.
    fn list(&mut self, node: u64) -> Result<Vec<String>, i32> {
        let handle = number(&self.ask(operation::OPEN_DIRECTORY, node, &[0; 8])?, 0);
        let (mut names, mut from) = (Vec::new(), 0u64);
        loop {
            let mut body = [handle.to_le_bytes(), from.to_le_bytes()].concat();
            // Room for a few.
            body.extend(100u32.to_le_bytes());
            body.resize(40, 0);
            let answer = self.ask(operation::READ_DIRECTORY, node, &body)?;
            if answer.is_empty() {
                return Ok(names);
            }
            let mut at = 0;
            while at < answer.len() {
                from = number(&answer, at + 8);
                let len = u32::from_le_bytes(answer[at + 16..at + 20].try_into().unwrap()) as usize;
                names.push(String::from_utf8(answer[at + 24..at + 24 + len].to_vec()).unwrap());
                at += (24 + len).next_multiple_of(8);
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn name_of(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

fn packed() -> Guest {
    let mut tree = Packed::new();
    tree.put_bytes(Path::new("/a/b/text"), 0o644, b"some text").unwrap();
    tree.put_link(Path::new("/a/link"), b"b/text").unwrap();
    for number in 0..10 {
        tree.put_bytes(&Path::new("/many").join(format!("file-{number}")), 0o600, b"").unwrap();
    }
    let mut server = Server::new();
    server.add("root", Box::new(tree));
    Guest(server)
}

fn shared(directory: &Directory, writable: bool) -> Guest {
    let mut server = Server::new();
    server.add("share", Box::new(HostTree::open(&directory.0, writable).unwrap()));
    Guest(server)
}

#[test]
fn packed_files_are_read() {
    let mut guest = packed();
    let text = guest.walk(TOP, "root/a/b/text").unwrap();
    assert_eq!(guest.read(text).unwrap(), b"some text");
    let link = guest.walk(TOP, "root/a/link").unwrap();
    assert_eq!(guest.ask(operation::READ_LINK, link, b"").unwrap(), b"b/text");
    let attributes = guest.ask(operation::GET_ATTRIBUTES, text, &[0; 16]).unwrap();
    assert_eq!(number(&attributes, 24), 9);
    let mode = u32::from_le_bytes(attributes[76..80].try_into().unwrap());
    assert_eq!(mode, Kind::File as u32 | 0o644);
}

#[test]
fn directories_are_listed_in_pieces() {
    let mut guest = packed();
    assert_eq!(guest.list(TOP).unwrap(), ["root"]);
    let many = guest.walk(TOP, "root/many").unwrap();
    let expected: Vec<String> = (0..10).map(|number| format!("file-{number}")).collect();
    assert_eq!(guest.list(many).unwrap(), expected);
}

#[test]
fn one_answer_lists_as_many_entries_as_fit() {
    let mut guest = packed();
    let many = guest.walk(TOP, "root/many").unwrap();
    let mut listed = |from: u64, size: u32| {
        let body = [&[0; 8][..], &from.to_le_bytes(), &size.to_le_bytes(), &[0; 20]].concat();
        guest.ask(operation::READ_DIRECTORY, many, &body).unwrap().len() / 32
    };
    assert_eq!([listed(0, 4096), listed(7, 4096), listed(10, 4096), listed(u64::MAX, 4096)], [10, 3, 0, 0]);
    assert_eq!([listed(0, 31), listed(0, 32), listed(0, 63), listed(0, 64)], [0, 1, 1, 2]);
}

#[test]
fn a_guest_keeps_the_contents_of_what_was_packed() {
    const KEEP_CACHE: u32 = 2;
    let mut guest = packed();
    let text = guest.walk(TOP, "root/a/b/text").unwrap();
    let opened = guest.ask(operation::OPEN, text, &[0; 8]).unwrap();
    assert_eq!(word(&opened, 8), KEEP_CACHE);
}

#[test]
fn nothing_changes_what_was_packed() {
    let mut guest = packed();
    let directory = guest.walk(TOP, "root/a").unwrap();
    let text = guest.walk(TOP, "root/a/b/text").unwrap();
    assert_eq!(guest.create(directory, "new", 0o644), Err(EROFS));
    assert_eq!(guest.ask(operation::UNLINK, directory, &name_of("link")), Err(EROFS));
    assert_eq!(guest.ask(operation::SET_ATTRIBUTES, text, &[0; 88]), Err(EROFS));
    assert_eq!(guest.write(text, 0, b"x"), Err(EROFS));
    let rename = [&directory.to_le_bytes()[..], b"link\0new\0"].concat();
    assert_eq!(guest.ask(operation::RENAME, directory, &rename), Err(EROFS));
    // A program that wants room writes zeros instead.
    assert_eq!(guest.ask(operation::ALLOCATE, text, &[0; 32]), Err(EOPNOTSUPP));
    assert_eq!(guest.ask(operation::MAKE_DIRECTORY, TOP, &[&[0; 8][..], b"d\0"].concat()), Err(EROFS));
}

#[test]
fn names_that_are_none_are_refused() {
    let mut guest = packed();
    for name in ["..", ".", "", "a/b", "/"] {
        assert_eq!(guest.find(TOP, name), Err(EINVAL), "{name:?}");
    }
    assert_eq!(guest.find(TOP, &"x".repeat(255)), Err(ENOENT));
    assert_eq!(guest.find(TOP, &"x".repeat(256)), Err(ENAMETOOLONG));
    // Without its zero.
    assert_eq!(guest.ask(operation::LOOK_UP, TOP, b"root"), Err(EINVAL));
    assert_eq!(guest.find(TOP, "absent"), Err(ENOENT));
}

#[test]
fn requests_that_make_no_sense_are_answered_with_errors() {
    let directory = Directory::new();
    for code in 0..64 {
        for node in [0, TOP, 1 << 48, 2 << 48, u64::MAX, (1 << 48) + 77] {
            for len in [0, 1, 8, 16, 40, 88] {
                for byte in [0, 0xff] {
                    let mut guest = shared(&directory, true);
                    guest.send(code, node, &vec![byte; len], 4096);
                    packed().send(code, node, &vec![byte; len], 15);
                }
            }
        }
    }
    let mut guest = packed();
    assert_eq!(guest.ask(999, TOP, b""), Err(ENOSYS));
    assert!(guest.0.answer(&[], 100).is_some());
    assert!(guest.0.answer(&[0xff; 39], 100).is_some());
    assert_eq!(guest.0.answer(&[0xff; 39], 3), None);
    assert!(std::fs::read_dir(&directory.0).unwrap().next().is_none());
}

#[test]
fn links_do_not_lead_out_of_a_shared_directory() {
    let (directory, outside) = (Directory::new(), Directory::new());
    std::fs::write(outside.0.join("secret"), "secret").unwrap();
    symlink(&outside.0, directory.0.join("away")).unwrap();
    symlink(outside.0.join("secret"), directory.0.join("file")).unwrap();
    symlink("..", directory.0.join("up")).unwrap();
    let mut guest = shared(&directory, true);
    for name in ["away", "up"] {
        let link = guest.walk(TOP, &format!("share/{name}")).unwrap();
        for inside in ["secret", "etc"] {
            let refused = guest.find(link, inside).unwrap_err();
            assert!(EACCES_OR_LOOP.contains(&refused) || refused == EXDEV, "{name}/{inside}: {refused}");
        }
        assert!(guest.list(link).is_err());
        assert!(guest.create(link, "new", 0o644).is_err());
    }
    let file = guest.walk(TOP, "share/file").unwrap();
    assert!(guest.read(file).is_err());
    assert_eq!(std::fs::read_dir(&outside.0).unwrap().count(), 1);
}

#[test]
fn a_directory_that_moves_away_is_not_followed() {
    let (directory, outside) = (Directory::new(), Directory::new());
    std::fs::create_dir(directory.0.join("d")).unwrap();
    std::fs::write(directory.0.join("d/f"), "f").unwrap();
    let mut guest = shared(&directory, true);
    let inside = guest.walk(TOP, "share/d").unwrap();
    let file = guest.find(inside, "f").unwrap();
    assert_eq!(guest.read(file).unwrap(), b"f");
    std::fs::rename(directory.0.join("d"), outside.0.join("d")).unwrap();
    assert_eq!(guest.find(inside, "f"), Err(ENOENT));
    assert_eq!(guest.read(file), Err(ENOENT));
    // Replaced by a link, it is none of a directory.
    symlink(&outside.0, directory.0.join("d")).unwrap();
    assert!(guest.find(inside, "d").is_err());
}

#[test]
fn a_shared_directory_can_be_changed_only_if_that_was_asked_for() {
    let directory = Directory::new();
    std::fs::write(directory.0.join("f"), "old").unwrap();
    let mut guest = shared(&directory, false);
    let share = guest.find(TOP, "share").unwrap();
    let file = guest.find(share, "f").unwrap();
    assert_eq!(guest.read(file).unwrap(), b"old");
    assert_eq!(guest.open(file, O_WRONLY), Err(EROFS));
    assert_eq!(guest.create(share, "g", 0o644), Err(EROFS));
    assert_eq!(guest.ask(operation::UNLINK, share, &name_of("f")), Err(EROFS));
    let rename = [&share.to_le_bytes()[..], b"f\0g\0"].concat();
    assert_eq!(guest.ask(operation::RENAME, share, &rename), Err(EROFS));
    let mut guest = shared(&directory, true);
    let share = guest.find(TOP, "share").unwrap();
    // A file that only its creation may open for writing.
    let (made, handle) = guest.create(share, "g", 0o444).unwrap();
    guest.write(made, handle, b"new").unwrap();
    assert_eq!(std::fs::read(directory.0.join("g")).unwrap(), b"new");
    assert_eq!(std::fs::metadata(directory.0.join("g")).unwrap().mode() & 0o777, 0o444);
    // A node goes on under its new name, and without any.
    let rename = [&share.to_le_bytes()[..], b"g\0h\0"].concat();
    guest.ask(operation::RENAME, share, &rename).unwrap();
    assert_eq!(guest.find(share, "g"), Err(ENOENT));
    assert_eq!(guest.read(made).unwrap(), b"new");
    guest.ask(operation::UNLINK, share, &name_of("h")).unwrap();
    assert_eq!(guest.read(made).unwrap(), b"new");
    assert!(!directory.0.join("h").exists());
}

#[test]
fn devices_are_neither_made_nor_opened() {
    let directory = Directory::new();
    let mut guest = shared(&directory, true);
    let share = guest.find(TOP, "share").unwrap();
    let mut body: Vec<u8> =
        [Kind::CharacterDevice as u32 | 0o666, 0x0103, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    body.extend(name_of("null"));
    assert_eq!(guest.ask(operation::MAKE_NODE, share, &body), Err(-1));
    let mut body: Vec<u8> = [Kind::Pipe as u32 | 0o600, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    body.extend(name_of("pipe"));
    guest.ask(operation::MAKE_NODE, share, &body).unwrap();
    let pipe = guest.find(share, "pipe").unwrap();
    // It would wait for ever.
    assert_eq!(guest.open(pipe, 0), Err(-1));
}

#[test]
fn the_same_files_have_the_same_hash() {
    let directory = Directory::new();
    let file = directory.0.join("f");
    std::fs::write(&file, "text").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("f", directory.0.join("l")).unwrap();
    let hash = |path: &Path| {
        let mut tree = Packed::new();
        tree.add(path).unwrap();
        tree.hash().unwrap()
    };
    let first = hash(&directory.0);
    assert_eq!(first, hash(&directory.0));
    std::fs::write(&file, "other").unwrap();
    assert_ne!(first, hash(&directory.0));
}

#[test]
fn a_path_over_links_is_packed_with_the_links() {
    let directory = Directory::new();
    std::fs::create_dir(directory.0.join("real")).unwrap();
    std::fs::write(directory.0.join("real/f"), "text").unwrap();
    symlink("real", directory.0.join("link")).unwrap();
    symlink("loop", directory.0.join("loop")).unwrap();
    let mut tree = Packed::new();
    let Added::Files(added) = tree.add(&directory.0.join("link/f")).unwrap() else { panic!("nothing is shared") };
    assert_eq!(added, [directory.0.join("real/f")]);
    assert!(tree.has(&directory.0.join("link/f")) && tree.has(&directory.0.join("real/f")));
    assert!(tree.add(&directory.0.join("loop/f")).is_err());
    assert!(tree.add(&directory.0.join("absent")).is_err());
}

/// Files of a host that others change while a guest runs.
#[test]
fn a_file_that_takes_the_place_of_a_packed_one_is_not_read() {
    let directory = Directory::new();
    for sub in ["d", "other"] {
        std::fs::create_dir(directory.0.join(sub)).unwrap();
        std::fs::write(directory.0.join(sub).join("f"), sub).unwrap();
    }
    let pack = || {
        let mut tree = Packed::new();
        tree.add(&directory.0.join("d")).unwrap();
        let node = tree.walk().last().unwrap().node;
        (tree, node)
    };
    let (mut tree, node) = pack();
    assert_eq!(tree.contents(node).unwrap(), b"d");
    for link in [true, false] {
        let (mut tree, node) = pack();
        std::fs::rename(directory.0.join("d"), directory.0.join("moved")).unwrap();
        if link {
            symlink("other", directory.0.join("d")).unwrap();
            assert_eq!(tree.contents(node).unwrap_err().raw_os_error(), 40);
            std::fs::remove_file(directory.0.join("d")).unwrap();
        } else {
            std::fs::create_dir(directory.0.join("d")).unwrap();
            std::fs::write(directory.0.join("d/f"), "e").unwrap();
            assert_eq!(tree.contents(node).unwrap_err().raw_os_error(), 116);
            std::fs::remove_dir_all(directory.0.join("d")).unwrap();
        }
        std::fs::rename(directory.0.join("moved"), directory.0.join("d")).unwrap();
        assert_eq!(tree.contents(node).unwrap(), b"d");
    }
}

#[test]
fn links_of_an_added_directory_are_packed_as_links() {
    let directory = Directory::new();
    for sub in ["d/share", "d/sub", "out"] {
        std::fs::create_dir_all(directory.0.join(sub)).unwrap();
        std::fs::write(directory.0.join(sub).join("f"), "text").unwrap();
    }
    let out = directory.0.join("out/f");
    symlink(&out, directory.0.join("d/away")).unwrap();
    for (name, target) in [("d/near", "sub/f"), ("d/sub/up", "../sub/f"), ("d/none", "../absent"), ("d/s", "share/f")] {
        symlink(target, directory.0.join(name)).unwrap();
    }
    let share = directory.0.join("d/share");
    let shares = std::sync::Arc::new(crate::Shares::open([&*share].into_iter()).unwrap());
    let mut tree = Packed::beside(shares);
    let Added::Files(added) = tree.add(&directory.0.join("d")).unwrap() else { panic!("the directory is not shared") };
    assert_eq!(added, [directory.0.join("d/sub/f")]);
    assert!(tree.has(&share) && !tree.has(&share.join("f")) && !tree.has(&out));
    let left: Vec<_> = tree.leaving().map(|leaving| leaving.from.clone()).collect();
    assert_eq!(left, [directory.0.join("d/away")]);
    tree.add(&out).unwrap();
    assert_eq!(tree.leaving().count(), 0);
    assert!(matches!(tree.add(&share.join("f")), Ok(Added::Shared(crate::shares::Inside::File(..)))));
    assert!(tree.add(&share.join("absent")).is_err());
    assert!(!tree.has(&share.join("f")));
}

/// A guest can't have more and more of the host's memory by knowing names, nor by listing directories.
#[test]
fn what_a_guest_may_have_at_a_time_is_bounded() {
    let directory = Directory::new();
    std::fs::create_dir(directory.0.join("below")).unwrap();
    for name in ["a", "b", "c", "below/d"] {
        std::fs::write(directory.0.join(name), "").unwrap();
    }
    let limits = Limits { nodes: 3, open: 3, entries: 9, removed: 1 };
    let mut guest = Guest(Server::new());
    guest.0.add("share", Box::new(HostTree::open(&directory.0, true).unwrap().with_limits(limits)));
    let root = guest.find(TOP, "share").unwrap();
    let (a, below) = (guest.find(root, "a").unwrap(), guest.find(root, "below").unwrap());
    let d = guest.find(below, "d").unwrap();
    assert_eq!(guest.find(root, "b"), Err(ENFILE));
    assert_eq!(guest.create(root, "new", 0o644), Err(ENFILE));
    assert_eq!(guest.ask(operation::MAKE_DIRECTORY, root, &[&[0; 8][..], &name_of("dir")].concat()), Err(ENFILE));
    assert!(!directory.0.join("new").exists() && !directory.0.join("dir").exists());
    // The guest may look up known nodes again, and forgetting a node makes room.
    assert_eq!(guest.find(root, "a"), Ok(a));
    assert!(guest.send(operation::FORGET, a, &2u64.to_le_bytes(), 1 << 10).is_none());
    let b = guest.find(root, "b").unwrap();
    // A directory stays as long as something below it is known.
    assert!(guest.send(operation::FORGET, below, &1u64.to_le_bytes(), 1 << 10).is_none());
    assert_eq!(guest.find(root, "c"), Err(ENFILE));
    assert!(guest.send(operation::FORGET, d, &1u64.to_le_bytes(), 1 << 10).is_none());
    guest.find(root, "c").unwrap();
    let list = |guest: &mut Guest| guest.ask(operation::OPEN_DIRECTORY, root, &[0; 8]).map(|body| number(&body, 0));
    // With `.` and `..` the directory has six entries.
    let first = list(&mut guest).unwrap();
    assert_eq!(list(&mut guest), Err(ENFILE));
    let close = |handle: u64| [&handle.to_le_bytes()[..], &[0; 16]].concat();
    guest.ask(operation::RELEASE_DIRECTORY, root, &close(first)).unwrap();
    list(&mut guest).unwrap();
    guest.open(b, 0).unwrap();
    guest.open(b, 0).unwrap();
    assert_eq!(guest.open(b, 0), Err(EMFILE));
}

#[test]
fn a_tree_does_not_show_from_where_it_was_moved() {
    let moved = |from: &str, first: &str, second: &str| {
        let mut tree = Packed::new();
        tree.make_directory(Path::new("/tmp"), 0o1777).unwrap();
        for name in [first, second] {
            tree.put_bytes(&Path::new(from).join(name), 0o644, name.as_bytes()).unwrap();
        }
        tree.put_bytes(Path::new("/etc/passwd"), 0o644, b"root").unwrap();
        let tree = tree.moved(Path::new(from), Path::new("/here"), &[Path::new("/tmp")]).unwrap();
        let all: Vec<_> = tree.walk().into_iter().map(|file| (file.node, file.path, file.attributes.mode)).collect();
        assert!(tree.has(Path::new("/tmp")) && tree.has(Path::new("/here/a/b")), "{all:?}");
        assert!(!tree.has(Path::new("/home")) && !tree.has(Path::new("/tmp/x")), "{all:?}");
        all
    };
    let first = moved("/home/user/project", "a/b", "c");
    assert_eq!(first, moved("/home", "c", "a/b"));
    assert_eq!(first, moved("/tmp/x", "a/b", "c"));
    assert_eq!(first, moved("/tmp", "a/b", "c"));
    assert_eq!(first.iter().map(|(node, ..)| *node).collect::<Vec<_>>(), (1..=first.len() as u64).collect::<Vec<_>>());
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A share `share` and another one, `second`, of the same directory.
fn twice(directory: &Directory) -> Guest {
    let mut guest = shared(directory, true);
    guest.0.add("second", Box::new(HostTree::open(&directory.0, true).unwrap()));
    guest
}

#[test]
fn the_first_request_is_about_the_protocol() {
    let mut guest = packed();
    const EPROTO: i32 = -71;
    for refused in [&[7, 27, 0, 0][..], &[6, 99, 0, 0], &[7, 31, 0]] {
        assert_eq!(guest.ask(operation::INIT, 0, &words(refused)), Err(EPROTO), "{refused:?}");
        assert!(!guest.0.mounted());
    }
    // Asynchronous reads, large writes, invalidation by time and size, parallel lookups, the largest transfer, cached links.
    let features = 1 | 1 << 5 | 1 << 12 | 1 << 18 | 1 << 22 | 1 << 23;
    let mut answer = words(&[7, 31, 4096, features, 48 << 16 | 64, 1 << 20, 1, 256, 0]);
    answer.resize(64, 0);
    for accepted in [[7, 31], [7, 28], [7, 99], [8, 0]] {
        let body = words(&[&accepted[..], &[4096, u32::MAX]].concat());
        assert_eq!(guest.ask(operation::INIT, 0, &body).unwrap(), answer, "{accepted:?}");
        assert!(guest.0.mounted());
        guest.ask(operation::DESTROY, 0, b"").unwrap();
        assert!(!guest.0.mounted());
    }
    let some = guest.ask(operation::INIT, 0, &words(&[7, 31, 1, 1 | 1 << 2])).unwrap();
    assert_eq!((word(&some, 8), word(&some, 12)), (1, 1));
}

#[test]
fn a_request_is_as_long_as_it_says() {
    let directory = Directory::new();
    std::fs::write(directory.0.join("f"), "text").unwrap();
    let mut guest = shared(&directory, true);
    let file = guest.walk(TOP, "share/f").unwrap();
    let request = |code: u32, length: u32, body: &[u8]| {
        let mut request = words(&[length, code, 7, 0]);
        request.extend(file.to_le_bytes());
        request.resize(40, 0);
        [&request[..], body].concat()
    };
    let status = |answer: Option<Vec<u8>>| answer.map(|answer| word(&answer, 4).cast_signed());
    for (length, expected) in [(56, 0), (100, EINVAL), (39, EINVAL), (0, EINVAL), (40, 0)] {
        let answer = guest.0.answer(&request(operation::GET_ATTRIBUTES, length, &[0; 16]), 1 << 10);
        assert_eq!(status(answer), Some(expected), "{length}");
    }
    // What is no request is not obeyed.
    let forget = 1u64.to_le_bytes();
    let batch = [&words(&[1, 0])[..], &file.to_le_bytes(), &1u64.to_le_bytes()].concat();
    for (code, body) in [(operation::FORGET, &forget[..]), (operation::BATCH_FORGET, &batch)] {
        assert_eq!(status(guest.0.answer(&request(code, 100, body), 1 << 10)), Some(ENOSYS));
        assert_eq!(guest.read(file).unwrap(), b"text");
    }
    assert_eq!(guest.0.answer(&request(operation::INTERRUPT, 48, &[0; 8]), 1 << 10), None);
    assert_eq!(guest.0.answer(&request(operation::BATCH_FORGET, 64, &batch), 1 << 10), None);
    assert_eq!(guest.read(file), Err(-116), "the guest has forgotten it");
    assert_eq!(guest.0.answer(&request(operation::GET_ATTRIBUTES, 56, &[0; 16]), 15), None);
}

#[test]
fn the_top_has_a_directory_for_each_tree() {
    let links = |guest: &mut Guest| word(&guest.ask(operation::GET_ATTRIBUTES, TOP, &[0; 16]).unwrap(), 80);
    assert_eq!([links(&mut Guest(Server::new())), links(&mut packed())], [2, 3]);
    let directory = Directory::new();
    let mut guest = twice(&directory);
    let top = guest.ask(operation::GET_ATTRIBUTES, TOP, &[0; 16]).unwrap();
    // Valid for a second; inode 1, mode, and links: its own two and one for each tree.
    assert_eq!((number(&top, 0), number(&top, 16), word(&top, 76), word(&top, 80)), (1, 1, 0o040_755, 4));
    assert_eq!(guest.list(TOP).unwrap(), ["share", "second"]);
    let (first, second) = (guest.find(TOP, "share").unwrap(), guest.find(TOP, "second").unwrap());
    assert_eq!((first, second), (1 << 48, 2 << 48));
    let room = |guest: &mut Guest, node| guest.ask(operation::STATFS, node, b"").unwrap();
    let (top, share) = (room(&mut guest, TOP), room(&mut guest, first));
    assert_eq!((number(&top, 0), word(&top, 40), word(&top, 44), top.len()), (0, 4096, 255, 80));
    // df(1) divides by the size of a block.
    let mut read_only = packed();
    let root = read_only.find(TOP, "root").unwrap();
    assert_eq!(word(&room(&mut read_only, root), 40), 4096);
    let host = rustix::fs::statvfs(&directory.0).unwrap();
    assert_eq!((number(&share, 0), u64::from(word(&share, 40))), (host.f_blocks, host.f_frsize));
    // As many entries are returned as there is room for.
    let list = |guest: &mut Guest, room: u32| {
        let mut body = [0u64.to_le_bytes(), 0u64.to_le_bytes()].concat();
        body.extend(room.to_le_bytes());
        body.resize(40, 0);
        guest.ask(operation::READ_DIRECTORY, TOP, &body).unwrap().len()
    };
    assert_eq!([31, 32, 63, 64, 1000].map(|room| list(&mut guest, room)), [0, 32, 32, 64, 64]);
    // The absence of a name is an answer that has no file.
    let none = guest.ask(operation::LOOK_UP, first, &name_of("none")).unwrap();
    assert_eq!((number(&none, 0), number(&none, 16), number(&none, 40), word(&none, 100)), (0, 1, 0, 0));
    // Only packed directories can be cached.
    let flags = |guest: &mut Guest, node| word(&guest.ask(operation::OPEN_DIRECTORY, node, &[0; 8]).unwrap(), 8);
    let mut packed = packed();
    let root = packed.find(TOP, "root").unwrap();
    assert_eq!((flags(&mut guest, first), flags(&mut packed, root)), (0, 2 | 8));
}

#[test]
fn attributes_are_set_as_the_request_says() {
    let directory = Directory::new();
    let path = directory.0.join("f");
    std::fs::write(&path, "a long text").unwrap();
    let mut guest = shared(&directory, true);
    let file = guest.walk(TOP, "share/f").unwrap();
    let handle = guest.open(file, O_WRONLY).unwrap();
    let set = |guest: &mut Guest, valid: u32, handle: u64| {
        let mut body = words(&[valid, 0]);
        body.extend([handle, 4, 0, 5, 6, 0].iter().flat_map(|number: &u64| number.to_le_bytes()));
        body.extend(words(&[7, 8, 0, 0o100_640, 0, 4321, 4322, 0]));
        guest.ask(operation::SET_ATTRIBUTES, file, &body)
    };
    let host = || std::fs::metadata(&path).unwrap();
    let before = host();
    set(&mut guest, 0, 0).unwrap();
    assert_eq!((host().mode(), host().size(), host().uid()), (before.mode(), before.size(), before.uid()));
    set(&mut guest, 1, 0).unwrap();
    assert_eq!((host().mode(), host().size(), host().mtime()), (0o100_640, before.size(), before.mtime()));
    set(&mut guest, 1 << 4, 0).unwrap();
    assert_eq!((host().atime(), host().atime_nsec(), host().mtime()), (5, 7, before.mtime()));
    set(&mut guest, 1 << 5, 0).unwrap();
    assert_eq!((host().mtime(), host().mtime_nsec()), (6, 8));
    set(&mut guest, 1 << 7 | 1 << 8 | 1 << 4 | 1 << 5, 0).unwrap();
    assert!(host().atime() > 6 && host().mtime() > 6);
    // By the open file, then by the node.
    let reading = guest.open(file, 0).unwrap();
    assert_eq!(set(&mut guest, 1 << 3 | 1 << 6, reading), Err(EINVAL));
    set(&mut guest, 1 << 3, reading).unwrap();
    assert_eq!(host().size(), 4);
    if before.uid() == 0 {
        set(&mut guest, 1 << 1, 0).unwrap();
        assert_eq!((host().uid(), host().gid()), (4321, before.gid()));
        set(&mut guest, 1 << 2, 0).unwrap();
        assert_eq!(host().gid(), 4322);
    }
    assert_eq!(guest.ask(operation::SET_ATTRIBUTES, file, &words(&[1, 0])), Err(EINVAL));
    // Attributes of the open file, if the first bit says so.
    std::fs::write(directory.0.join("g"), "other").unwrap();
    std::fs::rename(directory.0.join("g"), &path).unwrap();
    let size = |guest: &mut Guest, flags: u32| {
        let body = [&words(&[flags, 0])[..], &handle.to_le_bytes()].concat();
        number(&guest.ask(operation::GET_ATTRIBUTES, file, &body).unwrap(), 24)
    };
    assert_eq!([0, 1, 2, 3].map(|flags| size(&mut guest, flags)), [5, 4, 5, 4]);
}

#[test]
fn requests_make_files_with_the_guests_umask() {
    let directory = Directory::new();
    let mut guest = twice(&directory);
    let (share, second) = (guest.find(TOP, "share").unwrap(), guest.find(TOP, "second").unwrap());
    let mode = |name: &str| std::fs::symlink_metadata(directory.0.join(name)).unwrap().mode();
    let named = |numbers: &[u32], name: &str| [words(numbers), name_of(name)].concat();
    // Of the umask only the permissions count.
    guest.ask(operation::MAKE_DIRECTORY, share, &named(&[0o171_776, 0o7027], "d")).unwrap();
    assert_eq!(mode("d"), 0o041_750);
    guest.ask(operation::MAKE_NODE, share, &named(&[0o101_776, 0, 0o7027, 0], "n")).unwrap();
    assert_eq!(mode("n"), 0o101_750);
    let body = named(&[O_WRONLY, 0o101_776, 0o7027, 0], "c");
    guest.ask(operation::CREATE, share, &body).unwrap();
    assert_eq!(mode("c"), 0o101_750);
    guest.ask(operation::SYMBOLIC_LINK, share, b"l\0target\0").unwrap();
    assert_eq!(std::fs::read_link(directory.0.join("l")).unwrap(), Path::new("target"));
    assert_eq!(guest.ask(operation::SYMBOLIC_LINK, share, b"m\0"), Err(EINVAL));
    // Names stay in their tree.
    let file = guest.find(share, "n").unwrap();
    let link = |name: &str| [&file.to_le_bytes()[..], &name_of(name)].concat();
    guest.ask(operation::LINK, share, &link("again")).unwrap();
    assert_eq!(std::fs::metadata(directory.0.join("again")).unwrap().nlink(), 2);
    assert_eq!(guest.ask(operation::LINK, second, &link("third")), Err(EXDEV));
    assert_eq!(guest.ask(operation::LINK, TOP, &link("third")), Err(EXDEV));
    let rename = [&second.to_le_bytes()[..], b"n\0o\0"].concat();
    assert_eq!(guest.ask(operation::RENAME, share, &rename), Err(EXDEV));
    let rename = [&TOP.to_le_bytes()[..], b"n\0o\0"].concat();
    assert_eq!(guest.ask(operation::RENAME, share, &rename), Err(EROFS));
}
