//! The surroundings of a command that is measured by `tollgate diff` or started with `--controlled`: its environment, its user, the name of its working
//! directory and the owner of its files are always the same, because each of them moves the stack or changes the tree of files, and with them the cost.

use super::ExecArgs;
use super::files::User;
use anyhow::{Result, anyhow};
use guestfs::closure::needs_place;
use guestfs::{Kind, Packed};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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

/// Gives the files of the working directory to the command's user, and the directory its fixed name, unless the command or its files would then miss something.
pub fn place(args: &ExecArgs, mut files: Packed, directory: &Path, user: &User) -> Result<Placed> {
    if !is_of_system(directory) {
        files.give(directory, nix::unistd::geteuid().as_raw(), (user.ids[0], user.ids[1]));
    }
    if keeps_place(args, &mut files, directory)? {
        // The numbers of files depend on their names only, not on the order in which the command names them.
        return Ok(Placed { files: files.renumbered(), directory: directory.to_path_buf(), kept: true });
    }
    let fixed = Path::new(DIRECTORY);
    let files = match is_of_system(directory) {
        true => files.moved(fixed, fixed, &[]),
        false => files.moved(directory, fixed, &STANDING.map(Path::new)),
    };
    let files = files.map_err(|error| anyhow!("the command's files can't be placed in {DIRECTORY}: {error}"))?;
    Ok(Placed { files, directory: fixed.to_path_buf(), kept: false })
}

/// Returns true if a directory contains files of the system, or is one of its directories.
fn is_of_system(directory: &Path) -> bool {
    SYSTEM.iter().any(|place| directory.starts_with(place) || Path::new(place).starts_with(directory))
}

/// Returns true if the directory must keep its name. If nothing in it is used, the name does not matter.
fn keeps_place(args: &ExecArgs, files: &mut Packed, directory: &Path) -> Result<bool> {
    let words = || args.command.iter().map(OsString::as_os_str).chain(args.add.iter().map(|path| path.as_os_str()));
    if is_of_system(directory) {
        return Ok(words().any(|word| names_file(word, directory)));
    }
    let name = directory.as_os_str().as_bytes();
    let named = |text: &[u8]| text.windows(name.len()).any(|window| window == name);
    let upwards = |word: &[u8]| word == b".." || word.windows(3).any(|part| part == b"../" || part == b"/..");
    let below = [name.strip_prefix(b"/").unwrap_or(name), b"/"].concat();
    let below: Vec<_> = files.walk().into_iter().filter(|file| file.path.starts_with(&below)).collect();
    if below.is_empty() {
        return Ok(false);
    }
    if words().any(|word| named(word.as_bytes()) || upwards(word.as_bytes())) {
        return Ok(true);
    }
    for file in below {
        let needs = match file.target {
            Some(target) => named(&target) || upwards(&target),
            None if file.attributes.kind() == Kind::File => {
                let bytes = files.contents(file.node).map_err(|error| anyhow!("a file can't be read: {error}"))?;
                needs_place(&bytes, directory)
            }
            None => false,
        };
        if needs {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if a word is the relative name of a file in a directory, or contains one, as a shell's script does.
fn names_file(word: &OsStr, directory: &Path) -> bool {
    let parts = word.as_bytes().split(|byte| byte.is_ascii_whitespace() || b"'\";|&<>()$`=".contains(byte));
    let mut parts = parts.map(|part| Path::new(OsStr::from_bytes(part)));
    parts.any(|part| part.is_relative() && part != Path::new("") && directory.join(part).exists())
}
