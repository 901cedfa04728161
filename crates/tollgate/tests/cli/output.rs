//! What every command does with its output: lost output, readers that go away, files that two options name.

use crate::program::{FAILED, Files, POWER_OFF, PRINT, UNREAD, tollgate, wrong, wrong_use};
use std::path::Path;
use std::process::{Command, Stdio};

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
