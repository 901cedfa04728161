//! The commits of a series, and a work tree of their own in which they are checked out. The user's checkout is not touched.

use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
use lab::diff::runner::{self, Ended};
use lab::diff::series::Commit;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;

/// Variables by which an outer git tells an inner one where to work.
const OF_GIT: [&str; 5] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"];
/// The author of commits that are made of patches, who is always the same: the commits then are, too.
const AUTHOR: [(&str, &str); 6] = [
    ("GIT_AUTHOR_NAME", "Tollgate"),
    ("GIT_AUTHOR_EMAIL", "tollgate@tollgate.invalid"),
    ("GIT_AUTHOR_DATE", "2025-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "Tollgate"),
    ("GIT_COMMITTER_EMAIL", "tollgate@tollgate.invalid"),
    ("GIT_COMMITTER_DATE", "2025-01-01T00:00:00Z"),
];
/// The longest name of a patch.
const LONGEST_NAME: usize = 40;
/// Ends of the names of patches.
const PATCHES: [&str; 2] = ["patch", "diff"];

/// A repository, and a work tree of it.
pub struct Tree {
    repository: PathBuf,
    /// The work tree.
    pub place: PathBuf,
}

fn git(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    // Hooks of the user are for the user's own work.
    command.args(["-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"]);
    command.arg("-C").arg(directory).args(arguments);
    for name in OF_GIT {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs git, and returns its output. The error is git's own message.
fn ask(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().context("git can't be started")?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        let said = said.trim();
        let said = said.strip_prefix("fatal: ").or(said.strip_prefix("error: ")).unwrap_or(said);
        bail!("{}", if said.is_empty() { format!("git ended with {status}") } else { said.replace('\n', "; ") });
    }
    Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned())
}

/// Removes what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Returns the directory that all work trees of a repository share.
pub fn common_directory(repository: &Path) -> Result<PathBuf> {
    let found = ask(&mut git(repository, &["rev-parse", "--git-common-dir"]));
    let found = found.map_err(|error| anyhow!("--tree {}: {error}", repository.display()))?;
    let path = repository.join(found);
    path.canonicalize().with_context(|| format!("--tree {}", repository.display()))
}

/// Returns both ends of a range.
fn ends(range: &str) -> Result<(&str, &str)> {
    match range.split_once("..") {
        Some((a, b)) if !a.is_empty() && !b.starts_with('.') => Ok((a, if b.is_empty() { "HEAD" } else { b })),
        _ => bail!(WrongArguments::new(format!(
            "--range {range}: a range has the form A..B, as for git log; A.. ends at HEAD"
        ))),
    }
}

/// Returns the files of patches in a directory: in the order of its file `series`, as quilt has it, or else of their names.
fn patches_of(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("--patches {}", directory.display());
    let listed = match std::fs::read_to_string(directory.join("series")) {
        Ok(list) => {
            let names = list.lines().filter_map(|line| line.split('#').next()?.split_whitespace().next());
            names.map(|name| directory.join(name)).collect()
        }
        Err(_) => {
            let entries = std::fs::read_dir(directory).with_context(failed)?;
            let mut all: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            all.retain(|path| path.extension().is_some_and(|end| PATCHES.iter().any(|known| end == *known)));
            all.sort();
            all
        }
    };
    match listed.iter().find(|path| !path.is_file()) {
        Some(missing) => bail!("{}: the file series names {}, which is not there", failed(), missing.display()),
        None if listed.is_empty() => bail!("{}: the directory has no files *.patch or *.diff", failed()),
        None => Ok(listed),
    }
}

/// Returns the subject of a patch: that of its message, or the name of its file.
fn subject(patch: &str, name: &str) -> String {
    let mut lines = patch.lines().skip_while(|line| !line.starts_with("Subject:"));
    let Some(first) = lines.next() else { return name.to_owned() };
    let rest = lines.take_while(|line| line.starts_with(' '));
    let whole = std::iter::once(&first["Subject:".len()..]).chain(rest).map(str::trim).collect::<Vec<_>>().join(" ");
    let plain = match whole.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((tag, text)) if tag.contains("PATCH") => text.trim(),
        _ => whole.as_str(),
    };
    if plain.is_empty() { name.to_owned() } else { printable(plain) }
}

