//! Requests of a guest for files: packed ones, a directory of the host that may be read, and one that may be changed, while somebody on the host renames
//! what is in it.

use arbitrary::{Result, Unstructured};
use guestfs::host_tree::{HostTree, Limits};
use guestfs::{Packed, Server};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::LazyLock;

const STEPS: usize = 120;
/// What no answer may hold.
const SECRET: &[u8] = b"a secret of the host";
const HEADER: usize = 40;
const LIMITS: Limits = Limits { nodes: 40, open: 12, entries: 60, removed: 3 };
const NAMES: [&str; 14] =
    ["a", "b", "dir", "below", "out", "absolute", "new", "packed", "shared", "readable", "..", ".", "", "dir/below"];

/// Directories of this process.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let base = if PathBuf::from("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    base.join(format!("tollgate-fuzz-files-{}", std::process::id()))
});

/// The directories as each input finds them.
fn fresh() -> std::io::Result<()> {
    let place = &*PLACE;
    let _ = fs::remove_dir_all(place);
    for directory in ["shared/dir/below", "readable/dir", "outside"] {
        fs::create_dir_all(place.join(directory))?;
    }
    fs::write(place.join("outside/secret"), SECRET)?;
    for file in ["shared/a", "shared/dir/b", "readable/a", "readable/dir/b"] {
        fs::write(place.join(file), "contents")?;
    }
    for shared in ["shared", "readable"] {
        symlink("../outside/secret", place.join(shared).join("out"))?;
        symlink(place.join("outside"), place.join(shared).join("absolute"))?;
        symlink("../../outside", place.join(shared).join("dir/out"))?;
    }
    Ok(())
}

fn server() -> Server {
    let mut packed = Packed::new();
    packed.put_bytes("/dir/a".as_ref(), 0o644, b"packed").expect("it is the first");
    let open = |name: &str, writable| {
        let tree = HostTree::open(&PLACE.join(name), writable).expect("it is there");
        Box::new(tree.with_limits(LIMITS))
    };
    let mut server = Server::new();
    server.add("packed", Box::new(packed));
    server.add("shared", open("shared", true));
    server.add("readable", open("readable", false));
    server
}

/// Asks what the bytes say, and looks at what the host has afterwards.
pub fn run(data: &[u8]) {
    fresh().expect("the host has room");
    // Too few bytes end it early.
    let _ = drive(&mut Unstructured::new(data));
    let place = &*PLACE;
    assert_eq!(fs::read(place.join("outside/secret")).ok().as_deref(), Some(SECRET), "what is outside stays as it is");
    assert_eq!(fs::read_dir(place.join("outside")).map(Iterator::count).ok(), Some(1));
    assert_eq!(fs::read(place.join("readable/a")).ok().as_deref(), Some(&b"contents"[..]));
    assert_eq!(fs::read_dir(place.join("readable")).map(Iterator::count).ok(), Some(4));
    let _ = fs::remove_dir_all(place);
}

/// Numbers that answers have named.
#[derive(Default)]
struct Known {
    nodes: Vec<u64>,
    handles: Vec<u64>,
}

fn pick(list: &[u64], choice: u8) -> u64 {
    if list.is_empty() { u64::from(choice) } else { list[usize::from(choice) % list.len()] }
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let mut server = server();
    let mut known = Known { nodes: vec![1], handles: vec![0] };
    for (code, body) in [(26, [7u32, 31, 0, u32::MAX].map(u32::to_le_bytes).concat()), (1, b"shared\0".to_vec())] {
        ask(&mut server, &mut known, code, 1, &body, 1 << 16);
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let (code, node, room) = input.arbitrary::<(u8, u8, u8)>()?;
        let node = pick(&known.nodes, node);
        let room = if room & 0x80 == 0 { 1 << 16 } else { usize::from(room & 0x7f) };
        match code {
            200.. => meanwhile(code),
            190.. => {
                // Anything.
                let len = usize::from(input.arbitrary::<u8>()?);
                let bytes = input.bytes(len.min(input.len()))?.to_vec();
                check(server.answer(&bytes, room).as_deref(), room);
            }
            code => {
                let body = body(input, &known)?;
                ask(&mut server, &mut known, u32::from(code % 52), node, &body, room);
            }
        }
    }
    Ok(())
}

