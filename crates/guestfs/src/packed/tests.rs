use super::*;
use crate::testing::Directory;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Returns the mode of each file in a tree, by its path.
fn modes(tree: &Packed) -> Vec<(String, u32)> {
    let of = |file: Walked| (String::from_utf8(file.path).unwrap(), file.attributes.mode);
    tree.walk().into_iter().map(of).collect()
}

/// Returns the node of a path in a tree.
#[track_caller]
fn node(tree: &Packed, path: &Path) -> u64 {
    let path = path.strip_prefix("/").unwrap().as_os_str().as_bytes();
    tree.walk().into_iter().find(|file| file.path == path).unwrap().node
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_file_has_its_kind_and_the_permissions_that_were_given() {
    let mut tree = Packed::new();
    // Bits above the permissions are not those of another kind.
    tree.make_directory(Path::new("/a/b"), 0o123_751).unwrap();
    tree.put_bytes(Path::new("/a/b/f"), 0o124_640, b"").unwrap();
    tree.put_bytes(Path::new("/c/g"), 0o7777, b"").unwrap();
    tree.put_link(Path::new("/c/l"), b"g").unwrap();
    let expected = [
        ("a", 0o040_755),
        ("a/b", 0o043_751),
        ("a/b/f", 0o104_640),
        ("c", 0o040_755),
        ("c/g", 0o107_777),
        ("c/l", 0o120_777),
    ];
    assert_eq!(modes(&tree), expected.map(|(path, mode)| (path.to_owned(), mode)));
    assert_eq!(tree.attributes(ROOT, None).unwrap().mode, 0o040_755);
    // A directory that is made again has the permissions of the last time, and its files.
    tree.make_directory(Path::new("/a/b"), 0o700).unwrap();
    assert_eq!(modes(&tree)[1..3], [("a/b".to_owned(), 0o040_700), ("a/b/f".to_owned(), 0o104_640)]);
}

#[test]
fn a_directory_is_packed_with_or_without_its_contents() {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    std::fs::create_dir_all(at("d/sub")).unwrap();
    for (name, mode) in [("d/f", 0o640), ("d/sub/g", 0o755)] {
        std::fs::write(at(name), "text").unwrap();
        set_mode(&at(name), mode);
    }
    symlink("sub", at("d/link")).unwrap();
    set_mode(&at("d"), 0o2750);
    set_mode(&at("d/sub"), 0o700);
    let packed = |tree: Packed| {
        let top = format!("{}/", directory.0.strip_prefix("/").unwrap().display());
        let below = |(path, mode): (String, u32)| Some((path.strip_prefix(&top)?.to_owned(), mode));
        modes(&tree).into_iter().filter_map(below).collect::<Vec<_>>()
    };
    let all =
        [("d", 0o042_750), ("d/f", 0o100_640), ("d/link", 0o120_777), ("d/sub", 0o040_700), ("d/sub/g", 0o100_755)];
    let all = all.map(|(path, mode)| (path.to_owned(), mode));
    let mut whole = Packed::new();
    let Added::Files(added) = whole.add(&at("d")).unwrap() else { panic!("nothing is shared") };
    assert_eq!((added, packed(whole)), (vec![at("d/f"), at("d/sub/g")], all.to_vec()));
    let mut alone = Packed::new();
    alone.add_alone(&at("d")).unwrap();
    assert_eq!(packed(alone), all[..1]);
    let mut file = Packed::new();
    file.add_alone(&at("d/link/g")).unwrap();
    assert_eq!(packed(file), [&all[..1], &all[2..]].concat());
    assert!(Packed::new().add_alone(&at("none")).is_err());
}

#[test]
fn a_node_has_the_attributes_that_stat_shows() {
    let directory = Directory::new();
    let (file, time) = (directory.0.join("f"), Duration::new(1_700_000_000, 123_456_789));
    std::fs::write(&file, [b'x'; 1025]).unwrap();
    File::options().write(true).open(&file).unwrap().set_modified(std::time::UNIX_EPOCH + time).unwrap();
    let mut tree = Packed::new();
    tree.add(&directory.0).unwrap();
    tree.make_directory(Path::new("/top/a"), 0o755).unwrap();
    tree.make_directory(Path::new("/top/b"), 0o755).unwrap();
    tree.put_bytes(Path::new("/top/f"), 0o644, b"text").unwrap();
    tree.put_link(Path::new("/top/l"), b"f").unwrap();
    let metadata = std::fs::metadata(&file).unwrap();
    let of = |path: &Path| tree.attributes_of(node(&tree, path)).unwrap();
    let host = of(&file);
    assert_eq!((host.size, host.blocks, host.links), (1025, 3, 1));
    assert_eq!((host.uid, host.gid, host.device), (metadata.uid(), metadata.gid(), 0));
    let modified = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };
    assert_eq!([host.accessed, host.modified, host.changed], [modified; 3]);
    // A directory has a name, its own, and one in each directory in it; find(1) relies on that.
    let links = ["/top", "/top/a", "/top/f", "/top/l"].map(|path| of(Path::new(path)).links);
    assert_eq!(links, [4, 2, 1, 1]);
    let inodes: std::collections::BTreeSet<u64> =
        tree.walk().iter().map(|file| file.attributes.inode).chain([of_root(&tree)]).collect();
    assert!(inodes.len() == tree.walk().len() + 1 && !inodes.contains(&0), "each file has a number of its own");
}

