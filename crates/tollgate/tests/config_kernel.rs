//! `tollgate config-kernel` on a tree whose script merges as the kernel's does, except for an option that it does not have.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A script that adds the fragment to the configuration. `-O DIR` is where the configuration is.
const SCRIPT: &str = "#!/bin/sh
out=.
[ \"$1\" != -O ] || { out=$2; shift 2; }
cat \"$1\" \"$2\" | grep -v CONFIG_SLUB > $out/.config.new && mv $out/.config.new $out/.config
";

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-kernel-{test}"));
    // The rest of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("tree/scripts/kconfig")).unwrap();
    std::fs::create_dir_all(directory.join("out")).unwrap();
    directory
}

fn script(directory: &Path, text: &str) {
    let path = directory.join("tree/scripts/kconfig/merge_config.sh");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn tollgate(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("config-kernel").args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn options_are_added_by_the_script_of_the_tree() {
    let directory = directory("added");
    script(&directory, SCRIPT);
    for (place, options) in [("tree", vec!["tree"]), ("out", vec!["tree", "--output", "out"])] {
        std::fs::write(directory.join(place).join(".config"), "CONFIG_64BIT=y\n# CONFIG_PCI is not set\n").unwrap();
        let output = tollgate(&directory, &options);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(
            said.starts_with("Added to ") && said.contains("CONFIG_PCI, ") && !said.contains("CONFIG_64BIT"),
            "{said}"
        );
        assert!(said.contains("tollgate exec uses CONFIG_SLUB, which this tree does not accept"), "{said}");
        let config = std::fs::read_to_string(directory.join(place).join(".config")).unwrap();
        assert!(config.contains("CONFIG_VIRTIO_CONSOLE=y\n"));
        assert!(directory.join(place).join("tollgate.config").is_file());
    }
    std::fs::write(directory.join("tree/.config"), tollgate(&directory, &["--print"]).stdout).unwrap();
    let said = text(&tollgate(&directory, &["tree"]).stdout);
    assert!(said.ends_with("has all options that tollgate exec needs or uses.\n"), "{said}");
}

#[test]
fn what_can_not_be_done_is_named() {
    let directory = directory("named");
    let failed = |arguments: &[&str], status: i32, word: &str| {
        let output = tollgate(&directory, arguments);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(output.status.code() == Some(status) && said.contains(word), "{arguments:?}: {said}");
    };
    failed(&[], 2, "<DIR>");
    failed(&["nowhere"], 126, "nowhere: No such file");
    failed(&["tree"], 126, "has no scripts/kconfig/merge_config.sh: it is not the source of a kernel");
    script(&directory, "echo flex: not found; exit 127\n");
    failed(&["tree"], 126, "make a configuration first, such as make -C ");
    std::fs::write(directory.join("tree/.config"), "").unwrap();
    failed(&["tree"], 126, "    | flex: not found");
    script(&directory, "true\n");
    failed(&["tree"], 1, "tollgate exec needs CONFIG_64BIT, ");
}
