//! One command in two kernels. The tests need the distribution's cloud kernel in the cache (`guests/linux/kernel`, `guests/linux/kernel --modules`), and
//! pass without having looked at anything where it is not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const WRONG_USE: i32 = 2;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(repository());
    // What is tested does not depend on the model of time, and this one is fast.
    match arguments {
        ["diff", options @ ..] if !options.contains(&"--load") => {
            command.args(["diff", "--model", "flat"]).args(options)
        }
        _ => command.args(arguments),
    };
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env("TOLLGATE_CACHE", "").env("TOLLGATE_CONFIG", "");
    command.stdin(Stdio::null());
    command
}

fn program(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Returns true if the cloud kernel and its modules are in the cache, so that the program fetches nothing.
fn has_kernel() -> bool {
    let cache = repository().join("guests/linux/cache");
    let word = |file: &str| std::fs::read_to_string(cache.join("kernel-cloud").join(file)).unwrap_or_default();
    let begin = format!("{}_", word("package").trim());
    let packages = std::fs::read_dir(cache.join("unpacked")).into_iter().flatten().flatten();
    let mut packages = packages.filter(|package| package.file_name().to_string_lossy().starts_with(&begin));
    let modules = Path::new("lib/modules").join(word("release").trim());
    let has = cache.join("kernel-cloud/vmlinuz").is_file()
        && packages.any(|package| package.path().join(&modules).join("kernel").is_dir());
    if !has {
        eprintln!("skipped: the cloud kernel and its modules are not in guests/linux/cache");
    }
    has
}

/// Runs a command in the cloud kernel, if that is here.
fn run(arguments: &[&str]) -> Option<Output> {
    has_kernel().then(|| program(arguments))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diff-{test}"));
    // The rest of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn the_same_line_says_the_same() {
    let line = [
        "diff",
        "--layouts",
        "1",
        "--kernel",
        "cloud",
        "--a",
        "mitigations=off",
        "--json",
        "--",
        "sh",
        "-c",
        "cat /proc/self/maps",
    ];
    let Some(first) = run(&line) else { return };
    assert!(first.status.success(), "{}", text(&first.stderr));
    let value: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(value["verdict"]["answer"], "one-layout");
    assert!(value["sentence"].as_str().unwrap().starts_with("In one layout, B costs "));
    assert_eq!(value["a"]["title"], "cloud, mitigations=off");
    assert!(value["certainty"].as_str().unwrap().starts_with("One layout; no interval"));
    let second = run(&line).unwrap();
    assert!(first.stdout == second.stdout, "the files of /proc are the guest's");
}

#[test]
fn a_difference_is_measured_in_pairs_until_an_interval_decides() {
    let line = [
        "diff",
        "--kernel",
        "cloud",
        "--a",
        "mitigations=off",
        "--fail-above",
        "5%",
        "--json",
        "--",
        "sh",
        "-c",
        "ls /proc/self",
    ];
    let Some(output) = run(&[&line[..8], &["--add", "ls"], &line[8..]].concat()) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = &value["verdict"];
    assert_eq!((&verdict["answer"], &verdict["held"]), (&"more".into(), &"exceeded".into()));
    assert!(verdict["interval"]["low"].as_f64().unwrap() > 0.05 && verdict["interval"]["confidence"] == 0.95);
    assert_eq!(value["a"]["runs"].as_array().unwrap().len(), 6, "the first look decides");
    assert!(value["decision"].as_str().unwrap().starts_with("Fails: --fail-above allows 5%"));
    // Where the answer comes from.
    let differs: Vec<&str> =
        value["differs"].as_array().unwrap().iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert!(
        differs.contains(&"mitigation of meltdown") && differs.contains(&"words of the command line"),
        "{differs:?}"
    );
    let origin = &value["b"]["origin"];
    assert!(
        origin["release"].as_str().unwrap().starts_with("6.1.")
            && origin["profile"] == "skx"
            && origin["model"] == "flat"
    );
    assert!(origin["image"].as_str().unwrap().starts_with("sha256 "));
    let provenance = &value["provenance"];
    assert_eq!(provenance["seeds"], serde_json::json!([1, 6]));
    let again = "tollgate diff --kernel cloud --a mitigations=off --fail-above 5% --add ls -- sh -c 'ls /proc/self'";
    assert_eq!(provenance["again"].as_str().unwrap().replace(" --model flat", ""), again);
    let files = provenance["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["path"] == "/usr/bin/ls" && file["sha256"].as_str().unwrap().len() == 64));
    assert!(value["rests"]["sentence"].as_str().unwrap().contains("are charged at measured prices"));
}

#[test]
fn sides_that_are_the_same_and_settings_without_an_effect_are_named_first() {
    let diff = |options: &[&str]| run(&[&["diff", "--kernel", "cloud"], options, &["--", "true"]].concat());
    let Some(same) = diff(&[]) else { return };
    let lines = text(&same.stdout);
    let mut lines = lines.lines();
    let first =
        "A and B have the same kernel, files and settings: there is nothing to compare; one pair of runs confirms it.";
    assert_eq!(lines.next(), Some(first));
    assert!(lines.next().unwrap().starts_with("In one layout, B costs as many cycles as A "));
    let auto = text(&diff(&["--layouts", "1", "--b", "mitigations=auto"]).unwrap().stdout);
    let first = "B: `mitigations=auto` is the kernel's default, so it has no effect";
    assert_eq!(auto.lines().next(), Some(first));
    let module = text(&diff(&["--layouts", "1", "--b", "kvm.ept=0"]).unwrap().stdout);
    let first = "B: `kvm.ept=0` is a parameter of the module kvm, which the kernel has not loaded: it has no effect";
    assert_eq!(module.lines().next(), Some(first));
    assert!(module.contains("A and B differ only in words without an effect"), "{module}");
}

#[test]
fn sides_with_names_are_compared_with_one_of_them() {
    let sides = ["--side", "base", "--side", "off=mitigations=off", "--side", "typo=mitigation=off", "--side", "same="];
    let line = [&["diff", "--kernel", "cloud"], &sides[..], &["--json", "--", "true"]].concat();
    let Some(output) = run(&line) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let warnings: Vec<&str> = value["warnings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(
        warnings,
        [
            "typo: the kernel does not know its parameter `mitigation=off`, which has no effect: is `mitigations=off` meant?",
            "base and typo differ only in words without an effect, so only their layouts differ.",
            "base and same have the same kernel, files and settings: there is nothing to compare; one pair of runs confirms it.",
        ]
    );
    let sides = &value["sides"];
    let answer = |side: usize| sides[side]["against"]["verdict"]["answer"].as_str();
    assert_eq!(
        (value["reference"].as_str(), answer(0), answer(1), answer(3)),
        (Some("base"), None, Some("less"), Some("same"))
    );
    // What is decided is not run again, and the side that is the same ran once.
    let runs = |side: usize| sides[side]["runs"].as_array().unwrap().len();
    assert_eq!((runs(1), runs(2), runs(3)), (6, 6, 1));
    assert_eq!(sides[1]["title"], "cloud, mitigations=off");
    assert!(sides[1]["against"]["sentence"].as_str().unwrap().starts_with("off costs "));
    // The answer is that of the same two sides alone.
    let two = run(&["diff", "--kernel", "cloud", "--b", "mitigations=off", "--json", "--", "true"]).unwrap();
    let two: serde_json::Value = serde_json::from_slice(&two.stdout).unwrap();
    assert_eq!(two["verdict"], sides[1]["against"]["verdict"]);
    assert_eq!(two["causes"], sides[1]["against"]["causes"]);
}

#[test]
fn a_scan_replaces_a_parameter_in_the_command_and_in_settings() {
    let line = ["diff", "--kernel", "cloud", "--layouts", "1", "--reference", "n=2", "--scan", "n=1,2", "--json", "--"];
    let command = ["sh", "-c", "i=0; while [ $i -lt {n} ]; do i=$((i+1)); done; echo {}", "{n}"];
    let Some(output) = run(&[&line[..], &command].concat()) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["reference"], &value["sides"][0]["name"]), (&"n=2".into(), &"n=1".into()));
    assert_eq!(value["sides"][0]["command"], "sh -c 'i=0; while [ $i -lt 1 ]; do i=$((i+1)); done; echo {}' 1");
    assert_eq!(value["sides"][1]["parameters"], serde_json::json!({ "n": "2" }));
    assert_eq!(value["command"], "sh -c 'i=0; while [ $i -lt {n} ]; do i=$((i+1)); done; echo {}' {n}");
}

