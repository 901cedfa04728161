//! The surroundings of a command that is measured by `tollgate diff` or started with `--controlled`: its environment, its user, the name of its working
//! directory and the owner of its files are always the same, because each of them moves the stack or changes the tree of files, and with them the cost.

use super::ExecArgs;
use super::files::User;
use anyhow::{Result, anyhow};
use guestfs::closure::needs_place;
use guestfs::{Kind, Packed};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The working directory of the command.
const DIRECTORY: &str = "/tollgate";
/// The directories in which commands are looked up.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The environment, besides the variables of `--env` and `--keep-env`.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("LOGNAME", "root"),
    ("PATH", PATH),
    ("SHELL", "/bin/sh"),
    ("USER", "root"),
];
/// Directories that every tree of files has, whether or not they are empty.
const STANDING: [&str; 5] = ["/root", "/run", "/tmp", "/var/log", "/var/tmp"];
/// Directories of the system. What is in them keeps its place.
const SYSTEM: [&str; 12] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/var/lib"];

/// Returns the user of the command: the one of `--user`, or root.
pub fn user(args: &ExecArgs) -> Result<User> {
    User::find(Some(args.user.as_deref().unwrap_or("root")))
}

/// Returns the environment of a command, without the variables of options; `PWD` is the working directory `directory`.
pub fn environment(directory: &Path) -> Vec<(OsString, OsString)> {
    let mut all: Vec<(OsString, OsString)> = ENVIRONMENT.map(|(name, value)| (name.into(), value.into())).to_vec();
    all.push(("PWD".into(), directory.into()));
    all
}

/// A tree of files, and the working directory in it.
pub struct Placed {
    /// The files.
    pub files: Packed,
    /// The working directory of the command.
    pub directory: PathBuf,
    /// True if the directory keeps its name of the host, because the command or its files name it.
    pub kept: bool,
}

/// How the directory in which `tollgate` was started, and the files in it, appear in the guest.
enum Way {
    /// The files are in the directory with the fixed name.
    Moved,
    /// The command names the files by absolute paths. They keep them, and the command starts in an empty directory with the fixed name.
    Apart,
    /// The directory keeps its name.
    Kept,
}

/// Gives the files of the working directory to the command's user, and the directory its fixed name, unless the command or its files would then miss something.
pub fn place(args: &ExecArgs, mut files: Packed, directory: &Path, user: &User) -> Result<Placed> {
    let way = way(args, &mut files, directory)?;
    if matches!(way, Way::Moved | Way::Kept) && !is_of_system(directory) {
        files.give(directory, nix::unistd::geteuid().as_raw(), (user.ids[0], user.ids[1]));
    }
    let fixed = Path::new(DIRECTORY);
    let files = match way {
        // The numbers of files depend on their names only, not on the order in which the command names them.
        Way::Kept => return Ok(Placed { files: files.renumbered(), directory: directory.to_path_buf(), kept: true }),
        Way::Apart => files.moved(fixed, fixed, &[]),
        Way::Moved => files.moved(directory, fixed, &STANDING.map(Path::new)),
    };
    let files = files.map_err(|error| anyhow!("the command's files can't be placed in {DIRECTORY}: {error}"))?;
    Ok(Placed { files, directory: fixed.to_path_buf(), kept: false })
}

/// Returns true if a directory contains files of the system, or is one of its directories.
fn is_of_system(directory: &Path) -> bool {
    SYSTEM.iter().any(|place| directory.starts_with(place) || Path::new(place).starts_with(directory))
}

