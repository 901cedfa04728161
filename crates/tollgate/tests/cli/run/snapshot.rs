//! Snapshots of a run.

use crate::program::{FAILED, Files, POWER_OFF, PRINT, STATUS_7, WRONG_ARGUMENTS, refused, run, tollgate, wrong_use};
use std::process::Command;

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
