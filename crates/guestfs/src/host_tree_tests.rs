use crate::attributes::{Kind, Time};
use crate::host_tree::HostTree;
use crate::testing::{Directory, opens};
use crate::tree::{Change, New, ROOT, Tree, When};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

fn tree(directory: &Directory) -> HostTree {
    HostTree::open(&directory.0, true).unwrap()
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