/// Returns the way in which a directory appears in the guest.
fn way(args: &ExecArgs, files: &mut Packed, directory: &Path) -> Result<Way> {
    let words = || args.command.iter().map(OsString::as_os_str).chain(args.add.iter().map(|path| path.as_os_str()));
    let relative = words().any(|word| names_file(word, directory));
    if is_of_system(directory) {
        return Ok(if relative { Way::Kept } else { Way::Apart });
    }
    let mentions = words().filter_map(|word| mention(word.as_bytes(), directory));
    match mentions.max() {
        // Files of `--add` may be meant for relative names in the program.
        Some(Mention::Below) if !relative && args.add.is_empty() => return Ok(Way::Apart),
        Some(_) => return Ok(Way::Kept),
        None if words().any(|word| leads_upwards(word, directory)) => return Ok(Way::Kept),
        None => {}
    }
    let name = directory.as_os_str().as_bytes();
    let below = [name.strip_prefix(b"/").unwrap_or(name), b"/"].concat();
    let below: Vec<_> = files.walk().into_iter().filter(|file| file.path.starts_with(&below)).collect();
    for file in below {
        let needs = match file.target {
            Some(target) => {
                mention(&target, directory).is_some()
                    || Path::new(OsStr::from_bytes(&target)).components().any(is_upwards)
            }
            None if file.attributes.kind() == Kind::File => {
                let bytes = files.contents(file.node).map_err(|error| anyhow!("a file can't be read: {error}"))?;
                needs_place(&bytes, directory)
            }
            None => false,
        };
        if needs {
            return Ok(Way::Kept);
        }
    }
    Ok(Way::Moved)
}

/// The meaning of a directory's absolute name in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mention {
    /// For files in the directory alone.
    Below,
    /// For the directory.
    Itself,
}

/// Returns the meaning of a directory's absolute name in a text. None if the text does not contain the name.
fn mention(text: &[u8], directory: &Path) -> Option<Mention> {
    let name = directory.as_os_str().as_bytes();
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+%@~,:#".contains(byte) || !byte.is_ascii();
    let behind = (0..text.len()).filter(|at| text[*at..].starts_with(name)).map(|at| &text[at + name.len()..]);
    let mentions = behind.filter_map(|behind| match behind {
        [b'/', next, ..] if is_of_name(next) => Some(Mention::Below),
        [next, ..] if is_of_name(next) => None,
        _ => Some(Mention::Itself),
    });
    mentions.max()
}

/// Returns the parts of a word that may be relative names of files, as in a shell's script.
fn relative_parts(word: &OsStr) -> impl Iterator<Item = &Path> {
    let parts = word.as_bytes().split(|byte| byte.is_ascii_whitespace() || b"'\";|&<>()$`=".contains(byte));
    let parts = parts.map(|part| Path::new(OsStr::from_bytes(part)));
    parts.filter(|part| part.is_relative() && *part != Path::new(""))
}

/// Returns true if a word is the relative name of a file in a directory, or contains one.
fn names_file(word: &OsStr, directory: &Path) -> bool {
    relative_parts(word).any(|part| directory.join(part).exists())
}

fn is_upwards(component: Component) -> bool {
    component == Component::ParentDir
}

/// Returns true if a word contains a relative name with a `..` of a file that exists or could be made.
fn leads_upwards(word: &OsStr, directory: &Path) -> bool {
    let exists = |path: &Path| directory.join(path).exists();
    relative_parts(word)
        .any(|part| part.components().any(is_upwards) && (exists(part) || part.parent().is_some_and(exists)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_mentions_a_directory_or_files_in_it() {
        let of = |text: &str| mention(text.as_bytes(), Path::new("/a/b"));
        for text in ["/a/b", "/a/b/", "ls /a/b; true", "-I/a/b", "/a/b/c:/a/b", "'/a/b'"] {
            assert_eq!(of(text), Some(Mention::Itself), "{text}");
        }
        for text in ["/a/b/c", "-I/a/b/c", "x=/a/b/../c", "/a/b/c;/a/b/d"] {
            assert_eq!(of(text), Some(Mention::Below), "{text}");
        }
        for text in ["", "/a/bc", "/a/b.c/d", "/a", "a/b"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_leads_upwards_if_it_means_a_file() {
        let place = std::env::temp_dir().join(format!("tollgate-upwards-{}", std::process::id()));
        let directory = place.join("d");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(place.join("program"), "").unwrap();
        let leads = |word: &str| leads_upwards(OsStr::new(word), &directory);
        for word in ["../program", "./../program", "..", "cd ..;ls", "-o=../new", "../d/new"] {
            assert!(leads(word), "{word}");
        }
        for word in ["s/../x/", "../none/new", "/usr/../bin/ls", "a..b", "..."] {
            assert!(!leads(word), "{word}");
        }
        std::fs::remove_dir_all(place).unwrap();
    }
}
