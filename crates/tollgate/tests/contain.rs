//! The process of a run is confined while its guest executes, and does what it is for.

use std::collections::BTreeMap;
use std::fs::{DirEntry, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait of a test for an event that normally comes at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// A guest that never ends: a multiboot image that jumps to itself.
fn spinning_guest(directory: &Path) -> PathBuf {
    const BASE: u32 = 0x10_0000;
    const MAGIC: u32 = 0x1bad_b002;
    const ADDRESSES: u32 = 1 << 16;
    let entry = BASE + 32;
    let sum = 0u32.wrapping_sub(MAGIC).wrapping_sub(ADDRESSES);
    let header = [MAGIC, ADDRESSES, sum, BASE, BASE, 0, 0, entry];
    let mut image: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    // jmp to itself
    image.extend([0xeb, 0xfe]);
    let path = directory.join("guest");
    std::fs::write(&path, image).unwrap();
    path
}

/// A directory for one test.
fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("contain-{test}"));
    // Remove the files of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// A run that is ended with the test.
struct Run(Child);

impl Run {
    fn begin(directory: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("run").arg("--kernel").arg(spinning_guest(directory)).args(options);
        Self::begin_as(command, directory)
    }

    /// Begins a run with other descriptors, which redirections of a shell open.
    fn begin_with(directory: &Path, redirections: &str, options: &[&str]) -> Self {
        let mut command = Command::new("bash");
        command.arg("-c").arg(format!("exec {redirections}; exec \"$@\"")).arg("bash");
        command.arg(env!("CARGO_BIN_EXE_tollgate")).arg("run").arg("--kernel").arg(spinning_guest(directory));
        command.args(options);
        Self::begin_as(command, directory)
    }

    fn begin_as(mut command: Command, directory: &Path) -> Self {
        command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits until something is so.
    #[track_caller]
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(self.0.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Of each thread, whether it has a filter for system calls (proc_pid_status(5)).
    fn filtered(&self) -> Vec<bool> {
        filtered(self.0.id())
    }

    /// The processes that this one has started.
    fn children(&self) -> Vec<u32> {
        let id = self.0.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        list.split_whitespace().map(|id| id.parse().unwrap()).collect()
    }
}

/// Of each thread of a process, whether it has a filter for system calls (proc_pid_status(5)).
fn filtered(process: u32) -> Vec<bool> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    status.map(|status| status.contains("\nSeccomp:\t2\n") && status.contains("\nNoNewPrivs:\t1\n")).collect()
}

/// The files that a process has open, by the numbers of its descriptors.
fn descriptors(process: u32) -> BTreeMap<u32, PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let number = |entry: &DirEntry| entry.file_name().to_str().unwrap().parse().unwrap();
    entries.filter_map(|entry| Some((number(&entry), std::fs::read_link(entry.path()).ok()?))).collect()
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn guests_run_in_a_confined_process() {
    let directory = directory("confined");
    for options in [&["--timeout", "300"][..], &["--timeout", "300", "--and", "--kernel", "guest"]] {
        // Standard input is a pipe, for which there is another thread.
        Run::begin(&directory, options).until("all threads are confined", |run| run.filtered() == [true, true]);
    }
    let mut run = Run::begin(&directory, &["--timeout", "300", "--sandbox", "off"]);
    run.until("both threads are there", |run| run.filtered() == [false, false]);
}

#[test]
fn the_process_that_writes_files_is_confined() {
    let directory = directory("keep");
    let mut run = Run::begin(&directory, &["--timeout", "300", "--ledger", "ledger"]);
    run.until("the keeper is confined", |run| matches!(run.children()[..], [keeper] if filtered(keeper) == [true]));
    let open = descriptors(run.children()[0]);
    // Two pipes, no messages, and the directory of the file.
    let pipes = [0, 1].map(|number| open[&number].to_str().unwrap().starts_with("pipe:"));
    assert_eq!((pipes, open.keys().len()), ([true, true], 4), "{open:?}");
    assert_eq!((open[&2].as_path(), &open[&3]), (Path::new("/dev/null"), &directory.canonicalize().unwrap()));
}

#[test]
fn a_file_or_a_link_that_another_has_made_is_not_written() {
    let directory = directory("others");
    for contents in ["", "\x03\0\0\0\0\0\0\0abc"] {
        std::fs::write(directory.join("victim"), "text").unwrap();
        // Remove the link of the last time.
        let _ = std::fs::remove_file(directory.join("beside"));
        std::os::unix::fs::symlink("victim", directory.join("beside")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["keep", "--beside", "beside", "--", "file"]).current_dir(&directory);
        let mut keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        keeper.stdin.take().unwrap().write_all(contents.as_bytes()).unwrap();
        let output = keeper.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.success(), said.contains("exists")), (true, !contents.is_empty()), "{said}");
        assert_eq!(std::fs::read_to_string(directory.join("victim")).unwrap(), "text");
        assert!(!directory.join("file").exists() && directory.join("beside").is_symlink());
    }
}

