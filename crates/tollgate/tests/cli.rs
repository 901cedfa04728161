//! The program as a user meets it: what it says, on which stream, and with which exit status.

use ledger::Ledger;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testkit::Random;

/// The address of a guest's code.
const ENTRY: u32 = 0x10_0030;

/// Exit statuses, as `tollgate run --help` lists them.
const WRONG_ARGUMENTS: i32 = 2;
const RESET_UNASKED: i32 = 122;
const PANICKED: i32 = 123;
const TIMED_OUT: i32 = 124;
const GUEST_DIED: i32 = 125;
const FAILED: i32 = 126;
const UNREAD: i32 = 141;

/// mov edx, 0x3f8; mov al, '*'; out dx, al
const PRINT: &[u8] = b"\xba\xf8\x03\0\0\xb0*\xee";
/// mov edx, 0x604; mov ax, 0x2000; out dx, ax; jmp $
const POWER_OFF: &[u8] = b"\xba\x04\x06\0\0\x66\xb8\0\x20\x66\xef\xeb\xfe";
/// mov al, 0xfe; out 0x64, al; jmp $
const RESET: &[u8] = b"\xb0\xfe\xe6\x64\xeb\xfe";
/// mov dx, 0x1f0d; mov al, 7; out dx, al
const STATUS_7: &[u8] = b"\x66\xba\x0d\x1f\xb0\x07\xee";

/// A directory of files for one test.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        // An earlier run may have left files.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    /// A multiboot image with this code, entered in 32-bit protected mode with an empty IDT.
    fn guest(&self, name: &str, code: &[u8]) -> String {
        let flags = 1u32 << 16;
        let end = ENTRY + code.len() as u32;
        let mut image = Vec::new();
        for word in [
            0x1bad_b002,
            flags,
            0u32.wrapping_sub(0x1bad_b002 + flags),
            0x10_0000,
            0x10_0000,
            end,
            end,
            ENTRY,
            0,
            0,
            0,
            0,
        ] {
            image.extend(word.to_le_bytes());
        }
        image.extend(code);
        self.put(name, &image)
    }

    /// A guest that prints `*` and powers off.
    fn good(&self) -> String {
        self.guest("good", &[PRINT, POWER_OFF].concat())
    }
}

fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap()
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = tollgate(&[&["run"], arguments].concat());
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("it was not killed"), text(&output.stdout), text(&output.stderr))
}

/// The run is refused in one line that contains `message`, before the guest does anything.
#[track_caller]
fn refused(arguments: &[&str], message: &str) {
    refused_with(FAILED, arguments, message);
}

/// The same for options that no files and no host make right.
#[track_caller]
fn wrong(arguments: &[&str], message: &str) {
    refused_with(WRONG_ARGUMENTS, arguments, message);
}

#[track_caller]
fn refused_with(expected: i32, arguments: &[&str], message: &str) {
    let (status, printed, error) = run(arguments);
    assert_eq!((status, printed.as_str()), (expected, ""), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("tollgate: error: ") && error.contains(message), "{error}");
}

#[test]
fn a_guest_runs() {
    let files = Files::new("runs");
    let (status, printed, error) = run(&["--kernel", &files.good()]);
    assert_eq!((status, printed.as_str(), error.as_str()), (0, "*", ""));
    let exit = files.guest("exit", b"\xb0\x05\xe6\xf4\xeb\xfe");
    assert_eq!(run(&["--kernel", &exit]).0, 5 << 1 | 1);
}

/// Runs the program with its output on a full disk, and returns the exit status and its messages.
fn on_a_full_disk(arguments: &[&str]) -> (i32, String) {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).stdout(full).output().unwrap();
    (output.status.code().expect("it was not killed"), String::from_utf8_lossy(&output.stderr).into_owned())
}

const FULL: &str = "standard output can't be written: No space left on device (os error 28)";

#[test]
fn output_that_cannot_be_written_is_a_failure_of_every_command() {
    let files = Files::new("output-lost");
    // Prints for ever: the run ends because of the output, and its ledger is complete.
    let talks = files.guest("talks", &[PRINT, b"\xeb\xfd"].concat());
    let ledger = files.path("ledger");
    let (status, error) =
        on_a_full_disk(&["run", "--kernel", &talks, "--sample", "1us", "--ledger", &ledger, "--json"]);
    assert_eq!(status, FAILED, "{error}");
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[0].starts_with(&format!("tollgate: {FULL} after ")), "{error}");
    let report: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!((report["reason"].as_str(), report["status"].as_i64()), (Some("output"), Some(FAILED.into())));
    assert!(tollgate(&["report", &ledger]).status.success());
    // The guest is quicker than the message: it has powered off.
    let (status, error) = on_a_full_disk(&["run", "--kernel", &files.good()]);
    assert_eq!(status, FAILED, "{error}");
    assert!(error.contains(FULL), "{error}");
    let kernel = files.good();
    for arguments in [
        &["run", "--kernel", &kernel, "--dry-run"][..],
        &["run", "--kernel", &kernel, "--dry-run", "--json"],
        &["run", "--kernel", &kernel, "--check-translation"],
        &["run", "--kernel", &kernel, "--and", "--kernel", &kernel],
        &["report", &ledger],
        &["report", &ledger, "--json"],
        &["compare", &ledger, &ledger],
        &["compare", &ledger, &ledger, "--json"],
        &["export", "--format", "folded", &ledger],
        &["cpu", "list"],
        &["lab", "list"],
        &["generate", "completions", "bash"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let (status, error) = on_a_full_disk(arguments);
        assert_eq!(status, FAILED, "{arguments:?}: {error}");
        assert!(error.contains("standard output can't be written: "), "{arguments:?}: {error}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let files = Files::new("result-lost");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let run = command.args(["run", "--json", "--kernel", &files.good()]).stderr(full()).output().unwrap();
    assert_eq!((run.status.code(), &run.stdout[..]), (Some(FAILED), &b"*"[..]));
}

#[test]
fn a_reader_that_goes_away_ends_the_run_without_a_word() {
    let files = Files::new("unread");
    let talks = files.guest("talks", &[PRINT, b"\xeb\xfd"].concat());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let command = command.args(["run", "--kernel", &talks]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(UNREAD), &b""[..]));
    // A table has been seen as far as its reader wanted.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let mut child = command.args(["cpu", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn a_slow_reader_of_a_non_blocking_pipe_gets_everything() {
    let files = Files::new("slow-reader");
    // 0x40000 stars: more than a pipe holds.
    let loud = [b"\xba\xf8\x03\0\0\xb0*\xb9\0\0\x04\0\xee\xe2\xfd", POWER_OFF].concat();
    let loud = files.guest("loud", &loud);
    let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["run", "--kernel", &loud]).stdout(Stdio::from(std::os::fd::OwnedFd::from(writer)));
    let mut child = command.spawn().unwrap();
    // The command holds the other end, which would keep the stream open.
    drop(command);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut all).unwrap();
    assert_eq!((all.len(), child.wait().unwrap().code()), (0x4_0000, Some(0)));
}