#[test]
fn files_of_one_user_are_given_to_another_below_a_directory_only() {
    let directory = Directory::new();
    for name in ["here", "beside"] {
        std::fs::create_dir(directory.0.join(name)).unwrap();
        std::fs::write(directory.0.join(name).join("f"), "text").unwrap();
    }
    let mut tree = Packed::new();
    tree.add(&directory.0).unwrap();
    let own = std::fs::metadata(directory.0.join("here/f")).unwrap().uid();
    let owner = |tree: &Packed, name: &str| {
        let attributes = tree.attributes_of(node(tree, &directory.0.join(name))).unwrap();
        (attributes.uid, attributes.gid)
    };
    let before = owner(&tree, "beside/f");
    tree.give(&directory.0.join("here"), own + 1, (7, 8));
    assert_eq!(owner(&tree, "here/f"), before, "the file of another user");
    tree.give(&directory.0.join("here"), own, (7, 8));
    assert_eq!((owner(&tree, "here/f"), owner(&tree, "beside/f")), ((7, 8), before));
}

fn of_root(tree: &Packed) -> u64 {
    tree.attributes_of(ROOT).unwrap().inode
}

#[test]
fn files_are_read_from_where_it_is_said_up_to_the_size_that_was_packed() {
    let directory = Directory::new();
    let path = directory.0.join("f");
    std::fs::write(&path, "0123456789").unwrap();
    let mut tree = Packed::new();
    tree.add(&path).unwrap();
    tree.put_bytes(Path::new("/bytes"), 0o644, b"0123456789").unwrap();
    tree.put_link(Path::new("/link"), b"bytes").unwrap();
    for path in [&*path, Path::new("/bytes")] {
        let node = node(&tree, path);
        let mut read = |offset: u64, size: usize| String::from_utf8(tree.read(node, 0, offset, size).unwrap()).unwrap();
        assert_eq!([read(0, 100), read(3, 4), read(9, 4)], ["0123456789", "3456", "9"], "{}", path.display());
        assert_eq!([read(10, 4), read(11, 4), read(u64::MAX, 4), read(3, 0)], [""; 4], "{}", path.display());
    }
    assert_eq!(tree.read(node(&tree, &directory.0), 0, 0, 1), Err(Errno::ISDIR));
    assert_eq!(tree.read(node(&tree, Path::new("/link")), 0, 0, 1), Err(Errno::INVAL));
    assert_eq!(tree.read_link(node(&tree, Path::new("/bytes"))), Err(Errno::INVAL));
    assert_eq!((tree.read(1 << 40, 0, 0, 1), tree.contents(1 << 40)), (Err(Errno::STALE), Err(Errno::STALE)));
    // The guest keeps what it has read, so that a file neither grows nor has other bytes at its end.
    let node = node(&tree, &path);
    std::fs::write(&path, "0123456789 and more").unwrap();
    assert_eq!(tree.contents(node).unwrap(), b"0123456789");
    std::fs::write(&path, "0123456").unwrap();
    assert_eq!(
        (tree.contents(node).unwrap(), tree.read(node, 0, 5, 5).unwrap()),
        (b"0123456".to_vec(), b"56".to_vec())
    );
}