/// The body of a request: numbers, then names.
fn body(input: &mut Unstructured, known: &Known) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    for _ in 0..input.arbitrary::<u8>()? % 8 {
        let (kind, value) = input.arbitrary::<(u8, u8)>()?;
        match kind % 6 {
            0 => body.extend(pick(&known.handles, value).to_le_bytes()),
            1 => body.extend(pick(&known.nodes, value).to_le_bytes()),
            2 => body.extend(u32::from(value).to_le_bytes()),
            3 => body.extend(input.arbitrary::<u64>()?.to_le_bytes()),
            _ => {
                body.extend(NAMES[usize::from(value) % NAMES.len()].as_bytes());
                body.push(0);
            }
        }
    }
    Ok(body)
}

/// Somebody on the host renames and replaces what is shared.
fn meanwhile(code: u8) {
    let (shared, outside) = (PLACE.join("shared"), PLACE.join("elsewhere"));
    // What is not there can't be renamed.
    let _ = match code % 6 {
        0 => fs::rename(shared.join("dir"), &outside),
        1 => fs::rename(&outside, shared.join("dir")),
        2 => symlink("../outside", shared.join("dir")),
        3 => fs::remove_file(shared.join("a")),
        4 => fs::rename(shared.join("dir/below"), shared.join("below")),
        _ => symlink(PLACE.join("outside/secret"), shared.join("a")),
    };
}

fn ask(server: &mut Server, known: &mut Known, code: u32, node: u64, body: &[u8], room: usize) {
    let mut request = ((HEADER + body.len()) as u32).to_le_bytes().to_vec();
    request.extend(code.to_le_bytes());
    request.extend([7; 8]);
    request.extend(node.to_le_bytes());
    request.extend([0; 16]);
    request.extend(body);
    let answer = server.answer(&request, room);
    check(answer.as_deref(), room);
    let Some(body) = answer.as_deref().and_then(|answer| answer.get(16..)) else { return };
    let number = |at: usize| body.get(at..at + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let (found, opened) = match code {
        1 | 6 | 8 | 9 | 13 => (number(0), None),
        14 | 27 => (None, number(0)),
        35 => (number(0), number(128)),
        _ => (None, None),
    };
    known.nodes.extend(found.filter(|found| !known.nodes.contains(found)));
    known.handles.extend(opened);
}

/// An answer says how long it is, fits, and tells nothing that is not shared.
fn check(answer: Option<&[u8]>, room: usize) {
    let Some(answer) = answer else { return };
    assert!(answer.len() <= room.max(16));
    assert_eq!(answer[..4], (answer.len() as u32).to_le_bytes());
    assert!(!answer.windows(SECRET.len()).any(|window| window == SECRET), "what is outside is not read");
}

/// Each operation once, on what is there, and a directory that is replaced by a link.
pub fn seeds() -> Vec<Vec<u8>> {
    let name = |number: u8| [4, number];
    let look_up = |node: u8, number: u8| [&[1, node, 0, 1][..], &name(number)].concat();
    let start = [look_up(1, 0), look_up(1, 2), look_up(3, 3), look_up(3, 1), look_up(1, 4)].concat();
    let with = |more: &[u8]| [&start[..], more].concat();
    let mut seeds = vec![
        // A file is opened, read, written and closed.
        with(&[14, 2, 0, 2, 2, 2, 2, 0, 15, 2, 0, 4, 0, 1, 2, 0, 2, 0, 2, 100, 18, 2, 0, 1, 0, 1]),
        // A directory is opened and listed.
        with(&[27, 1, 0, 2, 2, 0, 2, 0, 28, 1, 0, 4, 0, 1, 2, 0, 2, 0, 2, 200]),
        // A file is made.
        with(&[35, 1, 0, 5, 2, 2, 2, 255, 2, 0, 2, 0, 4, 6]),
        // The directory moves away, and a link takes its place.
        with(&[&[204, 0, 0, 206, 0, 0][..], &look_up(3, 1), &[14, 5, 0, 2, 2, 0, 2, 0]].concat()),
        // Something is renamed, removed, linked, made.
        with(&[
            12, 1, 0, 3, 1, 3, 4, 0, 4, 6, 10, 1, 0, 1, 4, 6, 13, 1, 0, 2, 1, 4, 4, 6, 9, 1, 0, 3, 2, 255, 2, 0, 4, 6,
        ]),
        // Attributes are asked for and set.
        with(&[3, 2, 0, 2, 2, 0, 2, 0, 4, 2, 0, 7, 2, 8, 2, 0, 1, 0, 2, 5, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]),
    ];
    for code in 0..52 {
        seeds.push(with(&[code, 1, 0, 3, 2, 0, 1, 1, 4, 0]));
    }
    seeds
}
