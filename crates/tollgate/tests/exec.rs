//! Commands of this host in a guest kernel. The tests need the distribution's cloud kernel in the cache (`guests/linux/kernel`, `guests/linux/kernel --modules`), and
//! pass without having looked at anything where it is not there.

use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const OUT_OF_MEMORY: i32 = 120;
const PANICKED: i32 = 123;
const TIMED_OUT: i32 = 124;
const LOST: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const SIGNALLED: i32 = 128;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The kernel's image and the directory of its modules.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let cache = repository().join("guests/linux/cache");
    let word =
        |file: &str| Some(std::fs::read_to_string(cache.join("kernel-cloud").join(file)).ok()?.trim().to_owned());
    let (package, release) = (word("package")?, word("release")?);
    let unpacked = std::fs::read_dir(cache.join("unpacked")).ok()?.flatten().map(|entry| entry.path());
    let mut roots =
        unpacked.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{package}_")));
    let modules = roots.find_map(|root| Some(root.join("lib/modules").join(&release)).filter(|path| path.is_dir()))?;
    Some((cache.join("kernel-cloud/vmlinuz"), modules))
}

/// A directory for one test.
fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exec-{test}"));
    // Remove the files of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn program(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    // What is tested does not depend on the model of time, and this one is fast.
    let model: &[&str] = if options.contains(&"--model") { &[] } else { &["--model", "flat"] };
    command.current_dir(repository()).arg("exec").args(model).args(["--timeout", "300"]).args(options);
    // Boots are shared by the tests, and not with the user.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env("TOLLGATE_CONFIG", "").env("TOLLGATE_CACHE", "");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command in the cloud kernel, with options before `--`. `None`: there is no kernel here.