#[test]
fn descriptors_of_the_program_that_started_it_are_closed() {
    let directory = directory("inherited");
    std::fs::write(directory.join("secret"), "text").unwrap();
    let redirections = "9<secret 8>lock && flock 8";
    let mut run = Run::begin_with(&directory, redirections, &["--timeout", "300", "--ledger", "ledger"]);
    run.until("both are confined", |run| {
        run.filtered() == [true, true] && matches!(run.children()[..], [keeper] if filtered(keeper) == [true])
    });
    let has = |process: u32, name: &str| descriptors(process).values().any(|path| path.ends_with(name));
    for process in [run.0.id(), run.children()[0]] {
        // Whoever has locked a file for this program wants the lock for as long as it runs.
        assert_eq!(["secret", "lock"].map(|name| has(process, name)), [false, true], "{:?}", descriptors(process));
    }
}

#[test]
fn programs_that_it_starts_have_no_descriptors_of_the_program_that_started_it() {
    let directory = directory("withheld");
    std::fs::write(directory.join("secret"), "text").unwrap();
    // A program in place of passt, which says what it has open.
    let passt = directory.join("passt");
    std::fs::write(&passt, "#!/bin/sh\nreadlink /proc/$$/fd/* >open\n").unwrap();
    std::fs::set_permissions(&passt, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    for sandbox in ["on", "off"] {
        let redirections = format!("9<secret 8>lock && flock 8 && export PATH={path}");
        let options = ["--timeout", "300", "--net", "user", "--sandbox", sandbox];
        let mut run = Run::begin_with(&directory, &redirections, &options);
        assert_eq!(run.0.wait().unwrap().code(), Some(126), "this passt ends at once");
        let open = std::fs::read_to_string(directory.join("open")).unwrap();
        assert_eq!(["socket:", "/secret", "/lock"].map(|name| open.contains(name)), [true, false, true], "{open}");
    }
}

#[test]
fn options_name_descriptors_of_the_program_that_started_it() {
    let directory = directory("named");
    let options = ["--limit", "0.002", "--ledger", "/dev/fd/9", "--record", "/proc/self/fd/8"];
    let mut run = Run::begin_with(&directory, "9>ledger 8>input", &options);
    assert_eq!(run.0.wait().unwrap().code(), Some(124));
    let report =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["report", "ledger"]).current_dir(&directory).output();
    assert!(report.unwrap().status.success());
    assert_ne!(std::fs::metadata(directory.join("input")).unwrap().len(), 0);
}

#[test]
fn files_are_written_whole_or_not_at_all() {
    let directory = directory("files");
    let files = || {
        let mut names: Vec<String> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let all = ["--save-at", "0.001", "snapshot", "--ledger", "ledger", "--record", "input"];
    let mut run = Run::begin(&directory, &[&all[..], &["--limit", "0.002"]].concat());
    assert_eq!(run.0.wait().unwrap().code(), Some(124));
    assert_eq!(files(), ["guest", "input", "ledger", "snapshot"]);
    let report =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["report", "ledger"]).current_dir(&directory).output();
    assert!(report.unwrap().status.success());
    for file in ["input", "ledger", "snapshot"] {
        std::fs::remove_file(directory.join(file)).unwrap();
    }
    // Of a run that is killed nothing is left.
    let mut run = Run::begin(&directory, &["--ledger", "ledger", "--timeout", "300"]);
    run.until("all threads are confined", |run| run.filtered() == [true, true]);
    drop(run);
    assert_eq!(files(), ["guest"]);
}

#[test]
fn the_socket_of_a_debugger_is_removed() {
    let directory = directory("socket");
    // Paths of sockets are short.
    let socket = std::env::temp_dir().join(format!("tollgate-{}.gdb", std::process::id()));
    let address = format!("unix:{}", socket.display());
    let mut run = Run::begin(&directory, &["--gdb", &address]);
    let mut said = String::new();
    BufReader::new(run.0.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("waits for a debugger") && socket.exists(), "{said}");
    run.0.stdin.take().unwrap().flush().unwrap();
    drop(run);
    let begun = Instant::now();
    while socket.exists() {
        assert!(begun.elapsed() < PATIENCE, "the socket is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
