//! Kernels by their release, as apt knows them: `6.12.95`, or a whole name such as `6.1.0-56-cloud-amd64`.

use super::package::{self, Kind};
use crate::output::say;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Beginning of the names of packages with a kernel.
pub(super) const PACKAGE: &str = "linux-image-";
/// Ends of packages that have no kernel to boot.
const OTHERS: [&str; 2] = ["-dbg", "-unsigned"];
/// Other kernels that an error names.
const MOST_NAMED: usize = 12;

/// Returns true if a name looks like a kernel's release: numbers with a point between them at its beginning, and no directories.
pub fn is_release(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let mut parts = name.splitn(3, '.');
    let major = parts.next().is_some_and(number);
    let minor = parts.next().is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()));
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || ".-+~_".contains(c));
    major && minor && plain
}

/// Chooses the package of a release: the whole name, else a cloud kernel, else the plain one. `known` are names of packages.
pub(super) fn chosen<'a>(release: &str, known: &[&'a str]) -> Option<&'a str> {
    let is_of = |name: &&&str| {
        let rest = name.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix(release));
        let ends = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '+', '.']));
        ends && !OTHERS.iter().any(|end| name.ends_with(end)) && (rest == Some("") || name.ends_with("amd64"))
    };
    let flavour = |name: &&&str| (!name.contains("-cloud-"), name.contains("-rt-"), name.len(), name.to_string());
    let whole = format!("{PACKAGE}{release}");
    let all = || known.iter().filter(is_of);
    all().find(|name| **name == whole).or_else(|| all().min_by_key(flavour)).copied()
}

fn ask(program: &str, arguments: &[&str], directory: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().with_context(|| format!("{program} can't be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}", said.trim().replace('\n', "; "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the name of a release's package, as apt knows it.
pub fn package(release: &str) -> Result<String> {
    let failed = || format!("--kernel {release}");
    let names = ask("apt-cache", &["pkgnames", PACKAGE], Path::new("/")).with_context(failed)?;
    let known: Vec<&str> = names.lines().collect();
    let Some(package) = chosen(release, &known) else {
        let mut others: Vec<&str> = known.iter().filter_map(|name| name.strip_prefix(PACKAGE)).collect();
        others.retain(|name| is_release(name) && name.ends_with("amd64"));
        others.sort_unstable();
        others.reverse();
        let more = others.len().saturating_sub(MOST_NAMED);
        others.truncate(MOST_NAMED);
        let more =
            if more > 0 { format!(" and {}", crate::table::counted(more, "other", "others")) } else { String::new() };
        bail!(
            "{}: apt knows no package of this release; it knows {}{more}. Add the sources that have it to apt's, or give the package's file",
            failed(),
            if others.is_empty() { "none at all (apt-get update)".to_owned() } else { others.join(", ") }
        );
    };
    Ok(package.to_owned())
}

/// Returns the file of a package in a directory for packages, if it has been downloaded: the newest one.
pub fn downloaded(packages: &Path, package: &str) -> Option<PathBuf> {
    let begin = format!("{package}_");
    let entries = std::fs::read_dir(packages.join("debs")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&begin) && name.ends_with(".deb")
    };
    entries.filter(is_it).max()
}

/// Returns the directory with the files of a release's package, which is downloaded once into a directory for packages.
pub fn fetched(release: &str, package: &str, packages: &Path) -> Result<PathBuf> {
    let failed = || format!("--kernel {release}");
    let directory = packages.join("debs");
    std::fs::create_dir_all(&directory).with_context(|| format!("can't make {}", directory.display()))?;
    if downloaded(packages, package).is_none() {
        say(&format!("tollgate: fetching {package} from this system's package sources"));
        ask("apt-get", &["--quiet", "download", package], &directory).with_context(failed)?;
    }
    let file = downloaded(packages, package).with_context(|| format!("{}: apt-get has left no package", failed()))?;
    package::unpacked_in(packages, &file, Kind::Deb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_a_release_is_chosen() {
        let known = [
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-amd64-dbg",
            "linux-image-6.1.0-56-rt-amd64",
            "linux-image-6.1.0-5-amd64",
            "linux-image-6.12.95+deb12-amd64",
            "linux-image-6.12.95+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.95+deb12-rt-amd64",
            "linux-image-6.8.0-31-generic",
        ];
        let of = |release: &str| chosen(release, &known).map(|name| &name[PACKAGE.len()..]);
        assert_eq!(of("6.1.0-56"), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(of("6.1.0-5"), Some("6.1.0-5-amd64"));
        assert_eq!(of("6.1.0-56-amd64"), Some("6.1.0-56-amd64"));
        assert_eq!(of("6.12.95"), Some("6.12.95+deb12-amd64"));
        assert_eq!(of("6.8.0-31-generic"), Some("6.8.0-31-generic"));
        assert_eq!((of("6.12.9"), of("6.13")), (None, None));
    }

    #[test]
    fn a_release_begins_with_numbers() {
        for name in ["6.12.95", "6.1", "6.1.0-56-cloud-amd64", "6.12.95+deb12-amd64"] {
            assert!(is_release(name), "{name}");
        }
        for name in ["6", "v6.1", "cloud", "6.x", "6.1/x", ".1", "6.1 2", "bzImage.6"] {
            assert!(!is_release(name), "{name}");
        }
    }
}
