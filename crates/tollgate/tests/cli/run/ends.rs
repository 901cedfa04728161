//! The ends of a run: its exit status, its JSON, and what it says of a guest that dies.

use crate::program::{
    Files, GUEST_DIED, PANICKED, POWER_OFF, RESET, RESET_UNASKED, STATUS_7, TIMED_OUT, ends, post_mortem, run, tollgate,
};
use testkit::Random;

#[test]
fn a_guest_runs() {
    let files = Files::new("runs");
    let (status, printed, error) = run(&["--kernel", &files.good()]);
    assert_eq!((status, printed.as_str(), error.as_str()), (0, "*", ""));
    let exit = files.guest("exit", b"\xb0\x05\xe6\xf4\xeb\xfe");
    assert_eq!(run(&["--kernel", &exit]).0, 5 << 1 | 1);
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
fn the_time_of_a_run_that_ends_asleep_is_that_of_its_ledger() {
    let files = Files::new("asleep");
    // sti with an interrupt controller that lets none through; hlt
    let guest = files.guest("asleep", b"\xb0\xff\xe6\x21\xe6\xa1\xfb\xf4\xeb\xfd");
    let ledger = files.path("ledger");
    for cpus in ["1", "2"] {
        let line = ["--kernel", &guest, "--cpus", cpus, "--limit", "0.05", "--ledger", &ledger];
        let (status, _, error) = run(&line);
        assert_eq!(status, TIMED_OUT, "{error}");
        assert!(error.starts_with("tollgate: time is up after 0.05"), "{error}");
        let said = error.split(" after ").nth(1).unwrap().split(" s of").next().unwrap();
        let output = tollgate(&["report", &ledger]);
        let report = String::from_utf8_lossy(&output.stdout);
        let time = report.lines().find_map(|line| line.strip_prefix("virtual time ")).unwrap();
        assert_eq!(time.trim(), format!("{said} s"), "{report}");
    }
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