/// Runs the program under a limit of the shell, and returns the exit status and its messages.
fn limited(limit: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tollgate")]).args(arguments);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_limit_that_is_too_low_is_named() {
    let files = Files::new("limits");
    let kernel = files.good();
    for (limit, message) in [
        (
            "-f 10",
            "cannot get executable memory: File too large (os error 27)\ntollgate: the limit on the size of files (`ulimit -f`) is 10 KiB: raise it, or use `ulimit -f unlimited`",
        ),
        ("-s 128", "the limit on the stack (`ulimit -s`) is 128 KiB, and at least 1024 KiB are needed"),
        // The dynamic loader needs 1 MiB for an unoptimized program, before the program can look at its limits.
        ("-d 10000", "the limit on the data segment (`ulimit -d`) is 10000 KiB, and at least 32768 KiB are needed"),
        ("-d 200000", "the limit on the data segment (`ulimit -d`) is 200000 KiB, and at least 1605632 KiB are needed"),
        (
            "-v 1000000",
            "the limit on the address space (`ulimit -v`) is 1000000 KiB, and at least 2392064 KiB are needed",
        ),
    ] {
        let (status, error) = limited(limit, &["run", "--kernel", &kernel]);
        assert_eq!((status, error), (Some(FAILED), format!("tollgate: error: {message}\n")), "{limit}");
    }
    // Each processor has counts of what it has executed in each address space, if something is charged, and each machine has its own memory.
    let two: &[&str] = &["run", "--kernel", &kernel, "--memory", "256M", "--cpus", "2"];
    for (more, least) in [
        (&[][..], 2_162_688),
        (&["--clock", "host"], 524_288),
        (&["--and", "--kernel", &kernel, "--memory", "256M"], 3_506_176),
    ] {
        let (status, error) = limited("-d 100000", &[two, more].concat());
        let message =
            format!("the limit on the data segment (`ulimit -d`) is 100000 KiB, and at least {least} KiB are needed");
        assert_eq!((status, error), (Some(FAILED), format!("tollgate: error: {message}\n")), "{more:?}");
    }
    // A limit of one program only: it is raised as far as the user may.
    assert_eq!(limited("-Ss 128", &["run", "--kernel", &kernel]), (Some(0), String::new()));
}

#[test]
fn a_snapshot_that_cannot_be_written_does_not_cost_the_ledger() {
    let files = Files::new("full");
    let spin = files.guest("spin", b"\xeb\xfe");
    let ledger = files.path("ledger");
    let all = ["--save-at", "0.0001", "/dev/full", "--limit", "0.01", "--ledger", &ledger, "--kernel", &spin];
    let (status, _, error) = run(&all);
    assert_eq!(status, FAILED, "{error}");
    assert!(error.contains("--save-at 0.0001: can't write the snapshot /dev/full"), "{error}");
    assert!(tollgate(&["report", &ledger]).status.success());
}

#[test]
fn two_options_do_not_write_one_file() {
    let files = Files::new("distinct");
    let (kernel, file) = (files.good(), files.path("file"));
    let same = files.path("./file");
    wrong(&["--kernel", &kernel, "--ledger", &file, "--save-at", "1", &same], "name the same file");
    wrong(&["--kernel", &kernel, "--record", &file, "--save-at", "1", &same], "name the same file");
    let capture = format!("pcap:{same}");
    let nic = ["--kernel", &kernel, "--net", "bridge", "--net", &capture];
    wrong(&[&nic[..], &["--ledger", &file]].concat(), "name the same file");
    wrong(&[&nic[..], &["--and"], &nic[..]].concat(), "name the same file");
    let ledger = ["--kernel", &kernel, "--ledger", &file];
    wrong(&[&ledger[..], &["--and"], &ledger[..]].concat(), "name the same file");
    assert!(!Path::new(&file).exists());
    let replayed = files.put("replayed", b"frames");
    let [replay, capture] = [format!("generator:replay={replayed}"), format!("pcap:{replayed}")];
    wrong(&["--kernel", &kernel, "--net", &replay, "--net", &capture], "name the same file");
    assert_eq!(std::fs::read(&replayed).unwrap(), b"frames");
}

#[test]
fn passt_that_ends_at_once_ends_the_run_before_it_begins() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new("passt");
    let kernel = files.good();
    let passt = files.put("passt", b"#!/bin/sh\necho Failed to bind any port >&2\nexit 1\n");
    std::fs::set_permissions(&passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", files.0.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(["run", "--kernel", &kernel, "--net", "user"]).env("PATH", path).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(FAILED), &b""[..]), "{error}");
    assert_eq!(error, "tollgate: error: --net user: passt has ended: Failed to bind any port\n");
}

#[test]
fn machines_of_one_run_are_told_apart() {
    let files = Files::new("machines");
    let guest = files.good();
    let (first, second) = (files.path("first.ledger"), files.path("second.ledger"));
    let one = ["--kernel", &guest, "--json", "--name", "one", "--net", "bridge", "--ledger", &first];
    let two = ["--and", "--kernel", &guest, "--json", "--cpus", "2", "--net", "bridge", "--ledger", &second];
    let (status, printed, error) = run(&[&one[..], &two[..]].concat());
    assert_eq!(status, 0, "{error}");
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["m2 | *", "one | *"]);
    let reports = error.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let names: Vec<String> = reports.map(|report| report["machine"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["one", "m2"]);
    let ledger = Ledger::read(&std::fs::read(&second).unwrap()).unwrap();
    let fact = |name: &str| {
        ledger.header.metadata.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value.as_str())
    };
    assert_eq!(fact("machine"), Some("2 of 2"));
    assert_eq!(fact("machine 1: kernel"), fact("kernel"));
    wrong(
        &["--kernel", &guest, "--gdb", "1", "--and", "--kernel", &guest],
        "m1: --gdb: it is for a run with one machine",
    );
    wrong(&["--kernel", &guest, "--name", "m2", "--and", "--kernel", &guest], "two machines have the same name");
    let (status, _, error) = run(&["--kernel", &guest, "--name", "a b", "--and", "--kernel", &guest]);
    assert_eq!(status, WRONG_ARGUMENTS, "{error}");
}

