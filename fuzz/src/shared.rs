//! Two guests with servers of their own for one directory of the host, and a program on the host that changes the directory between the requests and,
//! in a thread, during them.

use arbitrary::{Result, Unstructured};
use guestfs::Time;
use guestfs::host_tree::{HostTree, Limits};
use guestfs::tree::{Change, New, ROOT, Tree, When};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, fchmod, linkat, mkdirat, openat2, renameat, symlinkat, unlinkat,
};
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

const STEPS: usize = 100;
/// Contents that no answer may hold.
const SECRET: &[u8] = b"a secret of the host";
const LIMITS: Limits = Limits { nodes: 30, open: 10, entries: 60, removed: 3 };
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "out"];
/// Largest size and offset, so that no input fills the host's memory.
const LARGEST: u64 = 4096;

/// Directories of this process.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let base = if PathBuf::from("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    base.join(format!("tollgate-fuzz-shared-{}", std::process::id()))
});

fn fresh() -> std::io::Result<()> {
    let place = &*PLACE;
    let _ = fs::remove_dir_all(place);
    for directory in ["shared/a/b", "shared/c/d", "outside/d"] {
        fs::create_dir_all(place.join(directory))?;
    }
    fs::write(place.join("outside/secret"), SECRET)?;
    fs::set_permissions(place.join("outside/secret"), Permissions::from_mode(0o640))?;
    fs::write(place.join("shared/a/e"), "contents")?;
    symlink(place.join("outside"), place.join("shared/out"))?;
    symlink("../../outside/secret", place.join("shared/a/out"))
}

/// A guest: its server, and the numbers that it knows.
struct Guest {
    tree: HostTree,
    nodes: Vec<u64>,
    handles: Vec<u64>,
}

impl Guest {
    fn new() -> Self {
        let tree = HostTree::open(&PLACE.join("shared"), true).expect("it is there").with_limits(LIMITS);
        Self { tree, nodes: vec![ROOT], handles: vec![] }
    }

    fn node(&self, choice: u8) -> u64 {
        self.nodes[usize::from(choice) % self.nodes.len()]
    }

    fn handle(&self, choice: u8) -> u64 {
        self.handles.get(usize::from(choice) % self.handles.len().max(1)).copied().unwrap_or(u64::from(choice))
    }

    fn knows(&mut self, node: u64) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    /// Makes one request. Most fail, which does not matter.
    fn ask(&mut self, [code, first, second, value]: [u8; 4]) {
        let (node, other) = (self.node(first), self.node(second));
        let handle = self.handle(first);
        let name = NAMES[usize::from(value) % NAMES.len()].as_bytes();
        let other_name = NAMES[usize::from(value >> 4) % NAMES.len()].as_bytes();
        let number = u64::from(value) * 16 % LARGEST;
        let mode = u32::from(second) << 4;
        let found = match code % 20 {
            0..=3 => self.tree.look_up(node, name).ok(),
            4 => self.tree.make(node, name, &New::Directory(mode)).ok(),
            5 => self.tree.make(node, name, &New::Node(mode | [0o100_000, 0o010_000][usize::from(value & 1)])).ok(),
            6 => self.tree.make(node, name, &New::Link(b"../outside/secret".to_vec())).ok(),
            7 => self.tree.make(node, name, &New::Name(other)).ok(),
            8 => self.tree.create(node, name, mode, u32::from(value)).ok().map(|(found, handle)| {
                self.handles.push(handle);
                found
            }),
            code => {
                self.act(code, [node, other, handle], [name, other_name], number);
                None
            }
        };
        if let Some(found) = found {
            self.knows(found.node);
        }
    }

    fn act(&mut self, code: u8, [node, other, handle]: [u64; 3], [name, other_name]: [&[u8]; 2], number: u64) {
        let tree = &mut self.tree;
        let _ = match code {
            9 => tree.open(node, number as u32).map(|handle| self.handles.push(handle)),
            10 => tree.open_directory(node).map(|handle| self.handles.push(handle)),
            11 => tree.read(node, handle, number, LARGEST as usize).map(|bytes| check(&bytes)),
            12 => tree.write(handle, number, b"written by a guest").map(drop),
            13 => tree.list(node, handle, number % 4, &mut |entry| !entry.name.contains(&b'/')),
            14 => {
                let time = Some(When::At(Time { seconds: 1, nanoseconds: 1 }));
                let all = Change {
                    mode: Some(number as u32),
                    size: Some(number),
                    accessed: time,
                    modified: time,
                    ..Change::default()
                };
                let one = [
                    Change { size: None, ..all },
                    Change { mode: None, ..all },
                    Change { size: None, mode: None, ..all },
                    all,
                ];
                tree.change(node, Some(handle), &one[number as usize / 16 % 4]).map(drop)
            }
            15 => tree.remove(node, name, number & 16 != 0),
            16 => tree.rename((node, name), (other, other_name), [0, 0, 1, 2][number as usize / 16 % 4]),
            17 => {
                tree.forget(node, number % 3);
                Ok(())
            }
            18 => {
                tree.close(handle);
                self.handles.retain(|known| *known != handle);
                Ok(())
            }
            _ => tree.read_link(node).map(drop).and(tree.attributes(node, Some(handle)).map(drop)),
        };
    }
}

