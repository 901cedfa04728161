//! A series of commits whose builds copy the distribution's cloud kernel: what is built, measured, kept and said. The tests that measure need that kernel in
//! the cache (`guests/linux/kernel`, `guests/linux/kernel --modules`), and pass without having looked at anything where it is not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the cloud kernel's image and its modules, if both are in the cache.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let cache = repository().join("guests/linux/cache");
    let word = |file: &str| std::fs::read_to_string(cache.join("kernel-cloud").join(file)).unwrap_or_default();
    let begin = format!("{}_", word("package").trim());
    let modules = Path::new("lib/modules").join(word("release").trim());
    let packages = std::fs::read_dir(cache.join("unpacked")).into_iter().flatten().flatten();
    let mut found = packages
        .filter(|package| package.file_name().to_string_lossy().starts_with(&begin))
        .map(|package| package.path().join(&modules))
        .filter(|modules| modules.join("kernel").is_dir());
    let image = cache.join("kernel-cloud/vmlinuz");
    let found = found.next().filter(|_| image.is_file());
    if found.is_none() {
        eprintln!("skipped: the cloud kernel and its modules are not in guests/linux/cache");
    }
    Some((image, found?))
}

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("series-{test}"));
    // The rest of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("tree")).unwrap();
    directory
}

fn git(tree: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(tree).args(["-c", "user.name=x", "-c", "user.email=x@example.org"]).args(arguments);
    assert!(command.stdin(Stdio::null()).status().unwrap().success(), "git {arguments:?}");
}

/// Makes a repository with a commit for each script, which is the file `build`.
fn tree(directory: &Path, scripts: &[&str]) -> PathBuf {
    let tree = directory.join("tree");
    git(&tree, &["init", "-q", "-b", "main"]);
    for (number, script) in scripts.iter().enumerate() {
        std::fs::write(tree.join("build"), format!("# {number}\n{script}\n")).unwrap();
        git(&tree, &["add", "build"]);
        git(&tree, &["commit", "-q", "-m", &format!("commit {number}")]);
    }
    tree
}

fn series(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .current_dir(directory)
        .args(["series", "--model", "flat"])
        .args(arguments)
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("TOLLGATE_CACHE", "")
        .env("TOLLGATE_CONFIG", "");
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn broken_commits_are_rows_and_a_second_series_uses_what_the_first_has_made() {
    let Some((image, modules)) = kernel() else { return };
    let directory = directory("rows");
    let (image, modules) = (image.display(), modules.display());
    let good = format!(
        "echo ran >> ../ran; cp {image} $TOLLGATE_OUT/bzImage; mkdir -p $INSTALL_MOD_PATH/lib/modules; cp -r {modules} $INSTALL_MOD_PATH/lib/modules/"
    );
    let other = format!("{good}; printf x >> $TOLLGATE_OUT/bzImage");
    let unbootable = format!("{good}; head -c 100000 {image} > $TOLLGATE_OUT/bzImage");
    tree(&directory, &[&good, &good, "echo no rule to make target; exit 2", &other, &unbootable]);
    let line =
        ["--tree", "tree", "--range", "main~4..main", "--state", "state", "--build", "sh build", "--layouts", "2"];
    let command = ["--", "true"];
    let first = series(&directory, &[&line[..], &["--json"], &command].concat());
    assert!(first.status.success(), "{}", text(&first.stderr));
    let value: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    let rows = value["commits"].as_array().unwrap();
    let status: Vec<&str> = rows.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["measured", "measured", "not-built", "measured", "not-measured"]);
    assert_eq!(rows[1]["same_as"], rows[0]["name"], "a commit that changes nothing is not measured");
    assert_eq!(rows[2]["broken"]["log"], serde_json::json!(["no rule to make target"]));
    // A byte behind the kernel changes nothing.
    assert_eq!(rows[3]["previous"]["verdict"]["answer"], "same");
    assert_eq!(rows[3]["previous"]["name"], rows[1]["name"]);
    assert_eq!(rows[0]["subject"], "commit 0");
    assert!(rows[0]["side"]["origin"]["release"].as_str().unwrap().starts_with("6.1."));
    let ran = || std::fs::read_to_string(directory.join("state/ran")).unwrap().lines().count();
    assert_eq!(ran(), 4);
    // The same line says the same, and builds only what was broken.
    let second = series(&directory, &[&line[..], &["--json"], &command].concat());
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert!(
        text(&second.stderr).contains("the runs of 2 commits are those of an earlier series"),
        "{}",
        text(&second.stderr)
    );
    assert_eq!(ran(), 4);
    let csv = series(&directory, &[&line[..], &["--csv"], &command].concat());
    assert_eq!(text(&csv.stdout).lines().count(), 6);
    // The user's checkout is what it was.
    let status =
        Command::new("git").arg("-C").arg(directory.join("tree")).args(["status", "--porcelain"]).output().unwrap();
    assert_eq!(text(&status.stdout), "");
}

#[test]
fn mistakes_are_named_before_anything_is_built() {
    let directory = directory("mistakes");
    tree(&directory, &["exit 1", "exit 1"]);
    let error = |arguments: &[&str]| {
        let output = series(&directory, &[arguments, &["--state", "state", "--", "true"]].concat());
        assert!(!output.status.success());
        (output.status.code().unwrap(), text(&output.stderr))
    };
    let (status, said) = error(&["--tree", "tree", "--range", "main~1..main"]);
    assert!(status == 126 && said.contains("tree has no .config: name a configuration by --config FILE"), "{said}");
    let (_, said) = error(&["--tree", "nowhere", "--range", "main~1..main", "--build", "x"]);
    assert!(said.contains("--tree nowhere: "), "{said}");
    let (status, said) = error(&["--tree", "tree", "--range", "main~9..main", "--build", "x"]);
    assert!(status == 2 && said.contains("has no commit main~9"), "{said}");
    let (status, said) = error(&["--tree", "tree", "--range", "main~1..", "--build", "x", "--kernel", "cloud"]);
    assert!(status == 2 && said.contains("--kernel has no effect"), "{said}");
    for (arguments, word) in [
        (&["--tree", "tree"][..], "--range <A..B>"),
        (&["--tree", "tree", "--range", "a..b", "--bisect"], "--above <PERCENT>"),
        (&["--tree", "tree", "--range", "a..b", "--above", "2%"], "--bisect"),
        (&["--tree", "tree", "--range", "a..b", "--image", "x"], "--build <COMMAND>"),
        (&["--tree", "tree", "--range", "a..b", "--make-args", "V=1", "--build", "x"], "cannot be used with"),
    ] {
        let (status, said) = error(arguments);
        assert!(status == 2 && said.contains(word), "{arguments:?}: {said}");
    }
    // Without its first commit nothing can be compared.
    let (status, said) = error(&["--tree", "tree", "--range", "main~1..", "--build", "echo no rule; exit 2"]);
    assert!(status == 126 && said.contains("the first commit, ") && said.contains("    | no rule"), "{said}");
}
