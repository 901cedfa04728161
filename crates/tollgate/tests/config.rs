//! Defaults of the user: the configuration file, and what it does to commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{test}"));
    // The rest of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("tollgate")).unwrap();
    directory
}

fn tollgate(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).current_dir(directory).env("XDG_CONFIG_HOME", directory).env_remove("TOLLGATE_CONFIG");
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_defaults_are_shown_with_their_places() {
    let directory = directory("shown");
    let shown = text(&tollgate(&directory, &["config"]).stdout);
    assert!(shown.starts_with("There is no configuration file ") && shown.contains("\ncpu         skx "), "{shown}");
    std::fs::write(directory.join("tollgate/config.toml"), "cpu = \"zen3\"\n[diff]\nlayouts = 12\n").unwrap();
    let shown = text(&tollgate(&directory, &["config"]).stdout);
    let of = |key: &str| {
        let lines = shown.lines().filter(|line| line.split_whitespace().next() == Some(key));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(of("cpu"), ["cpu zen3 line 1 of the file exec diff stat series"]);
    assert_eq!(of("layouts")[0], "layouts 12 line 3 of the file diff");
    assert!(of("layouts")[1].ends_with("the program series"));
    let value: serde_json::Value = serde_json::from_slice(&tollgate(&directory, &["config", "--json"]).stdout).unwrap();
    assert_eq!((&value["exists"], &value["defaults"][0]["from"]), (&true.into(), &"file".into()));
}

#[test]
fn a_mistake_ends_commands_that_read_the_file_and_no_others() {
    let directory = directory("mistake");
    let file = directory.join("tollgate/config.toml");
    std::fs::write(&file, "cpuu = \"zen3\"\n").unwrap();
    let error = format!("tollgate: error: {}:1: the key cpuu is not known: is cpu meant?\n", file.display());
    for line in [&["config"][..], &["exec", "--", "true"], &["diff", "--load", "x"], &["stat", "--", "true"]] {
        let output = tollgate(&directory, line);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), error.clone()), "{line:?}");
    }
    for line in [&["lab", "list"][..], &["cpu", "list"], &["exec", "--help"]] {
        assert!(tollgate(&directory, line).status.success(), "{line:?}");
    }
    // The parser's own error comes first, and an empty variable means that there is no file.
    let output = tollgate(&directory, &["exec", "--cpuu", "x", "--", "true"]);
    assert!(text(&output.stderr).contains("unexpected argument '--cpuu'"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.arg("config").env("XDG_CONFIG_HOME", &directory).env("TOLLGATE_CONFIG", "").output().unwrap();
    assert!(
        output.status.success()
            && text(&output.stdout).starts_with("There is no configuration file: TOLLGATE_CONFIG is empty")
    );
    std::fs::write(&file, "cpu = \"no-such-processor\"\n").unwrap();
    let output = tollgate(&directory, &["exec", "--", "true"]);
    assert!(!output.status.success() && text(&output.stderr).contains("no-such-processor"), "{}", text(&output.stderr));
}