#[test]
fn networks_are_described_and_mistakes_named() {
    let files = Files::new("networks");
    let guest = files.good();
    let capture = files.path("all.pcapng");
    let options =
        ["--kernel", &guest, "--json", "--net", "bridge:lan,queues=4", "--net", "generator:rate=1M,packed=on"];
    let (status, printed, error) =
        run(&[&options[..], &["--net", "sink", "--net", &format!("pcap:{capture}")]].concat());
    assert_eq!((status, printed.as_str()), (0, "*"), "{error}");
    let json: serde_json::Value = serde_json::from_str(error.lines().last().expect("a report")).unwrap();
    let names: Vec<_> = json["network"].as_array().unwrap().iter().map(|nic| nic["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["net0", "net1", "net2"]);
    assert_eq!(json["network"][1]["generator"]["sent"], 0, "no driver is ready");
    assert!(std::fs::read(&capture).unwrap().starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    // The capture is one of Ethernet, without a frame.
    let sent_again = format!("generator:replay={capture}");
    refused(&["--kernel", &guest, "--net", &sent_again], "it has no complete Ethernet frame");
    let mut simple = std::fs::read(&capture).unwrap();
    // A Simple Packet Block with a frame of 60 bytes.
    simple.extend([[3, 76, 60].map(u32::to_le_bytes).concat(), vec![1; 60], 76u32.to_le_bytes().to_vec()].concat());
    let simple = files.put("simple.pcapng", &simple);
    let sent_again = format!("generator:replay={simple}");
    refused(&["--kernel", &guest, "--net", &sent_again], "Simple Packet Blocks, which have no times: give a rate");
    let sent_again = format!("{sent_again},rate=1K");
    let disk = files.put("disk", &[0; 512]);
    let (status, described, error) =
        run(&["--kernel", &guest, "--net", "sink", "--net", &sent_again, "--disk", &disk, "--dry-run"]);
    assert_eq!(status, 0, "{error}");
    for line in [format!("disk 0         {disk}"), format!("capture 1      {simple}")] {
        assert!(described.lines().any(|described| described == line), "{described}");
    }
    let symbols = files.put("System.map", b"ffffffff81000000 T _text\n");
    let (status, described, error) = run(&["--kernel", &guest, "--symbols", &symbols, "--dry-run", "--json"]);
    assert_eq!(status, 0, "{error}");
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["symbols 0"], symbols);
    assert!(described["memory map"].as_array().is_some_and(|map| map.len() > 2), "{described}");
    wrong(&["--kernel", &guest, "--net", "none", "--net", "user"], "--net none excludes other --net options");
    let none = ["--and", "--kernel", &guest, "--net", "none", "--net", "none"];
    wrong(&[&["--kernel", &guest], &none[..]].concat(), "m2: --net none excludes other --net options");
    wrong(&["--kernel", &guest, "--net", "sink", "--net", "pcap:x", "--net", "pcap:y"], "a run has only one capture");
    let same = ["--kernel", &guest, "--net", "bridge,mac=02:00:00:00:00:09"];
    let twice = |devices: &str| format!("{devices} have the same address on the bridge bridge: mac=02:00:00:00:00:09");
    wrong(&[&same[..], &same[2..]].concat(), &twice("net0 and net1"));
    wrong(&[&same[..], &["--and"], &same[..]].concat(), &twice("net0 of m1 and net0 of m2"));
    let default = ["--net", "bridge,mac=02:74:67:00:00:02", "--net", "bridge"];
    wrong(&[&["--kernel", &guest], &default[..]].concat(), "net0 and net1 have the same address on the bridge bridge");
    let forwards = ["--kernel", &guest, "--net", "user,forward=udp:2222:22"];
    let twice = "net0 of m1 and net0 of m2 forward the same port of the host: udp:2222";
    wrong(&[&forwards[..], &["--and"], &forwards[..]].concat(), twice);
    wrong(&["--kernel", &guest, "--net", "pcap:x"], "add one, for example with --net user");
    refused(&["--kernel", &guest, "--net", "tap:no such device", "--timeout", "5"], "ip tuntap add");
    let (status, _, error) = run(&["--kernel", &guest, "--net", "bridge:a,queues=99"]);
    assert_eq!(status, WRONG_ARGUMENTS);
    assert!(error.contains("queues: a number from 1 to 16 is expected"), "{error}");
    refused(&["--kernel", &guest, "--net", "tap:tollgate-none"], "there is no network device of that name");
    // passt is looked for in PATH.
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--kernel", &guest, "--net", "user"])
        .env("PATH", "")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILED));
    assert!(error.contains("apt-get install passt"), "{error}");
}

/// Runs a guest with this code, and returns its exit status and the output of `--json`.
#[track_caller]
fn ends(files: &Files, code: &[&[u8]], options: &[&str]) -> (i32, String, Option<u64>) {
    let guest = files.guest("ends", &code.concat());
    let (status, _, error) = run(&[&["--kernel", &guest, "--json"], options].concat());
    let json: serde_json::Value = serde_json::from_str(error.lines().last().expect("a report")).unwrap();
    assert_eq!(json["status"], status, "{error}");
    (status, json["reason"].as_str().unwrap().to_owned(), json["workload_status"].as_u64())
}

#[test]
fn each_way_to_end_has_its_status() {
    let files = Files::new("ends");
    // mov dx, 0x505; mov al, 1; out dx, al: the kernel has panicked
    const PANIC: &[u8] = b"\x66\xba\x05\x05\xb0\x01\xee";
    // The same with 2: another kernel follows.
    const CRASH: &[u8] = b"\x66\xba\x05\x05\xb0\x02\xee";
    // in al, dx; out dx, al: what port 0x1f0d reads as
    const READ: &[u8] = b"\x66\xba\x0d\x1f\xec\xee";
    // mov al, 6; mov dx, 0xcf9; out dx, al; jmp $
    const RESET_CONTROL: &[u8] = b"\xb0\x06\x66\xba\xf9\x0c\xee\xeb\xfe";
    for platform in ["bare", "hvm"] {
        for (code, status, reason, workload) in [
            (&[POWER_OFF][..], 0, "power-off", None),
            (&[STATUS_7, POWER_OFF], 7, "power-off", Some(7)),
            (&[READ, POWER_OFF], i32::from(b'S'), "power-off", Some(b'S'.into())),
            (&[STATUS_7, RESET], RESET_UNASKED, "reset", Some(7)),
            (&[RESET_CONTROL], RESET_UNASKED, "reset", None),
            (&[STATUS_7, PANIC, POWER_OFF], PANICKED, "panic", Some(7)),
            (&[CRASH, STATUS_7, POWER_OFF], 7, "power-off", Some(7)),
            // ud2 without an IDT
            (&[STATUS_7, b"\x0f\x0b"], GUEST_DIED, "triple-fault", Some(7)),
            // cli; hlt
            (&[b"\xfa\xf4"], GUEST_DIED, "stuck", None),
            (&[b"\xeb\xfe"], TIMED_OUT, "time", None),
        ] {
            let ended = ends(&files, code, &["--platform", platform, "--limit", "0.001"]);
            assert_eq!(ended, (status, reason.to_owned(), workload), "{platform} {code:x?}");
        }
    }
}

#[test]
fn a_check_of_the_translation_has_the_guests_status() {
    let files = Files::new("checked-status");
    let ended = ends(&files, &[STATUS_7, POWER_OFF], &["--check-translation"]);
    assert_eq!(ended, (7, "power-off".to_owned(), Some(7)));
    let ended = ends(&files, &[STATUS_7, RESET], &["--check-translation"]);
    assert_eq!(ended, (RESET_UNASKED, "reset".to_owned(), Some(7)));
}

