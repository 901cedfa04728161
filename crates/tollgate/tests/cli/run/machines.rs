//! Machines and platforms that cannot be, or that the options do not fit.

use crate::program::{Files, WRONG_ARGUMENTS, refused, run, tollgate, wrong, wrong_use};

#[test]
fn impossible_machines_are_refused() {
    let files = Files::new("machines");
    let good = files.good();
    let with = |option: &str, value: &str, message: &str| refused(&["--kernel", &good, option, value], message);
    let never =
        |option: &str, value: &str, message: &str| wrong_use(&["run", "--kernel", &good, option, value], message);
    never("--memory", "0", "0 bytes of guest memory is less than the minimum of 1 MiB");
    never("--memory", "100000", "less than the minimum of 1 MiB");
    never("--memory", "3000001", "not a multiple of 4096");
    never("--memory", "2T", "more than the maximum of 1 TiB");
    never("--cpus", "0", "a number from 1 to 255 is expected");
    never("--cpus", "300", "a number from 1 to 255 is expected");
    never("--cpu", "nonsense", "there is no processor profile 'nonsense'");
    with("--memory", "1M", "give it more memory");
    with("--cpu", &files.path("missing.toml"), "can't be read");
    with("--cpu", &files.put("broken.toml", b"name = \"x\"\n["), "line 2");
    with("--cpu", &files.put("little.toml", b"name = \"x\"\n"), "is missing");
    with("--cpu", &files.put("binary.toml", b"\xff\xfe\x00"), "not UTF-8");
    with("--cpu", "/dev/zero", "too many");
    with("--symbols", &files.path("missing"), "can't be read");
    with("--symbols", &format!("{good}@nowhere"), "not a hexadecimal address");
    with("--symbols", &files.put("picture.jpeg", b"\xff\xd8\xff\xe0"), "neither an ELF file nor a System.map");
    with("--symbols", &files.put("broken", b"\x7fELF and no more"), "not a readable ELF file");
}

#[test]
fn impossible_platforms_are_refused() {
    let files = Files::new("platforms");
    let good = files.good();
    let with = |options: &[&str], message: &str| refused(&[&["--kernel", &good], options].concat(), message);
    wrong(&["--kernel", &good, "--mmu", "tdp"], "--mmu is a switch of the hypervisor: it needs --platform hvm");
    wrong(&["--kernel", &good, "--platform", "emulated", "--paravirt", "on"], "--paravirt is a switch");
    let hvm = |options: &[&str], message: &str| with(&[&["--platform", "hvm"], options].concat(), message);
    hvm(
        &["--cpu", "core2", "--mmu", "tdp"],
        "--mmu tdp needs a processor with EPT, and core2 has none: use --mmu shadow",
    );
    hvm(&["--cpu", "core2", "--vpid", "on"], "--vpid on needs a processor with VPID");
    hvm(&["--cpu", "core2", "--unrestricted-guest", "on"], "--unrestricted-guest on needs a processor with");
    hvm(&["--mmu", "shadow", "--cr0-wp", "guest-owned"], "needs two-dimensional paging");
    hvm(&["--mmu", "shadow", "--unrestricted-guest", "on"], "needs two-dimensional paging");
    hvm(&["--mmu-pages", "65536"], "--mmu-pages 65536 is too much");
    hvm(&["--mmu-pages", "3"], "--mmu-pages 3 is too few");
    for (option, value, expected) in
        [("--mmu", "both", "shadow-nocache, shadow, legacy-tdp, tdp"), ("--vpid", "maybe", "on or off")]
    {
        let (status, _, error) = run(&["--kernel", &good, "--platform", "hvm", option, value]);
        assert_eq!(status, WRONG_ARGUMENTS);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn options_that_kvm_does_not_have_are_refused() {
    let files = Files::new("kvm");
    let (good, saved) = (files.good(), files.path("saved"));
    let table: [(&[&str], &str); 8] = [
        (&["--cpu", "skx"], "--cpu names a modelled processor"),
        (&["--clock", "virtual"], "--clock virtual needs instructions that are counted"),
        (&["--tier", "interpreter"], "--tier and --check-translation apply only to"),
        (&["--check-translation"], "--tier and --check-translation apply only to"),
        (&["--platform", "emulated"], "--platform applies only to code"),
        (&["--mmu", "tdp"], "--platform applies only to code"),
        (&["--gdb", "1"], "--gdb needs a run that can be repeated"),
        (&["--save-at", "1", &saved], "--save-at, --restore, --record and --replay need"),
    ];
    for (options, message) in table {
        wrong(&[&["--kernel", &good, "--backend", "kvm"], options].concat(), message);
        // Such a run is always Tollgate's own, also on a host with KVM.
        if !options.contains(&"--gdb") && !options.contains(&"--mmu") && !options.contains(&"--save-at") {
            let (status, printed, error) = run(&[&["--kernel", &good, "--backend", "auto"], options].concat());
            assert_eq!((status, printed.as_str()), (0, "*"), "{options:?}: {error}");
        }
    }
    // With a ledger too, which is of every cycle.
    let ledger = files.path("ledger");
    assert_eq!(run(&["--kernel", &good, "--backend", "auto", "--ledger", &ledger]).0, 0);
    let report = tollgate(&["report", &ledger]);
    assert!(!String::from_utf8_lossy(&report.stdout).contains("backend"));
}
