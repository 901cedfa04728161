//! The same run twice: the same output, exit status, clocks and ledger, to the byte.
//!
//! The guests are the bare-metal programs of `guests/bare`, which `make -C guests/bare` builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The results of one run.
#[derive(PartialEq, Eq)]
struct Left {
    status: Option<i32>,
    output: Vec<u8>,
    report: Vec<u8>,
    ledger: Vec<u8>,
}

fn guest(program: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let path = target.join("guests").join(program);
    if !path.is_file() {
        eprintln!("skipped: {} is not built (make -C guests/bare)", path.display());
        return None;
    }
    Some(path)
}

fn run(kernel: &Path, ledger: &Path, arguments: &[&str]) -> Left {
    let done = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--json", "--timeout", "600", "--kernel"])
        .arg(kernel)
        .arg("--ledger")
        .arg(ledger)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("tollgate can be run");
    let ledger = std::fs::read(ledger).expect("the run left a ledger");
    Left { status: done.status.code(), output: done.stdout, report: without_memory(&done.stderr), ledger }
}

/// A report without what the run took of the host's memory, which is not the guest's affair.
fn without_memory(report: &[u8]) -> Vec<u8> {
    const BEGIN: &str = "\"memory\":{";
    let text = String::from_utf8_lossy(report);
    let cut = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once("},")?.1)));
    match cut {
        Some((before, after)) => format!("{before}{after}").into_bytes(),
        None => report.to_vec(),
    }
}

fn twice(program: &str, arguments: &[&str], status: i32) {
    let Some(kernel) = guest(program) else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-determinism-{}-{program}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    let runs: Vec<Left> = ["a", "b"].map(|name| run(&kernel, &directory.join(name), arguments)).into();
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
    let report = String::from_utf8_lossy(&runs[0].report).into_owned();
    assert_eq!(runs[0].status, Some(status), "{report}");
    assert_eq!(report, String::from_utf8_lossy(&runs[1].report));
    assert!(!runs[0].ledger.is_empty());
    assert!(runs[0] == runs[1], "{program}: two runs differ");
}

#[test]
fn processes_that_switch() {
    twice("switch.elf", &["--append", "iterations=2000"], 1);
}

#[test]
fn page_faults_on_another_processor_model() {
    twice("fault.pvh", &["--append", "iterations=2000", "--cpu", "icx"], 1);
}

#[test]
fn a_run_that_virtual_time_ends() {
    twice("spin.elf", &["--limit", "0.02"], 124);
}

#[test]
fn code_that_was_never_meant_to_be_run() {
    let Some(kernel) = guest("garbage.elf") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-determinism-{}-garbage", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    for seed in 1..4 {
        let arguments = ["--append", &format!("seed={seed}"), "--limit", "0.05"];
        let [a, b] = ["a", "b"].map(|name| run(&kernel, &directory.join(name), &arguments));
        assert!(a == b, "garbage with seed {seed}: two runs differ");
    }
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
}