/// A guest that sets up its serial port as drivers do, clearing the FIFO and reading what came before, waits for so many bytes, sends
/// them back and powers off.
fn echo(files: &Files, count: u8) -> String {
    let mut code = Vec::new();
    // mov dx, port; mov al, value; out dx, al
    for (port, value) in [(0x3fc_u16, 0x0b_u8), (0x3fa, 0x07), (0x3fa, 0x01)] {
        let [low, high] = port.to_le_bytes();
        code.extend([0x66, 0xba, low, high, 0xb0, value, 0xee]);
    }
    code.extend([0x66, 0xba, 0xf8, 0x03, 0xec]); // mov dx, 0x3f8; in al, dx
    code.extend([0xb9, count, 0, 0, 0]); // mov ecx, count
    // wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; out dx, al; loop wait
    code.extend([0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0x66, 0xba, 0xf8, 0x03, 0xec, 0xee, 0xe2, 0xef]);
    code.extend(POWER_OFF);
    files.guest("echo", &code)
}

#[test]
fn input_waits_for_the_guest() {
    let files = Files::new("input");
    let text = "uname -r\nexit 7\n";
    let guest = echo(&files, text.len() as u8);
    let run = |input: Stdio, ledger: &str| {
        let arguments = ["run", "--kernel", &guest, "--timeout", "60", "--ledger", ledger];
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).stdin(input).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut child = run(Stdio::piped(), &files.path("pipe"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), text.to_owned()));
    // A file is there before the run begins: it repeats.
    let file = files.put("typed", text.as_bytes());
    let ledger = |name: &str| {
        let input = std::fs::File::open(&file).unwrap();
        let output = run(input.into(), &files.path(name)).wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), text.to_owned()));
        std::fs::read(files.path(name)).unwrap()
    };
    assert_eq!(ledger("one"), ledger("two"));
}

#[test]
fn an_idle_guest_follows_the_clock_of_whoever_may_type() {
    let files = Files::new("idle");
    // sti with an interrupt controller that lets none through; hlt
    let guest = files.guest("idle", b"\xb0\xff\xe6\x21\xe6\xa1\xfb\xf4\xeb\xfd");
    let seconds = |input: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--kernel", &guest, "--timeout", "0.5", "--json"]);
        let mut child = command.stdin(input).stderr(Stdio::piped()).spawn().unwrap();
        // An open pipe; it is closed only afterwards.
        let pipe = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(pipe);
        let error = String::from_utf8(output.stderr).unwrap();
        let json: serde_json::Value = serde_json::from_str(error.lines().last().unwrap()).unwrap();
        json["virtual_seconds"].as_f64().unwrap()
    };
    let (attended, alone) = (seconds(Stdio::piped()), seconds(Stdio::null()));
    assert!(attended < 1.0 && alone > 2.0 * attended, "{attended} {alone}");
}

#[test]
fn what_looks_like_a_panic_on_the_console_is_none() {
    let files = Files::new("looks");
    let print = |text: &str| -> Vec<u8> {
        let mut code = b"\xba\xf8\x03\0\0".to_vec();
        text.bytes().for_each(|byte| code.extend([0xb0, byte, 0xee]));
        code
    };
    let lines = print("Kernel panic - not syncing: no\r\n---[ end Kernel panic - not syncing: no ]---\r\n");
    let ended = ends(&files, &[&lines, STATUS_7, POWER_OFF], &[]);
    assert_eq!(ended, (7, "power-off".to_owned(), Some(7)));
    // Only for a kernel that nothing is known of they tell why it reset the machine.
    assert_eq!(ends(&files, &[&lines, RESET], &[]).0, PANICKED);
    assert_eq!(ends(&files, &[&print("a Kernel panic - not syncing: no\n"), RESET], &[]).0, RESET_UNASKED);
}

#[test]
fn kernels_that_are_none_are_refused() {
    let files = Files::new("kernels");
    let good = std::fs::read(files.good()).unwrap();
    refused(&["--kernel", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.path("")], "not a regular file");
    refused(&["--kernel", "/dev/zero"], "not a regular file");
    refused(&["--kernel", &files.put("photo", b"\xff\xd8\xff\xe0\x00\x10JFIF")], "is a JPEG picture");
    refused(&["--kernel", &files.put("empty", b"")], "the kernel is empty");
    refused(&["--kernel", &files.put("text", b"hello\n")], "the file is a text file");
    refused(&["--kernel", &files.put("zeroes", &[0; 100_000])], "all zeroes");
    refused(&["--kernel", &files.put("half", &good[..good.len() - 4])], "truncated");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("empty")], "the initrd is empty");
    refused(&["--kernel", &files.good(), "--append", &"a".repeat(5000)], "at most 4095");
}

/// Prints the command lines of its modules, each with a bar behind it, and exits with status 11.
const LIST_MODULES: &[u8] = b"\x8b\x73\x18\x8b\x4b\x14\xba\xf8\x03\0\0\x8b\x7e\x08\x8a\x07\x84\xc0\x74\x04\xee\x47\xeb\xf6\xb0|\xee\x83\xc6\x10\xe2\xeb\
    \xb0\x05\xe6\xf4\xeb\xfe";

#[test]
fn modules_come_with_their_command_lines() {
    let files = Files::new("modules");
    let guest = files.guest("guest", LIST_MODULES);
    let [kernel, initrd] = [files.put("kernel", b"1"), files.put("initrd,cpio", b"2")];
    let list = format!("{kernel} root=/dev/vda ro,,x, {} b", initrd.replace(',', ",,"));
    let (status, printed, error) = run(&["--kernel", &guest, "--initrd", &list]);
    // The guest is not told what files are called here.
    assert_eq!((status, printed.as_str()), (11, "initrd root=/dev/vda ro,x|initrd b|"), "{error}");
    for wrong in [format!("{kernel},"), format!("{kernel},{initrd}")] {
        refused(&["--kernel", &guest, "--initrd", &wrong], "No such file");
    }
}