impl Tree {
    /// Opens a repository, with a work tree at a place of ours.
    pub fn open(repository: &Path, place: &Path) -> Result<Self> {
        let tree = Self { repository: repository.to_path_buf(), place: place.to_path_buf() };
        let ours = place.join(".git").exists();
        let is_same = || {
            let [a, b] = [repository, place].map(common_directory);
            matches!((a, b), (Ok(a), Ok(b)) if a == b)
        };
        if !(ours && is_same()) {
            if place.exists() {
                std::fs::remove_dir_all(place).with_context(|| format!("can't remove {}", place.display()))?;
            }
            // A work tree that was removed by hand is still registered.
            ask(&mut git(repository, &["worktree", "prune"])).map_err(|error| tree.failed(error))?;
            let add = ["worktree", "add", "--force", "--detach", "--no-checkout"];
            ask(git(repository, &add).arg(place).arg("HEAD")).map_err(|error| tree.failed(error))?;
        }
        // What a git has left that was killed. No other git works here, since one series uses the directory at a time.
        let lock = ask(&mut git(place, &["rev-parse", "--git-path", "index.lock"]))?;
        let lock = place.join(lock);
        if lock.exists() {
            std::fs::remove_file(&lock).with_context(|| format!("can't remove {}", lock.display()))?;
        }
        Ok(tree)
    }

    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        anyhow!("--tree {}: {error}", self.repository.display())
    }

    /// Returns the full name of a commit.
    fn commit(&self, option: &str, name: &str) -> Result<String> {
        let found = ask(git(&self.repository, &["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .arg(format!("{name}^{{commit}}")));
        let text = || format!("{option}: {} has no commit {name}", self.repository.display());
        found.map_err(|_| WrongArguments::new(text()).into())
    }

    /// Returns a commit by its full name.
    fn described(&self, commit: &str) -> Result<Commit> {
        let text = ask(git(&self.repository, &["log", "-1", "--format=%H%x00%h%x00%s"]).arg(commit))?;
        listed(&text).pop().context("git finds the commit but can't describe it")
    }

    /// Returns the commits of a range, the oldest first: its first end, and all that are reached from the other by first parents.
    pub fn range(&self, range: &str) -> Result<Vec<Commit>> {
        let (first, last) = ends(range)?;
        let [first, last] = [first, last].map(|name| self.commit(&format!("--range {range}"), name));
        let (first, last) = (first?, last?);
        let mut older = git(&self.repository, &["merge-base", "--is-ancestor", &first, &last]);
        if ask(&mut older).is_err() {
            let text = format!("--range {range}: the first commit is not among the ancestors of the second one");
            bail!(WrongArguments::new(text));
        }
        let between = format!("{first}..{last}");
        let list = ["log", "--reverse", "--first-parent", "--format=%H%x00%h%x00%s", &between, "--"];
        let commits = listed(&ask(&mut git(&self.repository, &list)).map_err(|error| self.failed(error))?);
        if commits.is_empty() {
            bail!(WrongArguments::new(format!("--range {range}: there are no commits between the two")));
        }
        Ok(std::iter::once(self.described(&first)?).chain(commits).collect())
    }

    /// Applies patches to a commit, and returns that commit and one for each patch.
    pub fn patched(&self, base: &str, directory: &Path) -> Result<Vec<Commit>> {
        let base = self.commit("--base", base)?;
        let mut commits = vec![self.described(&base)?];
        ask(&mut self.checkout(&base)).map_err(|error| self.failed(error))?;
        for path in patches_of(directory)? {
            let path = path.canonicalize().with_context(|| path.display().to_string())?;
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let stem = printable(&stem);
            let subject = subject(&String::from_utf8_lossy(&bytes), &stem);
            let applied = ask(git(&self.place, &["apply", "--index", "--whitespace=nowarn", "--"]).arg(&path));
            applied.map_err(|error| {
                let before = commits.len() - 1;
                anyhow!("{} does not apply on top of the {before} before it: {error}", path.display())
            })?;
            let mut commit = git(
                &self.place,
                &["commit", "--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "-m"],
            );
            ask(commit.arg(&subject).envs(AUTHOR)).map_err(|error| self.failed(error))?;
            let commit = ask(&mut git(&self.place, &["rev-parse", "HEAD"]))?;
            let mut name: String = stem.chars().take(LONGEST_NAME).collect();
            if commits.iter().any(|other| other.name == name) {
                name = format!("{name}-{}", commits.len());
            }
            commits.push(Commit { commit, name, subject });
        }
        Ok(commits)
    }

    /// Returns the command that checks a commit out.
    fn checkout(&self, commit: &str) -> Command {
        git(&self.place, &["checkout", "--quiet", "--force", "--detach", commit])
    }

    /// Checks a commit out. Files that builds have left stay, so that the next build has less to do. Returns false if the user stopped it: the first checkout
    /// of a kernel's tree takes a while.
    pub fn check_out(&self, commit: &str, stop: &AtomicBool) -> Result<bool> {
        let log = self.place.with_extension("log");
        let ended = runner::alone(&mut self.checkout(commit), &log, &self.place, stop);
        match ended.context("git can't be started")? {
            Ended::Well => Ok(true),
            Ended::Stopped => Ok(false),
            Ended::Badly(_, said) if !said.is_empty() => Err(self.failed(anyhow!("{}", said.join("; ")))),
            _ => Err(self.failed(anyhow!("git checkout failed"))),
        }
    }
}

/// Reads lines of hashes and subjects.
fn listed(text: &str) -> Vec<Commit> {
    let one = |line: &str| {
        let mut parts = line.splitn(3, '\0').map(printable);
        Some(Commit { commit: parts.next()?, name: parts.next()?, subject: parts.next()? })
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with four commits on a file `f`, the third of which is a merge.
    fn repository(test: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tollgate-series-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("tree")).unwrap();
        let tree = directory.join("tree");
        let run = |arguments: &[&str]| ask(git(&tree, arguments).envs(AUTHOR)).unwrap();
        run(&["init", "-q", "-b", "main"]);
        let write = |text: &str, subject: &str| {
            std::fs::write(tree.join("f"), text).unwrap();
            run(&["add", "f"]);
            run(&["commit", "-q", "-m", subject]);
        };
        write("1\n", "one");
        run(&["checkout", "-q", "-b", "side"]);
        std::fs::write(tree.join("g"), "side\n").unwrap();
        run(&["add", "g"]);
        run(&["commit", "-q", "-m", "beside"]);
        run(&["checkout", "-q", "main"]);
        write("2\n", "two\u{1b}[31m");
        run(&["merge", "-q", "--no-ff", "-m", "merged", "side"]);
        write("3\n", "three");
        directory
    }

    fn subjects(commits: &[Commit]) -> Vec<&str> {
        commits.iter().map(|commit| commit.subject.as_str()).collect()
    }

    #[test]
    fn a_range_begins_with_its_first_end_and_follows_first_parents() {
        let directory = repository("range");
        let (repository, place) = (directory.join("tree"), directory.join("work"));
        std::fs::write(repository.join("f"), "the user's\n").unwrap();
        let tree = Tree::open(&repository, &place).unwrap();
        let commits = tree.range("main~3..main").unwrap();
        assert_eq!(subjects(&commits), ["one", "two[31m", "merged", "three"]);
        assert_eq!(subjects(&tree.range("main~1..").unwrap()), ["merged", "three"]);
        tree.check_out(&commits[1].commit, &AtomicBool::new(false)).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("f")).unwrap(), "2\n");
        assert!(!place.join("g").exists());
        std::fs::write(place.join("f"), "changed by a build\n").unwrap();
        std::fs::write(place.join("f.o"), "made by a build\n").unwrap();
        tree.check_out(&commits[2].commit, &AtomicBool::new(false)).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("f")).unwrap(), "2\n");
        assert!(place.join("f.o").exists(), "what a build has left stays");
        // The user's checkout is as it was, and the work tree is found again.
        assert_eq!(std::fs::read_to_string(repository.join("f")).unwrap(), "the user's\n");
        assert_eq!(ask(&mut git(&repository, &["branch", "--show-current"])).unwrap(), "main");
        Tree::open(&repository, &place).unwrap();
        assert!(place.join("f.o").exists());
        // A git that was killed leaves its lock.
        let lock = repository.join(".git/worktrees/work/index.lock");
        std::fs::write(&lock, "").unwrap();
        let error = tree.check_out(&commits[0].commit, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("index.lock") && error.starts_with("--tree "), "{error}");
        let tree = Tree::open(&repository, &place).unwrap();
        assert!(tree.check_out(&commits[0].commit, &AtomicBool::new(false)).unwrap() && !lock.exists());
        std::fs::remove_dir_all(&place).unwrap();
        Tree::open(&repository, &place).unwrap().check_out(&commits[0].commit, &AtomicBool::new(false)).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn mistakes_in_a_range_are_named() {
        let directory = repository("mistakes");
        let (repository, place) = (directory.join("tree"), directory.join("work"));
        let tree = Tree::open(&repository, &place).unwrap();
        let error = |range: &str| tree.range(range).unwrap_err().to_string();
        assert!(error("main").contains("a range has the form A..B"));
        assert!(error("a...b").contains("a range has the form A..B"));
        assert!(error("main~1..mian").ends_with("has no commit mian"));
        assert!(error("main..main~1").contains("is not among the ancestors"));
        assert!(error("main..main").contains("no commits between"));
        assert!(error("--output=x..main").contains("has no commit --output=x"));
        let other = common_directory(&directory).unwrap_err().to_string();
        assert!(other.starts_with("--tree ") && other.contains("not a git repository"), "{other}");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn patches_are_commits_in_their_order() {
        let directory = repository("patches");
        let (repository, place) = (directory.join("tree"), directory.join("work"));
        let patches = directory.join("patches");
        std::fs::create_dir_all(&patches).unwrap();
        let patch = |name: &str, head: &str, from: &str, to: &str| {
            let text = format!("{head}--- a/f\n+++ b/f\n@@ -1 +1 @@\n-{from}\n+{to}\n");
            std::fs::write(patches.join(name), text).unwrap();
        };
        patch("0001-four.patch", "From: x\nSubject: [PATCH 1/2] f: count\n to four\n\n", "3", "4");
        patch("0002-five.diff", "", "4", "5");
        let tree = Tree::open(&repository, &place).unwrap();
        let commits = tree.patched("HEAD", &patches).unwrap();
        assert_eq!(subjects(&commits), ["three", "f: count to four", "0002-five"]);
        assert_eq!(commits[1].name, "0001-four");
        assert_eq!(tree.patched("HEAD", &patches).unwrap(), commits, "the same patches are the same commits");
        tree.check_out(&commits[2].commit, &AtomicBool::new(false)).unwrap();
        assert_eq!(std::fs::read_to_string(place.join("f")).unwrap(), "5\n");
        let error = tree.patched("HEAD~2", &patches).unwrap_err().to_string();
        assert!(error.contains("0001-four.patch does not apply on top of the 0 before it"), "{error}");
        std::fs::write(patches.join("series"), "# the second alone\n0002-five.diff -p1\nmissing.patch\n").unwrap();
        let error = tree.patched("HEAD", &patches).unwrap_err().to_string();
        assert!(error.contains("the file series names ") && error.contains("missing.patch"), "{error}");
        std::fs::remove_file(patches.join("series")).unwrap();
        std::fs::remove_file(patches.join("0001-four.patch")).unwrap();
        std::fs::remove_file(patches.join("0002-five.diff")).unwrap();
        assert!(tree.patched("HEAD", &patches).unwrap_err().to_string().contains("no files *.patch or *.diff"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
