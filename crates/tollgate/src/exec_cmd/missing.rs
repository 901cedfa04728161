//! Files of this host that a command has looked for and that its guest does not have.

use super::ExecArgs;
use super::files::is_of_guest;
use crate::output::say;
use crate::table::counted;
use guestfs::Packed;
use guestfs::packed::paths_below;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most files that a message names.
const MOST_NAMED: usize = 3;
/// Directories in which programs make files while they run: what the command line does not mention is of no interest there.
const OF_RUNS: [&str; 3] = ["/run", "/tmp", "/var/run"];
/// Names of files and directories that the C library and many programs look for and do not need.
const OPTIONAL: [&str; 6] = ["gconv", "ld.so.preload", "locale", "nscd", "selinux", "terminfo"];

/// A file or a directory that a command has looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its path on this host.
    pub path: PathBuf,
    /// True for a directory if the command may have looked for something in it, and not for the directory itself.
    within: bool,
}

/// Returns the paths of a command's words that are one of these directories, or below one.
fn named(command: &[OsString], directory: &Path, directories: &[PathBuf]) -> BTreeSet<PathBuf> {
    let words = command.iter().map(|word| directory.join(word));
    let below = |path: &PathBuf| directories.iter().any(|directory| path.starts_with(directory));
    let inside = command.iter().flat_map(|word| paths_below(word.as_bytes(), directories));
    words.filter(below).chain(inside).collect()
}

/// Evidence of the paths below a missing directory.
struct Evidence {
    /// Paths on the command line.
    named: BTreeSet<PathBuf>,
    /// Paths in the files that the guest has.
    written: BTreeSet<PathBuf>,
}

/// Returns what a command has looked for in this host's directory, which its guest does not have. The guest's kernel has asked for the directory alone, so that
/// the command line and the files of the guest say what the rest of the path may be. `matters` is false for directories in which programs often look in vain.
fn behind(path: &Path, evidence: &Evidence, matters: bool, exists: impl Fn(&Path) -> bool) -> Vec<Missing> {
    let of =
        |paths: &BTreeSet<PathBuf>| paths.iter().filter(|below| below.starts_with(path)).cloned().collect::<Vec<_>>();
    let (named, written) = (of(&evidence.named), of(&evidence.written));
    let exist = |paths: Vec<PathBuf>| paths.into_iter().filter(|path| exists(path)).collect::<Vec<_>>();
    let whole = || vec![Missing { path: path.to_path_buf(), within: true }];
    match (&named[..], &written[..]) {
        ([_, ..], _) => exist(named).into_iter().map(|path| Missing { path, within: false }).collect(),
        _ if !matters => Vec::new(),
        // The command has put the path together.
        (_, []) => whole(),
        _ => match <[PathBuf; 1]>::try_from(exist(written)) {
            Ok([path]) => vec![Missing { within: path.is_dir(), path }],
            Err(paths) if paths.is_empty() => Vec::new(),
            Err(_) => whole(),
        },
    }
}

/// Returns what a guest has looked for in vain in its packed files and what this host has, the latest first. `directory` is that of the command.
pub fn on_host(mut packed: Packed, args: &ExecArgs, directory: &Path) -> Vec<Missing> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let mut paths = packed.missed();
    paths.retain(|path| exists(path));
    let places = OF_RUNS.iter().map(PathBuf::from);
    let directories = paths.iter().filter(|path| path.is_dir()).cloned();
    let mentioned = named(&args.command, directory, &places.chain(directories).collect::<Vec<_>>());
    let elsewhere = |path: &Path| {
        let of_runs = OF_RUNS.iter().any(|place| path.starts_with(place));
        is_of_guest(path)
            || of_runs && !mentioned.iter().any(|word| word.starts_with(path))
            || args.share.iter().any(|share| path.starts_with(&share.path))
    };
    paths.retain(|path| !elsewhere(path));
    let directories: Vec<PathBuf> = paths.iter().filter(|path| path.is_dir()).cloned().collect();
    // Programs and libraries are looked for in each of these directories.
    let lists = ["PATH", "LD_LIBRARY_PATH"].into_iter().filter_map(std::env::var_os);
    let searched: Vec<PathBuf> = lists.flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>()).collect();
    let is_search = |path: &Path| {
        let root = ["/bin", "/sbin", "/usr"].map(Path::new).contains(&path);
        root || searched.iter().any(|directory| directory.starts_with(path))
    };
    let is_optional = |path: &Path| path.iter().any(|name| OPTIONAL.iter().any(|optional| *optional == name));
    let written = if directories.is_empty() { BTreeSet::new() } else { packed.paths_below(&directories) };
    let evidence = Evidence { named: mentioned, written };
    let mut all = Vec::new();
    for path in paths {
        let matters = !is_search(&path) && !is_optional(&path);
        let found = match directories.contains(&path) {
            true => behind(&path, &evidence, matters, exists),
            false => vec![Missing { path, within: false }].into_iter().filter(|_| matters).collect(),
        };
        for missing in found {
            if !all.contains(&missing) {
                all.push(missing);
            }
        }
    }
    all
}

/// Tells the user of a command that failed which files it may have needed.
pub fn report(missing: &[Missing]) {
    if missing.is_empty() {
        return;
    }
    let named = |Missing { path, within }: &Missing| {
        format!("{}{}", if *within { "something in " } else { "" }, path.display())
    };
    let named: Vec<_> = missing.iter().take(MOST_NAMED).map(named).collect();
    let others = match missing.len() - named.len() {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other", "others")),
    };
    say(&format!(
        "tollgate: the command has looked for files that this host has and its guest does not: {}{others} (--add PATH packs a file or directory, --root shows all files)",
        named.join(", ")
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_on_the_way_is_not_what_was_looked_for() {
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let found = |named: &[&str], written: &[&str], matters: bool| {
            let evidence = Evidence { named: paths(named), written: paths(written) };
            let exists = |path: &Path| !path.ends_with("gone");
            let found = behind(Path::new("/opt/x"), &evidence, matters, exists).into_iter();
            found.map(|missing| (missing.path.display().to_string(), missing.within)).collect::<Vec<_>>()
        };
        let one = |path: &str, within: bool| vec![(path.to_owned(), within)];
        assert_eq!(found(&["/opt/x"], &[], false), one("/opt/x", false));
        assert_eq!(found(&["/opt/x/gone"], &["/opt/x/there"], true), []);
        assert_eq!(found(&[], &["/opt/x/gone"], true), []);
        assert_eq!(found(&[], &["/opt/x/gone", "/opt/x/there"], true), one("/opt/x/there", false));
        assert_eq!(found(&[], &["/opt/x/a", "/opt/x/b"], true), one("/opt/x", true));
        assert_eq!(found(&[], &["/opt/xy"], true), one("/opt/x", true));
        assert_eq!(found(&[], &[], true), one("/opt/x", true));
        assert_eq!(found(&[], &[], false), []);
    }

    #[test]
    fn the_words_of_a_command_name_what_it_looks_for() {
        let command = ["sh", "-c", "cat /opt/x/a; ls ../y", "b/c"].map(OsString::from);
        let found = named(&command, Path::new("/srv"), &["/opt/x".into(), "/srv/b".into()]);
        assert_eq!(found, ["/opt/x/a", "/srv/b/c"].map(PathBuf::from).into());
    }
}
