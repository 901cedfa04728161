//! Tests that forbidden operations fail in a confined process and that its work goes on. Each attempt runs in a child process: this program, started again.
#![allow(unsafe_code, reason = "system calls are made as a program does that has been taken over")]

use contain::calls::{KEEPER, TABLE, TRIED};
use contain::{Inherited, Needs, Use, confine, confine_keeper};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use syscalls::Sysno;

/// A page.
const PAGE: usize = 4096;
/// Another process.
const FIRST: usize = 1;

/// A directory with something to read, something to write and something that is neither.
struct Files(PathBuf);

impl Files {
    fn file(&self, part: &str) -> PathBuf {
        self.0.join(part).join("file")
    }

    fn needs(&self) -> Needs {
        Needs { readable: vec![self.0.join("readable")], writable: vec![self.0.join("writable")], uses: Vec::new() }
    }
}

/// Something that a confined process does.
type Deed = fn(&Files);

/// A call with six arguments.
fn call(call: Sysno, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: either the kernel refuses the call, or it gets no addresses but null pointers and mappings that are nobody else's.
    unsafe { libc::syscall(call.id().into(), a, b, c, d, e, f) }
}

/// Makes a call whose answer does not matter.
fn make(of: Sysno, arguments: [usize; 6]) {
    call(of, arguments);
}

fn map(protection: i32, flags: i32) -> i64 {
    call(Sysno::mmap, [0, PAGE, protection as usize, flags as usize, usize::MAX, 0])
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Attempts that end the process, each with the name of the refused call.
const REFUSED: &[(&str, Sysno, Deed)] = &[
    ("a program is executed", Sysno::execve, |_| drop(Command::new("/bin/true").exec())),
    ("the process is copied", Sysno::fork, |_| make(Sysno::fork, [0; 6])),
    ("the process is copied by another call", Sysno::clone, |_| {
        make(Sysno::clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]);
    }),
    ("a process that shares the memory", Sysno::clone, |_| {
        make(Sysno::clone, [(libc::CLONE_VM | libc::CLONE_SIGHAND | libc::SIGCHLD) as usize, 0, 0, 0, 0, 0]);
    }),
    ("a process that has the memory for a while", Sysno::clone, |_| {
        make(Sysno::clone, [(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as usize, 0, 0, 0, 0, 0]);
    }),
    ("a connection to a port", Sysno::socket, |_| drop(TcpStream::connect("127.0.0.1:1"))),
    ("a port is listened on", Sysno::socket, |_| drop(TcpListener::bind("127.0.0.1:0"))),
    ("a connection to a socket", Sysno::socket, |_| drop(UnixStream::connect("/run/dbus/system_bus_socket"))),
    ("a process is traced", Sysno::ptrace, |_| {
        make(Sysno::ptrace, [libc::PTRACE_ATTACH as usize, FIRST, 0, 0, 0, 0]);
    }),
    ("a signal to a process", Sysno::kill, |_| {
        make(Sysno::kill, [FIRST, 0, 0, 0, 0, 0]);
    }),
    ("a signal to a thread of a process", Sysno::tgkill, |_| {
        make(Sysno::tgkill, [FIRST, FIRST, 0, 0, 0, 0]);
    }),
    ("memory is executable", Sysno::mmap, |_| {
        map(libc::PROT_READ | libc::PROT_EXEC, ANONYMOUS);
    }),
    ("memory is writable and executable", Sysno::mmap, |_| {
        map(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    }),
    ("memory becomes executable", Sysno::mprotect, |_| {
        let at = map(libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS);
        call(Sysno::mprotect, [at as usize, PAGE, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0]);
    }),
    ("a terminal gets input", Sysno::ioctl, |_| make(Sysno::ioctl, [0, libc::TIOCSTI as usize, 0, 0, 0, 0])),
    ("a virtual machine of KVM", Sysno::ioctl, |_| make(Sysno::ioctl, [0, 0xae01, 0, 0, 0, 0])),
    ("the filter is replaced", Sysno::prctl, |_| {
        make(Sysno::prctl, [libc::PR_SET_SECCOMP as usize, 2, 0, 0, 0, 0]);
    }),
];

/// Attempts that fail with an error.
const DENIED: &[(&str, Deed)] = &[
    ("a file elsewhere is opened", |files| denied(File::open(files.file("other")))),
    ("a file of the system is opened", |_| denied(File::open("/etc/passwd"))),
    ("a file is opened through a descriptor's directory", |_| denied(File::open("/proc/self/root/etc/passwd"))),
    ("a file elsewhere is removed", |files| {
        denied(fs::unlinkat(CWD, files.file("other"), AtFlags::empty()).map_err(Into::into));
    }),
    ("a directory is made elsewhere", |files| {
        denied(fs::mkdirat(CWD, files.0.join("new"), Mode::RWXU).map_err(Into::into));
    }),
    ("a file that is only read is changed", |files| denied(std::fs::write(files.file("readable"), "x"))),
    ("a file is moved out", |files| {
        denied(fs::renameat(CWD, files.file("writable"), CWD, files.0.join("out")).map_err(Into::into));
    }),
    ("a device file is made", |files| {
        let (path, kind) = (files.0.join("writable/device"), FileType::CharacterDevice);
        denied(fs::mknodat(CWD, path, kind, Mode::RWXU, fs::makedev(1, 3)).map_err(Into::into));
    }),
];

/// A process that only reads files.
fn reads(files: &Files) -> Needs {
    Needs { writable: Vec::new(), ..files.needs() }
}

/// A process whose machine needs this.
fn uses(needed: Use) -> Needs {
    Needs { uses: vec![needed], ..Needs::default() }
}

/// A socket that listens, with a connection that waits there.
static SOCKETS: OnceLock<(TcpListener, TcpStream)> = OnceLock::new();

fn wait_for_a_debugger() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SOCKETS.set((listener, client)).unwrap();
}

fn open_to_read(files: &Files, flags: OFlags) {
    drop(open_in(files, "readable", "file", flags));
}

/// An anonymous file as translated code has it.
fn code_file() -> usize {
    // SAFETY: the name is a string, and the call keeps no pointer to it.
    let file = unsafe { libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC) } as usize;
    assert_eq!(call(Sysno::ftruncate, [file, PAGE, 0, 0, 0, 0]), 0);
    file
}

