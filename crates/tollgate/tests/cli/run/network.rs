//! Networks, and several machines of one run.

use crate::program::{FAILED, Files, WRONG_ARGUMENTS, refused, run, wrong};
use ledger::Ledger;
use std::process::Command;

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
