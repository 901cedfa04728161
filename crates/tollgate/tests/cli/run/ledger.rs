//! A run's ledger file.

use crate::program::{FAILED, Files, refused, run, tollgate, wrong};
use std::path::Path;
use std::process::Command;

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
