//! `tollgate report`: refused options and files, and sums of a run.

use crate::program::{ENTRY, FAILED, Files, POWER_OFF, PRINT, WRONG_ARGUMENTS, run, tollgate};

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
    assert!(status == 0 && text.contains("\nThis part of the run has no indirect branches.\n"), "{text}");
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