fn check(bytes: &[u8]) {
    assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET), "what is outside is not read");
}

/// A name in a directory below the shared one. The directory is opened without links, so that the host's changes stay where they belong.
fn name(choice: u8) -> rustix::io::Result<(OwnedFd, &'static str)> {
    let (first, second) = (NAMES[usize::from(choice & 7) % 6], NAMES[usize::from(choice >> 3 & 7) % 6]);
    let shared = open(CWD, &PLACE.join("shared"))?;
    if choice & 0x40 == 0 { Ok((shared, first)) } else { Ok((open(shared, first.as_ref())?, second)) }
}

fn open(below: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(below, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Changes the directory, as a program on the host. Most changes fail, which does not matter.
fn meanwhile(code: u8, value: u8) {
    let _ = change(code, value);
}

fn change(code: u8, value: u8) -> rustix::io::Result<()> {
    let ((one, from), (two, to)) = (name(value)?, name(value.rotate_left(3) ^ code)?);
    match code % 8 {
        0..=2 => renameat(one, from, two, to),
        3 => unlinkat(&one, from, AtFlags::empty()).or_else(|_| unlinkat(&one, from, AtFlags::REMOVEDIR)),
        4 => symlinkat(PLACE.join("outside"), one, from),
        5 => mkdirat(one, from, Mode::RWXU),
        6 => renameat(CWD, PLACE.join("shared/a"), CWD, PLACE.join("away"))
            .and_then(|()| renameat(CWD, PLACE.join("away"), two, to)),
        _ => match open(&one, from.as_ref()) {
            Ok(directory) => fchmod(directory, Mode::RWXU),
            Err(_) => linkat(one, from, two, to, AtFlags::empty()),
        },
    }
}

/// Lets two guests make requests, and checks their servers after each and the host's files afterwards.
pub fn run(data: &[u8]) {
    fresh().expect("the host has room");
    // An input that is too short ends this early.
    let _ = drive(&mut Unstructured::new(data));
    let place = &*PLACE;
    let secret = place.join("outside/secret");
    assert_eq!(fs::read(&secret).ok().as_deref(), Some(SECRET), "what is outside stays as it is");
    assert_eq!(fs::metadata(&secret).ok().map(|metadata| metadata.permissions().mode()), Some(0o100_640));
    assert_eq!(fs::read_dir(place.join("outside")).map(Iterator::count).ok(), Some(2));
    assert_eq!(fs::read_dir(place.join("outside/d")).map(Iterator::count).ok(), Some(0));
    let _ = fs::remove_dir_all(place);
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let mut guests = [Guest::new(), Guest::new()];
    // The host's changes during requests, over and over. Their order against the requests is the scheduler's: a finding may not repeat.
    let during = input.arbitrary::<[[u8; 2]; 4]>()?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if during != [[0; 2]; 4] {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    during.iter().for_each(|[code, value]| meanwhile(*code, *value));
                }
            });
        }
        // A failed check must not leave the thread running.
        let _end = End(&done);
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let (who, request) = input.arbitrary::<(u8, [u8; 4])>()?;
            match who {
                200.. => meanwhile(request[0], request[1]),
                who => {
                    let guest = &mut guests[usize::from(who & 1)];
                    guest.ask(request);
                    guest.tree.check();
                }
            }
        }
        for guest in &mut guests {
            for handle in std::mem::take(&mut guest.handles) {
                guest.tree.close(handle);
            }
            for node in std::mem::take(&mut guest.nodes) {
                guest.tree.forget(node, u64::MAX);
            }
            guest.tree.check();
        }
        Ok(())
    })
}

/// Ends the thread of the host's changes when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns requests of two guests that look names up, rename and remove, with and without changes meanwhile.
pub fn seeds() -> Vec<Vec<u8>> {
    // Both guests know `a`, `a/b`, `c` and `c/d`.
    let known: Vec<u8> = (0..2)
        .flat_map(|who| [[who, 0, 0, 0, 0], [who, 0, 1, 0, 1], [who, 0, 0, 0, 2], [who, 0, 3, 0, 3]])
        .flatten()
        .collect();
    let with = |during: [u8; 8], more: &[[u8; 5]]| [&during[..], &known, &more.concat()].concat();
    let quiet = [0; 8];
    let restless = [0, 0x48, 6, 1, 2, 0x50, 5, 0x48];
    let mut seeds = vec![
        // One guest moves `a/b` away, the other one moves into it.
        with(quiet, &[[0, 16, 1, 0, 0x51], [1, 16, 0, 2, 0x40], [1, 0, 2, 0, 4], [0, 17, 2, 0, 1]]),
        with(restless, &[[0, 16, 1, 3, 0x11], [1, 16, 3, 1, 0x33], [0, 16, 3, 1, 0x11]]),
    ];
    for code in 0..20 {
        seeds.push(with(quiet, &[[0, code, 1, 2, 0x44], [1, code, 2, 1, 0x41], [200, code, 0x48, 0, 0]]));
        seeds.push(with(restless, &[[0, code, 1, 2, 0x44], [1, code, 2, 1, 0x41]]));
    }
    seeds
}
