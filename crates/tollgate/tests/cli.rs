//! The program as a user meets it: what it says, on which stream, and with which exit status.

use cpu::testing::Random;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where a guest's code is.
const ENTRY: u32 = 0x10_0030;

/// Exit statuses, as `tollgate run --help` lists them.
const WRONG_ARGUMENTS: i32 = 2;
const TIMED_OUT: i32 = 124;
const GUEST_DIED: i32 = 125;
const FAILED: i32 = 126;

/// A directory of files for one test.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        // What an earlier run has left.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    /// A multiboot image with this code, entered in 32-bit protected mode with an empty IDT.
    fn guest(&self, name: &str, code: &[u8]) -> String {
        let flags = 1u32 << 16;
        let end = ENTRY + code.len() as u32;
        let mut image = Vec::new();
        for word in [
            0x1bad_b002,
            flags,
            0u32.wrapping_sub(0x1bad_b002 + flags),
            0x10_0000,
            0x10_0000,
            end,
            end,
            ENTRY,
            0,
            0,
            0,
            0,
        ] {
            image.extend(word.to_le_bytes());
        }
        image.extend(code);
        self.put(name, &image)
    }

    /// A guest that prints `*` and resets the machine.
    fn good(&self) -> String {
        self.guest("good", b"\xba\xf8\x03\0\0\xb0*\xee\xb0\xfe\xe6\x64\xeb\xfe")
    }
}

fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap()
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = tollgate(&[&["run"], arguments].concat());
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("it was not killed"), text(&output.stdout), text(&output.stderr))
}

/// The run is refused in one line that contains `message`, before the guest does anything.
#[track_caller]
fn refused(arguments: &[&str], message: &str) {
    let (status, printed, error) = run(arguments);
    assert_eq!((status, printed.as_str()), (FAILED, ""), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("tollgate: error: ") && error.contains(message), "{error}");
}

#[test]
fn a_guest_runs() {
    let files = Files::new("runs");
    let (status, printed, error) = run(&["--kernel", &files.good()]);
    assert_eq!((status, printed.as_str(), error.as_str()), (0, "*", ""));
    let exit = files.guest("exit", b"\xb0\x05\xe6\xf4\xeb\xfe");
    assert_eq!(run(&["--kernel", &exit]).0, 5 << 1 | 1);
}

#[test]
fn kernels_that_are_none_are_refused() {
    let files = Files::new("kernels");
    let good = std::fs::read(files.good()).unwrap();
    refused(&["--kernel", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.path("")], "not a regular file");
    refused(&["--kernel", "/dev/zero"], "not a regular file");
    refused(&["--kernel", &files.put("photo", b"\xff\xd8\xff\xe0\x00\x10JFIF")], "is a JPEG picture");
    refused(&["--kernel", &files.put("empty", b"")], "the kernel is empty");
    refused(&["--kernel", &files.put("text", b"hello\n")], "not in a format that is recognized");
    refused(&["--kernel", &files.put("zeroes", &[0; 100_000])], "all zeroes");
    refused(&["--kernel", &files.put("half", &good[..good.len() - 4])], "truncated");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("empty")], "the initrd is empty");
    refused(&["--kernel", &files.good(), "--append", &"a".repeat(5000)], "at most 4095");
}

/// Prints the command lines of its modules, each with a bar behind it, and exits with status 11.
const LIST_MODULES: &[u8] = b"\x8b\x73\x18\x8b\x4b\x14\xba\xf8\x03\0\0\x8b\x7e\x08\x8a\x07\x84\xc0\x74\x04\xee\x47\xeb\xf6\xb0|\xee\x83\xc6\x10\xe2\xeb\
    \xb0\x05\xe6\xf4\xeb\xfe";

#[test]
fn modules_come_with_their_command_lines() {
    let files = Files::new("modules");
    let guest = files.guest("guest", LIST_MODULES);
    let [kernel, initrd] = [files.put("kernel", b"1"), files.put("initrd,cpio", b"2")];
    let list = format!("{kernel} root=/dev/vda ro,,x, {} b", initrd.replace(',', ",,"));
    let (status, printed, error) = run(&["--kernel", &guest, "--initrd", &list]);
    assert_eq!((status, printed), (11, format!("{kernel} root=/dev/vda ro,x|{initrd} b|")), "{error}");
    for wrong in [format!("{kernel},"), format!("{kernel},{initrd}")] {
        refused(&["--kernel", &guest, "--initrd", &wrong], "No such file");
    }
}