fn run(options: &[&str]) -> Option<Output> {
    if kernel().is_none() {
        eprintln!("skipped: the cloud kernel and its modules are not in guests/linux/cache");
        return None;
    }
    Some(program(&[&["--kernel", "cloud"], options].concat()).output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn check(output: &Output, status: i32, out: &str, errors: &str) {
    let seen = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(seen, (Some(status), out.to_owned(), errors.to_owned()));
}

#[test]
fn streams_are_apart_and_the_status_is_the_commands() {
    let Some(output) = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 3"]) else { return };
    check(&output, 3, "out\n", "err\n");
    check(&run(&["--", "true"]).unwrap(), 0, "", "");
    check(&run(&["--", "sh", "-c", "kill -9 $$"]).unwrap(), SIGNALLED + 9, "", "");
}

#[test]
fn bytes_go_in_and_out_as_they_are() {
    if kernel().is_none() {
        return;
    }
    let mut bytes: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bytes.extend(0..=255);
    let file = directory("bytes").join("input");
    std::fs::write(&file, &bytes).unwrap();
    let mut from_file = program(&["--kernel", "cloud", "--", "cat"]);
    let output = from_file.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{}", text(&output.stderr));
    let mut child = program(&["--kernel", "cloud", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        pipe.write_all(&bytes).unwrap();
        bytes
    });
    let output = child.wait_with_output().unwrap();
    let bytes = writer.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{}", text(&output.stderr));
}

/// A kernel that watches the TSC first, as without TSC_ADJUST, has only ticks until then, and one that measures its frequency again changes the clock source.
#[test]
fn timers_and_the_clock_source_are_the_final_ones_when_a_command_begins() {
    let active =
        "grep hres_active /proc/timer_list | sort -u; cat /sys/devices/system/clocksource/*/current_clocksource";
    for cpu in ["zen3", "hsw"] {
        let options = ["--cpu", cpu, "--model", "flat", "--cpus", "2", "--user", "root", "--", "sh", "-c", active];
        let Some(output) = run(&options) else { return };
        check(&output, 0, "  .hres_active    : 1\ntsc\n", "");
    }
}

#[test]
fn a_command_that_ends_the_guest_has_not_ended_well() {
    for (key, how) in [("b", "rebooted"), ("o", "powered off")] {
        let command = format!("echo {key} >/proc/sysrq-trigger; sleep 5");
        let Some(output) = run(&["--user", "root", "--", "sh", "-c", &command]) else { return };
        assert_eq!(output.status.code(), Some(LOST), "{}", text(&output.stderr));
        let message = format!("tollgate: the guest {how} before the command ended");
        assert!(text(&output.stderr).contains(&message), "{}", text(&output.stderr));
    }
}

#[test]
fn a_command_that_cannot_be_run_is_told_apart() {
    let Some(output) = run(&["--", "no-such-command"]) else { return };
    check(&output, NOT_FOUND, "", "tollgate: no-such-command: command not found\n");
    check(&run(&["--", "/tmp"]).unwrap(), NOT_EXECUTABLE, "", "tollgate: /tmp: is a directory\n");
    let file = directory("plain").join("plain");
    std::fs::write(&file, "text\n").unwrap();
    let file = file.to_str().unwrap();
    let errors = format!("tollgate: exec: {file}: Permission denied\n");
    check(&run(&["--", file]).unwrap(), NOT_EXECUTABLE, "", &errors);
}

#[test]
fn a_missing_interpreter_is_named() {
    let place = directory("interpreter");
    let script = |name: &str, interpreter: &str| {
        let path = place.join(name);
        std::fs::write(&path, format!("#!{interpreter}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // No kernel is needed for that.
    let direct = script("direct", "/nonexistent/python -u");
    let through = script("through", &direct);
    for (command, needed) in [(&direct, String::new()), (&through, format!(", which {direct} needs"))] {
        for options in [&["--", command][..], &["--root", "--", command]] {
            let error = format!("tollgate: {command}: the interpreter /nonexistent/python is missing{needed}\n");
            check(&program(options).output().unwrap(), NOT_EXECUTABLE, "", &error);
        }
    }
}

#[test]
fn a_refusal_is_a_line_of_json_too() {
    let place = directory("refusal");
    let place = place.to_str().unwrap();
    // No kernel is needed for that.
    for (command, status, reason, why) in [
        ("/nonexistent/command", NOT_FOUND, "not-found", "/nonexistent/command: no such file"),
        (place, NOT_EXECUTABLE, "failed", "is a directory"),
    ] {
        let output = program(&["--json", "--", command]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("tollgate: "), "{said}");
        let line: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!((output.status.code(), &line["status"]), (Some(status), &status.into()), "{said}");
        assert!(line["reason"] == reason && line["error"].as_str().unwrap().contains(why), "{said}");
    }
    let output = program(&["--json", "--cpu", "/nonexistent.toml", "--", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let line: serde_json::Value =
        serde_json::from_str(said.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    assert!(line["reason"] == "failed" && line["status"] == NOT_EXECUTABLE, "{said}");
}

#[test]
fn a_wrong_line_is_told_from_files_that_are_missing() {
    let status = |options: &[&str]| program(&[options, &["--", "true"]].concat()).output().unwrap().status.code();
    for options in [
        &["--user", "4294967295"][..],
        &["--user", "0:4294967295"],
        &["--user", "someone"],
        &["--cpu", "nosuch"],
        &["--share", "/etc:rx"],
        &["--call-sites"],
        &["--env", "A"],
    ] {
        assert_eq!(status(options), Some(2), "{options:?}");
    }
    for options in [
        &["--add", "/nonexistent"][..],
        &["--cpu", "/etc/passwd"],
        &["--cpu", "/nonexistent.toml"],
        &["--share", "/nonexistent"],
        &["--share", "/etc/passwd"],
        &["--cwd", "/nonexistent"],
        &["--kernel", "/nonexistent"],
    ] {
        assert_eq!(status(options), Some(126), "{options:?}");
    }
}

#[test]
fn a_run_from_a_kept_boot_is_the_run_that_boots() {
    let files = directory("ledgers");
    let path = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let command = ["--", "sh", "-c", "echo hello; ls /proc/self"];
    let ledger = |name: &str| std::fs::read(path(name)).unwrap();
    for layout in [&[][..], &["--seed", "7"]] {
        for (name, boot) in [("booted", &["--boot"][..]), ("first", &[]), ("second", &[])] {
            let ledger = path(name);
            let options = [boot, layout, &["--ledger", &ledger], &command].concat();
            let Some(output) = run(&options) else { return };
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        assert!(ledger("booted") == ledger("first") && ledger("first") == ledger("second"), "{layout:?}");
    }
    // A limit within the boot ends the run there, though the boot is kept.
    for (name, boot) in [("booted", &["--boot"][..]), ("second", &[])] {
        let ledger = path(name);
        let options = [boot, &["--limit", "0.05", "--ledger", &ledger], &command].concat();
        let Some(output) = run(&options) else { return };
        assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    }
    assert!(ledger("booted") == ledger("second"));
}

#[test]
fn a_kernel_without_io_ports_for_programs_settles_too() {
    // Twice: no boot of such a kernel is kept.
    for _ in 0..2 {
        let options = ["--append", "lockdown=integrity", "--settle", "0.1", "--", "echo", "hello"];
        let Some(output) = run(&options) else { return };
        check(&output, 0, "hello\n", "");
    }
}

#[test]
fn what_is_no_regular_file_is_no_kept_boot() {
    let cache = directory("irregular");
    if kernel().is_none() {
        return;
    }
    let boot = || -> PathBuf {
        let options = ["--model", "flat", "--kernel", "cloud", "--", "true"];
        let output = program(&options).env("XDG_CACHE_HOME", &cache).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        boots(&cache).into_iter().find(|path| path.extension().is_some_and(|extension| extension == "boot")).unwrap()
    };
    let kept = boot();
    std::fs::remove_file(&kept).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &kept).unwrap();
    assert_eq!(boot(), kept);
    assert!(std::fs::symlink_metadata(&kept).unwrap().is_file(), "the boot is kept in its place");
}

#[test]
fn all_users_share_a_kernel_that_was_fetched_once() {
    let Some((image, modules)) = kernel() else { return };
    // Outside of the checkout, whose cache is the first one.
    let top = std::env::temp_dir().join(format!("tollgate-all-users-{}", std::process::id()));
    let packages = top.join("shared/packages");
    let unpacked = modules.ancestors().nth(3).unwrap();
    std::fs::create_dir_all(packages.join("unpacked")).unwrap();
    for (from, to) in [(image.parent().unwrap(), &packages), (unpacked, &packages.join("unpacked"))] {
        assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    }
    let built = top.join("tollgate");
    std::fs::copy(env!("CARGO_BIN_EXE_tollgate"), &built).unwrap();
    // Nothing can be fetched.
    let run = |shared: &Path, home: &str| {
        let mut command = Command::new(&built);
        command.current_dir(&top).args(["exec", "--model", "flat", "--kernel", "cloud", "--", "/bin/uname", "-r"]);
        command.env_clear().env("PATH", "/none").env("HOME", top.join(home)).env("TOLLGATE_CONFIG", "");
        command.env("TOLLGATE_CACHE", shared).stdin(Stdio::null()).output().unwrap()
    };
    let release = format!("{}\n", modules.file_name().unwrap().to_string_lossy());
    let shared = top.join("shared");
    for home in ["first", "second"] {
        check(&run(&shared, home), 0, &release, "");
        assert!(packages.join("kernel-cloud/sha256").is_file());
        assert!(!top.join(home).join(".cache/tollgate/packages").exists(), "{home}");
    }
    let refused = |shared: &Path, word: &str| {
        let output = run(shared, "third");
        assert!(output.status.code() == Some(NOT_EXECUTABLE) && text(&output.stderr).contains(word), "{output:?}");
    };
    refused(Path::new(""), "can't be started");
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).unwrap();
    refused(&shared, "the shared cache is not used: others can write to ");
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o755)).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(packages.join("kernel-cloud/vmlinuz")).unwrap();
    file.write_all(b"x").unwrap();
    refused(&shared, "is damaged: its checksum is another one");
    std::fs::remove_dir_all(&top).unwrap();
}

#[test]
fn a_boot_that_can_not_be_kept_is_said_once() {
    if kernel().is_none() {
        return;
    }
    for command in [&["exec", "--model", "flat"][..], &["diff", "--model", "flat", "--layouts", "1", "--a", "quiet"]] {
        let mut line = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        line.current_dir(repository()).args(command).args(["--kernel", "cloud", "--", "true"]).stdin(Stdio::null());
        line.env("XDG_CACHE_HOME", "/dev/null").env("TOLLGATE_CONFIG", "").env("TOLLGATE_CACHE", "");
        let output = line.output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let words = "the booted machine is not kept for the next run, which will boot again: can't make /dev/null/tollgate/boots";
        assert_eq!(said.matches(words).count(), 1, "{said}");
    }
}

/// The files in a directory of boots.
fn boots(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache.join("tollgate/boots")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A command whose boots are in a directory of its own, and which writes its ledger.
fn with_boots(cache: &Path, options: &[&str], ledger: &Path) -> Command {
    let ledger = ["--kernel", "cloud", "--ledger", ledger.to_str().unwrap()];
    let mut command = program(&[&ledger, options, &["--", "echo", "hello"]].concat());
    command.env("XDG_CACHE_HOME", cache);
    command
}

#[test]
fn a_damaged_boot_is_made_again() {
    if kernel().is_none() {
        return;
    }
    let files = directory("damaged");
    let run = |options: &[&str]| {
        let output = with_boots(&files, options, &files.join("ledger")).output().unwrap();
        check(&output, 0, "hello\n", "");
        std::fs::read(files.join("ledger")).unwrap()
    };
    let first = run(&[]);
    let path = boots(&files).pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    run(&["--cpu", "zen4"]);
    let others = boots(&files);
    let other = std::fs::read(others.iter().find(|other| **other != path).unwrap()).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let damaged = [&whole[..whole.len() - 1], &whole[..40], &[], &flipped, &other];
    for (number, bytes) in damaged.into_iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        assert!(run(&[]) == first, "{number}");
        assert!(std::fs::read(&path).unwrap() == whole, "{number}: the boot is kept again, and is the same");
    }
    assert!(run(&[]) == first);
}

#[test]
fn runs_at_the_same_time_keep_one_boot() {
    if kernel().is_none() {
        return;
    }
    let files = directory("at-once");
    let ledgers = ["first", "second", "third"].map(|name| files.join(name));
    let started = ledgers[..2].iter().map(|ledger| with_boots(&files, &[], ledger).spawn().unwrap());
    for run in started.collect::<Vec<_>>() {
        check(&run.wait_with_output().unwrap(), 0, "hello\n", "");
    }
    assert_eq!(boots(&files).len(), 1);
    check(&with_boots(&files, &[], &ledgers[2]).output().unwrap(), 0, "hello\n", "");
    let [first, second, third] = ledgers.map(|ledger| std::fs::read(ledger).unwrap());
    assert!(first == second && second == third);
}

#[test]
fn a_run_that_is_killed_keeps_a_whole_boot_or_none() {
    if kernel().is_none() {
        return;
    }
    let files = directory("killed");
    let ledger = files.join("ledger");
    let is_part = |path: &Path| path.to_string_lossy().contains(".partial-");
    for signal in [Signal::INT, Signal::KILL] {
        let _ = std::fs::remove_dir_all(files.join("tollgate/boots"));
        std::fs::create_dir_all(files.join("tollgate/boots")).unwrap();
        let mut run = with_boots(&files, &[], &ledger).spawn().unwrap();
        // A file of 256 KiB only shows that there is room.
        let is_written = |path: &Path| std::fs::metadata(path).is_ok_and(|file| !is_part(path) || file.len() > 1 << 20);
        while run.try_wait().unwrap().is_none() && !boots(&files).iter().any(|path| is_written(path)) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&run), signal).unwrap();
        run.wait().unwrap();
        // The process that writes the file sees the end of its input.
        let mut parts = (0..500).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            boots(&files).iter().filter(|path| is_part(path)).count()
        });
        assert!(parts.any(|count| count == 0), "a part is left");
    }
    let output = with_boots(&files, &[], &ledger).output().unwrap();
    check(&output, 0, "hello\n", "");
    assert_eq!(boots(&files).len(), 1);
}

#[test]
fn a_full_disk_keeps_no_boot() {
    if kernel().is_none() {
        return;
    }
    let files = directory("full");
    let small = files.join("tollgate");
    std::fs::create_dir_all(&small).unwrap();
    let mount = r#"mount -t tmpfs -o size=4m small "$0" || exit 99; "$@" || exit; find "$0/boots" -type f; "$@""#;
    for options in [&[][..], &["--sandbox", "off"]] {
        let command = with_boots(&files, options, &files.join("ledger"));
        let mut run = Command::new("unshare");
        run.args(["--map-root-user", "--mount", "sh", "-c", mount]).arg(&small);
        run.arg(command.get_program()).args(command.get_args()).current_dir(repository());
        run.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        let Ok(output) = run.output() else { return };
        if matches!(output.status.code(), Some(1 | 99)) && output.stdout.is_empty() {
            eprintln!("skipped: no file system can be mounted here: {}", text(&output.stderr));
            return;
        }
        check(&output, 0, "hello\nhello\n", "");
    }
}

#[test]
fn a_run_that_nobody_joins_is_the_run_that_nobody_can_join() {
    let files = directory("joinable");
    let path = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let command = ["--", "sh", "-c", "echo hello; sleep 0.3; ls /proc/self"];
    for (name, options) in [("alone", &[][..]), ("joinable", &["--joinable"])] {
        let ledger = path(name);
        let options = [&["--kernel", "cloud", "--ledger", &ledger], options, &command].concat();
        if kernel().is_none() {
            return;
        }
        let output = program(&options).env("XDG_RUNTIME_DIR", &files).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let ledger = |name: &str| std::fs::read(path(name)).unwrap();
    assert!(ledger("alone") == ledger("joinable"));
}

#[test]
fn a_run_that_was_joined_is_replayed() {
    if kernel().is_none() {
        return;
    }
    let files = directory("joined");
    let path = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let (ledger, again, record) = (path("ledger"), path("again"), path("record"));
    let options = ["--joinable", "--ledger", &ledger, "--record", &record];
    let command = ["--", "sh", "-c", "while [ ! -e /tmp/stop ]; do sleep 0.05; done; sleep 2"];
    let own = |command: &mut Command| command.env("XDG_RUNTIME_DIR", &files).status().unwrap().code();
    let first = std::thread::spawn({
        let mut command = program(&[&["--kernel", "cloud"], &options[..], &command].concat());
        command.env("XDG_RUNTIME_DIR", &files);
        move || command.output().unwrap()
    });
    let mut join = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    join.args(["exec", "--join", "--", "sh", "-c", ": >/tmp/stop; exit 5"]).stdin(Stdio::null()).stderr(Stdio::null());
    let joined = (0..3000).map(|_| std::thread::sleep(std::time::Duration::from_millis(20))).find_map(|()| {
        // The guest does not listen yet.
        own(&mut join).filter(|status| *status != NOT_EXECUTABLE)
    });
    assert_eq!(joined, Some(5));
    let output = first.join().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let replayed = [&["--kernel", "cloud", "--ledger", &again, "--replay", &record], &command[..]].concat();
    let output = program(&replayed).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(std::fs::read(&ledger).unwrap() == std::fs::read(again).unwrap());
    // The region of joined commands ends with them.
    let report = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["report", "--region", "joined", &ledger]).output();
    let report = text(&report.unwrap().stdout);
    let open = report.split_once("open for ").and_then(|(_, rest)| rest.split_once(" s")).map(|(seconds, _)| seconds);
    assert!(open.is_some_and(|seconds| seconds.parse::<f64>().unwrap() < 2.0), "{report}");
}

#[test]
fn a_controlled_command_has_the_same_surroundings_everywhere() {
    if run(&["--", "true"]).is_none() {
        return;
    }
    let said = |place: &str, home: &str, options: &[&str]| {
        let place = directory(place);
        std::fs::write(place.join("data"), "data\n").unwrap();
        let options = [&["--kernel", "cloud", "--controlled", "--add", "env"][..], options].concat();
        let mut command = program(&[&options[..], &["--", "sh", "-c", "pwd; id -u; cat data; env"]].concat());
        command.current_dir(place).env("HOME", home).env("USER", home).env("TZ", home).env("EDITOR", home);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let first = said("here", "/home/someone", &[]);
    assert_eq!(first, said("another/place", "/", &[]));
    assert!(first.starts_with("/tollgate\n0\ndata\n") && first.contains("HOME=/root\n") && !first.contains("EDITOR"));
    let kept = said("kept", "/there", &["--keep-env", "EDITOR,TZ", "--env", "X=1"]);
    assert!(["EDITOR=/there\n", "TZ=/there\n", "X=1\n"].iter().all(|line| kept.contains(line)), "{kept}");
    let refused = program(&["--env", "TZ", "--", "true"]).output().unwrap();
    assert!(
        refused.status.code() == Some(2) && text(&refused.stderr).contains("--keep-env TZ"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn a_controlled_command_may_lead_upwards_or_be_absolute() {
    if kernel().is_none() {
        return;
    }
    let directory = directory("upwards");
    std::fs::create_dir(directory.join("below")).unwrap();
    let script = directory.join("script");
    std::fs::write(&script, "#!/bin/sh\npwd\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let said = |from: &Path, command: &str| {
        let mut program = program(&["--kernel", "cloud", "--controlled", "--", command]);
        let output = program.current_dir(from).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let below = directory.join("below");
    let line = |path: &Path| (Some(0), format!("{}\n", path.display()), String::new());
    assert_eq!(said(&below, "../script"), line(&below));
    // Files with absolute names keep them, and the command does not depend on the directory in which it was typed.
    let [whole, around] = [script, below.join("../script")].map(|path| path.display().to_string());
    for from in [&directory, &below, Path::new("/")] {
        assert_eq!(said(from, &whole), line(Path::new("/tollgate")), "{from:?}");
    }
    assert_eq!(said(Path::new("/"), &around), line(Path::new("/tollgate")));
}

#[test]
fn the_ways_in_which_a_kernel_ends_are_told_apart() {
    let Some(output) = run(&["--user", "root", "--", "sh", "-c", "echo c > /proc/sysrq-trigger"]) else { return };
    assert_eq!(output.status.code(), Some(PANICKED));
    assert!(
        text(&output.stderr).contains("Kernel panic - not syncing: sysrq triggered crash"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&["-m", "256M", "--", "sh", "-c", "tail /dev/zero"]).unwrap();
    assert_eq!(output.status.code(), Some(OUT_OF_MEMORY));
    assert!(text(&output.stderr).contains("Out of memory: Killed process"), "{}", text(&output.stderr));
    assert_eq!(run(&["--limit", "3", "--", "sleep", "100"]).unwrap().status.code(), Some(TIMED_OUT));
}

#[test]
fn a_shared_directory_is_read_only_unless_it_is_said() {
    let files = directory("share");
    std::fs::write(files.join("file"), "text\n").unwrap();
    let at = files.to_str().unwrap();
    let script = format!("cat {at}/file; echo new > {at}/made");
    let Some(output) = run(&["--share", at, "--", "sh", "-c", &script]) else { return };
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("text\n", Some(2)));
    assert!(!files.join("made").exists());
    let share = format!("{at}:rw");
    check(&run(&["--share", &share, "--", "sh", "-c", &script]).unwrap(), 0, "text\n", "");
    assert_eq!(std::fs::read_to_string(files.join("made")).unwrap(), "new\n");
}

/// What a guest has left in a shared directory does not make a later run give away a file beside it.
#[test]
fn nothing_in_a_shared_directory_names_files_elsewhere() {
    let files = directory("planted");
    let (share, secret) = (files.join("share"), files.join("secret"));
    std::fs::create_dir_all(share.join("sub")).unwrap();
    std::fs::write(&secret, "secret\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (at, secret) = (share.to_str().unwrap(), secret.to_str().unwrap());
    let shared = format!("{at}:rw");
    let plant = format!(
        "ln -s {secret} {at}/absolute; ln -s ../secret {at}/relative; ln -s .. {at}/up; ln -s {at}/sub {at}/in"
    );
    let Some(output) = run(&["--share", &shared, "--", "sh", "-c", &plant]) else { return };
    check(&output, 0, "", "");
    std::fs::write(share.join("sub/file"), "text\n").unwrap();
    let message = |from: &str, to: &str| {
        format!("tollgate: {at}/{from} is a link out of a shared directory, to {to}, which is not packed")
    };
    for (name, link, to) in [
        ("absolute", "absolute", secret.to_owned()),
        ("relative", "relative", format!("{at}/../secret")),
        ("up/secret", "up", format!("{at}/../secret")),
    ] {
        let name = format!("{at}/{name}");
        let text_of_shell = format!("cat {name}");
        for command in [&["cat", &name][..], &["sh", "-c", &text_of_shell], &[&name]] {
            let output = run(&[&["--share", at, "--"], command].concat()).unwrap();
            let (said, printed) = (text(&output.stderr), text(&output.stdout));
            assert!(!printed.contains("secret") && output.status.code() != Some(0), "{name}: {printed}{said}");
            assert!(said.contains(&message(link, &to)), "{name}: {said}");
        }
        let output = run(&["--share", at, "--add", &name, "--", "true"]).unwrap();
        assert!(text(&output.stderr).contains(&message(link, &to)), "{}", text(&output.stderr));
    }
    // What a script or a program there names is packed from the system's directories only.
    for (script, status) in [(format!("#!{secret}\n"), NOT_FOUND), ("#!/bin/sh\necho script\n".to_owned(), 0)] {
        let path = share.join("script");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = run(&["--share", at, "--", path.to_str().unwrap()]).unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        let named = format!("tollgate: {at}/script, in a shared directory, names {secret}, which is not packed");
        assert_eq!(text(&output.stderr).contains(&named), status != 0, "{}", text(&output.stderr));
    }
    // Options of this host do not follow those links either.
    let up = format!("{at}/up");
    let ledger = format!("{at}/up/ledger");
    for options in [["--share", &up], ["--cwd", &up], ["--ledger", &ledger]] {
        let output = run(&[&["--share", &shared], &options[..], &["--", "true"]].concat()).unwrap();
        assert_eq!(output.status.code(), Some(NOT_EXECUTABLE));
        assert!(text(&output.stderr).contains("is a link out of a shared directory"), "{}", text(&output.stderr));
    }
    // What the user names elsewhere is followed, and so are links that stay.
    let own = files.join("own");
    std::os::unix::fs::symlink("secret", &own).unwrap();
    check(&run(&["--share", at, "--", "cat", own.to_str().unwrap()]).unwrap(), 0, "secret\n", "");
    check(&run(&["--share", at, "--", "cat", &format!("{at}/in/file")]).unwrap(), 0, "text\n", "");
    let output = run(&["--share", at, "--add", secret, "--", "cat", &format!("{at}/absolute")]).unwrap();
    check(&output, 0, "secret\n", "");
}

#[test]
fn the_hosts_tree_stays_as_it_is() {
    let files = directory("root");
    let at = files.to_str().unwrap();
    let script = format!("echo new > {at}/made && cat {at}/made");
    let Some(output) = run(&["--root", "--", "sh", "-c", &script]) else { return };
    check(&output, 0, "new\n", "");
    assert!(!files.join("made").exists());
}

#[test]
fn a_command_whose_output_nobody_reads_gets_a_signal() {
    if kernel().is_none() {
        return;
    }
    let mut child = program(&["--kernel", "cloud", "--", "yes"]).spawn().unwrap();
    let mut start = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut start).unwrap();
    drop(child.stdout.take());
    assert_eq!(&start, b"y\ny\n");
    assert_eq!(child.wait().unwrap().code(), Some(SIGNALLED + 13));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    if kernel().is_none() {
        return;
    }
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lost = |stream: &str| format!("tollgate: {stream} can't be written: No space left on device (os error 28)");
    // Whether the command has ended by then or goes on for ever.
    for command in ["echo hi", "yes"] {
        let mut command = program(&["--kernel", "cloud", "--json", "--", "sh", "-c", command]);
        let output = command.stdout(full()).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(NOT_EXECUTABLE), "{errors}");
        assert!(errors.starts_with(&lost("standard output")), "{errors}");
        let report: serde_json::Value = serde_json::from_str(errors.lines().last().unwrap()).unwrap();
        assert_eq!(report["reason"], "output");
    }
    for options in
        [&["--kernel", "cloud", "--", "sh", "-c", "echo hi >&2"][..], &["--kernel", "cloud", "--json", "--", "true"]]
    {
        let output = program(options).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(NOT_EXECUTABLE), "{options:?}");
    }
}

#[test]
fn a_command_needs_open_files() {
    let limited = |limit: &str| {
        let script = format!("ulimit {limit} && exec \"$0\" exec --model flat --kernel cloud -- echo hi");
        let mut command = Command::new("bash");
        command.current_dir(repository()).args(["-c", &script, env!("CARGO_BIN_EXE_tollgate")]);
        command
            .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
            .env("TOLLGATE_CONFIG", "")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let errors = "tollgate: error: the limit on open files (`ulimit -n`) is 20, and at least 64 are needed\n";
    check(&limited("-n 20"), NOT_EXECUTABLE, "", errors);
    if kernel().is_some() {
        // It is raised as far as the user may.
        check(&limited("-Sn 20"), 0, "hi\n", "");
    }
}

#[test]
fn a_kernel_without_its_modules_says_where_they_were_looked_for() {
    let Some((image, _)) = kernel() else { return };
    let copy = directory("no-modules").join("bzImage");
    std::fs::copy(image, &copy).unwrap();
    let output = program(&["--kernel", copy.to_str().unwrap(), "--", "true"]).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(LOST), "{error}");
    assert!(error.contains("the kernel has no driver for a virtio console on PCI"), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.starts_with("tollgate: no modules of the kernel ") && last.contains("--modules DIR"), "{last}");
    assert!(last.contains("none in /lib/modules/") && last.contains(" or /usr/lib/modules/"), "{last}");
}

#[test]
fn a_kernel_that_can_mount_no_files_finds_them_in_its_initial_disk() {
    let Some((image, modules)) = kernel() else { return };
    let tree = directory("tree");
    std::fs::create_dir_all(tree.join("arch/x86/boot")).unwrap();
    std::fs::copy(image, tree.join("arch/x86/boot/bzImage")).unwrap();
    for file in ["virtio.ko", "virtio_ring.ko", "virtio_pci.ko", "virtio_pci_modern_dev.ko", "virtio_pci_legacy_dev.ko"]
    {
        std::fs::copy(modules.join("kernel/drivers/virtio").join(file), tree.join(file)).unwrap();
    }
    std::fs::copy(modules.join("kernel/drivers/char/virtio_console.ko"), tree.join("virtio_console.ko")).unwrap();
    let tree = tree.to_str().unwrap();
    let output = program(&["--kernel", tree, "--", "sh", "-c", "echo hello; cat Cargo.toml | head -n 1; exit 4"])
        .output()
        .unwrap();
    check(&output, 4, "hello\n[workspace]\n", "");
    let output = program(&["--kernel", tree, "--root", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn a_network_device_needs_its_driver() {
    let Some(output) = run(&["--net", "bridge,model=ixgbe", "--", "true"]) else { return };
    let message = "tollgate: error: --net bridge,model=ixgbe: the kernel lacks the driver ixgbe (CONFIG_IXGBE)\n";
    check(&output, NOT_EXECUTABLE, "", message);
    if !repository().join("guests/linux/cache/kernel-amd64/vmlinuz").is_file() {
        eprintln!("skipped: the kernel amd64 is not in guests/linux/cache");
        return;
    }
    let command = ["--root", "--", "sh", "-c", "readlink /sys/class/net/eth0/device/driver | sed 's:.*/::'"];
    for (nets, driver) in [
        (&["--net", "bridge,model=ixgbe"][..], "ixgbe\n"),
        // The first device has the first interface.
        (&["--net", "bridge,model=ixgbe", "--net", "sink"], "ixgbe\n"),
        (&["--net", "sink", "--net", "bridge,model=ixgbe"], "virtio_net\n"),
    ] {
        let output = program(&[&["--kernel", "amd64"], nets, &command].concat()).output().unwrap();
        check(&output, 0, driver, "");
    }
}

#[test]
fn a_recorded_run_is_replayed_without_its_input() {
    if kernel().is_none() {
        return;
    }
    let files = directory("record");
    let path = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let (log, first, second) = (path("log"), path("first"), path("second"));
    let command = ["--kernel", "cloud", "--", "sh", "-c", "read line; echo \"got $line\"; sort >&2; exit 5"];
    let mut child = program(&[&["--record", &log, "--ledger", &first], &command[..]].concat());
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\nthree\ntwo\n").unwrap();
    let recorded = child.wait_with_output().unwrap();
    check(&recorded, 5, "got one\n", "three\ntwo\n");
    let replayed = program(&[&["--replay", &log, "--ledger", &second], &command[..]].concat()).output().unwrap();
    check(&replayed, 5, "got one\n", "three\ntwo\n");
    assert!(std::fs::read(first).unwrap() == std::fs::read(second).unwrap());
    let other = program(&["--replay", &log, "--kernel", "cloud", "--", "true"]).output().unwrap();
    assert_eq!(other.status.code(), Some(NOT_EXECUTABLE), "{}", text(&other.stderr));
    assert!(text(&other.stderr).contains("can't replay"), "{}", text(&other.stderr));
}

#[test]
fn a_command_that_fails_says_which_files_of_this_host_it_lacked() {
    let directory = directory("missing-files");
    let library = directory.join("library");
    std::fs::create_dir(&library).unwrap();
    std::fs::write(library.join("data"), "found\n").unwrap();
    let script = directory.join("script");
    // The path is not a word of the command, so that the file is not packed.
    std::fs::write(&script, format!("#!/bin/sh\nread -r word < {}/data && echo $word\n", library.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (script, library) = (script.to_str().unwrap(), library.to_str().unwrap());
    let Some(output) = run(&["--", script]) else { return };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains(&format!("guest does not: {library}/data (--add PATH")),
        "{errors}"
    );
    let output = run(&["--add", library, "--", script]).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    // A command that fails for another reason gets no message on files.
    let output = run(&["--", "false"]).unwrap();
    assert!(output.status.code() == Some(1) && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_that_changes_during_the_run_is_named() {
    if kernel().is_none() {
        return;
    }
    let directory = directory("changed");
    let [data, kept] = ["data", "kept"].map(|name| directory.join(name));
    [&data, &kept].iter().for_each(|file| std::fs::write(file, "first").unwrap());
    let script = format!("cat {}; read line; cat {}", data.display(), kept.display());
    let ledger = directory.join("a.ledger");
    let mut command = program(&["--kernel", "cloud", "--json", "--add", "cat", "--ledger", ledger.to_str().unwrap()]);
    let mut guest = command.args(["--", "sh", "-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 5];
    std::io::Read::read_exact(guest.stdout.as_mut().unwrap(), &mut begin).unwrap();
    std::fs::write(&data, "and longer").unwrap();
    guest.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = guest.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    let (message, report) = errors.trim_end().split_once('\n').unwrap();
    let named = "tollgate: changed on this host while the guest ran, so that the result may depend on the moment: ";
    assert_eq!((message, output.status.code()), (&*format!("{named}{}", data.display()), Some(0)), "{errors}");
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["changed_files"], serde_json::json!([data]));
    let shown = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("report").arg(&ledger).output().unwrap();
    assert!(text(&shown.stdout).contains("files that changed during the run"), "{}", text(&shown.stdout));
}
