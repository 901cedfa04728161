//! The laboratory as a user meets it: experiments of small guests, run by the program itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Where a guest's code is.
const ENTRY: u32 = 0x10_0030;

/// A directory of files for one test.
struct Files(PathBuf);

impl Files {
    /// With an experiment whose two columns print one and two characters; `last` is the code of the second column's guest.
    fn new(test: &str, second: &[u8]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{test}"));
        // What an earlier run has left.
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
    assert!(status == 0 && only.contains("ours              -     2"), "{only}");
}

#[test]
fn a_cell_that_fails_is_named_with_what_it_printed() {
    // It prints, and then there is no handler for an invalid opcode.
    let files = Files::new("fail", &[PRINT, b"\x0f\x0b"].concat());
    let (status, printed, errors) = files.lab(&["run", "./prints.toml"]);
    assert_eq!(status, 1, "{errors}");
    assert!(errors.contains("prints/out/two ended with status 125 where 0 was expected"), "{errors}");
    assert!(errors.contains("    | *"), "{errors}");
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
    assert!(status == 126 && errors.contains("prints.toml: is not what `tollgate lab run --json` prints"), "{errors}");
}

#[test]
fn an_experiment_that_is_wrong_is_refused_with_file_key_and_reason() {
    let files = Files::new("wrong", &twice());
    std::fs::write(files.0.join("prints.toml"), EXPERIMENT.replace("\"bare\"", "\"hvm\"\nvmexit = 0")).unwrap();
    let (status, _, errors) = files.lab(&["run", "./prints.toml"]);
    assert!(status == 126 && errors.contains("./prints.toml") && errors.contains("unknown field `vmexit`"), "{errors}");
    let (status, _, errors) = files.lab(&["run", "nothing"]);
    assert!(status == 126 && errors.contains("there is no experiment 'nothing'; there are: "), "{errors}");
    let (status, ..) = files.lab(&["run"]);
    assert_eq!(status, 2);
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

#[test]
fn an_interrupted_run_leaves_no_process_and_no_half_cell() {
    let files = Files::new("interrupt", SPIN);
    let mut child = files
        .command(&["run", "./prints.toml", "--jobs", "2"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let done = || files.0.join("out").exists() && files.kept().iter().any(|name| !name.starts_with('.'));
    let running = || files.kept().iter().any(|name| name.starts_with('.'));
    while !(done() && running()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the first cell is not done");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(wait(&mut child), 130);
    assert_eq!(files.kept().len(), 1);
    assert!(!files.kept()[0].starts_with('.'));
}