#[test]
fn as_many_files_of_the_host_are_open_as_may_be_and_those_that_were_read_last() {
    let directory = Directory::new();
    let path = |number: usize| directory.0.join(format!("f{number}"));
    let mut tree = Packed::new();
    for number in 0..=MOST_OPEN {
        std::fs::write(path(number), number.to_string()).unwrap();
        tree.add(&path(number)).unwrap();
    }
    let nodes: Vec<u64> = (0..=MOST_OPEN).map(|number| node(&tree, &path(number))).collect();
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(|to| to.starts_with(&directory.0)).count()
    };
    let mut read = |number: usize| tree.contents(nodes[number]).map(|bytes| String::from_utf8(bytes).unwrap());
    for number in (0..MOST_OPEN).chain([0]) {
        assert_eq!(read(number), Ok(number.to_string()));
    }
    assert_eq!(open(), MOST_OPEN);
    // The next file takes the place of the one that was not read for the longest time.
    assert_eq!((read(MOST_OPEN), open()), (Ok(MOST_OPEN.to_string()), MOST_OPEN));
    for number in 0..3 {
        std::fs::remove_file(path(number)).unwrap();
    }
    assert_eq!((read(0), read(1), read(2)), (Ok("0".to_owned()), Err(Errno::NOENT), Ok("2".to_owned())));
}

#[test]
fn the_hash_is_of_names_attributes_and_contents() {
    let hash = |path: &str, mode: u32, text: &[u8], target: &[u8]| {
        let mut tree = Packed::new();
        tree.put_bytes(Path::new(path), mode, text).unwrap();
        tree.put_link(Path::new("/link"), target).unwrap();
        tree.hash().unwrap()
    };
    let first = hash("/d/f", 0o644, b"text", b"here");
    assert_eq!(first, hash("/d/f", 0o644, b"text", b"here"));
    let others = [
        hash("/d/g", 0o644, b"text", b"here"),
        hash("/e/f", 0o644, b"text", b"here"),
        hash("/d/f", 0o600, b"text", b"here"),
        hash("/d/f", 0o644, b"next", b"here"),
        hash("/d/f", 0o644, b"text", b"hare"),
    ];
    for (number, other) in others.iter().enumerate() {
        assert!(*other != first && !others[..number].contains(other), "{number}");
    }
}

#[test]
fn a_name_that_leads_upwards_has_its_directories_in_the_tree() {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    std::fs::create_dir_all(at("c")).unwrap();
    std::fs::write(at("a/f"), "f").unwrap();
    std::fs::write(at("f"), "another").unwrap();
    symlink("../a/b", at("c/link")).unwrap();
    for name in ["a/b/../f", "c/link/../f", "c/../a/f"] {
        let mut tree = Packed::new();
        tree.add(&at(name)).unwrap();
        // Each directory on the way is looked up by the guest's kernel.
        let parent = at(name).parent().unwrap().parent().unwrap().to_path_buf();
        assert!(tree.has(&at(name)) && tree.has(&at("a/f")) && tree.has(&parent) && !tree.has(&at("f")), "{name}");
    }
    assert!(Packed::new().add(&at("a/f/../f")).is_err(), "a file has no parent");
    // A name whose text leads out of a shared directory means a file outside.
    let shares = Arc::new(Shares::open([&*at("c")].into_iter()).unwrap());
    let mut tree = Packed::beside(shares);
    assert!(matches!(tree.add(&at("c/x/../../a/f")), Ok(Added::Files(files)) if files == [at("a/f")]));
    assert!(tree.has(&at("a/f")));
}

#[test]
fn names_over_links_are_those_of_the_tree() {
    let mut tree = Packed::new();
    tree.put_bytes(Path::new("/real/sub/f"), 0o644, b"text").unwrap();
    for (name, target) in [
        ("/relative", "real/./sub"),
        ("/real/up", "../relative"),
        ("/real/sub/absolute", "/real//up"),
        ("/above", "../../real/sub"),
        ("/circle", "circle"),
    ] {
        tree.put_link(Path::new(name), target.as_bytes()).unwrap();
    }
    for name in ["/relative/f", "/real/up/f", "/real/sub/absolute/f", "/above/f", "/relative/../sub/f", "relative/f"] {
        assert!(tree.has(Path::new(name)), "{name}");
    }
    for name in ["/relative/g", "/circle", "/circle/f", "/real/sub/f/g", "/f"] {
        assert!(!tree.has(Path::new(name)), "{name}");
    }
    // A file with such a name is put where the links lead.
    tree.put_bytes(Path::new("/real/sub/absolute/new"), 0o644, b"").unwrap();
    assert_eq!(node(&tree, Path::new("/real/sub/new")), tree.nodes.len() as u64 - 1);
    assert!(matches!(tree.put_bytes(Path::new("/circle/f"), 0o644, b""), Err(PackError::Links(_))));
    assert!(matches!(tree.put_bytes(Path::new("/real/sub/f/g"), 0o644, b""), Err(PackError::NoDirectory(_))));
    assert!(matches!(tree.put_bytes(Path::new("/"), 0o644, b""), Err(PackError::NoDirectory(_))));
    // A link does not take the place of a file, nor a file that of what is there under its real name.
    tree.put_link(Path::new("/real/sub/f"), b"elsewhere").unwrap();
    assert_eq!(tree.contents(node(&tree, Path::new("/real/sub/f"))).unwrap(), b"text");
}