#[test]
fn impossible_machines_are_refused() {
    let files = Files::new("machines");
    let good = files.good();
    let with = |option: &str, value: &str, message: &str| refused(&["--kernel", &good, option, value], message);
    with("--memory", "0", "less than the minimum of 1 MiB");
    with("--memory", "100000", "less than the minimum of 1 MiB");
    with("--memory", "1M", "give it more memory");
    with("--memory", "3000001", "not a multiple of 4096");
    with("--memory", "2T", "more than the maximum of 1 TiB");
    with("--cpus", "0", "0 processors");
    with("--cpus", "300", "300 processors: between 1 and 255");
    with("--cpu", "nonsense", "there is no processor profile 'nonsense'");
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
fn disks_are_checked() {
    let files = Files::new("disks");
    let good = files.good();
    refused(&["--kernel", &good, "--disk", &files.path("missing.img")], "No such file");
    refused(&["--kernel", &good, "--disk", &files.path("")], "neither a regular file nor a block device");
    refused(&["--kernel", &good, "--disk", &files.put("tiny.img", &[0; 100])], "smaller than one sector");
    let odd = files.put("odd.img", &[0; 1300]);
    assert_eq!(run(&["--kernel", &good, "--disk", &odd]).0, 0);
    assert_eq!(run(&["--kernel", &good, "--disk", &format!("{odd},ro")]).0, 0);
}

#[test]
fn wrong_arguments_are_explained() {
    let files = Files::new("arguments");
    let good = files.good();
    for arguments in [
        &[][..],
        &["--kernel"],
        &["--kernel", &good, "--memory", "lots"],
        &["--kernel", &good, "--memory", "99999999999T"],
        &["--kernel", &good, "--cpus", "x"],
        &["--kernel", &good, "--timeout", "0"],
        &["--kernel", &good, "--limit", "soon"],
        &["--kernel", &good, "--tier", "fast"],
        &["--kernel", &good, "--nonsense"],
    ] {
        let (status, printed, error) = run(arguments);
        assert_eq!((status, printed.as_str()), (WRONG_ARGUMENTS, ""), "{arguments:?}: {error}");
        assert!(error.starts_with("error: "), "{error}");
    }
}

#[test]
fn a_ledger_that_cannot_be_written_is_known_before_the_run() {
    let files = Files::new("unwritable");
    let good = files.good();
    refused(&["--kernel", &good, "--ledger", &files.path("nowhere/run.ledger")], "can't write the ledger");
    refused(&["--kernel", &good, "--ledger", &files.path("")], "is a directory");
    refused(&["--kernel", &good, "--ledger", "run.ledger", "--clock", "host"], "--ledger needs --clock virtual");
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

/// What a guest that ended badly leaves: a line that says how, and where each processor was.
#[track_caller]
fn post_mortem(arguments: &[&str], status: i32, how: &str, place: &str, bytes: &str) {
    let (code, printed, error) = run(arguments);
    assert_eq!((code, printed.as_str()), (status, ""), "{error}");
    let mut lines = error.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with(&format!("tollgate: {how} after ")), "{error}");
    let cpu = lines.next().unwrap();
    assert!(cpu.starts_with("cpu 0 ") && cpu.contains(place) && cpu.contains(bytes), "{error}");
    assert!(cpu.contains("ring 0") && cpu.contains("32-bit code") && error.contains("rax="), "{error}");
}

#[test]
fn guests_that_end_badly_say_where() {
    let files = Files::new("endings");
    let triple = files.guest("triple", b"\x90\x0f\x0b");
    post_mortem(&["--kernel", &triple], GUEST_DIED, "triple fault on cpu 0", "rip 0x100031", "bytes 0f 0b");
    let halt = files.guest("halt", b"\xfa\xf4\xeb\xfd");
    let how = "every processor is halted with interrupts off";
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

#[test]
fn impossible_platforms_are_refused() {
    let files = Files::new("platforms");
    let good = files.good();
    let with = |options: &[&str], message: &str| refused(&[&["--kernel", &good], options].concat(), message);
    with(&["--mmu", "tdp"], "--mmu is a switch of the hypervisor: it needs --platform hvm");
    with(&["--platform", "emulated", "--paravirt", "on"], "--paravirt is a switch");
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
        assert!(error.starts_with("tollgate: reset after ") && error.ends_with("; the tiers agree\n"), "{error}");
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
    assert_eq!((status, &report["ended"], &report["tiers_agree"]), (0, &"reset".into(), &true.into()), "{error}");
    let with = |options: &[&str], message: &str| {
        refused(&[&["--kernel", &good, "--check-translation"], options].concat(), message);
    };
    with(&["--tier", "interpreter"], "has nothing to check: it needs --tier translator or auto");
    with(&["--clock", "host"], "needs --clock virtual");
    with(&["--ledger", &files.path("ledger")], "leave out --ledger");
    with(&["--disk", &files.put("disk.img", &[0; 1024])], "disk.img,ro");
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
