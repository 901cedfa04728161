//! Both tiers of the processor, and the comparison of them.

use crate::program::{
    Files, GUEST_DIED, POWER_OFF, RESET, RESET_UNASKED, STATUS_7, TIMED_OUT, WRONG_ARGUMENTS, ends, post_mortem, run,
    wrong,
};

#[test]
fn a_check_of_the_translation_has_the_guests_status() {
    let files = Files::new("checked-status");
    let ended = ends(&files, &[STATUS_7, POWER_OFF], &["--check-translation"]);
    assert_eq!(ended, (7, "power-off".to_owned(), Some(7)));
    let ended = ends(&files, &[STATUS_7, RESET], &["--check-translation"]);
    assert_eq!(ended, (RESET_UNASKED, "reset".to_owned(), Some(7)));
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