fn map_code(file: usize, protection: i32) -> i64 {
    call(Sysno::mmap, [0, PAGE, protection as usize, libc::MAP_SHARED as usize, file, 0])
}

const READ_AND_EXECUTE: i32 = libc::PROT_READ | libc::PROT_EXEC;
/// A request of KVM: its version.
const KVM_REQUEST: usize = 0xae00;

/// Attempts of processes with certain needs, each with the name of the refused call, if it is refused.
type OfNeeds = (&'static str, fn(&Files) -> Needs, Option<Sysno>, Deed);
const OF_NEEDS: &[OfNeeds] = &[
    ("a reader reads", reads, None, |files| {
        assert_eq!(std::fs::read_to_string(files.file("readable")).unwrap(), "text");
        assert_eq!(std::fs::metadata(files.file("readable")).unwrap().len(), 4);
        assert_eq!(std::fs::read_dir(files.0.join("readable")).unwrap().count(), 1);
    }),
    ("a reader writes", reads, Some(Sysno::openat), |files| open_to_read(files, OFlags::WRONLY)),
    ("a reader reads and writes", reads, Some(Sysno::openat), |files| open_to_read(files, OFlags::RDWR)),
    ("a reader creates", reads, Some(Sysno::openat), |files| open_to_read(files, OFlags::CREATE)),
    ("a reader empties", reads, Some(Sysno::openat), |files| open_to_read(files, OFlags::TRUNC)),
    ("a reader makes a file without a name", reads, Some(Sysno::openat), |files| {
        drop(open_in(files, "readable", ".", OFlags::TMPFILE));
    }),
    ("a reader removes", reads, Some(Sysno::unlinkat), |files| {
        let _ = fs::unlinkat(CWD, files.file("readable"), AtFlags::empty());
    }),
    (
        "translated code",
        |_| uses(Use::NewMachines),
        None,
        |_| {
            let file = code_file();
            let at =
                [libc::PROT_READ | libc::PROT_WRITE, READ_AND_EXECUTE].map(|protection| map_code(file, protection));
            assert!(at.iter().all(|at| *at > 0), "{at:x?}");
        },
    ),
    (
        "translated code that may be written",
        |_| uses(Use::NewMachines),
        Some(Sysno::mmap),
        |_| {
            map_code(code_file(), READ_AND_EXECUTE | libc::PROT_WRITE);
        },
    ),
    (
        "translated code that may not be read",
        |_| uses(Use::NewMachines),
        Some(Sysno::mmap),
        |_| {
            map_code(code_file(), libc::PROT_EXEC);
        },
    ),
    (
        "code of no file",
        |_| uses(Use::NewMachines),
        Some(Sysno::mmap),
        |_| {
            map(READ_AND_EXECUTE, ANONYMOUS);
        },
    ),
    (
        "requests to KVM",
        |_| uses(Use::Kvm),
        None,
        |_| {
            // This is no descriptor of KVM's.
            assert_eq!(call(Sysno::ioctl, [0, KVM_REQUEST, 0, 0, 0, 0]), -1);
        },
    ),
    (
        "another request",
        |_| uses(Use::Kvm),
        Some(Sysno::ioctl),
        |_| {
            make(Sysno::ioctl, [0, libc::TIOCSTI as usize, 0, 0, 0, 0]);
        },
    ),
    (
        "a debugger",
        |_| uses(Use::Debugger),
        None,
        |_| {
            let (listener, _) = SOCKETS.get().unwrap();
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(stream.local_addr().unwrap(), listener.local_addr().unwrap());
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            assert_eq!((&stream).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            (&stream).write_all(b"text").unwrap();
        },
    ),
    (
        "a command that joins",
        |_| uses(Use::Joins),
        None,
        |_| {
            let (listener, _) = SOCKETS.get().unwrap();
            let flags = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as usize;
            assert!(call(Sysno::accept4, [listener.as_raw_fd() as usize, 0, 0, flags, 0, 0]) >= 0);
        },
    ),
    (
        "a command that joins for another program",
        |_| uses(Use::Joins),
        Some(Sysno::accept4),
        |_| {
            let (listener, _) = SOCKETS.get().unwrap();
            make(Sysno::accept4, [listener.as_raw_fd() as usize, 0, 0, 0, 0, 0]);
        },
    ),
    (
        "a debugger's socket that listens anew",
        |_| uses(Use::Debugger),
        Some(Sysno::listen),
        |_| {
            let (listener, _) = SOCKETS.get().unwrap();
            make(Sysno::listen, [listener.as_raw_fd() as usize, 1, 0, 0, 0, 0]);
        },
    ),
];

/// The part of [`Files`] in which a keeper writes.
const KEPT: &str = "writable";
/// Flags with which a keeper creates its file.
const NEW: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_in(files: &Files, part: &str, name: &str, flags: OFlags) -> std::io::Result<File> {
    Ok(fs::openat(CWD, files.0.join(part).join(name), flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Attempts of a keeper that end the process.
const REFUSED_TO_KEEPERS: &[(&str, Sysno, Deed)] = &[
    ("a keeper reads", Sysno::openat, |files| drop(File::open(files.file(KEPT)))),
    ("a keeper opens what exists", Sysno::openat, |files| drop(open_in(files, KEPT, "file", OFlags::WRONLY))),
    ("a keeper opens what may exist", Sysno::openat, |files| drop(open_in(files, KEPT, "a", NEW - OFlags::EXCL))),
    ("a keeper may follow a link", Sysno::openat, |files| drop(open_in(files, KEPT, "a", NEW - OFlags::NOFOLLOW))),
    ("a keeper empties a file", Sysno::openat, |files| drop(open_in(files, KEPT, "a", NEW | OFlags::TRUNC))),
    ("a keeper opens a directory", Sysno::openat, |files| drop(open_in(files, KEPT, ".", OFlags::PATH))),
    ("a keeper names a file", Sysno::openat, |files| drop(open_in(files, KEPT, "file", NEW | OFlags::PATH))),
    ("a keeper makes a directory", Sysno::openat, |files| drop(open_in(files, KEPT, "a", NEW | OFlags::DIRECTORY))),
    ("a keeper removes a directory", Sysno::unlinkat, |files| {
        let _ = fs::unlinkat(CWD, files.0.join(KEPT), AtFlags::REMOVEDIR);
    }),
    ("a keeper gets executable memory", Sysno::mmap, |_| {
        map(libc::PROT_READ | libc::PROT_EXEC, ANONYMOUS);
    }),
    ("a keeper signals", Sysno::tgkill, |_| make(Sysno::tgkill, [FIRST, FIRST, 0, 0, 0, 0])),
];

/// Attempts of a keeper that fail with an error.
const DENIED_TO_KEEPERS: &[(&str, Deed)] = &[
    ("a keeper makes a file elsewhere", |files| denied(open_in(files, "other", "new", NEW))),
    ("a keeper makes a file above", |files| denied(open_in(files, "writable/..", "new", NEW))),
    ("a keeper removes a file elsewhere", |files| {
        denied(fs::unlinkat(CWD, files.file("other"), AtFlags::empty()).map_err(Into::into));
    }),
    ("a keeper moves a file in", |files| {
        denied(fs::renameat(CWD, files.file("other"), CWD, files.0.join("writable/new")).map_err(Into::into));
    }),
    ("a keeper moves a file out", |files| {
        denied(fs::renameat(CWD, files.file("writable"), CWD, files.0.join("out")).map_err(Into::into));
    }),
];

/// Operations that a keeper needs.
fn keep(directory: impl AsFd) {
    let create = |name: &str| fs::openat(&directory, name, NEW, Mode::RUSR | Mode::WUSR).map(File::from);
    create("new").unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
    assert_eq!(create("new").map(drop), Err(rustix::io::Errno::EXIST));
    fs::renameat(&directory, "new", &directory, "file").unwrap();
    create("new").unwrap();
    fs::unlinkat(&directory, "new", AtFlags::empty()).unwrap();
}

/// Does what is asked for in a confined keeper.
fn attempt_of_keeper(name: &str, files: &Files) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::openat(CWD, files.0.join(KEPT), flags, Mode::empty()).unwrap();
    confine_keeper(directory.as_fd()).unwrap();
    if let Some((_, _, deed)) = REFUSED_TO_KEEPERS.iter().find(|(known, ..)| *known == name) {
        deed(files);
    } else if let Some((_, deed)) = DENIED_TO_KEEPERS.iter().find(|(known, _)| *known == name) {
        deed(files);
        exit(3);
    } else if let Ok(number) = name.parse() {
        // SAFETY: the filter knows no call with this number, so it is not made.
        unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    } else {
        keep(directory);
        exit(3);
    }
    println!("it went on");
}

/// Looks at descriptors that the test has left open for this process: a file, a file with a lock.
fn attempt_with_descriptors(open: [RawFd; 2], files: &Files) {
    let inherited = Inherited::list().unwrap();
    let mut own = File::open(files.file("other")).unwrap();
    // Names lead to an inherited descriptor until the process is confined.
    assert_eq!(std::fs::read_to_string(format!("/proc/self/fd/{}", open[0])).unwrap(), "text");
    let child_has = |number: RawFd| {
        Command::new("sh").args(["-c", &format!("test -e /proc/self/fd/{number}")]).status().unwrap().success()
    };
    assert_eq!(open.map(child_has), [true, true]);
    inherited.withhold();
    assert_eq!(open.map(child_has), [false, true]);
    assert_eq!(std::fs::read_to_string(format!("/proc/self/fd/{}", open[0])).unwrap(), "text");
    inherited.close();
    confine(&Needs::default()).unwrap();
    // SAFETY: the call only returns the flags of a descriptor.
    let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
    assert_eq!([0, 1, 2, open[0], open[1]].map(is_open), [true, true, true, false, true]);
    let mut text = String::new();
    own.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    exit(3);
}

/// Operations that the process needs.
fn work(files: &Files, open: &mut File) {
    assert_eq!(std::fs::read_to_string(files.file("readable")).unwrap(), "text");
    std::fs::write(files.file("writable"), "x").unwrap();
    fs::renameat(CWD, files.file("writable"), CWD, files.0.join("writable/moved")).unwrap();
    fs::mkdirat(CWD, files.0.join("writable/a"), Mode::RWXU).unwrap();
    // In a writable directory there is everything that a directory can have, except devices.
    let new = |name: &str| files.0.join("writable").join(name);
    for kind in [FileType::Fifo, FileType::Socket] {
        fs::mknodat(CWD, new("special"), kind, Mode::RWXU, 0).unwrap();
        fs::unlinkat(CWD, new("special"), AtFlags::empty()).unwrap();
    }
    fs::symlinkat("moved", CWD, new("link")).unwrap();
    std::fs::File::create(new("moved")).unwrap();
    assert_eq!(std::fs::read_dir(new("")).unwrap().count(), 3);
    assert_eq!(std::fs::read_dir(files.0.join("readable")).unwrap().count(), 1);
    // Landlock permits moves between directories since its second version.
    if landlock_version() >= 2 {
        fs::renameat(CWD, new("moved"), CWD, new("a/moved")).unwrap();
        fs::unlinkat(CWD, new("a/moved"), AtFlags::empty()).unwrap();
    }
    fs::unlinkat(CWD, files.0.join("writable/a"), AtFlags::REMOVEDIR).unwrap();
    let mut text = String::new();
    // Descriptors that were open remain usable.
    open.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), open.metadata().unwrap().len()), ("text", 4));
    let begun = Instant::now();
    let thread = std::thread::Builder::new().name("worker".into()).spawn(|| {
        std::thread::sleep(Duration::from_millis(1));
        File::open("/etc/passwd").is_err()
    });
    assert!(thread.unwrap().join().unwrap(), "threads inherit it");
    assert!(begun.elapsed() >= Duration::from_millis(1));
    assert_eq!(vec![1u8; 64 << 20].iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
}

#[track_caller]
fn denied<T>(result: std::io::Result<T>) {
    let error = result.err().expect("it must fail").kind();
    assert!(matches!(error, ErrorKind::PermissionDenied | ErrorKind::CrossesDevices), "{error:?}");
}

/// Returns true if the host's kernel has Landlock. Without it the test checks names only as far as system calls decide.
fn landlock() -> bool {
    landlock_version() > 0
}

/// The version of Landlock, which is asked for once.
fn landlock_version() -> i64 {
    static VERSION: OnceLock<i64> = OnceLock::new();
    *VERSION.get_or_init(|| call(Sysno::landlock_create_ruleset, [0, 0, 1, 0, 0, 0]))
}

/// Does what is asked for in the process that a test has started, confined.
fn attempt(name: &str, files: &Files) {
    let mut open = File::open(files.file("other")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The confined process cannot make this call.
    landlock_version();
    if let Some((_, needs, _, deed)) = OF_NEEDS.iter().find(|(known, ..)| *known == name) {
        wait_for_a_debugger();
        confine(&needs(files)).unwrap();
        deed(files);
        exit(3);
    }
    confine(&files.needs()).unwrap();
    if let Some((_, _, deed)) = REFUSED.iter().find(|(known, ..)| *known == name) {
        deed(files);
    } else if let Some((_, deed)) = DENIED.iter().find(|(known, _)| *known == name) {
        deed(files);
        exit(3);
    } else if let Ok(number) = name.parse() {
        // SAFETY: the filter knows no call with this number, so it is not made.
        unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    } else if name == "32 bits" {
        // getpid, by the calls of 32-bit programs, which have numbers of their own.
        // SAFETY: the call reads and writes no memory.
        unsafe {
            std::arch::asm!("int 0x80", inout("eax") 20 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
        };
    } else if name == "accept" {
        drop(listener.accept());
    } else if name == "spawn" {
        let _ = Command::new("/bin/true").status();
    } else if name == "panic" {
        panic!("of its own");
    } else {
        work(files, &mut open);
        exit(3);
    }
    println!("it went on");
}

/// Runs an attempt in a child process and returns its exit status, its signal, and its messages.
fn outcome_of(kind: &str, name: &str, files: &Files) -> (Option<i32>, Option<i32>, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(kind).arg(name).arg(&files.0).stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), output.status.signal(), String::from_utf8_lossy(&said).into_owned())
}

fn outcome(name: &str, files: &Files) -> (Option<i32>, Option<i32>, String) {
    outcome_of("attempt", name, files)
}

fn fresh(directory: &Path) -> Files {
    // Remove the files of an earlier attempt.
    let _ = std::fs::remove_dir_all(directory);
    for part in ["readable", "writable", "other"] {
        std::fs::create_dir_all(directory.join(part)).unwrap();
        std::fs::write(directory.join(part).join("file"), "text").unwrap();
    }
    Files(directory.to_path_buf())
}

/// A refused call as the message shows it.
fn shown(call: Sysno) -> String {
    format!("{} (number {})", call.name(), call.id())
}

#[track_caller]
fn check_refused_to(kind: &str, name: &str, called: &str, files: &Files) {
    let (status, signal, said) = outcome_of(kind, name, files);
    assert_eq!((status, signal), (None, Some(libc::SIGSYS)), "{name}: {said}");
    assert!(said.contains(&format!("the sandbox has refused the system call {called}, which ")), "{name}: {said}");
    assert!(!said.contains("it went on"), "{name}: {said}");
}

#[track_caller]
fn check_refused(name: &str, called: &str, files: &Files) {
    check_refused_to("attempt", name, called, files);
}

fn refused_calls_are_named(files: &Files) {
    for (name, call, _) in REFUSED {
        check_refused(name, &shown(*call), files);
    }
    check_refused("accept", &shown(Sysno::accept4), files);
    // The C library blocks all signals before it makes a process: nothing is said.
    assert_eq!(outcome("spawn", files).1, Some(libc::SIGSYS));
}

/// No call that is not among the known ones is made by a process of a kind.
fn check_all_others(kind: &str, known: &[u32], files: &Files) {
    let tried: Vec<u32> = TRIED.iter().map(|(_, call)| call.id() as u32).collect();
    const X32: u32 = 1 << 30;
    /// Calls that only a trampoline of the kernel's can make (Linux: uretprobe, uprobe); no filter sees them.
    const TRAMPOLINES: [u32; 2] = [335, 336];
    let all = (0..480).chain([999, X32 | Sysno::getpid.id() as u32]);
    let exempt = [known, &tried, &TRAMPOLINES].concat();
    for number in all.filter(|number| !exempt.contains(number)) {
        let name = Sysno::new(number as usize).map_or("without a name", |call| call.name());
        check_refused_to(kind, &number.to_string(), &format!("{name} (number {number})"), files);
    }
}

/// A keeper creates, renames and removes files in its directory, and nothing else.
fn a_keeper_does_nothing_else(files: &Files) {
    let files = fresh(&files.0);
    let (status, signal, said) = outcome_of("keeper", "keep", &files);
    assert_eq!((status, signal), (Some(3), None), "{said}");
    assert_eq!(std::fs::metadata(files.file(KEPT)).unwrap().len(), 1 << 20);
    for (name, call, _) in REFUSED_TO_KEEPERS {
        check_refused_to("keeper", name, &shown(*call), &files);
    }
    for (name, _) in DENIED_TO_KEEPERS.iter().filter(|_| landlock()) {
        let files = fresh(&files.0);
        let (status, signal, said) = outcome_of("keeper", name, &files);
        assert_eq!((status, signal), (Some(3), None), "{name}: {said}");
    }
    check_all_others("keeper", &KEEPER.iter().map(|row| row.call.id() as u32).collect::<Vec<_>>(), &files);
}

fn inherited_descriptors_are_closed_unless_they_hold_a_lock(files: &Files) {
    let files = fresh(&files.0);
    // Without O_CLOEXEC, the child has the descriptors.
    let open = |part: &str| File::from(fs::openat(CWD, files.file(part), OFlags::RDONLY, Mode::empty()).unwrap());
    let (plain, locked) = (open("readable"), open("writable"));
    locked.lock().unwrap();
    let name = format!("{} {}", plain.as_raw_fd(), locked.as_raw_fd());
    let (status, signal, said) = outcome_of("descriptors", &name, &files);
    assert_eq!((status, signal), (Some(3), None), "{said}");
}

/// No call that the table does not have is made, whatever its number.
fn all_other_calls_are_refused(files: &Files) {
    let needed = |needed| matches!(needed, Use::Always | Use::Files | Use::Changes);
    let known: Vec<u32> = TABLE.iter().filter(|row| needed(row.needed)).map(|row| row.call.id() as u32).collect();
    check_all_others("attempt", &known, files);
    // The filter does not name those: they end the process at once.
    assert_eq!(outcome("32 bits", files).1, Some(libc::SIGSYS));
}

fn names_lead_nowhere_else(files: &Files) {
    if !landlock() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    for (name, _) in DENIED {
        let files = fresh(&files.0);
        let (status, signal, said) = outcome(name, &files);
        assert_eq!((status, signal), (Some(3), None), "{name}: {said}");
    }
}

fn the_work_goes_on(files: &Files) {
    let files = fresh(&files.0);
    let (status, signal, said) = outcome("work", &files);
    assert_eq!((status, signal), (Some(3), None), "{said}");
    let (status, _, said) = outcome("panic", &files);
    assert_eq!(status, Some(101), "{said}");
    assert!(said.contains("of its own") && said.contains("stack backtrace"), "{said}");
}

fn needs_permit_what_they_are_for(files: &Files) {
    for (name, _, refused, _) in OF_NEEDS {
        let files = fresh(&files.0);
        if let Some(call) = refused {
            check_refused(name, &shown(*call), &files);
        } else {
            let (status, signal, said) = outcome(name, &files);
            assert_eq!((status, signal), (Some(3), None), "{name}: {said}");
        }
    }
}

fn a_process_with_threads_is_not_confined(_: &Files) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv());
    assert!(matches!(confine(&Needs::default()), Err(contain::ContainError::Threads(2))));
    drop(sender);
    assert!(thread.join().unwrap().is_err());
    let mut pipe = std::io::pipe().unwrap().1;
    assert!(pipe.as_raw_fd() > 2 && pipe.write(b"x").is_err());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name, directory] = &arguments[..]
        && let files = Files(directory.into())
    {
        match word.as_str() {
            "attempt" => return attempt(name, &files),
            "keeper" => return attempt_of_keeper(name, &files),
            "descriptors" => {
                let (plain, locked) = name.split_once(' ').unwrap();
                return attempt_with_descriptors([plain, locked].map(|number| number.parse().unwrap()), &files);
            }
            _ => {}
        }
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("attempts-{}", std::process::id()));
    type Test = fn(&Files);
    let tests: [(&str, Test); 8] = [
        ("refused_calls_are_named", refused_calls_are_named),
        ("all_other_calls_are_refused", all_other_calls_are_refused),
        ("names_lead_nowhere_else", names_lead_nowhere_else),
        ("the_work_goes_on", the_work_goes_on),
        ("needs_permit_what_they_are_for", needs_permit_what_they_are_for),
        ("a_keeper_does_nothing_else", a_keeper_does_nothing_else),
        (
            "inherited_descriptors_are_closed_unless_they_hold_a_lock",
            inherited_descriptors_are_closed_unless_they_hold_a_lock,
        ),
        ("a_process_with_threads_is_not_confined", a_process_with_threads_is_not_confined),
    ];
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let skipped = |name: &str| wanted.is_some_and(|wanted| !name.contains(wanted.as_str()));
    for (name, test) in tests.iter().filter(|(name, _)| !skipped(name)) {
        test(&fresh(&directory));
        println!("test {name} ... ok");
    }
    let _ = std::fs::remove_dir_all(&directory);
}
