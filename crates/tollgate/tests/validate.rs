//! `tollgate validate` as a user meets it: a saved result is shown again, kept, and quoted. No time is measured.

use silicon::host::Processor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use validate::Validation;
use validate::result::{Family, Pair, Row};

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("validate-{test}"));
    // Remove the files of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn tollgate(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output =
        command.args(arguments).current_dir(directory).env("XDG_CACHE_HOME", directory.join("cache")).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("it was not killed"), text(&output.stdout), text(&output.stderr))
}

/// A result of this machine's processor.
fn result() -> Validation {
    let mut result = Validation::new(Processor::of_host(), vec!["core".into(), "flat".into()], true);
    result.profile = "zen3".into();
    let row = |name: &str, native: f64, core: f64, flat: f64| Row {
        name: name.into(),
        group: String::new(),
        at: 4096.0,
        native,
        interval: [native, native],
        shared: false,
        models: vec![Some(core), Some(flat)],
    };
    let rows = vec![row("load 4096", 4.0, 5.0, 2.0), row("load 65536", 12.0, 12.0, 2.0)];
    result.families.push(Family::new("caches", "A load", "cycles", Some("bytes"), rows, 2));
    let models = vec![Some([2.0, 1.0]), Some([1.0, 1.0])];
    result.pairs.push(Pair { name: "call, the same inline".into(), native: [2.1, 1.0], models });
    result.notes.push("This machine is virtual.".into());
    result
}

#[test]
fn a_saved_result_is_shown_again() {
    let directory = directory("from");
    let saved = result();
    std::fs::write(directory.join("r.json"), saved.json()).unwrap();
    let (status, text, errors) = tollgate(&directory, &["validate", "--from", "r.json"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    for part in ["12.5%", "load 4096", "+25.0%", "call, the same inline", "Note: This machine is virtual."] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, json, _) = tollgate(&directory, &["validate", "--from", "r.json", "--json"]);
    assert_eq!(json, saved.json());
}

#[test]
fn an_interrupted_validation_says_so_and_leaves_nothing() {
    let directory = directory("interrupted");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["validate", "--quick", "--no-guest", "--save"]).env("TMPDIR", &directory);
    command.env("XDG_CACHE_HOME", &directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let left = || std::fs::read_dir(&directory).unwrap().count();
    while left() == 0 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.starts_with("tollgate: interrupted") && errors.ends_with(": no result is shown or saved\n"),
        "{errors}"
    );
    assert_eq!((output.status.code(), output.stdout.len(), left()), (Some(130), 0, 0));
}

#[test]
fn a_file_that_is_no_result_is_refused() {
    let directory = directory("refused");
    std::fs::write(directory.join("r.json"), "{}").unwrap();
    for (file, reason) in [("r.json", "is no result of `tollgate validate"), ("nowhere.json", "No such file")] {
        let (status, text, errors) = tollgate(&directory, &["validate", "--from", file]);
        assert_eq!((status, text.as_str()), (126, ""));
        assert!(errors.contains(reason), "{errors}");
    }
    assert_eq!(tollgate(&directory, &["validate", "--from", "r.json", "--quick"]).0, 2);
}

#[test]
fn a_kept_result_is_quoted_on_the_processor_that_it_is_of() {
    let directory = directory("quoted");
    let kept = directory.join("cache/tollgate/validation");
    std::fs::create_dir_all(&kept).unwrap();
    let quoted = |result: &Validation| {
        std::fs::write(kept.join("zen3.json"), result.json()).unwrap();
        let (status, text, _) = tollgate(&directory, &["cpu", "show", "zen3"]);
        assert_eq!(status, 0);
        text.starts_with("zen3, validated at 12% here (tollgate validate)\n\nzen3: AMD EPYC 7763")
    };
    let mut result = result();
    assert!(quoted(&result));
    result.processor.stepping ^= 1;
    assert!(!quoted(&result));
}