#[test]
fn a_run_from_another_directory_under_other_names() {
    let Some(kernel) = guest("fault.pvh") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-determinism-{}-names", std::process::id()));
    let runs = [("here", "kernel.pvh", "module", "disk.img"), ("there/below", "a-longer-name", "m", "another")];
    let ledgers = runs.map(|(place, image, module, disk)| {
        let place = directory.join(place);
        std::fs::create_dir_all(&place).expect("a directory for the run can be made");
        std::fs::copy(&kernel, place.join(image)).expect("the kernel can be copied");
        std::fs::write(place.join(module), b"a module").expect("a module can be written");
        std::fs::write(place.join(disk), [7; 4096]).expect("a disk can be written");
        let done = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .current_dir(&place)
            .args(["run", "--kernel", image, "--initrd", module, "--disk", disk, "--append", "iterations=100"])
            .args(["--ledger", image.strip_suffix(".pvh").unwrap_or("ledger")])
            .stdin(Stdio::null())
            .output()
            .expect("tollgate can be run");
        assert_eq!(done.status.code(), Some(1), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::read(place.join(image.strip_suffix(".pvh").unwrap_or("ledger"))).expect("the run left a ledger")
    });
    // The contents of a disk do not depend on its name.
    std::fs::write(directory.join("here/disk.img"), [8; 4096]).expect("a disk can be written");
    let other = run(
        &directory.join("here/kernel.pvh"),
        &directory.join("other"),
        &["--disk", directory.join("here/disk.img").to_str().expect("is text"), "--append", "iterations=100"],
    );
    std::fs::remove_dir_all(&directory).expect("the directory can be removed");
    assert!(ledgers[0] == ledgers[1], "the ledgers differ");
    assert!(ledgers[0] != other.ledger, "another disk is another run");
}

#[test]
fn call_sites_are_the_same_on_both_tiers_and_cost_nothing() {
    let Some(kernel) = guest("indirect.elf") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-call-sites-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    let guest = ["--append", "iterations=500 targets=3"];
    let with = |name: &str, more: &[&str]| run(&kernel, &directory.join(name), &[&guest, more].concat());
    for platform in ["bare", "hvm"] {
        let tiers = ["interpreter", "translator"];
        let [interpreted, translated] =
            tiers.map(|tier| with(tier, &["--call-sites", "--platform", platform, "--tier", tier]));
        assert!(!interpreted.ledger.is_empty());
        assert!(interpreted.ledger == translated.ledger, "{platform}: the tiers differ");
        let without = with("without", &["--platform", platform]);
        assert!(without.ledger != interpreted.ledger, "{platform}: branches are recorded");
        let clock = |left: &Left| {
            let document: serde_json::Value = serde_json::from_slice(&left.report).expect("is JSON");
            document["virtual_seconds"].clone()
        };
        assert_eq!(clock(&without), clock(&interpreted), "{platform}: recording branches takes no virtual time");
    }
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
}

#[test]
fn pictures_of_a_run_do_not_change_it() {
    let Some(kernel) = guest("switch.elf") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-top-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    let guest = ["--append", "iterations=20000", "--cpus", "2"];
    let with = |name: &str, more: &[&str]| run(&kernel, &directory.join(name), &[&guest, more].concat());
    let (without, shown) = (with("without", &[]), with("shown", &["--top=0.01"]));
    let pictures = String::from_utf8_lossy(&shown.report);
    assert!(pictures.contains("skx, core: virtual time"), "{pictures}");
    assert!(pictures.contains("MOV CR3") && pictures.contains("Functions"), "{pictures}");
    assert!(without.ledger == shown.ledger, "the ledgers differ");
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
}

#[test]
fn stacks_are_the_same_on_both_tiers_and_cost_nothing() {
    let Some(kernel) = guest("indirect.elf") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-stacks-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    let guest = ["--append", "iterations=500 targets=3"];
    let with = |name: &str, more: &[&str]| run(&kernel, &directory.join(name), &[&guest, more].concat());
    let charges = |name: &str| {
        let ledger = directory.join(name);
        let done = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("report")
            .arg(ledger)
            .args(["--json", "--top", "0"])
            .output();
        done.expect("tollgate can be run").stdout
    };
    for platform in ["bare", "hvm"] {
        let stacks = ["--platform", platform, "--sample", "1us", "--call-graph", "--trace"];
        let [interpreted, translated] =
            ["interpreter", "translator"].map(|tier| with(tier, &[&stacks[..], &["--tier", tier]].concat()));
        assert!(!interpreted.ledger.is_empty());
        assert!(interpreted.ledger == translated.ledger, "{platform}: the tiers differ");
        let without = with("without", &["--platform", platform]);
        assert!(without.ledger != interpreted.ledger, "{platform}: stacks are recorded");
        assert!(!charges("without").is_empty());
        assert!(charges("without") == charges("translator"), "{platform}: charges are as they would be without");
    }
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
}

#[test]
fn a_guest_moves_to_the_other_makers_processor() {
    let Some(kernel) = guest("kernel-i386.elf") else { return };
    let directory = std::env::temp_dir().join(format!("tollgate-determinism-{}-moved", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for ledgers can be made");
    let snapshot = directory.join("snapshot");
    let snapshot = snapshot.to_str().expect("is text");
    let machine = ["--cpu", "core2", "--memory", "64M", "--platform", "hvm", "--mmu", "shadow", "--paravirt", "on"];
    let workload = ["--append", "workload=hackbench tasks=8 loops=100 paravirt=1", "--save-at", "0.02", snapshot];
    let saved = run(&kernel, &directory.join("saved"), &[&machine[..], &workload].concat());
    assert_eq!(saved.status, Some(1), "{}", String::from_utf8_lossy(&saved.report));
    let restored = |name: &str, options: &[&str]| {
        run(&kernel, &directory.join(name), &[&["--restore", snapshot][..], options].concat())
    };
    let moved = ["interpreter", "translator", "auto"]
        .map(|tier| restored(tier, &["--migrate", "zen3", "--tier", tier]))
        .map(|left| (left.status, left.output, left.ledger));
    let output = String::from_utf8_lossy(&moved[0].1).into_owned();
    assert!(moved[0].0 == Some(1) && output.contains("kernel: pass"), "{output}");
    assert!(moved.iter().all(|left| *left == moved[0]), "the tiers differ");
    assert!(moved[0].2 != saved.ledger);
    let ledger = ledger::Ledger::read(&moved[0].2).expect("is a ledger");
    let fact = &ledger.header.metadata["moved"];
    assert!(ledger.header.profile == "zen3" && fact.starts_with("core2 to zen3 after "), "{fact}");
    let refused = |options: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["run", "--restore", snapshot])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .expect("tollgate can be run");
        assert_eq!(done.status.code(), Some(126));
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    assert!(refused(&["--cpu", "zen3"]).contains("here it is zen3: --migrate moves a guest"));
    assert!(refused(&["--migrate", "zen3", "--mmu", "tdp"]).contains("which needs --mmu shadow"));
    std::fs::remove_dir_all(&directory).expect("the ledgers can be removed");
}
