//! One command in two kernels. The tests need the distribution's cloud kernel in the cache (`guests/linux/kernel`, `guests/linux/kernel --modules`), and
//! pass without having looked at anything where it is not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const WRONG_USE: i32 = 2;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(repository()).args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs a command in the cloud kernel, if that is here.
fn run(arguments: &[&str]) -> Option<Output> {
    let cache = repository().join("guests/linux/cache");
    if !cache.join("kernel-cloud/release").is_file() || !cache.join("unpacked").is_dir() {
        eprintln!("skipped: the cloud kernel and its modules are not in guests/linux/cache");
        return None;
    }
    Some(program(arguments))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diff-{test}"));
    // The rest of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn the_same_line_says_the_same() {
    let line =
        ["diff", "--kernel", "cloud", "--a", "mitigations=off", "--json", "--", "sh", "-c", "cat /proc/self/maps"];
    let Some(first) = run(&line) else { return };
    assert!(first.status.success(), "{}", text(&first.stderr));
    let value: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(value["verdict"]["answer"], "more");
    assert!(value["sentence"].as_str().unwrap().starts_with("B costs "));
    assert_eq!(value["a"]["title"], "cloud, mitigations=off");
    let second = run(&line).unwrap();
    assert_eq!(text(&first.stdout), text(&second.stdout));
}

#[test]
fn a_seed_is_a_layout() {
    let files = directory("seed");
    let ledger = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let mut places = Vec::new();
    for (name, seed) in [("a", "3"), ("b", "3"), ("c", "4")] {
        let (ledger, script) = (ledger(name), "grep ' _text$' /proc/kallsyms");
        let line = ["exec", "--kernel", "cloud", "--user", "root", "--settle", "0.1", "--seed", seed, "--ledger"];
        let Some(output) = run(&[&line[..], &[&ledger, "--", "sh", "-c", script]].concat()) else { return };
        assert!(output.status.success(), "{}", text(&output.stderr));
        places.push(text(&output.stdout));
    }
    let bytes = |name: &str| std::fs::read(ledger(name)).unwrap();
    assert!(bytes("a") == bytes("b") && bytes("a") != bytes("c"));
    assert!(places[0] == places[1] && places[0] != places[2], "{places:?}");
}

#[test]
fn a_command_that_fails_is_named_with_its_side() {
    let Some(output) = run(&["diff", "--kernel", "cloud", "--", "sh", "-c", "echo why >&2; exit 7"]) else { return };
    let errors = "tollgate: A: sh -c echo why >&2; exit 7 ended with status 7\n    | why\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(7), errors));
}

#[test]
fn a_wrong_use_is_told_apart() {
    for line in [
        &["diff", "cloud", "--", "true"][..],
        &["diff", "a", "b", "--kernel", "c", "--", "true"],
        &["diff", "a", "b"],
        &["diff", "--vary", "1", "--", "true"],
        &["diff", "--cpu", "skx", "--cpu", "icx", "--cpu", "emr", "--", "true"],
        &["diff", "--fail-above", "-1%", "--", "true"],
    ] {
        assert_eq!(program(line).status.code(), Some(WRONG_USE), "{line:?}");
    }
}