#[test]
fn impossible_machines_are_refused() {
    let files = Files::new("machines");
    let good = files.good();
    let with = |option: &str, value: &str, message: &str| refused(&["--kernel", &good, option, value], message);
    let never =
        |option: &str, value: &str, message: &str| wrong_use(&["run", "--kernel", &good, option, value], message);
    never("--memory", "0", "0 bytes of guest memory is less than the minimum of 1 MiB");
    never("--memory", "100000", "less than the minimum of 1 MiB");
    never("--memory", "3000001", "not a multiple of 4096");
    never("--memory", "2T", "more than the maximum of 1 TiB");
    never("--cpus", "0", "a number from 1 to 255 is expected");
    never("--cpus", "300", "a number from 1 to 255 is expected");
    never("--cpu", "nonsense", "there is no processor profile 'nonsense'");
    with("--memory", "1M", "give it more memory");
    with("--cpu", &files.path("missing.toml"), "can't be read");
    with("--cpu", &files.put("broken.toml", b"name = \"x\"\n["), "line 2");
    with("--cpu", &files.put("little.toml", b"name = \"x\"\n"), "is missing");
    with("--cpu", &files.put("binary.toml", b"\xff\xfe\x00"), "not UTF-8");
    with("--cpu", "/dev/zero", "too many");
    with("--symbols", &files.path("missing"), "can't be read");
    with("--symbols", &format!("{good}@nowhere"), "not a hexadecimal address");
    with("--symbols", &files.put("picture.jpeg", b"\xff\xd8\xff\xe0"), "neither an ELF file nor a System.map");
    with("--symbols", &files.put("broken", b"\x7fELF and no more"), "not a readable ELF file");
}

#[test]
fn disks_are_checked() {
    let files = Files::new("disks");
    let good = files.good();
    refused(&["--kernel", &good, "--disk", &files.path("missing.img")], "No such file");
    refused(&["--kernel", &good, "--disk", &files.path("")], "neither a regular file nor a block device");
    refused(&["--kernel", &good, "--disk", &files.put("tiny.img", &[0; 100])], "smaller than one sector");
    let odd = files.put("odd.img", &[0; 1300]);
    assert_eq!(run(&["--kernel", &good, "--disk", &odd]).0, 0);
    assert_eq!(run(&["--kernel", &good, "--disk", &format!("{odd},ro")]).0, 0);
    let disk = files.put("mode.img", &[0; 512]);
    refused(&["--kernel", &good, "--disk", &format!("{disk},rx")], "the mode 'rx' is unknown: there is ro");
    assert_eq!(run(&["--kernel", &good, "--disk", &format!("{disk},ro")]).0, 0);
    let odd = files.put("odd.img,rx", &[0; 512]);
    assert_eq!(run(&["--kernel", &good, "--disk", &odd]).0, 0);
}

#[test]
fn wrong_arguments_are_explained() {
    let files = Files::new("arguments");
    let good = files.good();
    for arguments in [
        &[][..],
        &["--kernel"],
        &["--kernel", &good, "--memory", "lots"],
        &["--kernel", &good, "--memory", "99999999999T"],
        &["--kernel", &good, "--cpus", "x"],
        &["--kernel", &good, "--timeout", "0"],
        &["--kernel", &good, "--limit", "soon"],
        &["--kernel", &good, "--tier", "fast"],
        &["--kernel", &good, "--nonsense"],
        &["--kernel", &good, "--memory", "-5M"],
        &["--kernel", &good, "--timeout", "-1"],
        &["--kernel", &good, "--cpus", "-1"],
    ] {
        let (status, printed, error) = run(arguments);
        assert_eq!((status, printed.as_str()), (WRONG_ARGUMENTS, ""), "{arguments:?}: {error}");
        assert!(error.starts_with("error: "), "{error}");
        assert!(!error.contains("-- -"), "a wrong number is no file name: {error}");
    }
}

/// `tollgate report` with options: its exit status and what it says.
fn reported(ledger: &str, options: &[&str]) -> (i32, String) {
    let output = tollgate(&[&["report", ledger], options].concat());
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().expect("it was not killed"), text)
}

#[test]
fn a_report_without_effect_is_refused() {
    let files = Files::new("no-effect");
    let ledger = files.path("ledger");
    assert_eq!(run(&["--kernel", &files.good(), "--ledger", &ledger, "--call-sites"]).0, 0);
    let change = "direct(f)";
    for (status, options, message) in [
        (WRONG_ARGUMENTS, &["--what-if", change, "--by", "kind"][..], "leave out --by and --top, or use --json"),
        (WRONG_ARGUMENTS, &["--what-if", change, "--top", "3"], "leave out --by and --top, or use --json"),
        (WRONG_ARGUMENTS, &["--what-if", change, "--task", "x"], "leave out --task"),
        (WRONG_ARGUMENTS, &["--what-if", "direct(f=)"], "a target is missing"),
        (WRONG_ARGUMENTS, &["--stacks", "--percent-limit", "-1"], "a number from 0 to 100"),
        (WRONG_ARGUMENTS, &["--stacks", "--percent-limit", "nan"], "a number from 0 to 100"),
        // The guest has no indirect branches.
        (FAILED, &["--what-if", change], "--call-sites` record them"),
        (FAILED, &["--by", "call-site"], "--call-sites` record them"),
        (FAILED, &["--by", "call-site", "--json"], "--call-sites` record them"),
    ] {
        let (seen, text) = reported(&ledger, options);
        assert!(seen == status && text.contains(message), "{options:?}: {seen} {text}");
    }
}

#[test]
fn call_sites_are_those_of_a_level() {
    let files = Files::new("level-sites");
    // mov eax, the next instruction but one; jmp eax
    let jump = [b"\xb8".as_slice(), &(ENTRY + 7).to_le_bytes(), b"\xff\xe0", PRINT, POWER_OFF].concat();
    let (guest, ledger) = (files.guest("jump", &jump), files.path("ledger"));
    assert_eq!(run(&["--kernel", &guest, "--ledger", &ledger, "--call-sites"]).0, 0);
    let sites = |options: &[&str]| {
        let (status, text) = reported(&ledger, &[&["--json", "--by", "call-site"], options].concat());
        assert_eq!(status, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["call_sites"].as_array().unwrap().len()
    };
    assert_eq!((sites(&[]), sites(&["--level", "0"]), sites(&["--level", "1"])), (1, 1, 0));
    let (status, text) = reported(&ledger, &["--by", "call-site", "--level", "1"]);
    assert!(status == 0 && text.ends_with("This part of the run has no indirect branches.\n"), "{text}");
    let change = format!("direct({:#x})", ENTRY + 5);
    assert_eq!(reported(&ledger, &["--what-if", &change]).0, 0);
    let (status, text) = reported(&ledger, &["--what-if", &change, "--level", "1"]);
    assert!(status == WRONG_ARGUMENTS && text.contains("no indirect call or jump is at"), "{text}");
    let (status, text) = reported(&ledger, &["--what-if", &change, "--json", "--by", "class"]);
    assert!(status == 0 && text.contains("what_if"), "{text}");
}

#[test]
fn a_file_that_is_no_ledger_is_so_named() {
    let files = Files::new("no-ledger");
    let file = files.put("text", b"some text");
    for arguments in [&["report", &file][..], &["compare", &file, &file]] {
        let output = tollgate(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error), (Some(FAILED), format!("tollgate: error: {file} is not a ledger\n")));
    }
}

