//! The laboratory as a user meets it: experiments of small guests, run by the program itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Load address of the guest's code.
const ENTRY: u32 = 0x10_0030;

/// A directory of files for one test.
struct Files(PathBuf);

impl Files {
    /// With an experiment whose two columns print one and two characters; `last` is the code of the second column's guest.
    fn new(test: &str, second: &[u8]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{test}"));
        // Remove the files of an earlier run.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        files.guest("one.elf", &[PRINT, POWER_OFF].concat());
        files.guest("two.elf", second);
        std::fs::write(files.0.join("prints.toml"), EXPERIMENT).unwrap();
        files
    }

    /// A multiboot image with this code, entered in 32-bit protected mode with an empty IDT.
    fn guest(&self, name: &str, code: &[u8]) {
        let flags = 1u32 << 16;
        let end = ENTRY + code.len() as u32;
        let checksum = 0u32.wrapping_sub(0x1bad_b002 + flags);
        let head = [0x1bad_b002, flags, checksum, 0x10_0000, 0x10_0000, end, end, ENTRY, 0, 0, 0, 0];
        let mut image: Vec<u8> = head.into_iter().flat_map(u32::to_le_bytes).collect();
        image.extend(code);
        std::fs::write(self.0.join(name), image).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("lab").args(arguments).args(["--out", "out"]).current_dir(&self.0);
        command
    }

    fn lab(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (status.code().expect("it was not killed"), text(&stdout), text(&stderr))
    }