#[test]
fn forty_links_lead_to_a_file() {
    let mut tree = Packed::new();
    tree.put_bytes(Path::new("/0"), 0o644, b"").unwrap();
    // The names that links have do not exist when the links are put there.
    for number in (1..=MOST_LINKS + 1).rev() {
        tree.put_link(&Path::new("/").join(number.to_string()), (number - 1).to_string().as_bytes()).unwrap();
    }
    let has = |number: usize| tree.has(&Path::new("/").join(number.to_string()));
    assert_eq!((has(MOST_LINKS), has(MOST_LINKS + 1)), (true, false));
}

#[test]
fn paths_in_files_say_what_a_program_may_look_for() {
    let found = |text: &str| paths_below(text.as_bytes(), &["/usr/local".into(), "/opt/x".into()]);
    let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect();
    let text = "/usr/local/etc/a.conf\0PATH=/usr/local/bin/:/usr/bin \"/opt/x\" /opt/xy a/usr/local/b $X/opt/x";
    assert_eq!(found(text), paths(&["/opt/x", "/usr/local/bin", "/usr/local/etc/a.conf"]));
    let directory = std::env::temp_dir().join(format!("tollgate-paths-{}", std::process::id()));
    std::fs::write(&directory, "x=/opt/x/y;").unwrap();
    let mut tree = Packed::new();
    tree.add(&directory).unwrap();
    std::fs::remove_file(&directory).unwrap();
    assert_eq!(tree.paths_below(&["/opt/x".into()]), paths(&[]), "a file that is gone names nothing");
    std::fs::write(&directory, "x=/opt/x/y;").unwrap();
    let mut tree = Packed::new();
    tree.add(&directory).unwrap();
    assert_eq!(tree.paths_below(&["/opt/x".into()]), paths(&["/opt/x/y"]));
    std::fs::remove_file(&directory).unwrap();
}

#[test]
fn what_a_guest_looks_for_in_vain_is_remembered_once_and_the_latest_comes_first() {
    let mut tree = Packed::new();
    tree.put_bytes(Path::new("/usr/lib/file"), 0o644, b"").unwrap();
    // The guest has a copy.
    let mut served = tree.clone();
    let lib = node(&tree, Path::new("/usr/lib"));
    for (directory, name) in [(ROOT, "sbin"), (lib, "gcc"), (lib, "file"), (lib, "gcc"), (lib, "python")] {
        assert_eq!(served.look_up(directory, name.as_bytes()).is_ok(), name == "file");
    }
    assert_eq!(tree.missed(), ["/usr/lib/python", "/usr/lib/gcc", "/sbin"].map(PathBuf::from));
    assert!(Packed::new().missed().is_empty());
}

#[test]
fn files_that_are_no_longer_what_was_packed_are_known() {
    let directory = Directory::new();
    let path = |name: &str| directory.0.join(name);
    let names = ["kept", "written", "replaced", "removed", "renamed over"];
    names.iter().for_each(|name| std::fs::write(path(name), "0123456789").unwrap());
    let mut tree = Packed::new();
    tree.add(&directory.0).unwrap();
    tree.put_bytes(Path::new("/bytes"), 0o644, b"x").unwrap();
    assert_eq!(tree.changed(), [] as [PathBuf; 0]);
    let later = std::time::SystemTime::now() + Duration::from_secs(1);
    std::fs::write(path("written"), "9876543210").unwrap();
    std::fs::File::options().write(true).open(path("written")).unwrap().set_modified(later).unwrap();
    std::fs::write(path("new"), "0123456789").unwrap();
    std::fs::rename(path("new"), path("replaced")).unwrap();
    std::fs::remove_file(path("removed")).unwrap();
    std::fs::rename(path("renamed over"), path("renamed")).unwrap();
    // Permissions and further names leave the contents.
    set_mode(&path("kept"), 0o600);
    std::fs::hard_link(path("kept"), path("another")).unwrap();
    let mut changed = tree.changed();
    changed.sort();
    assert_eq!(changed, ["removed", "renamed over", "replaced", "written"].map(path));
}