#[test]
fn a_ledger_that_cannot_be_written_is_known_before_the_run() {
    let files = Files::new("unwritable");
    let good = files.good();
    refused(&["--kernel", &good, "--ledger", &files.path("nowhere/run.ledger")], "can't write the ledger");
    refused(&["--kernel", &good, "--ledger", &files.path("")], "is a directory");
    wrong(&["--kernel", &good, "--ledger", "run.ledger", "--clock", "host"], "--ledger needs --clock virtual");
    wrong(&["--kernel", &good, "--model", "core", "--clock", "host"], "--model needs --clock virtual");
    let (status, _, error) = run(&["--kernel", &good, "--ledger", "/dev/full"]);
    assert_eq!(status, FAILED);
    assert!(error.starts_with("tollgate: error: can't write the ledger /dev/full: No space left"), "{error}");
}

#[test]
fn a_ledger_is_whole_or_not_there() {
    let files = Files::new("ledger");
    let (good, ledger) = (files.good(), files.path("run.ledger"));
    assert_eq!(run(&["--kernel", &good, "--ledger", &ledger]).0, 0);
    let first = std::fs::read(&ledger).unwrap();
    assert_eq!(run(&["--kernel", &good, "--ledger", &ledger]).0, 0);
    assert_eq!(std::fs::read(&ledger).unwrap(), first, "same run, same bytes");
    assert!(tollgate(&["report", &ledger]).status.success());
    assert!(tollgate(&["compare", &ledger, &ledger]).status.success());
    let names: Vec<_> = std::fs::read_dir(&files.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing is left behind: {names:?}");
    for broken in [&first[..first.len() / 2], b"", b"\xff\xd8\xff"] {
        let output = tollgate(&["report", &files.put("broken.ledger", broken)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(FAILED), "{error}");
        assert!(error.starts_with("tollgate: error: ") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn a_ledger_is_written_if_a_dynamic_loader_was_told_to_start_tollgate() {
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    if !loader.exists() {
        return;
    }
    let files = Files::new("loader");
    let (good, ledger) = (files.good(), files.path("run.ledger"));
    let output = Command::new(loader)
        .args([env!("CARGO_BIN_EXE_tollgate"), "run", "--kernel", &good, "--ledger", &ledger])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tollgate(&["report", &ledger]).status.success());
}

/// Checks the message of a guest that ends badly: the way in which it ended, and the position of each processor.
#[track_caller]
fn post_mortem(arguments: &[&str], status: i32, how: &str, place: &str, bytes: &str) {
    let (code, printed, error) = run(arguments);
    assert_eq!((code, printed.as_str()), (status, ""), "{error}");
    let mut lines = error.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with(&format!("tollgate: {how} after ")), "{error}");
    let cpu = lines.next().unwrap();
    assert!(cpu.starts_with("cpu 0 ") && cpu.contains(place) && cpu.contains(bytes), "{error}");
    assert!(cpu.contains("ring 0") && cpu.contains("32-bit code") && error.contains("rax="), "{error}");
}

#[test]
fn guests_that_end_badly_say_where() {
    let files = Files::new("endings");
    let triple = files.guest("triple", b"\x90\x0f\x0b");
    post_mortem(&["--kernel", &triple], GUEST_DIED, "triple fault on cpu 0", "rip 0x100031", "bytes 0f 0b");
    let halt = files.guest("halt", b"\xfa\xf4\xeb\xfd");
    let how = "all processors are halted, and no event can wake them";
    post_mortem(&["--kernel", &halt], GUEST_DIED, how, "rip 0x100032", "bytes eb fd");
    let spin = files.guest("spin", b"\xeb\xfe");
    for limit in ["--timeout", "--limit"] {
        let arguments = ["--kernel", &spin, limit, "0.01"];
        post_mortem(&arguments, TIMED_OUT, "time is up", "rip 0x100030", "bytes eb fe");
    }
    // Code outside RAM.
    let nowhere = files.guest("nowhere", b"\xea\0\0\0\xd0\x08\0");
    assert!(matches!(run(&["--kernel", &nowhere, "--limit", "0.01"]).0, GUEST_DIED | TIMED_OUT));
}

#[test]
fn garbage_is_survived() {
    let files = Files::new("garbage");
    let mut random = Random::new(1);
    for number in 0..24 {
        let code: Vec<u8> = (0..512).map(|_| random.next() as u8).collect();
        let guest = files.guest(&format!("garbage-{number}"), &code);
        let (status, _, error) = run(&["--kernel", &guest, "--limit", "0.01"]);
        assert!(!error.contains("panicked"), "{error}");
        assert!(status == GUEST_DIED || status == TIMED_OUT || status & 1 == 1 || status == 0, "{status}: {error}");
    }
}

#[test]
fn impossible_platforms_are_refused() {
    let files = Files::new("platforms");
    let good = files.good();
    let with = |options: &[&str], message: &str| refused(&[&["--kernel", &good], options].concat(), message);
    wrong(&["--kernel", &good, "--mmu", "tdp"], "--mmu is a switch of the hypervisor: it needs --platform hvm");
    wrong(&["--kernel", &good, "--platform", "emulated", "--paravirt", "on"], "--paravirt is a switch");
    let hvm = |options: &[&str], message: &str| with(&[&["--platform", "hvm"], options].concat(), message);
    hvm(
        &["--cpu", "core2", "--mmu", "tdp"],
        "--mmu tdp needs a processor with EPT, and core2 has none: use --mmu shadow",
    );
    hvm(&["--cpu", "core2", "--vpid", "on"], "--vpid on needs a processor with VPID");
    hvm(&["--cpu", "core2", "--unrestricted-guest", "on"], "--unrestricted-guest on needs a processor with");
    hvm(&["--mmu", "shadow", "--cr0-wp", "guest-owned"], "needs two-dimensional paging");
    hvm(&["--mmu", "shadow", "--unrestricted-guest", "on"], "needs two-dimensional paging");
    hvm(&["--mmu-pages", "65536"], "--mmu-pages 65536 is too much");
    hvm(&["--mmu-pages", "3"], "--mmu-pages 3 is too few");
    for (option, value, expected) in
        [("--mmu", "both", "shadow-nocache, shadow, legacy-tdp, tdp"), ("--vpid", "maybe", "on or off")]
    {
        let (status, _, error) = run(&["--kernel", &good, "--platform", "hvm", option, value]);
        assert_eq!(status, WRONG_ARGUMENTS);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn options_that_kvm_does_not_have_are_refused() {
    let files = Files::new("kvm");
    let (good, saved) = (files.good(), files.path("saved"));
    let table: [(&[&str], &str); 8] = [
        (&["--cpu", "skx"], "--cpu names a modelled processor"),
        (&["--clock", "virtual"], "--clock virtual needs instructions that are counted"),
        (&["--tier", "interpreter"], "--tier and --check-translation apply only to"),
        (&["--check-translation"], "--tier and --check-translation apply only to"),
        (&["--platform", "emulated"], "--platform applies only to code"),
        (&["--mmu", "tdp"], "--platform applies only to code"),
        (&["--gdb", "1"], "--gdb needs a run that can be repeated"),
        (&["--save-at", "1", &saved], "--save-at, --restore, --record and --replay need"),
    ];
    for (options, message) in table {
        wrong(&[&["--kernel", &good, "--backend", "kvm"], options].concat(), message);
        // Such a run is always Tollgate's own, also on a host with KVM.
        if !options.contains(&"--gdb") && !options.contains(&"--mmu") && !options.contains(&"--save-at") {
            let (status, printed, error) = run(&[&["--kernel", &good, "--backend", "auto"], options].concat());
            assert_eq!((status, printed.as_str()), (0, "*"), "{options:?}: {error}");
        }
    }
    // With a ledger too, which is of every cycle.
    let ledger = files.path("ledger");
    assert_eq!(run(&["--kernel", &good, "--backend", "auto", "--ledger", &ledger]).0, 0);
    let report = tollgate(&["report", &ledger]);
    assert!(!String::from_utf8_lossy(&report.stdout).contains("backend"));
}

#[test]
fn a_ledger_does_not_depend_on_the_tier() {
    let files = Files::new("tiers");
    let (good, ledger) = (files.good(), files.path("ledger"));
    let bytes = |options: &[&str]| {
        let (status, printed, error) = run(&[&["--kernel", &good, "--ledger", &ledger], options].concat());
        assert_eq!((status, printed.as_str(), error.as_str()), (0, "*", ""), "{options:?}");
        std::fs::read(&ledger).unwrap()
    };
    let interpreted = bytes(&["--tier", "interpreter"]);
    assert_eq!(bytes(&[]), interpreted);
    for tier in ["translator", "auto"] {
        assert_eq!(bytes(&["--tier", tier]), interpreted, "{tier}");
    }
    let (status, _, error) = run(&["--kernel", &good, "--tier", "fast"]);
    assert_eq!(status, WRONG_ARGUMENTS);
    assert!(error.contains("interpreter, translator, auto"), "{error}");
}

#[test]
fn a_translation_can_be_checked() {
    let files = Files::new("checked");
    let good = files.good();
    for tier in ["translator", "auto"] {
        let (status, printed, error) = run(&["--kernel", &good, "--tier", tier, "--check-translation"]);
        assert_eq!((status, printed.as_str()), (0, "*"), "{tier}: {error}");
        assert!(error.starts_with("tollgate: power off after ") && error.ends_with("; the tiers agree\n"), "{error}");
    }
    let endless = files.guest("endless", b"\xff\xc0\xeb\xfc");
    let (status, _, error) = run(&["--kernel", &endless, "--check-translation", "--limit", "0.001"]);
    assert_eq!(status, TIMED_OUT, "{error}");
    assert!(error.starts_with("tollgate: time is up after 0.0010"), "{error}");
    // It says what every run says: where a guest died, and JSON.
    let triple = files.guest("triple", b"\x90\x0f\x0b");
    let arguments = ["--kernel", &triple, "--check-translation"];
    post_mortem(&arguments, GUEST_DIED, "triple fault on cpu 0", "rip 0x100031", "bytes 0f 0b");
    let (status, _, error) = run(&["--kernel", &good, "--check-translation", "--json"]);
    let report: serde_json::Value = serde_json::from_str(error.lines().last().unwrap()).unwrap();
    assert_eq!((status, &report["ended"], &report["tiers_agree"]), (0, &"power off".into(), &true.into()), "{error}");
    let with = |options: &[&str], message: &str| {
        wrong(&[&["--kernel", &good, "--check-translation"], options].concat(), message);
    };
    with(&["--tier", "interpreter"], "has nothing to check: it needs --tier translator or auto");
    with(&["--clock", "host"], "needs --clock virtual");
    with(&["--ledger", &files.path("ledger")], "leave out --ledger");
    with(&["--record", &files.path("input")], "leave out --save-at, --restore, --record and --replay");
    with(&["--save-at", "1ms", &files.path("saved")], "leave out --save-at, --restore, --record and --replay");
    with(&["--disk", &files.put("disk.img", &[0; 1024])], "disk.img,ro");
}

/// The report of a run on a platform.
#[track_caller]
fn report(files: &Files, options: &[&str]) -> String {
    let ledger = files.path("ledger");
    let (status, printed, error) = run(&[&["--kernel", &files.good(), "--ledger", &ledger], options].concat());
    assert_eq!((status, printed.as_str(), error.as_str()), (0, "*", ""), "{options:?}");
    let output = tollgate(&["report", &ledger]);
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_emulator_s_prices_add_up() {
    let files = Files::new("emulated");
    let (bare, emulated) = (report(&files, &[]), report(&files, &["--platform", "emulated"]));
    for (text, platform) in [(&bare, "bare"), (&emulated, "emulated")] {
        assert!(text.contains("the entries add up to the clock"), "{text}");
        let line = text.lines().find(|line| line.starts_with("platform")).unwrap();
        assert!(line.ends_with(platform), "{line}");
    }
    assert_ne!(bare, emulated);
}

#[test]
fn a_snapshot_alone_is_enough() {
    let files = Files::new("restore-alone");
    // Prints, spins, and ends with the status port.
    let code = [PRINT, b"\xb9\0\0\x40\0\x49\x75\xfd", PRINT, STATUS_7, POWER_OFF].concat();
    let kernel = files.guest("kernel", &code);
    let disk = files.put("disk.img", &[0; 4096]);
    let (saved, whole) = (files.path("saved"), files.path("whole"));
    let read_only = format!("{disk},ro");
    let machine = ["--kernel", &kernel, "--append", "a b", "--memory", "16M", "--cpu", "icx", "--disk", &read_only];
    let net = ["--net", "bridge", "--platform", "hvm", "--mmu", "shadow", "--cr0-wp", "unload"];
    let (status, printed, error) =
        run(&[&machine[..], &net, &["--save-at", "0.0005", &saved, "--ledger", &whole]].concat());
    assert_eq!((status, printed.as_str(), error.as_str()), (7, "**", ""));
    let rest = files.path("rest");
    let restored = |more: &[&str]| run(&[&["--restore", &saved, "--ledger", &rest], more].concat());
    // From another directory, too: names of files are absolute.
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--restore", &saved, "--ledger", &rest])
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"*"[..]), "{output:?}");
    assert!(std::fs::read(&rest).unwrap() == std::fs::read(&whole).unwrap());
    assert_eq!(restored(&machine[..2]).0, 7);
    // An option that is given counts, and the machine is then another one.
    let (status, _, error) = restored(&["--append", "c"]);
    assert!(status == FAILED && error.contains("its command line is \"a b\", and here it is \"c\""), "{error}");
    let (status, _, error) = restored(&["--mmu", "tdp"]);
    assert!(status == FAILED && error.contains("it is of another machine"), "{error}");
    // A moved guest is no hypervisor. The option is blamed, and not the guest.
    let nested = ["run", "--restore", &saved, "--migrate", "skx", "--mmu", "tdp", "--nested", "on"];
    wrong_use(&nested, "--nested on can't be used with --migrate");
    // The kernel has changed since.
    files.guest("kernel", &[&code[..], b"\x90"].concat());
    let (status, _, error) = restored(&[]);
    let message = "can't be used: give the right one, by --kernel: its contents differ from those of the saved run";
    assert!(status == FAILED && error.contains(message) && error.lines().count() == 1, "{error}");
    // Without a snapshot the kernel is required, and nothing moves.
    assert_eq!(run(&["--append", "x"]).0, WRONG_ARGUMENTS);
    for words in [&["--migrate", "skx"][..], &["--kernel", "k", "--migrate", "skx"]] {
        wrong_use(&[&["run"], words].concat(), "--migrate goes with --restore");
    }
    let (status, _, error) = run(&["--restore", &files.put("nonsense", b"x")]);
    assert!(
        status == FAILED && error.contains("can't restore the snapshot") && error.contains("it is not a snapshot"),
        "{error}"
    );
}

#[test]
fn a_disk_that_the_guest_may_write_is_named_again() {
    let files = Files::new("restore-disk");
    let kernel = files.guest("kernel", &[b"\xb9\0\0\x40\0\x49\x75\xfd", POWER_OFF].concat());
    let (disk, saved) = (files.put("disk.img", &[0; 4096]), files.path("saved"));
    let machine = ["--kernel", &kernel, "--disk", &disk];
    assert_eq!(run(&[&machine[..], &["--save-at", "0.0005", &saved]].concat()).0, 0);
    refused(
        &["--restore", &saved],
        &format!("its machine may write to the disk {disk}: give the disk again, by --disk"),
    );
    assert_eq!(run(&["--restore", &saved, "--disk", &disk]).0, 0);
}

/// A command line is refused as a wrong one, with a message, and without a word about a command that was run.
#[track_caller]
fn wrong_use(arguments: &[&str], message: &str) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).env("TOLLGATE_CONFIG", "").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(WRONG_ARGUMENTS), "{arguments:?}: {error}");
    assert!(error.contains(message) && !error.contains("ended with status"), "{arguments:?}: {error}");
}

#[test]
fn no_command_writes_over_what_it_reads() {
    let files = Files::new("inputs");
    let file = &*files.put("x", b"what is read");
    let toml = &*files.put("x.toml", b"what is read");
    let lines: [&[&str]; 15] = [
        &["diff", "--load", file, "--html", file],
        &["diff", "--load", file, "--load", "other", "--junit", file],
        &["diff", "--save", file, "--", file],
        &["diff", file, "cloud", "--html", file, "--", "true"],
        &["diff", "--cpu", toml, "--html", toml, "--", "true"],
        &["report", file, "--svg", file],
        &["export", file, "--format", "folded", "--output", file],
        &["lab", "run", toml, "--html", toml],
        &["validate", "--from", file, "--html", file],
        &["series", "--tree", ".", "--range", "A..", "--config", file, "--html", file, "--", "true"],
        &["exec", "--ledger", file, "--", file],
        &["exec", "--kernel", file, "--ledger", file, "--", "true"],
        &["run", "--kernel", file, "--ledger", file],
        &["run", "--kernel", "k", "--disk", file, "--ledger", file],
        &["run", "--kernel", "k", "--cpu", toml, "--symbols", file, "--record", file],
    ];
    for line in lines {
        wrong_use(line, "name the same file: ");
        assert!([file, toml].iter().all(|file| std::fs::read(file).unwrap() == b"what is read"), "{line:?}");
    }
}

#[test]
fn names_that_a_file_does_not_have_are_a_wrong_use() {
    let files = Files::new("names");
    let kernel = files.guest("kernel", &[PRINT, POWER_OFF].concat());
    let ledger = &*files.path("ledger");
    assert_eq!(run(&["--kernel", &kernel, "--ledger", ledger, "--call-graph", "--call-sites"]).0, 0);
    let no_region = "the ledger has no regions of interest";
    wrong_use(&["report", ledger, "--region", "zz"], no_region);
    wrong_use(&["report", ledger, "--task", "zz"], "the ledger has no task 'zz'; it has: ");
    wrong_use(&["report", ledger, "--of", "zz"], "no call stack has the function 'zz'");
    wrong_use(&["report", ledger, "--event", "zz", "--folded"], "the ledger has no crossing 'zz' with call stacks");
    wrong_use(&["report", ledger, "--what-if", "cached(CPUID.4)"], "CPUID 0x4 was not executed here");
    wrong_use(&["compare", ledger, ledger, "--region", "zz"], no_region);
    wrong_use(&["compare", ledger, ledger, "--task", "zz"], "the ledger has no task 'zz'");
    for format in ["folded", "perf-script", "timeline"] {
        wrong_use(&["export", ledger, "--format", format, "--region", "zz"], no_region);
        wrong_use(&["export", ledger, "--format", format, "--task", "zz"], "the ledger has no task 'zz'");
    }
    wrong_use(&["export", ledger, "--format", "folded", "--event", "zz"], "the ledger has no crossing 'zz'");
    wrong_use(&["export", ledger, "--format", "timeline", "--event", "zz"], "leave it out");
}

#[test]
fn wrong_words_are_a_wrong_use() {
    let options: [(&[&str], &str); 8] = [
        (&["--cpu", "nosuch"], "there is no processor profile 'nosuch'"),
        (&["--cpu", "skx,foo"], "there is no such option; there are: pmu, unpatched"),
        (&["--cpu", "skx,"], "an option belongs behind each comma"),
        (&["--cpu", "skx,pmu,pmu"], "it is given twice"),
        (&["--memory", "5"], "5 bytes of guest memory is less than the minimum of 1 MiB"),
        (&["--cpus", "256"], "a number from 1 to 255 is expected"),
        (&["--platform", "hvm", "--cpu", "skx,pmu"], "it needs --platform bare"),
        (&["--mmu", "tdp"], "it needs --platform hvm"),
    ];
    for (words, message) in options {
        for command in ["exec", "stat", "diff"] {
            wrong_use(&[&[command], words, &["--", "true"]].concat(), message);
        }
        wrong_use(&[&["run", "--kernel", "k"], words].concat(), message);
    }
    wrong_use(&["stat", "--user", "nobody", "--", "true"], "--user nobody: root, or numbers");
    wrong_use(&["diff", "--side", "a", "--side", "b=--cpu=nosuch", "--", "true"], "no processor profile 'nosuch'");
    wrong_use(&["cpu", "show", "nosuch"], "there is no processor profile 'nosuch'");
    for option in ["--html=x", "--junit=x", "--json", "--markdown", "--csv", "--fail-above=1"] {
        let name = option.split('=').next().unwrap();
        let message = format!("{name} shows a comparison, and there is one side, a: name another one by --side");
        wrong_use(&["diff", "--side", "a", "--save", "y", option, "--", "true"], &message);
    }
}