    fn kept(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join("out")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// mov dx, 0x3f8; mov al, '*'; out dx, al
const PRINT: &[u8] = b"\x66\xba\xf8\x03\xb0*\xee";
/// mov edx, 0x604; mov ax, 0x2000; out dx, ax; jmp $
const POWER_OFF: &[u8] = b"\xba\x04\x06\0\0\x66\xb8\0\x20\x66\xef\xeb\xfe";
/// jmp $
const SPIN: &[u8] = b"\xeb\xfe";

const EXPERIMENT: &str = r#"
title = "Characters"
[source]
text = "This test"
reference = "of the program"
[defaults]
profile = "skx"
platform = "bare"
memory = "16M"
[guest.one]
image = "one.elf"
made-by = "the test"
[guest.two]
image = "two.elf"
made-by = "the test"
[metric]
count = "OUT 0x3f8 *"
unit = "characters"
[[column]]
id = "one"
title = "One"
set = { guest = "one" }
[[column]]
id = "two"
title = "Two"
set = { guest = "two" }
[[row]]
id = "out"
title = "printed"
published = { one = 1, two = 4 }
"#;

fn twice() -> Vec<u8> {
    [PRINT, PRINT, POWER_OFF].concat()
}

#[test]
fn an_experiment_is_run_set_beside_what_was_published_and_kept() {
    let files = Files::new("run", &twice());
    let (status, printed, errors) = files.lab(&["run", "./prints.toml", "--html", "report.html"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{printed}");
    for line in ["ours               1     2", "ours/published  1.00  0.50", "0.250x  0.500x  One -> Two, printed"] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert_eq!(files.kept().len(), 2);
    let report = std::fs::read_to_string(files.0.join("report.html")).unwrap();
    assert!(report.starts_with("<!doctype html>") && report.trim_end().ends_with("</html>"));
    let times = |name: &String| std::fs::metadata(files.0.join("out").join(name)).unwrap().modified().unwrap();
    let before: Vec<_> = files.kept().iter().map(times).collect();
    let (status, again, _) = files.lab(&["run", "./prints.toml"]);
    assert_eq!((status, again), (0, printed));
    assert_eq!(files.kept().iter().map(times).collect::<Vec<_>>(), before, "finished cells are not run again");
    let (status, only, _) = files.lab(&["run", "./prints.toml", "--only", "*/two", "--fresh"]);
    let ours = |line: &str| line.split_whitespace().eq(["ours", "2"]);
    assert!(
        status == 0 && only.lines().any(ours) && !only.contains("One"),
        "what was not asked for is no column: {only}"
    );
}

#[test]
fn a_cell_that_fails_is_named_with_what_it_printed() {
    // It prints, and then there is no handler for an invalid opcode.
    let files = Files::new("fail", &[PRINT, b"\x0f\x0b"].concat());
    let (status, printed, errors) = files.lab(&["run", "./prints.toml"]);
    assert_eq!(status, 1, "{errors}");
    assert!(errors.contains("prints/out/two: ended with status 125 where 0 was expected"), "{errors}");
    assert!(errors.contains("    | *"), "{errors}");
    let place = errors.split_once("the whole output of prints/out/two is in ").unwrap().1;
    let output = std::fs::read_to_string(files.0.join(place.trim())).unwrap();
    assert!(output.contains('*'), "{output}");
    assert!(printed.contains("ours               1  failed"), "{printed}");
}

#[test]
fn a_check_names_what_grew() {
    let files = Files::new("check", &twice());
    let (status, baseline, _) = files.lab(&["run", "./prints.toml", "--json"]);
    assert_eq!(status, 0);
    std::fs::write(files.0.join("baseline.json"), &baseline).unwrap();
    let (status, printed, errors) = files.lab(&["check", "baseline.json"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{printed}");
    assert!(printed.contains("2 cells") && printed.contains("0 regressions"), "{printed}");
    files.guest("two.elf", &[PRINT, PRINT, PRINT, POWER_OFF].concat());
    let (status, printed, _) = files.lab(&["check", "baseline.json"]);
    assert_eq!(status, 1, "{printed}");
    let named = |line: &str| line.starts_with("prints/out/two  count") && line.ends_with("events: OUT 0x3f8 COM1");
    assert!(printed.lines().any(named), "{printed}");
    assert!(!printed.contains("prints/out/one"), "{printed}");
    let (status, ..) = files.lab(&["check", "baseline.json", "--limit-counts", "1000%", "--limit-cycles", "1000%"]);
    assert_eq!(status, 0);
    let (status, ..) = files.lab(&["check", "baseline.json", "--only", "out/one"]);
    assert_eq!(status, 0);
    let (status, _, errors) = files.lab(&["check", "prints.toml"]);
    assert!(status == 126 && errors.contains("prints.toml is not what `tollgate lab run --json` prints"), "{errors}");
}

#[test]
fn an_experiment_that_is_wrong_is_refused_with_file_key_and_reason() {
    let files = Files::new("wrong", &twice());
    std::fs::write(files.0.join("prints.toml"), EXPERIMENT.replace("\"bare\"", "\"hvm\"\nvmexit = 0")).unwrap();
    let (status, _, errors) = files.lab(&["run", "./prints.toml"]);
    assert!(status == 126 && errors.contains("./prints.toml") && errors.contains("unknown field `vmexit`"), "{errors}");
    let (status, _, errors) = files.lab(&["run", "nothing"]);
    assert!(status == 2 && errors.contains("there is no experiment 'nothing'; there are: "), "{errors}");
    let (status, ..) = files.lab(&["run"]);
    assert_eq!(status, 2);
    let (status, _, errors) = files.lab(&["run", "pv-cr3", "--only", "nothing"]);
    assert!(status == 2 && errors.contains("no cell is selected"), "{errors}");
}

#[test]
fn what_a_guest_does_not_know_is_refused_before_a_cell_runs() {
    let files = Files::new("unknown", &twice());
    let run = |from: &str, to: &str| {
        assert!(EXPERIMENT.contains(from));
        std::fs::write(files.0.join("prints.toml"), EXPERIMENT.replacen(from, to, 1)).unwrap();
        let (status, printed, errors) = files.lab(&["run", "./prints.toml"]);
        assert_eq!(printed, "", "{errors}");
        assert!(!files.0.join("out").exists() && errors.lines().count() == 1, "{errors}");
        (status, errors)
    };
    let metric = "count = \"OUT 0x3f8 *\"";
    let (status, errors) = run(metric, &format!("{metric}\nregion = \"syscal\""));
    let message = "./prints.toml: row.out.metric.region: the guest 'one' has no region 'syscal': its programs do not contain the name\n";
    assert_eq!((status, errors), (126, format!("tollgate: error: {message}")));
    let long = "x".repeat(64);
    let (status, errors) = run(metric, &format!("{metric}\nregion = \"{long}\""));
    assert!(status == 126 && errors.contains("is no name of a region: 1 to 63 bytes"), "{errors}");
    let long = "x".repeat(3000);
    let row = |append: &str| format!("title = \"printed\"\nset = {{ append = \"{append}\" }}");
    let column = format!("id = \"two\"\ntitle = \"Two\"\nset = {{ guest = \"two\", append = \"{long}\" }}");
    let old = "id = \"two\"\ntitle = \"Two\"\nset = { guest = \"two\" }";
    // Either is short enough, both together are not.
    let both = EXPERIMENT.replacen("title = \"printed\"", &row(&long), 1).replacen(old, &column, 1);
    std::fs::write(files.0.join("prints.toml"), both).unwrap();
    let (status, _, errors) = files.lab(&["run", "./prints.toml"]);
    let message =
        "row.out.set.append: the command line of the cell out/two has 6001 bytes; the guest 'two' takes at most 4095";
    assert!(status == 126 && errors.contains(message) && !files.0.join("out").exists(), "{errors}");
}

#[test]
fn an_installed_program_finds_its_own_guests() {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guests/syscall.elf");
    if !built.is_file() {
        eprintln!("skipped: target/guests is not built (make -C guests/bare)");
        return;
    }
    // Outside of the checkout, as `dpkg -x` unpacks a package.
    let place = std::env::temp_dir().join(format!("tollgate-installed-{}", std::process::id()));
    let guests = place.join("usr/share/tollgate/target/guests");
    for directory in [&place.join("usr/bin"), &guests, &place.join("home")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let program = place.join("usr/bin/tollgate");
    std::fs::copy(env!("CARGO_BIN_EXE_tollgate"), &program).unwrap();
    std::fs::copy(&built, guests.join("syscall.elf")).unwrap();
    let experiment = place.join("home/mine.toml");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/processors.toml"), &experiment)
        .unwrap();
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        let output = command.args(["lab", "run"]).args(arguments).current_dir(place.join("home")).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let built_in = lab(&["processors", "--only", "syscall/skx"]);
    let own = lab(&["./mine.toml", "--only", "syscall/skx"]);
    let missing = lab(&["processors", "--only", "fault/skx"]);
    let elsewhere = lab(&["./mine.toml", "--only", "fault/skx"]);
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!((built_in, own), ((Some(0), String::new()), (Some(0), String::new())));
    let message = "'make -C guests/bare' makes it in Tollgate's source tree, which --root names\n";
    assert!(missing.0 == Some(126) && missing.1.ends_with(message), "{missing:?}");
    assert!(elsewhere.1.contains("./target/guests/fault.elf can't be read"), "{elsewhere:?}");
}

fn wait(child: &mut Child) -> i32 {
    let begun = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code().expect("it was not killed"),
            None => assert!(begun.elapsed() < Duration::from_secs(60), "it goes on"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a run whose second cell spins, with these arguments besides, and waits until the first cell is done.
fn spinning(files: &Files, arguments: &[&str]) -> Child {
    let arguments = [&["run", "./prints.toml", "--jobs", "2"], arguments].concat();
    let child = files.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let done = || files.0.join("out").exists() && files.kept().iter().any(|name| !name.starts_with('.'));
    let running = || files.kept().iter().any(|name| name.starts_with('.'));
    while !(done() && running()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the first cell is not done");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

#[test]
fn an_interrupted_run_leaves_no_process_and_no_half_cell() {
    let files = Files::new("interrupt", SPIN);
    let mut child = spinning(&files, &[]);
    signal(&child, "INT");
    assert_eq!(wait(&mut child), 130);
    assert_eq!(files.kept().len(), 1);
    assert!(!files.kept()[0].starts_with('.'));
}

#[test]
fn an_interrupted_run_says_how_much_of_it_there_is() {
    let files = Files::new("early", SPIN);
    let finish = |arguments: &[&str]| {
        let child = spinning(&files, arguments);
        signal(&child, "INT");
        let Output { status, stdout, .. } = child.wait_with_output().unwrap();
        assert_eq!(status.code(), Some(130));
        String::from_utf8(stdout).unwrap()
    };
    let printed = finish(&["--html", "early.html"]);
    assert!(printed.starts_with("interrupted: 1 of 2 cells\n\nprints: Characters\n"), "{printed}");
    let page = std::fs::read_to_string(files.0.join("early.html")).unwrap();
    assert!(page.contains(">interrupted: 1 of 2 cells<"));
    let printed = finish(&["--markdown"]);
    assert!(printed.starts_with("interrupted: 1 of 2 cells\n\n## Characters\n"), "{printed}");
    let printed = finish(&["--layouts", "3"]);
    let (head, table) = printed.split_once('\n').unwrap();
    assert!(head.starts_with("interrupted: ") && head.ends_with(" of 6 cells, counting each in 3 layouts"), "{head}");
    // The first cell may have finished in two layouts: its figure then has an interval.
    let ours = |line: &str| line.trim_start().starts_with("ours  ") && line.contains(" 1");
    assert!(table.lines().any(ours), "{table}");
    let printed = finish(&["--json"]);
    let value: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(value["interrupted"], serde_json::json!({ "done": 1, "cells": 2 }));
    std::fs::write(files.0.join("early.json"), printed).unwrap();
    let (status, _, errors) = files.lab(&["check", "early.json"]);
    assert_eq!(
        (status, errors.as_str()),
        (126, "tollgate: error: early.json is no baseline: that run was interrupted: 1 of 2 cells\n")
    );
}

#[test]
fn a_laboratory_that_is_killed_takes_its_cells_with_it_and_the_next_one_clears_up() {
    let files = Files::new("killed", SPIN);
    let mut child = spinning(&files, &[]);
    let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &child.id().to_string()]).output().unwrap();
    let cells: Vec<String> = String::from_utf8(listed.stdout).unwrap().split_whitespace().map(str::to_owned).collect();
    assert!(!cells.is_empty(), "the second cell runs");
    signal(&child, "KILL");
    assert!(child.wait().unwrap().code().is_none());
    let begun = Instant::now();
    // A zombie is over, whoever reaps it.
    let state = |cell: &String| Command::new("ps").args(["-o", "stat=", "-p", cell]).output().unwrap().stdout;
    while cells.iter().any(|cell| state(cell).first().is_some_and(|state| *state != b'Z')) {
        assert!(begun.elapsed() < Duration::from_secs(30), "a cell outlives its laboratory");
        std::thread::sleep(Duration::from_millis(20));
    }
    let unfinished = || files.kept().iter().filter(|name| name.starts_with('.')).count();
    assert_eq!(unfinished(), 1);
    let (status, ..) = files.lab(&["run", "./prints.toml", "--only", "*/one"]);
    assert_eq!((status, unfinished(), files.kept().len()), (0, 0, 1));
}

#[test]
fn a_laboratory_leaves_the_running_cells_of_another_alone() {
    let files = Files::new("two", SPIN);
    let mut first = spinning(&files, &[]);
    let before = files.kept();
    let (status, ..) = files.lab(&["run", "./prints.toml", "--only", "*/one"]);
    assert_eq!((status, files.kept()), (0, before.clone()));
    let (status, _, errors) = files.lab(&["prune", "--keep", "0"]);
    assert!(status == 126 && errors.contains("is in use by a running `tollgate lab`"), "{errors}");
    assert_eq!(files.kept(), before);
    signal(&first, "INT");
    assert_eq!(wait(&mut first), 130);
    let (status, printed, _) = files.lab(&["prune", "--keep", "0"]);
    assert!(
        status == 0 && printed.starts_with("1 cell (") && printed.ends_with(" removed, 0 cells (0 bytes) kept\n"),
        "{printed}"
    );
    assert!(files.kept().is_empty());
}

#[test]
fn a_damaged_cell_is_run_again_and_that_is_said() {
    let files = Files::new("damaged", &twice());
    let (_, printed, _) = files.lab(&["run", "./prints.toml"]);
    for name in files.kept() {
        std::fs::write(files.0.join("out").join(name).join("ledger"), "").unwrap();
    }
    let (status, again, errors) = files.lab(&["run", "./prints.toml"]);
    assert_eq!((status, again), (0, printed.clone()));
    assert_eq!(
        errors,
        "tollgate: prints/out/one and another cell: runs again, because its kept result is damaged: its file 'ledger' is empty\n"
    );
    let (status, again, errors) = files.lab(&["run", "./prints.toml"]);
    assert_eq!((status, again, errors.as_str()), (0, printed, ""));
}

#[test]
fn a_run_keeps_no_more_than_it_is_told_to_and_its_own_cells_always() {
    let files = Files::new("keep", &twice());
    files.lab(&["run", "./prints.toml"]);
    files.guest("one.elf", &[PRINT, PRINT, PRINT, POWER_OFF].concat());
    let (status, _, errors) = files.lab(&["run", "./prints.toml", "--keep", "all"]);
    assert_eq!((status, errors.as_str(), files.kept().len()), (0, "", 3));
    let (status, _, errors) = files.lab(&["run", "./prints.toml", "--keep", "0"]);
    assert_eq!((status, files.kept().len()), (0, 2));
    assert!(
        errors.starts_with("tollgate: 1 cells (") && errors.ends_with("are removed from out: see --keep\n"),
        "{errors}"
    );
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_run() {
    let files = Files::new("nowhere", SPIN);
    for (place, reason) in [("nowhere/x.html", "No such file"), (".", "it is a directory")] {
        let (status, _, errors) = files.lab(&["run", "./prints.toml", "--html", place]);
        assert!(status == 126 && errors.contains("can't write the report") && errors.contains(reason), "{errors}");
        assert!(!files.0.join("out").exists(), "nothing was run");
    }
}

#[test]
fn a_report_goes_into_a_pipe_too() {
    let files = Files::new("pipe", &twice());
    let (status, printed, errors) = files.lab(&["run", "./prints.toml", "--html", "/dev/stdout"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(printed.starts_with("prints: ") && printed.trim_end().ends_with("</html>"), "{printed}");
}

#[test]
fn one_cause_has_one_line() {
    let files = Files::new("missing", &twice());
    std::fs::write(files.0.join("prints.toml"), EXPERIMENT.replace("two.elf", "one.elf")).unwrap();
    let (_, baseline, _) = files.lab(&["run", "./prints.toml", "--json"]);
    std::fs::write(files.0.join("baseline.json"), baseline).unwrap();
    std::fs::remove_file(files.0.join("one.elf")).unwrap();
    let (status, printed, errors) = files.lab(&["run", "./prints.toml"]);
    assert_eq!((status, errors.lines().count()), (126, 1), "{errors}");
    assert!(errors.starts_with("tollgate: prints/out/one and another cell: ./one.elf can't be read: "), "{errors}");
    assert!(
        errors.ends_with("'the test' makes it\n") && printed.is_empty(),
        "no table says no more: {printed}{errors}"
    );
    let (status, printed, _) = files.lab(&["check", "baseline.json"]);
    assert_eq!(status, 126);
    assert!(printed.starts_with("prints/out/one and another cell: no result now: ./one.elf"), "{printed}");
    assert_eq!(printed.lines().count(), 2, "{printed}");
    // A cell that can be run makes the difference.
    let files = Files::new("one-missing", &twice());
    std::fs::remove_file(files.0.join("one.elf")).unwrap();
    assert_eq!(files.lab(&["run", "./prints.toml"]).0, 1);
}

#[test]
fn files_that_are_something_else_are_refused_in_one_line() {
    let files = Files::new("picture", &twice());
    std::fs::write(files.0.join("picture.toml"), b"\x89PNG\r\n\x1a\n\0\xff").unwrap();
    std::fs::write(files.0.join("broken.toml"), "title = 'x'\nabout = \n").unwrap();
    for (arguments, message) in [
        (["check", "picture.toml"], "picture.toml is not what `tollgate lab run --json` prints: it is not text"),
        (["run", "picture.toml"], "picture.toml is no experiment: it is not text"),
        (["run", "broken.toml"], "broken.toml:2:9: "),
        (["check", "broken.toml"], "broken.toml is not what `tollgate lab run --json` prints: "),
    ] {
        let (status, _, errors) = files.lab(&arguments);
        assert!(status == 126 && errors.contains(message) && errors.lines().count() == 1, "{errors}");
    }
}

#[test]
fn experiments_are_listed_and_described_for_programs() {
    let files = Files::new("list", &twice());
    let value = |arguments: &[&str]| -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("lab")
            .args(arguments)
            .current_dir(&files.0)
            .output()
            .unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let list = value(&["list", "--json"]);
    assert!(list[0]["name"] == "pv-cr3" && list[0]["cells"].as_u64().unwrap() > 10, "{list}");
    let shown = value(&["show", "./prints.toml", "--json"]);
    assert_eq!(shown["cells"][1]["id"], "out/two");
    assert_eq!(shown["cells"][1]["published"], 4.0);
    assert!(shown["cells"][1]["command"].as_str().unwrap().starts_with("tollgate run --kernel two.elf"), "{shown}");
}

#[test]
fn a_standard_error_that_cannot_be_written_is_no_crash() {
    let files = Files::new("full", &twice());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = files.command(&["run", "nothing"]).stderr(full).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

/// Stands in for Slurm on a host without it: tasks of an array are children of `sbatch`, one after the other, and their numbers are listed in
/// a file until they have ended. `SLURM_TASK` says what becomes of a task: `dies` leaves no status, `held` can't be started.
const SLURM: [(&str, &str); 4] = [
    (
        "sbatch",
        r#"[ "$1" = --version ] && exit 0
[ "$SLURM_TASK" = refused ] && { echo "sbatch: error: Invalid partition" >&2; exit 1; }
here=$(dirname "$0")
echo "$*" >>"$here/submitted"
for word; do
    case $word in
    --array=*) array=${word#--array=}; last=${array#0-}; last=${last%%%*} ;;
    esac
    script=$word
done
(
    for task in $(seq 0 "$last"); do
        if [ "$SLURM_TASK" = endless ]; then sleep 1000 & echo $! >>"$here/children"; wait; fi
        [ "$SLURM_TASK" = dies ] || [ "$SLURM_TASK" = held ] || SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_JOB_ID=7 sh "$script"
    done
    [ "$SLURM_TASK" = held ] || rm -f "$here/listed"
) >/dev/null 2>&1 &
seq 0 "$last" >"$here/listed"
echo "7;cluster"
"#,
    ),
    (
        "squeue",
        r#"here=$(dirname "$0")
[ -e "$here/listed" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
while read -r task; do
    case $SLURM_TASK in held) echo "$task|(launch failed requeued held)" ;; *) echo "$task|None" ;; esac
done <"$here/listed"
"#,
    ),
    (
        "scancel",
        r#"[ "$1" = --version ] && exit 0
here=$(dirname "$0")
echo "$*" >>"$here/cancelled"
rm -f "$here/listed"
[ ! -e "$here/children" ] || kill $(cat "$here/children")
"#,
    ),
    (
        "scontrol",
        r#"case "$*" in
"show config") echo "MaxArraySize            = 1001" ;;
*) echo "JobId=8 ArrayJobId=7 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:1 NodeList=node3" ;;
esac
"#,
    ),
];

impl Files {
    /// A laboratory with those commands on its PATH.
    fn on_slurm(&self, arguments: &[&str], task: &str) -> Command {
        use std::os::unix::fs::PermissionsExt;
        let directory = self.0.join("bin");
        std::fs::create_dir_all(&directory).unwrap();
        for (name, script) in SLURM {
            let path = directory.join(name);
            if !path.exists() {
                std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        let mut command = self.command(&[&["run", "./prints.toml", "--on", "slurm"], arguments].concat());
        command.env("PATH", path).env("SLURM_TASK", task);
        command
    }

    fn slurm(&self, arguments: &[&str], task: &str) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.on_slurm(arguments, task).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (status.code().expect("it was not killed"), text(&stdout), text(&stderr))
    }
}

#[test]
fn tables_are_the_same_whichever_host_ran_the_cells() {
    let files = Files::new("slurm", &twice());
    for form in [&["--json"][..], &["--markdown"], &[]] {
        let here = files.lab(&[&["run", "./prints.toml", "--fresh"], form].concat());
        let there =
            files.slurm(&[&["--fresh", "--jobs", "1", "--sbatch", "--partition=short --mem=1G"], form].concat(), "");
        assert_eq!(here, there);
        assert_eq!(here.0, 0);
    }
    assert_eq!(files.kept().len(), 2, "nothing is left of the arrays");
    let submitted = std::fs::read_to_string(files.0.join("bin/submitted")).unwrap();
    let first = submitted.lines().next().unwrap();
    assert!(first.contains("--partition=short --mem=1G --array=0-1%1 "), "{first}");
    let (status, _, errors) = files.slurm(&[], "");
    assert_eq!((status, errors.as_str()), (0, ""));
    let again = std::fs::read_to_string(files.0.join("bin/submitted")).unwrap();
    assert_eq!(again, submitted, "finished cells are not submitted again");
}

#[test]
fn a_cell_that_slurm_loses_is_named_with_what_slurm_says_of_it() {
    let files = Files::new("slurm-lost", &twice());
    let (status, printed, errors) = files.slurm(&[], "dies");
    assert_eq!(status, 1, "{errors}");
    let told = "was ended by Slurm, task 7_0: NODE_FAIL (NodeDown), exit code 0:1, on node3";
    assert!(errors.contains(&format!("prints/out/one: {told}")), "{errors}");
    assert!(printed.contains("failed") && files.kept().is_empty(), "{printed}");
    let (status, _, errors) = files.slurm(&[], "held");
    assert!(status == 1 && errors.contains("can't be started by Slurm: (launch failed requeued held)"), "{errors}");
    let (status, _, errors) = files.slurm(&[], "refused");
    let named = "prints/out/one and another cell: was rejected by Slurm: sbatch: error: Invalid partition";
    assert!(status == 126 && errors.contains(named), "{errors}");
    // A guest that fails does so there too.
    let files = Files::new("slurm-fails", &[PRINT, b"\x0f\x0b"].concat());
    let (status, _, errors) = files.slurm(&[], "");
    assert!(status == 1 && errors.contains("prints/out/two: ended with status 125 where 0 was expected"), "{errors}");
    assert!(errors.contains("    | *"), "{errors}");
}

#[test]
fn an_interrupted_run_cancels_its_arrays() {
    let files = Files::new("slurm-stop", &twice());
    let mut child = files.on_slurm(&[], "endless").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !files.0.join("bin/children").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is submitted");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&child, "INT");
    assert_eq!(wait(&mut child), 130);
    assert_eq!(std::fs::read_to_string(files.0.join("bin/cancelled")).unwrap(), "7\n");
    assert!(files.kept().is_empty(), "{:?}", files.kept());
}

#[test]
fn where_there_is_no_slurm_its_package_is_named() {
    let files = Files::new("slurm-none", &twice());
    let mut command = files.command(&["run", "./prints.toml", "--on", "slurm"]);
    let output = command.env("PATH", files.0.join("bin")).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(errors.contains("--on slurm needs sbatch") && errors.contains("slurm-client"), "{errors}");
}

/// An experiment over a Linux that a script of the checkout makes.
const MADE: &str = r#"
title = "Made"
[defaults]
profile = "skx"
platform = "bare"
memory = "16M"
guest = "made"
[guest.made]
kernel = "one.elf"
initrd = "made.cpio"
made-by = "guests/linux/make cloud"
[metric]
count = "OUT 0x3f8 *"
unit = "characters"
[[column]]
id = "out"
title = "out"
[[row]]
id = "one"
title = "one"
"#;

#[test]
fn images_of_a_user_s_kernels_are_in_the_laboratory_s_directory_and_do_not_pile_up() {
    let files = Files::new("images", &twice());
    std::fs::write(files.0.join("made.toml"), MADE).unwrap();
    use std::os::unix::fs::PermissionsExt;
    // A checkout whose scripts make images of 8 MiB, which no kernel can read.
    let scripts = files.0.join("guests/linux");
    std::fs::create_dir_all(&scripts).unwrap();
    for (name, text) in [
        ("kernel", "[ $1 != --label ] || { echo 6.1; exit; }\necho $PWD/one.elf\n"),
        ("make", "while [ $1 != --to ]; do shift; done\nhead -c 8M /dev/zero >$2\necho $2\n"),
    ] {
        let path = scripts.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for patch in ["a", "b", "c"] {
        std::fs::write(files.0.join(patch), patch).unwrap();
    }
    let images = || {
        let entries = std::fs::read_dir(files.0.join("out/images")).unwrap();
        let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().all(|name| name.starts_with("made-6.1-") && name.ends_with(".cpio")), "{names:?}");
        names.len()
    };
    let run = |kernels: &[&str], keep: &str| {
        let options = kernels.iter().flat_map(|kernel| ["--kernel", kernel]);
        files.lab(&["run", "./made.toml", "--keep", keep].into_iter().chain(options).collect::<Vec<_>>());
        images()
    };
    assert_eq!(run(&["cloud:a", "cloud:b"], "1G"), 2);
    assert_eq!(run(&["cloud:b"], "1G"), 2, "an image of the same contents has the same name");
    assert_eq!(run(&["cloud:c"], "1M"), 1, "the run's own stays");
    let (status, printed, errors) = files.lab(&["prune", "--keep", "0"]);
    let lines: Vec<&str> = printed.lines().collect();
    let whole = |line: &str| {
        line.starts_with("1 image of a guest (") && line.ends_with(") removed, 0 images of guests (0 bytes) kept")
    };
    assert!(status == 0 && whole(lines[1]), "{printed}{errors}");
    assert_eq!(images(), 0);
}