#[test]
fn saved_results_are_shown_and_combined() {
    let place = directory("saved");
    let file = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let (two, one) = (file("two.json"), file("one.json"));
    let line =
        ["diff", "--kernel", "cloud", "--layouts", "2", "--a", "mitigations=off", "--save", &two, "--csv=layouts"];
    let Some(measured) = run(&[&line[..], &["--", "true"]].concat()) else { return };
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let shown = program(&["diff", "--load", &two, "--csv=layouts"]);
    assert_eq!((text(&shown.stdout), shown.status.code()), (text(&measured.stdout), Some(0)));
    assert_eq!(text(&shown.stdout).lines().count(), 5);
    // The whole answer is there, with its counts, entries and shares.
    let shown = text(&program(&["diff", "--load", &two]).stdout);
    for part in ["count A", "instructions A", "total B", "p99 B", "mitigation A", "measured prices"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let document: serde_json::Value =
        serde_json::from_slice(&program(&["diff", "--load", &two, "--json"]).stdout).unwrap();
    assert!(document["rests"]["sentence"].is_string() && document["a"]["title"].is_string());
    // All forms at once: one is printed, and the others are in files.
    let forms = ["json", "md", "csv", "sides.csv"].map(|ending| file(&format!("form.{ending}")));
    let [json, markdown, layouts, sides] = &forms;
    let written = [
        format!("--json={json}"),
        format!("--markdown={markdown}"),
        format!("--csv=layouts:{layouts}"),
        format!("--csv={sides}"),
    ];
    let written: Vec<&str> = written.iter().map(String::as_str).collect();
    let all = program(&[&["diff", "--load", &two], &written[..]].concat());
    assert_eq!((text(&all.stdout), all.status.code()), (shown, Some(0)), "{}", text(&all.stderr));
    for (option, file) in [("--json", json), ("--markdown", markdown), ("--csv=layouts", layouts), ("--csv", sides)] {
        let alone = program(&["diff", "--load", &two, option]);
        assert!(alone.stdout == std::fs::read(file).unwrap(), "{option}");
    }
    let both = program(&["diff", "--load", &two, "--json", "--csv"]);
    assert_eq!(both.status.code(), Some(WRONG_USE));
    assert!(text(&both.stderr).contains("--json and --csv are given, and one result is printed"));
    let same = program(&["diff", "--load", &two, "--json", &format!("--csv={json}"), "--html", json]);
    assert_eq!(same.status.code(), Some(WRONG_USE), "{}", text(&same.stderr));
    // A side that is measured alone, later.
    let line = ["diff", "--kernel", "cloud", "--layouts", "2", "--side", "nopti=pti=off", "--save", &one, "--", "true"];
    let alone = run(&line).unwrap();
    assert_eq!(text(&alone.stdout), "nopti: 2 layouts are saved.\n", "{}", text(&alone.stderr));
    let both = program(&["diff", "--load", &two, "--load", &one, "--reference", "B", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&both.stdout).unwrap();
    let names: Vec<&str> =
        value["sides"].as_array().unwrap().iter().map(|side| side["name"].as_str().unwrap()).collect();
    assert_eq!((names, value["reference"].as_str()), (vec!["A", "B", "nopti"], Some("B")));
    assert_eq!(value["sides"][2]["against"]["differs"][0]["b"], "pti=off");
    let all = file("all.json");
    let combined = program(&["diff", "--load", &two, "--load", &one, "--save", &all]);
    let loaded = program(&["diff", "--load", &all]);
    assert_eq!((text(&loaded.stdout), loaded.status.code()), (text(&combined.stdout), Some(0)));
    // What can't be shown is an error of the file.
    let broken = file("broken.json");
    std::fs::write(&broken, "{}").unwrap();
    for (arguments, why) in [
        (vec!["--load", one.as_str()], "has one side, nopti"),
        (vec!["--load", broken.as_str()], "is not a file that tollgate diff --save has written"),
        (vec!["--load", "/no/such/file"], "can't be read"),
        (vec!["--load", two.as_str(), "--reference", "C"], "there are: A, B"),
    ] {
        let output = program(&[&["diff"], &arguments[..]].concat());
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn nobody_waits_for_the_writer_of_a_fifo() {
    let place = directory("fifo");
    let (fifo, broken) = (place.join("fifo"), place.join("broken.json"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::fs::write(&broken, "{}").unwrap();
    let shown = program(&["diff", "--load", fifo.to_str().unwrap()]);
    assert!(text(&shown.stderr).contains("is a FIFO"), "{}", text(&shown.stderr));
    // Standard input and the shell's process substitution are read.
    for script in
        ["\"$0\" diff --load - <\"$1\"", "cat \"$1\" | \"$0\" diff --load -", "\"$0\" diff --load <(cat \"$1\")"]
    {
        let output = Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]).arg(&broken).output();
        let errors = text(&output.unwrap().stderr);
        assert!(errors.contains("is not a file that tollgate diff --save has written"), "{script}: {errors}");
    }
}

/// Starts a measurement, and sends it SIGINT once the file is there.
fn interrupted(arguments: &[&str], once: &Path) -> Output {
    let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !once.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success(), "the measurement is running");
    child.wait_with_output().unwrap()
}

#[test]
fn an_interrupted_measurement_shows_and_saves_the_layouts_that_are_complete() {
    if !has_kernel() {
        return;
    }
    let place = directory("interrupted");
    let file = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let (kept, saved, page) = (file("kept"), file("saved.json"), file("page.html"));
    let line = ["diff", "--kernel", "cloud", "--layouts", "1000", "--jobs", "1", "--keep", &kept];
    let sides = ["--side", "base", "--side", "off=mitigations=off", "--side", "nopti=pti=off"];
    let shown = ["--save", &saved, "--html", &page, "--json", "--", "true"];
    // The first layout is complete once the second one begins.
    let output = interrupted(&[&line[..], &sides, &shown].concat(), &place.join("kept").join("base-2.output"));
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |side: usize| value["sides"][side]["runs"].as_array().unwrap().len();
    let layouts = count(0);
    assert!((1..1000).contains(&layouts) && count(1) <= layouts && count(2) <= layouts);
    let warning = value["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("The measurement was interrupted after ") && warning.ends_with(" of 1,000 layouts."));
    assert!(value["provenance"]["again"].as_str().unwrap().contains("--layouts") && Path::new(&page).is_file());
    let loaded = program(&["diff", "--load", &saved]);
    assert_eq!(loaded.status.code(), Some(0));
    assert!(text(&loaded.stdout).starts_with(warning), "{}", text(&loaded.stdout));
    // A verdict on it has the status of the measurement, as its test has.
    let junit = file("loaded.xml");
    for judged in [["--fail-above", "1000%"], ["--junit", &junit]] {
        let loaded = program(&[&["diff", "--load", &saved], &judged[..]].concat());
        assert_eq!(loaded.status.code(), Some(130), "{judged:?}");
    }
    let errors = |file: &str| std::fs::read_to_string(file).unwrap().matches("<error type=\"interrupted\"").count();
    assert_eq!(errors(&junit), 2);
    // Nothing is left of a measurement in which no layout is complete, apart from its test, which is an error.
    let junit = file("early.xml");
    let line = ["diff", "--kernel", "cloud", "--keep", &kept, "--save", &page, "--junit", &junit];
    let endless = ["--", "sh", "-c", "while :; do :; done"];
    let early = interrupted(&[&line[..], &endless].concat(), &place.join("kept").join("a-1.output"));
    assert_eq!(errors(&junit), 1);
    assert_eq!((early.status.code(), text(&early.stdout)), (Some(130), String::new()));
    assert!(text(&early.stderr).contains("interrupted before any layout was complete"), "{}", text(&early.stderr));
}

#[test]
fn a_second_signal_ends_a_measurement_and_leaves_nothing() {
    if !has_kernel() {
        return;
    }
    let place = directory("twice");
    let line = ["diff", "--kernel", "cloud", "--a", "mitigations=off", "--json", "--", "sleep", "1"];
    let mut child = command(&line).env("TMPDIR", &place).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = || std::fs::read_dir(&place).unwrap().flatten().any(|own| own.path().join("a-1.output").exists());
    while !begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Two signals of the same number might arrive as one.
    let signals = format!("kill -INT {0}; kill -TERM {0}", child.id());
    assert!(Command::new("sh").args(["-c", &signals]).status().unwrap().success(), "the measurement is running");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(130), String::new()));
    // The measurement may have ended already because of the first signal.
    let ends =
        ["ended at the second signal: no result is shown or saved", "interrupted before any layout was complete"];
    let errors = text(&output.stderr);
    assert!(ends.iter().any(|end| errors == format!("tollgate: {end}\n")), "{errors}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0, "the files of the runs are removed");
}

#[test]
fn a_seed_is_a_layout() {
    let files = directory("seed");
    let ledger = |name: &str| files.join(name).to_str().unwrap().to_owned();
    let mut places = Vec::new();
    for (name, seed) in [("a", "3"), ("b", "3"), ("c", "4")] {
        let (ledger, script) = (ledger(name), "grep ' _text$' /proc/kallsyms");
        let line = ["exec", "--kernel", "cloud", "--user", "root", "--settle", "0.1", "--seed", seed, "--ledger"];
        let Some(output) = run(&[&line[..], &[&ledger, "--", "sh", "-c", script]].concat()) else { return };
        assert!(output.status.success(), "{}", text(&output.stderr));
        places.push(text(&output.stdout));
    }
    let bytes = |name: &str| std::fs::read(ledger(name)).unwrap();
    assert!(bytes("a") == bytes("b") && bytes("a") != bytes("c"));
    assert!(places[0] == places[1] && places[0] != places[2], "{places:?}");
}

#[test]
fn a_kernel_that_hides_the_command_is_named_with_its_side() {
    let line = ["diff", "--kernel", "cloud", "--layouts", "1", "--b", "lockdown=integrity", "--", "true"];
    let Some(output) = run(&line) else { return };
    let errors = text(&output.stderr);
    assert!(errors.starts_with("tollgate: B: the ledger has no region 'exec': the guest's kernel lets no program use"));
    assert!(output.status.code() == Some(126) && !errors.contains(".ledger:"), "{errors}");
}

#[test]
fn a_command_that_fails_is_named_with_its_side() {
    // No status of a command looks like a verdict, or like a failure of the guest.
    for (script, ended) in [
        ("echo why >&2; exit 1", "ended with status 1"),
        ("echo why >&2; exit 123", "ended with status 123"),
        ("echo why >&2; kill -SEGV $$", "ended with status 139, as after SIGSEGV"),
    ] {
        let Some(output) = run(&["diff", "--kernel", "cloud", "--fail-above", "1%", "--", "sh", "-c", script]) else {
            return;
        };
        let errors = format!(
            "tollgate: A, seed 1: sh -c '{script}' {ended}\n    | why\ntollgate: --ignore-failure measures a command that fails\n"
        );
        assert_eq!(
            (output.status.code(), text(&output.stderr), text(&output.stdout)),
            (Some(119), errors, String::new())
        );
    }
    let line = ["diff", "--kernel", "cloud", "--ignore-failure", "--layouts", "1", "--csv", "--", "sh", "-c", "exit 1"];
    let Some(output) = run(&line) else { return };
    assert!(output.status.success() && text(&output.stdout).contains(",sh -c 'exit 1',"), "{}", text(&output.stderr));
    let Some(output) = run(&["diff", "--kernel", "cloud", "--", "/no/such/command"]) else { return };
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
}

#[test]
fn a_wrong_use_is_told_apart() {
    for line in [
        &["diff", "cloud", "--", "true"][..],
        &["diff", "a", "b", "--kernel", "c", "--", "true"],
        &["diff", "a", "b"],
        &["diff", "--layouts", "0", "--", "true"],
        &["diff", "--layouts", "6", "--time-limit", "9", "--", "true"],
        &["diff", "--env", "TERM", "--", "true"],
        &["diff", "--cpu", "skx", "--cpu", "icx", "--cpu", "emr", "--", "true"],
        &["diff", "--fail-above", "-1%", "--", "true"],
        &["diff", "--side", "a", "--", "true"],
        &["diff", "--side", "a", "--side", "a", "--", "true"],
        &["diff", "--side", "a", "--side", "b=--cpuu icx", "--", "true"],
        &["diff", "--side", "a", "--side", "b", "--a", "pti=off", "--", "true"],
        &["diff", "--side", "a", "--side", "b", "--cpu", "skx", "--cpu", "icx", "--", "true"],
        &["diff", "--side", "a", "--side", "b", "--reference", "c", "--", "true"],
        &["diff", "--reference", "A", "--", "true"],
        &["diff"],
        &["diff", "--load", "x", "--", "true"],
        &["diff", "--load", "x", "--side", "a"],
        &["diff", "--load", "x", "--kernel", "cloud"],
        &["diff", "--load", "x", "--layouts", "6"],
        &["diff", "--csv", "--json", "--load", "x"],
        &["diff", "--csv=rows", "--load", "x"],
        &["diff", "--scan", "n=1,2", "--", "true"],
        &["diff", "--scan", "n", "--", "true"],
    ] {
        assert_eq!(program(line).status.code(), Some(WRONG_USE), "{line:?}");
    }
}

/// A diff of a command from a directory, with a home directory and more of an environment.
fn diff_from(directory: &Path, home: &str, options: &[&str], command: &[&str]) -> Option<Output> {
    if !has_kernel() {
        return None;
    }
    let mut line = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    line.current_dir(directory)
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("TOLLGATE_CACHE", "")
        .env("TOLLGATE_CONFIG", "");
    line.env("HOME", home)
        .env("USER", home)
        .env("LOGNAME", home)
        .env("TZ", home)
        .env("TERM", home)
        .env("LC_TEST", home);
    line.args(["diff", "--layouts", "1", "--kernel", "cloud", "--a", "quiet", "--b", "mitigations=off"]).args(options);
    Some(
        line.args(["--keep"])
            .arg(directory.join("kept"))
            .arg("--")
            .args(command)
            .stdin(Stdio::null())
            .output()
            .unwrap(),
    )
}

#[test]
fn a_result_does_not_depend_on_where_it_is_measured() {
    let (short, long) = (directory("p"), directory("place/with/a/longer/name"));
    let script = "echo $0 $PWD $HOME; pwd; env; ls -lid . / ./data; cat data; cat /proc/self/auxv | wc -c";
    for place in [&short, &long] {
        std::fs::write(place.join("script"), format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(place.join("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(place.join("data"), "data\n").unwrap();
        let file = std::fs::File::options().write(true).open(place.join("data")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000)).unwrap();
    }
    // Once with files of the directory, and once without.
    for command in [&["./script", "data", "env", "ls", "cat", "wc"][..], &["sh", "-c", "env; pwd; ls -ld ."]] {
        let options = ["--add", "env", "--add", "ls", "--add", "cat", "--add", "wc"];
        let Some(first) = diff_from(&short, "/home/someone/with/a/long/name", &options, command) else { return };
        assert!(first.status.success(), "{}{}", text(&first.stdout), text(&first.stderr));
        let second = diff_from(&long, "/", &options, command).unwrap();
        assert_eq!((text(&first.stdout), text(&first.stderr)), (text(&second.stdout), text(&second.stderr)));
        let printed = |place: &Path| text(&std::fs::read(place.join("kept/a.output")).unwrap());
        assert_eq!(printed(&short), printed(&long));
        assert!(
            printed(&short).contains("PWD=/tollgate\n") && printed(&short).contains("HOME=/root\n"),
            "{}",
            printed(&short)
        );
    }
    // A variable is the shell's only where that is asked for.
    let options = ["--env", "X=1", "--keep-env", "TERM,TZ", "--add", "env"];
    let set = diff_from(&short, "/", &options, &["sh", "-c", "env"]).unwrap();
    assert!(set.status.success(), "{}", text(&set.stderr));
    let printed = text(&std::fs::read(short.join("kept/a.output")).unwrap());
    assert!(["X=1\n", "TERM=/\n", "TZ=/\n", "HOME=/root\n"].iter().all(|line| printed.contains(line)), "{printed}");
    assert!(!printed.contains("LC_TEST"), "{printed}");
}

#[test]
fn a_directory_that_a_file_names_is_mentioned() {
    let place = directory("named");
    std::fs::write(place.join("script"), format!("#!/bin/sh\ncat {}/data\n", place.display())).unwrap();
    std::fs::write(place.join("data"), "data\n").unwrap();
    let data = place.join("data");
    let options = ["--add", "cat", "--add", data.to_str().unwrap()];
    let Some(output) = diff_from(&place, "/", &options, &["sh", "./script"]) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let remark = format!("The command depends on the name of its working directory, {}", place.display());
    assert!(text(&output.stdout).contains(&remark), "{}", text(&output.stdout));
    let missing = diff_from(&place, "/", &[], &["no-such-command"]).unwrap();
    assert!(text(&missing.stderr).contains("in the PATH of a controlled command"), "{}", text(&missing.stderr));
    let missing = text(&diff_from(&place, "/", &[], &["./no-such-file"]).unwrap().stderr);
    assert!(missing.contains("./no-such-file: no such file") && !missing.contains("PATH"), "{missing}");
}

#[test]
fn a_parameter_that_the_kernel_does_not_know_is_named() {
    let line = ["diff", "--layouts", "1", "--kernel", "cloud", "--a", "mitigation=off", "--json", "--", "true"];
    let Some(output) = run(&line) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let warning =
        "A: the kernel does not know its parameter `mitigation=off`, which has no effect: is `mitigations=off` meant?";
    // Further lines say how much of the command's time has no name.
    assert_eq!(text(&output.stderr).lines().next(), Some(&*format!("tollgate: {warning}")));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["warnings"][0], warning);
    assert!(value["warnings"][1].as_str().unwrap().starts_with("A and B differ only in words without an effect"));
    // So is a value that the kernel does not know, of which it says nothing.
    let line = ["diff", "--layouts", "1", "--kernel", "cloud", "--b", "mds=ful", "--", "true"];
    let value = text(&run(&line).unwrap().stdout);
    let first = "B: `mds=ful` has a value that the documentation of `mds` does not know: is `mds=full` meant?";
    assert_eq!(value.lines().next(), Some(first));
    assert!(value.lines().nth(1).unwrap().starts_with("A and B differ only in words without an effect"), "{value}");
    let exec = program(&["exec", "--kernel", "cloud", "--append", "quite spectre_v2=off x.y=1", "--", "echo", "hi"]);
    let warning = "tollgate: the kernel does not know its parameter `quite`, which has no effect: is `quiet` meant?\n";
    assert_eq!((text(&exec.stdout), text(&exec.stderr)), ("hi\n".to_owned(), warning.to_owned()));
}

#[test]
fn a_file_that_changes_between_runs_is_named_first() {
    if !has_kernel() {
        return;
    }
    let place = directory("changed");
    let (data, kept) = (place.join("data"), place.join("kept"));
    std::fs::write(&data, "first").unwrap();
    let line = ["diff", "--kernel", "cloud", "--b", "quiet", "--layouts", "2", "--jobs", "1", "--add", "cat", "--keep"];
    let line = [&line[..], &[kept.to_str().unwrap(), "--", "cat", data.to_str().unwrap()]].concat();
    let mut child = command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A's first run is complete once B's begins, and its second one begins after that.
    while !kept.join("b-1.output").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::fs::write(&data, "and longer").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let warning = format!(
        "A: {} changed on this host between runs, which therefore had other contents: measure again.",
        data.display()
    );
    let (warnings, _) = shown.split_once("2 pairs of runs").unwrap();
    assert!(warnings.lines().any(|line| line == warning), "{shown}");
}
