//! Limits of the shell under which the program is started.

use crate::program::{FAILED, Files};
use std::process::Command;

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
